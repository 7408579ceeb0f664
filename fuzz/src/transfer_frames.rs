//! Everything that either side of a copy may send, as bytes.
//!
//! Input: a byte of settings, then a stream of frames as it comes on a connection.
//! Whatever can be decoded is encoded within the limits, and decoded again as the
//! same; both sides of the protocol take it without a panic, and what the receiving
//! side holds stays within its bounds.

use longhaul_engine::Buf;
use longhaul_transfer::Filter;
use longhaul_transfer::session::{JobResult, OPEN_QUERIES, Receiver, Sender, WriteJob};
use longhaul_transfer::wire::{
    BODY_MAX, BatchReader, Content, Counts, Entry, EntryKind, Frame, HEAD_MAX, HEADER_LEN, Header,
    XATTR_BYTES_MAX, XATTRS_MAX,
};

/// Takes a frame from the front; none where the rest is no whole one.
fn take(bytes: &mut &[u8]) -> Option<Frame> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let header = Header::decode(*header).ok()?;
    assert!(header.head <= HEAD_MAX && header.body <= BODY_MAX, "beyond the limits");
    let (head, rest) = rest.split_at_checked(header.head)?;
    let (body, rest) = rest.split_at_checked(header.body)?;
    *bytes = rest;
    Frame::decode(header, head, Buf::copy_of(body)).ok()
}

/// The frame as it travels.
fn encode(frame: Frame) -> Vec<u8> {
    let (mut bytes, body) = frame.encode();
    body.iter().for_each(|body| bytes.extend_from_slice(body));
    bytes
}

/// A decoded frame can be encoded, and is decoded as the same: texts for people are escaped once.
fn round_trip(frame: &Frame) {
    let mut said = encode(frame.clone());
    for _ in 0..2 {
        let again = take(&mut &said[..]).expect("what this side says is understood");
        let next = encode(again);
        let same = next == said;
        said = next;
        if same {
            return;
        }
    }
    panic!("{frame:?} changes each time that it is said");
}

fn check(entry: &Entry, content: &Content, data: &[u8]) {
    let name = entry.path.as_bytes();
    let component = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    assert!(name.is_empty() || name.split(|b| *b == b'/').all(component), "{entry:?} leads out");
    assert!(!name.is_empty() || entry.kind == EntryKind::Directory);
    assert!(entry.mode <= 0o7777 && entry.xattrs.len() <= XATTRS_MAX);
    let bytes: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(bytes <= XATTR_BYTES_MAX);
    for (name, _) in &entry.xattrs {
        assert!(name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_"), "{entry:?}");
    }
    if let Content::Inline { len, .. } = content {
        assert_eq!(*len as usize, data.len());
    }
    let _ = Filter::default().takes(&entry.path);
}

/// Does a job as a disk that takes everything would.
fn work(job: WriteJob) -> JobResult {
    match job {
        WriteJob::Batch(body) => {
            let entries = BatchReader::new(&body).take_while(Result::is_ok).count() as u64;
            JobResult::Batch(Counts { others: entries, ..Counts::default() }, Vec::new())
        }
        WriteJob::Query { number, .. } => {
            JobResult::Query { number, wants: Vec::new(), counts: Counts::default(), troubles: Vec::new() }
        }
        WriteJob::Block { file, data, .. } => JobResult::Block(file.number, Ok(data.len() as u64)),
        WriteJob::Complete(file) => {
            JobResult::File(file.number, Counts { files: 1, ..Counts::default() }, Vec::new())
        }
        WriteJob::Abandon(file) => JobResult::Abandoned(file.number),
        WriteJob::Settle { .. } => JobResult::Settled(Counts::default(), Vec::new()),
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((settings, mut bytes)) = data.split_first() else { return };
    let streams = usize::from(settings & 3) + 1;
    // Jobs are done at once, or when the stream has ended.
    let later = settings & 4 != 0;
    let (mut receiver, mut sender) = (Some(Receiver::new(streams)), Sender::<()>::new(streams));
    for _ in 0..settings >> 6 {
        sender.query(vec![(); 3]);
    }
    let mut waiting = Vec::new();
    while let Some(frame) = take(&mut bytes) {
        round_trip(&frame);
        if let Frame::Batch(body) | Frame::Query { batch: body, .. } = &frame {
            for (entry, content, data) in BatchReader::new(body).flatten() {
                check(&entry, &content, data);
            }
        }
        let _ = sender.handle(frame.clone());
        let Some(side) = &mut receiver else { continue };
        if side.handle(frame).is_err() {
            receiver = None;
            continue;
        }
        waiting.extend(std::iter::from_fn(|| side.poll_job()));
        while !later && let Some(job) = waiting.pop() {
            if side.done(work(job)).is_err() {
                receiver = None;
                waiting.clear();
                break;
            }
            waiting.extend(std::iter::from_fn(|| side.poll_job()));
        }
        assert!(waiting.iter().filter(|job| matches!(job, WriteJob::Query { .. })).count() <= OPEN_QUERIES);
    }
    let Some(mut side) = receiver else { return };
    while let Some(job) = waiting.pop() {
        if side.done(work(job)).is_err() {
            return;
        }
        waiting.extend(std::iter::from_fn(|| side.poll_job()));
    }
    assert_eq!(side.open(), 0);
    while let Some(frame) = side.poll_frame() {
        round_trip(&frame);
    }
}
