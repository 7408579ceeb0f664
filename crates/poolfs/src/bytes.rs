//! Numbers and bytes of records, big-endian.

/// A record that is being written.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Bytes behind their length, of four bytes.
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Writer {
        self.u32(value.len() as u32);
        self.0.extend(value);
        self
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.0
    }
}

/// A record that is being read: `None` where it ends too early.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}
