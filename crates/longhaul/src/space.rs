//! Spaces, as given on the command line.

use crate::exit::{Exit, Failure};
use crate::export;
use crate::reservations::ReservationFile;
use longhaul_block::units::parse_size;
use longhaul_target::{DirSpace, ReservationStores, SpaceError};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// `NAME=dir:PATH[,size=SIZE][,nqn=NQN]`: capacity in which administrators make namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpaceSpec {
    /// Name of the subsystem.
    pub(crate) name: String,
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
        export::check_name(name)?;
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
    /// The subsystem's NQN, made as that of an export is.
    pub(crate) fn nqn(&self) -> String {
        self.nqn.clone().unwrap_or_else(|| export::nqn_of(&self.name))
    }

    /// Opens the space; makes its directory if it does not exist.
    pub(crate) fn open(&self) -> Result<DirSpace, Failure> {
        DirSpace::open(&self.directory, self.size).map_err(|e| {
            let exit = if matches!(e, SpaceError::Invalid(_)) { Exit::Refused } else { Exit::Failed };
            Failure::new(exit, format_args!("space {}: {e}", self.name))
        })
    }
}

/// Where the reservations of its namespaces persist: as those of exports.
pub(crate) fn reservation_stores() -> ReservationStores {
    Arc::new(|uuid| Arc::new(ReservationFile::of(uuid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_a_name_and_a_directory() {
        let spec: SpaceSpec = "fast=dir:/srv/fast,size=10TiB".parse().expect("a space");
        assert_eq!((spec.name.as_str(), spec.size), ("fast", Some(10 << 40)));
        assert!(spec.nqn().ends_with(":fast"), "{}", spec.nqn());
        let named: SpaceSpec = "x=dir:/srv/x,nqn=nqn.2014-08.org.example:x".parse().expect("a space");
        assert_eq!(named.nqn(), "nqn.2014-08.org.example:x");
        for wrong in
            ["fast", "fast=/srv", "=dir:/srv", "a b=dir:/srv", "x=dir:", "x=dir:/srv,thin", "x=mem:1GiB"]
        {
            wrong.parse::<SpaceSpec>().expect_err(wrong);
        }
    }
}
