//! Discovery controllers on the local network, by multicast DNS (RFC 6762, RFC 6763) as NVMe's Technical
//! Proposal 8009 has it: a service `_nvme-disc._tcp`, whose TXT record has the transport (`p`) and the NQN of the
//! discovery subsystem (`nqn`).

use crate::exit::Failure;
use longhaul_initiator::DISCOVERY_NQN;
use mdns_sd::{ServiceDaemon, ServiceEvent, ServiceInfo};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const SERVICE: &str = "_nvme-disc._tcp.local.";
/// How long the end of an announcement may take: its last packet tells others that the service has gone.
const GOODBYE: Duration = Duration::from_secs(1);

/// A controller that is announced until this is dropped.
pub(crate) struct Announcement(ServiceDaemon);

impl Announcement {
    /// Announces the discovery controller at an address; at every address of this machine if it is that of none.
    ///
    /// # Errors
    /// The address is not reached by others; or there is no socket for multicasts.
    pub(crate) fn start(at: SocketAddr) -> Result<Announcement, Failure> {
        if at.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "--mdns announces an address that other machines reach, and the target listens on {at}: give --listen"
            )));
        }
        let failed = |e: mdns_sd::Error| Failure::failed(format!("--mdns: cannot announce {at}: {e}"));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let properties = [("p", "tcp"), ("nqn", DISCOVERY_NQN)];
        let name = format!("Longhaul on {host}, port {}", at.port());
        let address = if at.ip().is_unspecified() { String::new() } else { at.ip().to_string() };
        let server = format!("{host}.local.");
        let service = ServiceInfo::new(SERVICE, &name, &server, &*address, at.port(), &properties[..])
            .map_err(failed)?;
        let service = if at.ip().is_unspecified() { service.enable_addr_auto() } else { service };
        let daemon = ServiceDaemon::new().map_err(failed)?;
        daemon.register(service).map_err(failed)?;
        Ok(Announcement(daemon))
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Ok(ended) = self.0.shutdown() {
            let _ = ended.recv_timeout(GOODBYE);
        }
    }
}

/// The discovery controllers that answer within a time, without those of transports other than TCP.
///
/// # Errors
/// There is no socket for multicasts.
pub(crate) fn browse(time: Duration) -> Result<Vec<SocketAddr>, Failure> {
    let failed = |e: mdns_sd::Error| Failure::failed(format!("--mdns: cannot ask the local network: {e}"));
    let daemon = ServiceDaemon::new().map_err(failed)?;
    let events = daemon.browse(SERVICE).map_err(failed)?;
    let until = Instant::now() + time;
    let mut found = BTreeSet::new();
    while let Ok(event) = events.recv_deadline(until) {
        let ServiceEvent::ServiceResolved(service) = event else { continue };
        if service.get_property_val_str("p").is_some_and(|transport| transport != "tcp") {
            continue;
        }
        let addresses = service.get_addresses().iter().map(|address| address.to_ip_addr());
        // Link-local ones are of use with the interface alone.
        let reached = addresses.filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
        found.extend(reached.map(|ip| SocketAddr::new(ip, service.get_port())));
    }
    let _ = daemon.shutdown();
    Ok(found.into_iter().collect())
}
