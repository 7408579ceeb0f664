//! Spaces, as a user gives them.

use super::{DirSpace, SpaceError};
use crate::state::TargetState;
use longhaul_block::units::parse_size;
use std::path::PathBuf;
use std::str::FromStr;

/// `NAME=dir:PATH[,size=SIZE][,nqn=NQN]`: capacity in which administrators make namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceSpec {
    /// Name of the subsystem.
    pub name: String,
    directory: PathBuf,
    /// Bytes that namespaces may take, if not all of the file system.
    size: Option<u64>,
    /// NQN of the subsystem, where it is not derived from the name.
    nqn: Option<String>,
}

impl FromStr for SpaceSpec {
    type Err = String;

    fn from_str(s: &str) -> Result<SpaceSpec, String> {
        let (name, rest) =
            s.split_once('=').ok_or("the form is NAME=dir:PATH, such as fast=dir:/srv/fast")?;
        check_name(name)?;
        let mut parts = rest.split(',');
        let directory = parts.next().and_then(|place| place.strip_prefix("dir:"));
        let directory = directory.filter(|path| !path.is_empty());
        let directory = directory.ok_or("a space is a directory: NAME=dir:PATH")?.into();
        let mut spec = SpaceSpec { name: name.to_owned(), directory, size: None, nqn: None };
        for part in parts {
            match part.split_once('=') {
                Some(("size", value)) => spec.size = Some(parse_size(value).map_err(|e| e.to_string())?),
                Some(("nqn", value)) => spec.nqn = Some(value.to_owned()),
                _ => return Err(format!("'{part}' is no option of a space: there are size= and nqn=")),
            }
        }
        Ok(spec)
    }
}

impl SpaceSpec {
    /// The subsystem's NQN: the given one, or made of its name.
    pub fn nqn(&self, state: &TargetState) -> String {
        self.nqn.clone().unwrap_or_else(|| state.nqn_of(&self.name))
    }

    /// Opens the space; makes its directory if it does not exist.
    ///
    /// # Errors
    /// As for [`DirSpace::open`].
    pub fn open(&self) -> Result<DirSpace, SpaceError> {
        DirSpace::open(&self.directory, self.size)
    }
}

/// Checks the name of a subsystem, which NQNs are made of.
///
/// # Errors
/// The text says which characters are allowed.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(good) {
        return Err(format!("'{name}' is not a name: use letters, digits, '-', '_' and '.'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_a_name_and_a_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = TargetState::at(dir.path().to_owned());
        let spec: SpaceSpec = "fast=dir:/srv/fast,size=10TiB".parse().expect("a space");
        assert_eq!((spec.name.as_str(), spec.size), ("fast", Some(10 << 40)));
        assert!(spec.nqn(&state).ends_with(":fast"), "{}", spec.nqn(&state));
        let named: SpaceSpec = "x=dir:/srv/x,nqn=nqn.2014-08.org.example:x".parse().expect("a space");
        assert_eq!(named.nqn(&state), "nqn.2014-08.org.example:x");
        for wrong in
            ["fast", "fast=/srv", "=dir:/srv", "a b=dir:/srv", "x=dir:", "x=dir:/srv,thin", "x=mem:1GiB"]
        {
            wrong.parse::<SpaceSpec>().expect_err(wrong);
        }
    }
}
