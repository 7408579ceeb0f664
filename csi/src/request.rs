//! What requests ask for: parameters of a storage class, sizes, capabilities.

use crate::names::Kind;
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::volume_capability::{AccessType, MountVolume};
use crate::v1::{CapacityRange, VolumeCapability};
use std::collections::HashMap;
use tonic::Status;

/// Size in bytes of a volume whose size is not said.
const DEFAULT_SIZE: u64 = 1 << 30;
/// Smallest XFS that `mkfs.xfs` makes, in bytes.
const XFS_LEAST: u64 = 300 << 20;
/// What keys of Kubernetes' own parameters begin with: names of the claim, the class and so on.
const KUBERNETES: &str = "csi.storage.k8s.io/";

/// Parameters of a storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) pool: Option<String>,
    pub(crate) kind: Kind,
    pub(crate) layout: String,
    pub(crate) width: Option<usize>,
    /// File system of volumes whose capabilities name none.
    pub(crate) fs: Option<String>,
    /// Further flags of the verb that makes it.
    pub(crate) flags: Vec<String>,
}

impl Parameters {
    /// # Errors
    /// A parameter is not known, or has a value that it cannot have.
    pub(crate) fn new(given: &HashMap<String, String>) -> Result<Parameters, Status> {
        let (pool, kind, layout) = (None, Kind::Volume, "parity".to_owned());
        let mut made = Parameters { pool, kind, layout, width: None, fs: None, flags: Vec::new() };
        let mut given: Vec<(&String, &String)> = given.iter().collect();
        given.sort_unstable();
        for (key, value) in given {
            let wrong =
                |is: &str| Status::invalid_argument(format!("parameter {key} is '{value}', not {is}"));
            match key.as_str() {
                "pool" => made.pool = Some(value.clone()),
                "layout" => made.layout.clone_from(value),
                "fsType" => made.fs = Some(file_system(value).ok_or_else(|| wrong("xfs or ext4"))?),
                "width" => made.width = Some(value.parse().map_err(|_| wrong("a number of members"))?),
                "kind" => {
                    made.kind = match value.as_str() {
                        "volume" => Kind::Volume,
                        "filesystem" => Kind::FileSystem,
                        _ => return Err(wrong("volume or filesystem")),
                    };
                }
                "perDomain" => {
                    let number: usize = value.parse().map_err(|_| wrong("a number of members"))?;
                    made.flags.extend(["--per-domain".to_owned(), number.to_string()]);
                }
                // The program knows sizes.
                "stripeUnit" => made.flags.extend(["--stripe-unit".to_owned(), value.clone()]),
                "thin" => match value.as_str() {
                    "true" => made.flags.push("--thin".to_owned()),
                    "false" => {}
                    _ => return Err(wrong("true or false")),
                },
                key if key.starts_with(KUBERNETES) => {}
                _ => {
                    let known = "pool, kind, layout, width, perDomain, stripeUnit, thin, fsType";
                    return Err(Status::invalid_argument(format!(
                        "there is no parameter {key}: there are {known}"
                    )));
                }
            }
        }
        // Words that follow a flag: none of them may be taken for a flag itself.
        for (key, value) in [("layout", &made.layout), ("pool", made.pool.as_ref().unwrap_or(&made.layout))] {
            if value.is_empty() || value.starts_with('-') {
                return Err(Status::invalid_argument(format!("parameter {key} is '{value}'")));
            }
        }
        Ok(made)
    }
}

/// The name of a file system that the program makes.
fn file_system(name: &str) -> Option<String> {
    ["xfs", "ext4"].contains(&name).then(|| name.to_owned())
}

/// How a volume is used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Access {
    /// As a block device.
    Block,
    /// As a directory.
    Mount {
        /// Its file system; `None` if it may be any.
        fs: Option<String>,
        /// Mount options.
        flags: Vec<String>,
    },
}

/// A capability that a volume is to have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Capability {
    pub(crate) access: Access,
    pub(crate) mode: Mode,
}

impl Capability {
    /// # Errors
    /// It is missing, or not whole.
    pub(crate) fn new(given: Option<&VolumeCapability>) -> Result<Capability, Status> {
        let given = given.ok_or_else(|| Status::invalid_argument("the request has no volume capability"))?;
        let access = match &given.access_type {
            Some(AccessType::Block(_)) => Access::Block,
            Some(AccessType::Mount(MountVolume { fs_type, mount_flags, .. })) => {
                let fs = match fs_type.as_str() {
                    "" => None,
                    name => Some(file_system(name).ok_or_else(|| {
                        Status::invalid_argument(format!(
                            "there is no file system {name}: there are xfs and ext4"
                        ))
                    })?),
                };
                Access::Mount { fs, flags: mount_flags.clone() }
            }
            None => return Err(Status::invalid_argument("the volume capability has no access type")),
        };
        let mode = given.access_mode.as_ref().map_or(Mode::Unknown, |mode| mode.mode());
        if mode == Mode::Unknown {
            return Err(Status::invalid_argument(
                "the volume capability has no access mode that this driver knows",
            ));
        }
        Ok(Capability { access, mode })
    }

    /// All capabilities of a request.
    ///
    /// # Errors
    /// There is none, or one is not whole.
    pub(crate) fn all(given: &[VolumeCapability]) -> Result<Vec<Capability>, Status> {
        if given.is_empty() {
            return Err(Status::invalid_argument("the request has no volume capabilities"));
        }
        given.iter().map(|given| Capability::new(Some(given))).collect()
    }

    /// Why volumes of a kind do not have it; `None` if they have.
    pub(crate) fn refusal(&self, kind: Kind) -> Option<String> {
        let several = matches!(
            self.mode,
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter
        );
        match (kind, &self.access) {
            (Kind::FileSystem, Access::Block) => {
                Some("a file system in a pool is no block device".to_owned())
            }
            (Kind::FileSystem, Access::Mount { fs: Some(fs), .. }) => {
                Some(format!("a file system in a pool is not {fs}: name no file system"))
            }
            (Kind::FileSystem, Access::Mount { flags, .. }) if !flags.is_empty() => {
                Some(format!("a file system in a pool has no mount options ({})", flags.join(",")))
            }
            (Kind::Volume, _) if several => Some(
                "one node uses a volume at a time: volumes for many are of 'kind: filesystem'".to_owned(),
            ),
            _ => None,
        }
    }

    /// Whether it lets nothing be written.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }
}

/// The file system that a volume is made with; `None` for a block device.
///
/// # Errors
/// Capabilities that no volume has together.
pub(crate) fn file_system_of(
    wanted: &[Capability],
    parameters: &Parameters,
) -> Result<Option<String>, Status> {
    let mut found: Option<Option<String>> = None;
    for capability in wanted {
        let own = match &capability.access {
            Access::Block => None,
            Access::Mount { fs, .. } => {
                let named = fs.clone().or_else(|| parameters.fs.clone());
                Some(named.unwrap_or_else(|| "xfs".to_owned()))
            }
        };
        match &found {
            Some(other) if *other != own => {
                return Err(Status::invalid_argument(
                    "no volume has these capabilities: its content is of one kind",
                ));
            }
            _ => found = Some(own),
        }
    }
    Ok(found.flatten())
}

/// Fewest and most bytes that a volume may have, as a request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Range {
    /// # Errors
    /// Its bounds are negative, or the wrong way round.
    pub(crate) fn new(given: Option<&CapacityRange>) -> Result<Range, Status> {
        let wrong = |_| Status::invalid_argument("the capacity range is negative");
        let (least, most) = given.map_or((0, 0), |given| (given.required_bytes, given.limit_bytes));
        let (least, most) = (u64::try_from(least).map_err(wrong)?, u64::try_from(most).map_err(wrong)?);
        let most = if most == 0 { u64::MAX } else { most };
        if least > most {
            return Err(Status::invalid_argument("the capacity range requires more than its limit"));
        }
        Ok(Range { least, most })
    }

    pub(crate) fn has(self, size: u64) -> bool {
        (self.least..=self.most).contains(&size)
    }

    /// The size in bytes to make a volume with.
    ///
    /// # Errors
    /// The limit is less than the file system needs.
    pub(crate) fn size(self, fs: Option<&str>) -> Result<u64, Status> {
        let wanted = if self.least == 0 { DEFAULT_SIZE.min(self.most) } else { self.least };
        let needs = if fs == Some("xfs") { XFS_LEAST } else { 0 };
        if needs > self.most {
            let why =
                format!("XFS needs {needs} bytes, and the limit is {}: raise it, or use ext4", self.most);
            return Err(Status::out_of_range(why));
        }
        Ok(wanted.max(needs))
    }
}

/// What an entry of a list is listed by.
pub(crate) struct Page<T> {
    pub(crate) entries: Vec<T>,
    pub(crate) next: String,
}

/// A page of a list in the order of keys. Its token is the last key, so that what is made or removed between two
/// pages neither repeats nor hides what stays.
///
/// # Errors
/// `ABORTED` for a token that is no key.
pub(crate) fn page<T>(
    mut all: Vec<T>,
    key: impl Fn(&T) -> String,
    is_key: impl Fn(&str) -> bool,
    (token, most): (&str, i32),
) -> Result<Page<T>, Status> {
    if !token.is_empty() && !is_key(token) {
        return Err(Status::aborted(format!("'{token}' is no token of this list: begin anew")));
    }
    let most = usize::try_from(most).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    all.sort_by_cached_key(&key);
    let mut entries: Vec<T> =
        all.into_iter().filter(|entry| token.is_empty() || *key(entry) > *token).collect();
    let is_cut = most > 0 && entries.len() > most;
    if is_cut {
        entries.truncate(most);
    }
    let next = entries.last().filter(|_| is_cut).map(key).unwrap_or_default();
    Ok(Page { entries, next })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn parameters(given: &[(&str, &str)]) -> Result<Parameters, Code> {
        let given = given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Parameters::new(&given.collect()).map_err(|status| status.code())
    }

    fn mount(fs: &str, mode: Mode) -> Capability {
        let fs = (!fs.is_empty()).then(|| fs.to_owned());
        Capability { access: Access::Mount { fs, flags: Vec::new() }, mode }
    }

    #[test]
    fn parameters_are_those_that_are_known() {
        let made = parameters(&[
            ("pool", "p"),
            ("width", "3"),
            ("thin", "true"),
            ("csi.storage.k8s.io/pvc/name", "x"),
        ]);
        let made = made.expect("parameters");
        assert_eq!((made.pool.as_deref(), made.width, &*made.layout), (Some("p"), Some(3), "parity"));
        assert_eq!(made.flags, ["--thin"]);
        for wrong in [
            ("Pool", "p"),
            ("width", "three"),
            ("kind", "nfs"),
            ("thin", "yes"),
            ("fsType", "btrfs"),
            ("layout", "--force"),
            ("layout", ""),
            ("pool", "-p"),
        ] {
            assert_eq!(parameters(&[wrong]), Err(Code::InvalidArgument), "{wrong:?}");
        }
    }

    #[test]
    fn many_nodes_share_file_systems_only() {
        for mode in [Mode::MultiNodeMultiWriter, Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter] {
            assert!(mount("", mode).refusal(Kind::Volume).is_some());
            assert_eq!(mount("", mode).refusal(Kind::FileSystem), None);
        }
        let block = Capability { access: Access::Block, mode: Mode::SingleNodeWriter };
        assert_eq!(block.refusal(Kind::Volume), None);
        assert!(block.refusal(Kind::FileSystem).is_some());
        assert!(mount("xfs", Mode::SingleNodeWriter).refusal(Kind::FileSystem).is_some());
    }

    #[test]
    fn content_is_of_one_kind() {
        let none = parameters(&[]).expect("parameters");
        let ext4 = parameters(&[("fsType", "ext4")]).expect("parameters");
        let of = |wanted: &[Capability], given| file_system_of(wanted, given).map_err(|status| status.code());
        let block = Capability { access: Access::Block, mode: Mode::SingleNodeWriter };
        let (any, xfs) = (mount("", Mode::SingleNodeWriter), mount("xfs", Mode::SingleNodeWriter));
        assert_eq!(of(std::slice::from_ref(&any), &none), Ok(Some("xfs".into())));
        assert_eq!(of(std::slice::from_ref(&any), &ext4), Ok(Some("ext4".into())));
        assert_eq!(of(std::slice::from_ref(&xfs), &ext4), Ok(Some("xfs".into())));
        assert_eq!(of(std::slice::from_ref(&block), &none), Ok(None));
        assert_eq!(of(&[block, any.clone()], &none), Err(Code::InvalidArgument));
        assert_eq!(of(&[xfs, any], &ext4), Err(Code::InvalidArgument));
    }

    #[test]
    fn sizes_are_within_their_range() {
        let range = |least, most| {
            let given = CapacityRange { required_bytes: least, limit_bytes: most };
            Range::new(Some(&given)).map_err(|status| status.code())
        };
        assert_eq!(range(2, 1), Err(Code::InvalidArgument));
        assert_eq!(range(-1, 0), Err(Code::InvalidArgument));
        let size = |least, most, fs: Option<&str>| range(least, most).expect("a range").size(fs).ok();
        assert_eq!(size(0, 0, None), Some(DEFAULT_SIZE));
        assert_eq!(size(0, 4096, None), Some(4096));
        assert_eq!(size(1 << 20, 0, Some("xfs")), Some(XFS_LEAST));
        assert_eq!(size(1 << 20, 1 << 21, Some("xfs")), None);
        assert_eq!(size(1 << 20, 1 << 21, Some("ext4")), Some(1 << 20));
        assert!(range(5, 7).is_ok_and(|range| range.has(7) && !range.has(4) && !range.has(8)));
        assert!(Range::new(None).is_ok_and(|range| range.has(1)));
    }

    #[test]
    fn a_page_continues_behind_an_entry_that_is_gone() {
        let list = |all: &[&str], token: &str, most| {
            let all = all.iter().map(|&name| name.to_owned()).collect();
            page(all, String::clone, |token| !token.contains('!'), (token, most))
                .map_err(|status| status.code())
        };
        let first = list(&["c", "a", "b"], "", 2).expect("a page");
        assert_eq!((first.entries, first.next.as_str()), (vec!["a".to_owned(), "b".to_owned()], "b"));
        let second = list(&["a", "c", "d"], "b", 2).expect("a page");
        assert_eq!((second.entries, second.next.as_str()), (vec!["c".to_owned(), "d".to_owned()], ""));
        assert!(list(&["a"], "z", 0).is_ok_and(|page| page.entries.is_empty()));
        assert!(list(&["a"], "!", 0).is_err_and(|code| code == Code::Aborted));
        assert!(list(&["a"], "", -1).is_err_and(|code| code == Code::InvalidArgument));
    }
}
