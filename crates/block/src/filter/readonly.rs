//! Refuses to change anything.

use super::{Around, Op, OpKind};
use crate::{DeviceInfo, IoError, IoFuture};
use std::sync::Arc;

/// The filter: reads and flushes pass, all else is [`IoError::ReadOnly`].
#[derive(Debug, Default)]
pub struct ReadOnly;

impl Around for ReadOnly {
    fn around<T: Unpin + 'static>(
        self: &Arc<Self>,
        op: Op,
        start: impl FnOnce() -> IoFuture<T>,
    ) -> IoFuture<T> {
        match op.kind {
            OpKind::Read | OpKind::Flush => start(),
            _ => IoFuture::ready(Err(IoError::ReadOnly)),
        }
    }

    fn lends(&self, op: Op) -> bool {
        op.kind == OpKind::Read
    }

    fn describe(&self, info: &mut DeviceInfo) {
        info.read_only = true;
        info.discard = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filtered;
    use crate::testing::{done, open};
    use crate::{BlockDevice, MemDevice, WriteFlags, ZeroFlags};
    use longhaul_engine::{Buf, BufMut};

    #[test]
    fn nothing_can_be_changed() {
        let inner = Arc::new(MemDevice::new(8192, 512).expect("mapped"));
        let device = Filtered::new(inner, ReadOnly);
        assert!(device.info().read_only);
        let io = open(&device);
        let flags = WriteFlags::default();
        assert_eq!(done(io.write(0, Buf::copy_of(&[1; 512]), flags)), Err(IoError::ReadOnly));
        assert_eq!(done(io.write_zeroes(0, 512, ZeroFlags::default())), Err(IoError::ReadOnly));
        assert_eq!(done(io.discard(0, 512)), Err(IoError::ReadOnly));
        assert!(io.map_write(0, 512).is_none() && io.map_read(0, 512).is_some());
        assert_eq!(done(io.read(0, BufMut::zeroed(512))).expect("read")[..], [0; 512]);
        assert_eq!(done(io.flush()), Ok(()));
    }
}
