//! `mount.longhaul`: the helper that `mount -t longhaul` calls, also for `/etc/fstab` (mount(8),
//! external helpers).
//!
//! It is a link to this program, and translates the arguments of `mount` to `longhaul mount`.

use crate::cli::Cli;
use clap::{ArgAction, CommandFactory};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// The name that `mount` looks for.
const NAME: &str = "mount.longhaul";
/// `argv[0]` of a self-exec.
pub(crate) const SELF: &str = "longhaul";
/// Options for `mount` itself and for readers of `/etc/fstab`, such as systemd.
const MOUNT_OPTIONS: [&str; 15] = [
    "defaults", "rw", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group",
    "nogroup", "nofail", "_netdev", "loop",
];
/// Exit statuses of mount(8): incorrect invocation, and mount failure.
const BAD_INVOCATION: u8 = 1;
const MOUNT_FAILURE: u8 = 32;

/// Whether the program was called as `mount.longhaul`.
pub(crate) fn is_called() -> bool {
    let called = std::env::args_os().next();
    called.is_some_and(|path| Path::new(&path).file_name() == Some(OsStr::new(NAME)))
}

/// Runs `longhaul mount` with the translated arguments, and returns an exit status of mount(8).
pub(crate) fn run() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let call = match translate(&args) {
        Ok(call) => call,
        Err(why) => {
            crate::output::say(format_args!(
                "{NAME}: {why}; it is for mount -t longhaul DEVICE DIR, and /etc/fstab"
            ));
            return BAD_INVOCATION.into();
        }
    };
    if call.fake {
        return ExitCode::SUCCESS;
    }
    let ran = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.arg0(SELF).args(&call.words).stdin(Stdio::null());
        if !call.verbose {
            // Silent on success, as the helpers of other file systems are.
            command.stdout(Stdio::null());
        }
        command.status()
    });
    match ran {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) if status.code() == Some(2) => BAD_INVOCATION.into(),
        Ok(_) => MOUNT_FAILURE.into(),
        Err(e) => {
            crate::output::say(format_args!("{NAME}: cannot run this program again: {e}"));
            MOUNT_FAILURE.into()
        }
    }
}

/// A translated call of the helper.
#[derive(Debug, Default, PartialEq, Eq)]
struct MountCall {
    /// Arguments of `longhaul`.
    words: Vec<String>,
    /// Only check the arguments (`-f`).
    fake: bool,
    verbose: bool,
}

/// `DEVICE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
fn translate(args: &[String]) -> Result<MountCall, String> {
    let mut call = MountCall::default();
    let (mut positional, mut flags, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    let mut args = args.iter();
    while let Some(word) = args.next() {
        match word.as_str() {
            "-o" => options(args.next().ok_or("-o needs options")?, &mut flags, &mut rest),
            "-t" => drop(args.next()),
            "-N" => return Err("other mount namespaces are not supported: use nsenter".into()),
            flag if flag.starts_with('-') => {
                call.fake |= flag.contains('f');
                call.verbose |= flag.contains('v');
            }
            word => positional.push(word.to_owned()),
        }
    }
    let [device, dir] =
        positional.try_into().map_err(|_| "a device and a directory are needed".to_owned())?;
    call.words = [vec!["mount".to_owned()], flags].concat();
    if !rest.is_empty() {
        call.words.push(format!("--options={}", rest.join(",")));
    }
    call.words.extend(["--".to_owned(), device, dir]);
    Ok(call)
}

/// Splits mount options into `flags` of `longhaul mount` and the `rest`, for the file system.
fn options(text: &str, flags: &mut Vec<String>, rest: &mut Vec<String>) {
    let mut command = Cli::command();
    command.build();
    let mount = command.find_subcommand("mount");
    let flag = |name: &str| {
        let mut all = mount.into_iter().flat_map(clap::Command::get_arguments);
        all.find(|arg| {
            arg.get_long() == Some(name) && !["options", "foreground", "help", "json"].contains(&name)
        })
    };
    for option in text.split(',').filter(|option| !option.is_empty()) {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let is_ignored = MOUNT_OPTIONS.contains(&name)
            || name.starts_with("x-")
            || name.starts_with("X-")
            || name == "comment";
        match (flag(name), value) {
            _ if name == "ro" => flags.push("--read-only".into()),
            _ if is_ignored => {}
            (Some(arg), None) if matches!(arg.get_action(), ArgAction::SetTrue) => {
                flags.push(format!("--{name}"))
            }
            (Some(_), Some(value)) => flags.push(format!("--{name}={value}")),
            _ => rest.push(option.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(args: &[&str]) -> Result<MountCall, String> {
        translate(&args.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn mount_options_become_flags_of_longhaul_mount() {
        let options = "rw,_netdev,nofail,x-systemd.automount,noatime,via=fuse,data-digest,ctrl-loss-timeout=-1,logbsize=32k";
        let call = words(&["array:x", "/mnt", "-n", "-v", "-o", options]).expect("a call");
        let typed = [
            "mount",
            "--via=fuse",
            "--data-digest",
            "--ctrl-loss-timeout=-1",
            "--options=noatime,logbsize=32k",
            "--",
            "array:x",
            "/mnt",
        ];
        assert_eq!(call.words, typed);
        assert!(call.verbose && !call.fake);
        let call = words(&["nvme+tcp://h/x", "/mnt", "-sf", "-o", "ro", "-t", "longhaul"]).expect("a call");
        assert_eq!(
            (call.words, call.fake),
            (["mount", "--read-only", "--", "nvme+tcp://h/x", "/mnt"].map(String::from).to_vec(), true)
        );
        for wrong in [&["array:x"][..], &["a", "b", "c"], &["a", "/mnt", "-o"], &["a", "/mnt", "-N", "7"]] {
            assert!(words(wrong).is_err(), "{wrong:?}");
        }
    }
}
