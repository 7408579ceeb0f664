//! The field of 256 elements that Q is computed in.
//!
//! Bytes are polynomials over GF(2) modulo x^8 + x^4 + x^3 + x^2 + 1 ([`POLYNOMIAL`]); x, the byte
//! 2, generates all elements but zero. Linux' md and ISA-L use the same field (H. P. Anvin, "The
//! mathematics of RAID-6", section 2), and so compute the same parity.

/// The polynomial of the field, without x^8: what a carry out of a byte adds.
pub(crate) const POLYNOMIAL: u8 = 0x1d;

/// Powers of the generator before they repeat, and so the data units that Q can distinguish.
pub(crate) const ORDER: usize = 255;

/// `x * 2`.
const fn double(x: u8) -> u8 {
    (x << 1) ^ (if x & 0x80 != 0 { POLYNOMIAL } else { 0 })
}

/// 2 to the power of each index.
const EXP: [u8; ORDER] = {
    let mut table = [0; ORDER];
    let (mut i, mut x) = (0, 1);
    while i < ORDER {
        table[i] = x;
        x = double(x);
        i += 1;
    }
    table
};

/// The inverse of [`EXP`]; the entry of zero, which is no power, is not used.
const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < ORDER {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// 2 to the power `exponent`: the factor of data unit `exponent` in Q.
pub(crate) const fn power(exponent: usize) -> u8 {
    EXP[exponent % ORDER]
}

/// The product of two elements.
pub(crate) const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { power(LOG[a as usize] as usize + LOG[b as usize] as usize) }
}

/// The element that `a` has to be multiplied with to give one. Zero has none.
pub(crate) const fn inverse(a: u8) -> u8 {
    debug_assert!(a != 0, "zero has no inverse");
    power(ORDER - LOG[a as usize] as usize)
}

/// The exponent that gives `a`; `None` for zero.
pub(crate) const fn logarithm(a: u8) -> Option<usize> {
    if a == 0 { None } else { Some(LOG[a as usize] as usize) }
}

/// Products of a constant with every half of a byte, for processors that look
/// up 16 bytes at once: first those of 0 to 15, then those of 0, 16, to 240.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[repr(align(32))]
pub(crate) struct Halves(pub(crate) [u8; 32]);

/// [`Halves`] of each constant.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) static HALVES: [Halves; 256] = {
    let mut all = [const { Halves([0; 32]) }; 256];
    let mut c = 0;
    while c < 256 {
        let mut i = 0;
        while i < 16 {
            all[c].0[i] = multiply(c as u8, i as u8);
            all[c].0[16 + i] = multiply(c as u8, (i << 4) as u8);
            i += 1;
        }
        c += 1;
    }
    all
};

/// Multiplication with a constant as a matrix over GF(2), as `GF2P8AFFINEQB`
/// takes it: byte 7 - i of the matrix says which bits of the input add up to
/// bit i of the output (Intel SDM, volume 2, `GF2P8AFFINEQB`).
#[cfg(target_arch = "x86_64")]
pub(crate) static MATRICES: [u64; 256] = {
    let mut all = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut bit = 0;
        while bit < 8 {
            // Column `bit`: what this bit of the input contributes.
            let column = multiply(c as u8, 1 << bit);
            let mut i = 0;
            while i < 8 {
                all[c] |= ((column >> i & 1) as u64) << (8 * (7 - i) + bit);
                i += 1;
            }
            bit += 1;
        }
        c += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication as on paper: shift, add, reduce.
    fn long_multiply(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..15).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn products_inverses_and_powers() {
        for a in 0..=255u8 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), long_multiply(a, b), "{a} * {b}");
            }
            if a != 0 {
                assert_eq!(multiply(a, inverse(a)), 1, "1 / {a}");
                assert_eq!(logarithm(a).map(power), Some(a));
            }
        }
        assert_eq!(logarithm(0), None);
        assert_eq!((power(0), power(1), power(8), power(ORDER)), (1, 2, POLYNOMIAL, 1));
    }
}
