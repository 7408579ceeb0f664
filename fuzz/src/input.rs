//! Decisions out of a fuzzer's bytes.

/// Bytes that are used up by decisions; when they have run out every decision
/// is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to `max` bytes.
    pub(crate) fn bytes(&mut self, max: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(max.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.bytes(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.u8()) % all.len()]
    }

    /// An index below `len`, which is not 0.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::from(self.u8()) % len
    }

    /// A length: mostly one that means something, sometimes any.
    pub(crate) fn length(&mut self) -> u32 {
        match self.u8() {
            0 => 0,
            code @ 1..=0xEF => u32::from(code % 16 + 1) << (code / 16),
            _ => self.u32(),
        }
    }
}
