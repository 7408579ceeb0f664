//! Names: what the Container Orchestrator calls a volume, and what it is called in its pool.
//!
//! The ID of a volume is the name by which `longhaul` takes it: `volume:POOL/NAME`, or `fs:POOL/NAME` of a file
//! system in a pool. So the driver keeps no table, and people find in a pool what Kubernetes shows.
//!
//! | in the pool | is |
//! |---|---|
//! | the name that was asked for | a volume, if a pool takes that name and it does not begin with `csi-` |
//! | `csi-v-DIGEST` | a volume of any other name |
//! | `csi-s-NAME`, `csi-s-h-DIGEST` | a snapshot |
//! | `csi-n-DIGEST-RANDOM` | a volume that is being made: its file system is not there yet |

use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Read;

/// Longest name in a pool, in bytes.
const MOST: usize = 64;
/// Longest name of a volume or snapshot that a Container Orchestrator gives, in bytes (CSI, "Size Limits").
const MOST_ASKED: usize = 128;
/// What the driver's own names begin with.
const OWN: &str = "csi-";
const DIGESTED: &str = "csi-v-";
const SNAPSHOT: &str = "csi-s-";
const UNFINISHED: &str = "csi-n-";

/// What a volume is in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A device, for one node at a time.
    Volume,
    /// A file system in a pool, for many nodes.
    FileSystem,
}

impl Kind {
    /// What IDs of this kind begin with.
    fn scheme(self) -> &'static str {
        match self {
            Kind::Volume => "volume:",
            Kind::FileSystem => "fs:",
        }
    }
}

/// A volume, snapshot or file system: what an ID says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) kind: Kind,
    pub(crate) pool: String,
    pub(crate) name: String,
}

impl Id {
    pub(crate) fn new(kind: Kind, pool: &str, name: &str) -> Id {
        Id { kind, pool: pool.to_owned(), name: name.to_owned() }
    }

    /// Reads an ID; `None` for one that this driver cannot have given.
    fn parse(text: &str) -> Option<Id> {
        let kind =
            [Kind::Volume, Kind::FileSystem].into_iter().find(|kind| text.starts_with(kind.scheme()))?;
        let (pool, name) = text.strip_prefix(kind.scheme())?.split_once('/')?;
        (is_usable(pool) && is_usable(name)).then(|| Id::new(kind, pool, name))
    }

    /// Reads the ID of a volume.
    pub(crate) fn volume(text: &str) -> Option<Id> {
        Id::parse(text).filter(|id| !id.name.starts_with(SNAPSHOT) && !id.name.starts_with(UNFINISHED))
    }

    /// Reads the ID of a snapshot.
    pub(crate) fn snapshot(text: &str) -> Option<Id> {
        Id::parse(text).filter(|id| id.kind == Kind::Volume && id.name.starts_with(SNAPSHOT))
    }

    /// `POOL/NAME`, as the verbs of `volume` and `fs` take it.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.pool, self.name)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/{}", self.kind.scheme(), self.pool, self.name)
    }
}

/// Whether a pool takes this name.
fn is_usable(name: &str) -> bool {
    let is_fine = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    !name.is_empty() && name.len() <= MOST && !name.starts_with(['-', '.']) && name.chars().all(is_fine)
}

/// Whether a Container Orchestrator may give this name.
pub(crate) fn is_askable(name: &str) -> bool {
    !name.is_empty() && name.len() <= MOST_ASKED && !name.chars().any(char::is_control)
}

fn digest(name: &str) -> String {
    Sha256::digest(name).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The name in its pool of the volume that was asked for as `name`.
pub(crate) fn of_volume(name: &str) -> String {
    match is_usable(name) && !name.starts_with(OWN) {
        true => name.to_owned(),
        false => format!("{DIGESTED}{}", digest(name)),
    }
}

/// The name in its pool of the snapshot that was asked for as `name`.
pub(crate) fn of_snapshot(name: &str) -> String {
    let own = format!("{SNAPSHOT}{name}");
    match is_usable(&own) && !name.starts_with("h-") {
        true => own,
        false => format!("{SNAPSHOT}h-{}", digest(name)),
    }
}

/// Whether this is the name of a volume in its pool: not that of a snapshot, nor of what is being made.
pub(crate) fn is_volume(name: &str) -> bool {
    !name.starts_with(SNAPSHOT) && !name.starts_with(UNFINISHED)
}

/// Whether this is the name of a snapshot in its pool.
pub(crate) fn is_snapshot(name: &str) -> bool {
    name.starts_with(SNAPSHOT)
}

/// What names begin with that the volume called `name` in its pool has while it is being made.
pub(crate) fn unfinished(name: &str) -> String {
    format!("{UNFINISHED}{}-", digest(name).get(..24).unwrap_or_default())
}

/// One of these names, which no other attempt has.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn new_unfinished(name: &str) -> std::io::Result<String> {
    let mut random = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(format!("{}{:016x}", unfinished(name), u64::from_ne_bytes(random)))
}

/// Whether this is a host NQN (NVMe Base 2.1, "NVMe Qualified Names"), which is what the driver calls nodes.
pub(crate) fn is_nqn(text: &str) -> bool {
    /// Longest NQN in bytes.
    const MOST: usize = 223;
    let Some((date, rest)) = text.strip_prefix("nqn.").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let is_date = date.len() == 7
        && date.char_indices().all(|(at, c)| if at == 4 { c == '-' } else { c.is_ascii_digit() });
    is_date
        && !rest.is_empty()
        && text.len() <= MOST
        && !text.chars().any(|c| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_names_that_the_program_takes() {
        let id = Id::volume("volume:scratch/pvc-7").expect("an ID");
        assert_eq!((id.to_string(), id.path()), ("volume:scratch/pvc-7".into(), "scratch/pvc-7".into()));
        assert_eq!(Id::volume("fs:a/b").map(|id| id.kind), Some(Kind::FileSystem));
        for text in
            ["", "volume:", "volume:a", "volume:a/", "volume:/b", "volume:a/b/c", "fs:a/..", "x:a/b", "a/b"]
        {
            assert_eq!(Id::parse(text), None, "{text}");
        }
        // A flag of the program is no name.
        assert_eq!(Id::parse("volume:-a/--force"), None);
        assert_eq!((Id::volume("volume:a/csi-s-x"), Id::volume("volume:a/csi-n-x")), (None, None));
        assert!(Id::snapshot("volume:a/csi-s-x").is_some() && Id::snapshot("volume:a/x").is_none());
    }

    #[test]
    fn no_two_names_become_one() {
        let (long, other) = ("x".repeat(128), format!("{}y", "x".repeat(127)));
        let names = ["a", "A", "a b", "a/b", "", "csi-v-1", "csi-s-a", "h-1", &long, &other, ".a", "ü"];
        let digested = of_volume("a b");
        let mut made: Vec<String> = names.iter().copied().chain([digested.as_str()]).map(of_volume).collect();
        let snapshots = names.iter().copied().chain(["h-2"]).map(of_snapshot);
        let snapshot_of_digested = of_snapshot(&of_snapshot("a b")["csi-s-".len()..]);
        made.extend(snapshots.chain([snapshot_of_digested]));
        assert!(made.iter().all(|name| is_usable(name)), "{made:?}");
        let count = made.len();
        made.sort_unstable();
        made.dedup();
        assert_eq!(made.len(), count, "{made:?}");
        assert_eq!(of_volume("pvc-7"), "pvc-7");
        let unfinished = new_unfinished("pvc-7").expect("random numbers");
        assert!(is_usable(&unfinished) && !is_volume(&unfinished) && !is_snapshot(&unfinished));
    }

    #[test]
    fn nodes_are_host_nqns() {
        for text in ["nqn.2014-08.org.nvmexpress:uuid:1", "nqn.2026-11.io.longhaul:node:n1"] {
            assert!(is_nqn(text), "{text}");
        }
        for text in ["", "n1", "nqn.", "nqn.2014-08.", "nqn.14-08.a", "nqn.2014x08.a", "nqn.2014-08.a b"] {
            assert!(!is_nqn(text), "{text}");
        }
    }
}
