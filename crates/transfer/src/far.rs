//! A directory of another machine as a file system.
//!
//! A session has one connection, on which calls and replies follow each other without order: a
//! call that takes long delays no other one. The agent executes them on threads of its own.
//!
//! Invariants:
//! - each call is answered once: after the end of the connection with `EIO`;
//! - numbers of objects and handles belong to a session, and end with it.

mod client;
mod service;

pub use client::FarDirectory;
pub(crate) use service::{Exported, serve};

use crate::link::Tx;
use crate::wire::Frame;
use futures_channel::mpsc::UnboundedReceiver;
use futures_util::StreamExt;
use std::collections::VecDeque;
use std::io;

/// Most frames, and most bytes of content, of one send.
const BATCH_FRAMES: usize = 64;
const BATCH_BYTES: usize = 1 << 20;
/// Bytes that the kernel takes beyond those that are on their way: 2 ms of 10 Gb/s.
const UNSENT: u32 = 2 << 20;
/// Bytes of content from which on a frame lets others go first.
const BULK: usize = 16 << 10;

/// Sends frames as they come, as many at once as have accumulated, until the queue is closed.
async fn send_all(tx: &mut Tx, mut queue: UnboundedReceiver<Frame>) -> io::Result<()> {
    // What the kernel has taken is overtaken no more.
    if let Some(stream) = tx.stream()
        && let Err(e) = stream.limit_unsent(UNSENT)
    {
        tracing::debug!("cannot bound what the kernel keeps of a connection: {e}");
    }
    let mut waiting = Outbox::default();
    loop {
        if waiting.is_empty() {
            let Some(first) = queue.next().await else { return Ok(()) };
            waiting.push(first);
        }
        while let Ok(frame) = queue.try_recv() {
            waiting.push(frame);
        }
        tx.send(waiting.batch()).await?;
    }
}

/// Frames that wait to be sent. What is read ahead or written behind may be a hundred MiB, a second of a link: calls
/// without much content do not wait for that.
#[derive(Default)]
struct Outbox {
    light: VecDeque<Frame>,
    bulk: VecDeque<Frame>,
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.light.is_empty() && self.bulk.is_empty()
    }

    fn push(&mut self, frame: Frame) {
        let queue = if frame.weight() < BULK { &mut self.light } else { &mut self.bulk };
        queue.push_back(frame);
    }

    /// What is sent next: each kind in its order.
    fn batch(&mut self) -> Vec<Frame> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_FRAMES && bytes < BATCH_BYTES {
            let Some(frame) = self.light.pop_front().or_else(|| self.bulk.pop_front()) else { break };
            bytes += frame.weight();
            batch.push(frame);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_engine::Buf;
    use longhaul_fs::{Errno, Reply};

    #[test]
    fn a_small_reply_overtakes_content() {
        let mut waiting = Outbox::default();
        let content = |id| Frame::Reply { id, reply: Ok(Reply::Data(Buf::copy_of(&vec![0; BATCH_BYTES]))) };
        (0..4).for_each(|id| waiting.push(content(id)));
        let mut sent = Vec::new();
        let mut send = |waiting: &mut Outbox| {
            for frame in waiting.batch() {
                let Frame::Reply { id, .. } = frame else { panic!("{frame:?}") };
                sent.push(id);
            }
        };
        // One at a time, so that there is a next moment.
        send(&mut waiting);
        waiting.push(Frame::Reply { id: 9, reply: Err(Errno::NOENT) });
        (0..4).for_each(|_| send(&mut waiting));
        assert_eq!((sent, waiting.is_empty()), (vec![0, 9, 1, 2, 3], true));
    }
}
