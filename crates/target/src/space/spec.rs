//! Spaces, as a user gives them.

use super::{BlockSpace, BlockSpaceOptions, DirSpace, Space, SpaceError};
use crate::state::TargetState;
use longhaul_block::units::parse_size;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// `NAME=dir:PATH[,size=SIZE][,nqn=NQN]` or `NAME=block:PATH[,…][,overwrite][,adopt]`: capacity in which
/// administrators make namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceSpec {
    /// Name of the subsystem.
    pub name: String,
    place: SpacePlace,
    /// NQN of the subsystem, where it is not derived from the name.
    nqn: Option<String>,
}

/// Where a space is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SpacePlace {
    /// A directory, and the bytes that namespaces may take, if not all of the file system.
    Directory(PathBuf, Option<u64>),
    /// A block device.
    Device(PathBuf, BlockSpaceOptions),
}

impl FromStr for SpaceSpec {
    type Err = String;

    fn from_str(s: &str) -> Result<SpaceSpec, String> {
        let (name, rest) =
            s.split_once('=').ok_or("the form is NAME=dir:PATH, such as fast=dir:/srv/fast")?;
        check_name(name)?;
        let mut parts = rest.split(',');
        let place = parts.next().and_then(|place| place.split_once(':'));
        let (kind, path) =
            place
                .filter(|(kind, path)| ["dir", "block"].contains(kind) && !path.is_empty())
                .ok_or("a space is a directory, NAME=dir:PATH, or a block device, NAME=block:PATH")?;
        let (mut options, mut nqn) = (BlockSpaceOptions::default(), None);
        for part in parts {
            match (part.split_once('='), part) {
                (Some(("size", value)), _) => {
                    options.quota = Some(parse_size(value).map_err(|e| e.to_string())?)
                }
                (Some(("nqn", value)), _) => nqn = Some(value.to_owned()),
                (None, "overwrite") if kind == "block" => options.overwrite = true,
                (None, "adopt") if kind == "block" => options.adopt = true,
                _ => {
                    let more = if kind == "block" { ", overwrite and adopt" } else { "" };
                    return Err(format!(
                        "'{part}' is no option of a {kind}: space: there are size=, nqn={more}"
                    ));
                }
            }
        }
        let place = match kind {
            "dir" => SpacePlace::Directory(path.into(), options.quota),
            _ => SpacePlace::Device(path.into(), options),
        };
        Ok(SpaceSpec { name: name.to_owned(), place, nqn })
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
    /// As for [`DirSpace::open`] and [`BlockSpace::open`].
    pub fn open(&self) -> Result<Arc<dyn Space>, SpaceError> {
        Ok(match &self.place {
            SpacePlace::Directory(path, quota) => Arc::new(DirSpace::open(path, *quota)?),
            SpacePlace::Device(path, options) => Arc::new(BlockSpace::open(path, options)?),
        })
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
    fn a_space_is_a_name_and_a_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = TargetState::at(dir.path().to_owned());
        let spec: SpaceSpec = "fast=dir:/srv/fast,size=10TiB".parse().expect("a space");
        assert_eq!(spec.name, "fast");
        assert_eq!(spec.place, SpacePlace::Directory("/srv/fast".into(), Some(10 << 40)));
        assert!(spec.nqn(&state).ends_with(":fast"), "{}", spec.nqn(&state));
        let named: SpaceSpec = "x=dir:/srv/x,nqn=nqn.2014-08.org.example:x".parse().expect("a space");
        assert_eq!(named.nqn(&state), "nqn.2014-08.org.example:x");
        let device: SpaceSpec = "x=block:/dev/nvme0n1,size=1TiB,overwrite".parse().expect("a space");
        let options = BlockSpaceOptions { quota: Some(1 << 40), overwrite: true, adopt: false };
        assert_eq!(device.place, SpacePlace::Device("/dev/nvme0n1".into(), options));
        for wrong in [
            "fast",
            "fast=/srv",
            "=dir:/srv",
            "a b=dir:/srv",
            "x=dir:",
            "x=dir:/srv,thin",
            "x=dir:/srv,overwrite",
            "x=block:/dev/x,adopt=1",
            "x=mem:1GiB",
        ] {
            wrong.parse::<SpaceSpec>().expect_err(wrong);
        }
    }
}
