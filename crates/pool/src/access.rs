//! How this host reaches a catalog server, and how a server knows its hosts: by the keys for TLS of
//! `docs/keys.md`.
//!
//! Invariant: a host that has a key for TLS never speaks to a server in the clear.

use longhaul_auth::KeySource;
use longhaul_catalog::{Acceptor, Access, Connector, Secure};
use longhaul_initiator::Options;
use std::sync::Arc;

/// What a catalog server is called in the identities of keys.
pub const CATALOG_NQN: &str = "nqn.2026-11.io.longhaul:catalog";

/// How a host with these options reaches a catalog server: with TLS if it has a key for that, or is to use it.
pub fn catalog_access(options: &Options) -> Access {
    let has_key = match &options.keys {
        // One that cannot be read is an error when it is needed.
        Some(keys) => keys.tls_key_of(&options.hostnqn, CATALOG_NQN).map_or(true, |key| key.is_some()),
        None => false,
    };
    let connector = (has_key || options.tls).then(|| {
        let connector: Arc<dyn Connector> = Arc::new(HostConnector { options: options.clone() });
        connector
    });
    Access { host: options.hostnqn.clone(), connector }
}

/// Lets in the hosts that have a key for TLS in `keys`, which are read at each connection.
///
/// # Errors
/// This program has no TLS.
pub fn catalog_acceptor(keys: Arc<dyn KeySource>) -> Result<Arc<dyn Acceptor>, String> {
    match cfg!(feature = "tls") {
        true => Ok(Arc::new(HostAcceptor { keys })),
        false => Err(longhaul_initiator::TLS_MISSING.to_owned()),
    }
}

struct HostConnector {
    options: Options,
}

impl Connector for HostConnector {
    #[cfg(not(feature = "tls"))]
    fn begin(&self) -> Result<Box<dyn Secure>, String> {
        let _ = &self.options;
        Err(format!("this host has a key for TLS, and {}", longhaul_initiator::TLS_MISSING))
    }

    #[cfg(feature = "tls")]
    fn begin(&self) -> Result<Box<dyn Secure>, String> {
        let key = self.options.tls_key(CATALOG_NQN)?;
        Ok(Box::new(secure::HostEnd::new(&key, &self.options.hostnqn)?))
    }
}

#[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "it is not made then"))]
struct HostAcceptor {
    keys: Arc<dyn KeySource>,
}

impl Acceptor for HostAcceptor {
    #[cfg(not(feature = "tls"))]
    fn begin(&self) -> Box<dyn Secure> {
        unreachable!("an acceptor is made only where there is TLS")
    }

    #[cfg(feature = "tls")]
    fn begin(&self) -> Box<dyn Secure> {
        Box::new(secure::ServerEnd::new(Arc::clone(&self.keys)))
    }
}

#[cfg(feature = "tls")]
mod secure {
    use super::CATALOG_NQN;
    use longhaul_auth::{Derivation, IdentityVersion, KeySource, TlsKey};
    use longhaul_catalog::{Denial, Denied, Peer, Secure};
    use longhaul_tls::{
        Destination, HELLO_MAX, Hello, HelloError, Refusal, Session, TlsError, alert_record, choose,
    };
    use std::sync::Arc;

    /// Bytes that are decrypted at a time: a record.
    const RECORD: usize = 16 << 10;

    /// A session whose handshake has begun, and what was received behind the handshake.
    struct Ends {
        session: Session,
        left: Vec<u8>,
    }

    impl Ends {
        fn new(session: Session) -> Ends {
            Ends { session, left: Vec::new() }
        }

        fn handshake(&mut self, mut input: &[u8], output: &mut Vec<u8>) -> Result<bool, TlsError> {
            let is_done = self.session.handshake(&mut input, output)?;
            self.left.extend_from_slice(input);
            Ok(is_done)
        }

        fn seal(&mut self, plain: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
            self.session.seal(plain, output).map_err(|e| e.to_string())
        }

        fn open(&mut self, input: &[u8], plain: &mut Vec<u8>, output: &mut Vec<u8>) -> Result<bool, String> {
            let whole;
            let mut rest = match self.left.is_empty() {
                true => input,
                false => {
                    whole = [&std::mem::take(&mut self.left)[..], input].concat();
                    &whole[..]
                }
            };
            loop {
                let at = plain.len();
                plain.resize(at + RECORD, 0);
                let to = Destination::Bytes(&mut plain[at..]);
                let opened = self.session.open(&mut rest, output, to);
                plain.truncate(at + opened.as_ref().ok().copied().flatten().unwrap_or(0));
                match opened.map_err(|e| e.to_string())? {
                    None => return Ok(false),
                    Some(0) => return Ok(true),
                    Some(_) => {}
                }
            }
        }
    }

    /// The end of a host.
    pub(super) struct HostEnd {
        ends: Ends,
        hostnqn: String,
    }

    impl HostEnd {
        pub(super) fn new(key: &TlsKey, hostnqn: &str) -> Result<HostEnd, String> {
            let (version, derivation) = (IdentityVersion::V1, Derivation::Standard);
            let psk = key.psk(version, key.hash(), hostnqn, CATALOG_NQN, derivation);
            let psk = psk.map_err(|e| e.to_string())?;
            let session = Session::host([&psk]).map_err(|e| e.to_string())?;
            Ok(HostEnd { ends: Ends::new(session), hostnqn: hostnqn.to_owned() })
        }
    }

    impl Secure for HostEnd {
        fn handshake(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Option<Peer>, Denied> {
            let host = &self.hostnqn;
            let denied = |why, text: String| Denied { why, host: String::new(), text };
            match self.ends.handshake(input, output) {
                Ok(is_done) => Ok(is_done.then(|| Peer { host: CATALOG_NQN.into(), generation: None })),
                Err(e @ TlsError::UnknownIdentity) => Err(denied(
                    Denial::NoKey,
                    format!(
                        "host {host}: {e}: 'longhaul key make {host} --tls' makes a key, which the server and this \
                         host have to have"
                    ),
                )),
                Err(e @ TlsError::WrongKey) => Err(denied(Denial::WrongKey, format!("host {host}: {e}"))),
                Err(TlsError::NotTls) => Err(denied(
                    Denial::NoTls,
                    "the server uses no TLS, and this host has a key for it: start the server with --keys"
                        .into(),
                )),
                Err(e @ TlsError::Alert(_)) => Err(denied(Denial::NoKey, format!("host {host}: {e}"))),
                Err(e) => Err(denied(Denial::Handshake, format!("TLS: {e}"))),
            }
        }

        fn seal(&mut self, plain: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
            self.ends.seal(plain, output)
        }

        fn open(&mut self, input: &[u8], plain: &mut Vec<u8>, output: &mut Vec<u8>) -> Result<bool, String> {
            self.ends.open(input, plain, output)
        }

        fn end(&mut self, output: &mut Vec<u8>) {
            self.ends.session.end(output);
        }
    }

    /// The end of a server.
    pub(super) struct ServerEnd {
        keys: Arc<dyn KeySource>,
        /// What was received of the first message of a host.
        hello: Vec<u8>,
        /// The session with the host that it has named.
        named: Option<(Ends, Peer)>,
    }

    impl ServerEnd {
        pub(super) fn new(keys: Arc<dyn KeySource>) -> ServerEnd {
            ServerEnd { keys, hello: Vec::new(), named: None }
        }

        /// Reads the first message of the host, once it is complete.
        fn name(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Option<(Ends, Peer)>, Denied> {
            self.hello.extend_from_slice(input);
            let denied = |why, host: &str, text: String| Denied { why, host: host.to_owned(), text };
            let hello = match Hello::parse(&self.hello) {
                Ok(Some(hello)) => hello,
                Ok(None) if self.hello.len() <= 2 * HELLO_MAX => return Ok(None),
                other => {
                    let e = other.err().unwrap_or(HelloError::Malformed);
                    output.extend(e.alert().map(alert_record).into_iter().flatten());
                    return Err(denied(Denial::Handshake, "", e.to_string()));
                }
            };
            let chosen = choose(&hello, &*self.keys).map_err(|e| {
                output.extend(alert_record(e.alert()));
                let (why, host) = reason(&e);
                denied(why, host, e.to_string())
            })?;
            let host = chosen.hostnqn;
            if chosen.subnqn != CATALOG_NQN {
                output.extend(alert_record(longhaul_tls::alert::UNKNOWN_PSK_IDENTITY));
                return Err(denied(
                    Denial::NoKey,
                    &host,
                    format!("it asks for the subsystem {}", chosen.subnqn),
                ));
            }
            let session =
                Session::target(&chosen.psk).map_err(|e| denied(Denial::Handshake, &host, e.to_string()))?;
            Ok(Some((Ends::new(session), Peer { host, generation: Some(chosen.generation) })))
        }
    }

    /// Why a key was refused, and whose.
    fn reason(e: &Refusal) -> (Denial, &str) {
        match e {
            Refusal::NotNvme(_) => (Denial::Handshake, ""),
            Refusal::UnknownHost { hostnqn, .. } => (Denial::NoKey, hostnqn),
            Refusal::Unreadable { hostnqn, .. } => (Denial::KeyUnreadable, hostnqn),
            Refusal::Retired { hostnqn, generation, .. } => (Denial::RetiredKey(*generation), hostnqn),
            Refusal::WrongKey { hostnqn, .. }
            | Refusal::OtherDerivation { hostnqn, .. }
            | Refusal::OtherHash { hostnqn, .. }
            | Refusal::NotGenerated { hostnqn, .. } => (Denial::WrongKey, hostnqn),
        }
    }

    impl Secure for ServerEnd {
        fn handshake(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Option<Peer>, Denied> {
            let mut received = input.to_vec();
            if self.named.is_none() {
                self.named = self.name(input, output)?;
                received = std::mem::take(&mut self.hello);
                if self.named.is_none() {
                    self.hello = received;
                    return Ok(None);
                }
            }
            let Some((ends, peer)) = &mut self.named else { return Ok(None) };
            match ends.handshake(&received, output) {
                Ok(is_done) => Ok(is_done.then(|| peer.clone())),
                Err(e) => {
                    Err(Denied { why: Denial::Handshake, host: peer.host.clone(), text: e.to_string() })
                }
            }
        }

        fn seal(&mut self, plain: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
            let (ends, _) = self.named.as_mut().ok_or("the handshake is not done")?;
            ends.seal(plain, output)
        }

        fn open(&mut self, input: &[u8], plain: &mut Vec<u8>, output: &mut Vec<u8>) -> Result<bool, String> {
            let (ends, _) = self.named.as_mut().ok_or("the handshake is not done")?;
            ends.open(input, plain, output)
        }

        fn end(&mut self, output: &mut Vec<u8>) {
            if let Some((ends, _)) = &mut self.named {
                ends.session.end(output);
            }
        }
    }
}
