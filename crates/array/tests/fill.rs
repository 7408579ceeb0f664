//! Filling a member while others write, and while it still owes answers.

mod common;

use common::rig::{SIZE, UNIT, rig};
use common::{Disk, options};
use longhaul_array::{Condition, Layout};
use longhaul_engine::{now, sleep, spawn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Blocks of a whole stripe of three members with parity.
const STRIPE: u64 = 2 * UNIT / 4096;
/// How long an operation takes that is slow, and what a member may take for one.
const SLOW: Duration = Duration::from_secs(60);
/// How often it is looked whether something has begun.
const LOOK: Duration = Duration::from_millis(1);

/// The stripe is read for the new member, and written to it slowly. A write to the same stripe
/// comes in between: it waits, and then goes to the new member as well.
#[test]
fn a_write_does_not_come_between_what_is_read_for_a_member_and_its_filling() {
    for (layout, width) in [(Layout::Mirror, 2), (Layout::StripeMirror, 4), (Layout::Parity, 3)] {
        common::simulate(21, async {
            let rig = rig(layout, width, options()).await;
            rig.fill().await;
            let new = Arc::new(Disk::new("new", SIZE, &rig.power));
            rig.array.replace(1, Arc::clone(&new) as _, false).await.expect("replaced");
            // From now on it takes a second for each operation.
            new.slow.store(1_000_000, SeqCst);
            let (before, reads) = (new.writes.load(SeqCst), rig.disks[0].reads.load(SeqCst));
            while new.writes.load(SeqCst) == before || rig.disks[0].reads.load(SeqCst) == reads {
                sleep(LOOK).await;
            }
            sleep(Duration::from_millis(100)).await;
            assert!(matches!(rig.condition(1).await, Condition::Rebuilding { .. }));
            rig.fill().await;
            new.slow.store(0, SeqCst);
            rig.array.wait_healthy().await.expect("filled");
            rig.disks[0].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.unwrap_or_else(|e| panic!("{layout} of {width}: {e}"));
        });
    }
}

/// A member takes a minute for one write, and a moment for all else: it is given up, and would
/// answer at once, but what it owes would land on what it is given when it is back.
#[test]
fn a_member_is_not_let_in_while_it_owes_an_answer() {
    common::simulate(22, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        // The region is marked already: the next write begins with the data.
        rig.model.write(&*rig.io, 0, STRIPE).await.expect("written");
        let (disk, before) = (Arc::clone(&rig.disks[1]), rig.disks[1].writes.load(SeqCst));
        disk.slow.store(SLOW.as_micros() as u64, SeqCst);
        let (began, rig) = (now(), Rc::new(rig));
        let writer = Rc::clone(&rig);
        let late = spawn(async move { writer.model.write(&*writer.io, 0, STRIPE).await });
        while disk.writes.load(SeqCst) == before {
            sleep(LOOK).await;
        }
        disk.slow.store(0, SeqCst);
        late.await.expect("written without it");
        rig.until(1, Condition::Absent).await;
        sleep(SLOW / 2).await;
        assert!(now() - began < SLOW, "it still owes an answer");
        rig.model.write(&*rig.io, 0, STRIPE).await.expect("written");
        rig.array.wait_healthy().await.expect("filled");
        assert!(now() - began >= SLOW, "it was let in after {:?}", now() - began);
        sleep(SLOW).await;
        rig.disks[0].unreachable.store(true, SeqCst);
        rig.model.check(&*rig.io).await.expect("read");
    });
}
