//! Where a target listens, and what its exports are called there.

use longhaul_engine::address::{self, ListenAddress, reachable};
use longhaul_initiator::{IO_PORT, unix_uri};
use longhaul_target::transport::Unix;
use longhaul_target::{Target, TransportListener};
use std::net::SocketAddr;
use std::sync::Arc;

/// What stands before the path of a socket.
const UNIX: &str = "unix:";

/// A value of `--listen`.
#[derive(Clone, Debug)]
pub(super) enum Listen {
    Ip(ListenAddress),
    /// A path.
    Unix(String),
}

impl Listen {
    pub(super) fn parse(text: &str) -> Result<Listen, String> {
        match text.strip_prefix(UNIX) {
            None => address::listen::<IO_PORT>(text).map(Listen::Ip),
            Some(path) if path.starts_with('/') => Ok(Listen::Unix(path.to_owned())),
            Some(path) => {
                Err(format!("'{path}' is not an absolute path; the form is {UNIX}/run/longhaul.sock"))
            }
        }
    }

    pub(super) fn ip(&self) -> Option<&ListenAddress> {
        match self {
            Listen::Ip(address) => Some(address),
            Listen::Unix(_) => None,
        }
    }

    pub(super) fn unix(&self) -> Option<TransportListener> {
        match self {
            Listen::Ip(_) => None,
            Listen::Unix(path) => {
                Some(TransportListener { transport: Arc::new(Unix), address: path.clone() })
            }
        }
    }
}

/// The addresses at which a target serves I/O, as `--listen` takes them.
pub(super) fn listening(target: &Target) -> Vec<String> {
    let ip = target.addresses().iter().map(ToString::to_string);
    ip.chain(target.transport_addresses().iter().map(|path| format!("{UNIX}{path}"))).collect()
}

/// The first address of a target, as hosts reach it.
#[derive(Clone, Debug)]
pub(super) enum At {
    Ip(SocketAddr),
    /// A path.
    Unix(String),
}

impl At {
    pub(super) fn of(target: &Target) -> At {
        match (target.addresses().first(), target.transport_addresses().first()) {
            (Some(first), _) => At::Ip(reachable(*first)),
            (None, Some(path)) => At::Unix(path.to_string()),
            (None, None) => unreachable!("a target listens somewhere: --listen has a default"),
        }
    }

    /// The URI of a subsystem, or of a namespace.
    pub(super) fn uri(&self, nqn: &str, nsid: Option<u32>) -> String {
        match self {
            At::Ip(at) => {
                let nsid = nsid.map(|nsid| format!("?nsid={nsid}")).unwrap_or_default();
                format!("nvme+tcp://{at}/{nqn}{nsid}")
            }
            At::Unix(path) => unix_uri(path, nqn, nsid),
        }
    }

    /// The shortest URI of an export: discovery resolves its name to an NQN, and a subsystem with
    /// one namespace needs no `nsid`.
    pub(super) fn short(&self, name: &str, nqn: &str, (nsid, alone): (u32, bool)) -> String {
        let subsystem = if nqn.ends_with(&format!(":{name}")) { name } else { nqn };
        let nsid = (!alone).then_some(nsid);
        let host = match self {
            At::Unix(path) => return unix_uri(path, subsystem, nsid),
            At::Ip(at) if at.port() != IO_PORT => at.to_string(),
            At::Ip(at) if at.is_ipv4() => at.ip().to_string(),
            At::Ip(at) => format!("[{}]", at.ip()),
        };
        let nsid = nsid.map(|nsid| format!("?nsid={nsid}")).unwrap_or_default();
        format!("nvme+tcp://{host}/{subsystem}{nsid}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_uris_name_one_namespace() {
        let of = |at: &str, nqn: &str, nsid, alone| {
            At::Ip(at.parse().expect("an address")).short("x", nqn, (nsid, alone))
        };
        assert_eq!(of("10.0.0.5:4420", "nqn.2026-11.io.longhaul:1:x", 1, true), "nvme+tcp://10.0.0.5/x");
        assert_eq!(
            of("10.0.0.5:4499", "nqn.2026-11.io.longhaul:1:x", 1, false),
            "nvme+tcp://10.0.0.5:4499/x?nsid=1"
        );
        assert_eq!(
            of("[::1]:4420", "nqn.2014-08.org.example:disk", 1, true),
            "nvme+tcp://[::1]/nqn.2014-08.org.example:disk"
        );
        let unix = |nqn, nsid, alone| At::Unix("/run/a&b".into()).short("x", nqn, (nsid, alone));
        assert_eq!(unix("nqn.2026-11.io.longhaul:1:x", 1, true), "nvme+unix:///x?socket=/run/a%26b");
        assert_eq!(unix("nqn.2026-11.io.longhaul:1:x", 2, false), "nvme+unix:///x?socket=/run/a%26b&nsid=2");
    }

    #[test]
    fn sockets_have_absolute_paths() {
        assert!(matches!(Listen::parse("unix:/run/x"), Ok(Listen::Unix(path)) if path == "/run/x"));
        let why = Listen::parse("unix:x").expect_err("a relative path");
        assert!(why.contains("'x' is not an absolute path"), "{why}");
        assert!(matches!(Listen::parse(":4499"), Ok(Listen::Ip(_))));
    }
}
