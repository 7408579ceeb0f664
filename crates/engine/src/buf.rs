//! Aligned, pooled memory for I/O.
//!
//! Invariants:
//! - a [`BufMut`] is the only handle on its window of memory; a [`Buf`] may be
//!   cloned and is read-only: no `&mut` ever overlaps another reference;
//! - the pool never hands out more than its limit; it serves requests first come,
//!   first served, so a large one is not starved by small ones;
//! - memory given back is kept for reuse, and counts against the limit until
//!   it is released to the system;
//! - memory of a pool is registered from its allocation until just before its release.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut, Range};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Alignment of every buffer in bytes: what direct I/O asks of any device in
/// common use (logical blocks of 512 and 4096 bytes).
pub const BUF_ALIGN: usize = 4096;

/// The largest buffer that a pool hands out, in bytes.
pub const BUF_MAX: usize = 4 << 20;

/// Lets the system have freed allocations of 128 KiB and more at once, in the whole process.
///
/// The allocator of glibc raises its threshold for that, up to 32 MiB, with each large block that is freed.
/// From then on blocks that one thread allocates and another one frees leave gaps in an arena of each thread:
/// a process takes several times the memory that it uses. Other allocators are left as they are.
pub fn release_what_is_freed() {
    #[cfg(target_env = "gnu")]
    {
        const THRESHOLD: libc::c_int = 128 << 10;
        // SAFETY: a parameter of the allocator; a value that is too large is refused.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, THRESHOLD) };
    }
}

/// One allocation: `len` bytes at `ptr`, aligned to [`BUF_ALIGN`].
struct Block {
    ptr: NonNull<u8>,
    len: usize,
    /// Of memory of the pool.
    registered: Vec<Registration>,
    pool: Option<Arc<PoolShared>>,
}

// SAFETY: a block is plain memory; access to its parts is governed
// by `BufMut` (unique) and `Buf` (read-only).
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len.max(1), BUF_ALIGN).expect("buffer length below isize::MAX")
}

fn allocate(len: usize) -> NonNull<u8> {
    let layout = layout(len);
    // SAFETY: the layout has a non-zero size. Zeroed, so that no earlier
    // content of the process can ever leave over the network.
    let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
    NonNull::new(ptr).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
}

/// # Safety
/// `ptr` came from [`allocate`] with the same `len`, and is not used again.
unsafe fn release(ptr: NonNull<u8>, len: usize) {
    // SAFETY: by the contract of this function.
    unsafe { std::alloc::dealloc(ptr.as_ptr(), layout(len)) }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.pool.take() {
            Some(pool) => {
                let registered = std::mem::take(&mut self.registered);
                pool.give_back(FreeBlock { ptr: self.ptr, registered }, self.len);
            }
            // SAFETY: allocated in `BufMut::zeroed` with this length.
            None => unsafe { release(self.ptr, self.len) },
        }
    }
}

/// A writable buffer: the unique handle on its bytes.
pub struct BufMut {
    ptr: NonNull<u8>,
    len: usize,
    block: Arc<Block>,
}

// SAFETY: unique handle on plain memory.
unsafe impl Send for BufMut {}
// SAFETY: `&BufMut` only reads.
unsafe impl Sync for BufMut {}

impl BufMut {
    /// `len` zero bytes outside any pool, aligned to [`BUF_ALIGN`].
    pub fn zeroed(len: usize) -> BufMut {
        let ptr = allocate(len);
        BufMut { ptr, len, block: Arc::new(Block { ptr, len, registered: Vec::new(), pool: None }) }
    }

    /// A copy of `bytes` outside any pool.
    pub fn copy_of(bytes: &[u8]) -> BufMut {
        let mut buf = BufMut::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Makes the buffer read-only and cloneable.
    pub fn freeze(self) -> Buf {
        Buf { ptr: self.ptr, len: self.len, block: self.block }
    }

    /// Shortens the buffer to its first `len` bytes.
    ///
    /// # Panics
    /// If `len` is more than it has.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "truncate to {len} of {}", self.len);
        self.len = len;
    }

    /// Splits off everything from `at`: two buffers on disjoint windows of
    /// the same memory.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> BufMut {
        assert!(at <= self.len, "split at {at} of {}", self.len);
        // SAFETY: `at <= len`, so the result is within the same allocation.
        let ptr = unsafe { self.ptr.add(at) };
        let tail = BufMut { ptr, len: self.len - at, block: Arc::clone(&self.block) };
        self.len = at;
        tail
    }

    /// Joins what [`split_off`](Self::split_off) parted; gives `next` back if
    /// it does not follow `self` in the same memory.
    pub fn unsplit(&mut self, next: BufMut) -> Result<(), BufMut> {
        let follows = self.ptr.as_ptr().wrapping_add(self.len) == next.ptr.as_ptr();
        if follows && Arc::ptr_eq(&self.block, &next.block) {
            self.len += next.len;
            Ok(())
        } else {
            Err(next)
        }
    }

    /// The buffer as memory for the kernel to fill. The memory lives as long
    /// as the segment, so nothing dangles if the buffer is dropped meanwhile.
    ///
    /// # Safety
    /// Until the segment is dropped the buffer must not be read or written
    /// through this handle or one made from it.
    pub unsafe fn segment(&mut self) -> Segment {
        Segment { ptr: self.ptr, len: self.len, _keep: Arc::clone(&self.block) as _ }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` and `len` are within the live block.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `BufMut` is the only handle on this window.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

/// A read-only buffer, cheap to clone and to slice.
#[derive(Clone)]
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    block: Arc<Block>,
}

// SAFETY: read-only plain memory kept alive by the `Arc`.
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

impl Buf {
    /// A copy of `bytes` outside any pool.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        BufMut::copy_of(bytes).freeze()
    }

    /// A window on the same memory.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of {}", self.len);
        // SAFETY: `start <= len`.
        let ptr = unsafe { self.ptr.add(range.start) };
        Buf { ptr, len: range.end - range.start, block: Arc::clone(&self.block) }
    }

    /// The buffer as a writable one again, if this is the only handle on its
    /// memory.
    pub fn try_mut(mut self) -> Result<BufMut, Buf> {
        if Arc::get_mut(&mut self.block).is_some() {
            Ok(BufMut { ptr: self.ptr, len: self.len, block: self.block })
        } else {
            Err(self)
        }
    }

    /// The buffer as a writable one: itself if this is the only handle on its
    /// memory, and else a copy.
    pub fn into_mut(self) -> BufMut {
        self.try_mut().unwrap_or_else(|shared| BufMut::copy_of(&shared))
    }

    /// The buffer as memory for the kernel to read.
    pub fn segment(&self) -> Segment {
        Segment { ptr: self.ptr, len: self.len, _keep: Arc::clone(&self.block) as _ }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: within the live block, which is not written any more.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// Memory that only the kernel touches (as source or destination of I/O),
/// kept alive for as long as the segment is. It is how a memory device lends
/// its own pages to a socket without a copy; it gives no Rust reference to
/// them, since others may write to them at the same time.
#[derive(Clone)]
pub struct Segment {
    ptr: NonNull<u8>,
    len: usize,
    _keep: Arc<dyn Send + Sync>,
}

// SAFETY: an address range with an owner; no access through it from Rust.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Memory at `ptr`, `len` bytes, that lives at least as long as `keep`.
    ///
    /// # Safety
    /// The range stays valid for reads by the kernel (and for writes, where
    /// the segment is used as a destination) while `keep` is alive, and no
    /// Rust reference to it exists while I/O is under way.
    pub unsafe fn new(ptr: NonNull<u8>, len: usize, keep: Arc<dyn Send + Sync>) -> Segment {
        Segment { ptr, len, _keep: keep }
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A window of it.
    ///
    /// # Panics
    /// If the range is not within the segment.
    pub fn slice(&self, range: Range<usize>) -> Segment {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of {}", self.len);
        // SAFETY: `start <= len`.
        let ptr = unsafe { self.ptr.add(range.start) };
        Segment { ptr, len: range.end - range.start, _keep: self._keep.clone() }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.len)
    }
}

/// Keeps memory registered until it is dropped; see [`Registrar`].
pub type Registration = Box<dyn Send + Sync>;

/// Hardware, or a library, that has to know memory before it is used for I/O, such as an RDMA device.
pub trait Registrar: Send + Sync {
    /// Makes memory known. It is freed only after what is returned was dropped; `None`: it needs nothing.
    fn register(&self, memory: NonNull<[u8]>) -> Option<Registration>;
}

/// A bounded pool of aligned buffers, shared by every thread that clones it.
#[derive(Clone)]
pub struct BufPool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    limit: usize,
    registrars: Vec<Arc<dyn Registrar>>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Bytes handed out, or promised to a waiter that was woken.
    used: usize,
    /// Bytes held for reuse.
    cached: usize,
    /// Free blocks by size class.
    free: [Vec<FreeBlock>; CLASSES],
    waiters: VecDeque<Waiter>,
    next_waiter: u64,
}

struct FreeBlock {
    ptr: NonNull<u8>,
    registered: Vec<Registration>,
}
// SAFETY: a free block belongs to the pool alone.
unsafe impl Send for FreeBlock {}

struct Waiter {
    id: u64,
    class_len: usize,
    waker: Waker,
    /// Its bytes are reserved already; it only has to be polled.
    granted: bool,
}

/// Size classes: powers of two from 4 KiB to [`BUF_MAX`].
const CLASSES: usize = (BUF_MAX / BUF_ALIGN).ilog2() as usize + 1;

fn class_of(len: usize) -> usize {
    len.div_ceil(BUF_ALIGN).max(1).next_power_of_two().ilog2() as usize
}

fn class_len(class: usize) -> usize {
    BUF_ALIGN << class
}

impl BufPool {
    /// A pool of at most `limit` bytes (at least [`BUF_MAX`], so that every
    /// request can be met).
    pub fn new(limit: usize) -> BufPool {
        BufPool::registered(limit, Vec::new())
    }

    /// The same, whose memory is registered with all of these as long as the pool has it.
    pub fn registered(limit: usize, registrars: Vec<Arc<dyn Registrar>>) -> BufPool {
        let (limit, state) = (limit.max(BUF_MAX), Mutex::default());
        BufPool { shared: Arc::new(PoolShared { limit, registrars, state }) }
    }

    /// What a buffer of `len` bytes takes of a pool, in bytes: `len` rounded up
    /// to a power of two, 4 KiB at least.
    pub fn footprint(len: usize) -> usize {
        class_len(class_of(len))
    }

    /// The most bytes that it lends at a time.
    pub fn limit(&self) -> usize {
        self.shared.limit
    }

    /// Bytes handed out at this moment.
    pub fn used(&self) -> usize {
        self.shared.lock().used
    }

    /// A buffer of `len` bytes if the pool has them now and no task waits.
    /// The content is unspecified.
    ///
    /// # Panics
    /// If `len` exceeds [`BUF_MAX`].
    pub fn try_alloc(&self, len: usize) -> Option<BufMut> {
        assert!(len <= BUF_MAX, "buffer of {len} bytes asked for, at most {BUF_MAX}");
        let class = class_of(len);
        let mut state = self.shared.lock();
        if !state.waiters.is_empty() || state.used + class_len(class) > self.shared.limit {
            return None;
        }
        state.used += class_len(class);
        let free = self.shared.take(state, class);
        Some(self.wrap(free, class, len))
    }

    /// A buffer of `len` bytes, once there is room; first come, first served.
    /// The content is unspecified.
    ///
    /// # Panics
    /// If `len` exceeds [`BUF_MAX`].
    pub fn alloc(&self, len: usize) -> Alloc<'_> {
        assert!(len <= BUF_MAX, "buffer of {len} bytes asked for, at most {BUF_MAX}");
        Alloc { pool: self, len, waiter: None }
    }

    fn wrap(&self, FreeBlock { ptr, registered }: FreeBlock, class: usize, len: usize) -> BufMut {
        let block = Block { ptr, len: class_len(class), registered, pool: Some(Arc::clone(&self.shared)) };
        BufMut { ptr, len, block: Arc::new(block) }
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufPool({} of {} bytes used)", self.used(), self.limit())
    }
}

/// What [`BufPool::alloc`] returns: resolves to the buffer.
pub struct Alloc<'a> {
    pool: &'a BufPool,
    len: usize,
    waiter: Option<u64>,
}

impl Future for Alloc<'_> {
    type Output = BufMut;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BufMut> {
        let class = class_of(self.len);
        let pool = self.pool;
        let Some(id) = self.waiter else {
            if let Some(buf) = pool.try_alloc(self.len) {
                return Poll::Ready(buf);
            }
            let mut state = pool.shared.lock();
            let id = state.next_waiter;
            state.next_waiter += 1;
            state.waiters.push_back(Waiter {
                id,
                class_len: class_len(class),
                waker: cx.waker().clone(),
                granted: false,
            });
            self.waiter = Some(id);
            // Room may have come back between the two locks.
            pool.shared.grant(state);
            return Poll::Pending;
        };
        let mut state = pool.shared.lock();
        let at = state
            .waiters
            .iter()
            .position(|w| w.id == id)
            .expect("a waiter stays until it is served or dropped");
        if !state.waiters[at].granted {
            state.waiters[at].waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        state.waiters.remove(at);
        self.waiter = None;
        let free = pool.shared.take(state, class);
        Poll::Ready(pool.wrap(free, class, self.len))
    }
}

impl Drop for Alloc<'_> {
    fn drop(&mut self) {
        let Some(id) = self.waiter else { return };
        let mut state = self.pool.shared.lock();
        if let Some(at) = state.waiters.iter().position(|w| w.id == id) {
            let waiter = state.waiters.remove(at).expect("index just found");
            if waiter.granted {
                state.used -= waiter.class_len;
            }
        }
        self.pool.shared.grant(state);
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for bytes that are already counted in `used`: from the free
    /// list, else new, after releasing cached blocks of other classes if both
    /// together would exceed the limit.
    fn take(&self, mut state: MutexGuard<'_, PoolState>, class: usize) -> FreeBlock {
        if let Some(free) = state.free[class].pop() {
            state.cached -= class_len(class);
            return free;
        }
        let mut surplus = Vec::new();
        for victim in (0..CLASSES).rev() {
            while state.used + state.cached > self.limit {
                let Some(free) = state.free[victim].pop() else { break };
                state.cached -= class_len(victim);
                surplus.push((free, victim));
            }
        }
        drop(state);
        for (FreeBlock { ptr, registered }, victim) in surplus {
            drop(registered);
            // SAFETY: a block of this class from the free list, owned by the pool.
            unsafe { release(ptr, class_len(victim)) };
        }
        let ptr = allocate(class_len(class));
        let memory = NonNull::slice_from_raw_parts(ptr, class_len(class));
        let registered = self.registrars.iter().filter_map(|registrar| registrar.register(memory)).collect();
        FreeBlock { ptr, registered }
    }

    fn give_back(&self, free: FreeBlock, len: usize) {
        let mut state = self.lock();
        state.used -= len;
        state.cached += len;
        state.free[class_of(len)].push(free);
        self.grant(state);
    }

    /// Serves waiters in order while there is room; wakes them unlocked.
    fn grant(&self, mut state: MutexGuard<'_, PoolState>) {
        let mut woken = Vec::new();
        let PoolState { used, waiters, .. } = &mut *state;
        for waiter in waiters.iter_mut() {
            if waiter.granted {
                continue;
            }
            if *used + waiter.class_len > self.limit {
                break;
            }
            *used += waiter.class_len;
            waiter.granted = true;
            woken.push(waiter.waker.clone());
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (class, blocks) in state.free.iter_mut().enumerate() {
            for FreeBlock { ptr, registered } in blocks.drain(..) {
                drop(registered);
                // SAFETY: a block of this class from the free list, owned by the pool.
                unsafe { release(ptr, class_len(class)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::pin::pin;

    /// Memory that is registered: addresses and lengths.
    #[derive(Clone, Default)]
    struct Known(Arc<Mutex<BTreeMap<usize, usize>>>);

    struct Forgets(Known, usize);

    impl Registrar for Known {
        fn register(&self, memory: NonNull<[u8]>) -> Option<Registration> {
            let at = memory.cast::<u8>().as_ptr().addr();
            let before = self.0.lock().expect("no panic").insert(at, memory.len());
            assert_eq!(before, None, "registered twice");
            Some(Box::new(Forgets(self.clone(), at)))
        }
    }

    impl Drop for Forgets {
        fn drop(&mut self) {
            self.0.0.lock().expect("no panic").remove(&self.1).expect("registered");
        }
    }

    #[test]
    fn memory_of_a_pool_is_registered_from_allocation_to_release() {
        let known = Known::default();
        let covers = |buf: &BufMut| {
            let known = known.0.lock().expect("no panic");
            let (at, len) = known.range(..=buf.as_ptr().addr()).next_back().expect("registered");
            at + len >= buf.as_ptr().addr() + buf.len()
        };
        let pool = BufPool::registered(BUF_MAX, vec![Arc::new(known.clone())]);
        let some: Vec<_> = (0..8).map(|n| pool.try_alloc(5000 << (n % 3)).expect("room")).collect();
        assert!(some.iter().all(covers));
        drop(some);
        // Kept for reuse, and known still; released for a larger one.
        assert_eq!(known.0.lock().expect("no panic").len(), 8);
        let all = pool.try_alloc(BUF_MAX).expect("room");
        assert!(covers(&all));
        assert_eq!(known.0.lock().expect("no panic").len(), 1);
        // The last buffer outlives the pool's handles.
        drop(pool);
        assert!(covers(&all));
        drop(all);
        assert!(known.0.lock().expect("no panic").is_empty());
    }

    fn poll_once<F: Future>(f: Pin<&mut F>) -> Poll<F::Output> {
        f.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn buffers_are_aligned_and_reused() {
        let pool = BufPool::new(BUF_MAX);
        let buf = pool.try_alloc(5000).expect("room");
        assert_eq!((buf.len(), buf.as_ptr() as usize % BUF_ALIGN, pool.used()), (5000, 0, 8192));
        let at = buf.as_ptr();
        drop(buf);
        assert_eq!(pool.used(), 0);
        assert_eq!(pool.try_alloc(8192).expect("room").as_ptr(), at);
    }

    #[test]
    fn waiters_are_served_in_order_and_never_above_the_limit() {
        let pool = BufPool::new(BUF_MAX);
        let all = pool.try_alloc(BUF_MAX).expect("room");
        let mut large = pin!(pool.alloc(BUF_MAX / 2));
        let mut small = pin!(pool.alloc(1));
        assert!(poll_once(large.as_mut()).is_pending());
        assert!(poll_once(small.as_mut()).is_pending());
        assert!(pool.try_alloc(1).is_none(), "no request overtakes a waiter");
        drop(all);
        let Poll::Ready(first) = poll_once(large.as_mut()) else { panic!("served") };
        let Poll::Ready(second) = poll_once(small.as_mut()) else { panic!("served") };
        assert_eq!(pool.used(), BUF_MAX / 2 + BUF_ALIGN);
        drop((first, second));
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_small_request_does_not_pass_a_large_one_that_waits() {
        let pool = BufPool::new(BUF_MAX);
        let (one, two) = (pool.try_alloc(BUF_MAX / 2), pool.try_alloc(BUF_MAX / 2));
        let mut large = pin!(pool.alloc(BUF_MAX));
        assert!(one.is_some() && two.is_some() && poll_once(large.as_mut()).is_pending());
        drop(one);
        assert!(pool.try_alloc(1).is_none(), "there is room for it, but not before the one that waits");
        drop(two);
        assert!(poll_once(large.as_mut()).is_ready());
    }

    #[test]
    fn a_dropped_waiter_gives_its_grant_to_the_next() {
        let pool = BufPool::new(BUF_MAX);
        let all = pool.try_alloc(BUF_MAX).expect("room");
        let mut next = pin!(pool.alloc(BUF_MAX));
        {
            let mut gone = pin!(pool.alloc(BUF_MAX));
            assert!(poll_once(gone.as_mut()).is_pending());
            assert!(poll_once(next.as_mut()).is_pending());
            drop(all);
        }
        assert!(poll_once(next.as_mut()).is_ready());
    }

    #[test]
    fn a_buffer_is_writable_again_once_it_is_not_shared() {
        let buf = Buf::copy_of(&[1, 2, 3]);
        let (other, segment) = (buf.clone(), buf.segment());
        let buf = buf.try_mut().map(drop).expect_err("shared");
        drop(other);
        let buf = buf.try_mut().map(drop).expect_err("lent to the kernel");
        drop(segment);
        assert_eq!(buf.try_mut().expect("alone")[..], [1, 2, 3]);
    }

    #[test]
    fn split_windows_are_disjoint_and_join_again() {
        let mut a = BufMut::zeroed(100);
        let mut b = a.split_off(40);
        a.fill(1);
        b.fill(2);
        assert_eq!((a.len(), b.len()), (40, 60));
        a.unsplit(b).expect("adjacent");
        assert_eq!((a[39], a[40], a.len()), (1, 2, 100));
        assert!(a.unsplit(BufMut::zeroed(1)).is_err());
    }
}
