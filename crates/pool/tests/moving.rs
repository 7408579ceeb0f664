//! Members of volumes that move to other targets: after a crash at any step, while the volume is changed,
//! with targets that are full or gone.

mod common;

use common::{Doomed, GIB, MIB, Meanwhile, MemArrays, Rig, check, check_empty, request};
use longhaul_pool::testing::MemoryTarget;
use longhaul_pool::{
    Error, Host, Label, MoveRun, MoveStep, Pool, Quota, Removed, SpaceError, Spaces, VolumeLayout,
    VolumeRecord, VolumeRequest, import,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const NODE: &str = "nqn.2014-08.org.example:node";

fn for_node(name: &str, size: u64) -> VolumeRequest {
    VolumeRequest { hosts: vec![NODE.to_owned()], job: Some("7".to_owned()), ..request(name, size) }
}

/// Runs `work` with these arrays.
fn with<T>(arrays: &MemArrays, work: impl FnOnce(&mut MoveRun<'_>) -> T) -> T {
    work(&mut MoveRun { arrays, limit: None, show: &mut |_: &MoveStep, _| {} })
}

/// The identity of a target without a member of the volume.
fn free_target(rig: &Rig, volume: &VolumeRecord) -> String {
    let all = rig.targets.lock();
    let free = all.values().find(|target| volume.members.iter().all(|member| member.target != target.id));
    free.expect("one is free").id.clone()
}

/// A host without faults finishes what was left, without the arrays.
fn settle(rig: &Rig) -> Pool {
    rig.lose_hosts();
    rig.targets.arrive();
    let pool = Pool::open(&rig.host("settler"), "p").expect("opened");
    let recovered = pool.recover().expect("recovered");
    assert_eq!((recovered.held, recovered.waiting.len()), (0, 0), "{recovered:?}");
    pool
}

/// No more namespaces than the volumes have members.
fn check_whole(pool: &Pool, rig: &Rig) {
    check(pool, &rig.targets);
    let status = pool.status().expect("status");
    assert!(status.intents.is_empty(), "{:?}", status.intents);
    assert!(status.volumes.iter().all(|volume| volume.moving.is_none()));
    let members: usize = status.volumes.iter().map(|volume| volume.members.len()).sum();
    assert_eq!(rig.targets.count(), members, "namespaces");
}

#[test]
fn a_member_moves_and_its_place_is_free() {
    let rig = Rig::new(4, GIB);
    let pool = rig.pool(Quota::default());
    let before = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
    let (to, arrays) = (free_target(&rig, &before), MemArrays::new(&rig.targets));
    let mut shown = Vec::new();
    let mut run = MoveRun {
        arrays: &arrays,
        limit: Some(1 << 20),
        show: &mut |step, progress| shown.push((step.clone(), *progress)),
    };
    let (after, removed) = pool.move_member("v", 1, &to, &mut run).expect("moved");
    assert_eq!((removed, after.members[1].target.as_str()), (Removed::Whole, to.as_str()));
    assert_eq!((&after.members[0], &after.members[2]), (&before.members[0], &before.members[2]));
    assert_eq!((shown.len(), shown[0].0.index, shown[0].1.total), (1, 1, 2));
    assert_eq!(pool.volume("v"), Ok(after));
    check_whole(&pool, &rig);
    let array = before.array.expect("an array");
    assert_eq!(rig.targets.arrays.lock().expect("not poisoned")[&array].moved, 1);
    assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
    check_empty(&pool, &rig);
}

/// Every step of a move as the last one of its host. A recovery without the array undoes it or publishes
/// it, as the array says; one with the array continues it.
#[test]
fn a_crash_at_each_step_is_undone_published_or_continued() {
    for resumes in [false, true] {
        let mut ends = [0, 0];
        for crash_at in 1.. {
            let mut is_over = true;
            for seed in 0..4 {
                let rig = Rig::new(4, GIB);
                let pool = rig.pool(Quota::default());
                let before = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
                let to = free_target(&rig, &before);
                let doomed = Doomed::new(&rig.catalog, &rig.targets, crash_at, None, seed);
                let arrays = MemArrays { doomed: Some(Arc::clone(&doomed)), ..MemArrays::new(&rig.targets) };
                let moved = Pool::open(&doomed.host("doomed"), "p")
                    .and_then(|pool| with(&arrays, |run| pool.move_member("v", 1, &to, run)));
                if moved.is_ok() && !doomed.is_dead() {
                    continue;
                }
                is_over = false;
                check_accounts(&pool);
                if resumes {
                    rig.lose_hosts();
                    let arrays = MemArrays::new(&rig.targets);
                    let waiting = with(&arrays, |run| pool.resume_moves(run)).expect("resumed");
                    assert_eq!(waiting, Vec::<String>::new());
                }
                let pool = settle(&rig);
                check_whole(&pool, &rig);
                let after = pool.volume("v").expect("there");
                ends[usize::from(after.members[1].target == to)] += 1;
                // It can be moved, and removed.
                let arrays = MemArrays::new(&rig.targets);
                let to = free_target(&rig, &after);
                with(&arrays, |run| pool.move_member("v", 1, &to, run)).expect("moved");
                check_whole(&pool, &rig);
                assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
                check_empty(&pool, &rig);
            }
            if is_over {
                assert!(crash_at > 20, "{crash_at} steps were tried");
                break;
            }
        }
        assert!(ends.iter().all(|count| *count > 5), "{ends:?}");
    }
}

/// Usage is what volumes and intents have, also in the midst of a move.
fn check_accounts(pool: &Pool) {
    let status = pool.status().expect("status");
    let all = status.volumes.iter().chain(status.intents.iter().map(|intent| &intent.volume));
    let bytes: u64 = all.map(|volume| volume.shape.member_size * volume.members.len() as u64).sum();
    assert_eq!(status.usage.total(), bytes);
    assert_eq!(status.usage.jobs["7"], bytes);
}

/// Answers are lost, targets come and go, hosts crash, and several volumes move at random.
#[test]
fn random_moves_with_faults_leak_nothing() {
    let mut rng = fastrand::Rng::with_seed(4711);
    let rig = Rig::new(8, 4 * GIB);
    let pool = rig.pool(Quota::default());
    for n in 0..4 {
        let spares = usize::from(n % 2 == 0);
        pool.create_volume(&VolumeRequest { spares, ..for_node(&format!("v{n}"), 50 * MIB) }).expect("made");
    }
    let (mut moved, mut failed, mut resumed) = (0, 0, 0);
    for round in 0..400 {
        for n in 0..8 {
            rig.targets.set_down(&format!("t{n}"), rng.u8(0..20) == 0);
        }
        let lossy = (rng.u8(0..4) == 0).then_some(12);
        let doomed = Doomed::new(&rig.catalog, &rig.targets, rng.u64(1..70), lossy, rng.u64(..));
        let arrays = MemArrays { doomed: Some(Arc::clone(&doomed)), ..MemArrays::new(&rig.targets) };
        let (name, index) = (format!("v{}", rng.u8(0..4)), rng.usize(0..4));
        let done = Pool::open(&doomed.host(&format!("host{round}")), "p").and_then(|pool| {
            let volume = pool.volume(&name)?;
            let to = free_target(&rig, &volume);
            with(&arrays, |run| pool.move_member(&name, index.min(volume.members.len() - 1), &to, run))
        });
        match done {
            Ok(_) => moved += 1,
            Err(_) => failed += 1,
        }
        match rng.u8(0..4) {
            0 => rig.lose_hosts(),
            1 => drop(rig.targets.arrive()),
            _ => {}
        }
        if rng.u8(0..3) == 0 {
            let arrays = MemArrays::new(&rig.targets);
            let before = pool.status().expect("status").intents.len();
            with(&arrays, |run| pool.resume_moves(run)).expect("resumed");
            resumed += usize::from(pool.status().expect("status").intents.len() < before);
        }
        if rng.u8(0..4) == 0 {
            pool.recover().expect("recovered");
        }
        check_accounts(&pool);
    }
    assert!(moved > 20 && failed > 20 && resumed > 5, "{moved} moved, {failed} failed, {resumed} resumed");
    (0..8).for_each(|n| rig.targets.set_down(&format!("t{n}"), false));
    settle(&rig);
    let pool = settle(&rig);
    check_whole(&pool, &rig);
    for n in 0..4 {
        assert_eq!(pool.remove_volume(&format!("v{n}")), Ok(Removed::Whole));
    }
    check_empty(&pool, &rig);
}

/// Moves a volume while another host renames it before each read of the first one, in turn.
fn renamed_while_moving(fails: bool) -> usize {
    for reads in 0.. {
        let rig = Rig::new(4, GIB);
        let pool = rig.pool(Quota::default());
        let before = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
        let to = free_target(&rig, &before);
        let (host, between) = rig.host_between(reads, "v", "w");
        let given_up = fails.then(|| -> Meanwhile { Box::new(|| {}) });
        let arrays = MemArrays { given_up, ..MemArrays::new(&rig.targets) };
        let moved =
            Pool::open(&host, "p").and_then(|pool| with(&arrays, |run| pool.move_member("v", 1, &to, run)));
        if !between.is_done() {
            return reads as usize;
        }
        assert!(!(fails && moved.is_ok()), "{moved:?}");
        let pool = settle(&rig);
        check_whole(&pool, &rig);
        // Its record is one that can be moved again.
        let volume = pool.volume("w").expect("there");
        let arrays = MemArrays::new(&rig.targets);
        let to = free_target(&rig, &volume);
        with(&arrays, |run| pool.move_member("w", 1, &to, run)).expect("moved");
        assert_eq!(pool.remove_volume("w"), Ok(Removed::Whole));
        check_empty(&pool, &rig);
    }
    unreachable!("it has an end");
}

#[test]
fn a_volume_that_is_renamed_at_any_read_of_its_move_moves_or_stays() {
    for fails in [false, true] {
        let reads = renamed_while_moving(fails);
        assert!(reads > 15, "{reads} reads were tried");
    }
}

/// A host is stopped before it undoes a move that has failed. Another one takes the move over meanwhile, and gets as
/// far as it does before it is lost itself.
#[test]
fn a_host_that_was_overtaken_undoes_no_move() {
    let mut at_new_place = 0;
    for crash_at in 1..60 {
        let rig = Arc::new(Rig::new(4, GIB));
        let pool = rig.pool(Quota::default());
        let before = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
        let to = free_target(&rig, &before);
        let shared = Arc::clone(&rig);
        let overtake = move || {
            shared.lose_hosts();
            let doomed = Doomed::new(&shared.catalog, &shared.targets, crash_at, None, crash_at);
            let arrays = MemArrays { doomed: Some(Arc::clone(&doomed)), ..MemArrays::new(&shared.targets) };
            // It may crash, at any step.
            let _ = Pool::open(&doomed.host("other"), "p")
                .and_then(|pool| with(&arrays, |run| pool.resume_moves(run)));
        };
        let arrays = MemArrays { given_up: Some(Box::new(overtake)), ..MemArrays::new(&rig.targets) };
        with(&arrays, |run| pool.move_member("v", 1, &to, run)).expect_err("the copy has failed");
        let pool = settle(&rig);
        check_whole(&pool, &rig);
        let after = pool.volume("v").expect("there");
        at_new_place += usize::from(after.members[1].target == to);
        assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
        check_empty(&pool, &rig);
    }
    assert!((10..50).contains(&at_new_place), "{at_new_place} of 59 moves were carried out");
}

#[test]
fn a_move_that_was_left_waits_for_the_host_that_uses_the_array() {
    let rig = Rig::new(4, GIB);
    let pool = rig.pool(Quota::default());
    let volume = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
    let (to, array) = (free_target(&rig, &volume), volume.array.expect("an array"));
    let use_it = |is: bool| {
        rig.targets.arrays.lock().expect("not poisoned").get_mut(&array).expect("there").in_use = is
    };
    // Its host crashes while the array moves the member.
    let (catalog, targets) = (&rig.catalog, &rig.targets);
    let mut crash_at = 0;
    let moving = loop {
        crash_at += 1;
        let doomed = Doomed::new(catalog, targets, crash_at, None, 1);
        let arrays = MemArrays { doomed: Some(Arc::clone(&doomed)), ..MemArrays::new(targets) };
        let moved = Pool::open(&doomed.host("doomed"), "p")
            .and_then(|pool| with(&arrays, |run| pool.move_member("v", 0, &to, run)));
        moved.expect_err("it crashes");
        let now = pool.volume("v").expect("there");
        if now.moving.as_ref().is_some_and(|moving| moving.to.namespace.is_some()) {
            break now.moving.expect("it moves");
        }
        settle(&rig);
    };
    use_it(true);
    rig.lose_hosts();
    let recovered = pool.recover().expect("recovered");
    assert!(
        recovered.waiting.len() == 1 && recovered.waiting[0].contains("its array is in use"),
        "{recovered:?}"
    );
    // The namespace is not taken from it, and nothing else is done to the volume.
    assert_eq!(pool.volume("v").expect("there").moving, Some(moving));
    let hosts =
        rig.targets.lock().values().flat_map(|t| t.namespaces.values()).all(|n| n.label.hosts == [NODE]);
    assert!(hosts, "all are for the hosts of the volume");
    let refused = pool.resize_volume("v", GIB).expect_err("it moves").to_string();
    assert!(refused.contains("a member of it moves"), "{refused}");
    let arrays = MemArrays::new(&rig.targets);
    let refused = with(&arrays, |run| pool.move_member("v", 1, &to, run)).expect_err("it moves").to_string();
    assert!(refused.contains("its member 0 moves already"), "{refused}");
    let waiting = with(&arrays, |run| pool.resume_moves(run)).expect("asked");
    assert!(waiting.len() == 1 && waiting[0].contains("another host uses it"), "{waiting:?}");
    use_it(false);
    let renamed = pool.rename_volume("v", "w").expect("renamed");
    assert!(renamed.moving.is_some());
    assert_eq!(with(&arrays, |run| pool.resume_moves(run)), Ok(vec![]));
    assert_eq!(pool.volume("w").expect("there").members[0].target, to);
    rig.lose_hosts();
    check_whole(&pool, &rig);
}

#[test]
fn a_volume_that_is_changed_while_a_member_moves() {
    type Change = fn(&Pool) -> Result<(), Error>;
    let changes: [(&str, Change); 3] = [
        ("renamed", |pool| pool.rename_volume("v", "w").map(drop)),
        ("for others", |pool| pool.set_hosts("v", &[NODE.to_owned(), "nqn.other".to_owned()]).map(drop)),
        ("removed", |pool| pool.remove_volume("v").map(|removed| assert_eq!(removed, Removed::Whole))),
    ];
    for (what, change) in changes {
        let rig = Rig::new(4, GIB);
        let pool = rig.pool(Quota::default());
        let volume = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
        let to = free_target(&rig, &volume);
        let other = Pool::open(&rig.host("other"), "p").expect("opened");
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let before: common::Meanwhile = Box::new(move || {
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                change(&other).expect("changed");
            }
        });
        let arrays = MemArrays { before: Some(before), ..MemArrays::new(&rig.targets) };
        let moved = with(&arrays, |run| pool.move_member("v", 2, &to, run));
        assert!(calls.load(Ordering::SeqCst) > 0, "{what}");
        if what == "removed" {
            moved.expect_err(what);
            rig.lose_hosts();
            pool.recover().expect("recovered");
            check_empty(&pool, &rig);
            continue;
        }
        let (after, removed) = moved.expect(what);
        assert_eq!((removed, after.members[2].target.as_str()), (Removed::Whole, to.as_str()));
        check_whole(&pool, &rig);
        let all = rig.targets.lock();
        for namespace in all.values().flat_map(|target| target.namespaces.values()) {
            assert_eq!(
                (&namespace.label.name, &namespace.label.hosts),
                (&after.name, &after.hosts),
                "{what}"
            );
        }
    }
}

#[test]
fn what_cannot_move_is_refused_and_changes_nothing() {
    let rig = Rig::new(4, GIB);
    let pool = rig.pool(Quota::default());
    let volume = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
    let single = VolumeRequest { layout: VolumeLayout::Single, width: 1, ..for_node("s", 10 * MIB) };
    let single = pool.create_volume(&single).expect("made");
    let (to, arrays) = (free_target(&rig, &volume), MemArrays::new(&rig.targets));
    let before = pool.status().expect("status").usage;
    let refused = |name: &str, index: usize, to: &str| {
        let refused = with(&arrays, |run| pool.move_member(name, index, to, run)).expect_err("refused");
        assert_eq!(pool.status().expect("status").usage, before, "{refused}");
        check_whole(&pool, &rig);
        refused
    };
    let why = refused("s", 0, &free_target(&rig, &single)).to_string();
    assert!(
        why.starts_with("volume p/s is not moved: it is one namespace") && why.contains("longhaul cp"),
        "{why}"
    );
    assert!(refused("v", 3, &to).to_string().contains("it has no member 3"));
    assert!(matches!(refused("v", 0, "nqn.x"), Error::NotFound { what: "target", .. }));
    // No room, a target that is gone, and an array that another host uses.
    let address = rig.targets.lock().iter().find(|(_, t)| t.id == to).expect("there").0.clone();
    rig.targets.lock().get_mut(&address).expect("there").capacity = 20 * MIB;
    assert!(matches!(refused("v", 0, &to), Error::Space { source: SpaceError::Full(_), .. }));
    rig.targets.lock().get_mut(&address).expect("there").capacity = GIB;
    rig.targets.set_down(&address, true);
    let down = with(&arrays, |run| pool.move_member("v", 0, &to, run)).expect_err("down");
    assert!(matches!(down, Error::Space { source: SpaceError::Unreachable(_), .. }), "{down}");
    rig.targets.set_down(&address, false);
    settle(&rig);
    let array = volume.array.expect("an array");
    rig.targets.arrays.lock().expect("not poisoned").get_mut(&array).expect("there").in_use = true;
    assert!(refused("v", 0, &to).to_string().contains("another host uses it"));
}

/// What was promised to a volume that another host is making is not promised to a member that moves as well, although
/// its target has made nothing of it yet.
#[test]
fn a_member_moves_to_no_capacity_that_is_promised() {
    let rig = Rig::new(4, GIB);
    let pool = rig.pool(Quota::default());
    let volume = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
    let (to, arrays) = (free_target(&rig, &volume), MemArrays::new(&rig.targets));
    let large = VolumeRequest { layout: VolumeLayout::Single, width: 1, ..request("large", 1000 * MIB) };
    // Its host is lost when it has written the intent.
    let mut crash_at = 0;
    while pool.status().expect("status").intents.is_empty() {
        crash_at += 1;
        let doomed = Doomed::new(&rig.catalog, &rig.targets, crash_at, None, 1);
        let made = Pool::open(&doomed.host("doomed"), "p").and_then(|pool| pool.create_volume(&large));
        made.expect_err("its host was lost");
    }
    let before = pool.status().expect("status").usage;
    assert_eq!((before.targets[&to], rig.targets.count()), (1000 * MIB, 3), "promised, and not made");
    let refused = with(&arrays, |run| pool.move_member("v", 0, &to, run)).expect_err("promised to another");
    assert!(matches!(refused, Error::Space { source: SpaceError::Full(_), .. }), "{refused}");
    assert_eq!((pool.status().expect("status").usage, pool.volume("v")), (before, Ok(volume)));
    // Once that volume is undone, the member moves.
    let pool = settle(&rig);
    with(&arrays, |run| pool.move_member("v", 0, &to, run)).expect("moved");
    check_whole(&pool, &rig);
}

/// A target without room for a member is not chosen, and one with room for one member gets one.
#[test]
fn no_move_is_planned_to_a_target_without_room() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    let volume = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
    pool.create_volume(&for_node("w", 100 * MIB)).expect("made");
    let size = volume.shape.member_size;
    rig.targets.lock().insert("t3".to_owned(), MemoryTarget::new("nqn.3", size + size / 2));
    pool.add_target("t3", "rack-t3").expect("added");
    let plan = |capacity: u64| {
        rig.targets.lock().get_mut("t3").expect("there").capacity = capacity;
        let removal = pool.plan_removal(&["t0".to_owned()]).expect("planned");
        assert!(removal.stuck.iter().all(|why| why.contains("and 0 can be placed")), "{removal:?}");
        (removal.moves.len(), removal.stuck.len())
    };
    assert_eq!((plan(2 * size), plan(size + size / 2), plan(size / 2)), ((2, 0), (1, 1), (0, 2)));
    // The same for a member that is rebuilt.
    rig.targets.set_down("t0", true);
    let arrays = MemArrays::new(&rig.targets);
    let short = pool.plan_repair("v", &arrays).expect_err("no room");
    assert!(matches!(&short, Error::Shortage(shortage) if shortage.possible == 0), "{short}");
    rig.targets.lock().get_mut("t3").expect("there").capacity = size;
    let planned = pool.plan_repair("v", &arrays).expect("planned");
    assert_eq!(planned.iter().map(|one| one.to.as_str()).collect::<Vec<_>>(), ["nqn.3"]);
}

#[test]
fn a_target_is_emptied_and_one_that_is_gone_is_forgotten() {
    for is_gone in [false, true] {
        let rig = Rig::new(5, GIB);
        let pool = rig.pool(Quota::default());
        let volume = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
        let spared = VolumeRequest { spares: 1, ..for_node("w", 50 * MIB) };
        pool.create_volume(&spared).expect("made");
        let left = volume.members[0].target.clone();
        let address = rig.targets.lock().iter().find(|(_, t)| t.id == left).expect("there").0.clone();
        rig.targets.set_down(&address, is_gone);
        let removal = pool.plan_removal(std::slice::from_ref(&address)).expect("planned");
        let here: usize = pool
            .volumes()
            .expect("listed")
            .iter()
            .flat_map(|v| &v.members)
            .filter(|m| m.target == left)
            .count();
        assert_eq!((removal.moves.len(), removal.stuck.len()), (here, 0), "{removal:?}");
        assert!(matches!(pool.remove_target(&address), Err(Error::InUse { .. })));
        let arrays = MemArrays::new(&rig.targets);
        for planned in &removal.moves {
            assert_ne!(planned.to, left);
            let (moved, removed) = with(&arrays, |run| {
                pool.move_member(&planned.step.volume, planned.step.index, &planned.to, run)
            })
            .expect("moved");
            assert_eq!(matches!(removed, Removed::Later(_)), is_gone);
            // In a failure domain each, as before.
            let mut targets: Vec<&String> = moved.members.iter().map(|member| &member.target).collect();
            targets.sort();
            targets.dedup();
            assert_eq!(targets.len(), moved.members.len());
        }
        if is_gone {
            let array = volume.array.expect("an array");
            assert_eq!(rig.targets.arrays.lock().expect("not poisoned")[&array].rebuilt, 1);
            let why = pool.remove_target(&address).expect_err("namespaces wait").to_string();
            assert!(why.contains("--force forgets them"), "{why}");
            assert_eq!(pool.forget_namespaces(&address), Ok(here));
        }
        pool.remove_target(&address).expect("removed");
        check_accounts(&pool);
        // It comes back, and what is there is removed.
        rig.targets.set_down(&address, false);
        assert_eq!(rig.targets.lock()[&address].namespaces.len(), if is_gone { here } else { 0 });
        pool.add_target(&address, "rack").expect("added");
        let swept = pool.recover().expect("recovered").swept;
        assert_eq!(swept, if is_gone { here } else { 0 });
        check_whole(&pool, &rig);
    }
}

#[test]
fn a_target_with_what_cannot_move_is_not_emptied() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
    let single = VolumeRequest { layout: VolumeLayout::Single, width: 1, ..for_node("s", 10 * MIB) };
    pool.create_volume(&single).expect("made");
    let single = pool.volume("s").expect("there").members[0].target.clone();
    let removal = pool.plan_removal(&[single]).expect("planned");
    assert_eq!((removal.moves.len(), removal.stuck.len()), (0, 2), "{removal:?}");
    let stuck = removal.stuck.join("; ");
    assert!(stuck.contains("volume p/s is one namespace there"), "{stuck}");
    assert!(stuck.contains("1 members of") && stuck.contains("in a failure domain each"), "{stuck}");
}

#[test]
fn lost_members_and_used_spares_are_repaired() {
    let rig = Rig::new(6, GIB);
    let pool = rig.pool(Quota::default());
    let volume = pool.create_volume(&VolumeRequest { spares: 1, ..for_node("v", 50 * MIB) }).expect("made");
    let arrays = MemArrays::new(&rig.targets);
    assert_eq!(pool.plan_repair("v", &arrays).expect("planned"), []);
    // The spare has taken the place of member 0, which has failed.
    let (array, uuid) =
        (volume.array.expect("an array"), |i: usize| volume.members[i].namespace.expect("made").uuid);
    {
        let mut all = rig.targets.arrays.lock().expect("not poisoned");
        let array = all.get_mut(&array).expect("there");
        array.members[0] = uuid(3);
        array.spares.clear();
    }
    // And the target of member 1 is gone for good.
    let gone = volume.members[1].target.clone();
    let address = rig.targets.lock().iter().find(|(_, t)| t.id == gone).expect("there").0.clone();
    rig.targets.set_down(&address, true);
    let planned = pool.plan_repair("v", &arrays).expect("planned");
    assert_eq!(planned.iter().map(|one| one.step.index).collect::<Vec<_>>(), [0, 1]);
    for one in &planned {
        with(&arrays, |run| pool.move_member("v", one.step.index, &one.to, run)).expect("moved");
    }
    assert_eq!(pool.plan_repair("v", &arrays).expect("planned"), []);
    let after = pool.volume("v").expect("there");
    let now = rig.targets.arrays.lock().expect("not poisoned")[&array].clone();
    let uuid = |i: usize| after.members[i].namespace.expect("made").uuid;
    assert_eq!((now.members, now.spares, now.rebuilt), (vec![uuid(3), uuid(1), uuid(2)], vec![uuid(0)], 1));
    rig.targets.set_down(&address, false);
    let pool = settle(&rig);
    check_whole(&pool, &rig);
}

#[test]
fn moves_even_out_the_targets() {
    let rig = Rig::new(3, 4 * GIB);
    let pool = rig.pool(Quota::default());
    for n in 0..8 {
        pool.create_volume(&for_node(&format!("v{n}"), 200 * MIB)).expect("made");
    }
    assert_eq!(pool.plan_balance(), Ok(vec![]), "they are even");
    // Three empty targets: two like the others, one in the failure domain of another one, and larger.
    for n in 3..6 {
        let (id, capacity) = (format!("nqn.{n}"), if n == 5 { 8 * GIB } else { 4 * GIB });
        let target = MemoryTarget::new(id, capacity);
        rig.targets.lock().insert(format!("t{n}"), target);
        let domain = if n == 5 { "rack-t0".to_owned() } else { format!("rack-t{n}") };
        pool.add_target(&format!("t{n}"), &domain).expect("added");
    }
    let planned = pool.plan_balance().expect("planned");
    assert_eq!(pool.plan_balance().expect("planned"), planned, "the same plan each time");
    assert!(!planned.is_empty());
    let arrays = MemArrays::new(&rig.targets);
    for one in &planned {
        with(&arrays, |run| pool.move_member(&one.step.volume, one.step.index, &one.to, run)).expect("moved");
    }
    check_whole(&pool, &rig);
    assert_eq!(pool.plan_balance(), Ok(vec![]), "nothing is left to do");
    let status = pool.status().expect("status");
    let shares: Vec<f64> =
        status.targets.iter().map(|target| target.used as f64 / target.record.capacity as f64).collect();
    let (most, least) =
        (shares.iter().copied().fold(0.0, f64::max), shares.iter().copied().fold(1.0, f64::min));
    let member = status.volumes[0].shape.member_size as f64 / (4 * GIB) as f64;
    assert!(most - least < member + 0.02, "{shares:?}");
    for volume in &status.volumes {
        let domain = |id: &str| {
            status.targets.iter().find(|t| t.record.id == id).expect("known").record.domain.clone()
        };
        let mut domains: Vec<String> = volume.members.iter().map(|member| domain(&member.target)).collect();
        domains.sort();
        domains.dedup();
        assert_eq!(domains.len(), volume.members.len(), "{volume:?}");
    }
}

/// A catalog that is made again in the midst of a move has the member in the place where the array has it.
#[test]
fn an_import_finds_a_member_that_moves() {
    for is_taken in [false, true] {
        let rig = Rig::new(4, GIB);
        let pool = rig.pool(Quota::default());
        let volume = pool.create_volume(&for_node("v", 100 * MIB)).expect("made");
        let (to, array) = (free_target(&rig, &volume), volume.array);
        let (address, label) = {
            let all = rig.targets.lock();
            let from = all.values().find(|t| t.id == volume.members[1].target).expect("there");
            let label = from.namespaces.values().next().expect("one").label.clone();
            (all.iter().find(|(_, t)| t.id == to).expect("there").0.clone(), label)
        };
        let joining = Label { joining: true, ..label };
        let made = rig.targets.make(&address, volume.shape.member_size, &joining).expect("made");
        if is_taken {
            let mut all = rig.targets.arrays.lock().expect("not poisoned");
            all.get_mut(&array.expect("an array")).expect("there").members[1] = made.uuid;
            rig.targets
                .lock()
                .get_mut(&address)
                .expect("there")
                .namespaces
                .get_mut(&made.uuid)
                .expect("made")
                .array = array;
        }
        let host = Host { catalog: common::empty(&rig.clock), ..rig.host("creator") };
        let addresses: Vec<String> = rig.targets.lock().keys().cloned().collect();
        let (pool, found) = import(&host, &addresses, None, None).expect("imported");
        assert_eq!(found.whole, ["v"]);
        assert!(pool.volume("v").expect("there").moving.is_some());
        check_accounts(&pool);
        let recovered = pool.recover().expect("recovered");
        assert_eq!(recovered.waiting, Vec::<String>::new());
        let after = pool.volume("v").expect("there");
        let at = if is_taken { &to } else { &volume.members[1].target };
        assert_eq!((&after.members[1].target, &after.moving), (at, &None));
        check_whole(&pool, &rig);
    }
}
