//! any verb, `completions`, `man`, `dataset`, `report`, services

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Any verb: it failed. The last event then, in place of `summary`.
#[derive(Serialize)]
#[serde(tag = "event", rename = "error")]
pub(crate) struct ErrorEvent<'a> {
    /// The exit code.
    pub(crate) exit: u8,
    /// What was attempted, what happened, what to do.
    pub(crate) message: &'a str,
    /// What programs may tell it apart by: `exists`, `not-found` of a volume or file system, `no-space` at targets or
    /// within a limit, `in-use` by a process, host or command, `empty` of a device that is to be mounted; null for
    /// all else.
    pub(crate) reason: Option<&'a str>,
}

/// Any verb with `--show-config`: its settings.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ConfigSummary {
    /// The verb, its parts joined by dots.
    pub(crate) verb: String,
    /// By the name of the flag.
    pub(crate) settings: BTreeMap<String, ConfigSetting>,
}

/// A setting of a verb.
#[derive(Serialize)]
pub(crate) struct ConfigSetting {
    /// Its value; null if it is not set.
    pub(crate) value: Option<toml::Value>,
    /// A configuration file, `command line` or `default`.
    pub(crate) source: String,
}

/// `completions`: the script.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct CompletionsSummary {
    /// Name of the shell.
    pub(crate) shell: String,
    /// The file that was written, with DIR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// The script, without DIR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) script: Option<String>,
}

/// `man`: the manual pages.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ManSummary {
    /// The directory that they were written to, with DIR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dir: Option<String>,
    /// The page of the program, without DIR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) page: Option<String>,
}

/// `dataset make`: a data set was made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct DatasetSummary {
    /// The name of the data set.
    pub(crate) name: String,
    /// Number of files.
    pub(crate) files: usize,
    /// Size of all files.
    pub(crate) bytes: super::Bytes,
    /// The time that it took.
    pub(crate) seconds: super::Seconds,
}

/// `report`: a page was written.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ReportSummary {
    /// Path of the page.
    pub(crate) page: String,
    /// The directory of its figures and values; null with `--no-files`.
    pub(crate) files: Option<String>,
    /// Number of results in it.
    pub(crate) results: usize,
    /// Number of results that could not be read.
    pub(crate) unreadable: usize,
    /// Number of pictures; null if they failed.
    pub(crate) pictures: Option<usize>,
}

/// `target`, `nbd`, `agent`, `netbench --listen`, and `attach` and `mount` with `--foreground`: the
/// service has ended.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct ServiceSummary {
    /// All that was acknowledged is durable.
    pub(crate) clean: bool,
}

/// `target`, `nbd`: a signal came; what is under way is finished.
#[derive(Serialize)]
#[serde(tag = "event", rename = "stopping")]
pub(crate) struct Stopping {}

/// A reply of another process, declared by `T`: it may be of another version.
#[derive(Clone)]
pub(crate) struct Reply<T>(pub(crate) Value, pub(crate) std::marker::PhantomData<T>);

impl<T> Serialize for Reply<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<T> From<Value> for Reply<T> {
    fn from(value: Value) -> Reply<T> {
        Reply(value, std::marker::PhantomData)
    }
}
