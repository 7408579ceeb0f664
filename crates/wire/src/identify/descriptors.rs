//! Namespace Identification Descriptor list (CNS 03h).

use super::IDENTIFY_LEN;
use uuid::Uuid;

const EUI64: u8 = 1;
const NGUID: u8 = 2;
const UUID: u8 = 3;
const CSI: u8 = 4;

/// Length of a descriptor's header: type, length, two reserved bytes.
const HEADER: usize = 4;

/// One identifier of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identifier {
    /// IEEE Extended Unique Identifier (type 1).
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier (type 2).
    Nguid([u8; 16]),
    /// Namespace UUID (type 3).
    Uuid(Uuid),
    /// Command set identifier (type 4).
    Csi(u8),
}

/// The list as 4,096 bytes.
///
/// # Panics
/// If the identifiers do not fit, which takes more than 200 of them.
pub fn encode_descriptors(identifiers: &[Identifier]) -> Vec<u8> {
    let mut out = vec![0; IDENTIFY_LEN];
    let mut at = 0;
    let mut add = |kind: u8, value: &[u8]| {
        out[at] = kind;
        out[at + 1] = value.len() as u8;
        out[at + HEADER..at + HEADER + value.len()].copy_from_slice(value);
        at += HEADER + value.len();
    };
    for identifier in identifiers {
        match identifier {
            Identifier::Eui64(id) => add(EUI64, id),
            Identifier::Nguid(id) => add(NGUID, id),
            Identifier::Uuid(id) => add(UUID, id.as_bytes()),
            Identifier::Csi(csi) => add(CSI, &[*csi]),
        }
    }
    out
}

/// The identifiers of a list. Unknown types, and known ones of a wrong
/// length, are passed over; the list ends at length 0 or where it is cut.
pub fn decode_descriptors(bytes: &[u8]) -> Vec<Identifier> {
    let mut found = Vec::new();
    let mut rest = &bytes[..bytes.len().min(IDENTIFY_LEN)];
    while let [kind, len, _, _, tail @ ..] = rest {
        if *len == 0 {
            break;
        }
        let Some((value, next)) = tail.split_at_checked(usize::from(*len)) else { break };
        let identifier = match (*kind, value) {
            (EUI64, _) => value.try_into().ok().map(Identifier::Eui64),
            (NGUID, _) => value.try_into().ok().map(Identifier::Nguid),
            (UUID, _) => Uuid::from_slice(value).ok().map(Identifier::Uuid),
            (CSI, [csi]) => Some(Identifier::Csi(*csi)),
            _ => None,
        };
        found.extend(identifier);
        rest = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_bytes() {
        let list = [
            Identifier::Eui64([8; 8]),
            Identifier::Nguid([9; 16]),
            Identifier::Uuid(Uuid::from_u128(7)),
            Identifier::Csi(0),
        ];
        let bytes = encode_descriptors(&list);
        assert_eq!(bytes[..5], [1, 8, 0, 0, 8]);
        assert_eq!(bytes[12..17], [2, 16, 0, 0, 9]);
        assert_eq!(bytes[32..36], [3, 16, 0, 0]);
        assert_eq!(bytes[51..58], [7, 4, 1, 0, 0, 0, 0]);
        assert_eq!(decode_descriptors(&bytes), list);
    }

    #[test]
    fn odd_lists() {
        assert!(decode_descriptors(&[]).is_empty());
        assert!(decode_descriptors(&[3, 16, 0, 0, 1]).is_empty(), "cut");
        assert_eq!(decode_descriptors(&[9, 1, 0, 0, 0, 4, 1, 0, 0, 2]), [Identifier::Csi(2)]);
        assert!(decode_descriptors(&[2, 1, 0, 0, 0]).is_empty(), "wrong length");
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = decode_descriptors(&bytes);
        }
    }
}
