//! Numbers and byte strings in frames: little-endian, lengths first.

/// What a peer sent makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A field reaches past the end.
    #[error("a frame ends within a field")]
    Short,
    /// Bytes are left over.
    #[error("a frame has {0} bytes too many")]
    Long(usize),
    /// A field has a value that it cannot have.
    #[error("a frame has an impossible {0}")]
    Value(&'static str),
    /// A name that leads outside of the destination, or is none.
    #[error("{0}")]
    Name(#[from] super::NameError),
}

/// Writes fields to the end of a vector.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Words for people; longer ones are cut.
    fn words(&mut self, words: &str) {
        let mut end = words.len().min(WORDS_MAX);
        while !words.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&words.as_bytes()[..end]);
    }

    /// A byte string of up to 65,535 bytes; longer ones are cut.
    fn bytes(&mut self, bytes: &[u8]) {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(len);
        self.put(&bytes[..usize::from(len)]);
    }
}

/// The longest words for people that are said, in bytes: with a name they fit a head.
/// What another has said comes here escaped, and may be longer than it was.
const WORDS_MAX: usize = 8 << 10;

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads fields from the front.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// Words for people. They cannot forge lines of output, or do to a terminal what
    /// its user does not want.
    pub(crate) fn words(&mut self) -> Result<String, Malformed> {
        Ok(super::printable(self.bytes()?).into_owned())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Long(self.0.len())) }
    }
}
