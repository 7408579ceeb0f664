//! Measures the paths to devices before an array is created of them.

use crate::array::ArrayFuture;
use futures_util::StreamExt;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::FuturesUnordered;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoResult};
use longhaul_engine::{BufMut, now};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Round trip below which a device counts as local: its path holds too few bytes in flight to
/// matter.
const NEAR: Duration = Duration::from_millis(2);
/// Duration of a measurement in round trips, with bounds: TCP has left slow start by then.
const ROUND_TRIPS: u32 = 30;
const LEAST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(4);
/// Bytes of the read that measures the round trip.
const SMALL: usize = 4096;

/// Reads from all devices at the same time, as an array does, and returns the number of bytes that
/// each is to have in flight, for the path that holds least. `None` if a device is local or nearly
/// so. Nothing is written.
///
/// # Errors
/// A device cannot be read.
pub fn measure(devices: &[Arc<dyn BlockDevice>]) -> ArrayFuture<'_, IoResult<Option<u64>>> {
    Box::pin(bytes_in_flight(devices))
}

async fn bytes_in_flight(devices: &[Arc<dyn BlockDevice>]) -> IoResult<Option<u64>> {
    let opened = try_join_all(devices.iter().map(|device| device.open())).await?;
    if opened.is_empty() || opened.iter().any(|io| io.advice().is_none()) {
        return Ok(None);
    }
    let far = try_join_all(opened.iter().map(answer)).await?;
    let Some(far) = far.into_iter().max().filter(|far| *far >= NEAR) else { return Ok(None) };
    let time = (far * ROUND_TRIPS).clamp(LEAST, MOST);
    let infos = devices.iter().map(|device| device.info());
    for filled in join_all(opened.iter().zip(infos).map(|(io, info)| fill(io, info, time))).await {
        filled?;
    }
    Ok(opened.iter().filter_map(|io| io.advice()).map(|advice| advice.read).min())
}

/// Time of a small read on an established connection.
async fn answer(io: &Rc<dyn BlockIo>) -> IoResult<Duration> {
    io.read(0, BufMut::zeroed(SMALL)).await?;
    let began = now();
    io.read(0, BufMut::zeroed(SMALL)).await?;
    Ok(now() - began)
}

/// Keeps a path filled for the given time.
async fn fill(io: &Rc<dyn BlockIo>, info: DeviceInfo, time: Duration) -> IoResult<()> {
    let end = now() + time;
    let (mut reads, mut under_way, mut at) = (FuturesUnordered::new(), 0, 0);
    while now() < end {
        let Some(advice) = io.advice() else { return Ok(()) };
        let most = u64::from(advice.io_size.min(info.max_io)).min(info.size);
        let len = most / SMALL as u64 * SMALL as u64;
        if len == 0 {
            return Ok(());
        }
        while under_way < advice.read {
            at = if at + len > info.size { 0 } else { at };
            reads.push(io.read(at, BufMut::zeroed(len as usize)));
            (at, under_way) = (at + len, under_way + len);
        }
        if let Some(read) = reads.next().await {
            under_way -= read?.len() as u64;
        }
    }
    Ok(())
}
