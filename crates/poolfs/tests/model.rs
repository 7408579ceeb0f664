//! Random operations on a file system and on a model of it, while members fail and hosts mount it again.
//! `POOLFS_SEEDS` says how many runs there are, and `POOLFS_SEED` which is the first.

mod common;

use common::model::Model;
use common::{ROOT, assert_right, memory, mount, number};
use longhaul_fs::{Call, FileSystem};
use longhaul_poolfs::testing::TestFs;

fn run(members: usize, stripe: (usize, usize), seed: u64, leases: bool) {
    let fs = TestFs::new(memory(), members, stripe, 1200).expect("made");
    let mut model = Model::new(seed);
    for round in 0..4 {
        let mounted = mount(&fs, leases);
        for step in 0..150 {
            if stripe.1 > 0 && step % 50 == 10 {
                // Members are missing, as many as may be.
                for disk in &fs.disks {
                    disk.set_gone(false);
                }
                mounted.find_members();
                for _ in 0..model.rng.usize(..=stripe.1) {
                    // Two members have one copy of what is written while one is missing: always the same.
                    let disk = if members == 2 { 1 } else { model.rng.usize(..members) };
                    fs.disks[disk].set_gone(true);
                }
            }
            model.step(&mounted);
            if step % 60 == 59 {
                mounted.tidy().expect("cleaned");
                assert_right(&fs);
            }
        }
        model.close_all(&mounted);
        model.compare(&mounted);
        mounted.wait(Call::SyncDirectory { node: ROOT }).expect("synced");
        for disk in &fs.disks {
            disk.set_gone(false);
            // What was committed is durable.
            disk.disk.cut_power();
        }
        mounted.find_members();
        model.compare(&mounted);
        drop(mounted);
        let report = assert_right(&fs);
        assert!(report.left.is_empty() && report.sessions.is_empty(), "round {round}: {report:?}");
    }
}

both! { a_file_system_is_what_was_done_to_it }

fn a_file_system_is_what_was_done_to_it(leases: bool) {
    let first = number("POOLFS_SEED", 1);
    for seed in first..first + number("POOLFS_SEEDS", 4) {
        let (members, stripe) =
            [(3, (2, 1)), (6, (4, 2)), (2, (1, 1)), (3, (3, 0)), (4, (1, 1))][seed as usize % 5];
        println!("seed {seed}: {members} members, stripes of {stripe:?}");
        run(members, stripe, seed, leases);
    }
}
