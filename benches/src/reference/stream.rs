//! One plain TCP stream of the shape of a sequential load.
//!
//! The target's side has memory of the size of the device, traversed from beginning to end again
//! and again, as a device in memory is. The load's side has `depth` buffers, used in turn, as its
//! slots are. Both sides move a block per call where the kernel allows it.

use super::socket;
use crate::setup::Setup;
use anyhow::{Context, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

/// A multiple of the page size of any machine.
const PAGE: usize = 64 << 10;

/// The memory on the target's side.
#[derive(Debug)]
pub(crate) struct Memory(Vec<u8>);

impl Memory {
    /// Memory of `size` bytes with each page in place, huge ones as a device
    /// in memory asks for, and not all of it the kernel's one page of zeroes.
    pub(crate) fn new(size: u64) -> Result<Memory> {
        let size = usize::try_from(size).context("a device larger than the address space")?;
        let mut memory: Vec<u8> = Vec::with_capacity(size);
        let skip = memory.as_ptr().align_offset(PAGE).min(size);
        // SAFETY: whole pages of the vector's own memory. The call is advisory; its result does not
        // matter.
        unsafe {
            libc::madvise(memory.as_mut_ptr().add(skip).cast(), size - skip, libc::MADV_HUGEPAGE);
        }
        memory.resize(size, 0xa5);
        Ok(Memory(memory))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Streams to (`write`) or from the target's side; bytes per second at the
/// receiver.
pub(crate) fn run(setup: &Setup, write: bool, bs: u64, depth: u32, memory: &mut Memory) -> Result<f64> {
    let (target, load) = socket::pair(setup)?;
    let bs = usize::try_from(bs)?;
    let mut buffers = vec![0x5a; bs * depth as usize];
    let device = &mut memory.0[..];
    let (sender, receiver) = if write { (load, target) } else { (target, load) };
    let (at_sender, at_receiver) =
        if write { (&setup.load, &setup.target) } else { (&setup.target, &setup.load) };
    let (from, to) = if write { (&mut buffers[..], device) } else { (device, &mut buffers[..]) };
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            at_sender.pin_thread()?;
            send(sender, from, bs)
        });
        let receiving = scope.spawn(move || {
            at_receiver.pin_thread()?;
            receive(receiver, to, bs, setup)
        });
        let rate = receiving.join().expect("a thread that does not panic")?;
        sending.join().expect("a thread that does not panic")?;
        Ok(rate)
    })
}

/// Sends until the other side has had enough.
fn send(mut stream: TcpStream, memory: &[u8], bs: usize) -> io::Result<()> {
    for block in memory.chunks_exact(bs).cycle() {
        match stream.write_all(block) {
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Ok(()),
            result => result?,
        }
    }
    Err(io::Error::other("the device is smaller than a block"))
}

/// Receives through the ramp and the window; bytes per second in the window.
fn receive(mut stream: TcpStream, memory: &mut [u8], bs: usize, setup: &Setup) -> Result<f64> {
    let begin = Instant::now() + setup.ramp;
    let end = begin + setup.runtime;
    let (mut at, mut bytes) = (0, 0u64);
    loop {
        // To the end of the block that was begun.
        let block_end = at - at % bs + bs;
        let n = stream.read(&mut memory[at..block_end])?;
        let now = Instant::now();
        if now >= end {
            return Ok(bytes as f64 / setup.runtime.as_secs_f64());
        }
        if now >= begin {
            bytes += n as u64;
        }
        at += n;
        if at + bs > memory.len() && at.is_multiple_of(bs) {
            at = 0;
        }
    }
}
