//! What a target keeps between runs: files of a state directory.
//!
//! | file | is |
//! |---|---|
//! | `installation.json` | the identity of the installation, from which NQNs are made |
//! | `exports/*.json`, `media/` | the media that exports served ([`media`]) |
//! | `reservations/*.json` | reservations that persist ([`reservations`]) |
//!
//! Each is replaced as a whole ([`state_file`]).

mod media;
mod reservations;

pub use media::{MediumSpec, ServedMedium};
pub use reservations::ReservationFile;

use crate::space::ReservationStores;
use crate::target::Error;
use longhaul_block::medium::Hardware;
use longhaul_engine::state_file;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

/// The state directory of targets on this host. Clones are the same.
#[derive(Clone, Debug)]
pub struct TargetState {
    directory: PathBuf,
    /// Set once, so that a process has one identity even if it cannot be stored.
    installation: Arc<OnceLock<Uuid>>,
}

impl TargetState {
    /// The state in this directory, which need not exist.
    pub fn at(directory: PathBuf) -> TargetState {
        TargetState { directory, installation: Arc::default() }
    }

    /// The NQN that is made of a name. It contains the identity of this installation, so that it is
    /// globally unique.
    pub fn nqn_of(&self, name: &str) -> String {
        nqn_made_of(self.installation(), name)
    }

    /// The identity of this installation: random, created once and stored in the state directory. A
    /// clone of the machine creates its own. If it cannot be stored, each process has a new one.
    pub fn installation(&self) -> Uuid {
        *self.installation.get_or_init(|| {
            installation_in(&self.directory, hardware()).unwrap_or_else(|e| {
                tracing::warn!(
                    "no identity of this installation can be kept ({e}): NQNs that are made from it change with \
                     each start; set nqn= in --export, or XDG_STATE_HOME to a directory that can be written"
                );
                Uuid::new_v4()
            })
        })
    }

    /// Where the reservations of the namespace with this UUID persist.
    pub fn reservations_of(&self, namespace: Uuid) -> ReservationFile {
        ReservationFile::of(&self.directory, namespace)
    }

    /// The same for all namespaces of a space.
    pub fn reservation_stores(&self) -> ReservationStores {
        let state = self.clone();
        Arc::new(move |namespace| Arc::new(state.reservations_of(namespace)))
    }

    /// Checks that an export has the medium that it served last. Nothing is changed.
    ///
    /// # Errors
    /// [`Error::OtherMedium`]: the text names the one served last, and what to do. [`Error::State`]
    /// if the medium or the record cannot be examined.
    pub fn check_medium(&self, spec: &MediumSpec<'_>) -> Result<ServedMedium, Error> {
        media::check(self, spec)
    }
}

/// The NQN that is made of a name and an identity: that of an installation, or of what is served, if
/// it is to be the same wherever it is served.
pub fn nqn_made_of(identity: Uuid, name: &str) -> String {
    format!("nqn.2026-11.io.longhaul:{}:{name}", identity.simple())
}

/// Version of the format of these files; reservations have one of their own.
const VERSION: u64 = 1;

/// Replaces a file; makes its directory.
fn write(path: &Path, text: &Value) -> io::Result<()> {
    std::fs::create_dir_all(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    state_file::replace(path, format!("{text:#}\n").as_bytes())
}

/// Whether an error means that the file does not exist. So does a directory that this user may not
/// access: no earlier run can have written to it.
fn is_absent(e: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(e.kind(), NotFound | NotADirectory | PermissionDenied)
}

/// Reads a file as JSON; `None` if it does not exist.
fn load(path: &Path) -> Result<Option<Value>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let value: Value = serde_json::from_str(&text).map_err(|e| wrong(path, e))?;
            // Files of the first release have no version.
            match value["version"].as_u64() {
                Some(version) if version > VERSION => Err(wrong(
                    path,
                    format_args!(
                        "it is of version {version}, and this program knows version {VERSION}: use the program that \
                     wrote it, or a newer one"
                    ),
                )),
                _ => Ok(Some(value)),
            }
        }
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(wrong(path, e)),
    }
}

/// The error of a file that cannot be used.
fn wrong(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::State { path: path.to_owned(), why: e.to_string() }
}

/// The hardware identity of this machine.
fn hardware() -> &'static Hardware {
    static HARDWARE: OnceLock<Hardware> = OnceLock::new();
    HARDWARE.get_or_init(Hardware::of_this_machine)
}

fn installation_in(directory: &Path, hardware: &Hardware) -> Result<Uuid, Error> {
    let path = directory.join("installation.json");
    if let Some(known) = load(&path)? {
        let field = |name: &str| known[name].as_str().map(str::to_owned);
        let (id, made_on) = (field("id").and_then(|id| id.parse().ok()), field("hardware"));
        let (Some(id), Some(made_on)) = (id, made_on.and_then(|text| Hardware::parse(&text))) else {
            return Err(wrong(&path, "it has no identity in it: repair or remove it"));
        };
        if !made_on.is_another_machine(hardware) {
            return Ok(id);
        }
        tracing::warn!(
            "{} was made on another machine, of which this one seems to be a clone: this installation gets \
             an identity of its own, and NQNs that are made from it change",
            path.display()
        );
        let id = Uuid::new_v4();
        write(&path, &record(id, hardware)).map_err(|e| wrong(&path, e))?;
        return Ok(id);
    }
    make(&path, hardware).map_err(|e| wrong(&path, e))?;
    // Read back: another process may have created the record first.
    let made = load(&path)?.and_then(|known| known["id"].as_str().and_then(|id| id.parse().ok()));
    made.ok_or_else(|| wrong(&path, "it was removed or damaged at this moment: try again"))
}

/// Creates the record, unless it exists.
fn make(path: &Path, hardware: &Hardware) -> io::Result<()> {
    let new = path.with_extension(format!("made-{}", Uuid::new_v4().simple()));
    write(&new, &record(Uuid::new_v4(), hardware))?;
    let linked = std::fs::hard_link(&new, path);
    std::fs::remove_file(&new)?;
    match linked {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

fn record(id: Uuid, hardware: &Hardware) -> Value {
    json!({ "version": VERSION, "id": id.to_string(), "hardware": hardware.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_identity_is_refused_and_the_first_release_has_no_version() {
        let dir = tempfile::tempdir().expect("a directory");
        let id = Uuid::from_u128(7);
        let known = record(id, &Hardware::of(["board"])).to_string();
        let hash = Hardware::of(["board"]).to_string();
        let fixed = format!(r#"{{"hardware":"{hash}","id":"{id}","version":1}}"#);
        assert_eq!(known, fixed);
        let found = |text: &str| {
            std::fs::write(dir.path().join("installation.json"), text).expect("written");
            installation_in(dir.path(), &Hardware::of(["board"])).map_err(|e| e.to_string())
        };
        assert_eq!(found(&known), Ok(id));
        assert_eq!(found(&known.replace(r#","version":1"#, "")), Ok(id));
        let refused = found(&known.replace(r#""version":1"#, r#""version":2"#)).expect_err("newer");
        assert!(refused.contains("it is of version 2, and this program knows version 1"), "{refused}");
    }

    #[test]
    fn an_installation_keeps_its_identity_and_no_other_has_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let machine = Hardware::of(["board", "interface"]);
        let at = |name: &str, hardware: &Hardware| {
            installation_in(&dir.path().join(name), hardware).expect("an identity")
        };
        let one = at("one", &machine);
        assert_eq!(at("one", &machine), one);
        assert_eq!(at("one", &Hardware::of(["board", "new interface"])), one, "a part was replaced");
        assert_eq!(at("one", &Hardware::default()), one, "nothing is known");
        assert_ne!(at("two", &machine), one, "another state directory");
        let clone = Hardware::of(["other board", "other interface"]);
        let cloned = at("one", &clone);
        assert_ne!(cloned, one);
        assert_eq!(at("one", &clone), cloned);
    }
}
