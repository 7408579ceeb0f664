//! Parity of stripes: XOR (P), and P+Q that survives the loss of any two units.
//!
//! A *stripe* is some *data units* of the same length and one or two *parity
//! units* of that length:
//!
//! - P is the sum of the data units, byte by byte (sums are exclusive ors).
//! - Q is the sum of the data units, unit `i` times 2<sup>i</sup>, in the
//!   field of 256 elements with the polynomial 0x11d.
//!
//! Source: H. P. Anvin, "The mathematics of RAID-6". Linux' md and ISA-L
//! compute the same bytes.
//!
//! All work is done on slices: nothing says that a slice is a whole unit, so
//! the same functions serve a part of a stripe. Lengths and alignments are
//! free; multiples of 512 bytes at multiples of 64 are fastest.
//!
//! Lengths that differ within a call, and more than [`MAX_DATA`] data units,
//! are mistakes of the program, and panic.
//!
//! ```
//! use longhaul_parity::{Unit, pq, recover};
//!
//! let data = [b"one ", b"two ", b"four"].map(|unit| &unit[..]);
//! let (mut p, mut q) = ([0; 4], [0; 4]);
//! pq(&data, &mut p, &mut q);
//!
//! let (mut first, mut third) = ([0; 4], [0; 4]);
//! let mut wanted = [(Unit::Data(0), &mut first[..]), (Unit::Data(2), &mut third[..])];
//! recover(&[None, Some(data[1]), None], Some(&p), Some(&q), &mut wanted)?;
//! assert_eq!((&first, &third), (b"one ", b"four"));
//! # Ok::<(), longhaul_parity::Unrecoverable>(())
//! ```

mod check;
mod field;
mod kernels;
mod portable;
mod recover;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod simd;

pub use check::Verdict;
pub use kernels::{Kernels, MAX_DATA};
pub use recover::{Unit, Unrecoverable};

/// `dst` = the sum of `sources`; zeros without sources.
///
/// # Panics
/// If lengths differ.
pub fn xor(dst: &mut [u8], sources: &[&[u8]]) {
    Kernels::best().xor(dst, sources);
}

/// Adds `sources` to `dst`.
///
/// # Panics
/// If lengths differ.
pub fn xor_into(dst: &mut [u8], sources: &[&[u8]]) {
    Kernels::best().xor_into(dst, sources);
}

/// P and Q of `data`. What `p` and `q` were does not matter.
///
/// # Panics
/// If lengths differ, or for more than [`MAX_DATA`] units.
pub fn pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    Kernels::best().pq(data, p, q);
}

/// Makes parity follow a write of `new` over `old` in data unit `index`
/// (read-modify-write). Pass `None` for a parity unit that there is not, or
/// that is lost.
///
/// # Panics
/// If lengths differ, or `index` is not below [`MAX_DATA`].
pub fn update(index: usize, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
    Kernels::best().update(index, old, new, p, q);
}

/// As [`update`], given the sum of old and new data.
///
/// # Panics
/// As [`update`].
pub fn update_by(index: usize, delta: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
    Kernels::best().update_by(index, delta, p, q);
}

/// Computes the `wanted` units of a stripe from the remaining ones.
///
/// `data`, `p` and `q` hold the readable units; a lost or unneeded unit is `None`, as is the `q` of
/// a stripe with P alone. Any units may be wanted: a degraded read wants only the one that it
/// lacks.
///
/// # Errors
/// If more data units are missing than parity units are left; nothing is written then.
///
/// # Panics
/// If lengths differ, a unit is wanted that the stripe does not have, or for more than [`MAX_DATA`]
/// data units.
pub fn recover(
    data: &[Option<&[u8]>],
    p: Option<&[u8]>,
    q: Option<&[u8]>,
    wanted: &mut [(Unit, &mut [u8])],
) -> Result<(), Unrecoverable> {
    Kernels::best().recover(data, p, q, wanted)
}

/// Compares parity with the data. With P and Q a single wrong unit is named: if all bytes that do
/// not fit are explained by the same unit.
///
/// The name is an inference: two wrong units can together point at a correct third. A caller with
/// checksums should check those first.
///
/// # Panics
/// If lengths differ, or for more than [`MAX_DATA`] data units.
#[must_use]
pub fn check(data: &[&[u8]], p: &[u8], q: Option<&[u8]>) -> Verdict {
    Kernels::best().check(data, p, q)
}
