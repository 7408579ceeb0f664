//! Watches of etcd: a task reads the stream of a member, and opens another one where it ends.

use super::client::{Client, Members, WatchStream};
use super::proto::{EventType, WatchCreateRequest, WatchRequest, WatchResponse};
use super::{after, number, signed};
use crate::Watch;
use crate::error::{Error, Result};
use crate::types::{Event, Revision};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Replies that wait for their reader; after these the stream waits.
pub(super) const WAITING: usize = 256;
/// Pause after a stream that ended without a reply.
const PAUSE: Duration = Duration::from_millis(100);

/// A watch of etcd. It outlasts the loss of members: then changes come late.
pub(super) struct EtcdWatch {
    client: Arc<Client>,
    replies: Receiver<Result<Vec<Event>>>,
    task: AbortHandle,
}

/// Begins a watch of the keys that begin with `prefix`, of which the first `cut` bytes are left out.
pub(super) fn start(client: Arc<Client>, prefix: Vec<u8>, cut: usize, from: Revision) -> EtcdWatch {
    let (sender, replies) = channel(WAITING);
    let follow = Follow { members: client.members(), prefix, cut, from, sender };
    let task = client.spawn(follow.run());
    EtcdWatch { client, replies, task }
}

impl Drop for EtcdWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch for EtcdWatch {
    fn next(&mut self, wait: Duration) -> Result<Vec<Event>> {
        let start = Instant::now();
        loop {
            // The timer is made where the runtime is.
            let left = wait.saturating_sub(start.elapsed());
            let replies = &mut self.replies;
            match self.client.wait(async { timeout(left, replies.recv()).await }) {
                Ok(Some(reply)) if reply.as_ref().is_ok_and(Vec::is_empty) => {}
                Ok(Some(reply)) => return reply,
                Err(_) => return Ok(Vec::new()),
                // The task ends after an error, which the reader had.
                Ok(None) => return Err(Error::Invalid("a watch has ended with its error".to_owned())),
            }
        }
    }
}

/// What the task of a watch has.
struct Follow {
    members: Arc<Members>,
    prefix: Vec<u8>,
    cut: usize,
    /// The first revision that has not been passed on.
    from: Revision,
    sender: Sender<Result<Vec<Event>>>,
}

/// The watch has ended.
struct Ended;

impl Follow {
    async fn run(mut self) {
        for attempt in 0.. {
            let start = self.from;
            let request = WatchCreateRequest {
                key: if self.prefix.is_empty() { vec![0] } else { self.prefix.clone() },
                range_end: after(&self.prefix),
                start_revision: signed(start),
            };
            match self.members.watch(attempt, WatchRequest { create_request: Some(request) }).await {
                Ok(stream) => {
                    if self.follow(stream).await.is_err() {
                        return;
                    }
                }
                Err(e) => tracing::debug!("watch of {}: {e:?}", self.members.name()),
            }
            if self.from == start {
                sleep(PAUSE).await;
            }
        }
    }

    /// Passes on the replies of a stream until it ends.
    async fn follow(&mut self, mut stream: WatchStream) -> std::result::Result<(), Ended> {
        while let Some(reply) = stream.next().await {
            if reply.canceled && reply.compact_revision == 0 {
                tracing::debug!("watch of {}: {}", self.members.name(), reply.cancel_reason);
                break;
            }
            self.pass_on(reply).await?;
        }
        Ok(())
    }

    async fn pass_on(&mut self, reply: WatchResponse) -> std::result::Result<(), Ended> {
        if reply.compact_revision > 0 {
            let _ = self.sender.send(Err(Error::Compacted { at: self.from })).await;
            return Err(Ended);
        }
        let events: Option<Vec<Event>> = reply.events.into_iter().map(|event| self.event(event)).collect();
        let Some(events) = events else {
            let _ = self.sender.send(Err(self.members.garbled("an event"))).await;
            return Err(Ended);
        };
        // etcd does not divide the changes of a revision unless asked to.
        let last = events.last().map_or(0, |event| event.revision);
        self.from = self.from.max(last + 1);
        self.sender.send(Ok(events)).await.map_err(|_| Ended)
    }

    fn event(&self, event: super::proto::WatchedChange) -> Option<Event> {
        let deleted = event.r#type == EventType::Delete as i32;
        let kv = event.kv?;
        let key = kv.key.get(self.cut..)?.to_vec();
        Some(Event { revision: number(kv.mod_revision), key, value: (!deleted).then_some(kv.value) })
    }
}
