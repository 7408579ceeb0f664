//! Fixed-length text: ASCII padded with spaces.

use crate::layout::Field;
use std::borrow::Cow;
use std::fmt;

/// `N` bytes of ASCII, padded with spaces on the right ("ASCII data
/// structures", NVMe Base 2.1, Theory of Operation).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ascii<const N: usize>([u8; N]);

impl<const N: usize> Ascii<N> {
    /// `text` cut to `N` bytes; a character that is not printable ASCII becomes `?`.
    pub fn new(text: &str) -> Ascii<N> {
        let mut bytes = [b' '; N];
        for (slot, c) in bytes.iter_mut().zip(text.chars()) {
            *slot = if (' '..='~').contains(&c) { c as u8 } else { b'?' };
        }
        Ascii(bytes)
    }

    /// The bytes as they are.
    pub fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The text without its padding (spaces or, from sloppy peers, NULs).
    pub fn text(&self) -> Cow<'_, str> {
        let end = self.0.iter().rposition(|&b| b != b' ' && b != 0).map_or(0, |last| last + 1);
        String::from_utf8_lossy(&self.0[..end])
    }
}

impl<const N: usize> fmt::Debug for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text(), f)
    }
}

impl<const N: usize> Field for Ascii<N> {
    const LEN: usize = N;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }
    fn get(bytes: &[u8]) -> Self {
        Ascii(Field::get(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_padded_cut_and_cleaned() {
        assert_eq!(Ascii::<4>::new("ab").as_bytes(), b"ab  ");
        assert_eq!(Ascii::<4>::new("abcdef").text(), "abcd");
        assert_eq!(Ascii::<4>::new("a\u{e9}\n").text(), "a??");
        assert_eq!(Ascii::<4>::get(b"x\0\0\0").text(), "x");
        assert_eq!(Ascii::<4>::get(b"    ").text(), "");
    }
}
