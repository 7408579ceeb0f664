//! Encryption below the frames: the Noise Protocol Framework with a pre-shared key
//! (`Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, by the `snow` library).
//!
//! Invariants:
//! - a peer without the key fails at the first message of the handshake;
//! - each connection has ephemeral keys, so a shared key that leaks later does not
//!   decrypt recorded connections (forward secrecy);
//! - a record that was modified, replayed, dropped or reordered ends the connection.
//!
//! A record is two bytes of length, little-endian, and that many bytes of a
//! Noise transport message.

use snow::{Builder, HandshakeState, TransportState};
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;

/// The Noise protocol name.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Binds the handshake to this application protocol.
const PROLOGUE: &[u8] = b"longhaul transfer";
/// The longest Noise message, in bytes (Noise §3).
const MESSAGE_MAX: usize = 65_535;
/// Bytes of an authentication tag.
const TAG: usize = 16;
/// Content of a full record, in bytes.
const CONTENT_MAX: usize = MESSAGE_MAX - TAG;
/// Bytes of a key.
const KEY: usize = 32;

/// A key that both sides have.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

impl Key {
    /// A new key, from the system's randomness.
    ///
    /// # Errors
    /// The system has no random source.
    pub fn random() -> io::Result<Key> {
        let mut key = [0; KEY];
        fill_random(&mut key)?;
        Ok(Key(key))
    }

    /// From 64 hexadecimal digits.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn parse(text: &str) -> io::Result<Key> {
        let text = text.trim();
        let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
        let digits = digits
            .filter(|d| d.len() == 2 * KEY)
            .ok_or_else(|| invalid("a key has 64 hexadecimal digits"))?;
        let mut key = [0; KEY];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (pair[0] << 4 | pair[1]) as u8;
        }
        Ok(Key(key))
    }

    pub(crate) fn bytes(&self) -> [u8; KEY] {
        self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; KEY]) -> Key {
        Key(bytes)
    }

    /// As 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// The file cannot be read, its group or others have access to it, or it holds no key.
    pub fn load(path: &Path) -> io::Result<Key> {
        let file = File::open(path)?;
        if file.metadata()?.mode() & 0o077 != 0 {
            return Err(invalid("others may read the key: chmod 600"));
        }
        let mut text = String::new();
        (&file).take(4096).read_to_string(&mut text)?;
        Key::parse(&text)
    }

    /// Reads a key file, or makes one that only its owner may read.
    ///
    /// # Errors
    /// As [`load`](Self::load), or it cannot be made.
    pub fn load_or_make(path: &Path) -> io::Result<Key> {
        let created = File::options().write(true).create_new(true).mode(0o600).open(path);
        match created {
            Ok(mut file) => {
                let key = Key::random()?;
                writeln!(file, "{}", key.to_hex())?;
                Ok(key)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Key::load(path),
            Err(e) => Err(e),
        }
    }
}

/// Fills `bytes` from the system's randomness.
pub(crate) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// A handshake in progress.
pub(crate) struct Handshake(HandshakeState);

impl Handshake {
    /// Starts a handshake as the connecting side (`initiator`) or the accepting side.
    pub(crate) fn new(key: &Key, initiator: bool) -> io::Result<Handshake> {
        let wrong = |e: snow::Error| io::Error::other(e.to_string());
        let params = PATTERN.parse().map_err(wrong)?;
        let builder =
            Builder::new(params).psk(0, &key.0).and_then(|b| b.prologue(PROLOGUE)).map_err(wrong)?;
        let state = if initiator { builder.build_initiator() } else { builder.build_responder() };
        Ok(Handshake(state.map_err(wrong)?))
    }

    /// The next message of this side.
    pub(crate) fn write(&mut self) -> io::Result<Vec<u8>> {
        let mut message = vec![0; 128];
        let len = self.0.write_message(&[], &mut message).map_err(|e| io::Error::other(e.to_string()))?;
        message.truncate(len);
        Ok(message)
    }

    /// Processes the message of the other side.
    ///
    /// # Errors
    /// The other side has another key, or none.
    pub(crate) fn read(&mut self, message: &[u8]) -> io::Result<()> {
        let mut payload = [0; 128];
        let read = self.0.read_message(message, &mut payload);
        read.map(drop)
            .map_err(|_| io::Error::new(io::ErrorKind::PermissionDenied, "the other side has another key"))
    }

    /// The record layer: its sending and its receiving half.
    pub(crate) fn finish(self) -> io::Result<(Sealer, Opener)> {
        let state = self.0.into_transport_mode().map_err(|e| io::Error::other(e.to_string()))?;
        let state = Rc::new(RefCell::new(state));
        Ok((Sealer(Rc::clone(&state)), Opener { state, raw: Vec::new(), plain: Vec::new(), taken: 0 }))
    }
}

/// Encrypts data into records.
pub(crate) struct Sealer(Rc<RefCell<TransportState>>);

impl Sealer {
    /// Encrypts and authenticates one message.
    pub(crate) fn seal(&mut self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let records = plain.len().div_ceil(CONTENT_MAX);
        let mut sealed = vec![0; plain.len() + records * (TAG + 2)];
        let mut at = 0;
        let mut state = self.0.borrow_mut();
        for content in plain.chunks(CONTENT_MAX) {
            let (len, record) = sealed[at..].split_at_mut(2);
            let written =
                state.write_message(content, record).map_err(|e| io::Error::other(e.to_string()))?;
            len.copy_from_slice(&(written as u16).to_le_bytes());
            at += 2 + written;
        }
        sealed.truncate(at);
        Ok(sealed)
    }
}

/// Decrypts the records of one direction of a connection.
pub(crate) struct Opener {
    state: Rc<RefCell<TransportState>>,
    /// Received bytes of an incomplete record.
    raw: Vec<u8>,
    plain: Vec<u8>,
    taken: usize,
}

impl Opener {
    /// Decrypts the records in received bytes; a partial record is kept for the next call.
    ///
    /// # Errors
    /// A record fails authentication.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.plain.drain(..self.taken);
        self.taken = 0;
        self.raw.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((len, rest)) = self.raw[at..].split_first_chunk() {
            let len = usize::from(u16::from_le_bytes(*len));
            let Some(record) = rest.get(..len) else { break };
            let start = self.plain.len();
            self.plain.resize(start + len, 0);
            let opened = self.state.borrow_mut().read_message(record, &mut self.plain[start..]);
            let content = opened.map_err(|_| {
                invalid("an encrypted record fails authentication: it was modified, or another key was used")
            })?;
            self.plain.truncate(start + content);
            at += 2 + len;
        }
        self.raw.drain(..at);
        Ok(())
    }

    /// Decrypted bytes that are not consumed yet.
    pub(crate) fn plain(&self) -> &[u8] {
        &self.plain[self.taken..]
    }

    /// Consumes `len` decrypted bytes.
    pub(crate) fn take(&mut self, len: usize) {
        self.taken += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a handshake; returns the connecting side's sealer and the accepting side's opener.
    fn joined(one: &Key, other: &Key) -> io::Result<(Sealer, Opener)> {
        let (mut a, mut b) = (Handshake::new(one, true)?, Handshake::new(other, false)?);
        b.read(&a.write()?)?;
        a.read(&b.write()?)?;
        Ok((a.finish()?.0, b.finish()?.1))
    }

    #[test]
    fn encrypted_records_are_decrypted_at_any_segmentation() {
        let key = Key::random().expect("a key");
        let (mut sealer, mut opener) = joined(&key, &key).expect("joined");
        let plain: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
        let sealed = sealer.seal(&plain).expect("sealed");
        assert!(!sealed.windows(16).any(|w| w == &plain[1000..1016]));
        let mut opened = Vec::new();
        for part in sealed.chunks(7919) {
            opener.feed(part).expect("good");
            opened.extend_from_slice(opener.plain());
            opener.take(opener.plain().len());
        }
        assert!(opened == plain);
    }

    #[test]
    fn other_keys_and_changed_records_are_refused() {
        let key = || Key::random().expect("a key");
        assert!(joined(&key(), &key()).is_err());
        let key = key();
        for change in 0..4 {
            let (mut sealer, mut opener) = joined(&key, &key).expect("joined");
            let (first, second) =
                (sealer.seal(b"first").expect("sealed"), sealer.seal(b"second").expect("sealed"));
            let mut flipped = first.clone();
            *flipped.last_mut().expect("a byte") ^= 1;
            let sent = match change {
                0 => flipped,
                1 => [second, first].concat(),
                2 => [first.clone(), first].concat(),
                _ => second,
            };
            assert!(opener.feed(&sent).is_err(), "{change}");
        }
    }

    #[test]
    fn keys_are_kept_where_only_the_owner_reads_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let key = Key::load_or_make(&path).expect("made");
        assert_eq!(Key::load_or_make(&path).expect("read"), key);
        assert_eq!(Key::parse(&key.to_hex()).expect("good"), key);
        for mode in [0o644, 0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("set");
            assert!(Key::load(&path).is_err(), "{mode:o}");
        }
        assert!(Key::parse("12").is_err() && Key::parse(&"g".repeat(64)).is_err());
    }
}
