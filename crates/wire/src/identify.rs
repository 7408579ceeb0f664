//! Identify: the data structures that say what a controller and its
//! namespaces are. All answers are 4,096 bytes.

mod controller;
mod descriptors;
mod namespace;

pub use controller::{
    IdentifyController, NvmController, PowerState, anacap, cmic, cntrltype, ctratt, dctype, lpa, oacs, oaes,
    ofcs, oncs, sgls, vwc,
};
pub use descriptors::{Identifier, decode_descriptors, encode_descriptors};
pub use namespace::{
    IdentifyNamespace, IndependentNamespace, LbaFormat, NvmNamespace, dlfeat, nmic, nsattr, nsfeat, nstat,
    rescap,
};

/// Length of every Identify data structure in bytes.
pub const IDENTIFY_LEN: usize = 4096;

/// Namespaces in one list.
pub const NSID_LIST_MAX: usize = IDENTIFY_LEN / 4;

/// The I/O command set identifier of the NVM command set.
pub const CSI_NVM: u8 = 0;

/// Values of CNS ("Identify - CNS Values", NVMe Base 2.1).
#[allow(missing_docs)]
pub mod cns {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    pub const CS_NAMESPACE: u8 = 0x05;
    pub const CS_CONTROLLER: u8 = 0x06;
    pub const CS_ACTIVE_NAMESPACES: u8 = 0x07;
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    pub const CONTROLLERS: u8 = 0x13;
    pub const CS_ALLOCATED_NAMESPACES: u8 = 0x1A;
    pub const CS_ALLOCATED_NAMESPACE: u8 = 0x1B;
    pub const COMMAND_SETS: u8 = 0x1C;
}

/// A list of up to 1,024 NSIDs, in the order given, ended by a zero unless
/// it is full.
pub fn encode_nsid_list(nsids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut out = vec![0; IDENTIFY_LEN];
    for (slot, nsid) in out.chunks_exact_mut(4).zip(nsids) {
        slot.copy_from_slice(&nsid.to_le_bytes());
    }
    out
}

/// The NSIDs of a list, up to its end.
pub fn decode_nsid_list(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let words = bytes.chunks_exact(4).take(NSID_LIST_MAX);
    words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).take_while(|&nsid| nsid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nsid_lists() {
        let list = encode_nsid_list([1, 0x0203, 9]);
        assert_eq!(list[..16], [1, 0, 0, 0, 3, 2, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_nsid_list(&list).collect::<Vec<_>>(), [1, 0x0203, 9]);
        let full = encode_nsid_list(1..=2000);
        assert_eq!((full.len(), decode_nsid_list(&full).last()), (4096, Some(1024)));
    }
}
