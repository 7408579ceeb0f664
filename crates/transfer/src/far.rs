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
use std::io;

/// Most frames, and most bytes of content, of one send.
const BATCH_FRAMES: usize = 64;
const BATCH_BYTES: usize = 4 << 20;

/// Sends frames as they come, as many at once as have accumulated, until the queue is closed.
async fn send_all(tx: &mut Tx, mut queue: UnboundedReceiver<Frame>) -> io::Result<()> {
    while let Some(first) = queue.next().await {
        let mut bytes = first.weight();
        let mut batch = vec![first];
        while batch.len() < BATCH_FRAMES && bytes < BATCH_BYTES {
            let Ok(frame) = queue.try_recv() else { break };
            bytes += frame.weight();
            batch.push(frame);
        }
        tx.send(batch).await?;
    }
    Ok(())
}
