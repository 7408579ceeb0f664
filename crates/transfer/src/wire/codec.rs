//! Encoding of fields: little-endian numbers, and byte strings behind their length.

/// Why a received frame is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A field extends beyond the end of the frame.
    #[error("a frame ends within a field")]
    Short,
    /// Bytes are left behind the last field.
    #[error("a frame has {0} bytes too many")]
    Long(usize),
    /// A field has an invalid value.
    #[error("a frame has an impossible {0}")]
    Value(&'static str),
    /// A name that leads out of the destination, or is invalid.
    #[error("{0}")]
    Name(#[from] super::NameError),
}

/// Appends fields to a buffer.
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

    /// Text for the user, truncated to [`WORDS_MAX`] bytes.
    fn words(&mut self, words: &str) {
        let mut end = words.len().min(WORDS_MAX);
        while !words.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&words.as_bytes()[..end]);
    }

    /// A byte string, truncated to 65,535 bytes.
    fn bytes(&mut self, bytes: &[u8]) {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(len);
        self.put(&bytes[..usize::from(len)]);
    }
}

/// The longest text for the user, in bytes: together with a path it fits a head. Text
/// that is forwarded from another peer is escaped, and may have grown by that.
const WORDS_MAX: usize = 8 << 10;

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads fields in order.
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
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::Value("text"))?;
        Ok(text.to_owned())
    }

    /// Text for the user; control characters are escaped, so that a peer can neither forge
    /// lines of output nor control the terminal.
    pub(crate) fn words(&mut self) -> Result<String, Malformed> {
        Ok(super::printable(self.bytes()?).into_owned())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that no bytes are left.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Long(self.0.len())) }
    }
}
