//! Identities of the hardware that distinguish this machine from a clone of it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use uuid::Uuid;

/// Digests of the identities of a machine's hardware: the board's UUID and the addresses of its
/// network interfaces. Two sets of which none is empty and that have nothing in common are of two
/// machines. The identity of the installation (`/etc/machine-id`) is not among them: a clone has
/// it as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware(BTreeSet<String>);

impl Hardware {
    /// Digests that are kept: more interfaces than that are not needed to recognise a machine.
    pub(super) const MOST: usize = 16;

    /// Of the machine that this runs on. Without rights to read the board's UUID only the
    /// interfaces count; in a container that has neither, the set is empty.
    pub fn of_this_machine() -> Hardware {
        let read = |path: &Path| std::fs::read_to_string(path).ok().map(|text| text.trim().to_lowercase());
        let board = read(Path::new("/sys/class/dmi/id/product_uuid")).filter(|id| is_telling(id));
        let interfaces = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        // Those without a device (bridges, tunnels, pairs of a container) get a new address each
        // time that they are made.
        let real = interfaces.map(|entry| entry.path()).filter(|path| path.join("device").exists());
        let addresses = real.filter_map(|path| read(&path.join("address"))).filter(|at| is_telling(at));
        Hardware::of(board.into_iter().chain(addresses))
    }

    /// From the identities that a system reports.
    pub fn of<T: AsRef<str>>(identities: impl IntoIterator<Item = T>) -> Hardware {
        // A digest, since every reader of the file can read the record.
        let digest = |id: T| {
            let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("longhaul {}", id.as_ref()).as_bytes());
            id.simple().to_string()[..16].to_owned()
        };
        Hardware(identities.into_iter().map(digest).take(Hardware::MOST).collect())
    }

    /// As [`Display`](fmt::Display) shows it.
    pub fn parse(text: &str) -> Option<Hardware> {
        if text == NONE {
            return Some(Hardware::default());
        }
        let digests: BTreeSet<String> = text.split(',').map(str::to_owned).collect();
        let is_digest = |text: &String| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        digests.iter().all(is_digest).then_some(Hardware(digests))
    }

    /// Whether `other` is certainly another machine.
    pub fn is_another_machine(&self, other: &Hardware) -> bool {
        !self.0.is_empty() && !other.0.is_empty() && self.0.is_disjoint(&other.0)
    }
}

/// How an empty set is shown.
const NONE: &str = "-";

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NONE);
        }
        for (n, digest) in self.0.iter().enumerate() {
            write!(f, "{}{digest}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Whether an identity is one: some boards and interfaces have all zeroes or all ones.
fn is_telling(id: &str) -> bool {
    let mut digits = id.chars().filter(char::is_ascii_alphanumeric).peekable();
    let first = digits.peek().copied();
    first.is_some() && digits.any(|digit| Some(digit) != first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_keeps_a_part_is_the_same_and_a_clone_is_not() {
        let before = Hardware::of(["board", "old interface"]);
        assert!(!before.is_another_machine(&Hardware::of(["board", "new interface"])));
        assert!(before.is_another_machine(&Hardware::of(["other board", "other interface"])));
        assert!(!before.is_another_machine(&Hardware::default()));
        assert_eq!(Hardware::parse(&before.to_string()), Some(before));
        assert_eq!(Hardware::parse("anything"), None);
        assert!(is_telling("02:00:00:00:00:01") && !is_telling("00:00:00:00:00:00") && !is_telling(""));
        assert!(!is_telling("ffffffff-ffff-ffff-ffff-ffffffffffff"));
    }
}
