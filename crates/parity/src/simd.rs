//! The kernels in vectors, written once for all instruction sets.
//!
//! An instruction set is an implementation of [`Vector`] and an entry point per kernel that is
//! compiled with the features of the set; the loops here are inlined into those. The end of a unit,
//! if shorter than a vector, is done by the portable kernels.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use crate::portable;

/// Sources and results together of so many bytes or more are written past the
/// caches. A smaller result is used at once and found in a second-level cache, of
/// which 1 to 2 MiB are common; a larger one would be evicted anyway, and other
/// data with it.
const STREAM_FROM: usize = 4 << 20;

/// How many bytes ahead of the loads each source is asked for, when they do
/// not all fit in the caches. Measured on one machine beside ISA-L: 256 and 768
/// give the same; 2048, and none at all, a few per cent less.
const AHEAD: usize = 768;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A register of [`Vector::BYTES`] elements of the field, and its operations.
///
/// # Safety
/// All methods need a processor with the instruction set of the type. Pointers must be good for
/// `BYTES` bytes; they need no alignment, except for [`Vector::stream`].
pub(crate) trait Vector: Copy {
    /// Bytes of a vector.
    const BYTES: usize;
    /// A constant to multiply with.
    type Factor: Copy;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// As `store`, past the caches. `to` is a multiple of `BYTES`.
    unsafe fn stream(self, to: *mut u8);
    /// Orders streaming stores before later stores.
    unsafe fn fence();
    /// Asks for the line of an address, which need not be valid.
    unsafe fn prefetch(from: *const u8);
    unsafe fn xor(self, other: Self) -> Self;
    /// The sum of three.
    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe { self.xor(b).xor(c) }
    }
    /// `2 * self`.
    unsafe fn double(self) -> Self;
    /// Two steps of Horner's rule: `4 * self + 2 * b + c`.
    #[inline(always)]
    unsafe fn horner2(self, b: Self, c: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe { self.double().xor(b).double().xor(c) }
    }
    unsafe fn factor(constant: u8) -> Self::Factor;
    unsafe fn times(self, factor: Self::Factor) -> Self;
}

/// How results get to memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Results {
    /// Through the caches.
    Cached,
    /// Past them, the sources being asked for ahead.
    Streamed,
}

/// A range of a call in steps of a fixed number of bytes.
#[derive(Clone, Copy)]
struct Range {
    at: usize,
    end: usize,
}

/// Writes a vector of a result.
///
/// # Safety
/// As for [`Vector::store`] or, streamed, [`Vector::stream`].
#[inline(always)]
unsafe fn put<V: Vector, const STREAM: bool>(vector: V, to: *mut u8) {
    // SAFETY: as the caller's.
    unsafe { if STREAM { vector.stream(to) } else { vector.store(to) } }
}

/// Asks for the lines of the step that is [`AHEAD`] of `from`.
///
/// # Safety
/// As for [`Vector::prefetch`].
#[inline(always)]
unsafe fn ask<V: Vector, const N: usize>(from: *const u8) {
    for line in 0..(N * V::BYTES).div_ceil(LINE) {
        // SAFETY: as the caller's; an address past the end is only a hint.
        unsafe { V::prefetch(from.wrapping_add(AHEAD + line * LINE)) };
    }
}

/// The sum of `sources` in `range`, `N` vectors a step.
///
/// # Safety
/// The processor has `V`; every source and `dst` have `range.end` bytes, and
/// `range` is a whole number of steps; streamed, `dst + range.at` is aligned.
#[inline(always)]
unsafe fn xor_range<V: Vector, const N: usize, const STREAM: bool>(
    dst: *mut u8,
    sources: &[&[u8]],
    keep: bool,
    range: Range,
) {
    let mut at = range.at;
    while at < range.end {
        // SAFETY: `at + N * BYTES <= range.end`, which all slices reach.
        unsafe {
            let mut sum = [V::zero(); N];
            if keep {
                for (j, sum) in sum.iter_mut().enumerate() {
                    *sum = V::load(dst.add(at + j * V::BYTES));
                }
            }
            let (pairs, rest) = sources.as_chunks::<2>();
            for [a, b] in pairs {
                let (a, b) = (a.as_ptr().add(at), b.as_ptr().add(at));
                if STREAM {
                    ask::<V, N>(a);
                    ask::<V, N>(b);
                }
                for (j, sum) in sum.iter_mut().enumerate() {
                    *sum = sum.xor3(V::load(a.add(j * V::BYTES)), V::load(b.add(j * V::BYTES)));
                }
            }
            for a in rest {
                let a = a.as_ptr().add(at);
                if STREAM {
                    ask::<V, N>(a);
                }
                for (j, sum) in sum.iter_mut().enumerate() {
                    *sum = sum.xor(V::load(a.add(j * V::BYTES)));
                }
            }
            for (j, sum) in sum.into_iter().enumerate() {
                put::<V, STREAM>(sum, dst.add(at + j * V::BYTES));
            }
        }
        at += N * V::BYTES;
    }
}

/// P and Q of `data` in `range`, `N` vectors of each a step.
///
/// # Safety
/// As for [`xor_range`], for `p` and `q`.
#[inline(always)]
unsafe fn pq_range<V: Vector, const N: usize, const STREAM: bool>(
    data: &[&[u8]],
    p: *mut u8,
    q: *mut u8,
    range: Range,
) {
    let mut at = range.at;
    while at < range.end {
        // SAFETY: `at + N * BYTES <= range.end`, which all slices reach.
        unsafe {
            let (mut sum, mut weighted) = ([V::zero(); N], [V::zero(); N]);
            let (rest, pairs) = data.as_rchunks::<2>();
            // From the last unit to the first, as Horner's rule wants it.
            for [c, b] in pairs.iter().rev() {
                let (b, c) = (b.as_ptr().add(at), c.as_ptr().add(at));
                if STREAM {
                    ask::<V, N>(b);
                    ask::<V, N>(c);
                }
                for j in 0..N {
                    let (b, c) = (V::load(b.add(j * V::BYTES)), V::load(c.add(j * V::BYTES)));
                    sum[j] = sum[j].xor3(b, c);
                    weighted[j] = weighted[j].horner2(b, c);
                }
            }
            for b in rest {
                let b = b.as_ptr().add(at);
                if STREAM {
                    ask::<V, N>(b);
                }
                for j in 0..N {
                    let b = V::load(b.add(j * V::BYTES));
                    sum[j] = sum[j].xor(b);
                    weighted[j] = weighted[j].double().xor(b);
                }
            }
            for j in 0..N {
                put::<V, STREAM>(sum[j], p.add(at + j * V::BYTES));
                put::<V, STREAM>(weighted[j], q.add(at + j * V::BYTES));
            }
        }
        at += N * V::BYTES;
    }
}

/// A sum of products in `range`, `N` vectors a step.
///
/// # Safety
/// As for [`xor_range`].
#[inline(always)]
unsafe fn combine_range<V: Vector, const N: usize>(
    dst: *mut u8,
    sources: &[&[u8]],
    factors: &[u8],
    keep: bool,
    range: Range,
) {
    let mut at = range.at;
    while at < range.end {
        // SAFETY: `at + N * BYTES <= range.end`, which all slices reach.
        unsafe {
            let mut sum = [V::zero(); N];
            if keep {
                for (j, sum) in sum.iter_mut().enumerate() {
                    *sum = V::load(dst.add(at + j * V::BYTES));
                }
            }
            for (source, factor) in sources.iter().zip(factors) {
                let (source, factor) = (source.as_ptr().add(at), V::factor(*factor));
                for (j, sum) in sum.iter_mut().enumerate() {
                    *sum = sum.xor(V::load(source.add(j * V::BYTES)).times(factor));
                }
            }
            for (j, sum) in sum.into_iter().enumerate() {
                sum.store(dst.add(at + j * V::BYTES));
            }
        }
        at += N * V::BYTES;
    }
}

/// Cuts `from..len` into steps of `N` vectors, then of one; the remainder starts at the second end.
#[inline(always)]
fn steps<V: Vector, const N: usize>(from: usize, len: usize) -> (Range, Range) {
    let wide = from + (len - from) / (N * V::BYTES) * (N * V::BYTES);
    let narrow = wide + (len - wide) / V::BYTES * V::BYTES;
    (Range { at: from, end: wide }, Range { at: wide, end: narrow })
}

/// How to write the results of a call that touches `touched` bytes, and how
/// many bytes to do by other means until the first result is aligned.
#[inline(always)]
fn results<V: Vector>(touched: usize, dst: &[&[u8]]) -> (Results, usize) {
    let off = |slice: &[u8]| slice.as_ptr().addr().wrapping_neg() % V::BYTES;
    let head = dst.first().map_or(0, |slice| off(slice));
    let alike = dst.iter().all(|slice| off(slice) == head);
    if touched >= STREAM_FROM && alike { (Results::Streamed, head) } else { (Results::Cached, 0) }
}

/// The slices from `at` on.
fn tails<'a>(slices: &[&'a [u8]], at: usize) -> Vec<&'a [u8]> {
    slices.iter().map(|slice| &slice[at..]).collect()
}

/// The slices up to `end`.
fn heads<'a>(slices: &[&'a [u8]], end: usize) -> Vec<&'a [u8]> {
    slices.iter().map(|slice| &slice[..end]).collect()
}

/// [`portable::xor`] with vectors.
///
/// # Safety
/// The processor has `V`. All slices have the same length.
#[inline(always)]
pub(crate) unsafe fn xor<V: Vector, const N: usize>(dst: &mut [u8], sources: &[&[u8]], keep: bool) {
    let len = dst.len();
    let (how, head) = results::<V>(len * (sources.len() + 1), &[dst]);
    if head > 0 {
        portable::xor(&mut dst[..head], &heads(sources, head), keep);
    }
    let (wide, narrow) = steps::<V, N>(head, len);
    let to = dst.as_mut_ptr();
    // SAFETY: the ranges end within the slices; `results` aligned the first.
    unsafe {
        if how == Results::Streamed {
            xor_range::<V, N, true>(to, sources, keep, wide);
            V::fence();
        } else {
            xor_range::<V, N, false>(to, sources, keep, wide);
        }
        xor_range::<V, 1, false>(to, sources, keep, narrow);
    }
    if narrow.end < len {
        portable::xor(&mut dst[narrow.end..], &tails(sources, narrow.end), keep);
    }
}

/// [`portable::pq`] with vectors.
///
/// # Safety
/// The processor has `V`. All slices have the same length.
#[inline(always)]
pub(crate) unsafe fn pq<V: Vector, const N: usize>(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let len = p.len();
    let (how, head) = results::<V>(len * (data.len() + 2), &[p, q]);
    if head > 0 {
        portable::pq(&heads(data, head), &mut p[..head], &mut q[..head]);
    }
    let (wide, narrow) = steps::<V, N>(head, len);
    let (to_p, to_q) = (p.as_mut_ptr(), q.as_mut_ptr());
    // SAFETY: the ranges end within the slices; `results` aligned the first.
    unsafe {
        if how == Results::Streamed {
            pq_range::<V, N, true>(data, to_p, to_q, wide);
            V::fence();
        } else {
            pq_range::<V, N, false>(data, to_p, to_q, wide);
        }
        pq_range::<V, 1, false>(data, to_p, to_q, narrow);
    }
    let done = narrow.end;
    if done < len {
        portable::pq(&tails(data, done), &mut p[done..], &mut q[done..]);
    }
}

/// [`portable::combine`] with vectors.
///
/// # Safety
/// The processor has `V`. All slices have the same length.
#[inline(always)]
pub(crate) unsafe fn combine<V: Vector, const N: usize>(
    dst: &mut [u8],
    sources: &[&[u8]],
    factors: &[u8],
    keep: bool,
) {
    let (wide, narrow) = steps::<V, N>(0, dst.len());
    let to = dst.as_mut_ptr();
    // SAFETY: the ranges end within the slices.
    unsafe {
        combine_range::<V, N>(to, sources, factors, keep, wide);
        combine_range::<V, 1>(to, sources, factors, keep, narrow);
    }
    let done = narrow.end;
    if done < dst.len() {
        portable::combine(&mut dst[done..], &tails(sources, done), factors, keep);
    }
}
