//! AVX-512 with GFNI: vectors of 64 bytes. A product with a constant is one
//! instruction, and so is a sum of three.

use super::Vector;
use crate::field::MATRICES;
use crate::simd;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct Avx512(__m512i);

/// The truth table of a sum of three bits, as `VPTERNLOG` takes it.
const SUM: i32 = 0x96;

impl Vector for Avx512 {
    const BYTES: usize = 64;
    type Factor = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Avx512 {
        // SAFETY: the processor has AVX-512.
        Avx512(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Avx512 {
        // SAFETY: 64 bytes to read, of any alignment.
        Avx512(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 bytes to write, of any alignment.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: 64 bytes to write, aligned; `fence` comes before any other
        // thread sees the memory.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
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
    unsafe fn xor(self, other: Avx512) -> Avx512 {
        // SAFETY: the processor has AVX-512.
        Avx512(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Avx512, c: Avx512) -> Avx512 {
        // SAFETY: the processor has AVX-512.
        Avx512(unsafe { _mm512_ternarylogic_epi64::<SUM>(self.0, b.0, c.0) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Avx512 {
        // SAFETY: as the caller's.
        unsafe { self.times(Avx512::factor(2)) }
    }

    #[inline(always)]
    unsafe fn horner2(self, b: Avx512, c: Avx512) -> Avx512 {
        // SAFETY: as the caller's.
        unsafe { self.times(Avx512::factor(4)).xor3(b.double(), c) }
    }

    #[inline(always)]
    unsafe fn factor(constant: u8) -> __m512i {
        // SAFETY: the processor has AVX-512.
        unsafe { _mm512_set1_epi64(MATRICES[usize::from(constant)] as i64) }
    }

    #[inline(always)]
    unsafe fn times(self, factor: __m512i) -> Avx512 {
        // SAFETY: the processor has GFNI.
        Avx512(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(self.0, factor) })
    }
}

/// [`simd::xor`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(crate) unsafe fn xor(dst: &mut [u8], sources: &[&[u8]], keep: bool) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::xor::<Avx512, 8>(dst, sources, keep) }
}

/// [`simd::pq`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(crate) unsafe fn pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::pq::<Avx512, 8>(data, p, q) }
}

/// [`simd::combine`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(crate) unsafe fn combine(dst: &mut [u8], sources: &[&[u8]], factors: &[u8], keep: bool) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::combine::<Avx512, 4>(dst, sources, factors, keep) }
}
