//! Features and asynchronous events.

/// Feature identifiers (FID).
#[allow(missing_docs)]
pub mod fid {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER_MANAGEMENT: u8 = 0x02;
    pub const LBA_RANGE_TYPE: u8 = 0x03;
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    pub const WRITE_ATOMICITY: u8 = 0x0A;
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0B;
    pub const TIMESTAMP: u8 = 0x0E;
    pub const KEEP_ALIVE: u8 = 0x0F;
    pub const HOST_BEHAVIOR: u8 = 0x16;
    pub const COMMAND_SET_PROFILE: u8 = 0x19;
    pub const HOST_IDENTIFIER: u8 = 0x81;
    pub const RESERVATION_NOTICE_MASK: u8 = 0x82;
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    pub const NAMESPACE_WRITE_PROTECTION: u8 = 0x84;
}

/// Number of Queues: how many I/O queues are asked for, or granted. Counts
/// are from 1; the fields on the wire count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberOfQueues {
    /// Number of I/O submission queues, from 1.
    pub submission: u32,
    /// Number of I/O completion queues, from 1.
    pub completion: u32,
}

impl NumberOfQueues {
    /// A field of FFFFh is not allowed: it would be 65,536 queues.
    pub const MAX: u32 = 0xFFFF;

    /// From dword 11 of Set Features, or dword 0 of the completion.
    pub fn from_dword(dword: u32) -> NumberOfQueues {
        NumberOfQueues { submission: (dword & 0xFFFF) + 1, completion: (dword >> 16) + 1 }
    }

    /// As such a dword.
    ///
    /// # Panics
    /// If a count is not within 1 to 65,536.
    pub fn to_dword(self) -> u32 {
        let range = 1..=1 << 16;
        assert!(range.contains(&self.submission) && range.contains(&self.completion), "{self:?}");
        (self.submission - 1) | (self.completion - 1) << 16
    }
}

/// Bits of what Get Features with SEL 3 answers.
pub mod capability {
    /// The value can be saved.
    pub const SAVEABLE: u32 = 1 << 0;
    /// Each namespace has a value of its own.
    pub const NAMESPACE: u32 = 1 << 1;
    /// The value can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// Bits 7:0 of Asynchronous Event Configuration: SMART / health warnings.
pub const AEC_SMART_MASK: u32 = 0xFF;

/// What kind of asynchronous event it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEventType {
    /// Error status (0).
    Error,
    /// SMART / health status (1).
    Health,
    /// An event that the host should know (type 2).
    Notice,
    /// Immediate, without a log page to read (3).
    Immediate,
    /// I/O command specific (6).
    IoCommand,
    /// Vendor specific (7).
    Vendor,
    /// A reserved type.
    Reserved(u8),
}

/// Information of Notice events.
#[allow(missing_docs)]
pub mod notice {
    pub const NAMESPACE_ATTRIBUTE: u8 = 0x00;
    pub const FIRMWARE_ACTIVATION: u8 = 0x01;
    pub const ANA_CHANGE: u8 = 0x03;
    pub const DISCOVERY_LOG_CHANGE: u8 = 0xF0;
}

/// Dword 0 of a completed Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type, bits 2:0.
    pub kind: AsyncEventType,
    /// Information, bits 15:8.
    pub info: u8,
    /// Log page to read, bits 23:16.
    pub lid: u8,
}

impl AsyncEvent {
    /// From dword 0.
    pub fn from_dw0(dw0: u32) -> AsyncEvent {
        let kind = match dw0 as u8 & 0b111 {
            0 => AsyncEventType::Error,
            1 => AsyncEventType::Health,
            2 => AsyncEventType::Notice,
            3 => AsyncEventType::Immediate,
            6 => AsyncEventType::IoCommand,
            7 => AsyncEventType::Vendor,
            other => AsyncEventType::Reserved(other),
        };
        AsyncEvent { kind, info: (dw0 >> 8) as u8, lid: (dw0 >> 16) as u8 }
    }

    /// As dword 0.
    pub fn to_dw0(self) -> u32 {
        let kind = match self.kind {
            AsyncEventType::Error => 0,
            AsyncEventType::Health => 1,
            AsyncEventType::Notice => 2,
            AsyncEventType::Immediate => 3,
            AsyncEventType::IoCommand => 6,
            AsyncEventType::Vendor => 7,
            AsyncEventType::Reserved(kind) => kind & 0b111,
        };
        u32::from(kind) | u32::from(self.info) << 8 | u32::from(self.lid) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts() {
        let four = NumberOfQueues { submission: 4, completion: 2 };
        assert_eq!(four.to_dword(), 0x0001_0003);
        assert_eq!(NumberOfQueues::from_dword(0x0001_0003), four);
        assert_eq!(NumberOfQueues::from_dword(u32::MAX).submission, 65536);
    }

    #[test]
    fn events() {
        let event = AsyncEvent { kind: AsyncEventType::Notice, info: notice::ANA_CHANGE, lid: 0x0C };
        assert_eq!(event.to_dw0(), 0x000C_0302);
        for dw0 in 0..8 {
            let dw0 = dw0 | 0x0070_F000;
            assert_eq!(AsyncEvent::from_dw0(dw0).to_dw0(), dw0);
        }
    }
}
