//! `key`

use serde::Serialize;

/// `key make` and `key rotate`: the secrets, or the key for TLS, were made.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct KeyMade {
    /// NQN of the host.
    pub(crate) host: String,
    /// Directory of its secrets.
    pub(crate) directory: String,
    /// Number of this key of the host, from 1.
    pub(crate) generation: u32,
    /// Targets accept the generation before, too.
    pub(crate) previous: bool,
    /// Hash function that transforms the secrets; `none` without secrets.
    pub(crate) hash: &'static str,
    /// Targets prove to the host what they are.
    pub(crate) mutual: bool,
    /// Hash function of the key for TLS; `none` without one.
    pub(crate) tls: &'static str,
}

/// `key retire`: targets do not accept this generation any more.
#[derive(Serialize)]
#[serde(tag = "event", rename = "summary")]
pub(crate) struct KeyRetired {
    /// NQN of the host.
    pub(crate) host: String,
    /// Number of the generation.
    pub(crate) generation: u32,
}

/// `key show`: a host that has secrets or a key for TLS.
#[derive(Serialize)]
#[serde(tag = "event", rename = "key")]
pub(crate) struct KeyListed {
    /// NQN of the host.
    pub(crate) host: String,
    /// The export that it is for alone; empty if it is for all that have none of their own.
    pub(crate) export: String,
    /// Number of its key, from 1.
    pub(crate) generation: u32,
    /// Targets accept the generation before, too.
    pub(crate) previous: bool,
    /// Hash function that transforms the secrets; `none` without secrets, and for those that are used as they
    /// are.
    pub(crate) hash: &'static str,
    /// Targets prove to the host what they are.
    pub(crate) mutual: bool,
    /// Hash function of the key for TLS; `none` without one.
    pub(crate) tls: &'static str,
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
