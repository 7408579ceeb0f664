//! The file of old values of changed settings.

use super::advice::HostSetting;
use crate::Error;
use longhaul_engine::state_file;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Path of the file, relative to the root directory.
const FILE: &str = "var/lib/longhaul/tune.json";
/// Version of the file's format.
const VERSION: u64 = 1;

/// The old value of a setting, and the path of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierValue {
    /// Path of its file, relative to the root directory.
    pub file: String,
    /// The old value.
    pub value: String,
}

/// Old values by name of the setting. Applying twice keeps the first old value.
#[derive(Clone, Debug)]
pub struct SavedSettings {
    path: PathBuf,
    /// Old values by name.
    pub settings: BTreeMap<String, EarlierValue>,
    /// The content of the file when it was read.
    before: BTreeMap<String, EarlierValue>,
}

impl SavedSettings {
    /// Reads the file of the machine whose root directory is `root`.
    ///
    /// # Errors
    /// It cannot be read, or is not such a file: it is never taken for none.
    pub fn load(root: &Path) -> Result<SavedSettings, Error> {
        let path = root.join(FILE);
        let wrong = |what: &dyn std::fmt::Display| {
            Error::failed(format!(
                "{}: {what}; it records the earlier settings: repair it, or remove it to forget them",
                path.display()
            ))
        };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Ok(SavedSettings { path, settings: BTreeMap::new(), before: BTreeMap::new() });
            }
            Err(e) => return Err(wrong(&e)),
        };
        let value: Value = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
        match value["version"].as_u64() {
            Some(VERSION) => {}
            Some(version) => {
                let what =
                    format_args!("it is of version {version}, and this program knows version {VERSION}");
                return Err(wrong(&what));
            }
            None => return Err(wrong(&"it has no version")),
        }
        let mut settings = BTreeMap::new();
        for (name, old) in value["settings"].as_object().into_iter().flatten() {
            let (Some(file), Some(value)) = (old["file"].as_str(), old["value"].as_str()) else {
                return Err(wrong(&format_args!("'{name}' has no value")));
            };
            // Root writes these files: paths other than settings are refused.
            let known = file.starts_with("proc/sys/") || file.starts_with("sys/devices/system/cpu/");
            if !known || file.split('/').any(|part| part == "..") {
                return Err(wrong(&format_args!("'{file}' is not the file of a setting")));
            }
            settings.insert(name.clone(), EarlierValue { file: file.into(), value: value.into() });
        }
        Ok(SavedSettings { path, before: settings.clone(), settings })
    }

    /// Adds the current values of `settings`, unless an older value is there.
    pub fn keep(&mut self, settings: &[HostSetting]) {
        for setting in settings {
            let old = || EarlierValue { file: setting.file.clone(), value: setting.is.clone() };
            self.settings.entry(setting.name.clone()).or_insert_with(old);
        }
    }

    /// Removes the old values of settings that did not change, unless an earlier run added them.
    pub fn forget<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            if !self.before.contains_key(name) {
                self.settings.remove(name);
            }
        }
    }

    /// Replaces the file atomically, or removes it if there are no old values.
    ///
    /// # Errors
    /// Of the file system.
    pub fn store(&self) -> Result<(), Error> {
        let failed = |e: std::io::Error| {
            let hint = match e.kind() {
                ErrorKind::PermissionDenied => "; settings of a machine need root: use sudo",
                _ => "",
            };
            Error::failed(format!("cannot write {}: {e}{hint}", self.path.display()))
        };
        if self.settings.is_empty() {
            return state_file::remove(&self.path).map_err(failed);
        }
        let old = |(name, old): (&String, &EarlierValue)| {
            (name.clone(), json!({ "file": old.file, "value": old.value }))
        };
        let settings: serde_json::Map<String, Value> = self.settings.iter().map(old).collect();
        let text = json!({ "version": VERSION, "settings": settings }).to_string();
        // Durable before a setting is changed.
        let write = || {
            fs::create_dir_all(self.path.parent().unwrap_or(Path::new("/")))?;
            state_file::replace(&self.path, text.as_bytes())
        };
        write().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_the_file_are_fixed_and_a_newer_version_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join(FILE);
        let text = concat!(
            r#"{"settings":{"net.core.rmem_max":{"file":"proc/sys/net/core/rmem_max","value":"212992"}},"#,
            r#""version":1}"#
        );
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, text).expect("written");
        let saved = SavedSettings::load(root.path()).expect("readable");
        let value = EarlierValue { file: "proc/sys/net/core/rmem_max".into(), value: "212992".into() };
        assert_eq!(saved.settings, BTreeMap::from([("net.core.rmem_max".into(), value)]));
        saved.store().expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), text);
        fs::write(&path, text.replace(r#""version":1"#, r#""version":2"#)).expect("written");
        let refused = SavedSettings::load(root.path()).expect_err("newer").to_string();
        assert!(refused.contains("of version 2, and this program knows version 1"), "{refused}");
    }
}
