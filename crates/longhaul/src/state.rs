//! Files in the state directory, and the identity of this installation.

use crate::exit::Failure;
use longhaul_block::medium::Hardware;
pub(crate) use longhaul_device::state::directory;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use uuid::Uuid;

/// Replaces a file atomically and durably; creates its directory.
pub(crate) fn save(path: &Path, text: &Value) -> Result<(), Failure> {
    write(path, text).map_err(|e| wrong(path, e))
}

/// As [`save`], with the error of the system.
pub(crate) fn write(path: &Path, text: &Value) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    std::fs::create_dir_all(directory)?;
    let new = temporary(path);
    let mut file = std::fs::File::create(&new)?;
    writeln!(file, "{text:#}")?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    std::fs::File::open(directory)?.sync_all()
}

/// Removes a file durably; a missing file is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => std::fs::File::open(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?.sync_all(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// A unique file name in the directory of `path`.
fn temporary(path: &Path) -> PathBuf {
    path.with_extension(format!("new-{}", Uuid::new_v4().simple()))
}

/// Whether an error means that the file does not exist. So does a directory that this user may not
/// access: no earlier run can have written to it.
fn is_absent(e: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(e.kind(), NotFound | NotADirectory | PermissionDenied)
}

/// Reads a file as JSON; `None` if it does not exist.
pub(crate) fn load(path: &Path) -> Result<Option<Value>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|e| wrong(path, e)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(wrong(path, e)),
    }
}

pub(crate) fn wrong(path: &Path, e: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot use {}: {e}", path.display()))
}

/// The hardware identity of this machine.
pub(crate) fn hardware() -> &'static Hardware {
    static HARDWARE: OnceLock<Hardware> = OnceLock::new();
    HARDWARE.get_or_init(Hardware::of_this_machine)
}

/// The identity of this installation: random, created once and stored in the state directory. A
/// clone of the machine creates its own. If it cannot be stored, each process has a new one.
pub(crate) fn installation() -> Uuid {
    static ID: OnceLock<Uuid> = OnceLock::new();
    *ID.get_or_init(|| {
        installation_in(&directory(), hardware()).unwrap_or_else(|failure| {
            tracing::warn!(
                "no identity of this installation can be kept ({}): NQNs that are made from it change with \
                 each start; set nqn= in --export, or XDG_STATE_HOME to a directory that can be written",
                failure.message
            );
            Uuid::new_v4()
        })
    })
}

fn installation_in(directory: &Path, hardware: &Hardware) -> Result<Uuid, Failure> {
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
        save(&path, &record(id, hardware))?;
        return Ok(id);
    }
    make(&path, hardware).map_err(|e| wrong(&path, e))?;
    // Read back: another process may have created the record first.
    let made = load(&path)?.and_then(|known| known["id"].as_str().and_then(|id| id.parse().ok()));
    made.ok_or_else(|| wrong(&path, "it was removed or damaged at this moment: try again"))
}

/// Creates the record, unless it exists.
fn make(path: &Path, hardware: &Hardware) -> io::Result<()> {
    let new = temporary(path);
    write(&new, &record(Uuid::new_v4(), hardware))?;
    let linked = std::fs::hard_link(&new, path);
    std::fs::remove_file(&new)?;
    match linked {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

fn record(id: Uuid, hardware: &Hardware) -> Value {
    json!({ "id": id.to_string(), "hardware": hardware.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_keeps_its_identity_and_no_other_has_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let machine = Hardware::of(["board", "interface"]);
        let at = |name: &str, hardware: &Hardware| {
            installation_in(&dir.path().join(name), hardware).map_err(|e| e.message).expect("an identity")
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
