//! One end of a connection that is encrypted.
//!
//! Invariants:
//! - nothing is sealed or opened before the handshake is done;
//! - a session without a pre-shared key, or of another version or suite than those of NVMe/TCP, is never done;
//! - after an error a session does nothing any more.

use crate::alert;
use crate::library::{Connection, Destination, Failed};
use longhaul_auth::TlsPsk;
use longhaul_engine::Segment;

const AES_128_GCM_SHA256: u16 = 0x1301;
const AES_256_GCM_SHA384: u16 = 0x1302;

/// Why a session has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The peer knows no key of these identities.
    #[error("the peer knows no key of this identity (alert unknown_psk_identity)")]
    UnknownIdentity,
    /// The peer has another key.
    #[error("the peer has another key, or derives in another way (alert decrypt_error)")]
    WrongKey,
    /// The peer has refused the connection with this alert.
    #[error("the peer refused it (TLS alert {0})")]
    Alert(u8),
    /// The peer speaks something else.
    #[error("the peer speaks no TLS")]
    NotTls,
    /// The handshake ended without a pre-shared key of ours.
    #[error("the peer did not use a pre-shared key")]
    NoPsk,
    /// Another version or suite.
    #[error("the peer chose neither TLS_AES_128_GCM_SHA256 nor TLS_AES_256_GCM_SHA384 of TLS 1.3")]
    Suite,
    /// A record was changed on its way.
    #[error("a record was changed on its way, or encrypted with another key")]
    Record,
    /// The end of the connection, not of what the peer sends: a peer that has died, or an attacker.
    #[error("the connection was cut: it ended without the close_notify of TLS")]
    Cut,
    /// The peer did something else that the protocol forbids, by the name that s2n-tls has for it.
    #[error("the peer broke the protocol of TLS ({0})")]
    Protocol(&'static str),
    /// It has failed before.
    #[error("the session has failed before")]
    Ended,
}

impl From<Failed> for TlsError {
    fn from(failed: Failed) -> TlsError {
        match failed {
            Failed::Alert(alert::UNKNOWN_PSK_IDENTITY) => TlsError::UnknownIdentity,
            Failed::Alert(alert::DECRYPT_ERROR) => TlsError::WrongKey,
            Failed::Alert(other) => TlsError::Alert(other),
            Failed::Blocked => TlsError::Protocol("S2N_ERR_IO_BLOCKED"),
            Failed::Closed => TlsError::Protocol("S2N_ERR_CLOSED"),
            Failed::Other("S2N_ERR_DECRYPT" | "S2N_ERR_BAD_RECORD_MAC") => TlsError::Record,
            Failed::Other("S2N_ERR_PROTOCOL_VERSION_UNSUPPORTED") => TlsError::Suite,
            Failed::Other(name) => TlsError::Protocol(name),
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    is_host: bool,
    identity: Option<Vec<u8>>,
    has_failed: bool,
}

impl Session {
    /// That of a host, which offers these keys, the preferred one first.
    ///
    /// # Errors
    /// Two have the same identity.
    pub fn host<'a>(psks: impl IntoIterator<Item = &'a TlsPsk>) -> Result<Session, TlsError> {
        let mut connection = Connection::new(true)?;
        for psk in psks {
            connection.add(psk)?;
        }
        Ok(Session { connection, is_host: true, identity: None, has_failed: false })
    }

    /// That of a target, with the key that it has [chosen](crate::choose). The first message of the host is its
    /// first input.
    ///
    /// # Errors
    /// The library refuses the key.
    pub fn target(psk: &TlsPsk) -> Result<Session, TlsError> {
        let mut connection = Connection::new(false)?;
        connection.add(psk)?;
        Ok(Session { connection, is_host: false, identity: None, has_failed: false })
    }

    /// Goes on with the handshake: takes what it needs of `input`, and appends what the peer is to get to
    /// `output`. Whether it is done; what is left of the input is then [opened](Self::open).
    ///
    /// # Errors
    /// The peer refuses it, or breaks the protocol.
    pub fn handshake(&mut self, input: &mut &[u8], output: &mut Vec<u8>) -> Result<bool, TlsError> {
        const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
        if self.is_done() {
            return Ok(true);
        }
        self.guard(|session| {
            // A target without TLS answers a ClientHello with a TermReq, or not at all.
            if session.is_host && input.first().is_some_and(|first| !RECORD_TYPES.contains(first)) {
                return Err(TlsError::NotTls);
            }
            match session.connection.negotiate(input, output) {
                Ok(()) => {}
                Err(Failed::Blocked) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
            //= NVMe-TCP 1.1, Mandatory and Recommended Cipher Suites: TLS is based on pre-shared keys
            let identity = session.connection.identity().ok_or(TlsError::NoPsk)?;
            if !matches!(session.connection.suite(), Some(AES_128_GCM_SHA256 | AES_256_GCM_SHA384)) {
                return Err(TlsError::Suite);
            }
            session.connection.end_handshake()?;
            session.identity = Some(identity);
            Ok(true)
        })
    }

    /// Whether the handshake is done.
    pub fn is_done(&self) -> bool {
        self.identity.is_some()
    }

    /// The identity of the key in use, once the handshake is done.
    pub fn identity(&self) -> Option<&[u8]> {
        self.identity.as_deref()
    }

    /// The cipher suite in use, once the handshake is done.
    pub fn suite(&mut self) -> &'static str {
        match self.connection.suite() {
            Some(AES_128_GCM_SHA256) => "TLS_AES_128_GCM_SHA256",
            Some(AES_256_GCM_SHA384) => "TLS_AES_256_GCM_SHA384",
            _ => "none",
        }
    }

    /// Encrypts bytes, and appends the records to `output`.
    ///
    /// # Errors
    /// The handshake is not done, or the session has failed.
    pub fn seal(&mut self, plain: &[u8], output: &mut Vec<u8>) -> Result<(), TlsError> {
        self.sealed(|connection| connection.send_bytes(plain, output))
    }

    /// The same with the memory of a payload.
    ///
    /// # Errors
    /// Those of [`seal`](Self::seal).
    pub fn seal_segment(&mut self, plain: &Segment, output: &mut Vec<u8>) -> Result<(), TlsError> {
        self.sealed(|connection| connection.send_segment(plain, output))
    }

    fn sealed(&mut self, send: impl FnOnce(&mut Connection) -> Result<(), Failed>) -> Result<(), TlsError> {
        self.guard(|session| match session.is_done() {
            true => Ok(send(&mut session.connection)?),
            false => Err(TlsError::Ended),
        })
    }

    /// Decrypts what there is in `input` to `to`, as much as fits: how many bytes. `None`: the peer has ended its
    /// side. 0: more input is needed. What the peer is to get is appended to `output`.
    ///
    /// # Errors
    /// A record was changed, or the peer breaks the protocol.
    ///
    /// # Panics
    /// If the range is not within the memory, or the memory is read-only.
    pub fn open(
        &mut self,
        input: &mut &[u8],
        output: &mut Vec<u8>,
        to: Destination<'_>,
    ) -> Result<Option<usize>, TlsError> {
        self.guard(|session| match session.is_done() {
            true => match session.connection.receive(input, output, to)? {
                (0, true) => Ok(None),
                (n, _) => Ok(Some(n)),
            },
            false => Err(TlsError::Ended),
        })
    }

    /// Appends the record that says that nothing more is sent.
    pub fn end(&mut self, output: &mut Vec<u8>) {
        if self.is_done() && !self.has_failed {
            // What cannot be said is not needed: the connection ends too.
            let _ = self.connection.end(output);
        }
    }

    fn guard<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T, TlsError>) -> Result<T, TlsError> {
        if self.has_failed {
            return Err(TlsError::Ended);
        }
        let result = call(self);
        self.has_failed |= result.is_err();
        result
    }
}
