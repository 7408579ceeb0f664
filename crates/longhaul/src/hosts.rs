//! Hosts as users name them: those that may read and write, those that may only read, and how fast.

use longhaul_target::{HostAccess, HostRates, HostRights};
use std::collections::BTreeMap;

/// Stands for every host that is not named.
const EVERY: &str = "*";

/// Names of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostNames {
    /// NQNs of hosts that may read and write (`allow-host`).
    pub(crate) writers: Vec<String>,
    /// NQNs of hosts that may only read (`read-only-host`); [`EVERY`] for all others.
    pub(crate) readers: Vec<String>,
}

impl HostNames {
    pub(crate) fn is_empty(&self) -> bool {
        self.writers.is_empty() && self.readers.is_empty()
    }

    /// Both lists without their order.
    pub(crate) fn sorted(&self) -> HostNames {
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort();
            names
        };
        HostNames { writers: sorted(&self.writers), readers: sorted(&self.readers) }
    }

    /// What hosts may do. Without any names, all of them may read and write.
    ///
    /// # Errors
    /// A sentence: a host is in both lists, or every host is to be in that of hosts that may write.
    pub(crate) fn rights(&self) -> Result<HostRights, String> {
        if self.is_empty() {
            return Ok(HostRights::default());
        }
        if self.writers.iter().any(|host| host == EVERY) {
            return Err(
                "allow-host takes the NQN of a host: without lists every host may read and write".to_owned()
            );
        }
        if let Some(both) = self.writers.iter().find(|host| self.readers.contains(host)) {
            return Err(format!(
                "host {both} is named by allow-host, which lets it write, and by read-only-host: leave one out"
            ));
        }
        let only = |hosts: &mut dyn Iterator<Item = &String>| HostAccess::Only(hosts.cloned().collect());
        let read = match self.readers.iter().any(|host| host == EVERY) {
            true => HostAccess::Any,
            false => only(&mut self.writers.iter().chain(&self.readers)),
        };
        Ok(HostRights { read, write: only(&mut self.writers.iter()) })
    }
}

/// A rate of one host, or of each that has none of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostRate {
    hostnqn: Option<String>,
    bits_per_second: u64,
}

/// `[HOSTNQN=]RATE`.
pub(crate) fn parse_host_rate(text: &str) -> Result<HostRate, String> {
    let (hostnqn, rate) = match text.rsplit_once('=') {
        Some(("", _)) => return Err("a host before '=' is missing".to_owned()),
        Some((hostnqn, rate)) => (Some(hostnqn.to_owned()), rate),
        None => (None, text),
    };
    Ok(HostRate { hostnqn, bits_per_second: crate::arguments::parse_rate(rate)? })
}

/// The rates of a target.
///
/// # Errors
/// A sentence: a host, or each, is given two.
pub(crate) fn host_rates(given: &[HostRate]) -> Result<HostRates, String> {
    let mut rates = HostRates { all: None, of: BTreeMap::new() };
    for HostRate { hostnqn, bits_per_second } in given {
        let before = match hostnqn {
            Some(hostnqn) => rates.of.insert(hostnqn.clone(), *bits_per_second),
            None => rates.all.replace(*bits_per_second),
        };
        if before.is_some() {
            let whose = hostnqn
                .as_ref()
                .map_or("hosts without one of their own".to_owned(), |host| format!("host {host}"));
            return Err(format!("host-rate is given twice for {whose}: leave one out"));
        }
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(writers: &[&str], readers: &[&str]) -> Result<HostRights, String> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        HostNames { writers: owned(writers), readers: owned(readers) }.rights()
    }

    /// What a host may do, as letters.
    fn may(rights: &HostRights, host: &str) -> &'static str {
        match (rights.may_read(host), rights.may_write(host)) {
            (true, true) => "rw",
            (true, false) => "r",
            (false, false) => "",
            (false, true) => unreachable!("a host that may write may read"),
        }
    }

    #[test]
    fn hosts_have_the_rights_of_the_list_that_names_them() {
        let cases: [(&[&str], &[&str], [&str; 4]); 5] = [
            (&[], &[], ["rw", "rw", "rw", "rw"]),
            (&["a"], &[], ["rw", "", "", ""]),
            (&[], &["b"], ["", "r", "", ""]),
            (&["a"], &["b"], ["rw", "r", "", ""]),
            (&["a"], &["*"], ["rw", "r", "r", "r"]),
        ];
        for (writers, readers, expected) in cases {
            let rights = rights(writers, readers).expect("no host is in both");
            let found = ["a", "b", "c", ""].map(|host| may(&rights, host));
            assert_eq!(found, expected, "{writers:?} {readers:?}");
        }
    }

    #[test]
    fn rates_are_of_one_host_or_of_all() {
        let rates = |texts: &[&str]| {
            let given: Result<Vec<_>, _> = texts.iter().map(|text| parse_host_rate(text)).collect();
            host_rates(&given?)
        };
        let expected =
            HostRates { all: Some(1_000_000_000), of: [("nqn.x:a=b".to_owned(), 2_000_000)].into() };
        assert_eq!(rates(&["1Gbit", "nqn.x:a=b=2Mbit"]), Ok(expected));
        assert_eq!(rates(&[]), Ok(HostRates::default()));
        for (texts, why) in [
            (&["=1Gbit"][..], "a host before '='"),
            (&["x=fast"], "fast"),
            (&["1Gbit", "2Gbit"], "twice for hosts without one of their own"),
            (&["a=1Gbit", "a=1Gbit"], "twice for host a"),
        ] {
            let e = rates(texts).expect_err(why);
            assert!(e.contains(why), "{texts:?}: {e}");
        }
    }

    #[test]
    fn lists_that_contradict_are_refused() {
        let e = rights(&["a", "b"], &["b"]).expect_err("both");
        assert!(e.contains("host b is named by allow-host"), "{e}");
        let e = rights(&["*"], &["b"]).expect_err("all but one");
        assert!(e.contains("takes the NQN of a host"), "{e}");
    }
}
