//! What differs between the settings that a target runs with and those of its configuration files now.

use crate::config::VerbValues;
use crate::export::Export;
use longhaul_block::FilterSpec;
use uuid::Uuid;

/// Keys that are applied while the target runs. The directory of `keys` is read at each connection.
const LIVE: [&str; 5] = ["export", HOST_LISTS[0], HOST_LISTS[1], "host-rate", "max-connections"];
/// Keys of the lists of hosts.
pub(super) const HOST_LISTS: [&str; 2] = ["allow-host", "read-only-host"];

/// An export that is served, and its UUID.
pub(super) type Served<'a> = (&'a Export, Uuid);

/// An export that is served and stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptExport {
    /// Its place among those that are served.
    pub(super) served: usize,
    /// Its place in the new settings.
    pub(super) after: usize,
    /// The options that are others now.
    pub(super) options: Vec<&'static str>,
    /// Delays, limits and errors are others now, or in another order.
    pub(super) filters: bool,
    /// Bytes that its file is to have at least.
    pub(super) size: Option<u64>,
}

/// What becomes of exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExportChanges {
    /// Places among those that are served.
    pub(super) removed: Vec<usize>,
    /// Places in the new settings.
    pub(super) added: Vec<usize>,
    pub(super) kept: Vec<KeptExport>,
}

impl ExportChanges {
    /// Compares the exports that are served with those of the new settings.
    ///
    /// # Errors
    /// A sentence: an export cannot be changed in this way while it is served.
    pub(super) fn between(served: &[Served<'_>], after: &[Export]) -> Result<ExportChanges, String> {
        let mut changes = ExportChanges::default();
        let mut left: Vec<usize> = (0..served.len()).collect();
        for (place, export) in after.iter().enumerate() {
            let found = left.iter().position(|&place| {
                let (one, uuid) = served[place];
                one.is_still(uuid, export)
            });
            match found {
                Some(at) => changes.kept.push(KeptExport::between(served, left.remove(at), export, place)),
                None => changes.added.push(place),
            }
        }
        changes.removed = left;
        for export in changes.added.iter().map(|&place| &after[place]) {
            let removed = changes.removed.iter().map(|&place| served[place].0);
            if removed.into_iter().any(|gone| gone.has_medium_of(export)) {
                return Err(format!(
                    "export {}: what it serves cannot be opened anew while it is served, and only size=, allow-host=, \
                     read-only-host=, delay=, rate=, error= and stats change without that: take it out of the configuration, reload, \
                     and add it as it is to be",
                    export.name
                ));
            }
            let kept = changes.kept.iter().map(|kept| served[kept.served].0);
            let others = after.iter().filter(|other| other.name == export.name).count() > 1;
            if kept.into_iter().any(|kept| kept.name == export.name && kept.is_of_volume()) && others {
                return Err(format!(
                    "export {0}: the subsystem {0} is that of a volume, and has no other exports while the target runs: \
                     restart the target, or give it another name",
                    export.name
                ));
            }
        }
        Ok(changes)
    }
}

impl KeptExport {
    fn between(served: &[Served<'_>], at: usize, export: &Export, after: usize) -> KeptExport {
        let before = served[at].0;
        let filters = before.filters() != export.filters();
        let size = export.file_size().filter(|size| before.file_size().is_none_or(|before| *size > before));
        let mut options = changed_filters(before.filters(), export.filters());
        let (old, new) = (before.hosts.sorted(), export.hosts.sorted());
        options.extend((old.writers != new.writers).then_some(HOST_LISTS[0]));
        options.extend((old.readers != new.readers).then_some(HOST_LISTS[1]));
        options.extend(size.map(|_| "size"));
        KeptExport { served: at, after, options, filters, size }
    }
}

/// Names of the filters that differ; all of them if only their order does.
fn changed_filters(before: &[FilterSpec], after: &[FilterSpec]) -> Vec<&'static str> {
    let name = |filter: &FilterSpec| match filter {
        FilterSpec::Delay { .. } => "delay",
        FilterSpec::Rate { .. } => "rate",
        FilterSpec::Error { .. } => "error",
        FilterSpec::Stats => "stats",
    };
    let names = ["delay", "rate", "error", "stats"];
    let of = |filters: &[FilterSpec], one: &str| {
        filters.iter().filter(|filter| name(filter) == one).cloned().collect::<Vec<_>>()
    };
    let differ: Vec<&str> = names.into_iter().filter(|one| of(before, one) != of(after, one)).collect();
    if differ.is_empty() && before != after {
        return names.into_iter().filter(|one| !of(after, one).is_empty()).collect();
    }
    differ
}

/// The settings that are others now, and are not exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SettingChanges {
    /// Keys that are applied while the target runs.
    pub(super) live: Vec<String>,
    /// Keys that are applied when it is started again.
    pub(super) restart: Vec<String>,
}

impl SettingChanges {
    /// Compares settings.
    pub(super) fn between(before: &VerbValues, after: &VerbValues) -> SettingChanges {
        let none = None;
        let changed = after.iter().filter(|(key, value)| before.get(*key).unwrap_or(&none) != *value);
        let changed = changed.map(|(key, _)| key.clone()).filter(|key| key != "export");
        let (live, restart) = changed.partition(|key| LIVE.contains(&key.as_str()));
        SettingChanges { live, restart }
    }

    /// The settings that are in force once the live ones have been applied.
    pub(super) fn applied(&self, before: &VerbValues, after: &VerbValues) -> VerbValues {
        let restart = self.restart.iter().map(|key| (key.clone(), before.get(key).cloned().flatten()));
        after.clone().into_iter().chain(restart).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml::Value;

    fn exports(texts: &[&str]) -> Vec<Export> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    /// The UUID of the export at a place, as it is served.
    fn uuid(place: usize) -> Uuid {
        Uuid::from_u128(place as u128 + 1)
    }

    fn between(before: &[&str], after: &[&str]) -> Result<ExportChanges, String> {
        let before = exports(before);
        let served: Vec<_> = before.iter().enumerate().map(|(place, export)| (export, uuid(place))).collect();
        ExportChanges::between(&served, &exports(after))
    }

    fn kept(served: usize, after: usize) -> KeptExport {
        KeptExport { served, after, ..KeptExport::default() }
    }

    #[test]
    fn exports_are_added_and_removed_and_may_change_their_places() {
        let changes = between(
            &["a=mem:1MiB", "b=null:1MiB", "a=mem:1MiB"],
            &["a=mem:1MiB", "c=mem:1MiB", "a=mem:1MiB"],
        );
        let expected = ExportChanges { removed: vec![1], added: vec![1], kept: vec![kept(0, 0), kept(2, 2)] };
        assert_eq!(changes, Ok(expected));
        let same = between(&["a=mem:1MiB", "b=file:/x"], &["b=file:/x", "a=mem:1MiB"]).expect("compared");
        let expected = ExportChanges { kept: vec![kept(1, 0), kept(0, 1)], ..ExportChanges::default() };
        assert_eq!(same, expected);
        // Other memory is another device.
        let changes = between(&["a=mem:1MiB"], &["a=mem:2MiB"]).expect("compared");
        assert_eq!((changes.removed, changes.added), (vec![0], vec![0]));
    }

    #[test]
    fn options_that_can_change_while_an_export_is_served() {
        let changed = |before: &str, after: &str| {
            let changes = between(&[before], &[after]).expect(after);
            assert_eq!((changes.removed.len(), changes.added.len()), (0, 0), "{after}");
            changes.kept.into_iter().next().expect("it is kept")
        };
        let all = changed("a=file:/x", "a=file:/x,size=1GiB,rate=1Gbit,allow-host=h,delay=1ms");
        assert_eq!(all.options, ["delay", "rate", "allow-host", "size"]);
        assert_eq!((all.filters, all.size), (true, Some(1 << 30)));
        let none =
            changed("a=file:/x,size=1GiB,allow-host=h,allow-host=i", "a=file:/x,allow-host=i,allow-host=h");
        assert_eq!(none, kept(0, 0), "a file is never made shorter, and hosts have no order");
        let order = changed("a=mem:1MiB,rate=1Gbit,delay=1ms", "a=mem:1MiB,delay=1ms,rate=1Gbit");
        assert_eq!((order.options, order.filters), (vec!["delay", "rate"], true));
        // Both are given for one start.
        assert_eq!(changed(&format!("a=file:/x,create,uuid={}", uuid(0)), "a=file:/x"), kept(0, 0));
        assert_eq!(changed("a=file:/x", &format!("a=file:/x,uuid={}", uuid(0))), kept(0, 0));
    }

    #[test]
    fn a_medium_is_not_opened_twice() {
        for after in
            ["a=file:/x,ro", "b=file:/x", "a=file:/x,block=512", "a=file:/x,nqn=nqn.2014-08.org.example:x"]
        {
            let e = between(&["a=file:/x"], &[after]).expect_err(after);
            assert!(e.contains(&format!("export {}:", &after[..1])) && e.contains("reload"), "{e}");
        }
        let other = format!("a=file:/x,uuid={}", uuid(7));
        assert!(between(&["a=file:/x"], &[&other]).is_err(), "it is served with another UUID");
        let e = between(&["a=volume:p/v"], &["a=volume:p/v,standby"]).expect_err("an array runs once");
        assert!(e.contains("export a:"), "{e}");
        assert!(between(&["a=file:/x"], &["a=file:/y"]).is_ok());
    }

    #[test]
    fn settings_that_need_a_restart_stay_named_until_there_is_one() {
        let values = |pairs: &[(&str, &str)]| -> VerbValues {
            let value = |text: &str| (!text.is_empty()).then(|| Value::String(text.to_owned()));
            pairs.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect()
        };
        let before = values(&[("export", "a"), ("listen", "x"), ("keys", ""), ("allow-host", "")]);
        let after = values(&[("export", "b"), ("listen", "y"), ("keys", ""), ("allow-host", "h")]);
        let changes = SettingChanges::between(&before, &after);
        let expected = SettingChanges { live: vec!["allow-host".into()], restart: vec!["listen".into()] };
        assert_eq!(changes, expected);
        let applied = changes.applied(&before, &after);
        assert_eq!(applied, values(&[("export", "b"), ("listen", "x"), ("keys", ""), ("allow-host", "h")]));
        assert_eq!(SettingChanges::between(&applied, &after).restart, ["listen"]);
        assert!(SettingChanges::between(&applied, &before).restart.is_empty());
    }
}
