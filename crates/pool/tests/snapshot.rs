//! Snapshots: volumes of clones, made wholly or not at all.

mod common;

use common::{Doomed, GIB, MIB, MemArrays, Rig, check, check_empty, request, snapshot};
use longhaul_array::Layout;
use longhaul_catalog::Catalog as _;
use longhaul_pool::{
    Error, IntentKind, Label, Pool, Quota, Removed, SnapshotOf, SpaceError, VolumeLayout, VolumeRequest,
    import,
};
use std::sync::Arc;
use std::time::Duration;

/// A volume of four targets with a spare, and its snapshot.
fn rig() -> (Rig, Pool, MemArrays) {
    let rig = Rig::new(4, GIB);
    let pool = rig.pool(Quota::default());
    let arrays = MemArrays::new(&rig.targets);
    (rig, pool, arrays)
}

#[test]
fn a_snapshot_is_a_volume_of_its_own() {
    let (rig, pool, arrays) = rig();
    let hosts = vec!["nqn.2014-08.org.example:a".to_owned()];
    let of = VolumeRequest {
        spares: 1,
        hosts: hosts.clone(),
        job: Some("7".to_owned()),
        lifetime: Some(Duration::from_secs(3600)),
        ..request("v", 100 * MIB)
    };
    let volume = pool.create_volume(&of).expect("made");
    let (made, _) = pool.snapshot_volume(&snapshot("v", "s"), &arrays).expect("made");
    assert_eq!(pool.volume("s"), Ok(made.clone()));
    assert_eq!(made.snapshot_of, Some(SnapshotOf { volume: volume.uuid, name: "v".to_owned() }));
    assert_eq!((made.shape.size, made.shape.width, made.shape.spares), (volume.shape.size, 3, 0));
    assert_eq!(
        (&made.hosts, &made.job, made.expires, made.thin),
        (&hosts, &volume.job, volume.expires, true)
    );
    assert!(made.array.is_some() && made.array != volume.array);
    let at = |volume: &longhaul_pool::VolumeRecord| -> Vec<String> {
        volume.members[..3].iter().map(|member| member.target.clone()).collect()
    };
    assert_eq!(at(&made), at(&volume), "each clone is where its member is");
    check(&pool, &rig.targets);
    let paused = |pool: &Pool| {
        let array = pool.volume("v").expect("there").array.expect("an array");
        let arrays = rig.targets.arrays.lock().expect("not poisoned");
        (arrays[&array].paused, arrays[&array].pauses)
    };
    assert_eq!(paused(&pool), (false, 1));
    // It is listed by the name that its source has now, and is there when that is gone.
    pool.rename_volume("v", "w").expect("renamed");
    let listed = |pool: &Pool| {
        let mut all = Vec::new();
        pool.list_volumes(|one| all.push((one.name.to_string(), one.snapshot_of.map(|of| of.name))))
            .expect("ok");
        all
    };
    assert_eq!(listed(&pool), [("s".to_owned(), Some("w".to_owned())), ("w".to_owned(), None)]);
    // Of a snapshot there are snapshots.
    let (again, _) = pool.snapshot_volume(&snapshot("s", "t"), &arrays).expect("made");
    assert_eq!(again.snapshot_of.map(|of| of.name), Some("s".to_owned()));
    check(&pool, &rig.targets);
    assert_eq!(pool.remove_volume("w"), Ok(Removed::Whole));
    assert_eq!(listed(&pool)[0], ("s".to_owned(), Some("v".to_owned())), "its last known name");
    check(&pool, &rig.targets);
    assert_eq!(pool.release("7"), Ok(Removed::Whole), "its job has it too");
    check_empty(&pool, &rig);
}

#[test]
fn a_volume_of_one_namespace_has_snapshots_too() {
    let (rig, pool, arrays) = rig();
    let single = VolumeRequest { layout: VolumeLayout::Single, width: 1, ..request("v", 100 * MIB) };
    let volume = pool.create_volume(&single).expect("made");
    let only = SnapshotOf { volume: volume.uuid, name: "v".to_owned() };
    let hosts = vec!["nqn.2014-08.org.example:b".to_owned()];
    let asked = longhaul_pool::SnapshotRequest { hosts: Some(hosts.clone()), ..snapshot("v", "s") };
    let (made, held) = pool.snapshot_volume(&asked, &arrays).expect("made");
    assert_eq!((made.snapshot_of, made.array, made.hosts), (Some(only), None, hosts));
    assert!(held.is_zero(), "a host writes to it as it likes");
    check(&pool, &rig.targets);
}

#[test]
fn a_member_that_a_spare_has_replaced_is_cloned_where_it_is() {
    let (rig, pool, arrays) = rig();
    let volume = pool.create_volume(&VolumeRequest { spares: 1, ..request("v", 100 * MIB) }).expect("made");
    let uuid = |index: usize| volume.members[index].namespace.expect("made").uuid;
    {
        let mut all = rig.targets.arrays.lock().expect("not poisoned");
        let array = all.get_mut(&volume.array.expect("an array")).expect("there");
        array.spares.clear();
        array.members[1] = uuid(3);
    }
    let (made, _) = pool.snapshot_volume(&snapshot("v", "s"), &arrays).expect("made");
    let targets: Vec<&String> = made.members.iter().map(|member| &member.target).collect();
    let of = |index: usize| &volume.members[index].target;
    assert_eq!(targets, [of(0), of(3), of(2)]);
}

#[test]
fn what_cannot_be_cloned_is_said_before_anything_is_made() {
    let (rig, pool, mut arrays) = rig();
    let volume = pool.create_volume(&request("v", 100 * MIB)).expect("made");
    let target =
        rig.targets.lock().iter().find(|(_, t)| t.id == volume.members[1].target).map(|(a, _)| a.clone());
    let target = target.expect("there");
    let refused = |pool: &Pool, arrays: &MemArrays, to: &str| {
        let before = (rig.targets.count(), rig.catalog.range(b"", None).expect("read").revision);
        let refused = pool.snapshot_volume(&snapshot("v", to), arrays).expect_err("refused");
        // A lease that was granted and given back is no change.
        let after = (rig.targets.count(), rig.catalog.range(b"", None).expect("read").revision);
        assert_eq!(before, after, "{refused}");
        refused
    };
    rig.targets.without_clones.lock().expect("not poisoned").push(target);
    let error = refused(&pool, &arrays, "s");
    assert!(matches!(&error, Error::Space { source: SpaceError::Refused(_), .. }), "{error}");
    assert!(error.to_string().contains("cannot clone a namespace at target"), "{error}");
    rig.targets.without_clones.lock().expect("not poisoned").clear();
    assert!(matches!(refused(&pool, &arrays, "v"), Error::Exists { .. }));
    assert!(matches!(refused(&pool, &arrays, "a/b"), Error::Name { .. }));
    let files = VolumeRequest { layout: VolumeLayout::Files(Layout::Parity), ..request("f", 100 * MIB) };
    pool.create_volume(&files).expect("made");
    let error = pool.snapshot_volume(&snapshot("f", "s"), &arrays).expect_err("refused").to_string();
    assert!(error.contains("it is the data of a file system"), "{error}");
    pool.remove_volume("f").expect("removed");
    // Another host uses it.
    let array = volume.array.expect("an array");
    let set = |in_use| {
        rig.targets.arrays.lock().expect("not poisoned").get_mut(&array).expect("there").in_use = in_use;
    };
    set(true);
    let error = refused(&pool, &arrays, "s");
    assert_eq!(error.to_string(), "no snapshot of volume p/v is made: another host uses it");
    set(false);
    let one = volume.members[2].target.clone();
    let (address, _) = rig
        .targets
        .lock()
        .iter()
        .find(|(_, t)| t.id == one)
        .map(|(a, t)| (a.clone(), t.id.clone()))
        .expect("there");
    rig.targets.set_down(&address, true);
    let error = refused(&pool, &arrays, "s").to_string();
    assert!(error.contains("member 2 is missing: wait for it"), "{error}");
    rig.targets.set_down(&address, false);
    // As long as a member may have moved, what it was on is not cloned.
    let targets = Arc::clone(&rig.targets);
    arrays.before = Some(Box::new(move || {
        let mut all = targets.arrays.lock().expect("not poisoned");
        all.get_mut(&array).expect("there").members[0] = uuid::Uuid::nil();
    }));
    let error = pool.snapshot_volume(&snapshot("v", "s"), &arrays).expect_err("refused").to_string();
    assert!(error.contains("was replaced meanwhile"), "{error}");
    assert_eq!((rig.targets.count(), pool.volumes().expect("read").len()), (3, 1));
}

#[test]
fn writes_that_went_on_leave_no_snapshot() {
    let (rig, pool, mut arrays) = rig();
    let array = pool.create_volume(&request("v", 100 * MIB)).expect("made").array.expect("an array");
    let targets = Arc::clone(&rig.targets);
    arrays.before = Some(Box::new(move || {
        targets.arrays.lock().expect("not poisoned").get_mut(&array).expect("there").paused = false;
    }));
    let error = pool.snapshot_volume(&snapshot("v", "s"), &arrays).expect_err("refused").to_string();
    assert!(error.contains("have not cloned it within 15 s"), "{error}");
    assert_eq!((rig.targets.count(), pool.volumes().expect("read").len()), (3, 1));
    check(&pool, &rig.targets);
}

#[test]
fn a_snapshot_counts_as_what_it_may_become() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota { pool: Some(600 * MIB), job: None });
    let arrays = MemArrays::new(&rig.targets);
    pool.create_volume(&request("v", 200 * MIB)).expect("made");
    let before = pool.status().expect("status").usage.total();
    let error = pool.snapshot_volume(&snapshot("v", "s"), &arrays).expect_err("too much");
    assert!(matches!(error, Error::Quota { .. }), "{error}");
    assert_eq!(pool.status().expect("status").usage.total(), before);
    let rig = Rig::new(3, 150 * MIB);
    let pool = rig.pool(Quota::default());
    let arrays = MemArrays::new(&rig.targets);
    pool.create_volume(&request("v", 200 * MIB)).expect("made");
    let error = pool.snapshot_volume(&snapshot("v", "s"), &arrays).expect_err("no room");
    assert!(matches!(&error, Error::Space { source: SpaceError::Full(_), .. }), "{error}");
    assert_eq!(rig.targets.count(), 3);
}

/// Every step of a snapshot: it is there wholly or not at all, and its source is as it was.
#[test]
fn a_crash_at_each_step_of_a_snapshot_is_undone() {
    let mut undone = 0;
    for crash_at in 1.. {
        for seed in 0..4 {
            let rig = Rig::new(4, GIB);
            let pool = rig.pool(Quota::default());
            let volume = pool.create_volume(&request("v", 100 * MIB)).expect("made");
            let doomed = Doomed::new(&rig.catalog, &rig.targets, crash_at, None, seed);
            let arrays = MemArrays { doomed: Some(Arc::clone(&doomed)), ..MemArrays::new(&rig.targets) };
            let made = Pool::open(&doomed.host("doomed"), "p")
                .and_then(|pool| pool.snapshot_volume(&snapshot("v", "s"), &arrays));
            let is_over = made.is_ok() && !doomed.is_dead();
            // The pause of a lost host ends by itself.
            rig.targets
                .arrays
                .lock()
                .expect("not poisoned")
                .values_mut()
                .for_each(|array| array.paused = false);
            let intents = pool.status().expect("status").intents;
            assert!(
                intents.iter().all(|intent| matches!(intent.kind, IntentKind::Create | IntentKind::Remove))
            );
            rig.lose_hosts();
            rig.targets.arrive();
            let recovered = pool.recover().expect("recovered");
            assert_eq!((recovered.held, recovered.waiting.len()), (0, 0), "{recovered:?}");
            check(&pool, &rig.targets);
            assert_eq!(pool.volume("v"), Ok(volume.clone()));
            match pool.volume("s") {
                Ok(made) => {
                    assert_ne!(made.array, volume.array);
                    assert_eq!(pool.remove_volume("s"), Ok(Removed::Whole));
                }
                Err(_) => undone += 1,
            }
            assert_eq!(rig.targets.count(), 3);
            assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
            check_empty(&pool, &rig);
            if is_over {
                assert!(crash_at > 20 && undone > 40, "{crash_at} steps, {undone} undone");
                return;
            }
        }
    }
}

#[test]
fn an_import_knows_snapshots_and_takes_no_clone_for_one() {
    let (rig, pool, arrays) = rig();
    let volume = pool.create_volume(&request("v", 100 * MIB)).expect("made");
    let (made, _) = pool.snapshot_volume(&snapshot("v", "s"), &arrays).expect("made");
    let (half, _) = pool.snapshot_volume(&snapshot("v", "half"), &arrays).expect("made");
    // The host was lost before it had adopted this one.
    for target in rig.targets.lock().values_mut() {
        for stored in target.namespaces.values_mut().filter(|stored| stored.label.volume == half.uuid) {
            stored.label = Label { copied: true, ..stored.label.clone() };
            stored.array = volume.array;
        }
    }
    let catalog = common::empty(&rig.clock);
    let host = longhaul_pool::Host { catalog, ..rig.host("creator") };
    let addresses: Vec<String> = rig.targets.lock().keys().cloned().collect();
    let (imported, found) = import(&host, &addresses, None, None).expect("imported");
    assert_eq!((found.whole, found.left_over), (vec!["s".to_owned(), "v".to_owned()], 1));
    let again = imported.volume("s").expect("there");
    assert_eq!((again.snapshot_of, again.array), (made.snapshot_of, made.array));
    let recovered = imported.recover().expect("recovered");
    assert_eq!((recovered.finished, recovered.waiting.len()), (1, 0), "{recovered:?}");
    check(&imported, &rig.targets);
    assert_eq!(rig.targets.count(), 6);
}
