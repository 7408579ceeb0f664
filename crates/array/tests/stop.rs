//! Arrays that are stopped under load: all acknowledged data is readable afterwards, since a
//! cleanly stopped array is not recovered at the next assembly.

mod common;

use common::rig::{Rig, rig};
use common::{options, simulate, start};
use fastrand::Rng;
use longhaul_array::{Layout, Options};
use longhaul_block::BlockDevice;
use longhaul_engine::{sleep, spawn, timeout};
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Clients of each array, each in its own range.
const CLIENTS: u64 = 6;

/// Writes, zeroes and reads until an operation is refused; returns the number of successful ones,
/// and the error.
async fn client(rig: Rc<Rig>, number: u64, seed: u64) -> (u64, String) {
    let mut random = Rng::with_seed(seed * 100 + number);
    let mut done = 0;
    loop {
        let count = 1 + random.u64(..14);
        let first = random.u64(..rig.model.blocks() - count);
        let (model, io) = (&rig.model, &*rig.io);
        let result = match random.u64(..8) {
            0 => model.zero(io, first, count).await,
            1 => model.read(io, first, count).await,
            _ => model.write(io, first, count).await,
        };
        match result {
            Ok(_) => done += 1,
            Err(e) => return (done, e.to_string()),
        }
    }
}

/// Stops an array under load, and checks its content.
fn stopped_under_load(seed: u64, layout: Layout, flip: bool) {
    simulate(seed, async {
        let options = Options { gather: Duration::from_micros(seed % 3 * 100), ..options() };
        let rig = Rc::new(rig(layout, 4, options.clone()).await);
        rig.fill().await;
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| spawn(client(Rc::clone(&rig), number, seed))).collect();
        sleep(Duration::from_micros(2000 + seed * 137)).await;
        if flip {
            // Reads that repair write as well.
            let from = rig.disks[0].info().size / 2;
            (0..200).for_each(|block| rig.disks[0].flip(from + block * 4096));
        }
        timeout(Duration::from_secs(60), rig.array.stop()).await.expect("ends").expect("stopped");
        let writes: Vec<u64> = rig.disks.iter().map(|disk| disk.writes.load(SeqCst)).collect();
        for client in clients {
            let (done, why) = timeout(Duration::from_secs(60), client).await.expect("ends");
            assert!(done > 0 && why.contains("stopped"), "{layout} seed {seed}: {why}");
        }
        sleep(Duration::from_secs(10)).await;
        let after: Vec<u64> = rig.disks.iter().map(|disk| disk.writes.load(SeqCst)).collect();
        assert_eq!(writes, after, "{layout} seed {seed}: written to after it was stopped");
        rig.model.crashed();
        let array = start(&rig.disks, options).await.expect("assembled again");
        let io = array.open().await.expect("opened");
        rig.model.check(&*io).await.expect("read");
        if layout != Layout::Stripe {
            let scrub = array.scrub().await.expect("scrubbed");
            assert!(scrub.inconsistent == 0 && scrub.lost == 0, "{layout} seed {seed}: {scrub:?}");
        }
    });
}

#[test]
fn writes_acknowledged_during_a_stop_are_readable_afterwards() {
    for layout in Layout::ALL {
        (1..=12).for_each(|seed| stopped_under_load(seed, layout, false));
    }
}

#[test]
fn a_stopped_array_repairs_nothing() {
    for layout in [Layout::Mirror, Layout::Parity] {
        (1..=12).for_each(|seed| stopped_under_load(seed, layout, true));
    }
}
