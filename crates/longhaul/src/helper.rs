//! `mount.longhaul`: what `mount -t longhaul` and `/etc/fstab` call (mount(8), external helpers).
//!
//! It is this program by another name, and turns what `mount` says into `longhaul mount`.

use crate::cli::Cli;
use clap::{ArgAction, CommandFactory};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// The name by which `mount` finds it.
const NAME: &str = "mount.longhaul";
/// What this program calls itself when it calls itself.
pub(crate) const SELF: &str = "longhaul";
/// Options for `mount` itself and for what reads `/etc/fstab`.
const NOT_OURS: [&str; 15] = [
    "defaults", "rw", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group",
    "nogroup", "nofail", "_netdev", "loop",
];
/// Exit codes of mount(8): a call that makes no sense, and a mount that failed.
const BAD_CALL: u8 = 1;
const FAILED: u8 = 32;

/// Whether the program was called by that name.
pub(crate) fn is_called() -> bool {
    let called = std::env::args_os().next();
    called.is_some_and(|path| Path::new(&path).file_name() == Some(OsStr::new(NAME)))
}

/// Mounts what `mount` has asked for.
pub(crate) fn run() -> ExitCode {
    let asked: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let call = match translate(&asked) {
        Ok(call) => call,
        Err(why) => {
            crate::output::say(format_args!(
                "{NAME}: {why}; it is for mount -t longhaul DEVICE DIR, and /etc/fstab"
            ));
            return BAD_CALL.into();
        }
    };
    if call.fake {
        return ExitCode::SUCCESS;
    }
    let ran = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.arg0(SELF).args(&call.words).stdin(Stdio::null());
        if !call.verbose {
            // As with any other file system, nothing is said where all is well.
            command.stdout(Stdio::null());
        }
        command.status()
    });
    match ran {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) if status.code() == Some(2) => BAD_CALL.into(),
        Ok(_) => FAILED.into(),
        Err(e) => {
            crate::output::say(format_args!("{NAME}: cannot run this program again: {e}"));
            FAILED.into()
        }
    }
}

/// What to run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    words: Vec<String>,
    /// Nothing is to be done.
    fake: bool,
    verbose: bool,
}

/// `DEVICE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
fn translate(asked: &[String]) -> Result<Call, String> {
    let (mut call, mut places, mut flags, mut rest) = (Call::default(), Vec::new(), Vec::new(), Vec::new());
    let mut asked = asked.iter();
    while let Some(word) = asked.next() {
        match word.as_str() {
            "-o" => options(asked.next().ok_or("-o needs options")?, &mut flags, &mut rest),
            "-t" => drop(asked.next()),
            "-N" => return Err("other mount namespaces are not supported: use nsenter".into()),
            flag if flag.starts_with('-') => {
                call.fake |= flag.contains('f');
                call.verbose |= flag.contains('v');
            }
            place => places.push(place.to_owned()),
        }
    }
    let [device, dir] = places.try_into().map_err(|_| "a device and a directory are needed".to_owned())?;
    call.words = [vec!["mount".to_owned()], flags].concat();
    if !rest.is_empty() {
        call.words.push(format!("--options={}", rest.join(",")));
    }
    call.words.extend(["--".to_owned(), device, dir]);
    Ok(call)
}

/// Sorts options: flags of `longhaul mount`, by their names, and the file system's own.
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
        let is_theirs =
            NOT_OURS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") || name == "comment";
        match (flag(name), value) {
            _ if name == "ro" => flags.push("--read-only".into()),
            _ if is_theirs => {}
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

    fn words(asked: &[&str]) -> Result<Call, String> {
        translate(&asked.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_mount_says_becomes_what_a_person_would_type() {
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
