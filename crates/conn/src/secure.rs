//! TLS on a channel: the handshake before ICReq, and the records behind it.
//!
//! Invariants:
//! - before the handshake is done nothing of it reaches the protocol;
//! - a peer has [`HELLO_MAX`] bytes for its first message, and memory of a record behind it;
//! - received records are decrypted in order, before more is received;
//! - records are sent in the order in which they were encrypted, those of the library's own answers too.

use crate::channel::{Channel, message};
use longhaul_auth::{KeySource, TlsPsk};
use longhaul_engine::{RecvMsg, Segment};
use longhaul_tls::{
    Chosen, Destination, HELLO_MAX, Hello, HelloError, Refusal, Session, TlsError, alert_record, choose,
};
use std::io;
use std::sync::Arc;

/// Received at once before more was ever there: a few commands fit.
const RECORDS_FIRST: usize = 4 << 10;
/// Received at once at most: four records, for one system call.
const RECORDS_MOST: usize = 64 << 10;
/// Memory for records that a connection keeps while it sends nothing.
const SEALED_KEPT: usize = 4 << 10;

/// Why there is no connection with TLS.
#[derive(Debug, thiserror::Error)]
pub enum SecureError {
    /// The first message of a host is not such.
    #[error("{0}")]
    Hello(#[from] HelloError),
    /// No key is right.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The handshake failed.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection.
    #[error("the peer closed the connection during the TLS handshake")]
    Eof,
}

/// A session on its way between threads.
#[derive(Debug)]
pub struct Detached {
    session: Session,
    /// Received, and not decrypted yet.
    left: Vec<u8>,
}

/// A session on a channel.
#[derive(Debug)]
pub struct Secure {
    session: Session,
    /// Received behind the handshake, and not decrypted yet.
    left: Vec<u8>,
    left_at: usize,
    records: RecvMsg,
    at: usize,
    /// Encrypted, and not taken to be sent yet: data, and answers of the library.
    sealed: Vec<u8>,
}

impl From<Detached> for Secure {
    fn from(Detached { session, left }: Detached) -> Secure {
        let records = RecvMsg::new(RECORDS_FIRST);
        Secure { session, left, left_at: 0, records, at: 0, sealed: Vec::new() }
    }
}

impl From<Secure> for Detached {
    fn from(secure: Secure) -> Detached {
        let mut left = secure.left;
        left.drain(..secure.left_at);
        left.extend_from_slice(&secure.records.staged()[secure.at..]);
        Detached { session: secure.session, left }
    }
}

fn failed(e: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

impl Secure {
    /// Decrypts what was received. `None`: the peer has ended its side. 0: more has to be received.
    pub(crate) fn open(&mut self, to: Destination<'_>) -> io::Result<Option<usize>> {
        let is_left = self.left_at < self.left.len();
        let (from, at) = match is_left {
            true => (&self.left[..], &mut self.left_at),
            false => (self.records.staged(), &mut self.at),
        };
        let mut input = &from[*at..];
        let opened = self.session.open(&mut input, &mut self.sealed, to).map_err(failed)?;
        *at = from.len() - input.len();
        if is_left && self.left_at == self.left.len() {
            (self.left, self.left_at) = (Vec::new(), 0);
        }
        Ok(opened)
    }

    /// The message for the next receive. All that was received is decrypted.
    pub(crate) fn begin_receive(&mut self) -> RecvMsg {
        let mut msg = std::mem::replace(&mut self.records, RecvMsg::new(0));
        if msg.staged().len() == msg.staging_len() && msg.staging_len() < RECORDS_MOST {
            msg.resize_staging(RECORDS_MOST);
        }
        msg
    }

    pub(crate) fn end_receive(&mut self, msg: RecvMsg) {
        (self.records, self.at) = (msg, 0);
    }

    /// Encrypts bytes behind what is already encrypted.
    pub(crate) fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.make_room(plain.len());
        self.session.seal(plain, &mut self.sealed).map_err(failed)
    }

    /// The same with the memory of a payload.
    pub(crate) fn seal_segment(&mut self, plain: &Segment) -> io::Result<()> {
        self.make_room(plain.len());
        self.session.seal_segment(plain, &mut self.sealed).map_err(failed)
    }

    /// At once, and not in steps that copy what is there.
    fn make_room(&mut self, len: usize) {
        const RECORD: usize = 16 << 10;
        const OVERHEAD: usize = 5 + 1 + 16;
        if len > 0 {
            self.sealed.reserve(len + (len.div_ceil(RECORD) + 1) * OVERHEAD);
        }
    }

    /// Bytes that are encrypted and not taken.
    pub(crate) fn sealed_len(&self) -> usize {
        self.sealed.len()
    }

    /// Nothing more is sent for the time being.
    pub(crate) fn rest(&mut self) {
        if self.sealed.is_empty() && self.sealed.capacity() > SEALED_KEPT {
            self.sealed = Vec::new();
        }
    }

    /// What is encrypted, to be sent. [`give_back`](Self::give_back) it.
    pub(crate) fn take_sealed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sealed)
    }

    /// Its memory is used again, unless more was encrypted while it was sent.
    pub(crate) fn give_back(&mut self, mut sealed: Vec<u8>) {
        if self.sealed.is_empty() {
            sealed.clear();
            self.sealed = sealed;
        }
    }

    /// Says that nothing more is sent.
    pub(crate) fn end(&mut self) {
        self.session.end(&mut self.sealed);
    }
}

/// The host's side of the handshake: offers these keys, the preferred one first.
///
/// # Errors
/// The target refuses it, or speaks no TLS.
pub async fn connect(channel: &Channel, psks: &[TlsPsk]) -> Result<Detached, SecureError> {
    let session = Session::host(psks)?;
    finish(channel, session, Vec::new()).await
}

/// Whether a connection that begins with this byte is one with TLS: that of a record of the handshake. PDUs begin
/// with their type, which is less.
pub fn is_tls(first: u8) -> bool {
    const HANDSHAKE: u8 = 22;
    first == HANDSHAKE
}

/// The target's side: finds the key of the host that its first message names, after its turn. `first` was
/// received already.
///
/// # Errors
/// The host has no right key, or speaks no TLS: it gets an alert.
pub async fn accept(
    channel: &Channel,
    first: Vec<u8>,
    keys: &Arc<dyn KeySource>,
    turn: impl Future<Output = ()>,
) -> Result<(Detached, Chosen), SecureError> {
    let (mut input, mut msg) = (first, RecvMsg::new(RECORDS_FIRST));
    let hello = loop {
        msg = receive(channel, msg).await?;
        input.extend_from_slice(msg.staged());
        match Hello::parse(&input) {
            Ok(Some(hello)) => break hello,
            Ok(None) if input.len() <= 2 * HELLO_MAX => {}
            Ok(None) => {
                return Err(refuse(channel, HelloError::Malformed.alert(), HelloError::Malformed).await);
            }
            Err(e) => return Err(refuse(channel, e.alert(), e).await),
        }
    };
    turn.await;
    // Keys are in files, and several are tried: other connections of the thread go on.
    let keys = Arc::clone(keys);
    let chosen = longhaul_engine::blocking(move || choose(&hello, &*keys)).await;
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(e) => return Err(refuse(channel, Some(e.alert()), e).await),
    };
    let session = Session::target(&chosen.psk)?;
    Ok((finish(channel, session, input).await?, chosen))
}

async fn refuse(channel: &Channel, alert: Option<u8>, why: impl Into<SecureError>) -> SecureError {
    if let Some(alert) = alert {
        // A peer that does not receive it sees the end of the connection.
        let _ = send(channel, alert_record(alert).to_vec()).await;
    }
    why.into()
}

async fn finish(channel: &Channel, mut session: Session, first: Vec<u8>) -> Result<Detached, SecureError> {
    let (mut input, mut msg) = (first, RecvMsg::new(RECORDS_FIRST));
    loop {
        let (mut rest, mut output) = (&input[..], Vec::new());
        let result = session.handshake(&mut rest, &mut output);
        if !output.is_empty() {
            send(channel, output).await?;
        }
        if result? {
            let left = rest.to_vec();
            return Ok(Detached { session, left });
        }
        msg = receive(channel, msg).await?;
        input = msg.staged().to_vec();
    }
}

async fn receive(channel: &Channel, msg: RecvMsg) -> Result<RecvMsg, SecureError> {
    let (result, msg) = channel.recv(msg).await;
    match result? {
        0 => Err(SecureError::Eof),
        _ => Ok(msg),
    }
}

async fn send(channel: &Channel, bytes: Vec<u8>) -> io::Result<()> {
    channel.send(message(bytes)).await.0
}

#[cfg(test)]
#[path = "secure_tests.rs"]
mod tests;
