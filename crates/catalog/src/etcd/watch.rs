//! Watches of etcd: a thread reads the stream of a member, and opens another one where it ends.

use super::client::{Client, MAX_REPLY};
use super::{after, bytes, number};
use crate::Watch;
use crate::error::{Error, Result};
use crate::types::{Event, Revision};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Replies that wait for their reader; after these the stream waits.
const WAITING: usize = 256;
/// Pause after a stream that ended without a reply.
const PAUSE: Duration = Duration::from_millis(100);

/// A watch of etcd. It outlasts the loss of members: then changes come late.
pub(super) struct EtcdWatch {
    replies: Receiver<Result<Vec<Event>>>,
    /// Its thread ends some seconds after this.
    _alive: Arc<()>,
}

/// Begins a watch of the keys that begin with `prefix`, of which the first `cut` bytes are left out.
pub(super) fn start(client: Arc<Client>, prefix: Vec<u8>, cut: usize, from: Revision) -> EtcdWatch {
    let (sender, replies) = sync_channel(WAITING);
    let alive = Arc::new(());
    let follow = Follow { client, prefix, cut, from, sender, alive: Arc::downgrade(&alive) };
    std::thread::spawn(move || follow.run());
    EtcdWatch { replies, _alive: alive }
}

impl Watch for EtcdWatch {
    fn next(&mut self, wait: Duration) -> Result<Vec<Event>> {
        let start = Instant::now();
        loop {
            match self.replies.recv_timeout(wait.saturating_sub(start.elapsed())) {
                Ok(reply) if reply.as_ref().is_ok_and(Vec::is_empty) => {}
                Ok(reply) => return reply,
                Err(RecvTimeoutError::Timeout) => return Ok(Vec::new()),
                // The thread ends after an error, which the reader had.
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Invalid("a watch has ended with its error".to_owned()));
                }
            }
        }
    }
}

/// What the thread of a watch has.
struct Follow {
    client: Arc<Client>,
    prefix: Vec<u8>,
    cut: usize,
    /// The first revision that has not been passed on.
    from: Revision,
    sender: SyncSender<Result<Vec<Event>>>,
    alive: Weak<()>,
}

/// The watch has ended.
struct Ended;

impl Follow {
    fn run(mut self) {
        for attempt in 0.. {
            if self.alive.strong_count() == 0 {
                return;
            }
            let start = self.from;
            let key = if self.prefix.is_empty() { vec![0] } else { self.prefix.clone() };
            let request = json!({ "create_request": {
                "key": STANDARD.encode(key),
                "range_end": STANDARD.encode(after(&self.prefix)),
                "start_revision": start.to_string(),
            } });
            match self.client.stream(attempt, "watch", &request) {
                Ok(stream) => {
                    if self.follow(stream).is_err() {
                        return;
                    }
                }
                Err(e) => tracing::debug!("watch of {}: {e:?}", self.client.name()),
            }
            if self.from == start {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Passes on the replies of a stream until it ends.
    fn follow(&mut self, stream: impl Read) -> std::result::Result<(), Ended> {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            match stream.by_ref().take(MAX_REPLY).read_until(b'\n', &mut line) {
                Ok(n) if n > 0 && line.ends_with(b"\n") => {}
                // The end, an error, or the silence after which another member is asked.
                Ok(_) | Err(_) => return Ok(()),
            }
            let Ok(reply) = serde_json::from_slice::<Value>(&line) else { return Ok(()) };
            self.pass_on(&reply["result"])?;
        }
    }

    fn pass_on(&mut self, result: &Value) -> std::result::Result<(), Ended> {
        if number(&result["compact_revision"]) > 0 {
            let _ = self.sender.send(Err(Error::Compacted { at: self.from }));
            return Err(Ended);
        }
        let events: Option<Vec<Event>> =
            result["events"].as_array().into_iter().flatten().map(|event| self.event(event)).collect();
        let Some(events) = events else {
            let _ = self.sender.send(Err(self.client.garbled("an event")));
            return Err(Ended);
        };
        // etcd does not divide the changes of a revision unless asked to.
        let last = events.last().map_or(0, |event| event.revision);
        self.from = self.from.max(last + 1);
        self.sender.send(Ok(events)).map_err(|_| Ended)
    }

    fn event(&self, event: &Value) -> Option<Event> {
        let kv = &event["kv"];
        let key = bytes(&kv["key"])?.get(self.cut..)?.to_vec();
        let deleted = event["type"].as_str() == Some("DELETE");
        let value = if deleted { None } else { Some(bytes(&kv["value"])?) };
        Some(Event { revision: number(&kv["mod_revision"]), key, value })
    }
}
