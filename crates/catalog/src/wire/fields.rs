//! Numbers and bytes of frames.

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Most bytes of a number.
const NUMBER: usize = 10;

/// Appends a number.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends bytes with their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The fields of a frame that were not read yet.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(body: &'a [u8]) -> Fields<'a> {
        Fields { rest: body }
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (byte, rest) = self.rest.split_first().ok_or(Malformed("a field is missing"))?;
        self.rest = rest;
        Ok(*byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0u64;
        for at in 0..NUMBER {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if at == NUMBER - 1 && bits > 1 {
                break;
            }
            number |= bits << (7 * at);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed("a number is too large"))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.number()?;
        let length = usize::try_from(length).ok().filter(|length| *length <= self.rest.len());
        let (bytes, rest) = self.rest.split_at(length.ok_or(Malformed("a field is longer than its frame"))?);
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// A number of fields that follow, each of which takes `least` bytes at least.
    pub(super) fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = self.number()?;
        let fits = usize::try_from(count).ok().filter(|count| *count <= self.rest.len() / least);
        fits.ok_or(Malformed("a list is longer than its frame"))
    }

    /// The fields in a list, each read by `read` and of `least` bytes at least.
    pub(super) fn list<T>(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Fields<'a>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count(least)?;
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All fields were read.
    pub(super) fn end<T>(&self, value: T) -> Result<T, Malformed> {
        if self.is_empty() { Ok(value) } else { Err(Malformed("bytes follow the last field")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_bounds() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            let mut fields = Fields::new(&out);
            assert_eq!((fields.number(), fields.is_empty()), (Ok(number), true));
        }
        let eleven = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0];
        let mut too_large = [0xff; NUMBER];
        too_large[NUMBER - 1] = 2;
        for bytes in [&eleven[..], &too_large[..], &[0x80][..], &[][..]] {
            assert!(Fields::new(bytes).number().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_announced_has_to_be_there() {
        assert_eq!(Fields::new(&[3, 1, 2]).bytes(), Err(Malformed("a field is longer than its frame")));
        assert_eq!(Fields::new(&[3, 1, 2]).count(1), Err(Malformed("a list is longer than its frame")));
        assert_eq!(Fields::new(&[2, 1, 2]).bytes(), Ok(&[1, 2][..]));
    }

    #[test]
    fn a_text_stays_as_it_was_sent() {
        assert_eq!(Fields::new(&[2, 0xc3, 0xa9]).text(), Ok("é".to_owned()));
        // Replaced by a mark, two different texts would be the same, and longer than what was sent.
        assert_eq!(Fields::new(&[2, b'n', 0xff]).text(), Err(Malformed("a text is not UTF-8")));
    }
}
