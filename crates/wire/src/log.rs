//! Log pages.

mod ana;
mod discovery;
mod effects;
mod health;
mod reservation;

pub use ana::{AnaGroup, AnaLog, AnaState, decode_ana, encode_ana};
pub use discovery::{
    DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, DiscoveryEntry, DiscoveryHeader, PORT_CNTLID_DYNAMIC,
    SubsystemType, adrfam, eflags, treq, trtype, tsas,
};
pub use effects::{CommandEffects, FeatureEffects, SupportedPages, effect};
pub use health::{ErrorEntry, FirmwareSlots, SmartHealth};
pub use reservation::{ReservationNotice, ReservationNoticeKind};

/// Log page identifiers.
#[allow(missing_docs)]
pub mod lid {
    pub const SUPPORTED_PAGES: u8 = 0x00;
    pub const ERROR: u8 = 0x01;
    pub const HEALTH: u8 = 0x02;
    pub const FIRMWARE_SLOT: u8 = 0x03;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const COMMAND_EFFECTS: u8 = 0x05;
    pub const ANA: u8 = 0x0C;
    pub const FEATURE_EFFECTS: u8 = 0x12;
    pub const MI_COMMAND_EFFECTS: u8 = 0x13;
    pub const DISCOVERY: u8 = 0x70;
    pub const RESERVATION_NOTICE: u8 = 0x80;
}

/// Namespaces that the Changed Attached Namespace List has room for.
pub const CHANGED_NAMESPACES_MAX: usize = 1024;

/// Changed Attached Namespace List: NSIDs in increasing order, or FFFFFFFFh
/// alone if there are too many.
pub fn encode_changed_namespaces(nsids: impl ExactSizeIterator<Item = u32>) -> Vec<u8> {
    if nsids.len() > CHANGED_NAMESPACES_MAX {
        return crate::identify::encode_nsid_list([u32::MAX]);
    }
    crate::identify::encode_nsid_list(nsids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_namespaces() {
        assert_eq!(encode_changed_namespaces([2, 5].into_iter())[..12], [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        let many: Vec<u32> = (1..=1025).collect();
        let log = encode_changed_namespaces(many.iter().copied());
        assert_eq!(log[..8], [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]);
        let full = encode_changed_namespaces(many[..1024].iter().copied());
        assert_eq!(full[4092..], 1024u32.to_le_bytes());
    }
}
