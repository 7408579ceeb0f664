//! The bytes of every frame: peers of this version know them, and they change with the version alone.

use super::*;
use longhaul_engine::Buf;

const SESSION: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const DIGEST: Digest = Digest([0xAB; 32]);

fn hex(frame: Frame) -> String {
    let (mut bytes, body) = frame.encode();
    bytes.extend(body.iter().flat_map(|body| body.iter()));
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The frame that these bytes are.
fn parsed(text: &str) -> Frame {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    let header = Header::decode(*bytes.first_chunk().expect("a header")).expect("a header");
    let (head, body) = bytes[HEADER_LEN..].split_at(header.head);
    Frame::decode(header, head, Buf::copy_of(body)).expect("a frame")
}

fn hello() -> Hello {
    let options = Options {
        hash: Hash::Strong,
        compare: Compare::Mtime,
        durability: Durability::End,
        owner: false,
        delete: true,
        dry_run: false,
        verify: false,
        xattrs: true,
    };
    let request = Request {
        destination: b"in".to_vec(),
        place: Placement::Contents,
        sources: vec![b"a".to_vec()],
        key: 7,
        options,
        filters: vec!["-*.o".into()],
        recursive: true,
        files: vec![b"x".to_vec()],
        rate: 1000,
        tune_streams: true,
        onward: Some(Onward { host: "dtn2".into(), port: 7400, streams: 4, key: None }),
        manifest: b"sums".to_vec(),
        congestion: "bbr".into(),
    };
    Hello { oldest: 4, newest: 4, session: SESSION, streams: 8, direction: CopyDirection::Pull, request }
}

fn entry(path: &[u8], kind: EntryKind, mode: u32, size: u64) -> Entry {
    Entry {
        path: RelPath::new(path).expect("a path"),
        kind,
        mode,
        uid: 1,
        gid: 2,
        mtime: Time { secs: 3, nanos: 4 },
        ctime: Time::default(),
        size,
        sparse: false,
        xattrs: Vec::new(),
    }
}

fn batch() -> Buf {
    let file = Entry {
        xattrs: vec![(b"user.x"[..].into(), b"v"[..].into())],
        ..entry(b"a", EntryKind::File, 0o644, 2)
    };
    let mut batch = Batch::default();
    batch.push(&file, &Content::Inline { len: 2, digest: DIGEST }, b"hi");
    batch.push(&link(), &Content::None, &[]);
    batch.into_body()
}

fn link() -> Entry {
    entry(b"l", EntryKind::Symlink(b"a"[..].into()), 0o777, 0)
}

fn query() -> Buf {
    let mut batch = Batch::default();
    batch.push(&link(), &Content::None, &[]);
    batch.into_body()
}

const COUNTS: Counts = Counts {
    files: 1,
    others: 2,
    bytes: 3,
    same: 4,
    wanted: 5,
    deleted: 6,
    failed: 7,
    metadata: 8,
    skipped: 9,
};

const COUNTS_HEX: &str = "0100000000000000020000000000000003000000000000000400000000000000\
    0500000000000000060000000000000007000000000000000800000000000000\
    0900000000000000";

#[test]
fn bytes_of_the_frames_of_version_4_are_fixed() {
    assert_eq!(VERSION, 4, "a new version has bytes of its own: they go here");
    let welcome = Welcome { version: 4, resume: true, by_content: false, congestion: "cubic".into() };
    let block = Frame::Block { file: 1, offset: 1 << 20, digest: DIGEST, data: Buf::copy_of(b"hi") };
    let wanted = Frame::Wanted { number: 9, wants: vec![Want { index: 5, have: [5][..].into() }] };
    let frames = [
        (
            Frame::Hello(Box::new(hello())),
            "01001f004a0000006c6f6e676861756c04000400000102030405060708090a0b0c0d0e0f0800010200696e0207000000\
             000000000103010001000001010100010061010004002d2a2e6f01000000010078e803000000000000010104006474\
             6e32e81c040000040073756d730300626272"
                .to_owned(),
        ),
        (Frame::Join(SESSION), "0200100000000000000102030405060708090a0b0c0d0e0f".into()),
        (Frame::Welcome(welcome), "03000b00000000000400010005006375626963".into()),
        (
            Frame::Batch(batch()),
            format!(
                "050000007e00000000010061a40101000000020000000300000000000000040000000200000000000000000106007573\
                 65722e780100760102000000{}6869{LINK}",
                "ab".repeat(32)
            ),
        ),
        (Frame::Query { number: 9, batch: query() }, format!("060004002800000009000000{LINK}")),
        (wanted, "07000400070000000900000005000000010005".into()),
        (
            block,
            format!("080030000200000001000000000000000000100000000000{}6869", "ab".repeat(32)),
        ),
        (
            Frame::Close(Close { file: 1, blocks: 2, good: true }),
            "09000d000000000001000000000000000200000001".into(),
        ),
        (Frame::Progress(COUNTS), format!("0b00480000000000{COUNTS_HEX}")),
        (Frame::End { whole: true }, "0c0001000000000001".into()),
        (Frame::Finished(COUNTS), format!("0d00480000000000{COUNTS_HEX}")),
        (Frame::Secure([1, 2][..].into()), "0e000200000000000102".into()),
        (
            Frame::Scanned(Scanned { files: 1, bytes: 2, done: true }),
            "11001100000000000100000000000000020000000000000001".into(),
        ),
    ];
    for (frame, bytes) in frames {
        let name = format!("{frame:?}");
        assert_eq!(hex(frame), bytes, "{name}");
        assert_eq!(hex(parsed(&bytes)), bytes, "read back: {name}");
    }
}

/// The symbolic link of [`link`], in a batch.
const LINK: &str = "0201006cff0101000000020000000300000000000000040000000000000000000000000100610000";

#[test]
fn a_newer_version_is_refused_with_a_sentence() {
    let newer = Hello { oldest: 5, newest: 6, ..hello() };
    let refusal = newer.negotiate().expect_err("no common version");
    assert_eq!(refusal.kind, RefusalKind::Version);
    assert!(
        refusal.message.contains("speaks version 4") && refusal.message.contains("5 to 6"),
        "{refusal:?}"
    );
    // The request of another version is not parsed.
    let Frame::Hello(read) = parsed(&hex(Frame::Hello(Box::new(newer.clone())))) else {
        panic!("a greeting")
    };
    assert_eq!(*read, Hello { request: Request::default(), ..newer });
}
