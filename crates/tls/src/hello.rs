//! The first message of a host.
//!
//! Invariants:
//! - at most [`HELLO_MAX`] bytes are kept, whatever a peer announces;
//! - ranges of offers are within the message.

use longhaul_auth::TlsPsk;
use std::ops::Range;

/// The longest ClientHello that is read, in bytes: eight identities of 512 bytes and key shares need less than a
/// quarter.
pub const HELLO_MAX: usize = 16 << 10;
/// Keys that are looked at, in the order in which the host prefers them: two versions of identities for two
/// cipher suites and two kinds of keys.
const OFFERS_MAX: usize = 8;

const RECORD_HEADER: usize = 5;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const MESSAGE_HEADER: usize = 4;
const PRE_SHARED_KEY: u16 = 41;
const SUPPORTED_VERSIONS: u16 = 43;
const TLS_1_3: u16 = 0x0304;
/// How an ICReq of NVMe/TCP begins: type 0, no flags, 128 bytes of header.
const ICREQ: [u8; 3] = [0, 0, 128];

/// Why the first bytes of a connection are no ClientHello that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The peer does not use TLS.
    #[error("the host speaks plain NVMe/TCP, and this listener takes TLS only")]
    PlainNvme,
    /// Neither TLS nor NVMe/TCP.
    #[error("the first bytes are neither TLS nor NVMe/TCP")]
    NotTls,
    /// A length does not fit the others, or there are too many bytes.
    #[error("its ClientHello is malformed")]
    Malformed,
    /// Only versions before 1.3 are offered.
    #[error("it offers no TLS 1.3")]
    OldVersion,
    /// The peer wants certificates.
    #[error("it offers no pre-shared key")]
    NoPsk,
}

impl HelloError {
    /// The alert that says so; none for a peer that would not understand it.
    pub fn alert(self) -> Option<u8> {
        match self {
            HelloError::PlainNvme | HelloError::NotTls => None,
            HelloError::Malformed => Some(crate::alert::DECODE_ERROR),
            HelloError::OldVersion => Some(crate::alert::PROTOCOL_VERSION),
            HelloError::NoPsk => Some(crate::alert::MISSING_EXTENSION),
        }
    }
}

/// A ClientHello that offers pre-shared keys for TLS 1.3.
#[derive(Clone, Debug)]
pub struct Hello {
    message: Vec<u8>,
    offers: Vec<(Range<usize>, Range<usize>)>,
    /// Where the binders begin, with their length.
    binders_at: usize,
}

/// A key that a host offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Its name.
    pub identity: &'a [u8],
    hello: &'a [u8],
    binder: &'a [u8],
}

impl Offer<'_> {
    /// Whether the host knows this key.
    pub fn is_bound_by(&self, psk: &TlsPsk) -> bool {
        psk.is_bound(self.hello, self.binder)
    }
}

impl Hello {
    /// Reads the first bytes of a connection. None: they are not complete.
    ///
    /// # Errors
    /// They are no ClientHello that can be served.
    pub fn parse(input: &[u8]) -> Result<Option<Hello>, HelloError> {
        let Some(message) = message_of(input)? else { return Ok(None) };
        let mut hello = Hello { message, offers: Vec::new(), binders_at: 0 };
        hello.read()?;
        Ok(Some(hello))
    }

    /// The keys that the host offers, the preferred one first.
    pub fn offers(&self) -> impl Iterator<Item = Offer<'_>> {
        let hello = &self.message[..self.binders_at];
        self.offers.iter().map(move |(identity, binder)| Offer {
            identity: &self.message[identity.clone()],
            hello,
            binder: &self.message[binder.clone()],
        })
    }

    fn read(&mut self) -> Result<(), HelloError> {
        const RANDOM: usize = 2 + 32;
        let whole = Reader { bytes: &self.message, at: MESSAGE_HEADER, end: self.message.len() };
        let mut body = whole;
        body.skip(RANDOM)?;
        body.vector(1)?;
        body.vector(2)?;
        body.vector(1)?;
        let mut extensions = body.vector(2)?;
        let (mut has_version, mut offers, mut binders_at) = (false, None, 0);
        while !extensions.is_empty() {
            let kind = extensions.number(2)?;
            let mut extension = extensions.vector(2)?;
            match kind as u16 {
                SUPPORTED_VERSIONS => {
                    let mut versions = extension.vector(1)?;
                    while !versions.is_empty() {
                        has_version |= versions.number(2)? as u16 == TLS_1_3;
                    }
                }
                PRE_SHARED_KEY => {
                    let mut identities = extension.vector(2)?;
                    binders_at = extension.at;
                    let mut binders = extension.vector(2)?;
                    let mut found = Vec::new();
                    while !identities.is_empty() {
                        const AGE: usize = 4;
                        let identity = identities.vector(2)?;
                        identities.skip(AGE)?;
                        let binder = binders.vector(1)?;
                        if found.len() < OFFERS_MAX {
                            found.push((identity.at..identity.end, binder.at..binder.end));
                        }
                    }
                    // RFC 8446 §4.2.11: pre_shared_key is the last extension, and has a binder for each identity
                    if !binders.is_empty() || !extension.is_empty() || !extensions.is_empty() {
                        return Err(HelloError::Malformed);
                    }
                    offers = Some(found);
                }
                _ => {}
            }
        }
        if !has_version {
            return Err(HelloError::OldVersion);
        }
        self.offers = offers.filter(|offers| !offers.is_empty()).ok_or(HelloError::NoPsk)?;
        self.binders_at = binders_at;
        Ok(())
    }
}

/// The handshake message in the first records. None: they are not complete.
fn message_of(mut input: &[u8]) -> Result<Option<Vec<u8>>, HelloError> {
    let mut message = Vec::new();
    loop {
        let looked_at = input.len().min(ICREQ.len());
        if message.is_empty() && looked_at > 0 && input[0] != HANDSHAKE {
            return match input[..looked_at] == ICREQ[..looked_at] {
                true if looked_at < ICREQ.len() => Ok(None),
                true => Err(HelloError::PlainNvme),
                false => Err(HelloError::NotTls),
            };
        }
        let Some((header, rest)) = input.split_at_checked(RECORD_HEADER) else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != HANDSHAKE || header[1] != 3 || len == 0 || message.len() + len > HELLO_MAX {
            return Err(HelloError::Malformed);
        }
        let Some((fragment, rest)) = rest.split_at_checked(len) else { return Ok(None) };
        message.extend_from_slice(fragment);
        input = rest;
        if let [kind, a, b, c, ..] = message[..] {
            let len = MESSAGE_HEADER + u32::from_be_bytes([0, a, b, c]) as usize;
            if kind != CLIENT_HELLO || len > HELLO_MAX || message.len() > len {
                return Err(HelloError::Malformed);
            }
            if message.len() == len {
                return Ok(Some(message));
            }
        }
    }
}

/// A part of a message that is being read.
#[derive(Clone, Copy)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl Reader<'_> {
    fn is_empty(&self) -> bool {
        self.at == self.end
    }

    fn skip(&mut self, len: usize) -> Result<(), HelloError> {
        if len > self.end - self.at {
            return Err(HelloError::Malformed);
        }
        self.at += len;
        Ok(())
    }

    /// A number of so many bytes.
    fn number(&mut self, len: usize) -> Result<usize, HelloError> {
        let from = self.at;
        self.skip(len)?;
        Ok(self.bytes[from..self.at].iter().fold(0, |number, byte| (number << 8) | usize::from(*byte)))
    }

    /// What follows a length of so many bytes.
    fn vector(&mut self, len: usize) -> Result<Self, HelloError> {
        let len = self.number(len)?;
        let at = self.at;
        self.skip(len)?;
        Ok(Reader { bytes: self.bytes, at, end: self.at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(len: usize, of: &[u8]) -> Vec<u8> {
        let length = (of.len() as u32).to_be_bytes();
        [&length[4 - len..], of].concat()
    }

    fn extension(kind: u16, of: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector(2, of)].concat()
    }

    fn psks(identities: &[&str]) -> Vec<u8> {
        let names: Vec<u8> =
            identities.iter().flat_map(|name| [vector(2, name.as_bytes()), vec![0; 4]].concat()).collect();
        let binders: Vec<u8> = identities.iter().flat_map(|_| vector(1, &[7; 32])).collect();
        extension(PRE_SHARED_KEY, &[vector(2, &names), vector(2, &binders)].concat())
    }

    fn versions(of: &[u8]) -> Vec<u8> {
        extension(SUPPORTED_VERSIONS, &vector(1, of))
    }

    fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[9; 32],
            &vector(1, &[1; 32]),
            &vector(2, &[0x13, 1]),
            &vector(1, &[0]),
            &vector(2, &extensions.concat()),
        ]
        .concat();
        [&[CLIENT_HELLO][..], &vector(3, &body)].concat()
    }

    /// In records of at most so many bytes.
    fn records(message: &[u8], most: usize) -> Vec<u8> {
        message.chunks(most).flat_map(|part| [&[HANDSHAKE, 3, 1][..], &vector(2, part)].concat()).collect()
    }

    #[test]
    fn identities_are_found_in_records_of_any_size() {
        let message = message(&[versions(&[3, 4, 3, 3]), psks(&["one", "two"])]);
        for most in [1, 3, 100, 16384] {
            let input = records(&message, most);
            for cut in 0..input.len() {
                assert!(Hello::parse(&input[..cut]).unwrap().is_none(), "{cut} bytes");
            }
            let hello = Hello::parse(&input).unwrap().expect("complete");
            let names: Vec<_> = hello.offers().map(|offer| offer.identity).collect();
            assert_eq!(names, [&b"one"[..], b"two"]);
            let offer = hello.offers().next().unwrap();
            assert_eq!((offer.binder, offer.hello.len()), (&[7; 32][..], message.len() - 2 - 2 * 33));
        }
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        let of = |extensions: &[Vec<u8>]| Hello::parse(&records(&message(extensions), 16384)).map(|_| ());
        assert_eq!(of(&[versions(&[3, 3]), psks(&["one"])]), Err(HelloError::OldVersion));
        assert_eq!(of(&[psks(&["one"])]), Err(HelloError::OldVersion));
        assert_eq!(of(&[versions(&[3, 4])]), Err(HelloError::NoPsk));
        assert_eq!(of(&[versions(&[3, 4]), psks(&[])]), Err(HelloError::NoPsk));
        assert_eq!(of(&[psks(&["one"]), versions(&[3, 4])]), Err(HelloError::Malformed), "not the last");
        let icreq = [0, 0, 128, 0, 128, 0, 0, 0];
        assert!(Hello::parse(&icreq[..2]).unwrap().is_none());
        assert_eq!(Hello::parse(&icreq).unwrap_err(), HelloError::PlainNvme);
        assert_eq!(Hello::parse(b"GET / HTTP").unwrap_err(), HelloError::NotTls);
        assert_eq!(Hello::parse(&[HANDSHAKE, 3, 1, 0, 4, 2, 0, 0, 0]).unwrap_err(), HelloError::Malformed);
        let endless = records(&[CLIENT_HELLO, 0xff, 0xff, 0xff], 16384);
        assert_eq!(Hello::parse(&endless).unwrap_err(), HelloError::Malformed, "nothing grows with it");
    }

    /// Nothing from the network is trusted.
    #[test]
    fn changed_bytes_do_no_harm() {
        let good = records(&message(&[versions(&[3, 4]), psks(&["one", "two"])]), 60);
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let mut bad = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bad.len());
                bad[at] = random.u8(..);
            }
            if let Ok(Some(hello)) = Hello::parse(&bad) {
                assert!(hello.offers().count() <= OFFERS_MAX);
            }
        }
    }
}
