//! Both sides joined in memory, with virtual time: streams of different speed,
//! jobs that take random times, failures, and peers that break the rules.

use super::*;
use crate::wire::{
    Batch, BatchReader, Content, Counts, Digest, Entry, EntryKind, Frame, Hash, Op, RelPath, Time, Trouble,
};
use fastrand::Rng;
use longhaul_engine::Buf;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Virtual time, in microseconds.
type Micros = u64;

fn path(name: &str) -> RelPath {
    RelPath::new(name.as_bytes()).expect("a good name")
}

fn file(name: &str, size: u64) -> Entry {
    Entry { mtime: Time { secs: 1, nanos: 2 }, ..Entry::plain(name, EntryKind::File, size) }
}

/// What a file holds.
fn bytes(entry: &Entry) -> Vec<u8> {
    let seed = entry.path.as_bytes().iter().fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(*b));
    let mut bytes = vec![0; entry.size as usize];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Frames on their way, one queue for each stream and direction.
struct Network {
    rng: Rng,
    delay: Micros,
    /// Microseconds for a frame and a KiB of it.
    there: Vec<VecDeque<(Micros, Frame)>>,
    free: Vec<Micros>,
    back: VecDeque<(Micros, Frame)>,
}

/// The first frame of a queue, if it has arrived.
fn due(queue: &mut VecDeque<(Micros, Frame)>, now: Micros) -> Option<Frame> {
    let (at, _) = queue.front()?;
    if *at <= now { queue.pop_front().map(|(_, frame)| frame) } else { None }
}

impl Network {
    fn send(&mut self, now: Micros, stream: usize, frame: Frame) {
        let took = 10 + self.rng.u64(..50) + frame.weight() as u64 / 1024;
        self.free[stream] = self.free[stream].max(now) + took;
        self.there[stream].push_back((self.free[stream] + self.delay, recode(frame)));
    }
}

/// The frame as it comes out of the wire.
fn recode(frame: Frame) -> Frame {
    let (head, body) = frame.encode();
    let (header, head) = head.split_first_chunk().expect("a header");
    let header = crate::wire::Header::decode(*header).expect("within limits");
    assert_eq!(header.head, head.len());
    Frame::decode(header, head, body.unwrap_or_else(|| Buf::copy_of(&[]))).expect("a frame")
}

/// A disk in memory, with a few bad files.
#[derive(Default)]
struct Disk {
    files: BTreeMap<RelPath, Vec<u8>>,
    unfinished: BTreeMap<u64, Vec<u8>>,
    bad: Vec<RelPath>,
    abandoned: usize,
    settled: Option<bool>,
}

impl Disk {
    fn trouble(path: &RelPath) -> Trouble {
        Trouble { path: path.clone(), op: Op::Write, message: "bad".into() }
    }

    fn run(&mut self, job: WriteJob) -> JobResult {
        match job {
            WriteJob::Batch(body) => {
                let (mut counts, mut troubles) = (Counts::default(), Vec::new());
                for part in BatchReader::new(&body) {
                    let (entry, content, data) = part.expect("a batch");
                    if self.bad.contains(&entry.path) {
                        troubles.push(Disk::trouble(&entry.path));
                        continue;
                    }
                    if let Content::Inline { digest, .. } = content {
                        assert_eq!(Hash::Quick.of(data), digest);
                    }
                    counts.files += 1;
                    counts.bytes += data.len() as u64;
                    self.files.insert(entry.path, data.to_vec());
                }
                JobResult::Batch(counts, troubles)
            }
            WriteJob::Query { number, batch } => {
                let entries: Vec<_> = BatchReader::new(&batch).map(|part| part.expect("a batch").0).collect();
                let there =
                    |entry: &Entry| self.files.get(&entry.path).is_some_and(|f| f.len() as u64 == entry.size);
                let index =
                    entries.iter().enumerate().filter(|(_, entry)| !there(entry)).map(|(i, _)| i as u32);
                let wants: Vec<_> =
                    index.map(|index| crate::wire::Want { index, have: Box::default() }).collect();
                let counts = Counts { same: (entries.len() - wants.len()) as u64, ..Counts::default() };
                JobResult::Query { number, wants, counts, troubles: Vec::new() }
            }
            WriteJob::Block { file, offset, digest, data } => {
                if self.bad.contains(&file.entry.path) {
                    return JobResult::Block(file.number, Err(Disk::trouble(&file.entry.path)));
                }
                assert_eq!(Hash::Quick.of(&data), digest);
                let all =
                    self.unfinished.entry(file.number).or_insert_with(|| vec![0; file.entry.size as usize]);
                all[offset as usize..][..data.len()].copy_from_slice(&data);
                JobResult::Block(file.number, Ok(data.len() as u64))
            }
            WriteJob::Complete(file) => {
                let all =
                    self.unfinished.remove(&file.number).unwrap_or_else(|| vec![0; file.entry.size as usize]);
                self.files.insert(file.entry.path.clone(), all);
                JobResult::File(file.number, Counts { files: 1, ..Counts::default() }, Vec::new())
            }
            WriteJob::Abandon(file) => {
                self.unfinished.remove(&file.number);
                self.abandoned += 1;
                JobResult::Abandoned(file.number)
            }
            WriteJob::Settle { whole } => {
                self.settled = Some(whole);
                JobResult::Settled(Counts::default(), Vec::new())
            }
        }
    }
}

/// Both sides, and all between them.
struct Pair {
    now: Micros,
    sender: Sender<Entry>,
    receiver: Receiver,
    network: Network,
    disk: Disk,
    items: VecDeque<SenderItem>,
    /// Jobs under way, by when they are done.
    jobs: Vec<(Micros, WriteJob)>,
    ended: bool,
    finished: Option<Counts>,
    troubles: Vec<Trouble>,
    numbers: u64,
}

/// Blocks of the tests: small, so that there are many.
const BLOCK: usize = 4096;
const SMALL: u64 = 2048;

impl Pair {
    fn new(seed: u64, streams: usize, delay: Micros) -> Pair {
        let queues = || (0..streams).map(|_| VecDeque::new()).collect();
        let network = Network {
            rng: Rng::with_seed(seed),
            delay,
            there: queues(),
            free: vec![0; streams],
            back: VecDeque::new(),
        };
        Pair {
            now: 0,
            sender: Sender::new(streams),
            receiver: Receiver::new(streams),
            network,
            disk: Disk::default(),
            items: VecDeque::new(),
            jobs: Vec::new(),
            ended: false,
            finished: None,
            troubles: Vec::new(),
            numbers: 0,
        }
    }

    /// Hands a file to the sender, as a reader would.
    fn read(&mut self, entry: &Entry, spoil: bool) {
        let data = bytes(entry);
        if entry.size <= SMALL {
            let mut batch = Batch::default();
            let content = match data.len() {
                0 => Content::None,
                len => Content::Inline { len: len as u32, digest: Hash::Quick.of(&data) },
            };
            batch.push(entry, &content, &data);
            return self.items.push_back(SenderItem::Batch(batch.into_body()));
        }
        self.numbers += 1;
        let file = Arc::new(Outgoing { number: self.numbers, entry: entry.clone() });
        let mut blocks = 0;
        for (i, block) in data.chunks(BLOCK).enumerate() {
            let (offset, digest) = ((i * BLOCK) as u64, Hash::Quick.of(block));
            let data = Buf::copy_of(block);
            self.items.push_back(SenderItem::Block { file: Arc::clone(&file), offset, digest, data });
            blocks += 1;
        }
        self.items.push_back(SenderItem::Close { file, blocks, good: !spoil });
    }

    /// Everything that can happen now; whether anything did.
    fn step(&mut self) -> Result<bool, Violation> {
        let mut did = false;
        // Whichever stream has room takes the next item.
        let streams = self.network.free.len();
        while let Some(stream) = (0..streams).find(|s| self.network.free[*s] <= self.now)
            && let Some(item) = self.items.pop_front()
        {
            let mut frames = Vec::new();
            self.sender.frames(stream, item, &mut frames);
            frames.into_iter().for_each(|frame| self.network.send(self.now, stream, frame));
            did = true;
        }
        if self.items.is_empty() && self.sender.is_answered() && !self.ended {
            self.ended = true;
            for stream in 0..streams {
                let end = self.sender.end(true);
                self.network.send(self.now, stream, end);
            }
            did = true;
        }
        for stream in 0..streams {
            while let Some(frame) = due(&mut self.network.there[stream], self.now) {
                if let Some(SenderNotice::Trouble(trouble)) = self.receiver.handle(frame)? {
                    self.troubles.push(trouble);
                }
                did = true;
            }
        }
        while let Some(job) = self.receiver.poll_job() {
            self.jobs.push((self.now + self.network.rng.u64(..2000), job));
        }
        while let Some(at) = self.jobs.iter().position(|(at, _)| *at <= self.now) {
            let (_, job) = self.jobs.swap_remove(at);
            let done = self.disk.run(job);
            self.receiver.done(done)?;
            did = true;
        }
        while let Some(frame) = self.receiver.poll_frame() {
            self.network.back.push_back((self.now + self.network.delay, recode(frame)));
        }
        while let Some(frame) = due(&mut self.network.back, self.now) {
            did = true;
            match self.sender.handle(frame)? {
                ReceiverMessage::Wanted(wanted) => {
                    wanted.into_iter().for_each(|(entry, _)| self.read(&entry, false))
                }
                ReceiverMessage::Trouble(trouble) => self.troubles.push(trouble),
                ReceiverMessage::Finished(counts) => self.finished = Some(counts),
                ReceiverMessage::Progress(_)
                | ReceiverMessage::Planned(_)
                | ReceiverMessage::Refused(_)
                | ReceiverMessage::Tuned(_)
                | ReceiverMessage::Limit(_)
                | ReceiverMessage::Scanned(_) => {}
            }
        }
        Ok(did)
    }

    /// Runs until all is done.
    fn run(&mut self) -> Result<Counts, Violation> {
        loop {
            if self.step()? {
                continue;
            }
            if let Some(counts) = self.finished {
                return Ok(counts);
            }
            let arrivals =
                self.network.there.iter().chain([&self.network.back]).filter_map(|q| q.front().map(|f| f.0));
            let jobs = self.jobs.iter().map(|job| job.0);
            let free =
                self.network.free.iter().copied().filter(|at| *at > self.now && !self.items.is_empty());
            let next = arrivals.chain(jobs).chain(free).min();
            self.now = next.expect("something will happen").max(self.now + 1);
        }
    }
}

fn tree(rng: &mut Rng, files: u64) -> Vec<Entry> {
    let size = |rng: &mut Rng| match rng.u64(..3) {
        0 => 0,
        1 => rng.u64(..SMALL) + 1,
        _ => SMALL + 1 + rng.u64(..20 * BLOCK as u64),
    };
    (0..files).map(|i| file(&format!("d{}/f{i}", i % 3), size(rng))).collect()
}

#[test]
fn all_files_arrive_at_any_timing_of_streams_and_disks() {
    for seed in 0..100 {
        let mut rng = Rng::with_seed(seed);
        let mut pair = Pair::new(seed, 1 + rng.usize(..5), 1000);
        let files = tree(&mut rng, 40);
        files.iter().for_each(|entry| pair.read(entry, false));
        let counts = pair.run().expect("by the rules");
        assert_eq!((counts.files, counts.failed, pair.disk.settled), (40, 0, Some(true)), "seed {seed}");
        for entry in &files {
            assert!(pair.disk.files[&entry.path] == bytes(entry), "seed {seed}: {}", entry.path);
        }
        assert_eq!(pair.disk.unfinished.len(), 0);
    }
}

#[test]
fn a_file_that_fails_on_either_side_does_not_stop_the_others() {
    for seed in 0..50 {
        let mut rng = Rng::with_seed(seed);
        let mut pair = Pair::new(seed, 3, 1000);
        let mut files = tree(&mut rng, 20);
        files.push(file("spoiled", 10 * BLOCK as u64));
        files.push(file("bad", 10 * BLOCK as u64));
        files.push(file("small", 1));
        pair.disk.bad = vec![path("bad"), path("small")];
        for entry in &files {
            pair.read(entry, entry.path == path("spoiled"));
        }
        let unread = Trouble { path: path("unread"), op: Op::Read, message: "denied".into() };
        pair.items.push_back(SenderItem::Trouble(unread));
        let counts = pair.run().expect("by the rules");
        assert_eq!((counts.files, counts.failed), (20, 3), "seed {seed}");
        assert_eq!((pair.disk.abandoned, pair.disk.settled), (2, Some(false)), "seed {seed}");
        // One line each, however many blocks failed.
        let mut failed: Vec<_> = pair.troubles.iter().map(|t| t.path.to_string()).collect();
        failed.sort();
        assert_eq!(failed, ["bad", "small", "unread"], "seed {seed}");
    }
}

#[test]
fn only_wanted_files_are_sent_and_queries_wait_together() {
    let mut pair = Pair::new(1, 4, 50_000);
    let files: Vec<Entry> = (0..50_000).map(|i| file(&format!("f{i}"), 3)).collect();
    for entry in files.iter().skip(10) {
        pair.disk.files.insert(entry.path.clone(), bytes(entry));
    }
    for about in files.chunks(1000) {
        assert!(pair.sender.may_query());
        let mut batch = Batch::default();
        about.iter().for_each(|entry| batch.push(entry, &Content::Query(None), &[]));
        let number = pair.sender.query(about.to_vec());
        pair.items.push_back(SenderItem::Query { number, batch: batch.into_body() });
    }
    let counts = pair.run().expect("by the rules");
    assert_eq!((counts.files, counts.same), (10, 49_990));
    // There and back for the questions, for the files and the end: not for each file.
    assert!(pair.now < 4 * 50_000 + 60_000, "{} µs", pair.now);
}

#[test]
fn no_file_costs_a_round_trip() {
    let mut pair = Pair::new(1, 4, 22_500);
    for i in 0..2000 {
        pair.read(&file(&format!("f{i}"), 100), false);
    }
    pair.run().expect("by the rules");
    // One way for the data and one for the answer, besides what the line takes.
    assert!(pair.now < 2 * 22_500 + 2000 * 61 / 4 + 5000, "{} µs", pair.now);
}

/// What a sending side sends first to announce a file.
fn announcement(number: u64, entry: &Entry) -> Frame {
    let mut batch = Batch::default();
    batch.push(entry, &Content::Blocks(number), &[]);
    Frame::Batch(batch.into_body())
}

fn block(file: u64, offset: u64, len: usize) -> Frame {
    Frame::Block { file, offset, digest: Digest::default(), data: Buf::copy_of(&vec![0; len]) }
}

#[test]
fn a_sender_that_breaks_the_rules_is_refused() {
    let close = |file, blocks| Frame::Close(crate::wire::Close { file, blocks, good: true });
    let end = || Frame::End { whole: true };
    let large = file("large", 10_000);
    let cases: Vec<(&str, Vec<Frame>)> = vec![
        ("a block of no file", vec![block(1, 0, 10)]),
        ("a block behind the end", vec![announcement(1, &large), block(1, 9_999, 2)]),
        ("a block at the end of numbers", vec![announcement(1, &large), block(1, u64::MAX, 2)]),
        (
            "another file under its number",
            vec![announcement(1, &large), announcement(1, &file("other", 10_000))],
        ),
        (
            "more blocks than it says",
            vec![announcement(1, &large), block(1, 0, 1), block(1, 1, 1), close(1, 1)],
        ),
        ("a second end of a file", vec![announcement(1, &large), close(1, 1), close(1, 1)]),
        ("an end of no file", vec![close(7, 0)]),
        ("an end before that of a file", vec![announcement(1, &large), end()]),
        ("something behind the end", vec![end(), end()]),
        ("an answer", vec![Frame::Finished(Counts::default())]),
        ("an empty batch", vec![Frame::Batch(Buf::copy_of(&[]))]),
        ("a batch of noise", vec![Frame::Batch(Buf::copy_of(&[9; 100]))]),
    ];
    for (name, frames) in cases {
        let mut receiver = Receiver::new(1);
        let result = frames.into_iter().try_for_each(|frame| receiver.handle(frame).map(drop));
        assert!(result.is_err(), "{name}");
    }
    let mut receiver = Receiver::new(1);
    let ask = |number| Frame::Query { number, batch: Buf::copy_of(&[]) };
    let result = (0..100).try_for_each(|number| receiver.handle(ask(number)).map(drop));
    assert_eq!(result, Err(Violation::TooMany("existence queries")));
    let mut receiver = Receiver::new(1);
    let many = (0..).map(|number| announcement(number, &file("x", 10_000)));
    let result = many.take(OPEN_FILES + 1).try_for_each(|frame| receiver.handle(frame).map(drop));
    assert_eq!(result, Err(Violation::TooMany("files at once")));
}

#[test]
fn a_receiver_that_breaks_the_rules_is_refused() {
    let wanted = |number, index: &[u32]| Frame::Wanted {
        number,
        wants: index.iter().map(|i| crate::wire::Want { index: *i, have: Box::default() }).collect(),
    };
    for frame in
        [wanted(7, &[]), wanted(0, &[2]), wanted(0, &[1, 0]), wanted(0, &[0, 0]), Frame::End { whole: true }]
    {
        let mut sender = Sender::new(1);
        assert_eq!(sender.query(vec!["a", "b"]), 0);
        assert!(sender.handle(frame.clone()).is_err(), "{frame:?}");
    }
}

#[test]
fn random_frames_never_panic() {
    let mut rng = Rng::with_seed(5);
    for _ in 0..20_000 {
        let mut header = [0; crate::wire::HEADER_LEN];
        header.iter_mut().for_each(|b| *b = rng.u8(..18));
        header[1] = 0;
        header[3..8].fill(0);
        header[4] = rng.u8(..64);
        let Ok(header) = crate::wire::Header::decode(header) else { continue };
        let noise = |rng: &mut Rng, len| (0..len).map(|_| rng.u8(..5)).collect::<Vec<_>>();
        let (head, body) = (noise(&mut rng, header.head), noise(&mut rng, header.body));
        if let Ok(frame) = Frame::decode(header, &head, Buf::copy_of(&body)) {
            // Whatever it is, it is taken or refused.
            let _ = Receiver::new(1).handle(frame.clone());
            let _ = Sender::<u8>::new(1).handle(frame);
        }
    }
}

#[test]
fn files_that_are_announced_weigh_no_more_than_the_bound() {
    let mut receiver = Receiver::new(1);
    let mut announced = 0;
    let refused = loop {
        let value = vec![1; 60_000].into_boxed_slice();
        let entry =
            Entry { xattrs: vec![((*b"user.x").into(), value)], ..file(&announced.to_string(), 1 << 20) };
        let mut batch = Batch::default();
        batch.push(&entry, &Content::Blocks(announced), &[]);
        if let Err(e) = receiver.handle(Frame::Batch(batch.into_body())) {
            break e;
        }
        announced += 1;
    };
    assert_eq!(refused, Violation::TooMany("files at once"));
    assert!(announced as usize <= OPEN_BYTES / 60_000, "{announced}");
}
