//! `longhaul tune`: the settings of this machine that limit TCP on a long path.
//!
//! Invariants:
//! - only `apply` and `restore` change settings;
//! - the old value of a setting is on disk before the setting is changed, and stays there
//!   until it is restored;
//! - a limit is never lowered.

use crate::events::{TuneApplied, TuneRestored, TuneSetting, TuneShown};
use crate::exit::{Exit, Failure, NothingToDo, Outcome};
use crate::output::Output;
use comfy_table::Table;
use longhaul_block::units::{format_rate, parse_duration, parse_rate};
use longhaul_lab::tune::{self, HostSetting, HostSettings, SavedSettings, TuneOutcome, TunedPath, advise};
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

fn settings(options: &Options) -> Result<(HostSettings, Vec<HostSetting>), Failure> {
    let machine = HostSettings::at(&options.root.root);
    let settings = advise(&machine, TunedPath { rate: options.rate, rtt: options.rtt });
    if settings.is_empty() {
        let root = options.root.root.display();
        return Err(Failure::failed(format!("no setting can be read below {root}: is it a Linux machine?")));
    }
    Ok((machine, settings))
}

fn events<'a>(settings: impl IntoIterator<Item = &'a HostSetting>) -> Vec<TuneSetting> {
    let event = |setting: &HostSetting| TuneSetting {
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
    let shown: Vec<&HostSetting> =
        all.iter().filter(|setting| !only_different || setting.differs()).collect();
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
    let different: Vec<HostSetting> = all.into_iter().filter(HostSetting::differs).collect();
    if different.is_empty() {
        output.event(&TuneApplied { changed: Vec::new(), failed: 0 });
        return options.root.nothing.nothing("all settings are as advised: nothing is changed", output);
    }
    let mut saved = SavedSettings::load(&options.root.root)?;
    let TuneOutcome { done, failed } = tune::apply(&machine, &mut saved, &different)?;
    output.event(&TuneApplied { changed: events(&done), failed: failed.len() });
    if !output.is_json() {
        for setting in &done {
            output.line(format_args!("{}: {} (was {})", setting.name, setting.advised, setting.is));
        }
    }
    ended(&failed, done.len(), "changed")
}

fn restore(root: &RootOptions, output: Output) -> Outcome {
    let mut saved = SavedSettings::load(&root.root)?;
    if saved.settings.is_empty() {
        output.event(&TuneRestored { restored: Vec::new(), failed: 0 });
        let message = "nothing was changed by 'longhaul tune apply': nothing to restore";
        return root.nothing.nothing(message, output);
    }
    let machine = HostSettings::at(&root.root);
    let TuneOutcome { done, failed } = tune::restore(&machine, &mut saved)?;
    output.event(&TuneRestored { restored: events(&done), failed: failed.len() });
    if !output.is_json() {
        for setting in &done {
            output.line(format_args!("{}: {}", setting.name, setting.advised));
        }
    }
    ended(&failed, done.len(), "restored")
}

/// The exit status, by whether all, some or no settings could be written.
fn ended(failed: &[(HostSetting, std::io::Error)], done: usize, what: &str) -> Outcome {
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
