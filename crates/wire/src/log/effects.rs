//! Supported log pages (00h), commands (05h) and features (12h).

/// Bits of an entry of the commands (and features) effects logs.
pub mod effect {
    /// CSUPP: the command is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// Logical block content may change (feature: user data may change).
    pub const CONTENT: u32 = 1 << 1;
    /// NCC: capabilities of a namespace may change.
    pub const NAMESPACE_CAPABILITY: u32 = 1 << 2;
    /// NIC: the number of namespaces, or what is attached, may change.
    pub const NAMESPACE_INVENTORY: u32 = 1 << 3;
    /// Scope: one namespace.
    pub const SCOPE_NAMESPACE: u32 = 1 << 20;
    /// Scope: one controller.
    pub const SCOPE_CONTROLLER: u32 = 1 << 21;
    /// Scope: the NVM subsystem.
    pub const SCOPE_SUBSYSTEM: u32 = 1 << 25;
}

fn put(out: &mut [u8], index: usize, value: u32) {
    out[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
}

fn get(bytes: &[u8], index: usize) -> u32 {
    let at = bytes.get(4 * index..4 * index + 4);
    at.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

macro_rules! table {
    ($(#[$meta:meta])* $name:ident, $len:literal) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(Vec<u8>);

        impl $name {
            /// Length of the log page in bytes.
            pub const LEN: usize = $len;

            /// A page that says that nothing is supported.
            #[allow(clippy::new_without_default)]
            pub fn new() -> $name {
                $name(vec![0; $len])
            }

            /// A page that was read; bytes missing at its end are zero.
            pub fn from_bytes(bytes: &[u8]) -> $name {
                let mut page = bytes[..bytes.len().min($len)].to_vec();
                page.resize($len, 0);
                $name(page)
            }

            /// The page, 4,096 bytes.
            pub fn into_bytes(self) -> Vec<u8> {
                self.0
            }
        }
    };
}

table! {
    /// Supported Log Pages log page: an entry for each log page identifier.
    SupportedPages, 1024
}

impl SupportedPages {
    /// Says that a page is supported; `specific` is its LID Specific
    /// Parameter.
    pub fn add(&mut self, lid: u8, specific: u16) {
        put(&mut self.0, lid.into(), 1 | u32::from(specific) << 16);
    }

    /// Whether a page is supported.
    pub fn has(&self, lid: u8) -> bool {
        get(&self.0, lid.into()) & 1 != 0
    }
}

table! {
    /// Commands Supported and Effects log page.
    CommandEffects, 4096
}

impl CommandEffects {
    /// Entry of an admin command.
    pub fn set_admin(&mut self, opcode: u8, effects: u32) {
        put(&mut self.0, opcode.into(), effects);
    }

    /// Entry of an I/O command.
    pub fn set_io(&mut self, opcode: u8, effects: u32) {
        put(&mut self.0, 256 + usize::from(opcode), effects);
    }

    /// Effects of an admin command.
    pub fn admin(&self, opcode: u8) -> u32 {
        get(&self.0, opcode.into())
    }

    /// Effects of an I/O command.
    pub fn io(&self, opcode: u8) -> u32 {
        get(&self.0, 256 + usize::from(opcode))
    }
}

table! {
    /// Feature Identifiers Supported and Effects log page.
    FeatureEffects, 1024
}

impl FeatureEffects {
    /// Entry of a feature.
    pub fn set(&mut self, fid: u8, effects: u32) {
        put(&mut self.0, fid.into(), effects);
    }

    /// Effects of setting a feature.
    pub fn get(&self, fid: u8) -> u32 {
        get(&self.0, fid.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_sit_at_four_times_their_number() {
        let mut log = CommandEffects::new();
        log.set_admin(0x06, 1);
        log.set_io(0x01, 0x0010_0003);
        let bytes = log.into_bytes();
        assert_eq!((bytes.len(), bytes[24]), (4096, 1));
        assert_eq!(bytes[1028..1032], [3, 0, 0x10, 0]);
        let read = CommandEffects::from_bytes(&bytes);
        assert_eq!((read.admin(6), read.io(1), read.io(2)), (1, 0x0010_0003, 0));
        assert_eq!(CommandEffects::from_bytes(&[1]).admin(0), 1, "cut pages are padded");
    }

    #[test]
    fn supported_pages() {
        let mut pages = SupportedPages::new();
        pages.add(0x70, 7);
        assert!(pages.has(0x70) && !pages.has(0x71));
        assert_eq!(pages.into_bytes()[448..452], [1, 0, 7, 0]);
        let mut features = FeatureEffects::new();
        features.set(0x81, 5);
        assert_eq!((features.get(0x81), features.get(0x80)), (5, 0));
    }
}
