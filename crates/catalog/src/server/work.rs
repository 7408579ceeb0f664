//! The threads that read and change the catalog for the one that serves the sockets.

use super::{Served, ServerCounts};
use crate::error::{Error, Result};
use crate::file::{Changed, FileSnapshot};
use crate::secure::{Denied, Peer, Secure};
use crate::types::{Entry, Event, Revision};
use crate::wire::{Change, KeyRange, PIECE, Piece, Question, Reply, entry_size};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Threads that read.
const READERS: usize = 4;
/// Changes in one transaction of redb: beyond these, others wait for the next one.
const BATCH: usize = 1024;
/// Bytes of events that are read at a time for a watch that is behind.
const CATCH_UP: usize = 256 << 10;

/// Wakes the thread that serves the sockets.
#[derive(Clone, Debug)]
pub(super) struct Wake(Arc<OwnedFd>);

impl Wake {
    pub(super) fn wake(&self) {
        // It is full only if the thread has been woken often already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// What is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct To {
    pub(super) connection: u64,
    /// Id of the frame.
    pub(super) id: u64,
    /// Bytes of the frame.
    pub(super) size: usize,
}

/// What a reader does.
pub(super) enum Job {
    /// The next piece of an answer.
    Read(To, Box<Cursor>),
    /// Changes for a watch that is behind.
    CatchUp(To, Vec<u8>, Revision),
    /// A step of a handshake.
    Handshake(u64, Box<dyn Secure>, Vec<u8>),
}

/// What a thread has done.
pub(super) enum Answer {
    /// An answer to a change.
    Changed(To, Reply),
    /// A piece of an answer, and what goes on with it.
    Piece(To, Reply, Option<Box<Cursor>>),
    /// All changes from one revision to another, of a watch that was behind.
    CaughtUp(To, Result<(Revision, Vec<Event>)>),
    /// A step of a handshake: what is to be sent, and whether it is done.
    Handshake(u64, Box<dyn Secure>, Vec<u8>, std::result::Result<Option<Peer>, Denied>),
    /// All changes of the catalog up to a revision, behind those before.
    Events(Arc<Vec<Event>>, Revision),
    /// Changes from one revision on were lost: each watch is behind.
    Gap(Revision),
}

/// What takes answers.
#[derive(Clone)]
pub(super) struct Answers {
    answers: Sender<Answer>,
    wake: Wake,
    ended: Arc<AtomicBool>,
}

impl Answers {
    /// No answer is taken any more.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn give(&self, answer: Answer) -> bool {
        let is_taken = self.answers.send(answer).is_ok();
        self.wake.wake();
        is_taken
    }
}

/// Where the thread of the sockets gives work, and has answers from.
pub(super) struct Work {
    pub(super) jobs: Sender<Job>,
    pub(super) changes: Sender<(To, Change)>,
    pub(super) done: Receiver<Answer>,
    pub(super) answers: Answers,
    pub(super) wake: Wake,
    /// The revision that the first events follow.
    pub(super) revision: Revision,
}

/// Starts the threads. They end when what they get work from is dropped.
pub(super) fn start(
    served: &Arc<Served>,
    counts: &Arc<ServerCounts>,
) -> io::Result<(Work, Vec<JoinHandle<()>>, Wake)> {
    let wake = Wake(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
    let (answer, done) = channel();
    let answers = Answers { answers: answer, wake: wake.clone(), ended: Arc::default() };
    let (jobs, jobs_out) = channel();
    let jobs_out = Arc::new(Mutex::new(jobs_out));
    let mut threads = Vec::new();
    for number in 0..READERS {
        let (served, jobs, answers) = (Arc::clone(served), Arc::clone(&jobs_out), answers.clone());
        let counts = Arc::clone(counts);
        let name = format!("catalog-read-{number}");
        threads.push(std::thread::Builder::new().name(name).spawn(move || {
            read(&served, &jobs, &answers, &counts);
        })?);
    }
    let (changes, changes_out) = channel();
    let (served, counts, to) = (Arc::clone(served), Arc::clone(counts), answers.clone());
    threads.push(std::thread::Builder::new().name("catalog-write".into()).spawn(move || {
        write(&served, &changes_out, &to, &counts);
    })?);
    Ok((Work { jobs, changes, done, answers, wake: wake.clone(), revision: 0 }, threads, wake))
}

fn read(served: &Served, jobs: &Mutex<Receiver<Job>>, answers: &Answers, counts: &ServerCounts) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let answer = match job {
            Err(_) => return,
            Ok(Job::Read(to, mut cursor)) => match cursor.next(served) {
                Ok(piece) => {
                    let more = piece.more;
                    ServerCounts::add(&counts.reads, u64::from(!more));
                    Answer::Piece(to, Reply::Entries(piece), more.then_some(cursor))
                }
                Err(e) => Answer::Piece(to, Reply::Failed(e), None),
            },
            Ok(Job::CatchUp(to, prefix, from)) => {
                Answer::CaughtUp(to, served.now().changes(&prefix, from, CATCH_UP))
            }
            Ok(Job::Handshake(connection, mut secure, input)) => {
                let mut output = Vec::new();
                let result = secure.handshake(&input, &mut output);
                Answer::Handshake(connection, secure, output, result)
            }
        };
        if !answers.give(answer) {
            return;
        }
    }
}

fn write(served: &Served, waiting: &Receiver<(To, Change)>, answers: &Answers, counts: &ServerCounts) {
    while let Ok(first) = waiting.recv() {
        let (to, changes): (Vec<To>, Vec<Change>) =
            std::iter::once(first).chain(waiting.try_iter()).take(BATCH).unzip();
        let catalog = served.now();
        ServerCounts::add(&counts.batches, 1);
        ServerCounts::add(&counts.changes, changes.len() as u64);
        match catalog.batch(&changes) {
            Ok(results) => {
                for (to, result) in to.into_iter().zip(results) {
                    let reply = match result {
                        Ok(Changed::Committed(commit)) => Reply::Committed(commit),
                        Ok(Changed::Granted(lease)) => Reply::Granted(lease),
                        Ok(Changed::Kept(left)) => Reply::Kept(left),
                        Ok(Changed::Revoked) => Reply::Revoked,
                        Err(e) => Reply::Failed(e),
                    };
                    answers.give(Answer::Changed(to, reply));
                }
            }
            Err(e) => {
                tracing::error!("{e}");
                ServerCounts::add(&counts.failed, changes.len() as u64);
                if matches!(e, Error::Failed { .. }) {
                    served.open_again(&catalog);
                }
                for to in to {
                    answers.give(Answer::Changed(to, Reply::Failed(e.clone())));
                }
            }
        }
    }
}

/// An answer that is read piece by piece, all as of one revision.
pub(super) struct Cursor {
    question: Question,
    /// None before the first piece.
    snapshot: Option<FileSnapshot>,
    /// Keys that were looked up.
    keys: usize,
    /// The last entry of the part that was read.
    after: Option<Vec<u8>>,
    /// Entries of the part that are left.
    most: u64,
    /// Of an older revision: all that are left.
    old: Option<(Revision, VecDeque<Entry>)>,
}

impl Cursor {
    pub(super) fn new(mut question: Question) -> Cursor {
        question.keys.sort_unstable();
        question.keys.dedup();
        let most = question.part.as_ref().and_then(|part| part.most).unwrap_or(u64::MAX);
        Cursor { question, snapshot: None, keys: 0, after: None, most, old: None }
    }

    fn next(&mut self, served: &Served) -> Result<Piece> {
        let snapshot = match &self.snapshot {
            Some(snapshot) => snapshot,
            None => {
                let snapshot = served.now().snapshot()?;
                if let Some(KeyRange { prefix, at: Some(at), .. }) = &self.question.part
                    && *at != snapshot.revision()
                {
                    let mut found = snapshot.range(prefix, Some(*at))?;
                    if let Some(after) = &self.question.part.as_ref().and_then(|part| part.after.clone()) {
                        found.entries.retain(|entry| entry.key > *after);
                    }
                    found.entries.truncate(usize::try_from(self.most).unwrap_or(usize::MAX));
                    self.old = Some((found.revision, found.entries.into()));
                }
                self.snapshot.insert(snapshot)
            }
        };
        let mut piece = Piece { revision: snapshot.revision(), bare: self.question.bare, ..Piece::default() };
        let mut room = PIECE;
        while let Some(key) = self.question.keys.get(self.keys) {
            if room == 0 {
                piece.more = true;
                return Ok(piece);
            }
            self.keys += 1;
            if let Some(entry) = snapshot.get(key)? {
                room = room.saturating_sub(entry_size(&entry));
                piece.entries.push(entry);
                piece.keys += 1;
            }
        }
        let Some(part) = &self.question.part else { return Ok(piece) };
        if let Some((revision, entries)) = &mut self.old {
            piece.revision = *revision;
            while room > 0 {
                let Some(entry) = entries.pop_front() else { return Ok(piece) };
                room = room.saturating_sub(entry_size(&entry));
                piece.entries.push(entry);
            }
            piece.more = !entries.is_empty();
            return Ok(piece);
        }
        let from = match self.after.as_deref().or(part.after.as_deref()) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Unbounded,
        };
        let most = &mut self.most;
        let entries = &mut piece.entries;
        let mut has_part = false;
        piece.more = snapshot.walk(&part.prefix, from, &mut |entry| {
            if *most == 0 || room == 0 {
                return false;
            }
            *most -= 1;
            has_part = true;
            room = room.saturating_sub(entry_size(&entry));
            entries.push(entry);
            true
        })? && *most > 0;
        if has_part {
            self.after = piece.entries.last().map(|entry| entry.key.clone());
        }
        Ok(piece)
    }
}
