//! AVX2: vectors of 32 bytes. Products are looked up by halves of bytes.

use super::Vector;
use crate::field::{HALVES, POLYNOMIAL};
use crate::simd;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct Avx2(__m256i);

// All unsafe blocks here, as the trait has it: the processor has AVX2, and
// pointers are good for a vector.
impl Vector for Avx2 {
    const BYTES: usize = 32;
    type Factor = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> Avx2 {
        // SAFETY: the processor has AVX2.
        Avx2(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Avx2 {
        // SAFETY: 32 bytes to read, of any alignment.
        Avx2(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 32 bytes to write, of any alignment.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: 32 bytes to write, aligned; `fence` comes before any other
        // thread sees the memory.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: every x86-64 has it.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: a hint; the address may be anything.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Avx2) -> Avx2 {
        // SAFETY: the processor has AVX2.
        Avx2(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Avx2 {
        // SAFETY: the processor has AVX2.
        unsafe {
            // As signed numbers, those with the top bit set are below zero.
            let carries = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
            let reduce = _mm256_and_si256(carries, _mm256_set1_epi8(POLYNOMIAL as i8));
            Avx2(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), reduce))
        }
    }

    #[inline(always)]
    unsafe fn factor(constant: u8) -> [__m256i; 2] {
        let table = HALVES[usize::from(constant)].0.as_ptr();
        // SAFETY: the table has twice 16 bytes.
        unsafe {
            [
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn times(self, [low, high]: [__m256i; 2]) -> Avx2 {
        // SAFETY: the processor has AVX2.
        unsafe {
            let half = _mm256_set1_epi8(0x0f);
            let lower = _mm256_and_si256(self.0, half);
            let upper = _mm256_and_si256(_mm256_srli_epi64::<4>(self.0), half);
            Avx2(_mm256_xor_si256(_mm256_shuffle_epi8(low, lower), _mm256_shuffle_epi8(high, upper)))
        }
    }
}

/// [`simd::xor`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn xor(dst: &mut [u8], sources: &[&[u8]], keep: bool) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::xor::<Avx2, 8>(dst, sources, keep) }
}

/// [`simd::pq`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::pq::<Avx2, 4>(data, p, q) }
}

/// [`simd::combine`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn combine(dst: &mut [u8], sources: &[&[u8]], factors: &[u8], keep: bool) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::combine::<Avx2, 4>(dst, sources, factors, keep) }
}
