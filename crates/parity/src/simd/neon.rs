//! NEON: vectors of 16 bytes. Products are looked up by halves of bytes.

use super::Vector;
use crate::field::{HALVES, POLYNOMIAL};
use crate::simd;
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
struct Neon(uint8x16_t);

impl Vector for Neon {
    const BYTES: usize = 16;
    type Factor = [uint8x16_t; 2];

    #[inline(always)]
    unsafe fn zero() -> Neon {
        // SAFETY: the processor has NEON.
        Neon(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Neon {
        // SAFETY: 16 bytes to read, of any alignment.
        Neon(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 16 bytes to write, of any alignment.
        unsafe { vst1q_u8(to, self.0) }
    }

    /// Without intrinsics for it, an ordinary store: these processors notice
    /// that whole lines are written and do not read them first.
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as the caller's.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn fence() {}

    /// Left to the processor: there is no stable intrinsic.
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}

    #[inline(always)]
    unsafe fn xor(self, other: Neon) -> Neon {
        // SAFETY: the processor has NEON.
        Neon(unsafe { veorq_u8(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Neon {
        // SAFETY: the processor has NEON.
        unsafe {
            // Shifting the sign in from above gives all ones where a bit left.
            let carries = vreinterpretq_u8_s8(vshrq_n_s8::<7>(vreinterpretq_s8_u8(self.0)));
            let reduce = vandq_u8(carries, vdupq_n_u8(POLYNOMIAL));
            Neon(veorq_u8(vshlq_n_u8::<1>(self.0), reduce))
        }
    }

    #[inline(always)]
    unsafe fn factor(constant: u8) -> [uint8x16_t; 2] {
        let table = HALVES[usize::from(constant)].0.as_ptr();
        // SAFETY: the table has twice 16 bytes.
        unsafe { [vld1q_u8(table), vld1q_u8(table.add(16))] }
    }

    #[inline(always)]
    unsafe fn times(self, [low, high]: [uint8x16_t; 2]) -> Neon {
        // SAFETY: the processor has NEON.
        unsafe {
            let lower = vandq_u8(self.0, vdupq_n_u8(0x0f));
            let upper = vshrq_n_u8::<4>(self.0);
            Neon(veorq_u8(vqtbl1q_u8(low, lower), vqtbl1q_u8(high, upper)))
        }
    }
}

/// [`simd::xor`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn xor(dst: &mut [u8], sources: &[&[u8]], keep: bool) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::xor::<Neon, 8>(dst, sources, keep) }
}

/// [`simd::pq`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::pq::<Neon, 8>(data, p, q) }
}

/// [`simd::combine`] compiled for this instruction set.
///
/// # Safety
/// All slices have the same length.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn combine(dst: &mut [u8], sources: &[&[u8]], factors: &[u8], keep: bool) {
    // SAFETY: as the caller's; the features say that the processor has the vector.
    unsafe { simd::combine::<Neon, 4>(dst, sources, factors, keep) }
}
