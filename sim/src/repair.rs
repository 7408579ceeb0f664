//! Repairs, a crash, and members that leave before it or after it: the repaired faults must not
//! return, and together with the members that leave exceed the redundancy.

use crate::disk::Fault;
use crate::load::Load;
use crate::random::Random;
use crate::subject::Running;
use crate::trouble::{Ward, heal};
use longhaul_engine::sleep;
use std::time::Duration;

/// Blocks of a member that go wrong at most.
const WRONG: u64 = 6;
/// How long nothing is written before they do: no region is marked any more, also where that
/// is kept up for 5 s.
const IDLE: Duration = Duration::from_secs(10);
/// Events on disks between a repair and a crash, at most.
const SOON: u64 = 6;
/// How long members that go are away.
const AWAY: Duration = Duration::from_secs(20);

/// As many members go as the array can do without, but for the one that was repaired; all is
/// read meanwhile, and they come back.
pub(crate) async fn lose_others(ward: &Ward, load: &Load, array: &dyn Running, random: &mut Random) {
    let Some(repaired) = ward.repaired.take() else { return };
    if ward.is_hurt() {
        return;
    }
    others_leave(ward, repaired, random);
    load.read_all(random.fork()).await;
    sleep(AWAY).await;
    load.read_all(random.fork()).await;
    heal(ward, load, array).await;
}

/// As many members leave as the array can do without, but for one.
fn others_leave(ward: &Ward, but: usize, random: &mut Random) {
    let places = ward.disks.borrow().len();
    let mut others: Vec<usize> = (0..places).filter(|place| *place != but).collect();
    for _ in 0..ward.redundancy().min(others.len()) {
        let place = others.swap_remove(random.below(others.len() as u64) as usize);
        ward.hurt(place);
        ward.disk(place).leave(false);
    }
}

/// Data of a member go wrong while nothing is written, and are repaired; all stops soon after. Half
/// the time others leave between the two, and may be back by then.
pub(crate) async fn repair_and_crash(ward: &Ward, load: &Load, array: &dyn Running, mut random: Random) {
    heal(ward, load, array).await;
    load.flush().await;
    sleep(IDLE).await;
    if ward.is_hurt() {
        return;
    }
    let place = random.below(ward.disks.borrow().len() as u64) as usize;
    let disk = ward.disk(place);
    let wrong = random.between(1, WRONG);
    let planted =
        (0..wrong).filter(|_| disk.plant_in(random.pick(&[Fault::Flip, Fault::Unreadable]), &ward.data));
    if planted.count() == 0 {
        return;
    }
    ward.hurt(place);
    heal(ward, load, array).await;
    if !ward.is_hurt() {
        ward.repaired.set(Some(place));
    }
    if load.may_crash {
        if !ward.is_hurt() && random.chance(50) {
            others_leave(ward, place, &mut random);
            let most = random.pick(&[20, 2000, 20_000]);
            sleep(Duration::from_millis(random.below(most))).await;
            if random.chance(50) {
                ward.all_back();
                sleep(Duration::from_millis(random.below(1000))).await;
            }
        }
        load.world.stop_after(random.below(SOON));
        // Heartbeats are events, too.
        load.world.stopped().await;
    }
}
