//! Asymmetric Namespace Access log page (0Ch).

/// Length of the header in bytes.
const HEADER: usize = 16;

/// Length of a group descriptor without its NSIDs, in bytes.
const GROUP: usize = 32;

/// How a group of namespaces can be reached through this controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnaState {
    /// The best way.
    #[default]
    Optimized,
    /// A way, but not the best.
    NonOptimized,
    /// No way at present.
    Inaccessible,
    /// No way ever again.
    PersistentLoss,
    /// Between two states.
    Change,
    /// A reserved value.
    Reserved(u8),
}

impl AnaState {
    /// The value on the wire.
    pub fn code(self) -> u8 {
        match self {
            AnaState::Optimized => 0x1,
            AnaState::NonOptimized => 0x2,
            AnaState::Inaccessible => 0x3,
            AnaState::PersistentLoss => 0x4,
            AnaState::Change => 0xF,
            AnaState::Reserved(code) => code & 0xF,
        }
    }

    /// From the value on the wire.
    pub fn from_code(code: u8) -> AnaState {
        match code & 0xF {
            0x1 => AnaState::Optimized,
            0x2 => AnaState::NonOptimized,
            0x3 => AnaState::Inaccessible,
            0x4 => AnaState::PersistentLoss,
            0xF => AnaState::Change,
            other => AnaState::Reserved(other),
        }
    }
}

/// One ANA group descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// ANAGRPID: identifier of the group, from 1.
    pub id: u32,
    /// Counts the group's changes.
    pub change_count: u64,
    /// State of all namespaces of the group.
    pub state: AnaState,
    /// Its namespaces, in increasing order; empty if only groups were asked for.
    pub nsids: Vec<u32>,
}

/// The log page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaLog {
    /// Counts changes of any group.
    pub change_count: u64,
    /// The groups, in increasing order.
    pub groups: Vec<AnaGroup>,
}

/// The log page as bytes.
pub fn encode_ana(log: &AnaLog) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + GROUP * log.groups.len());
    out.extend(log.change_count.to_le_bytes());
    out.extend((log.groups.len() as u16).to_le_bytes());
    out.resize(HEADER, 0);
    for group in &log.groups {
        out.extend(group.id.to_le_bytes());
        out.extend((group.nsids.len() as u32).to_le_bytes());
        out.extend(group.change_count.to_le_bytes());
        out.push(group.state.code());
        out.resize(out.len() + GROUP - 17, 0);
        group.nsids.iter().for_each(|nsid| out.extend(nsid.to_le_bytes()));
    }
    out
}

/// Reads a log page; `None` if it is cut short.
pub fn decode_ana(bytes: &[u8]) -> Option<AnaLog> {
    let (header, mut rest) = bytes.split_at_checked(HEADER)?;
    let mut log = AnaLog { change_count: u64_at(header, 0)?, groups: Vec::new() };
    for _ in 0..u16::from_le_bytes([header[8], header[9]]) {
        let (head, tail) = rest.split_at_checked(GROUP)?;
        let count = usize::try_from(u32_at(head, 4)?).ok()?;
        // Bounded by the length of the data, whatever the count says.
        let (list, next) = tail.split_at_checked(count.checked_mul(4)?)?;
        log.groups.push(AnaGroup {
            id: u32_at(head, 0)?,
            change_count: u64_at(head, 8)?,
            state: AnaState::from_code(head[16]),
            nsids: list.chunks_exact(4).filter_map(|w| u32_at(w, 0)).collect(),
        });
        rest = next;
    }
    Some(log)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> AnaLog {
        let group = |id, state, nsids: &[u32]| AnaGroup { id, change_count: 9, state, nsids: nsids.to_vec() };
        AnaLog {
            change_count: 0x0102,
            groups: vec![group(1, AnaState::Optimized, &[3, 4]), group(2, AnaState::Inaccessible, &[])],
        }
    }

    #[test]
    fn known_bytes() {
        let bytes = encode_ana(&sample());
        assert_eq!(bytes.len(), 16 + 32 + 8 + 32);
        assert_eq!(bytes[..16], [2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..33], [1, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[48..56], [3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!((bytes[56], bytes[72]), (2, 3));
        assert_eq!(decode_ana(&bytes), Some(sample()));
    }

    #[test]
    fn cut_pages_are_refused() {
        let bytes = encode_ana(&sample());
        for len in 0..bytes.len() {
            assert_eq!(decode_ana(&bytes[..len]), None, "{len} bytes");
        }
        let mut lying = bytes;
        lying[20..24].fill(0xFF);
        assert_eq!(decode_ana(&lying), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_ana(&bytes);
        }
    }
}
