//! The bytes of every structure on a member: arrays that exist have them, and they change with the
//! version of the superblock alone, which is that of all of them.

use super::geometry::BLOCK;
use super::heartbeat::Heartbeat;
use super::history::{ERAS_MAX, History};
use super::record;
use super::section::{Added, Growth};
use super::sums_page::{self, entry_of};
use super::superblock::{MAX_SPARES, Superblock, Unknown, added_max, tests::example};
use std::time::Duration;
use uuid::Uuid;

/// The block that begins with these bytes, and has zeroes behind them.
fn block(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
    let mut block: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    block.resize(BLOCK as usize, 0);
    block
}

/// A superblock of version 3: four members and a spare, the second member in a resync.
const SUPERBLOCK: &str = "9d8769054c48415252415900030000000000000000000000000000000000006300000000000000000000000000000002\
     736372617463680000000000000000000000000000000000000000000000000000000000000000000000000000000000\
     0000000000000000000000000000000003000400010001000000010000000000ec3e0000000000000000000100000000\
     000010000000000000001401000000000700000000000000030000000000000000000000000000000000000000000000\
     00010100000000000000000000000100000000000000ffffffffffffffff000000000000000000000000000000020400\
     010039300000000000000100000000000000ffffffffffffffff00000000000000000000000000000003010000000000\
     0000000000000100000000000000ffffffffffffffff0000000000000000000000000000000401000000000000000000\
     00000100000000000000ffffffffffffffff000000000000000000000000000003e80000000000000000000000000000\
     004d00f15365000000000600000000000000060000000000000006000000000000000600000000000000010000000000\
     0000000000000000000000050600000000000000";

/// A heartbeat of a stopped array.
const HEARTBEAT: &str = "813d0be34c48424541540000000000000000000000000000000000010000000000000000000000000000000203000000\
     0000000001000700000000000000dc0500000000000000000000000000000000000000000009c409000000000000";

/// The head of a commit record.
const RECORD: &str = "fed5a2874c484a4f55524e4c000000000000000000000000000000010300000000000000003000000000000000e01000\
     00000000090000000000000000001000000000004d00000000000000020002000200000000300000ee2939a405000000\
     0000000008000000000000000200001000000010000001010000000000200000";

#[test]
fn the_bytes_of_a_superblock_are_fixed() {
    let known = block(SUPERBLOCK);
    assert_eq!(example(4, 1).encode(), known);
    assert_eq!(Superblock::decode(&known), Some(example(4, 1)));
}

/// What a superblock of version 4 has behind the fields of version 3: two sections, with the first row
/// of each and the rows that it has room for.
const SECTIONS: &str = "0200ec3e0000000000008038010000000000905f010000000000e093040000000000";

#[test]
fn the_bytes_of_an_array_that_has_grown_are_fixed() {
    let added = [Added { first: 16_108, room: 80_000 }, Added { first: 90_000, room: 300_000 }];
    let mut grown = example(4, 1);
    grown.geometry.rows = 200_000;
    grown.geometry.growth = Growth::of(&added).expect("two");
    let encoded = grown.encode();
    let behind = SUPERBLOCK.len() / 2;
    assert_eq!(encoded[12..16], [4, 0, 0, 0]);
    assert!(encoded[behind..] == block(SECTIONS)[..BLOCK as usize - behind]);
    assert_eq!(Superblock::decode(&encoded), Some(grown));
}

#[test]
fn a_superblock_of_a_newer_version_is_refused_with_a_sentence() {
    let mut newer = block(SUPERBLOCK);
    newer[12] = 5;
    super::bytes::seal(&mut newer);
    assert_eq!(Superblock::decode(&newer), None);
    let why = Superblock::unknown(&newer).map(|unknown: Unknown| unknown.to_string());
    assert_eq!(why.as_deref(), Some("is of version 5, and this program knows version 4"));
}

#[test]
fn the_bytes_of_a_heartbeat_are_fixed() {
    let beat = Heartbeat {
        array: Uuid::from_u128(1),
        session: Uuid::from_u128(2),
        counter: 3,
        stopped: true,
        confirmed: 7,
        elapsed: Duration::from_millis(1500),
        before: Some((Uuid::from_u128(9), Duration::from_millis(2500))),
    };
    let known = block(HEARTBEAT);
    assert_eq!(beat.encode()[..], known);
    assert_eq!(Heartbeat::decode(&known), Some(beat));
}

#[test]
fn the_bytes_of_a_journal_record_are_fixed() {
    let bytes = record::tests::example().encode(Uuid::from_u128(1));
    assert_eq!(bytes[..BLOCK as usize], block(RECORD));
    assert_eq!(bytes[BLOCK as usize..], [vec![7; 4096], vec![8; 8192]].concat());
}

#[test]
fn the_bytes_of_a_page_of_checksums_are_fixed() {
    let counted: Vec<u8> = (0..BLOCK).map(|at| at as u8).collect();
    let entries = [entry_of(&[0; BLOCK as usize]), entry_of(&[0xFF; BLOCK as usize]), entry_of(&counted)];
    let page = block("000000009abf38bdbbbf8804");
    assert_eq!(sums_page::encode(&entries)[..], page);
    assert_eq!(sums_page::decode(&page)[..4], [0, 0xBD38_BF9A, 0x0488_BFBB, 0]);
}

/// An array of four members that has grown twice.
fn grown() -> Superblock {
    let mut block = example(4, 1);
    for size in [3 << 30, 20 << 30] {
        block.geometry = block.geometry.grown(size).expect("grows");
    }
    assert_eq!(block.geometry.growth.added().len(), 2);
    block
}

#[test]
fn the_bytes_of_version_4_never_change() {
    let block = grown().encode();
    assert_eq!(block[4..16], *b"LHARRAY\0\x04\0\0\0");
    assert_eq!(crc_fast::crc32_iscsi(&block), 1_745_537_747, "of all bytes");
    assert_eq!(Superblock::decode(&block), Some(grown()));
}

#[test]
fn sections_that_no_growth_makes_are_refused() {
    let with = |added: &[(u64, u64)]| {
        let mut block = grown();
        let added: Vec<Added> =
            added.iter().map(|(first, room)| Added { first: *first, room: *room }).collect();
        block.geometry.growth = Growth::of(&added).expect("few");
        let encoded = block.encode();
        Superblock::decode(&encoded).is_some()
    };
    let rows = grown().geometry.rows;
    assert!(with(&[(7, 2 * rows)]));
    for wrong in [&[(0, rows)][..], &[(7, 9)], &[(7, u64::MAX)], &[(rows, rows)], &[(9, rows), (9, rows)]] {
        assert!(!with(wrong), "{wrong:?}");
    }
}

#[test]
fn the_largest_superblock_has_room_for_a_section() {
    assert_eq!((added_max(64), added_max(61), added_max(2)), (1, 8, 8));
    let mut block = example(64, MAX_SPARES);
    block.history = History::default();
    (0..ERAS_MAX as u64).for_each(|n| block.history.begin(Uuid::from_u128(n.into()), n + 1));
    block.generation = 1 << 40;
    block.geometry = block.geometry.grown(1 << 35).expect("grows");
    assert_eq!(Superblock::decode(&block.encode()), Some(block));
}
