//! What the programs know that have a file system mounted: what a later version has brought needs all of them.

use crate::schema::{Keys, decode_knows, decode_session};
use longhaul_catalog::{Catalog, Entry};
use longhaul_device::{Error, ErrorKind, Reason, Result};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// The latest format of settings that each session knows, and the number of the snapshot that it has mounted.
pub(crate) fn known(
    catalog: &dyn Catalog,
    keys: &Keys,
) -> longhaul_catalog::Result<BTreeMap<u64, (u64, u64)>> {
    let found = catalog.range(&keys.all_known(), None)?.entries;
    let one = |entry: &Entry| Some((keys.parse(&entry.key, 1)?.0[0], decode_knows(&entry.value)?));
    Ok(found.iter().filter_map(one).collect())
}

/// Hosts with sessions of programs that do not know this format.
pub(crate) fn earlier_programs(
    catalog: &dyn Catalog,
    keys: &Keys,
    format: u64,
) -> longhaul_catalog::Result<BTreeSet<String>> {
    let sessions = catalog.range(&keys.sessions(), None)?.entries;
    let known = known(catalog, keys)?;
    let is_earlier = |entry: &&Entry| {
        let number = keys.parse(&entry.key, 1).map_or(0, |(numbers, _)| numbers[0]);
        known.get(&number).is_none_or(|(known, _)| *known < format)
    };
    let host = |entry: &Entry| decode_session(&entry.value).unwrap_or_else(|| "a host".to_owned());
    Ok(sessions.iter().filter(is_earlier).map(host).collect())
}

/// Refuses to go on while a program has the file system `name` mounted that does not know this format of settings,
/// and what it was made for: it would not do its part.
pub(crate) fn refuse_earlier(
    catalog: &dyn Catalog,
    uuid: Uuid,
    name: &str,
    format: u64,
    what: &str,
) -> Result<()> {
    let earlier = earlier_programs(catalog, &Keys::new(uuid), format);
    let earlier = earlier.map_err(|e| Error::from(longhaul_pool::Error::from(e)))?;
    if earlier.is_empty() {
        return Ok(());
    }
    let hosts = earlier.into_iter().collect::<Vec<_>>().join(", ");
    let why = format!(
        "{name} is mounted by an earlier program, which does not know {what}, on {hosts}: \
         unmount it there, and mount it with this version"
    );
    Err(Error::new(ErrorKind::Refused, why).because(Some(Reason::InUse)))
}
