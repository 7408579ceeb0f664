//! Parity by the definition, a byte at a time, and stripes to try it on.

#![allow(dead_code, reason = "each test uses some of it")]

use fastrand::Rng;

/// `a * b` in the field, by shifting and adding.
pub(crate) fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a >= 0x80 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

/// Two to the power `exponent`.
pub(crate) fn power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |x, _| multiply(x, 2))
}

pub(crate) fn p(data: &[&[u8]], len: usize) -> Vec<u8> {
    (0..len).map(|at| data.iter().fold(0, |sum, unit| sum ^ unit[at])).collect()
}

pub(crate) fn q(data: &[&[u8]], len: usize) -> Vec<u8> {
    let factors: Vec<u8> = (0..data.len()).map(power).collect();
    let at = |at| data.iter().zip(&factors).fold(0, |sum, (unit, f)| sum ^ multiply(unit[at], *f));
    (0..len).map(at).collect()
}

/// Units of equal length at chosen distances from an alignment, in memory
/// that has something else before and behind each.
#[derive(Debug)]
pub(crate) struct Units {
    memory: Vec<Vec<u8>>,
    starts: Vec<usize>,
    len: usize,
}

/// The bytes around units.
const GUARD: u8 = 0xa5;
const MARGIN: usize = 256;

impl Units {
    /// A unit for each of `offsets`, bytes from a multiple of 64.
    pub(crate) fn new(offsets: &[usize], len: usize, random: &mut Rng) -> Units {
        let mut units = Units { memory: Vec::new(), starts: Vec::new(), len };
        for offset in offsets {
            let mut memory = vec![GUARD; len + 2 * MARGIN];
            let start = memory.as_ptr().align_offset(64) + 64 + offset;
            random.fill(&mut memory[start..start + len]);
            units.memory.push(memory);
            units.starts.push(start);
        }
        units
    }

    pub(crate) fn get(&self, unit: usize) -> &[u8] {
        &self.memory[unit][self.starts[unit]..][..self.len]
    }

    pub(crate) fn get_mut(&mut self, unit: usize) -> &mut [u8] {
        &mut self.memory[unit][self.starts[unit]..][..self.len]
    }

    /// Two at once.
    pub(crate) fn two_mut(&mut self, a: usize, b: usize) -> (&mut [u8], &mut [u8]) {
        let (at_a, at_b, len) = (self.starts[a], self.starts[b], self.len);
        let [a, b] = self.memory.get_disjoint_mut([a, b]).expect("two different units");
        (&mut a[at_a..][..len], &mut b[at_b..][..len])
    }

    pub(crate) fn all(&self) -> Vec<&[u8]> {
        (0..self.memory.len()).map(|unit| self.get(unit)).collect()
    }

    /// Whether nothing beside the units was written to.
    pub(crate) fn intact(&self) -> bool {
        self.memory.iter().zip(&self.starts).all(|(memory, start)| {
            memory[..*start].iter().chain(&memory[start + self.len..]).all(|b| *b == GUARD)
        })
    }
}
