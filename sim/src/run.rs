//! One simulation: lives of an array, with crashes between them.

use crate::disk::Disk;
use crate::load::Load;
use crate::medium::Fate;
use crate::model::{Fragile, Model};
use crate::outcome::{Failure, guarded};
use crate::plan::{Plan, Theme};
use crate::random::Random;
use crate::repair::{lose_others, repair_and_crash};
use crate::subject::{Running, Subject};
use crate::trouble::{Ward, heal, trouble, watch};
use crate::world::{Moment, World};
use futures_util::future::{Either, join_all, select};
use longhaul_engine::{Engine, sleep, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How long an array may take to open: a journal is replayed, and the heartbeat
/// of another owner waited for.
const OPENS: Duration = Duration::from_secs(3600);
/// Lives, in percent, that end with a stop in the middle of the load.
const STOPS: u32 = 25;
/// Crashes, in percent, that do the same to all disks.
const ALIKE: u32 = 30;

/// What a simulation has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Events on disks.
    pub events: u64,
    /// Number of crashes of the host.
    pub crashes: u64,
    /// Distinguishes runs: equal for two runs of the same seed.
    pub digest: u64,
}

/// Runs a plan on a subject, on a thread of its own; with `loud`, prints every event on standard
/// error.
///
/// # Errors
/// Violations: content that the model does not allow, an error within redundancy, an operation that
/// hangs, a panic.
pub fn run(plan: &Plan, subject: &(dyn Subject + Sync), loud: bool) -> Result<Done, Failure> {
    guarded(plan, || Simulation::new(plan, subject, loud).run())
}

struct Simulation<'a> {
    plan: &'a Plan,
    subject: &'a (dyn Subject + Sync),
    world: World,
    ward: Rc<Ward>,
    random: Random,
    model: Option<Rc<RefCell<Model>>>,
    failure: Rc<RefCell<Option<String>>>,
    crashes: u64,
}

impl<'a> Simulation<'a> {
    fn new(plan: &'a Plan, subject: &'a (dyn Subject + Sync), loud: bool) -> Simulation<'a> {
        let mut random = Random::new(!plan.seed);
        let world = World::new(loud);
        world.tell(format_args!("seed {}: {plan}", plan.seed));
        let make = plan.make(subject.member_size(plan.rows));
        let (below, chance, count) = (world.clone(), RefCell::new(random.fork()), Cell::new(0));
        let make = Box::new(move || {
            let number = count.replace(count.get() + 1);
            Disk::new(number, make, &below, chance.borrow_mut().fork())
        });
        let disks = (0..plan.width).map(|_| make()).collect();
        let ward = Rc::new(Ward::new(disks, subject.redundancy(), subject.data(plan.rows), make));
        Simulation { plan, subject, world, ward, random, model: None, failure: Rc::default(), crashes: 0 }
    }

    fn run(mut self) -> Result<Done, String> {
        let disks = self.ward.disks.borrow().clone();
        self.engine()?.block_on(self.subject.create(&disks)).map_err(|e| format!("create: {e}"))?;
        for life in 1..=self.plan.lives {
            let last = life == self.plan.lives;
            self.world.tell(format_args!("life {life}"));
            if !last && self.plan.theme != Theme::Repair {
                // Often before it is even open: recovery crashes, too.
                let most = self.random.pick(&[20, 200, 2000]);
                let events = self.random.below(most);
                match self.moment(life) {
                    None => self.world.stop_after(events),
                    Some((moment, count)) => self.world.stop_before(moment, count),
                }
            }
            if last || self.random.chance(50) {
                self.ward.all_back();
            }
            let engine = self.engine()?;
            let ended = engine.block_on(self.life(life, last));
            drop(engine);
            if let Some(why) = self.failure.borrow_mut().take() {
                return Err(format!("life {life}: {why}"));
            }
            match ended {
                // More is broken than it can begin with.
                Err(_) if self.ward.beyond.get() => break,
                ended => ended.map_err(|why| format!("life {life}: {why}"))?,
            }
            self.world.resume();
            if !last {
                self.crash();
            }
        }
        Ok(Done { events: self.world.events(), crashes: self.crashes, digest: self.world.digest() })
    }

    fn engine(&mut self) -> Result<Engine, String> {
        Engine::simulated(self.random.bits()).map_err(|e| e.to_string())
    }

    /// Crashes the host, with its disks or without, and decides which changes remain.
    fn crash(&mut self) {
        let power = self.random.chance(60);
        // Numbers of its own, as in `stops`.
        let mut random = Random::new(self.plan.seed ^ (self.crashes << 32) ^ 0x6661_7465);
        let fate = random.chance(ALIKE).then(|| random.pick(&[Fate::Nothing, Fate::Any, Fate::Head]));
        self.world.tell(format_args!("crash{}", if power { ", without power" } else { "" }));
        self.ward.disks.borrow().iter().for_each(|disk| disk.crash(power, fate));
        self.ward.reconnect();
        if let Some(model) = &self.model {
            let mut model = model.borrow_mut();
            let stripe = model.len() / self.plan.rows as usize;
            model.crash(self.fragile(stripe));
        }
        self.crashes += 1;
    }

    /// What a crash and a fault at the same time leave undefined, with stripes
    /// of so many blocks.
    fn fragile(&self, stripe: usize) -> Fragile {
        let marred = self.ward.disks.borrow().iter().any(Disk::is_marred);
        // One that is still to come may hit what recovery writes.
        let wrong = marred || self.ward.disks.borrow().iter().any(Disk::is_armed);
        // Where the last copy does not match its checksum after a crash it
        // is taken for torn, and not for wrong.
        if wrong && self.ward.beyond.get() {
            return Fragile::Everything;
        }
        self.plan.fragile(stripe, marred, self.ward.is_hurt())
    }

    /// From opening the array until its load is done, or everything stops.
    async fn life(&mut self, number: u32, last: bool) -> Result<(), String> {
        let world = self.world.clone();
        let (random, disks) = (self.random.fork(), self.ward.all());
        let opening = timeout(OPENS, self.subject.open(&disks));
        let opened = match select(pin!(world.stopped()), pin!(opening)).await {
            Either::Left(_) => return Ok(()),
            Either::Right((Err(_), _)) => return Err(format!("not open after {} s", OPENS.as_secs())),
            Either::Right((Ok(opened), _)) => opened.map_err(|e| format!("open: {e}"))?,
        };
        let array: Rc<dyn Running> = opened.into();
        self.ward.look(&world, &*array).await?;
        let load = self.load(&*array, !last);
        let stop = pin!(stop(Rc::clone(&load), Rc::clone(&array), self.stops(number, last)));
        let work = pin!(work(load, Rc::clone(&self.ward), array, self.plan.clone(), random, last));
        select(pin!(world.stopped()), select(work, stop)).await;
        Ok(())
    }

    /// The time at which the array is stopped in a life, if it is. Only a later life shows a fault
    /// of that, so the last one has none.
    fn stops(&self, life: u32, last: bool) -> Option<Duration> {
        // A generator of its own: the other choices of a seed are unaffected.
        let mut random = Random::new(self.plan.seed ^ (u64::from(life) << 32) ^ 0x73_746f_7073);
        let most = random.pick(&[20, 200, 1000]);
        (random.chance(STOPS) && !last && self.plan.theme != Theme::Repair)
            .then(|| self.plan.latency * random.below(most) as u32)
    }

    /// Before what a life is to crash, and how many of these come first, if
    /// it is not at any event.
    fn moment(&self, life: u32) -> Option<(Moment, u64)> {
        let mut random = Random::new(self.plan.seed ^ (u64::from(life) << 32) ^ 0x6d6f_6d65_6e74);
        let width = self.plan.width as u64;
        match self.plan.theme {
            Theme::Quiet if random.chance(60) => Some((Moment::Zero, random.below(3 * width))),
            Theme::Wide if random.chance(60) => Some((Moment::Superblock, random.below(4 * width))),
            _ => None,
        }
    }

    fn load(&mut self, opened: &dyn Running, may_crash: bool) -> Rc<Load> {
        let info = opened.info();
        let model = Model::shared(&mut self.model, &info, self.plan.block);
        let (stripe, quiet) = (info.size / self.plan.rows, self.plan.theme == Theme::Quiet);
        let load = Load::new(&self.world, opened.io(), info, model, &self.failure, stripe);
        Rc::new(Load { beyond: Rc::clone(&self.ward.beyond), quiet, may_crash, ..load })
    }
}

/// Stops the array after some time; if it is not, this never ends.
async fn stop(load: Rc<Load>, array: Rc<dyn Running>, after: Option<Duration>) {
    let Some(after) = after.filter(|_| array.stops_in_order()) else { return std::future::pending().await };
    sleep(after).await;
    load.stop(&*array).await;
}

/// The load of a life, and the faults meanwhile.
async fn work(
    load: Rc<Load>,
    ward: Rc<Ward>,
    array: Rc<dyn Running>,
    plan: Plan,
    mut random: Random,
    last: bool,
) {
    let pause = plan.latency;
    let repairs = plan.theme == Theme::Repair && ward.redundancy() > 0;
    if repairs {
        lose_others(&ward, &load, &*array, &mut random).await;
    } else if random.chance(50) {
        load.read_all(random.fork()).await;
    }
    let clients = load.clients(&mut random, plan.clients, plan.operations, pause);
    let (chance, plan) = (random.fork(), plan);
    let watch = spawn(watch(Rc::clone(&ward), Rc::clone(&load), Rc::clone(&array)));
    if repairs {
        join_all(clients).await;
        repair_and_crash(&ward, &load, &*array, chance).await;
    } else {
        let trouble = spawn(trouble(Rc::clone(&ward), Rc::clone(&load), Rc::clone(&array), chance, plan));
        join_all(clients).await;
        trouble.await;
    }
    load.read_all(random.fork()).await;
    drop(watch);
    if last {
        heal(&ward, &load, &*array).await;
        load.read_all(random).await;
        match array.stop().await {
            Err(why) if !load.may_fail() => load.fail(format!("stop: {why}")),
            _ => {}
        }
    }
}
