//! Both ends of a stream.

use super::{NetPlan, Received, Sent};
use crate::pattern::mix;
use crate::watch::tcp_sample;
use futures_channel::oneshot;
use longhaul_engine::net::{SocketOptions, TcpStream};
use longhaul_engine::{Buf, BufMut, Memory, RecvMsg, SendMsg, sleep_until, spawn, timeout};
use longhaul_results::record::TcpSample;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes received in one call: few against a TCP window, many against the cost of a call.
const PIECE: usize = 512 << 10;
/// The most that a sender continues after its window: the receiver, whose window began
/// at another moment, ends the stream.
const GRACE: Duration = Duration::from_secs(10);
/// A stream that ends at most this long before its window ended with the receiver's
/// window and not by a fault: both windows begin at different moments.
const EARLY: Duration = Duration::from_millis(500);

/// A stream that is handed to an engine's thread.
pub(super) struct Stream {
    pub(super) socket: std::net::TcpStream,
    pub(super) index: u16,
    pub(super) plan: NetPlan,
    /// When to begin.
    pub(super) start: oneshot::Receiver<Instant>,
    /// Bytes until now, for the progress report.
    pub(super) count: Arc<AtomicU64>,
}

/// Counts received bytes, by interval and within the window.
struct Counter {
    start: Instant,
    window: (Instant, Instant),
    interval: Duration,
    seen: Received,
}

impl Counter {
    fn new(start: Instant, plan: &NetPlan) -> Counter {
        let begin = start + Duration::from_millis(plan.ramp_ms);
        Counter {
            start,
            window: (begin, start + plan.length()),
            interval: Duration::from_millis(plan.interval_ms),
            seen: Received::default(),
        }
    }

    fn add(&mut self, now: Instant, bytes: u64) {
        if now >= self.window.1 {
            return;
        }
        if now >= self.window.0 {
            self.seen.bytes += bytes;
        }
        let elapsed = now.saturating_duration_since(self.start).as_nanos();
        let at = (elapsed / self.interval.as_nanos().max(1)) as usize;
        if self.seen.intervals.len() <= at {
            self.seen.intervals.resize(at + 1, 0);
        }
        self.seen.intervals[at] += bytes;
    }

    /// The intervals of the whole run, empty ones included.
    fn end(mut self) -> Received {
        let whole = self.window.1.saturating_duration_since(self.start);
        let count = whole.as_nanos().div_ceil(self.interval.as_nanos().max(1)) as usize;
        self.seen.intervals.resize(count, 0);
        self.seen
    }
}

impl Stream {
    fn options(&self) -> SocketOptions {
        SocketOptions { congestion: self.plan.congestion.clone() }
    }

    /// Receives until the end of the window.
    pub(super) async fn receive(self) -> Result<Received, String> {
        let options = self.options();
        let stream = TcpStream::from_std(self.socket, &options).map_err(|e| e.to_string())?;
        let Ok(start) = self.start.await else { return Err("it was given up".into()) };
        let mut counter = Counter::new(start, &self.plan);
        let mut msg = Some(message());
        loop {
            let left = counter.window.1.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let received = async {
                if self.plan.discard {
                    return stream.discard(PIECE as u32).await;
                }
                let (result, back) = stream.recv(msg.take().unwrap_or_else(message)).await;
                msg = Some(back);
                result
            };
            match timeout(left, received).await {
                Err(_) => break,
                Ok(Ok(0)) => return Err("the sender ended before its time".into()),
                Ok(Ok(n)) => {
                    counter.add(Instant::now(), n as u64);
                    self.count.fetch_add(n as u64, Relaxed);
                }
                Ok(Err(e)) => return Err(format!("receiving failed: {e}")),
            }
        }
        stream.abandon();
        Ok(counter.end())
    }

    /// Sends until the receiver ends the stream.
    pub(super) async fn send(self) -> Result<Sent, String> {
        let options = self.options();
        let stream = Rc::new(TcpStream::from_std(self.socket, &options).map_err(|e| e.to_string())?);
        let congestion = stream.congestion().unwrap_or_default();
        let data = content(self.plan.block as usize, u64::from(self.index));
        let Ok(start) = self.start.await else { return Err("it was given up".into()) };
        let looks = Rc::new(RefCell::new(Vec::new()));
        let looking =
            spawn(look(Rc::clone(&stream), start, self.index, self.plan.clone(), Rc::clone(&looks)));
        let end = start + self.plan.length();
        let mut msg = SendMsg::new();
        loop {
            msg.begin(Vec::new());
            msg.push(data.segment());
            let left = (end + GRACE).saturating_duration_since(Instant::now());
            let Ok((result, back)) = timeout(left, stream.send(msg)).await else { break };
            msg = back;
            match result {
                Ok(()) => {
                    self.count.fetch_add(data.len() as u64, Relaxed);
                }
                Err(_) if Instant::now() + EARLY >= end => break,
                Err(e) => return Err(format!("sending failed: {e}")),
            }
        }
        // Whether it was done already does not matter.
        let _ = looking.cancel().await;
        let looks = looks.take();
        Ok(Sent { congestion, looks })
    }
}

/// Samples TCP's state of a stream at the end of each interval.
async fn look(
    stream: Rc<TcpStream>,
    start: Instant,
    index: u16,
    plan: NetPlan,
    looks: Rc<RefCell<Vec<TcpSample>>>,
) {
    let interval = Duration::from_millis(plan.interval_ms);
    let mut at = start + interval;
    while at <= start + plan.length() {
        sleep_until(at).await;
        let Ok(info) = stream.info() else { return };
        let name = format!("{}", u32::from(index) + 1);
        looks.borrow_mut().push(tcp_sample(at.saturating_duration_since(start), name, &info));
        at += interval;
    }
}

/// A receive operation with a buffer of its own.
fn message() -> RecvMsg {
    let mut msg = RecvMsg::new(1);
    msg.set_staging_limit(0);
    msg.set_direct(Memory::Buf(BufMut::zeroed(PIECE)), 0, PIECE);
    msg
}

/// Bytes that do not compress.
fn content(len: usize, seed: u64) -> Buf {
    let mut data = BufMut::zeroed(len);
    let mut state = mix(seed ^ 0x6c6f_6e67_6861_756c);
    for piece in data.chunks_mut(8) {
        state = mix(state);
        piece.copy_from_slice(&state.to_le_bytes()[..piece.len()]);
    }
    data.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_in_their_interval_and_in_the_window() {
        let plan = NetPlan { ramp_ms: 100, time_ms: 200, interval_ms: 100, ..NetPlan::default() };
        let start = Instant::now();
        let mut counter = Counter::new(start, &plan);
        let at = |ms| start + Duration::from_millis(ms);
        for (ms, bytes) in [(50, 1), (99, 2), (100, 10), (299, 20), (300, 1000), (900, 1000)] {
            counter.add(at(ms), bytes);
        }
        assert_eq!(counter.end(), Received { bytes: 30, intervals: vec![3, 10, 20] });
        // A stream on which nothing came has its intervals, too.
        assert_eq!(Counter::new(start, &plan).end().intervals, [0; 3]);
    }

    #[test]
    fn content_does_not_repeat() {
        let data = content(4099, 1);
        let words: std::collections::HashSet<&[u8]> = data.chunks(8).collect();
        assert_eq!((data.len(), words.len()), (4099, 4099usize.div_ceil(8)));
        assert_ne!(&content(64, 1)[..], &content(64, 2)[..]);
    }
}
