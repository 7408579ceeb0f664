//! Reservations: types, and the data of the four commands (NVMe Base 2.1, "Reservation Register",
//! "Acquire", "Release" and "Report command").

use crate::command::Sqe;

/// The hosts that may read and write a namespace while it is reserved (RTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReservationType {
    /// The holder writes, and every host reads.
    WriteExclusive,
    /// The holder alone reads and writes.
    ExclusiveAccess,
    /// Registrants write, and every host reads.
    WriteExclusiveRegistrants,
    /// Registrants alone read and write.
    ExclusiveAccessRegistrants,
    /// As [`WriteExclusiveRegistrants`](Self::WriteExclusiveRegistrants); every registrant is a
    /// holder.
    WriteExclusiveAll,
    /// As [`ExclusiveAccessRegistrants`](Self::ExclusiveAccessRegistrants); every registrant is a
    /// holder.
    ExclusiveAccessAll,
}

impl ReservationType {
    /// All of them, in the order of their codes.
    pub const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrants,
        ReservationType::ExclusiveAccessRegistrants,
        ReservationType::WriteExclusiveAll,
        ReservationType::ExclusiveAccessAll,
    ];

    /// The value on the wire: 1 to 6.
    pub fn code(self) -> u8 {
        match self {
            ReservationType::WriteExclusive => 1,
            ReservationType::ExclusiveAccess => 2,
            ReservationType::WriteExclusiveRegistrants => 3,
            ReservationType::ExclusiveAccessRegistrants => 4,
            ReservationType::WriteExclusiveAll => 5,
            ReservationType::ExclusiveAccessAll => 6,
        }
    }

    /// From the value on the wire; none for a reserved one.
    pub fn from_code(code: u8) -> Option<ReservationType> {
        ReservationType::ALL.into_iter().find(|one| one.code() == code)
    }

    /// Whether every registrant is a holder.
    pub fn is_all(self) -> bool {
        matches!(self, ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll)
    }

    /// Whether registrants that do not hold the reservation have the holder's access.
    pub fn has_registrants(self) -> bool {
        !matches!(self, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
    }

    /// Whether hosts without the holder's access may read.
    pub fn lets_others_read(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusive
                | ReservationType::WriteExclusiveRegistrants
                | ReservationType::WriteExclusiveAll
        )
    }
}

/// Whether reservations and registrations outlast a loss of power (CPTPL of a register command).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistChange {
    /// As it is.
    None,
    /// They are released.
    Clear,
    /// Registrations and reservation outlast a loss of power.
    Set,
}

/// What a register command does (RREGA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAction {
    /// Register the new key.
    Register,
    /// End the registration of the current key.
    Unregister,
    /// Put the new key in place of the current one.
    Replace,
}

/// What an acquire command does (RACQA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireAction {
    /// Acquire a reservation of a namespace that has none.
    Acquire,
    /// End the registrations of a key, and take over its reservation.
    Preempt,
    /// The same, and abort the commands of those hosts.
    PreemptAndAbort,
}

/// What a release command does (RRELA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAction {
    /// Release the reservation.
    Release,
    /// Release it, and end all registrations.
    Clear,
}

/// A field of a reservation command with a reserved value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedValue;

const ACTION: u32 = 0x7;
const IGNORE_KEY: u32 = 1 << 3;
const TYPE_SHIFT: u32 = 8;
const PERSIST_SHIFT: u32 = 30;

/// Dword 10 of Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterFields {
    /// What to do.
    pub action: RegisterAction,
    /// The current key is not looked at (IEKEY).
    pub ignore_key: bool,
    /// CPTPL: what becomes of persistence.
    pub persist: PersistChange,
}

impl RegisterFields {
    /// Bytes of data: the current key and the new one.
    pub const DATA: usize = 16;

    /// From a command.
    ///
    /// # Errors
    /// For reserved values.
    pub fn of(sqe: &Sqe) -> Result<RegisterFields, ReservedValue> {
        let cdw10 = sqe.cdw10();
        let action = match cdw10 & ACTION {
            0 => RegisterAction::Register,
            1 => RegisterAction::Unregister,
            2 => RegisterAction::Replace,
            _ => return Err(ReservedValue),
        };
        let persist = match cdw10 >> PERSIST_SHIFT {
            0 => PersistChange::None,
            2 => PersistChange::Clear,
            3 => PersistChange::Set,
            _ => return Err(ReservedValue),
        };
        Ok(RegisterFields { action, ignore_key: cdw10 & IGNORE_KEY != 0, persist })
    }

    /// Command dword 10.
    pub fn cdw10(self) -> u32 {
        let action = match self.action {
            RegisterAction::Register => 0,
            RegisterAction::Unregister => 1,
            RegisterAction::Replace => 2,
        };
        let persist = match self.persist {
            PersistChange::None => 0,
            PersistChange::Clear => 2,
            PersistChange::Set => 3,
        };
        action | if self.ignore_key { IGNORE_KEY } else { 0 } | persist << PERSIST_SHIFT
    }
}

/// Dword 10 of Reservation Acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireFields {
    /// What to do.
    pub action: AcquireAction,
    /// IEKEY; targets of revision 1.3 and later refuse it.
    pub ignore_key: bool,
    /// The reservation to be had.
    pub kind: ReservationType,
}

impl AcquireFields {
    /// Bytes of data: the current key and the key to preempt.
    pub const DATA: usize = 16;

    /// From a command.
    ///
    /// # Errors
    /// For reserved values.
    pub fn of(sqe: &Sqe) -> Result<AcquireFields, ReservedValue> {
        let cdw10 = sqe.cdw10();
        let action = match cdw10 & ACTION {
            0 => AcquireAction::Acquire,
            1 => AcquireAction::Preempt,
            2 => AcquireAction::PreemptAndAbort,
            _ => return Err(ReservedValue),
        };
        let kind = ReservationType::from_code((cdw10 >> TYPE_SHIFT) as u8).ok_or(ReservedValue)?;
        Ok(AcquireFields { action, ignore_key: cdw10 & IGNORE_KEY != 0, kind })
    }

    /// Command dword 10.
    pub fn cdw10(self) -> u32 {
        let action = match self.action {
            AcquireAction::Acquire => 0,
            AcquireAction::Preempt => 1,
            AcquireAction::PreemptAndAbort => 2,
        };
        action | if self.ignore_key { IGNORE_KEY } else { 0 } | u32::from(self.kind.code()) << TYPE_SHIFT
    }
}

/// Dword 10 of Reservation Release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseFields {
    /// What to do.
    pub action: ReleaseAction,
    /// IEKEY; targets of revision 1.3 and later refuse it.
    pub ignore_key: bool,
    /// Type of the reservation to release; none for a reserved value, which does not matter to a
    /// clear.
    pub kind: Option<ReservationType>,
}

impl ReleaseFields {
    /// Bytes of data: the current key.
    pub const DATA: usize = 8;

    /// From a command.
    ///
    /// # Errors
    /// For a reserved action.
    pub fn of(sqe: &Sqe) -> Result<ReleaseFields, ReservedValue> {
        let cdw10 = sqe.cdw10();
        let action = match cdw10 & ACTION {
            0 => ReleaseAction::Release,
            1 => ReleaseAction::Clear,
            _ => return Err(ReservedValue),
        };
        let kind = ReservationType::from_code((cdw10 >> TYPE_SHIFT) as u8);
        Ok(ReleaseFields { action, ignore_key: cdw10 & IGNORE_KEY != 0, kind })
    }

    /// Command dword 10.
    pub fn cdw10(self) -> u32 {
        let action = match self.action {
            ReleaseAction::Release => 0,
            ReleaseAction::Clear => 1,
        };
        let kind = self.kind.map_or(0, ReservationType::code);
        action | if self.ignore_key { IGNORE_KEY } else { 0 } | u32::from(kind) << TYPE_SHIFT
    }
}

/// Two keys, as register and acquire commands have them: the current one, and the new one or the
/// one to preempt.
pub fn decode_keys(data: &[u8; 16]) -> (u64, u64) {
    let (first, second) = data.split_at(8);
    let key = |bytes: &[u8]| bytes.iter().rev().fold(0, |key, byte| key << 8 | u64::from(*byte));
    (key(first), key(second))
}

/// The same as bytes.
pub fn encode_keys(current: u64, other: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&current.to_le_bytes());
    out[8..].copy_from_slice(&other.to_le_bytes());
    out
}

/// A registrant in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// A controller of the host; [`NO_CONTROLLER`](Self::NO_CONTROLLER) if it has none.
    pub cntlid: u16,
    /// The host holds the reservation.
    pub holds: bool,
    /// HOSTID: identifier of the registered host.
    pub hostid: [u8; 16],
    /// RKEY: reservation key of the host.
    pub key: u64,
}

impl Registrant {
    /// Controller identifier of a registrant without a controller.
    pub const NO_CONTROLLER: u16 = 0xFFFF;

    /// Bytes in an extended report.
    const LEN: usize = 64;
}

/// Reservation Status, extended data structure (EDS): hosts of Fabrics have 128-bit identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationReport {
    /// Counts changes of registrations and preemptions; wraps.
    pub generation: u32,
    /// The reservation, if there is one.
    pub kind: Option<ReservationType>,
    /// Reservations persist through a loss of power.
    pub persists: bool,
    /// A registrant for each controller of each registered host.
    pub registrants: Vec<Registrant>,
}

impl ReservationReport {
    /// Bytes before the registrants.
    const HEADER: usize = 64;

    /// The report as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; ReservationReport::HEADER + Registrant::LEN * self.registrants.len()];
        out[..4].copy_from_slice(&self.generation.to_le_bytes());
        out[4] = self.kind.map_or(0, ReservationType::code);
        out[5..7].copy_from_slice(&(self.registrants.len() as u16).to_le_bytes());
        out[9] = self.persists.into();
        let (_, entries) = out.split_at_mut(ReservationReport::HEADER);
        for (entry, one) in entries.chunks_exact_mut(Registrant::LEN).zip(&self.registrants) {
            entry[..2].copy_from_slice(&one.cntlid.to_le_bytes());
            entry[2] = one.holds.into();
            entry[8..16].copy_from_slice(&one.key.to_le_bytes());
            entry[16..32].copy_from_slice(&one.hostid);
        }
        out
    }

    /// Bytes of the whole report whose beginning this is; 0 if not even the header is there.
    pub fn len_of(bytes: &[u8]) -> usize {
        let registrants = bytes.get(5..7).map_or(0, |n| usize::from(u16::from_le_bytes([n[0], n[1]])));
        if bytes.len() < ReservationReport::HEADER {
            return 0;
        }
        ReservationReport::HEADER + Registrant::LEN * registrants
    }

    /// From bytes; registrants as far as there are bytes of them. None if not even the header is
    /// there.
    pub fn decode(bytes: &[u8]) -> Option<ReservationReport> {
        let (header, entries) = bytes.split_at_checked(ReservationReport::HEADER)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let registrants = entries.chunks_exact(Registrant::LEN).take(number(&header[5..7]) as usize);
        let registrants = registrants.map(|entry| {
            let mut hostid = [0; 16];
            hostid.copy_from_slice(&entry[16..32]);
            Registrant {
                cntlid: number(&entry[..2]) as u16,
                holds: entry[2] & 1 == 1,
                hostid,
                key: number(&entry[8..16]),
            }
        });
        Some(ReservationReport {
            generation: number(&header[..4]) as u32,
            kind: ReservationType::from_code(header[4]),
            persists: header[9] & 1 == 1,
            registrants: registrants.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_from_dword_10() {
        let mut sqe = Sqe::disconnect();
        for action in [RegisterAction::Register, RegisterAction::Unregister, RegisterAction::Replace] {
            for persist in [PersistChange::None, PersistChange::Clear, PersistChange::Set] {
                let fields = RegisterFields { action, ignore_key: true, persist };
                sqe = sqe.with_cdw(10, fields.cdw10());
                assert_eq!(RegisterFields::of(&sqe), Ok(fields));
            }
        }
        for kind in ReservationType::ALL {
            let fields = AcquireFields { action: AcquireAction::PreemptAndAbort, ignore_key: false, kind };
            sqe = sqe.with_cdw(10, fields.cdw10());
            assert_eq!(AcquireFields::of(&sqe), Ok(fields));
            let fields = ReleaseFields { action: ReleaseAction::Clear, ignore_key: true, kind: Some(kind) };
            sqe = sqe.with_cdw(10, fields.cdw10());
            assert_eq!(ReleaseFields::of(&sqe), Ok(fields));
        }
    }

    #[test]
    fn reserved_values_are_refused() {
        let mut sqe = Sqe::disconnect();
        for cdw10 in [3, 7, 1 << 30] {
            sqe = sqe.with_cdw(10, cdw10);
            assert_eq!(RegisterFields::of(&sqe), Err(ReservedValue), "{cdw10:#x}");
        }
        // No type, type 7, and a reserved action with a good type.
        for cdw10 in [0, 7 << 8, 1 << 8 | 3] {
            sqe = sqe.with_cdw(10, cdw10);
            assert_eq!(AcquireFields::of(&sqe), Err(ReservedValue), "{cdw10:#x}");
        }
        sqe = sqe.with_cdw(10, 2);
        assert_eq!(ReleaseFields::of(&sqe), Err(ReservedValue));
    }

    #[test]
    fn a_report_has_its_fields_in_their_places() {
        let one = Registrant { cntlid: 0x0102, holds: true, hostid: [9; 16], key: 0x0A0B };
        let two = Registrant { cntlid: Registrant::NO_CONTROLLER, holds: false, hostid: [7; 16], key: 1 };
        let report = ReservationReport {
            generation: 0x01020304,
            kind: Some(ReservationType::ExclusiveAccessRegistrants),
            persists: true,
            registrants: vec![one, two],
        };
        let bytes = report.encode();
        assert_eq!(bytes.len(), 64 + 2 * 64);
        assert_eq!(bytes[..10], [4, 3, 2, 1, 4, 2, 0, 0, 0, 1]);
        assert_eq!(bytes[64..68], [2, 1, 1, 0]);
        assert_eq!((&bytes[72..80], &bytes[80..96]), (&[0x0B, 0x0A, 0, 0, 0, 0, 0, 0][..], &[9; 16][..]));
        assert_eq!(ReservationReport::decode(&bytes), Some(report));
        assert_eq!(ReservationReport::decode(&bytes[..63]), None);
    }

    #[test]
    fn keys_are_little_endian() {
        let bytes = encode_keys(0x0102030405060708, 2);
        assert_eq!((bytes[0], bytes[7], bytes[8]), (8, 1, 2));
        assert_eq!(decode_keys(&bytes), (0x0102030405060708, 2));
    }
}
