//! Registrations with a central discovery controller: the data of Discovery Information Management
//! (NVMe Base 2.1, Discovery Information Management command).

use crate::command::{Sqe, admin};
use crate::layout::layout;
use crate::log::DiscoveryEntry;
use crate::nqn::NqnField;
use crate::text::Ascii;

/// Length of an entry in bytes, without the extended attributes that one of the extended format has.
const EXTENDED_LEN: usize = ExtendedEntry::LEN;

/// What to do with the information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationTask {
    /// Register (0).
    Register,
    /// Deregister (1).
    Deregister,
    /// Update a registration (2).
    Update,
}

/// Formats of entries (ENTFMT).
pub mod entfmt {
    /// Those of the discovery log page.
    pub const BASIC: u16 = 1;
    /// The same with a length and attributes.
    pub const EXTENDED: u16 = 2;
}

/// Types of entities (ETYPE).
pub mod etype {
    /// A host.
    pub const HOST: u16 = 1;
    /// A direct discovery controller: one that knows its own subsystems.
    pub const DIRECT: u16 = 2;
    /// A central discovery controller.
    pub const CENTRAL: u16 = 3;
}

/// Fields of a Discovery Information Management command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryInformation {
    /// The task; none for a reserved value.
    pub task: Option<RegistrationTask>,
    /// Total length of the data in bytes.
    pub len: u32,
}

impl DiscoveryInformation {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> DiscoveryInformation {
        let task = match sqe.cdw10() & 0xF {
            0 => Some(RegistrationTask::Register),
            1 => Some(RegistrationTask::Deregister),
            2 => Some(RegistrationTask::Update),
            _ => None,
        };
        DiscoveryInformation { task, len: sqe.cdw11() }
    }

    /// The command with `len` bytes of data.
    pub fn sqe(task: RegistrationTask, len: u32) -> Sqe {
        let task = match task {
            RegistrationTask::Register => 0,
            RegistrationTask::Deregister => 1,
            RegistrationTask::Update => 2,
        };
        Sqe::new(admin::DISCOVERY_INFORMATION_MANAGEMENT).with_cdw(10, task).with_cdw(11, len)
    }
}

layout! {
    /// What the data of a registration begins with; its entries follow.
    pub struct RegistrationHeader: 1024 {
        /// Total length of the data in bytes.
        0 => tdl: u32,
        /// Number of entries.
        8 => nument: u64,
        /// Format of the entries ([`entfmt`]).
        16 => entfmt: u16,
        /// Type of the entity ([`etype`]).
        18 => etype: u16,
        /// The entity is to be reported on the port alone by which it has registered.
        20 => portlcl: u8,
        /// Type of the entity's key.
        22 => ektype: u16,
        /// NQN of the entity.
        24 => eid: NqnField,
        /// Name of the entity, as people call it.
        280 => ename: Ascii<256>,
        /// Version of the entity's software.
        536 => ever: Ascii<64>,
    }
}

layout! {
    /// What an entry of the extended format has behind the fields of [`DiscoveryEntry`].
    pub struct ExtendedEntry: 1032 {
        /// Length of the entry with its attributes in bytes.
        1024 => tel: u32,
        /// Number of attributes.
        1028 => numexat: u16,
    }
}

/// The information of an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// What it begins with.
    pub header: RegistrationHeader,
    /// Its entries, without extended attributes.
    pub entries: Vec<DiscoveryEntry>,
}

impl Registration {
    /// The length in bytes of a registration with `n` entries of the basic format.
    pub fn len_with(n: usize) -> usize {
        RegistrationHeader::LEN + n * DiscoveryEntry::LEN
    }

    /// The registration of a direct discovery controller, in the basic format.
    pub fn of_direct(eid: NqnField, name: &str, version: &str, entries: Vec<DiscoveryEntry>) -> Registration {
        let header = RegistrationHeader {
            tdl: u32::try_from(Registration::len_with(entries.len())).unwrap_or(u32::MAX),
            nument: entries.len() as u64,
            entfmt: entfmt::BASIC,
            etype: etype::DIRECT,
            eid,
            ename: Ascii::new(name),
            ever: Ascii::new(version),
            ..RegistrationHeader::default()
        };
        Registration { header, entries }
    }

    /// The data of the command, in the basic format.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; Registration::len_with(self.entries.len())];
        let (head, entries) = out.split_at_mut(RegistrationHeader::LEN);
        self.header.encode_into(head);
        for (entry, slot) in self.entries.iter().zip(entries.chunks_exact_mut(DiscoveryEntry::LEN)) {
            entry.encode_into(slot);
        }
        out
    }

    /// Reads the data of a command, of either format. None if lengths contradict each other, or the
    /// format is not known.
    pub fn decode(data: &[u8]) -> Option<Registration> {
        let header = RegistrationHeader::decode(data)?;
        if usize::try_from(header.tdl).ok()? != data.len() {
            return None;
        }
        let mut rest = data.get(RegistrationHeader::LEN..)?;
        // An entry takes a kilobyte: the data bounds their number.
        let mut entries = Vec::new();
        for _ in 0..header.nument {
            let entry = DiscoveryEntry::decode(rest)?;
            let len = match header.entfmt {
                entfmt::BASIC => DiscoveryEntry::LEN,
                entfmt::EXTENDED => usize::try_from(ExtendedEntry::decode(rest)?.tel).ok()?,
                _ => return None,
            };
            if header.entfmt == entfmt::EXTENDED && (len < EXTENDED_LEN || len % 4 != 0) {
                return None;
            }
            rest = rest.get(len..)?;
            entries.push(entry);
        }
        rest.is_empty().then_some(Registration { header, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{check_layout, place};
    use crate::log::SubsystemType;
    use crate::nqn;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let places = [
            ("tdl", (3, 0)),
            ("nument", (15, 8)),
            ("entfmt", (17, 16)),
            ("etype", (19, 18)),
            ("portlcl", (20, 20)),
            ("ektype", (23, 22)),
            ("eid", (279, 24)),
            ("ename", (535, 280)),
            ("ever", (599, 536)),
        ];
        check_layout!(RegistrationHeader, ExtendedEntry);
        assert_eq!(place(ExtendedEntry::FIELDS, "tel"), (1027, 1024));
        for (name, bytes) in places {
            assert_eq!(place(RegistrationHeader::FIELDS, name), bytes, "{name}");
        }
    }

    fn entry(name: &str) -> DiscoveryEntry {
        DiscoveryEntry {
            subtype: SubsystemType::Nvm,
            subnqn: nqn::to_field(name),
            trsvcid: Ascii::new("4420"),
            traddr: Ascii::new("192.0.2.1"),
            ..DiscoveryEntry::default()
        }
    }

    fn two() -> Registration {
        let eid = nqn::to_field("nqn.2014-08.org.example:target");
        Registration::of_direct(eid, "dtn1", "1.0", vec![entry("nqn.a"), entry("nqn.b")])
    }

    /// The same in the extended format, with 8 bytes of attributes behind each entry.
    fn extended() -> Vec<u8> {
        let mut out = two().encode();
        out[16] = 2;
        let entries: Vec<u8> = out.split_off(RegistrationHeader::LEN);
        for entry in entries.chunks_exact(DiscoveryEntry::LEN) {
            out.extend_from_slice(entry);
            out.extend_from_slice(&1040u32.to_le_bytes());
            out.extend_from_slice(&[1, 0, 0, 0, 2, 0, 4, 0, b'n', b'a', b'm', b'e']);
        }
        let len = u32::try_from(out.len()).expect("short");
        out[..4].copy_from_slice(&len.to_le_bytes());
        out
    }

    #[test]
    fn a_registration_reads_back_in_both_formats() {
        let registration = two();
        assert_eq!(Registration::decode(&registration.encode()), Some(registration.clone()));
        let read = Registration::decode(&extended()).expect("extended");
        assert_eq!(read.entries, registration.entries);
        assert_eq!(read.header.ename.text(), "dtn1");
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let refused = |mut data: Vec<u8>, at: usize, bytes: &[u8]| {
            data[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(Registration::decode(&data), None, "{bytes:?} at {at}");
        };
        let whole = two().encode();
        refused(whole.clone(), 0, &[1]);
        for entries in [0, 1, 3, u64::MAX] {
            refused(whole.clone(), 8, &entries.to_le_bytes());
        }
        for format in [0, 3] {
            refused(whole.clone(), 16, &[format]);
        }
        for len in [0u32, 1024, 1028, 1031, 1033, 1036, 1044, u32::MAX] {
            refused(extended(), RegistrationHeader::LEN + 1024, &len.to_le_bytes());
        }
        for cut in [0, 1023, 1024, 2047, whole.len() - 1] {
            assert_eq!(Registration::decode(&whole[..cut]), None, "{cut} bytes");
        }
    }

    #[test]
    fn the_command_has_its_task_and_its_length() {
        for task in [RegistrationTask::Register, RegistrationTask::Deregister, RegistrationTask::Update] {
            let fields = DiscoveryInformation::of(&DiscoveryInformation::sqe(task, 2048));
            assert_eq!(fields, DiscoveryInformation { task: Some(task), len: 2048 });
        }
        let reserved = DiscoveryInformation::sqe(RegistrationTask::Register, 0).with_cdw(10, 3);
        assert_eq!(DiscoveryInformation::of(&reserved).task, None);
    }
}
