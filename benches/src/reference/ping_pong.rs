//! A bare request and response of the sizes of a 4 KiB read.
//!
//! The answer is a block at a random place of memory as large as the device:
//! a block that stays in the processor's cache costs a microsecond less.

use super::{Memory, socket};
use crate::process::thread_cpu_time;
use crate::program::Measured;
use crate::setup::Setup;
use anyhow::Result;
use std::hint::spin_loop;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a command capsule.
const REQUEST: usize = 72;
/// Bytes of a data PDU: its header, and the block.
const HEADER: usize = 24;
const BLOCK: usize = 4096;

/// How both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Asleep in the system call.
    Blocking,
    /// By asking again and again.
    Polling,
    /// As blocking, and the asking side sleeps for so long between an answer
    /// and the next request: what the same exchange costs when processors and
    /// their caches have turned to other things.
    Pausing(Duration),
}

/// Asks and answers until the time is over.
pub(crate) fn run(setup: &Setup, wait: Wait, memory: &Memory) -> Result<Measured> {
    let (target, load) = socket::pair(setup)?;
    for stream in [&target, &load] {
        stream.set_nonblocking(wait == Wait::Polling)?;
    }
    thread::scope(|scope| {
        let answering = scope.spawn(move || {
            setup.target.pin_thread()?;
            answer(target, memory.bytes())
        });
        let asking = scope.spawn(move || {
            setup.load.pin_thread()?;
            ask(load, setup, wait)
        });
        let (mut measured, life) = asking.join().expect("a thread that does not panic")?;
        // The answering side's time is of the whole life.
        let answerer = answering.join().expect("a thread that does not panic")?;
        measured.cpu += answerer / life;
        Ok(measured)
    })
}

/// Answers until the other side closes; processor seconds used.
fn answer(mut stream: TcpStream, memory: &[u8]) -> Result<f64> {
    let (mut request, header) = ([0; REQUEST], [0xa5; HEADER]);
    let blocks = memory.len() / BLOCK;
    let mut random = 1u64;
    while receive(&mut stream, &mut request)? {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (random >> 33) as usize % blocks * BLOCK;
        send(&mut stream, &header, &memory[at..at + BLOCK])?;
    }
    Ok(thread_cpu_time()?.as_secs_f64())
}

/// Sends requests; returns the measurement, with this side's processor time, and the number of
/// requests.
fn ask(mut stream: TcpStream, setup: &Setup, wait: Wait) -> Result<(Measured, f64)> {
    let (request, mut response) = ([0x5a; REQUEST], [0; HEADER + BLOCK]);
    let begin = Instant::now() + setup.ramp;
    let end = begin + setup.runtime;
    let (mut all, mut counted, mut waited) = (0u64, 0u64, Duration::ZERO);
    let mut now = Instant::now();
    while now < end {
        if let Wait::Pausing(pause) = wait {
            thread::sleep(pause);
            now = Instant::now();
        }
        let asked = now;
        send(&mut stream, &request, &[])?;
        if !receive(&mut stream, &mut response)? {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        now = Instant::now();
        all += 1;
        if now >= begin && now < end {
            counted += 1;
            waited += now - asked;
        }
    }
    let iops = counted as f64 / setup.runtime.as_secs_f64();
    let cpu = thread_cpu_time()?.as_secs_f64() / all as f64;
    // Over the time waited, not over the window: a few round trips fill a window of a long link
    // badly.
    let latency = waited.as_secs_f64() / counted as f64;
    Ok((Measured { rate: iops * BLOCK as f64, iops, latency, cpu, connections: 1 }, all as f64))
}

fn send(stream: &mut TcpStream, head: &[u8], rest: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(head), IoSlice::new(rest)];
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(n) => IoSlice::advance_slices(&mut left, n),
            Err(e) if e.kind() == ErrorKind::WouldBlock => spin_loop(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Fills `bytes`; false if the other side closed instead.
fn receive(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<bool> {
    let mut got = 0;
    while got < bytes.len() {
        match stream.read(&mut bytes[got..]) {
            Ok(0) => return Ok(false),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => spin_loop(),
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}
