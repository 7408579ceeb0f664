//! The generation and active members that this host last saw of an array: a file beside its record.
//!
//! Invariants:
//! - the file is replaced as a whole ([`state_file`]);
//! - an array runs also if the file cannot be read or written, since members and witness decide
//!   and the file is an additional check. A failure to write is logged once.

use super::record::ArrayRecord;
use super::registry::Registry;
use longhaul_array::{Known, Memory};
use longhaul_engine::{blocking, state_file};
use serde_json::{Value, json};
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Path of the file of an array.
pub(super) fn path(array: &ArrayRecord) -> PathBuf {
    array.registry.directory().join(format!("{}.known", array.uuid))
}

/// The file of one array.
pub(crate) struct LastKnown {
    path: PathBuf,
    registry: Registry,
    reported: Arc<AtomicBool>,
}

impl LastKnown {
    pub(crate) fn of(array: &ArrayRecord) -> LastKnown {
        LastKnown { path: path(array), registry: array.registry.clone(), reported: Arc::default() }
    }
}

impl Memory for LastKnown {
    fn recall(&self) -> Option<Known> {
        let read = self.registry.with_rights(|| std::fs::read_to_string(&self.path)).and_then(|read| read);
        let text = match read {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("{}: cannot read the last known state of the array: {e}", self.path.display());
                return None;
            }
        };
        let known = parse(&text);
        if known.is_none() {
            tracing::warn!(
                "{}: not a record of the last known state of an array; it is ignored",
                self.path.display()
            );
        }
        known
    }

    fn keep(&self, known: Known) -> Pin<Box<dyn Future<Output = ()>>> {
        let (path, registry, reported) =
            (self.path.clone(), self.registry.clone(), Arc::clone(&self.reported));
        Box::pin(blocking(move || {
            if let Err(e) = registry.with_rights(|| write(&path, &known)).and_then(|written| written)
                && !reported.swap(true, Ordering::Relaxed)
            {
                tracing::warn!("{}: cannot write the last known state of the array: {e}", path.display());
            }
        }))
    }
}

fn write(path: &Path, known: &Known) -> std::io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    let active: Vec<String> = known.active.iter().map(ToString::to_string).collect();
    let text = json!({
        "generation": known.generation, "session": known.session.to_string(), "from": known.from,
        "active": active,
    });
    state_file::replace(path, format!("{text:#}\n").as_bytes())
}

fn parse(text: &str) -> Option<Known> {
    let value: Value = serde_json::from_str(text).ok()?;
    let active = value["active"].as_array()?.iter().map(|uuid| uuid.as_str()?.parse().ok());
    Some(Known {
        generation: value["generation"].as_u64()?,
        session: value["session"].as_str()?.parse().ok()?,
        from: value["from"].as_u64()?,
        active: active.collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_record_is_read_back_and_a_damaged_one_is_ignored() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("below").join("a.known");
        let last_known =
            LastKnown { path: path.clone(), registry: Registry::own(), reported: Arc::default() };
        assert_eq!(last_known.recall(), None);
        let known = Known {
            generation: 7,
            session: Uuid::from_u128(1),
            from: 5,
            active: vec![Uuid::from_u128(2), Uuid::from_u128(3)],
        };
        write(&path, &known).expect("written");
        assert_eq!(last_known.recall(), Some(known));
        std::fs::write(&path, "{}").expect("damaged");
        assert_eq!(last_known.recall(), None);
    }
}
