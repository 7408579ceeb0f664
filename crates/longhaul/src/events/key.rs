//! `key`

use serde::Serialize;

/// `key make`: the secrets were made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct KeyMade {
    /// NQN of the host.
    pub(crate) host: String,
    /// Directory of its secrets.
    pub(crate) directory: String,
    /// Hash function that transforms them.
    pub(crate) hash: &'static str,
    /// Targets prove to the host what they are.
    pub(crate) mutual: bool,
}

/// `key show`: a host that has secrets.
#[derive(Serialize)]
#[serde(tag = "event", rename = "key")]
pub(crate) struct KeyListed {
    /// NQN of the host.
    pub(crate) host: String,
    /// Hash function that transforms them; `none` for secrets that are used as they are.
    pub(crate) hash: &'static str,
    /// Targets prove to the host what they are.
    pub(crate) mutual: bool,
}

/// `key show`: the end of the list.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct KeysListed {
    /// Number of hosts.
    pub(crate) hosts: usize,
    /// NQN of this host.
    pub(crate) this: String,
}
