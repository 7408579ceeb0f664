//! Measurements that outlive an interruption of a long run.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A file of earlier measurements.
///
/// Invariants:
/// - The file holds measurements of one program only: another one is refused.
/// - It is replaced as a whole, so that it is never half written, and by one thread at a time.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    path: PathBuf,
    /// A hash of the program that is measured.
    program: String,
}

impl Keep {
    pub(crate) fn new(path: &Path, program: &Path) -> Result<Keep> {
        let mut hasher = DefaultHasher::new();
        let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        hasher.write(&bytes);
        let keep = Keep { path: path.to_owned(), program: format!("{:016x}", hasher.finish()) };
        keep.read()?;
        Ok(keep)
    }

    fn read(&self) -> Result<Value> {
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(json!({ "program": self.program, "measured": {} }));
            }
            other => other.with_context(|| format!("cannot read {}", self.path.display()))?,
        };
        let all: Value = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a file of measurements", self.path.display()))?;
        ensure!(
            all["program"] == self.program.as_str(),
            "{} has measurements of another program: remove it to measure all again",
            self.path.display()
        );
        Ok(all)
    }

    /// The samples of a case, by subject, if there are `rounds`: of the first
    /// subject, and no more of the others.
    pub(crate) fn get(&self, case: &str, subjects: usize, rounds: u32) -> Result<Option<Vec<Vec<f64>>>> {
        let kept: Option<Vec<Vec<f64>>> = serde_json::from_value(self.read()?["measured"][case].clone())?;
        let rounds = rounds as usize;
        let whole = |kept: &Vec<Vec<f64>>| {
            kept.len() == subjects
                && kept.first().is_none_or(|samples| samples.len() == rounds)
                && kept.iter().all(|samples| samples.len() <= rounds)
        };
        Ok(kept.filter(whole))
    }

    pub(crate) fn put(&self, case: &str, samples: &[Vec<f64>]) -> Result<()> {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.read()?;
        all["measured"][case] = json!(samples);
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        fs::write(&beside, serde_json::to_string_pretty(&all)?)
            .and_then(|()| fs::rename(&beside, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_there_again_for_the_same_program_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let [file, program, other] = ["kept", "program", "other"].map(|name| dir.path().join(name));
        fs::write(&program, "one").expect("a program");
        fs::write(&other, "another").expect("a program");
        let samples = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        Keep::new(&file, &program).expect("no file yet").put("a", &samples).expect("kept");
        let keep = Keep::new(&file, &program).expect("the same program");
        assert_eq!(keep.get("a", 2, 2).expect("readable"), Some(samples));
        assert_eq!(keep.get("a", 2, 3).expect("readable"), None);
        assert_eq!(keep.get("b", 2, 2).expect("readable"), None);
        assert!(Keep::new(&file, &other).is_err());
    }
}
