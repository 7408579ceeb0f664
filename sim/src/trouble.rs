//! Faults other than crashes, within the bounds of redundancy.
//!
//! Invariants:
//! - a member that is offline, has missed a write or has a fault counts as hurt until the array
//!   reports it whole, and a scrub has found nothing lost;
//! - more members than the array's redundancy are hurt only in plans that go beyond it, and from
//!   then on errors are allowed for good.

use crate::disk::{Disk, Fault};
use crate::load::Load;
use crate::plan::Plan;
use crate::random::Random;
use crate::subject::Running;
use crate::world::World;
use longhaul_engine::{sleep, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// How long healing may take: disks are small.
const HEALS: Duration = Duration::from_secs(4 * 3600);
/// How often the array's members are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// By when an array has noticed that a member was away: operations that were
/// under way have ended, and there was a heartbeat.
const NOTICED: Duration = Duration::from_secs(6);
/// The time after which an operator looks for members left to repair.
const PATIENCE: Duration = Duration::from_secs(300);
/// Events on disks until a crash that is to come soon.
const SOON: u64 = 40;
/// How long a member is away at most, in milliseconds.
const AWAY: u64 = 90_000;

/// How long the host is cut off at most, in milliseconds: not as long as it
/// waits for members that it needs.
const CUT_OFF: u64 = 120_000;
/// How long a member that hangs is tried to be connected to, as initiators do
/// until their loss time-out.
const TRIED: Duration = Duration::from_secs(600);

/// The disks of an array, and which of them are hurt. It outlives crashes.
pub(crate) struct Ward {
    pub(crate) disks: RefCell<Vec<Disk>>,
    /// Disks that the array has as spares, or has taken one of.
    spares: RefCell<Vec<Disk>>,
    /// Numbers of places that are hurt.
    hurt: RefCell<BTreeSet<usize>>,
    /// Disks that hang because their host is cut off, and nothing else.
    cut: RefCell<Vec<Disk>>,
    /// The host was cut off before. If it crashed while its disks came back, the
    /// heartbeat of one may have ended so long before those of the others that the
    /// array takes that one for rolled back, and rebuilds it: needlessly, and safely. A
    /// crash before the next look leaves its condition without the reason.
    was_cut: Cell<bool>,
    /// Makes an empty disk.
    make: Box<dyn Fn() -> Disk>,
    redundancy: usize,
    /// Where data are on a disk, in bytes.
    pub(crate) data: Range<u64>,
    /// The place on which data were repaired last.
    pub(crate) repaired: Cell<Option<usize>>,
    /// Places that the array misses, and why, when it was last looked at.
    seen: RefCell<Vec<(usize, String)>>,
    /// More was hurt than redundancy covers.
    pub(crate) beyond: Rc<Cell<bool>>,
    /// A disk that is hurt has lost its cache.
    forgetful: Cell<bool>,
}

impl Ward {
    pub(crate) fn new(
        disks: Vec<Disk>,
        redundancy: usize,
        data: Range<u64>,
        make: Box<dyn Fn() -> Disk>,
    ) -> Ward {
        Ward {
            disks: RefCell::new(disks),
            spares: RefCell::default(),
            hurt: RefCell::default(),
            cut: RefCell::default(),
            was_cut: Cell::default(),
            make,
            redundancy,
            data,
            repaired: Cell::default(),
            seen: RefCell::default(),
            beyond: Rc::default(),
            forgetful: Cell::default(),
        }
    }

    pub(crate) fn disk(&self, place: usize) -> Disk {
        self.disks.borrow()[place].clone()
    }

    pub(crate) fn is_hurt(&self) -> bool {
        !self.hurt.borrow().is_empty()
    }

    /// Members that may be lost, or wrong, at a time.
    pub(crate) fn redundancy(&self) -> usize {
        self.redundancy
    }

    /// Counts a place as hurt that is within the redundancy.
    pub(crate) fn hurt(&self, place: usize) {
        self.hurt.borrow_mut().insert(place);
    }

    /// A place that may be hurt, if any: it counts as hurt from now on.
    fn victim(&self, plan: &Plan, random: &mut Random) -> Option<usize> {
        let place = random.below(plan.width as u64) as usize;
        let mut hurt = self.hurt.borrow_mut();
        if hurt.contains(&place) {
            return None;
        }
        let most = self.redundancy + usize::from(plan.beyond);
        if hurt.len() >= most {
            return None;
        }
        hurt.insert(place);
        if hurt.len() > self.redundancy {
            self.beyond.set(true);
        }
        Some(place)
    }

    /// Compares the members that the array misses with the faults so far.
    ///
    /// # Errors
    /// A member without any fault is missing.
    pub(crate) async fn look(&self, world: &World, array: &dyn Running) -> Result<(), String> {
        self.follow(&array.places().await?);
        let missing = array.missing().await?;
        for (place, why) in &missing {
            let is_from_before = why.ends_with(": ");
            if self.was_cut.get() && (why.contains("rolled back") || is_from_before) {
                let mut hurt = self.hurt.borrow_mut();
                hurt.insert(*place);
                self.beyond.set(self.beyond.get() || hurt.len() > self.redundancy);
            }
            if !self.hurt.borrow().contains(place) && !self.beyond.get() {
                return Err(format!("place {place} is missing, and nothing has happened to it: {why}"));
            }
        }
        let mut seen = self.seen.borrow_mut();
        if *seen != missing {
            world.tell(format_args!("missing: {missing:?}"));
            *seen = missing;
        }
        Ok(())
    }

    /// Sees which spares have a place now.
    fn follow(&self, places: &[Option<String>]) {
        let mut disks = self.disks.borrow_mut();
        self.spares.borrow_mut().retain(|spare| {
            let place = places.iter().position(|name| name.as_deref() == Some(spare.name()));
            if let Some(place) = place {
                disks[place] = spare.clone();
            }
            place.is_none()
        });
    }

    /// All disks that a person would name to bring the array into use.
    pub(crate) fn all(&self) -> Vec<Disk> {
        self.disks.borrow().iter().chain(self.spares.borrow().iter()).cloned().collect()
    }

    /// The host is not cut off any more.
    pub(crate) fn reconnect(&self) {
        self.was_cut.set(self.was_cut.get() || !self.cut.borrow().is_empty());
        self.cut.borrow_mut().drain(..).for_each(|disk| disk.come_back());
    }

    /// Brings back all offline members.
    pub(crate) fn all_back(&self) {
        self.disks.borrow().iter().filter(|disk| disk.is_gone()).for_each(Disk::come_back);
    }
}

/// Faults of all kinds, one after the other, and healing in between.
pub(crate) async fn trouble(
    ward: Rc<Ward>,
    load: Rc<Load>,
    array: Rc<dyn Running>,
    mut random: Random,
    plan: Plan,
) {
    for _ in 0..plan.faults {
        sleep(plan.latency * random.below(200) as u32).await;
        match random.below(13) {
            10 => {
                let spare = (ward.make)();
                match array.add_spare(&spare).await {
                    Ok(()) => ward.spares.borrow_mut().push(spare),
                    Err(why) => load.world.tell(format_args!("no spare: {why}")),
                }
            }
            11 if !ward.is_hurt() && !ward.beyond.get() => {
                let disks = ward.all();
                if let Err(why) = array.intrude(&disks).await
                    && !load.may_fail()
                {
                    load.fail(why);
                }
            }
            0 | 1 => {
                let disk = random.pick(&ward.disks.borrow());
                disk.straggle(true);
                sleep(plan.latency * random.below(400) as u32).await;
                disk.straggle(false);
            }
            2..6 => {
                if let Some(place) = ward.victim(&plan, &mut random) {
                    absence(&ward, &load, &*array, place, &mut random).await;
                }
            }
            12 if !load.stopping.get() => {
                let there = ward.disks.borrow().iter().filter(|disk| !disk.is_gone()).cloned().collect();
                ward.cut.replace(there);
                load.cut_off.set(true);
                ward.cut.borrow().iter().for_each(|disk| disk.hang(false));
                sleep(Duration::from_millis(random.below(CUT_OFF))).await;
                ward.reconnect();
                load.cut_off.set(false);
            }
            6..10 if random.chance(70) => silent(&ward, &plan, &mut random),
            _ => {
                heal(&ward, &load, &*array).await;
                // Repaired data may be only in a cache.
                if load.quiet && load.may_crash && random.chance(50) {
                    load.world.stop_after(random.below(SOON));
                }
            }
        }
    }
    if random.chance(60) {
        heal(&ward, &load, &*array).await;
    }
}

/// Looks again and again.
pub(crate) async fn watch(ward: Rc<Ward>, load: Rc<Load>, array: Rc<dyn Running>) {
    loop {
        sleep(LOOK).await;
        if let Err(why) = ward.look(&load.world, &*array).await {
            if !load.may_fail() {
                load.fail(why);
            }
            return;
        }
    }
}

/// A member leaves, and returns, or is replaced; or stays away.
async fn absence(ward: &Ward, load: &Load, array: &dyn Running, place: usize, random: &mut Random) {
    let disk = ward.disk(place);
    let power = random.chance(50);
    // An array without redundancy would wait for it, and for ever.
    if ward.redundancy > 0 && random.chance(40) {
        disk.hang(power);
        spawn(try_for_a_while(disk.clone())).detach();
    } else {
        disk.leave(power);
    }
    ward.forgetful.set(ward.forgetful.get() || power);
    if ward.forgetful.get() && ward.beyond.get() {
        load.model.borrow_mut().lapse();
    }
    let most = random.pick(&[20, 2000, AWAY]);
    sleep(Duration::from_millis(random.below(most))).await;
    match random.below(4) {
        0 => {}
        1 => {
            let new = (ward.make)();
            match array.replace(place, &new).await {
                // The old one never comes back.
                Ok(()) => ward.disks.borrow_mut()[place] = new,
                Err(why) => load.world.tell(format_args!("not replaced: {why}")),
            }
        }
        _ => disk.come_back(),
    }
}

/// The initiator gives up a disk that hangs for too long.
async fn try_for_a_while(disk: Disk) {
    let since = disk.hangs_since();
    sleep(TRIED).await;
    if since.is_some() && disk.hangs_since() == since {
        disk.give_up();
    }
}

/// Something breaks without a word, in a member that is there.
fn silent(ward: &Ward, plan: &Plan, random: &mut Random) {
    let faults = [Fault::Flip, Fault::Unreadable, Fault::LostWrite, Fault::MisdirectedWrite];
    if ward.redundancy == 0 {
        return;
    }
    if let Some(place) = ward.victim(plan, random)
        && !ward.disk(place).plant(random.pick(&faults))
    {
        ward.hurt.borrow_mut().remove(&place);
    }
}

/// Waits until all members are whole; gives new disks for those that are not
/// going to be, as a person would.
async fn replace_until_healed(ward: &Ward, load: &Load, array: &dyn Running) -> Result<(), String> {
    loop {
        if let Ok(healed) = timeout(PATIENCE, array.healed()).await {
            return healed;
        }
        for place in array.given_up().await? {
            let new = (ward.make)();
            array.replace(place, &new).await?;
            load.world.tell(format_args!("place {place} is given {}", new.name()));
            ward.disks.borrow_mut()[place] = new;
        }
    }
}

/// Everything becomes whole again, if it was not too much.
pub(crate) async fn heal(ward: &Ward, load: &Load, array: &dyn Running) {
    for disk in ward.disks.borrow().iter() {
        disk.disarm();
    }
    ward.all_back();
    load.world.tell(format_args!("heal"));
    // The array may not have noticed yet that a member was away.
    sleep(NOTICED).await;
    match timeout(HEALS, replace_until_healed(ward, load, array)).await {
        Ok(Ok(())) => {}
        _ if load.may_fail() => return,
        Ok(Err(why)) => return load.fail(format!("healing: {why}")),
        Err(_) => return load.fail(format!("not healed after {} s", HEALS.as_secs())),
    }
    match timeout(HEALS, array.scrub()).await {
        Ok(Ok(0)) => {}
        _ if load.may_fail() => return,
        Ok(Ok(lost)) => return load.fail(format!("a scrub has found {lost} blocks lost, or at odds")),
        Ok(Err(why)) => return load.fail(format!("scrub: {why}")),
        Err(_) => return load.fail(format!("not scrubbed after {} s", HEALS.as_secs())),
    }
    load.world.tell(format_args!("healed"));
    // What no scrub looks at, such as a journal, may keep its fault.
    ward.hurt.borrow_mut().retain(|place| ward.disk(*place).is_marred());
    ward.forgetful.set(false);
}
