//! `tune`

use serde::Serialize;

/// `tune show`, `tune diff`: settings of this machine.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct TuneShown {
    /// All of them; of `diff`, those that differ.
    pub(crate) settings: Vec<TuneSetting>,
}

/// `tune apply`: settings were changed.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct TuneApplied {
    /// Those that were changed.
    pub(crate) changed: Vec<TuneSetting>,
    /// Number of those that could not be changed.
    pub(crate) failed: usize,
}

/// `tune restore`: settings have the value of before `tune apply`.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct TuneRestored {
    /// Those that were restored.
    pub(crate) restored: Vec<TuneSetting>,
    /// Number of those that could not be restored.
    pub(crate) failed: usize,
}

/// A setting of this machine.
#[derive(Serialize)]
pub(crate) struct TuneSetting {
    /// Name of the setting.
    pub(crate) setting: String,
    /// Its present value.
    pub(crate) is: String,
    /// The value advised.
    pub(crate) advised: String,
    /// Why that value is advised.
    pub(crate) why: String,
    /// It has another value than the one advised.
    pub(crate) differs: bool,
}
