//! The driver over a pool of targets that run as programs, as Kubernetes calls it: what `csi-sanity` does not ask.
//! `tests/csi/run` runs these as root, in namespaces of their own; elsewhere they are skipped with a message.

#![allow(unreachable_pub, reason = "the module of a test")]

mod world;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use tonic::Code;
use world::v1::volume_capability::access_mode::Mode;
use world::{BLOCK, Driver, EXT4, NODE, OTHER, Param, SHARED, World};

const MIB: i64 = 1 << 20;

/// A world, or the end of the test, with the reason.
macro_rules! world {
    ($targets:expr) => {
        match World::new($targets) {
            Ok(world) => world,
            Err(why) => {
                eprintln!("skip: {}: {why}", std::thread::current().name().unwrap_or("driver"));
                return;
            }
        }
    };
}

#[test]
fn a_driver_that_is_killed_at_any_step_of_making_a_volume_leaves_one() {
    let world = world!(3);
    for step in ["before volume create", "after volume create", "before volume rename", "after volume rename"]
    {
        let name = step.replace(' ', "-");
        let mut driver = world.driver_that_stops(step);
        let asked = name.clone();
        let call = driver.spawn(move |driver| driver.create(&asked, 64 * MIB, EXT4, &[]));
        let process = world.wait_for_stop();
        driver.kill();
        assert!(call.join().expect("no panic").is_err(), "{step}: the call was cut off");
        let mut driver = world.driver(NODE);
        let again = driver.again(|driver| driver.create(&name, 64 * MIB, EXT4, &[])).expect(step);
        // The process that was under way when the driver was killed goes on only now, and does no harm.
        world.let_go(process);
        let same = driver.again(|driver| driver.create(&name, 64 * MIB, EXT4, &[])).expect(step);
        assert_eq!(again.volume_id, same.volume_id, "{step}");
        assert_eq!(driver.list(0, "").expect("a list").0, [again.volume_id.as_str()], "{step}");
        // It is whole: its file system is there.
        driver.publish(&again.volume_id, NODE, EXT4).expect(step);
        driver.stage(&again.volume_id, &world.path("stage"), EXT4).expect(step);
        driver.unstage(&again.volume_id, &world.path("stage")).expect(step);
        driver.unpublish(&again.volume_id, NODE).expect(step);
        driver.again(|driver| driver.delete(&again.volume_id)).expect(step);
        world.until_only(&[]);
    }
}

#[test]
fn a_driver_that_is_killed_while_a_volume_is_staged_goes_on_where_it_was() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let volume = driver.create("v", 64 * MIB, EXT4, &[]).expect("made");
    driver.publish(&volume.volume_id, NODE, EXT4).expect("published");
    driver.kill();
    for step in ["before mount", "after mount"] {
        let (stage, target) = (world.path("stage"), world.path("pods/1/mount"));
        let mut driver = world.driver_that_stops(step);
        let (id, asked) = (volume.volume_id.clone(), stage.clone());
        let call = driver.spawn(move |driver| driver.stage(&id, &asked, EXT4));
        let process = world.wait_for_stop();
        driver.kill();
        assert!(call.join().expect("no panic").is_err(), "{step}: the call was cut off");
        let mut driver = world.driver(NODE);
        if step == "before mount" {
            // Beside the process that was under way, which goes on when the driver has done it all.
            driver.stage(&volume.volume_id, &stage, EXT4).expect(step);
        }
        world.let_go(process);
        driver.again(|driver| driver.stage(&volume.volume_id, &stage, EXT4)).expect(step);
        driver.publish_at(&volume.volume_id, &stage, &target, EXT4, false).expect(step);
        fs::write(target.join("file"), step).expect("written");
        // What serves the volume does not end with the driver.
        driver.kill();
        assert_eq!(fs::read_to_string(target.join("file")).expect("read"), step);
        let mut driver = world.driver(NODE);
        driver.stage(&volume.volume_id, &stage, EXT4).expect("it is staged");
        driver.publish_at(&volume.volume_id, &stage, &target, EXT4, false).expect("it is published");
        driver.unpublish_at(&volume.volume_id, &target).expect("unpublished");
        driver.unpublish_at(&volume.volume_id, &target).expect("unpublished twice");
        assert!(!target.exists());
        driver.unstage(&volume.volume_id, &stage).expect("unstaged");
        driver.unstage(&volume.volume_id, &stage).expect("unstaged twice");
        assert_eq!(world.mounts(), 0, "{step}");
    }
}

#[test]
fn data_of_a_user_survives_another_staging() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let volume = driver.create("v", 320 * MIB, world::XFS, &[]).expect("made");
    let id = volume.volume_id;
    let (stage, target) = (world.path("stage"), world.path("pods/1/mount"));
    driver.publish(&id, NODE, world::XFS).expect("published");
    driver.stage(&id, &stage, world::XFS).expect("staged");
    driver.publish_at(&id, &stage, &target, world::XFS, false).expect("published here");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o1777)).expect("set");
    let text = "x".repeat(1 << 20);
    let written = world.as_user(1000, &format!("yes | head -c {} > {}/file", text.len(), target.display()));
    assert!(written, "the user has written");
    driver.unpublish_at(&id, &target).expect("unpublished");
    driver.unstage(&id, &stage).expect("unstaged");
    driver.unpublish(&id, NODE).expect("unpublished");
    driver.publish(&id, NODE, world::XFS).expect("published");
    driver.stage(&id, &stage, world::XFS).expect("staged");
    // Read-only, this time.
    driver.publish_at(&id, &stage, &target, world::XFS, true).expect("published here");
    assert_eq!(fs::metadata(target.join("file")).expect("there").len(), 1 << 20);
    assert_eq!(world::owner(&target.join("file")), 1000);
    assert!(fs::write(target.join("other"), "x").is_err(), "it is read-only");
    driver.unpublish_at(&id, &target).expect("unpublished");
    driver.unstage(&id, &stage).expect("unstaged");
}

#[test]
fn a_node_that_was_not_admitted_is_refused() {
    let world = world!(3);
    let (mut driver, mut other) = (world.driver(NODE), world.driver(OTHER));
    let id = driver.create("v", 64 * MIB, EXT4, &[]).expect("made").volume_id;
    let stage = world.path("stage");
    let refused = driver.stage(&id, &stage, EXT4).expect_err("it is not published");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    driver.publish(&id, NODE, EXT4).expect("published");
    let refused = other.stage(&id, &stage, EXT4).expect_err("it is published to the other node");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    // The targets refuse that node too, whatever its driver says.
    let said = world.longhaul_fails(&["mount", &id, &world.made("by-hand"), "--hostnqn", OTHER]);
    assert!(said.contains("is not for this host"), "{said}");
    assert!(!world.sees_namespaces(OTHER) && world.sees_namespaces(NODE));
    let refused = driver.publish(&id, OTHER, EXT4).expect_err("one node at a time");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    driver.unpublish(&id, NODE).expect("unpublished");
    assert!(!world.sees_namespaces(NODE));
    driver.publish(&id, OTHER, EXT4).expect("published");
    other.stage(&id, &stage, EXT4).expect("staged");
    other.unstage(&id, &stage).expect("unstaged");
}

#[test]
fn a_node_that_lost_its_volume_writes_no_more() {
    let world = world!(3);
    let (mut driver, mut other) = (world.driver(NODE), world.driver(OTHER));
    let id = driver.create("v", 64 * MIB, EXT4, &[]).expect("made").volume_id;
    driver.publish(&id, NODE, EXT4).expect("published");
    let (stage, there) = (world.path("stage"), world.path("other-stage"));
    driver.stage(&id, &stage, EXT4).expect("staged");
    fs::write(stage.join("file"), "acknowledged").expect("written");
    world.sync(&stage);
    // As Kubernetes does with a node that it has given up.
    driver.unpublish(&id, NODE).expect("unpublished");
    driver.publish(&id, OTHER, EXT4).expect("published to the other node");
    other.again(|other| other.stage(&id, &there, EXT4)).expect("staged");
    assert_eq!(fs::read_to_string(there.join("file")).expect("read"), "acknowledged");
    // The former node is there after all, and what it writes goes nowhere.
    let late = format!("echo late > {0}/file && sync {0}/file", stage.display());
    assert!(!world.as_user(0, &late), "a node without the volume has written");
    other.unstage(&id, &there).expect("unstaged");
    other.stage(&id, &there, EXT4).expect("staged again");
    assert_eq!(fs::read_to_string(there.join("file")).expect("read"), "acknowledged");
    other.unstage(&id, &there).expect("unstaged");
}

#[test]
fn a_full_pool_says_so() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let room = driver.capacity(&[]).expect("capacity");
    assert!(room > 0);
    let full = driver.create("v", 2 * room, BLOCK, &[]).expect_err("it has no room");
    assert_eq!(full.code(), Code::ResourceExhausted, "{full:?}");
    world.until_only(&[]);
    let id = driver.create("v", room / 2, BLOCK, &[]).expect("it has room").volume_id;
    assert!(driver.capacity(&[]).expect("capacity") <= room / 2);
    let full = driver.expand(&id, 2 * room).expect_err("it has no room");
    assert_eq!(full.code(), Code::ResourceExhausted, "{full:?}");
    let full = driver.create("w", room, SHARED, &[("kind", "filesystem")]).expect_err("it has no room");
    assert_eq!(full.code(), Code::ResourceExhausted, "{full:?}");
    driver.delete(&id).expect("removed");
}

#[test]
fn a_volume_in_use_is_not_removed() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let id = driver.create("v", 64 * MIB, EXT4, &[]).expect("made").volume_id;
    driver.publish(&id, NODE, EXT4).expect("published");
    let (stage, target) = (world.path("stage"), world.path("pods/1/mount"));
    driver.stage(&id, &stage, EXT4).expect("staged");
    driver.publish_at(&id, &stage, &target, EXT4, false).expect("published");
    let refused = driver.delete(&id).expect_err("it is in use");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let refused = driver.unstage(&id, &stage).expect_err("it is published");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    fs::write(target.join("file"), "it is there").expect("written");
    driver.unpublish_at(&id, &target).expect("unpublished");
    driver.unstage(&id, &stage).expect("unstaged");
    let refused = driver.delete(&id).expect_err("it is published to the node");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    driver.unpublish(&id, NODE).expect("unpublished");
    driver.delete(&id).expect("removed");
    driver.delete(&id).expect("removed twice");
}

#[test]
fn a_name_is_one_volume() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let id = driver.create("v", 64 * MIB, EXT4, &[]).expect("made").volume_id;
    assert_eq!(driver.create("v", 64 * MIB, EXT4, &[]).expect("it is there").volume_id, id);
    let others: [(i64, _, &[Param]); 3] = [
        (65 * MIB, EXT4, &[]),
        (64 * MIB, EXT4, &[("layout", "mirror")]),
        (64 * MIB, SHARED, &[("kind", "filesystem")]),
    ];
    for (size, capability, parameters) in others {
        let other = driver.create("v", size, capability, parameters).expect_err("another volume");
        assert_eq!(other.code(), Code::AlreadyExists, "{other:?}");
    }
    for (parameters, capability) in
        [(&[("Layout", "mirror")][..], EXT4), (&[("pool", "q")], EXT4), (&[], SHARED)]
    {
        let wrong = driver.create("w", 64 * MIB, capability, parameters).expect_err("it cannot be made");
        assert_eq!(wrong.code(), Code::InvalidArgument, "{wrong:?}");
    }
    // What no pool takes as a name is one all the same.
    let names = ["a b", "a/b", "../v", "csi-n-1", &"ü".repeat(60)];
    let mut ids: Vec<String> = names
        .iter()
        .map(|name| {
            driver.create(name, 64 * MIB, BLOCK, &[]).unwrap_or_else(|e| panic!("{name}: {e}")).volume_id
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), names.len());
    let (first, token) = driver.list(4, "").expect("a page");
    let (second, end) = driver.list(4, &token).expect("a page");
    assert_eq!((first.len(), second.len(), end.as_str()), (4, 2, ""));
    for id in first.iter().chain(&second) {
        driver.delete(id).expect("removed");
    }
    world.until_only(&[]);
}

#[test]
fn a_block_volume_is_a_device_with_its_data() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let id = driver.create("v", 64 * MIB, BLOCK, &[]).expect("made").volume_id;
    driver.publish(&id, NODE, BLOCK).expect("published");
    let (stage, target) = (world.made("stage"), world.path("pods/1/device"));
    for round in 0..2u8 {
        driver.stage(&id, stage.as_ref(), BLOCK).expect("staged");
        // Without the loop device, as if the driver was killed before it made one.
        driver.publish_at(&id, stage.as_ref(), &target, BLOCK, false).expect("published");
        driver.publish_at(&id, stage.as_ref(), &target, BLOCK, false).expect("published twice");
        assert!(world::is_block_device(&target));
        let device = fs::File::options().read(true).write(true).open(&target).expect("opened");
        let mut found = [0; 4096];
        device.read_exact_at(&mut found, 1 << 20).expect("read");
        assert_eq!(found, [round; 4096]);
        device.write_all_at(&[round + 1; 4096], 1 << 20).expect("written");
        device.sync_all().expect("durable");
        if round == 1 {
            driver.expand(&id, 128 * MIB).expect("grown");
            driver.expand_at(&id, &target).expect("grown here");
            assert!(world::device_size(&device) >= 128 << 20);
            assert!(driver.stats(&id, &target).expect("stats").iter().any(|(_, total)| *total >= 128 * MIB));
        }
        drop(device);
        driver.kill();
        driver = world.driver(NODE);
        driver.unpublish_at(&id, &target).expect("unpublished");
        driver.unstage(&id, stage.as_ref()).expect("unstaged");
        assert_eq!(world.mounts(), 0);
    }
}

#[test]
fn a_volume_grows_while_it_is_used() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let mut volumes = vec![("x", world::XFS, 320 * MIB)];
    if world::may_grow_ext4() {
        volumes.push(("e", EXT4, 64 * MIB));
    } else {
        eprintln!("skip in part: a_volume_grows_while_it_is_used: growing an ext4 takes CAP_SYS_RESOURCE");
    }
    for (name, capability, size) in volumes {
        let id = driver.create(name, size, capability, &[]).expect("made").volume_id;
        driver.publish(&id, NODE, capability).expect("published");
        let (stage, target) = (world.path(name), world.path("pods/1/mount"));
        driver.stage(&id, &stage, capability).expect("staged");
        driver.publish_at(&id, &stage, &target, capability, false).expect("published here");
        let total = |driver: &mut Driver| {
            let stats = driver.stats(&id, &target).expect("stats");
            stats.into_iter().find_map(|(unit, total)| (unit == "bytes").then_some(total)).expect("bytes")
        };
        let before = total(&mut driver);
        driver.expand(&id, 2 * size).expect("grown");
        assert_eq!(driver.expand(&id, size).expect("it does not shrink"), 2 * size);
        driver.expand_at(&id, &target).expect("grown here");
        driver.expand_at(&id, &target).expect("grown twice");
        assert!(total(&mut driver) > before + size / 2, "{before} {}", total(&mut driver));
        driver.unpublish_at(&id, &target).expect("unpublished");
        driver.unstage(&id, &stage).expect("unstaged");
    }
}

#[test]
fn two_nodes_share_a_file_system() {
    let world = world!(3);
    let (mut one, mut two) = (world.driver(NODE), world.driver(OTHER));
    let made = one.create("f", 512 * MIB, SHARED, &[("kind", "filesystem")]).expect("made");
    assert_eq!(made.volume_id, "fs:pool/f");
    let id = made.volume_id;
    let refused = one.stage(&id, &world.path("one"), SHARED).expect_err("it is not published");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    one.publish(&id, NODE, SHARED).expect("published");
    one.publish(&id, OTHER, SHARED).expect("published to another node as well");
    let places = [world.path("pods/1/mount"), world.path("pods/2/mount")];
    for (driver, (stage, target)) in
        [&mut one, &mut two].into_iter().zip(["one", "two"].into_iter().zip(&places))
    {
        driver.stage(&id, &world.path(stage), SHARED).expect("staged");
        driver.publish_at(&id, &world.path(stage), target, SHARED, false).expect("published here");
    }
    // Containers run as other users: the directories of these tests let them pass.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(world.path(""), mode).expect("changed");
    let mut touch = std::process::Command::new("touch");
    let touched = std::os::unix::process::CommandExt::uid(touch.arg(places[0].join("user")), 1234).status();
    assert!(touched.expect("started").success());
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&places[1].join("user").metadata().expect("seen")), 1234);
    fs::write(places[0].join("a"), "of one").expect("written");
    fs::write(places[1].join("b"), "of two").expect("written");
    assert_eq!(fs::read_to_string(places[1].join("a")).expect("read"), "of one");
    assert_eq!(fs::read_to_string(places[0].join("b")).expect("read"), "of two");
    let refused = one.delete(&id).expect_err("it is in use");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    for (driver, (stage, target)) in
        [&mut one, &mut two].into_iter().zip(["one", "two"].into_iter().zip(&places))
    {
        driver.unpublish_at(&id, target).expect("unpublished");
        driver.unstage(&id, &world.path(stage)).expect("unstaged");
    }
    // From all nodes.
    one.unpublish(&id, "").expect("unpublished");
    one.delete(&id).expect("removed");
    world.until_only(&[]);
}

#[test]
fn a_snapshot_has_what_was_there() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let id = driver.create("v", 64 * MIB, EXT4, &[]).expect("made").volume_id;
    let (stage, restored) = (world.path("stage"), world.path("restored"));
    driver.publish(&id, NODE, EXT4).expect("published");
    driver.stage(&id, &stage, EXT4).expect("staged");
    fs::write(stage.join("file"), "before").expect("written");
    world.sync(&stage);
    let snapshot = driver.snapshot(&id, "s").expect("made");
    assert_eq!(driver.snapshot(&id, "s").expect("it is there").snapshot_id, snapshot.snapshot_id);
    fs::write(stage.join("file"), "after").expect("written");
    let copy = driver.restore(&snapshot.snapshot_id, "r", 128 * MIB, EXT4).expect("restored");
    assert_eq!(copy.capacity_bytes, 128 * MIB);
    assert_eq!(driver.restore(&snapshot.snapshot_id, "r", 128 * MIB, EXT4).expect("it is there"), copy);
    driver.delete_snapshot(&snapshot.snapshot_id).expect("removed");
    driver.delete_snapshot(&snapshot.snapshot_id).expect("removed twice");
    driver.publish(&copy.volume_id, NODE, EXT4).expect("published");
    driver.stage(&copy.volume_id, &restored, EXT4).expect("staged");
    assert_eq!(fs::read_to_string(restored.join("file")).expect("read"), "before");
    driver.unstage(&copy.volume_id, &restored).expect("unstaged");
    driver.unstage(&id, &stage).expect("unstaged");
    let missing = driver.restore(&snapshot.snapshot_id, "q", 128 * MIB, EXT4).expect_err("it is gone");
    assert_eq!(missing.code(), Code::NotFound, "{missing:?}");
}

#[test]
fn a_mount_whose_process_was_killed_is_made_anew() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let id = driver.create("v", 64 * MIB, EXT4, &[]).expect("made").volume_id;
    let stage = world.path("stage");
    driver.publish(&id, NODE, EXT4).expect("published");
    driver.stage(&id, &stage, EXT4).expect("staged");
    fs::write(stage.join("file"), "x").expect("written");
    world.sync(&stage);
    assert_eq!(driver.health(&id).expect("health"), Vec::<String>::new());
    world.kill_server_of(&stage);
    assert_eq!(driver.health(&id).expect("health"), ["ProcessEnded"]);
    driver.again(|driver| driver.stage(&id, &stage, EXT4)).expect("staged again");
    assert_eq!(fs::read_to_string(stage.join("file")).expect("read"), "x");
    driver.unstage(&id, &stage).expect("unstaged");
}

#[test]
fn a_volume_for_one_place_has_one() {
    let world = world!(3);
    let mut driver = world.driver(NODE);
    let single = world::with_mode(EXT4, Mode::SingleNodeSingleWriter);
    let id = driver.create("v", 64 * MIB, single, &[]).expect("made").volume_id;
    driver.publish(&id, NODE, single).expect("published");
    let stage = world.path("stage");
    driver.stage(&id, &stage, single).expect("staged");
    driver.publish_at(&id, &stage, &world.path("pods/1/mount"), single, false).expect("published");
    driver.publish_at(&id, &stage, &world.path("pods/1/mount"), single, false).expect("published twice");
    let refused =
        driver.publish_at(&id, &stage, &world.path("pods/2/mount"), single, false).expect_err("another pod");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let several = world::with_mode(EXT4, Mode::SingleNodeMultiWriter);
    driver.publish_at(&id, &stage, &world.path("pods/2/mount"), several, false).expect("published");
    for pod in ["pods/1/mount", "pods/2/mount"] {
        driver.unpublish_at(&id, &world.path(pod)).expect("unpublished");
    }
    driver.unstage(&id, &stage).expect("unstaged");
}
