//! Writes of one file that are acknowledged before they are answered.

use super::{CacheState, CacheStep, Shared};
use crate::Done;
use crate::call::{Call, DATA_MAX, Handle, Node, Reply};
use longhaul_engine::Buf;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Writes of a file.
#[derive(Default)]
pub(super) struct Behind {
    /// Not sent yet.
    queue: VecDeque<Piece>,
    /// Offset and length of what is sent and not answered.
    under_way: Vec<(u64, u64)>,
    /// Some of it is appended, at an offset that only the server knows.
    appends: bool,
    /// Requests that wait until all is answered, in their order.
    pub(super) after: VecDeque<(Call, Done)>,
    /// Where the file ends at least.
    pub(super) end: u64,
}

/// Content that is sent at once.
struct Piece {
    handle: Handle,
    offset: u64,
    data: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

impl Behind {
    /// Whether all writes are answered, and nothing waits for that.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.under_way.is_empty() && self.after.is_empty()
    }

    /// Whether a write has to wait for the answers to others: the server executes several at a time.
    pub(super) fn conflicts(&self, offset: u64, len: u64, appends: bool) -> bool {
        if self.queue.is_empty() && self.under_way.is_empty() {
            return false;
        }
        let overlaps = |from: u64, to: u64| offset < to && from < offset.saturating_add(len);
        appends != self.appends
            || !appends
                && (self.under_way.iter().any(|(at, len)| overlaps(*at, at + len))
                    || self.queue.iter().any(|piece| overlaps(piece.offset, piece.end())))
    }
}

impl Shared {
    /// Takes a write that conflicts with none before it.
    pub(super) fn write(
        self: &Arc<Self>,
        state: &mut CacheState,
        handle: Handle,
        offset: u64,
        data: Buf,
        done: Done,
        steps: &mut Vec<CacheStep>,
    ) {
        let Some(open) = state.open.get_mut(&handle) else {
            return steps.push(CacheStep::Start(Call::Write { handle, offset, data }, done));
        };
        if let Some(error) = open.error.take() {
            return steps.push(CacheStep::Finish(done, Err(error)));
        }
        let (node, appends, len) = (open.node, open.appends, data.len());
        state.drop_ahead(node, steps);
        let behind = state.behind.entry(node).or_default();
        behind.appends = appends;
        if !appends {
            behind.end = behind.end.max(offset + len as u64);
        }
        match behind.queue.back_mut() {
            Some(last)
                if last.handle == handle
                    && (appends || last.end() == offset)
                    && last.data.len() + len <= DATA_MAX =>
            {
                last.data.extend_from_slice(&data);
            }
            _ => behind.queue.push_back(Piece { handle, offset, data: data.to_vec() }),
        }
        state.behind_bytes += len;
        state.room.push_back((done, len as u32));
        state.acknowledge(self.options.write_behind, steps);
        self.pump(state, node, steps);
    }

    /// Sends what may be sent. The last piece waits for more while others are under way, unless a
    /// call waits for it.
    pub(super) fn pump(self: &Arc<Self>, state: &mut CacheState, node: Node, steps: &mut Vec<CacheStep>) {
        let Some(behind) = state.behind.get_mut(&node) else { return };
        while let Some(piece) = behind.queue.front() {
            let is_full = piece.data.len() >= DATA_MAX || behind.queue.len() > 1 || !behind.after.is_empty();
            // Appended pieces go one after the other, as their order is that of the file.
            if !behind.under_way.is_empty() && (behind.appends || !is_full) {
                return;
            }
            let Some(Piece { handle, offset, data }) = behind.queue.pop_front() else { return };
            let range = (offset, data.len() as u64);
            behind.under_way.push(range);
            let shared = Arc::clone(self);
            let write = Call::Write { handle, offset, data: Buf::copy_of(&data) };
            steps.push(CacheStep::Start(write, Box::new(move |result| shared.written(node, range, result))));
        }
    }

    /// A piece is answered.
    fn written(self: &Arc<Self>, node: Node, range: (u64, u64), result: Result<Reply, Errno>) {
        let mut steps = Vec::new();
        let mut after = VecDeque::new();
        let mut state = self.lock();
        state.behind_bytes -= range.1 as usize;
        let error = match result {
            Ok(Reply::Written(len)) if u64::from(len) == range.1 => None,
            Ok(_) => Some(Errno::IO),
            Err(e) => Some(e),
        };
        if let Some(error) = error {
            for open in state.open.values_mut().filter(|open| open.node == node) {
                open.error.get_or_insert(error);
            }
        }
        if let Some(behind) = state.behind.get_mut(&node) {
            if let Some(at) = behind.under_way.iter().position(|other| *other == range) {
                behind.under_way.swap_remove(at);
            }
            if behind.queue.is_empty() && behind.under_way.is_empty() {
                after = std::mem::take(&mut behind.after);
            }
        }
        state.acknowledge(self.options.write_behind, &mut steps);
        self.pump(&mut state, node, &mut steps);
        drop(state);
        self.run(steps);
        // Each may wait again, for a write before it.
        for (call, done) in after {
            self.start(call, done);
        }
    }
}

impl CacheState {
    /// Acknowledges writes as far as there is room for them.
    fn acknowledge(&mut self, limit: usize, steps: &mut Vec<CacheStep>) {
        let mut waiting: usize = self.room.iter().map(|(_, len)| *len as usize).sum();
        while let Some((_, len)) = self.room.front() {
            // The first one in an empty cache has room whatever its length.
            // What was answered before it was acknowledged takes no room.
            let others = self.behind_bytes.saturating_sub(waiting);
            if others > 0 && others + *len as usize > limit {
                return;
            }
            waiting -= *len as usize;
            let Some((done, len)) = self.room.pop_front() else { return };
            steps.push(CacheStep::Finish(done, Ok(Reply::Written(len))));
        }
    }
}
