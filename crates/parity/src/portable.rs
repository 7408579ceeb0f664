//! The kernels without intrinsics: words of 64 bits, in blocks that compilers
//! turn into whatever vectors the processor's baseline has.
//!
//! All slices of a call have the same length; the callers see to that.

use crate::field::POLYNOMIAL;

/// Words of a block: few enough that P and Q of a block stay in the cache
/// nearest to the processor, and enough to forget about the loops around.
const WORDS: usize = 64;

/// Bytes of a block.
const BLOCK: usize = WORDS * 8;

type Block = [u64; WORDS];

/// The bytes of `source` from `at`, at most a block; zeros behind its end.
#[inline(always)]
fn load(source: &[u8], at: usize) -> Block {
    let mut block = [0; WORDS];
    let bytes = &source[at..source.len().min(at + BLOCK)];
    let (words, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in block.iter_mut().zip(words) {
        *word = u64::from_ne_bytes(*bytes);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        block[words.len()] = u64::from_ne_bytes(last);
    }
    block
}

/// Puts a block where [`load`] would read it.
#[inline(always)]
fn store(block: &Block, dst: &mut [u8], at: usize) {
    let end = dst.len().min(at + BLOCK);
    let (words, rest) = dst[at..end].as_chunks_mut::<8>();
    let count = words.len();
    for (bytes, word) in words.iter_mut().zip(block) {
        *bytes = word.to_ne_bytes();
    }
    if !rest.is_empty() {
        let last = block[count].to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
fn add(to: &mut Block, other: &Block) {
    for (to, other) in to.iter_mut().zip(other) {
        *to ^= other;
    }
}

/// Multiplies each byte by two: bits move up, and where one left its byte the
/// polynomial is added (Anvin, section 4).
#[inline(always)]
fn double(block: &mut Block) {
    const TOP: u64 = 0x8080_8080_8080_8080;
    for word in block {
        let carries = (*word & TOP) >> 7;
        *word = ((*word & !TOP) << 1) ^ (carries * u64::from(POLYNOMIAL));
    }
}

/// `dst = sum of sources`, plus what `dst` was if `keep`.
pub(crate) fn xor(dst: &mut [u8], sources: &[&[u8]], keep: bool) {
    for at in (0..dst.len()).step_by(BLOCK) {
        let mut sum = if keep { load(dst, at) } else { [0; WORDS] };
        for source in sources {
            add(&mut sum, &load(source, at));
        }
        store(&sum, dst, at);
    }
}

/// `p = sum of data[i]`, `q = sum of 2^i * data[i]`, by Horner's rule.
pub(crate) fn pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    for at in (0..p.len()).step_by(BLOCK) {
        let (mut sum, mut weighted) = ([0; WORDS], [0; WORDS]);
        for unit in data.iter().rev() {
            let unit = load(unit, at);
            double(&mut weighted);
            add(&mut sum, &unit);
            add(&mut weighted, &unit);
        }
        store(&sum, p, at);
        store(&weighted, q, at);
    }
}

/// `dst = sum of factors[i] * sources[i]`, plus what `dst` was if `keep`.
pub(crate) fn combine(dst: &mut [u8], sources: &[&[u8]], factors: &[u8], keep: bool) {
    for at in (0..dst.len()).step_by(BLOCK) {
        // Horner's rule over the bits of the factors: seven doublings in all,
        // however many sources there are.
        let mut sum = [0; WORDS];
        for bit in (0..8).rev() {
            double(&mut sum);
            for (source, _) in sources.iter().zip(factors).filter(|(_, factor)| *factor >> bit & 1 == 1) {
                add(&mut sum, &load(source, at));
            }
        }
        if keep {
            add(&mut sum, &load(dst, at));
        }
        store(&sum, dst, at);
    }
}
