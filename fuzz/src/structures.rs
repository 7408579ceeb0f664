//! Data structures of Identify, log pages, features and Fabrics commands.
//!
//! Input: a byte that selects the structure, and its bytes. Bytes that can be decoded are encoded
//! and decoded again, with the same result.

use longhaul_proto::controller::{NamespaceView, io, parse_create};
use longhaul_wire::command::{DsmRange, Sqe};
use longhaul_wire::fabrics::{Cap, Cc, ConnectData, ConnectResponse, Crto, Csts, InvalidParameter, Version};
use longhaul_wire::feature::{AsyncEvent, NumberOfQueues};
use longhaul_wire::identify::{
    IDENTIFY_LEN, IdentifyController, IdentifyNamespace, IndependentNamespace, NvmController, NvmNamespace,
    decode_descriptors, decode_nsid_list, encode_nsid_list,
};
use longhaul_wire::log::{
    AnaState, CommandEffects, DiscoveryEntry, DiscoveryHeader, ErrorEntry, FeatureEffects, FirmwareSlots,
    SmartHealth, SupportedPages, decode_ana, encode_ana,
};
use longhaul_wire::management::{
    NamespaceCreate, NamespaceLabel, decode_controller_list, encode_controller_list,
};
use longhaul_wire::nqn::{self, Nqn};
use longhaul_wire::registration::{Registration, RegistrationHeader, entfmt};
use uuid::Uuid;

macro_rules! round_trip {
    ($bytes:expr, $($name:ident),*) => {{
        // Short input stands for the start of the structure.
        let mut full = $bytes.to_vec();
        full.resize(full.len().max(IDENTIFY_LEN), 0);
        $(
            assert_eq!($name::decode(&full[..$name::LEN - 1]), None, "cut short");
            let decoded = $name::decode(&full).expect("long enough");
            assert_eq!($name::decode(&decoded.encode()).as_ref(), Some(&decoded));
            assert!(!format!("{decoded:?}").is_empty());
        )*
    }};
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&which, bytes)) = data.split_first() else { return };
    match which % 8 {
        0 => round_trip!(bytes, IdentifyController, NvmController),
        1 => round_trip!(bytes, IdentifyNamespace, IndependentNamespace, NvmNamespace),
        2 => round_trip!(bytes, ErrorEntry, SmartHealth, FirmwareSlots, DiscoveryHeader, DiscoveryEntry),
        3 => lists(bytes),
        4 => effects(bytes),
        5 => names(bytes),
        6 => registers(bytes),
        _ => commands(bytes),
    }
    if let Some(controller) = IdentifyController::decode(bytes) {
        let _ = (controller.in_capsule_len(), controller.max_transfer(which.into()));
    }
    if let Some(namespace) = IdentifyNamespace::decode(bytes) {
        let _ = namespace.format();
    }
    management(bytes);
    registration(bytes);
}

/// What targets register: the data as it is, and with its own length.
fn registration(bytes: &[u8]) {
    let mut sized = bytes.to_vec();
    sized.resize(sized.len().max(RegistrationHeader::LEN), 0);
    let len = u32::try_from(sized.len()).expect("short");
    sized[..4].copy_from_slice(&len.to_le_bytes());
    for data in [bytes, &sized] {
        let Some(read) = Registration::decode(data) else { continue };
        assert!(Registration::len_with(read.entries.len()) <= data.len(), "no more entries than bytes");
        if read.header.entfmt == entfmt::BASIC {
            assert_eq!(Registration::decode(&read.encode()).as_ref(), Some(&read));
        }
    }
}

/// What comes with commands that manage namespaces.
fn management(bytes: &[u8]) {
    if let Some(list) = decode_controller_list(bytes) {
        assert_eq!(decode_controller_list(&encode_controller_list(&list)), Some(list));
    }
    if let Ok(label) = NamespaceLabel::decode(bytes) {
        // A label of zeroes may be longer than there is room for; what it says is not.
        let encoded = label.encode().expect("it had room before");
        assert_eq!(NamespaceLabel::decode(&encoded), Ok(label));
    }
    let mut create = bytes.to_vec();
    create.resize(NamespaceCreate::LEN, 0);
    if let Ok(new) = parse_create(&create) {
        assert!(new.blocks > 0 && (9..=12).contains(&new.block_shift));
        assert!(new.blocks.checked_mul(1 << new.block_shift).is_some());
    }
}

fn lists(bytes: &[u8]) {
    let nsids: Vec<_> = decode_nsid_list(bytes).collect();
    assert!(nsids.len() <= 1024 && !nsids.contains(&0));
    assert!(decode_nsid_list(&encode_nsid_list(nsids.iter().copied())).eq(nsids.iter().copied()));
    let descriptors = decode_descriptors(bytes);
    assert!(descriptors.len() <= bytes.len() / 4, "bounded by the length of the data");
    if let Some(log) = decode_ana(bytes) {
        let entries: usize = log.groups.iter().map(|group| group.nsids.len()).sum();
        assert!(entries <= bytes.len() / 4, "bounded by the length of the data");
        assert_eq!(decode_ana(&encode_ana(&log)), Some(log));
    }
}

fn effects(bytes: &[u8]) {
    let index = bytes.first().copied().unwrap_or_default();
    let commands = CommandEffects::from_bytes(bytes);
    let _ = (commands.admin(index), commands.io(index));
    assert_eq!(commands.into_bytes().len(), CommandEffects::LEN);
    let features = FeatureEffects::from_bytes(bytes);
    let _ = features.get(index);
    assert_eq!(features.into_bytes().len(), FeatureEffects::LEN);
    let pages = SupportedPages::from_bytes(bytes);
    let _ = pages.has(index);
    assert_eq!(pages.into_bytes().len(), SupportedPages::LEN);
}

fn names(bytes: &[u8]) {
    if let Some(data) = ConnectData::view(bytes) {
        assert!(!format!("{data:?}").is_empty());
    }
    if let Some(field) = bytes.first_chunk::<{ nqn::NQN_FIELD_LEN }>()
        && let Ok(name) = nqn::from_field(field)
    {
        assert!((1..=nqn::NQN_MAX).contains(&name.len()));
        assert_eq!(nqn::from_field(&nqn::to_field(name)), Ok(name));
    }
    if let Ok(name) = std::str::from_utf8(bytes)
        && let Ok(nqn) = Nqn::new(name)
    {
        assert_eq!(nqn::from_field(&nqn.to_field()), Ok(name), "a valid name fits its field");
    }
}

fn registers(bytes: &[u8]) {
    let Some((raw, _)) = bytes.split_first_chunk::<8>() else { return };
    let wide = u64::from_le_bytes(*raw);
    let low = wide as u32;
    let shown = format!(
        "{:?} {:?} {:?} {:?} {:?} {} {:?}",
        Cap(wide),
        Cc(low),
        Csts(low),
        Crto(low),
        Version(low),
        Version(low),
        Cc(low).shutdown()
    );
    assert!(!shown.is_empty());
    let queues = NumberOfQueues::from_dword(low);
    assert_eq!(NumberOfQueues::from_dword(queues.to_dword()), queues);
    let event = AsyncEvent::from_dw0(low);
    assert_eq!(AsyncEvent::from_dw0(event.to_dw0()), event);
    assert_eq!(ConnectResponse::from_dw0(low).to_dw0(), low);
    let parameter = InvalidParameter::from_dw0(low);
    assert_eq!(InvalidParameter::from_dw0(parameter.to_dw0()), parameter);
}

/// I/O commands stay within their namespace.
fn commands(bytes: &[u8]) {
    let Some(sqe) = Sqe::read(bytes) else { return };
    let list = &bytes[64..];
    for (blocks, block_shift) in [(1, 9), (1000, 12), (u64::MAX >> 12, 12), (u64::MAX >> 9, 9)] {
        let ns = namespace(blocks, block_shift, bytes[0]);
        let limits = io::Limits { max_transfer: 1 << 20 };
        if let Ok(command) = io::parse(&sqe, Some(&ns), &limits) {
            check_range(command, &ns, &limits);
        }
        let _ = io::parse(&sqe, None, &limits);
        let ranges = u16::from(bytes[1]) + 1;
        if let Ok(all) = io::deallocate_ranges(list, ranges, &ns) {
            assert!(list.len() >= usize::from(ranges) * DsmRange::LEN);
            all.for_each(|(offset, len)| within(offset, len, &ns));
        }
    }
}

fn within(offset: u64, len: u64, ns: &NamespaceView) {
    let end = offset.checked_add(len).expect("no wrap");
    assert!(end <= ns.blocks << ns.block_shift, "within the namespace");
    assert!(len > 0 && (offset | len).is_multiple_of(1 << ns.block_shift), "whole blocks");
}

pub(crate) fn check_range(command: io::IoCommand, ns: &NamespaceView, limits: &io::Limits) {
    use io::IoCommand as C;
    match command {
        C::Read { offset, len, .. } | C::Write { offset, len, .. } | C::Compare { offset, len } => {
            within(offset, len.into(), ns);
            assert!(len <= limits.max_transfer);
        }
        C::Verify { offset, len } | C::WriteZeroes { offset, len, .. } => within(offset, len, ns),
        C::Deallocate { ranges } | C::Hint { ranges } => assert!((1..=256).contains(&ranges)),
        C::Report { len } => assert!(len > 0 && len.is_multiple_of(4) && len <= limits.max_transfer),
        C::Flush | C::FlushAll | C::Register(_) | C::Acquire(_) | C::Release(_) => {}
    }
    let changes = matches!(command, C::Write { .. } | C::WriteZeroes { .. } | C::Deallocate { .. });
    assert!(!(changes && ns.read_only), "nothing changes a read-only namespace");
}

pub(crate) fn namespace(blocks: u64, block_shift: u8, bits: u8) -> NamespaceView {
    NamespaceView {
        nsid: 1,
        blocks,
        block_shift,
        granularity: 4096,
        optimal_io: 0,
        uuid: Some(Uuid::from_u128(7)),
        nguid: [7; 16],
        read_only: bits & 0x80 != 0,
        volatile_cache: true,
        discard: true,
        discard_zeroes: true,
        shared: true,
        reader: bits & 0x40 != 0,
        persistent_reservations: bits & 0x20 != 0,
        ana_group: 1,
        ana_state: AnaState::from_code(if bits & 0x40 != 0 { bits } else { 1 }),
    }
}
