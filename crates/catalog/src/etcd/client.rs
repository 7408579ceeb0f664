//! Requests to the members of etcd.

use crate::error::{Error, Result};
use serde_json::Value;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ureq::{Agent, Body};

/// Longest time to a connection: above one retransmission of the first packet, twice.
const CONNECT: Duration = Duration::from_secs(4);
/// Longest time of a request: above etcd's own limit of about 7 s for a proposal.
const REQUEST: Duration = Duration::from_secs(10);
/// Time for which what can be repeated is repeated: above an election, which takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause after all members were tried.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are kept open: as many requests are under way at a time without a round trip for a
/// connection.
const CONNECTIONS: usize = 256;
/// Longest silence of a stream before it is opened again, at another member: a member that is cut
/// off from the others is silent, too.
const SILENCE: Duration = Duration::from_secs(10);
/// Longest reply in bytes: above a page of the largest values.
pub(super) const MAX_REPLY: u64 = 256 << 20;
/// Most bytes of an error that are shown.
const MAX_WHY: usize = 300;

/// Replies of etcd that say that a proposal was not made.
const NOT_PROPOSED: [&str; 3] = ["no leader", "proposal dropped", "too many requests"];
/// Codes of gRPC that are not about the request: cancelled, unknown, deadline exceeded, resource
/// exhausted, aborted, internal, unavailable.
const TROUBLE: [u64; 7] = [1, 2, 4, 8, 10, 13, 14];

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum Fault {
    /// The request has certainly had no effect.
    Unsent(String),
    /// It may have had one.
    Lost(String),
    /// etcd refuses it.
    Status { why: String },
}

/// The members of an etcd.
pub(super) struct Client {
    name: String,
    endpoints: Vec<String>,
    agent: Agent,
    streams: Agent,
    /// The member that answered last.
    at: AtomicUsize,
}

impl Client {
    pub(super) fn new<S: AsRef<str>>(endpoints: &[S]) -> Result<Client> {
        let endpoints = endpoints.iter().map(|e| address(e.as_ref())).collect::<Result<Vec<_>>>()?;
        if endpoints.is_empty() {
            return Err(Error::Invalid("no address of etcd".to_owned()));
        }
        let config = || {
            let config = Agent::config_builder().http_status_as_error(false).max_redirects(0);
            let config = config.max_idle_connections(CONNECTIONS).max_idle_connections_per_host(CONNECTIONS);
            config.proxy(None).timeout_connect(Some(CONNECT)).timeout_resolve(Some(CONNECT))
        };
        Ok(Client {
            name: format!("etcd at {}", endpoints.join(", ").replace("http://", "")),
            endpoints,
            agent: config().timeout_per_call(Some(REQUEST)).build().into(),
            // Of streams only the silence is bounded.
            streams: config().timeout_per_read(Some(SILENCE)).build().into(),
            at: AtomicUsize::new(0),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A request that must not be made twice: again only if it certainly was not made.
    pub(super) fn once(&self, path: &str, request: &Value) -> std::result::Result<Value, Fault> {
        self.attempt(path, request, |fault| matches!(fault, Fault::Unsent(_)))
    }

    /// A request that may be made several times.
    pub(super) fn repeat(&self, path: &str, request: &Value) -> std::result::Result<Value, Fault> {
        self.attempt(path, request, |fault| !matches!(fault, Fault::Status { .. })).map_err(|fault| {
            match fault {
                // Nothing is unknown that could be asked again.
                Fault::Lost(why) => Fault::Unsent(why),
                fault => fault,
            }
        })
    }

    fn attempt(
        &self,
        path: &str,
        request: &Value,
        again: impl Fn(&Fault) -> bool,
    ) -> std::result::Result<Value, Fault> {
        let start = Instant::now();
        loop {
            let mut last = None;
            for _ in &self.endpoints {
                let at = self.at.load(Ordering::Relaxed);
                match self.ask(at, path, request) {
                    Ok(value) => return Ok(value),
                    Err(fault) if again(&fault) => last = Some(fault),
                    Err(fault) => {
                        self.turn(at);
                        return Err(fault);
                    }
                }
                self.turn(at);
            }
            if let Some(fault) = last
                && start.elapsed() > PATIENCE
            {
                return Err(fault);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Turns to the member after `at`, unless another thread has.
    fn turn(&self, at: usize) {
        let next = (at + 1) % self.endpoints.len();
        let _ = self.at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Sends a request to one member.
    fn ask(&self, at: usize, path: &str, request: &Value) -> std::result::Result<Value, Fault> {
        let endpoint = &self.endpoints[at];
        let lost = |e: &dyn std::fmt::Display| Fault::Lost(format!("{endpoint}: {e}"));
        let (status, mut body) = post(&self.agent, endpoint, path, request)?;
        let text = body.with_config().limit(MAX_REPLY).read_to_string().map_err(|e| lost(&e))?;
        // Streams of one reply end with a new line.
        let reply: Value = serde_json::from_str(text.trim()).map_err(|e| lost(&e))?;
        if status == 200 && reply["error"].is_null() {
            return Ok(reply);
        }
        let error = if reply["error"].is_object() { &reply["error"] } else { &reply };
        let why = error["message"].as_str().or(error["error"].as_str()).unwrap_or("an error without reason");
        let why: String = why.chars().take(MAX_WHY).collect();
        let code = error["code"].as_u64().or(error["grpc_code"].as_u64()).unwrap_or(2);
        Err(if NOT_PROPOSED.iter().any(|text| why.contains(text)) {
            Fault::Unsent(format!("{endpoint}: {why}"))
        } else if TROUBLE.contains(&code) {
            Fault::Lost(format!("{endpoint}: {why}"))
        } else {
            Fault::Status { why }
        })
    }

    /// Opens a stream at the `attempt`th member, counted round and round.
    pub(super) fn stream(
        &self,
        attempt: usize,
        path: &str,
        request: &Value,
    ) -> std::result::Result<impl Read + use<>, Fault> {
        let endpoint = &self.endpoints[attempt % self.endpoints.len()];
        let (status, body) = post(&self.streams, endpoint, path, request)?;
        if status != 200 {
            return Err(Fault::Lost(format!("{endpoint}: status {status}")));
        }
        Ok(body.into_with_config().limit(u64::MAX).reader())
    }

    pub(super) fn error(&self, fault: Fault) -> Error {
        let catalog = self.name.clone();
        match fault {
            Fault::Unsent(why) => Error::Unreachable { catalog, why },
            Fault::Lost(why) => Error::Unknown { catalog, why },
            Fault::Status { why } => Error::Failed { catalog, attempted: "use", why },
        }
    }

    /// A reply that cannot be read.
    pub(super) fn garbled(&self, what: &str) -> Error {
        let why = format!("the reply has {what} that cannot be read; is this etcd 3.4 or later?");
        Error::Failed { catalog: self.name.clone(), attempted: "read", why }
    }
}

/// The URL of an endpoint.
fn address(endpoint: &str) -> Result<String> {
    let rest = endpoint.strip_prefix("http://").unwrap_or(endpoint).trim_end_matches('/');
    let has_port = rest.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok() && !rest.contains(['/', '@', '?', ' '])
    });
    if has_port {
        return Ok(format!("http://{rest}"));
    }
    Err(Error::Invalid(format!("'{endpoint}' is not an address of etcd: use HOST:PORT, without TLS")))
}

fn post(
    agent: &Agent,
    endpoint: &str,
    path: &str,
    request: &Value,
) -> std::result::Result<(u16, Body), Fault> {
    use ureq::{Error as E, Timeout};
    let url = format!("{endpoint}/v3/{path}");
    let sent = agent.post(&url).content_type("application/json").send(request.to_string());
    let reply = sent.map_err(|e| {
        let why = format!("{endpoint}: {e}");
        match e {
            E::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Fault::Unsent(why),
            E::HostNotFound
            | E::ConnectionFailed
            | E::BadUri(_)
            | E::Timeout(Timeout::Connect | Timeout::Resolve) => Fault::Unsent(why),
            _ => Fault::Lost(why),
        }
    })?;
    let (parts, body) = reply.into_parts();
    Ok((parts.status.as_u16(), body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_addresses() {
        for (given, url) in [
            ("a:1", "http://a:1"),
            ("http://10.0.0.1:2379/", "http://10.0.0.1:2379"),
            ("[::1]:2379", "http://[::1]:2379"),
        ] {
            assert_eq!(address(given).as_deref(), Ok(url));
        }
        for given in ["", "a", ":1", "https://a:1", "a:1/x", "a:99999", "u@a:1"] {
            assert!(matches!(address(given), Err(Error::Invalid(_))), "{given}");
        }
        assert!(Client::new::<&str>(&[]).is_err());
    }
}
