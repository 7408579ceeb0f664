//! Scatter/gather messages for stream sockets.
//!
//! Invariants:
//! - a message owns all memory that its vectors point to, at addresses that do not move while it is
//!   boxed, so its vectors may be given to the kernel;
//! - the received payload is in the payload's own memory, and the bytes after it are in the staging
//!   area.

use crate::buf::{Buf, BufMut, Segment};
use std::fmt;

/// Memory of a payload, as source or destination.
#[derive(Debug)]
pub enum Memory {
    /// A writable buffer.
    Buf(BufMut),
    /// A read-only buffer (a source).
    Shared(Buf),
    /// A device's own memory.
    Device(Segment),
}

impl Memory {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Memory::Buf(buf) => buf.len(),
            Memory::Shared(buf) => buf.len(),
            Memory::Device(segment) => segment.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if Rust may look at them (not for device memory, which
    /// others may change at any moment).
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Memory::Buf(buf) => Some(buf),
            Memory::Shared(buf) => Some(buf),
            Memory::Device(_) => None,
        }
    }

    /// Copies `bytes` to `offset`. Bytes of a device's own memory may change
    /// at any moment: others see the old ones, the new ones or a mixture
    /// until this returns, as with any write to a device.
    ///
    /// # Panics
    /// If the range is not within the memory, or the memory is read-only.
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset, "copy outside the memory");
        let to = self.destination().expect("writable memory");
        // SAFETY: within the memory, as checked; `bytes` cannot overlap it,
        // since it is borrowed and this is the only handle (a buffer), or no
        // Rust reference to it exists (a device).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.wrapping_add(offset), bytes.len()) };
    }

    /// As something to send: shared from now on.
    pub fn into_source(self) -> Segment {
        match self {
            Memory::Buf(buf) => buf.freeze().segment(),
            Memory::Shared(buf) => buf.segment(),
            Memory::Device(segment) => segment,
        }
    }

    fn destination(&mut self) -> Option<*mut u8> {
        match self {
            Memory::Buf(buf) => Some(buf.as_mut_ptr()),
            Memory::Shared(_) => None,
            Memory::Device(segment) => Some(segment.as_ptr()),
        }
    }
}

const EMPTY_IOV: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn empty_header() -> libc::msghdr {
    // SAFETY: a header of zeroes is a valid header without address, vectors
    // and control data.
    unsafe { std::mem::zeroed() }
}

/// One receive: first into a payload's memory, then into a staging area.
pub struct RecvMsg(pub(crate) Box<RecvInner>);

pub(crate) struct RecvInner {
    pub(crate) header: libc::msghdr,
    iov: [libc::iovec; 2],
    direct: Option<(Memory, usize, usize)>,
    staging: BufMut,
    limit: usize,
    /// Of the last receive: bytes for the payload, and bytes staged.
    placed: usize,
    staged: usize,
}

impl RecvMsg {
    /// With a staging area of `len` bytes.
    pub fn new(len: usize) -> RecvMsg {
        RecvMsg(Box::new(RecvInner {
            header: empty_header(),
            iov: [EMPTY_IOV; 2],
            direct: None,
            staging: BufMut::zeroed(len),
            limit: len,
            placed: 0,
            staged: 0,
        }))
    }

    /// Sets where the next bytes go first: `len` bytes at `offset` of `memory`.
    ///
    /// # Panics
    /// If the range is not within the memory, or the memory is read-only.
    pub fn set_direct(&mut self, mut memory: Memory, offset: usize, len: usize) {
        assert!(offset <= memory.len() && len <= memory.len() - offset, "payload outside its memory");
        assert!(memory.destination().is_some(), "read-only memory as a destination");
        self.0.direct = Some((memory, offset, len));
    }

    /// Takes the payload's memory back, and how many bytes it got.
    pub fn take_direct(&mut self) -> Option<(Memory, usize)> {
        let inner = &mut *self.0;
        inner.direct.take().map(|(memory, _, _)| (memory, inner.placed))
    }

    /// Uses at most `limit` bytes of the staging area in the next receive:
    /// little where bulk follows, so that little of it has to be copied.
    pub fn set_staging_limit(&mut self, limit: usize) {
        self.0.limit = limit.min(self.0.staging.len());
    }

    /// Makes the staging area `len` bytes long, all of it in use. Staged bytes are lost.
    pub fn resize_staging(&mut self, len: usize) {
        let inner = &mut *self.0;
        inner.staging = BufMut::zeroed(len);
        (inner.limit, inner.staged) = (len, 0);
    }

    /// Size of the staging area in bytes.
    pub fn staging_len(&self) -> usize {
        self.0.staging.len()
    }

    /// The bytes received after the payload.
    pub fn staged(&self) -> &[u8] {
        &self.0.staging[..self.0.staged]
    }

    /// Bytes received in all by the last receive.
    pub fn received(&self) -> usize {
        self.0.placed + self.0.staged
    }
}

/// For transports that bring the bytes themselves: [`begin`](RecvMsg::begin) once, then as many
/// [`put`](RecvMsg::put) as there are parts; or [`parts`](RecvMsg::parts) and
/// [`set_received`](RecvMsg::set_received) for those that let something else write them.
impl RecvMsg {
    /// Begins a receive: nothing has come yet.
    pub fn begin(&mut self) {
        (self.0.placed, self.0.staged) = (0, 0);
    }

    /// Bytes that still have room in this receive.
    pub fn room(&self) -> usize {
        let direct = self.0.direct.as_ref().map_or(0, |(_, _, len)| *len);
        direct + self.0.limit - self.received()
    }

    /// Adds bytes to those of this receive, as many as have room: how many.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let inner = &mut *self.0;
        let mut rest = bytes;
        if let Some((memory, offset, len)) = &mut inner.direct {
            let (payload, behind) = rest.split_at(rest.len().min(*len - inner.placed));
            memory.copy_in(*offset + inner.placed, payload);
            inner.placed += payload.len();
            rest = behind;
        }
        let n = rest.len().min(inner.limit - inner.staged);
        inner.staging[inner.staged..inner.staged + n].copy_from_slice(&rest[..n]);
        inner.staged += n;
        bytes.len() - rest.len() + n
    }

    /// Where the bytes of a receive go, in order: addresses and lengths. The memory is this message's until that is
    /// dropped or taken apart.
    pub fn parts(&mut self) -> impl Iterator<Item = (*mut u8, usize)> {
        self.0.prepare().iter().map(|iov| (iov.iov_base.cast(), iov.iov_len))
    }

    /// Says that the first `received` bytes of [`parts`](Self::parts) were written.
    ///
    /// # Panics
    /// If there is no room for so many.
    pub fn set_received(&mut self, received: usize) {
        self.begin();
        assert!(received <= self.room(), "{received} bytes received into less");
        self.0.done(received);
    }
}

impl fmt::Debug for RecvMsg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvMsg({} bytes received)", self.received())
    }
}

impl RecvInner {
    /// Points the header at the memory; the number of vectors.
    pub(crate) fn prepare(&mut self) -> &[libc::iovec] {
        let mut n = 0;
        if let Some((memory, offset, len)) = &mut self.direct
            && *len > 0
            && let Some(base) = memory.destination()
        {
            self.iov[n] = libc::iovec { iov_base: base.wrapping_add(*offset).cast(), iov_len: *len };
            n += 1;
        }
        if self.limit > 0 {
            self.iov[n] = libc::iovec { iov_base: self.staging.as_mut_ptr().cast(), iov_len: self.limit };
            n += 1;
        }
        (self.placed, self.staged) = (0, 0);
        self.header.msg_iov = self.iov.as_mut_ptr();
        self.header.msg_iovlen = n as _;
        &self.iov[..n]
    }

    pub(crate) fn done(&mut self, received: usize) {
        let direct = self.direct.as_ref().map_or(0, |(_, _, len)| *len);
        self.placed = received.min(direct);
        self.staged = received - self.placed;
    }
}

/// One send: small pieces of a byte vector and payloads, in order.
pub struct SendMsg(pub(crate) Box<SendInner>);

pub(crate) struct SendInner {
    pub(crate) header: libc::msghdr,
    iov: Vec<libc::iovec>,
    /// First vector that is not sent yet.
    next: usize,
    bytes: Vec<u8>,
    keep: Vec<Segment>,
}

/// Vectors that one call takes (`UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

impl Default for SendMsg {
    fn default() -> SendMsg {
        SendMsg::new()
    }
}

impl SendMsg {
    /// A message without content.
    pub fn new() -> SendMsg {
        SendMsg(Box::new(SendInner {
            header: empty_header(),
            iov: Vec::new(),
            next: 0,
            bytes: Vec::new(),
            keep: Vec::new(),
        }))
    }

    /// Begins a new message on `bytes`, from which [`push_bytes`](Self::push_bytes)
    /// takes.
    pub fn begin(&mut self, bytes: Vec<u8>) {
        self.take_bytes();
        self.0.bytes = bytes;
    }

    /// Ends the message and gives its byte vector back.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let inner = &mut *self.0;
        inner.iov.clear();
        inner.keep.clear();
        inner.next = 0;
        std::mem::take(&mut inner.bytes)
    }

    /// Appends `len` bytes at `start` of the byte vector.
    ///
    /// # Panics
    /// If they are not in it.
    pub fn push_bytes(&mut self, start: usize, len: usize) {
        let piece = &self.0.bytes[start..start + len];
        let iov = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: len };
        self.0.iov.push(iov);
    }

    /// Appends a payload.
    pub fn push(&mut self, segment: Segment) {
        let iov = libc::iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() };
        self.0.iov.push(iov);
        self.0.keep.push(segment);
    }

    /// Bytes still to be sent.
    pub fn remaining(&self) -> usize {
        self.0.iov[self.0.next..].iter().map(|iov| iov.iov_len).sum()
    }

    /// Whether there is nothing left to send.
    pub fn is_empty(&self) -> bool {
        self.0.next == self.0.iov.len()
    }

    /// What is left to send, in order: addresses and lengths. The memory is this message's until that is dropped or
    /// begun anew, and may belong to a device: others may write to it at any moment.
    pub fn parts(&self) -> impl Iterator<Item = (*const u8, usize)> {
        self.0.iov[self.0.next..].iter().map(|iov| (iov.iov_base.cast_const().cast(), iov.iov_len))
    }

    /// Says that so many more bytes were sent.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn advance(&mut self, sent: usize) {
        assert!(sent <= self.remaining(), "{sent} bytes sent of {}", self.remaining());
        self.0.advance(sent);
    }

    /// Moves bytes that are left to send into `to`, as many as fit: how many. They count as sent.
    pub fn take_into(&mut self, to: &mut [u8]) -> usize {
        let mut taken = 0;
        for iov in &self.0.iov[self.0.next..] {
            let n = iov.iov_len.min(to.len() - taken);
            // SAFETY: the message owns the memory of its vectors; a copy, since no Rust reference to a device's
            // memory may exist. `to` is borrowed exclusively, so that it cannot overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(iov.iov_base.cast(), to[taken..taken + n].as_mut_ptr(), n);
            }
            taken += n;
            if taken == to.len() {
                break;
            }
        }
        self.0.advance(taken);
        taken
    }
}

impl fmt::Debug for SendMsg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendMsg({} bytes left)", self.remaining())
    }
}

impl SendInner {
    /// Points the header at the bytes left to send.
    pub(crate) fn prepare(&mut self) -> &[libc::iovec] {
        let end = self.iov.len().min(self.next + IOV_MAX);
        let rest = &mut self.iov[self.next..end];
        self.header.msg_iov = rest.as_mut_ptr();
        self.header.msg_iovlen = rest.len() as _;
        rest
    }

    /// A copy of the bytes that are left to send.
    pub(crate) fn rest(&self) -> Vec<u8> {
        let pieces = &self.iov[self.next..];
        let mut bytes = Vec::with_capacity(pieces.iter().map(|iov| iov.iov_len).sum());
        for iov in pieces {
            let start = bytes.len();
            bytes.resize(start + iov.iov_len, 0);
            // SAFETY: the message owns the memory of its vectors; a copy, since
            // no Rust reference to a device's memory may exist.
            unsafe {
                std::ptr::copy_nonoverlapping(iov.iov_base.cast(), bytes[start..].as_mut_ptr(), iov.iov_len)
            };
        }
        bytes
    }

    /// Records that `sent` bytes were sent.
    pub(crate) fn advance(&mut self, mut sent: usize) {
        while let Some(iov) = self.iov.get_mut(self.next) {
            if sent < iov.iov_len {
                iov.iov_base = iov.iov_base.wrapping_byte_add(sent);
                iov.iov_len -= sent;
                return;
            }
            sent -= iov.iov_len;
            self.next += 1;
        }
    }
}
