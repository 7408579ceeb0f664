//! Watches of a catalog server. One outlasts the loss of a connection, and goes on where its reader is.

use super::link::{LinkAnswer, LinkFault};
use super::{PAUSE, RemoteClient};
use crate::Watch;
use crate::error::Result;
use crate::types::{Event, Revision};
use crate::wire::{Reply, Request};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct RemoteWatch {
    client: Arc<RemoteClient>,
    prefix: Vec<u8>,
    /// The first revision that was not returned.
    from: Revision,
    answer: Option<LinkAnswer>,
    /// Changes of which more follow.
    partial: Vec<Event>,
}

impl RemoteWatch {
    pub(super) fn new(client: Arc<RemoteClient>, prefix: Vec<u8>, from: Revision) -> RemoteWatch {
        let mut watch = RemoteWatch { client, prefix, from: from.max(1), answer: None, partial: Vec::new() };
        // A server that is away is asked later.
        if let Err(e) = watch.begin() {
            tracing::debug!("watch of {}: {e:?}", watch.client.name);
        }
        watch
    }

    fn begin(&mut self) -> std::result::Result<(), LinkFault> {
        self.partial.clear();
        let request = Request::Watch { prefix: self.prefix.clone(), from: self.from };
        self.answer = Some(self.client.link()?.call(&request)?);
        Ok(())
    }
}

impl Watch for RemoteWatch {
    fn next(&mut self, wait: Duration) -> Result<Vec<Event>> {
        let (start, mut pause) = (Instant::now(), PAUSE[0]);
        loop {
            let left = wait.saturating_sub(start.elapsed());
            let reply = match &self.answer {
                Some(answer) => answer.wait(left),
                None => self.begin().map(|()| None),
            };
            match reply {
                Ok(Some(Reply::Events { through, events, more })) => {
                    let from = self.from;
                    self.partial.extend(events.into_iter().filter(|event| event.revision >= from));
                    if more {
                        continue;
                    }
                    self.from = from.max(through + 1);
                    if !self.partial.is_empty() {
                        return Ok(std::mem::take(&mut self.partial));
                    }
                }
                Ok(Some(Reply::Failed(e))) => return Err(self.client.named(e)),
                Ok(Some(_)) => return Err(self.client.garbled()),
                Ok(None) if left.is_zero() => return Ok(Vec::new()),
                Ok(None) => {}
                Err(fault @ LinkFault::Refused(_)) => return Err(self.client.error(fault, false)),
                Err(e) => {
                    tracing::debug!("watch of {}: {e:?}", self.client.name);
                    self.answer = None;
                    if left.is_zero() {
                        return Ok(Vec::new());
                    }
                    std::thread::sleep(pause.min(left));
                    pause = (pause * 2).min(PAUSE[1]);
                }
            }
        }
    }
}

impl Drop for RemoteWatch {
    fn drop(&mut self) {
        if let Some(answer) = &self.answer {
            answer.cancel();
        }
    }
}
