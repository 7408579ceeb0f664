//! `longhaul tune`: the settings of this machine that limit TCP on a long path.
//!
//! Invariants:
//! - only `apply` and `restore` change settings;
//! - the old value of a setting is on disk before the setting is changed, and stays there
//!   until it is restored;
//! - a limit is never lowered.

mod advice;
mod saved;

use crate::events::{TuneApplied, TuneRestored, TuneSetting, TuneShown};
use crate::exit::{Exit, Failure, NothingToDo, Outcome};
use crate::output::Output;
use advice::{Machine, Path, Setting, advise};
use comfy_table::Table;
use longhaul_block::units::{format_rate, parse_duration, parse_rate};
use saved::SavedSettings;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  longhaul tune diff --rate 100Gbit --rtt 45ms
  sudo longhaul tune apply --rate 100Gbit --rtt 45ms
  sudo longhaul tune restore")]
pub(crate) struct TuneArgs {
    #[command(subcommand)]
    verb: TuneVerb,
}

#[derive(Debug, clap::Subcommand)]
enum TuneVerb {
    /// Print the settings, the values advised for a path, and the reasons
    Show(Options),
    /// Print the settings that differ from the advice
    Diff(Options),
    /// Change the settings that differ, and save their old values
    Apply(Options),
    /// Restore the saved values
    Restore(RootOptions),
}

#[derive(Debug, clap::Args)]
struct Options {
    /// Rate of the path
    #[arg(long, value_name = "RATE", default_value = "10Gbit", value_parser = rate)]
    rate: u64,
    /// Round-trip time of the path
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = time)]
    rtt: Duration,
    #[command(flatten)]
    root: RootOptions,
}

#[derive(Debug, clap::Args)]
struct RootOptions {
    #[command(flatten)]
    nothing: NothingToDo,
    /// The root directory of the machine
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

fn rate(text: &str) -> Result<u64, String> {
    parse_rate(text).map_err(|e| e.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|e| e.to_string())
}

pub(crate) fn run(args: &TuneArgs, output: Output) -> Outcome {
    match &args.verb {
        TuneVerb::Show(options) => show(options, false, output),
        TuneVerb::Diff(options) => show(options, true, output),
        TuneVerb::Apply(options) => apply(options, output),
        TuneVerb::Restore(root) => restore(root, output),
    }
}

fn settings(options: &Options) -> Result<(Machine, Vec<Setting>), Failure> {
    let machine = Machine::at(&options.root.root);
    let settings = advise(&machine, Path { rate: options.rate, rtt: options.rtt });
    if settings.is_empty() {
        let root = options.root.root.display();
        return Err(Failure::failed(format!("no setting can be read below {root}: is it a Linux machine?")));
    }
    Ok((machine, settings))
}

fn events<'a>(settings: impl IntoIterator<Item = &'a Setting>) -> Vec<TuneSetting> {
    let event = |setting: &Setting| TuneSetting {
        setting: setting.name.clone(),
        is: setting.is.clone(),
        advised: setting.advised.clone(),
        why: setting.why.clone(),
        differs: setting.differs(),
    };
    settings.into_iter().map(event).collect()
}

fn show(options: &Options, only_different: bool, output: Output) -> Outcome {
    let (_, all) = settings(options)?;
    let shown: Vec<&Setting> = all.iter().filter(|setting| !only_different || setting.differs()).collect();
    output.event(&TuneShown { settings: events(shown.iter().copied()) });
    if shown.is_empty() {
        return options.root.nothing.nothing("all settings are as advised", output);
    }
    if !output.is_json() {
        let path =
            format!("{} and {:.0} ms", format_rate(options.rate as f64), options.rtt.as_secs_f64() * 1e3);
        output.line(format_args!("for a path of {path}:"));
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_header(["setting", "is", "advised", "why"]);
        for setting in shown {
            let advised = if setting.differs() { setting.advised.clone() } else { "as it is".into() };
            table.add_row([setting.name.clone(), setting.is.clone(), advised, setting.why.clone()]);
        }
        output.line(table);
    }
    Ok(())
}

fn apply(options: &Options, output: Output) -> Outcome {
    let (machine, all) = settings(options)?;
    let different: Vec<Setting> = all.into_iter().filter(Setting::differs).collect();
    if different.is_empty() {
        output.event(&TuneApplied { changed: Vec::new(), failed: 0 });
        return options.root.nothing.nothing("all settings are as advised: nothing is changed", output);
    }
    let mut saved = SavedSettings::load(&options.root.root)?;
    saved.keep(&different);
    saved.store()?;
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for setting in &different {
        match machine.write(setting, &setting.advised) {
            Ok(()) => done.push(setting),
            Err(e) => failed.push((setting, e)),
        }
    }
    // Settings that still have their old value need no restore. A value that the kernel
    // rounded is a change, although the write counts as failed.
    saved.forget(unchanged(&machine, failed.iter().map(|(setting, _)| *setting)));
    saved.store()?;
    output.event(&TuneApplied { changed: events(done.iter().copied()), failed: failed.len() });
    if !output.is_json() {
        for setting in &done {
            output.line(format_args!("{}: {} (was {})", setting.name, setting.advised, setting.is));
        }
    }
    ended(&failed, done.len(), "changed")
}

/// The names of settings that still have their old value.
fn unchanged<'a>(
    machine: &Machine,
    settings: impl Iterator<Item = &'a Setting>,
) -> impl Iterator<Item = &'a str> {
    settings
        .filter(|setting| machine.read(&setting.file).as_ref() == Some(&setting.is))
        .map(|setting| setting.name.as_str())
}

fn restore(root: &RootOptions, output: Output) -> Outcome {
    let mut saved = SavedSettings::load(&root.root)?;
    if saved.settings.is_empty() {
        output.event(&TuneRestored { restored: Vec::new(), failed: 0 });
        let message = "nothing was changed by 'longhaul tune apply': nothing to put back";
        return root.nothing.nothing(message, output);
    }
    let machine = Machine::at(&root.root);
    let before: Vec<Setting> =
        saved.settings.iter().map(|(name, old)| machine.named(name, &old.file, &old.value)).collect();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for setting in &before {
        match machine.write(setting, &setting.advised) {
            Ok(()) => done.push(setting),
            Err(e) => failed.push((setting, e)),
        }
    }
    done.iter().for_each(|setting| drop(saved.settings.remove(&setting.name)));
    saved.store()?;
    output.event(&TuneRestored { restored: events(done.iter().copied()), failed: failed.len() });
    if !output.is_json() {
        for setting in &done {
            output.line(format_args!("{}: {}", setting.name, setting.advised));
        }
    }
    ended(&failed, done.len(), "put back")
}

/// The exit status, by whether all, some or no settings could be written.
fn ended(failed: &[(&Setting, std::io::Error)], done: usize, what: &str) -> Outcome {
    let Some((setting, e)) = failed.first() else { return Ok(()) };
    let hint = match e.kind() {
        std::io::ErrorKind::PermissionDenied => "; settings of a machine need root: use sudo",
        _ => "",
    };
    let more = if failed.len() > 1 { format!(" and {} others", failed.len() - 1) } else { String::new() };
    let exit = if done > 0 { Exit::Partly } else { Exit::Failed };
    let message = format!("{}{more} could not be {what}: {e}{hint}", setting.name);
    Err(Failure { in_result: true, ..Failure::new(exit, message) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_the_kernel_made_something_else_of_is_not_forgotten() {
        let dir = tempfile::tempdir().expect("directory");
        fs::create_dir_all(dir.path().join("proc/sys")).expect("made");
        let machine = Machine::at(dir.path());
        let setting = |name: &str| Setting {
            name: name.into(),
            file: format!("proc/sys/{name}"),
            is: "10".into(),
            advised: "30".into(),
            why: String::new(),
        };
        let all = ["refused", "rounded", "gone"].map(setting);
        let mut saved = SavedSettings::load(dir.path()).expect("nothing saved");
        saved.keep(&all);
        // One write was refused, one rounded, and one file is missing.
        fs::write(dir.path().join("proc/sys/refused"), "10\n").expect("written");
        fs::write(dir.path().join("proc/sys/rounded"), "20\n").expect("written");
        saved.forget(unchanged(&machine, all.iter()));
        let kept: Vec<&str> = saved.settings.keys().map(String::as_str).collect();
        assert_eq!(kept, ["gone", "rounded"]);
        assert_eq!(saved.settings["rounded"].value, "10", "what it was at first");
    }
}
