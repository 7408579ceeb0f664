//! TLS of a connection, before anything of NVMe/TCP.

use crate::error::Result;
use crate::options::Options;
use crate::setup::Endpoint;
use longhaul_conn::Channel;
use longhaul_engine::net::TcpStream;

/// Without it, a build that cannot keep the promise does not connect.
#[cfg(not(feature = "tls"))]
pub(crate) async fn begin(_: &Endpoint, _: &Options, _: &str, _: TcpStream) -> Result<Channel> {
    Err(crate::error::Error::Local(longhaul_conn::TLS_MISSING.to_owned()))
}

#[cfg(feature = "tls")]
pub(crate) use secure::begin;

#[cfg(feature = "tls")]
mod secure {
    use super::*;
    use crate::reach::reach;
    use longhaul_auth::{Derivation, IdentityVersion, TlsKey, TlsPsk};
    use longhaul_conn::{SecureError, TlsError};
    use longhaul_engine::net::SocketOptions;

    const WHAT: &str = "TLS";

    /// Goes through the handshake, with the key of this host for the subsystem.
    ///
    /// # Errors
    /// This host has no key, or the target refuses it or speaks no TLS.
    pub(crate) async fn begin(
        endpoint: &Endpoint,
        options: &Options,
        subnqn: &str,
        socket: TcpStream,
    ) -> Result<Channel> {
        let key = key(options).map_err(|why| endpoint.refused(WHAT, why))?;
        let psks = psks(&key, &options.hostnqn, subnqn, Derivation::Standard);
        let psks = psks.map_err(|why| endpoint.refused(WHAT, why))?;
        let e = match longhaul_conn::connect(&socket, &psks).await {
            Ok(session) => return Ok(Channel::with_session(socket, session)),
            Err(e) => e,
        };
        drop(socket);
        let identity = psks.first().map(|psk| psk.identity.as_str()).unwrap_or_default();
        let offered = format!("{e} (identity '{identity}')");
        Err(match e {
            SecureError::Tls(TlsError::UnknownIdentity | TlsError::WrongKey) => {
                let more = match takes_legacy(endpoint, options, subnqn, &key).await {
                    true => format!(
                        "; it has this key with {}, which this host does not use: update libnvme and nvme-cli there",
                        Derivation::Legacy
                    ),
                    false => "; 'longhaul key make --tls' makes a key, which both have to have".to_owned(),
                };
                endpoint.refused(WHAT, format!("{offered}{more}"))
            }
            SecureError::Tls(TlsError::NotTls) => endpoint
                .refused(WHAT, "it speaks no TLS at this address: see 'longhaul discover', or leave tls out"),
            SecureError::Tls(TlsError::Alert(_)) => endpoint.refused(WHAT, offered),
            SecureError::Io(_) | SecureError::Eof => endpoint.unreachable(offered),
            _ => endpoint.incompatible(format!("TLS: {offered}")),
        })
    }

    fn key(options: &Options) -> std::result::Result<TlsKey, String> {
        let missing = || {
            format!(
                "this host, {}, has no key for it: 'longhaul key make --tls' makes one, and --keys names its \
                 directory",
                options.hostnqn
            )
        };
        let keys = options.keys.as_ref().ok_or_else(missing)?;
        keys.tls_key_of(&options.hostnqn)?.map(|keys| keys.current).ok_or_else(missing)
    }

    /// Those of both versions of identities, for the cipher suite of the key.
    fn psks(
        key: &TlsKey,
        hostnqn: &str,
        subnqn: &str,
        derivation: Derivation,
    ) -> std::result::Result<Vec<TlsPsk>, String> {
        let all = [IdentityVersion::V1, IdentityVersion::V0];
        let made: Vec<_> = all
            .into_iter()
            .map(|version| key.psk(version, key.hash(), hostnqn, subnqn, derivation))
            .collect();
        // Long names are too long for version 0 alone, whose derivation has them whole.
        let first_failure = made.iter().find_map(|psk| psk.as_ref().err().map(ToString::to_string));
        let good: Vec<_> = made.into_iter().filter_map(std::result::Result::ok).collect();
        match (good.is_empty(), first_failure) {
            (true, Some(why)) => Err(why),
            _ => Ok(good),
        }
    }

    /// Whether the target takes the same key if it is derived as by libnvme before 1.16. The connection ends with the
    /// answer: nothing is sent on it.
    async fn takes_legacy(endpoint: &Endpoint, options: &Options, subnqn: &str, key: &TlsKey) -> bool {
        let Ok(psks) = psks(key, &options.hostnqn, subnqn, Derivation::Legacy) else { return false };
        let socket = SocketOptions { congestion: options.congestion.clone() };
        let Ok(stream) = reach(endpoint, &socket).await else { return false };
        longhaul_conn::connect(&stream, &psks).await.is_ok()
    }
}
