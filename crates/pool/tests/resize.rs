//! Volumes that become larger: after a crash at any step, with targets that are full or gone, and while
//! they are renamed and removed.

mod common;

use common::{Doomed, GIB, MIB, Rig, check, check_empty, request};
use longhaul_pool::{Error, Pool, Quota, Removed, SpaceError, VolumeLayout, VolumeRequest};

fn single(name: &str, size: u64) -> VolumeRequest {
    VolumeRequest { layout: VolumeLayout::Single, width: 1, ..request(name, size) }
}

/// Bytes of the namespaces at the targets.
fn sizes(rig: &Rig) -> Vec<u64> {
    rig.targets.lock().values().flat_map(|target| target.namespaces.values().map(|n| n.size)).collect()
}

/// A host without faults finishes what was left.
fn settle(rig: &Rig) {
    rig.lose_hosts();
    let recovered = Pool::open(&rig.host("settler"), "p").expect("opened").recover().expect("recovered");
    assert_eq!((recovered.held, recovered.waiting.len()), (0, 0), "{recovered:?}");
}

#[test]
fn a_volume_grows_and_does_not_shrink() {
    for made in [request("v", 100 * MIB), single("v", 100 * MIB)] {
        let rig = Rig::new(4, GIB);
        let pool = rig.pool(Quota::default());
        let before = pool.create_volume(&made).expect("made");
        let after = pool.resize_volume("v", 300 * MIB).expect("resized");
        assert_eq!(
            (after.uuid, after.shape.size, after.members.len()),
            (before.uuid, 300 * MIB, before.members.len())
        );
        assert!(sizes(&rig).iter().all(|size| *size == after.shape.member_size));
        assert_eq!(pool.resize_volume("v", 300 * MIB), Ok(after));
        let refused = pool.resize_volume("v", 200 * MIB).expect_err("smaller").to_string();
        assert!(
            refused.starts_with("volume p/v is not resized: it has 300 MiB, and does not shrink"),
            "{refused}"
        );
        assert!(matches!(pool.resize_volume("w", GIB), Err(Error::NotFound { .. })));
        check(&pool, &rig.targets);
        // An import finds the new size.
        let catalog = common::empty(&rig.clock);
        let host = longhaul_pool::Host { catalog, ..rig.host("creator") };
        let addresses: Vec<String> = rig.targets.lock().keys().cloned().collect();
        let (imported, _) = longhaul_pool::import(&host, &addresses, None, None).expect("imported");
        assert_eq!(imported.volume("v").expect("there").shape, pool.volume("v").expect("there").shape);
        assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
        check_empty(&pool, &rig);
    }
}

#[test]
fn a_crash_at_each_step_is_finished_or_undone() {
    let (mut sizes_seen, mut unfinished) = ([0, 0], 0);
    for crash_at in 1.. {
        for seed in 0..3 {
            let rig = Rig::new(4, GIB);
            let pool = rig.pool(Quota::default());
            pool.create_volume(&request("v", 100 * MIB)).expect("made");
            let doomed = Doomed::new(&rig.catalog, &rig.targets, crash_at, None, seed);
            let resized =
                Pool::open(&doomed.host("doomed"), "p").and_then(|p| p.resize_volume("v", 200 * MIB));
            if resized.is_ok() && !doomed.is_dead() {
                assert!(crash_at > 15, "{crash_at} steps were tried");
                assert!(unfinished > 0, "no resize was seen that is unfinished");
                assert!(sizes_seen.iter().all(|count| *count > 0), "{sizes_seen:?}");
                return;
            }
            check(&pool, &rig.targets);
            let resizing = || pool.resizing(&pool.volume("v").expect("there")).expect("asked");
            if let Some(seen) = resizing() {
                assert_eq!((seen.size, &*seen.host, seen.under_way), (200 * MIB, "doomed", true));
                rig.lose_hosts();
                let left = resizing().expect("it is unfinished");
                assert!(!left.under_way, "its host is lost");
                unfinished += 1;
            }
            settle(&rig);
            assert_eq!(resizing(), None);
            check(&pool, &rig.targets);
            let size = pool.volume("v").expect("there").shape.size;
            assert!([100 * MIB, 200 * MIB].contains(&size), "{size}");
            sizes_seen[usize::from(size > 100 * MIB)] += 1;
            assert!(pool.status().expect("status").intents.is_empty());
            // It can be resized, and removed.
            assert_eq!(pool.resize_volume("v", 250 * MIB).expect("resized").shape.size, 250 * MIB);
            check(&pool, &rig.targets);
            assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
            check_empty(&pool, &rig);
        }
    }
}

#[test]
fn a_volume_that_is_renamed_at_any_read_of_its_resize_has_one_size() {
    for reads in 0.. {
        let rig = Rig::new(4, GIB);
        let pool = rig.pool(Quota::default());
        pool.create_volume(&request("v", 100 * MIB)).expect("made");
        let (host, between) = rig.host_between(reads, "v", "w");
        let resized = Pool::open(&host, "p").and_then(|pool| pool.resize_volume("v", 200 * MIB));
        if !between.is_done() {
            assert!(reads > 10, "{reads} reads were tried");
            return;
        }
        settle(&rig);
        check(&pool, &rig.targets);
        assert!(pool.status().expect("status").intents.is_empty());
        let size = pool.volume("w").expect("there").shape.size;
        assert!(size == 200 * MIB || resized.is_err() && size == 100 * MIB, "{size}: {resized:?}");
        assert_eq!(pool.remove_volume("w"), Ok(Removed::Whole));
        check_empty(&pool, &rig);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota { pool: Some(GIB), job: Some(600 * MIB) });
    let request = VolumeRequest { job: Some("7".to_owned()), ..request("v", 100 * MIB) };
    pool.create_volume(&request).expect("made");
    let before = (sizes(&rig), pool.status().expect("status").usage);
    for (size, owner) in [(500 * MIB, "job 7"), (4 * GIB, "pool p")] {
        match pool.resize_volume("v", size) {
            Err(Error::Quota { owner: of, .. }) => assert_eq!(of, owner),
            other => panic!("{other:?}"),
        }
    }
    let rig_full = Rig::new(3, 200 * MIB);
    let full = rig_full.pool(Quota::default());
    full.create_volume(&common::request("v", 100 * MIB)).expect("made");
    match full.resize_volume("v", GIB) {
        Err(Error::Space { attempted: "grow a namespace", source: SpaceError::Full(why), .. }) => {
            assert!(why.contains("are free"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    check(&full, &rig_full.targets);
    assert_eq!(before, (sizes(&rig), pool.status().expect("status").usage));
    assert!(pool.status().expect("status").intents.is_empty());
    check(&pool, &rig.targets);
}

#[test]
fn a_target_that_is_gone_is_waited_for() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    pool.create_volume(&request("v", 100 * MIB)).expect("made");
    let spaces = Late { targets: std::sync::Arc::clone(&rig.targets) };
    let host = longhaul_pool::Host { spaces: std::sync::Arc::new(spaces), ..rig.host("unlucky") };
    let unlucky = Pool::open(&host, "p").expect("opened");
    let refused = unlucky.resize_volume("v", 200 * MIB).expect_err("t1 is gone").to_string();
    assert!(refused.contains("2 of its 3 namespaces have grown") && refused.contains("again"), "{refused}");
    check(&pool, &rig.targets);
    assert_eq!(pool.volume("v").expect("there").shape.size, 100 * MIB);
    // Another size is for later; names and hosts change meanwhile.
    pool.rename_volume("v", "w").expect("renamed");
    pool.set_hosts("w", &["nqn.2014-08.org.example:h".to_owned()]).expect("set");
    let resized = pool.resize_volume("w", 200 * MIB).expect("continued");
    assert_eq!((resized.shape.size, resized.hosts.len()), (200 * MIB, 1));
    check(&pool, &rig.targets);
    // A volume whose resize waits is removed without a trace.
    unlucky.resize_volume("w", 250 * MIB).expect_err("t1 is gone");
    assert_eq!(pool.remove_volume("w"), Ok(Removed::Whole));
    settle(&rig);
    check_empty(&pool, &rig);
}

/// Targets of which one is gone when namespaces grow.
struct Late {
    targets: std::sync::Arc<common::Targets>,
}

mod late {
    use super::Late;
    use longhaul_pool::{Label, Namespace, NamespaceId, Space, SpaceError, Spaces, VolumeRecord};
    use uuid::Uuid;

    impl Spaces for Late {
        fn space(&self, address: &str) -> Result<Space, SpaceError> {
            self.targets.space(address)
        }
        fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError> {
            self.targets.list(address)
        }
        fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError> {
            self.targets.make(address, size, label)
        }
        fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
            self.targets.remove(address, namespace)
        }
        fn grow(&self, address: &str, namespace: NamespaceId, size: u64) -> Result<(), SpaceError> {
            match address {
                "t1" => Err(SpaceError::Unreachable("nothing listens there".to_owned())),
                _ => self.targets.grow(address, namespace, size),
            }
        }
        fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError> {
            self.targets.relabel(address, namespace, label)
        }
        fn format(&self, of: &VolumeRecord, members: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError> {
            self.targets.format(of, members)
        }
        fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
            self.targets.array_on(address, namespace)
        }
    }
}
