//! TLS of a connection, before anything of NVMe/TCP.

use crate::error::Result;
use crate::options::Options;
use crate::setup::Endpoint;
use longhaul_auth::TlsPsk;
use longhaul_conn::Channel;

/// Without it, a build that cannot keep the promise does not connect.
#[cfg(not(feature = "tls"))]
pub(crate) async fn begin(_: &Endpoint, _: &Options, _: &str, _: Channel) -> Result<Channel> {
    Err(crate::error::Error::Local(longhaul_conn::TLS_MISSING.to_owned()))
}

/// As above.
#[cfg(not(feature = "tls"))]
pub(crate) async fn begin_generated(_: &Endpoint, _: &TlsPsk, _: Channel) -> Result<Channel> {
    Err(crate::error::Error::Local(longhaul_conn::TLS_MISSING.to_owned()))
}

#[cfg(feature = "tls")]
pub(crate) use secure::{LastOffer, begin, begin_generated};

#[cfg(feature = "tls")]
mod secure {
    use super::*;
    use crate::error::Error;
    use crate::reach::reach;
    use longhaul_auth::{Derivation, HashFunction, IdentityVersion, TlsKey};
    use longhaul_conn::{SecureError, TlsError};
    use std::sync::atomic::{AtomicUsize, Ordering};

    const WHAT: &str = "TLS";

    /// What is offered on one connection after the other. Target implementations differ in the derivation, and GnuTLS,
    /// which goes through the handshakes of Linux's target, looks at the first identity alone.
    const OFFERS: [(Derivation, &[IdentityVersion]); 4] = [
        (Derivation::Standard, &[IdentityVersion::V1, IdentityVersion::V0]),
        (Derivation::Legacy, &[IdentityVersion::V1, IdentityVersion::V0]),
        (Derivation::Standard, &[IdentityVersion::V0]),
        (Derivation::Legacy, &[IdentityVersion::V0]),
    ];
    /// Offers that are made to a target that has looked at every identity: one for each derivation.
    const TO_THOROUGH: usize = 2;

    /// How many connections in turn may end without an answer to the offer that was taken before. A link that is cut
    /// does that, and so does the target of Linux to a key that it does not know.
    const ENDS_OF_A_LINK: usize = 8;

    /// The offer that a target took last.
    #[derive(Debug)]
    pub(crate) struct LastOffer {
        /// One of [`OFFERS`].
        number: AtomicUsize,
        /// Connections that have ended without an answer since then.
        ends: AtomicUsize,
    }

    impl Default for LastOffer {
        fn default() -> LastOffer {
            LastOffer { number: AtomicUsize::new(0), ends: AtomicUsize::new(ENDS_OF_A_LINK) }
        }
    }

    impl LastOffer {
        fn taken(&self, number: usize) {
            self.number.store(number, Ordering::Relaxed);
            self.ends.store(0, Ordering::Relaxed);
        }

        /// Whether an end without an answer, which is counted, is more likely one of the link than the target's no.
        fn ended_by_the_link(&self) -> bool {
            self.ends.fetch_add(1, Ordering::Relaxed) < ENDS_OF_A_LINK
        }
    }

    /// Goes through the handshake, with the key of this host for the subsystem.
    ///
    /// # Errors
    /// This host has no key, or the target refuses it or speaks no TLS.
    pub(crate) async fn begin(
        endpoint: &Endpoint,
        options: &Options,
        subnqn: &str,
        channel: Channel,
    ) -> Result<Channel> {
        let key = options.tls_key(subnqn).map_err(|why| endpoint.refused(WHAT, why))?;
        let known = endpoint.offer.number.load(Ordering::Relaxed);
        let others = (0..OFFERS.len()).filter(|number| *number != known);
        let is_answer = |e: &SecureError| matches!(e, SecureError::Tls(_));
        let (mut made, mut most) = (Some(channel), OFFERS.len());
        let mut failure: Option<(SecureError, Vec<TlsPsk>)> = None;
        for (n, number) in [known].into_iter().chain(others).enumerate() {
            if n >= most {
                break;
            }
            let (derivation, versions) = OFFERS[number];
            let psks = match psks(&key, &options.hostnqn, subnqn, derivation, versions) {
                Ok(psks) => psks,
                Err(why) if failure.is_none() => return Err(endpoint.refused(WHAT, why)),
                Err(_) => continue,
            };
            let channel = match made.take() {
                Some(channel) => channel,
                None => reach(endpoint, options).await?,
            };
            let e = match longhaul_conn::connect(&channel, &psks).await {
                Ok(session) => {
                    endpoint.offer.taken(number);
                    return Ok(channel.with_session(session));
                }
                Err(e) => e,
            };
            most = match &e {
                SecureError::Tls(TlsError::UnknownIdentity | TlsError::WrongKey) if known == 0 => TO_THOROUGH,
                // The next attempt to connect makes the same offer first.
                SecureError::Io(_) | SecureError::Eof if n == 0 && endpoint.offer.ended_by_the_link() => 0,
                SecureError::Tls(TlsError::UnknownIdentity | TlsError::WrongKey | TlsError::Alert(_))
                | SecureError::Io(_)
                | SecureError::Eof => most,
                _ => 0,
            };
            // An answer says more than the end of a connection.
            let says_more = failure.as_ref().is_none_or(|(before, _)| is_answer(&e) && !is_answer(before));
            if says_more {
                failure = Some((e, psks));
            }
        }
        // unwrap: the first offer has failed
        let (e, psks) = failure.expect("a failure");
        let identity = psks.first().map(|psk| psk.identity.as_str()).unwrap_or_default();
        Err(refusal(endpoint, &e, identity, key.hash()))
    }

    /// The same with a PSK that an authentication has made.
    ///
    /// # Errors
    /// The target refuses it, or ends the connection.
    pub(crate) async fn begin_generated(
        endpoint: &Endpoint,
        psk: &TlsPsk,
        channel: Channel,
    ) -> Result<Channel> {
        match longhaul_conn::connect(&channel, std::slice::from_ref(psk)).await {
            Ok(session) => Ok(channel.with_session(session)),
            Err(e) => {
                let said = format!("{e} (identity '{}', of the authentication before)", psk.identity);
                Err(match e {
                    SecureError::Io(_) | SecureError::Eof => endpoint.unreachable(said),
                    _ => endpoint.refused(WHAT, said),
                })
            }
        }
    }

    /// The error for people. `identity` is the one that was offered first on that connection.
    fn refusal(endpoint: &Endpoint, e: &SecureError, identity: &str, hash: HashFunction) -> Error {
        let [standard, legacy] = Derivation::USED;
        let offered = format!("{e} (identity '{identity}', tried with {standard} and with {legacy})");
        let hint = match hash {
            HashFunction::Sha256 => "",
            _ => {
                "; the GnuTLS of a Linux target may know keys of SHA-256 alone ('key make --tls --hash sha256')"
            }
        };
        match e {
            SecureError::Tls(TlsError::UnknownIdentity | TlsError::WrongKey) => endpoint.refused(
                WHAT,
                format!("{offered}; 'longhaul key make --tls' makes a key, which both have to have"),
            ),
            SecureError::Tls(TlsError::NotTls) => endpoint
                .refused(WHAT, "it speaks no TLS at this address: see 'longhaul discover', or leave tls out"),
            SecureError::Tls(TlsError::Alert(_)) => endpoint.refused(WHAT, format!("{offered}{hint}")),
            SecureError::Io(_) | SecureError::Eof => endpoint.unreachable(format!(
                "{offered}; a Linux target does so if its keyring .nvme lacks the key or has another one: \
                 'nvme check-tls-key --insert' adds it there{hint}"
            )),
            _ => endpoint.incompatible(format!("TLS: {e} (identity '{identity}')")),
        }
    }

    /// Those of these versions of identities, for the cipher suite of the key.
    fn psks(
        key: &TlsKey,
        hostnqn: &str,
        subnqn: &str,
        derivation: Derivation,
        versions: &[IdentityVersion],
    ) -> std::result::Result<Vec<TlsPsk>, String> {
        let made = versions.iter().map(|version| key.psk(*version, key.hash(), hostnqn, subnqn, derivation));
        let made: Vec<_> = made.collect();
        // Long names are too long for version 0 alone, whose derivation has them whole.
        let first_failure = made.iter().find_map(|psk| psk.as_ref().err().map(ToString::to_string));
        let good: Vec<_> = made.into_iter().filter_map(std::result::Result::ok).collect();
        match (good.is_empty(), first_failure) {
            (true, Some(why)) => Err(why),
            _ => Ok(good),
        }
    }
}
