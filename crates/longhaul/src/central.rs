//! Central discovery controllers: a target that is one, and targets that register with it.

use crate::exit::Failure;
use longhaul_initiator::{DISCOVERY_PORT, Options, Registrar, parse_authority};
use longhaul_target::{HostAccess, Target};

/// Stands for every host.
const EVERY: &str = "*";

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CentralArgs {
    /// Be a central discovery controller, with which this host may register the subsystems that it
    /// serves ('target --register'); '*' for every host; may be repeated
    #[arg(long, value_name = "HOSTNQN")]
    registrar: Vec<String>,
    /// Register what is served with this central discovery controller, and keep it up to date; default
    /// port: 8009; may be repeated
    #[arg(long, value_name = "HOST[:PORT]", value_parser = controller)]
    register: Vec<(String, u16)>,
}

/// `HOST[:PORT]` of a discovery controller.
fn controller(text: &str) -> Result<(String, u16), String> {
    parse_authority(text, DISCOVERY_PORT)
}

impl CentralArgs {
    /// The hosts that may register, if the discovery controller is a central one.
    ///
    /// # Errors
    /// Every host may register, though hosts have keys: the discovery controller authenticates only the hosts that
    /// are named.
    pub(crate) fn registrars(&self, has_keys: bool) -> Result<Option<HostAccess>, Failure> {
        match &self.registrar[..] {
            [] => Ok(None),
            hosts if !hosts.iter().any(|host| host == EVERY) => {
                Ok(Some(HostAccess::Only(hosts.iter().cloned().collect())))
            }
            _ if has_keys => Err(Failure::usage(
                "--registrar '*' admits every host, which --keys rules out: name the hosts that may register with \
                 --registrar",
            )),
            _ => Ok(Some(HostAccess::Any)),
        }
    }

    /// Registers what a target serves until this is dropped.
    pub(crate) fn register(&self, target: &Target, options: &Options) -> Result<Vec<Registrar>, Failure> {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let start = |at: &(String, u16)| {
            let entries = Box::new(target.registration());
            let changes = target.watch_registration();
            Ok(Registrar::start(at.clone(), name.clone(), options.clone(), entries, changes)?)
        };
        self.register.iter().map(start).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registrars(hosts: &[&str], has_keys: bool) -> Result<Option<HostAccess>, String> {
        let registrar = hosts.iter().map(|host| (*host).to_owned()).collect();
        CentralArgs { registrar, register: Vec::new() }.registrars(has_keys).map_err(|e| e.message)
    }

    #[test]
    fn who_may_register() {
        let only = |host: &str| Some(HostAccess::Only([host.to_owned()].into()));
        for has_keys in [false, true] {
            assert_eq!(registrars(&[], has_keys), Ok(None));
            assert_eq!(registrars(&["a"], has_keys), Ok(only("a")));
        }
        assert_eq!(registrars(&["a", "*"], false), Ok(Some(HostAccess::Any)));
        assert!(registrars(&["*"], true).is_err_and(|why| why.contains("name the hosts")));
    }

    #[test]
    fn the_port_is_that_of_discovery_controllers() {
        assert_eq!(controller("dtn1"), Ok(("dtn1".into(), 8009)));
        assert_eq!(controller("[2001:db8::1]:4420"), Ok(("2001:db8::1".into(), 4420)));
        assert!(controller("dtn1:0").is_err_and(|why| why.contains("port")));
    }
}
