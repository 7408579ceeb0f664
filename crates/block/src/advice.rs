//! The amount of I/O to keep in flight.

/// The amount of I/O that fills a device at this moment. It changes as a path changes, so a caller
/// that keeps a device busy asks again from time to time.
///
/// A device made of several devices adds up their advice; a filter passes it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Bytes of reads to keep in flight.
    pub read: u64,
    /// Bytes of writes to keep in flight.
    pub write: u64,
    /// Bytes of one I/O at which the device is fastest: a caller with more to move should split it
    /// into such I/Os.
    pub io_size: u32,
    /// Bytes to read ahead of a sequential reader, in flight and waiting to be read. 0: no
    /// read-ahead.
    pub read_ahead: u64,
    /// Number of concurrent operations beyond which more only wait.
    pub commands: u32,
}

impl Advice {
    /// For devices without advice: enough to keep a drive busy.
    pub const LOCAL: Advice =
        Advice { read: 4 << 20, write: 4 << 20, io_size: 512 << 10, read_ahead: 4 << 20, commands: 64 };

    /// Operations of `bs` bytes that make up `bytes` in flight: one at least.
    pub fn depth(&self, bytes: u64, bs: u64) -> u32 {
        let depth = bytes.div_ceil(bs.max(1)).max(1);
        u32::try_from(depth).unwrap_or(u32::MAX).min(self.commands.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_bytes_in_operations() {
        let advice = Advice { commands: 100, ..Advice::LOCAL };
        assert_eq!(advice.depth(4 << 20, 128 << 10), 32);
        assert_eq!(advice.depth((4 << 20) + 1, 128 << 10), 33);
        assert_eq!(advice.depth(4 << 20, 8 << 20), 1);
        assert_eq!(advice.depth(4 << 20, 4096), 100);
        assert_eq!(advice.depth(0, 4096), 1);
    }
}
