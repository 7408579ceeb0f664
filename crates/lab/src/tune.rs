//! Settings of a host at the end of a long path: their values, advice with reasons, and a file of old
//! values, with which a change is taken back.
//!
//! Invariants:
//! - only [`apply`] and [`restore`] change settings;
//! - the old value of a setting is on disk before the setting is changed, and stays there until it
//!   is restored;
//! - a limit is never lowered.

mod advice;
mod saved;

pub use advice::{HostSetting, HostSettings, TunedPath, advise};
pub use saved::{EarlierValue, SavedSettings};

use crate::Error;
use std::io;

/// Settings that were changed, and those that could not be.
#[derive(Debug, Default)]
pub struct TuneOutcome {
    /// Changed to their advised value.
    pub done: Vec<HostSetting>,
    /// Not changed, or to another value than the advised one, such as a rounded one.
    pub failed: Vec<(HostSetting, io::Error)>,
}

/// Changes settings to their advised values, once their current ones are in the file of old values.
///
/// # Errors
/// The file cannot be written; then nothing was changed, unless it was the second time.
pub fn apply(
    machine: &HostSettings,
    saved: &mut SavedSettings,
    settings: &[HostSetting],
) -> Result<TuneOutcome, Error> {
    saved.keep(settings);
    saved.store()?;
    let outcome = write_all(machine, settings);
    // Settings that still have their old value need no restore. A value that the kernel
    // rounded is a change, although the write counts as failed.
    saved.forget(unchanged(machine, outcome.failed.iter().map(|(setting, _)| setting)));
    saved.store()?;
    Ok(outcome)
}

/// Puts all old values back, and removes those from the file that could be.
///
/// # Errors
/// The file cannot be written.
pub fn restore(machine: &HostSettings, saved: &mut SavedSettings) -> Result<TuneOutcome, Error> {
    let old = |(name, old): (&String, &EarlierValue)| machine.named(name, &old.file, &old.value);
    let before: Vec<HostSetting> = saved.settings.iter().map(old).collect();
    let outcome = write_all(machine, &before);
    outcome.done.iter().for_each(|setting| drop(saved.settings.remove(&setting.name)));
    saved.store()?;
    Ok(outcome)
}

fn write_all(machine: &HostSettings, settings: &[HostSetting]) -> TuneOutcome {
    let mut outcome = TuneOutcome::default();
    for setting in settings {
        match machine.write(setting, &setting.advised) {
            Ok(()) => outcome.done.push(setting.clone()),
            Err(e) => outcome.failed.push((setting.clone(), e)),
        }
    }
    outcome
}

/// The names of settings that still have their old value.
fn unchanged<'a>(
    machine: &HostSettings,
    settings: impl IntoIterator<Item = &'a HostSetting>,
) -> impl Iterator<Item = &'a str> {
    settings
        .into_iter()
        .filter(|setting| machine.read(&setting.file).as_ref() == Some(&setting.is))
        .map(|setting| setting.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_the_kernel_made_something_else_of_is_not_forgotten() {
        let dir = tempfile::tempdir().expect("directory");
        fs::create_dir_all(dir.path().join("proc/sys")).expect("made");
        let machine = HostSettings::at(dir.path());
        let setting = |name: &str| HostSetting {
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
        saved.forget(unchanged(&machine, &all));
        let kept: Vec<&str> = saved.settings.keys().map(String::as_str).collect();
        assert_eq!(kept, ["gone", "rounded"]);
        assert_eq!(saved.settings["rounded"].value, "10", "what it was at first");
    }
}
