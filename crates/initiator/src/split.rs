//! Splits requests by the largest transfer of a command: before they are submitted, and
//! commands that wait for a connection again, since a controller may have a smaller limit after
//! a reconnection.

use crate::call::{Call, CallResult, Data, Done, Pending, Waiting};
use futures_util::future::{join_all, try_join_all};
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{BufMut, Memory, spawn};
use longhaul_wire::command::ReadWrite;
use std::rc::Rc;

/// Lengths of the parts of a request of `len` bytes, each at most `max` bytes.
pub(crate) fn lengths(len: usize, max: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(max).map(move |start| (len - start).min(max))
}

/// The memory of a read whose parts, adjacent and in order, are read by `reads`.
pub(crate) async fn join_reads(reads: Vec<impl Future<Output = IoResult<BufMut>>>) -> IoResult<BufMut> {
    let mut parts = try_join_all(reads).await?.into_iter();
    let mut all = parts.next().unwrap_or_else(|| BufMut::zeroed(0));
    for part in parts {
        all.unsplit(part).map_err(|_| IoError::Integrity("parts of a read do not join".into()))?;
    }
    Ok(all)
}

/// Splits a command into parts of at most `max` bytes (whole blocks of `2^shift` bytes). The call is
/// done when all of them are.
pub(crate) fn split(waiting: Waiting, max: usize, shift: u32) -> Vec<Waiting> {
    let Waiting { call, data } = waiting;
    let whole = ReadWrite::of(&call.sqe);
    let mut parts = Vec::new();
    let mut slba = whole.slba;
    let mut part = |data: Data| {
        let blocks = (data.len() >> shift) as u32;
        let sqe = ReadWrite { slba, blocks, ..whole }.to_sqe(call.sqe.opcode, call.sqe.nsid());
        slba += u64::from(blocks);
        let part = Call::new(sqe, call.fate, call.seq, call.ahead);
        parts.push(Waiting { call: part, data });
    };
    match data {
        Data::Read(Memory::Buf(mut rest)) => {
            while rest.len() > max {
                let tail = rest.split_off(max);
                part(Data::Read(Memory::Buf(rest)));
                rest = tail;
            }
            part(Data::Read(Memory::Buf(rest)));
        }
        Data::Write(Memory::Shared(buf)) => {
            for start in (0..buf.len()).step_by(max) {
                let end = buf.len().min(start + max);
                part(Data::Write(Memory::Shared(buf.slice(start..end))));
            }
        }
        // Nothing else has data of that size.
        data => return vec![Waiting { call, data }],
    }
    let pending: Vec<_> = parts.iter().map(|part| Pending(Rc::clone(&part.call))).collect();
    spawn(async move { call.finish(join(join_all(pending).await)) }).detach();
    parts
}

/// The end of the whole: the first failure, or all of the memory.
fn join(results: Vec<CallResult>) -> CallResult {
    let mut whole: Option<Done> = None;
    for result in results {
        let part = result?;
        let Some(all) = &mut whole else {
            whole = Some(part);
            continue;
        };
        if all.cqe.status().is_success() {
            all.cqe = part.cqe;
        }
        all.received += part.received;
        if let (Some(Memory::Buf(all)), Some(Memory::Buf(next))) = (&mut all.memory, part.memory) {
            // They were one buffer, so they join; a buffer that does not is
            // missed by its length.
            let _ = all.unsplit(next);
        }
    }
    whole.ok_or(longhaul_block::IoError::Aborted)
}
