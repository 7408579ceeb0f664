//! One simulation: lives of an array, with crashes between them.

use crate::disk::Disk;
use crate::load::Load;
use crate::model::Model;
use crate::plan::Plan;
use crate::random::Random;
use crate::subject::{Running, Subject};
use crate::world::World;
use futures_util::future::{Either, join_all, select};
use longhaul_engine::{Engine, sleep, spawn};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::rc::Rc;

/// What a simulation has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Events on disks.
    pub events: u64,
    /// Crashes.
    pub crashes: u64,
    /// Tells runs apart: two of the same seed have the same.
    pub digest: u64,
}

/// What must not be, and how to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The plan that it happened in.
    pub plan: Plan,
    /// What happened, in words.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        writeln!(f, "  {}", self.plan)?;
        write!(f, "  again: cargo run --release -p longhaul-sim -- --seed {}", self.plan.seed)
    }
}

/// Runs a plan on a subject, on a thread of its own; with `loud`, tells of
/// every event on standard error.
///
/// # Errors
/// Whatever must not be: content that nobody may see, an error within
/// redundancy, an operation that hangs, a panic.
pub fn run(plan: &Plan, subject: &(dyn Subject + Sync), loud: bool) -> Result<Done, Failure> {
    let simulate =
        || std::panic::catch_unwind(AssertUnwindSafe(|| Simulation::new(plan, subject, loud).run()));
    let result = std::thread::scope(|scope| scope.spawn(simulate).join());
    let fail = |what| Failure { plan: plan.clone(), what };
    match result {
        Ok(Ok(result)) => result.map_err(fail),
        Ok(Err(panic)) | Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Err(fail(format!("panic: {text}")))
        }
    }
}

struct Simulation<'a> {
    plan: &'a Plan,
    subject: &'a (dyn Subject + Sync),
    world: World,
    disks: Vec<Disk>,
    random: Random,
    model: Option<Rc<RefCell<Model>>>,
    failure: Rc<RefCell<Option<String>>>,
    beyond: Rc<Cell<bool>>,
    crashes: u64,
}

impl<'a> Simulation<'a> {
    fn new(plan: &'a Plan, subject: &'a (dyn Subject + Sync), loud: bool) -> Simulation<'a> {
        let mut random = Random::new(!plan.seed);
        let world = World::new(loud);
        world.tell(format_args!("seed {}: {plan}", plan.seed));
        let make = plan.make(subject.member_size(plan.rows));
        let disk = |number| Disk::new(number as u64, make, &world, random.fork());
        let disks = (0..plan.width).map(disk).collect();
        Simulation {
            plan,
            subject,
            world,
            disks,
            random,
            model: None,
            failure: Rc::default(),
            beyond: Rc::default(),
            crashes: 0,
        }
    }

    fn run(mut self) -> Result<Done, String> {
        self.engine()?.block_on(self.subject.create(&self.disks)).map_err(|e| format!("create: {e}"))?;
        for life in 1..=self.plan.lives {
            let last = life == self.plan.lives;
            self.world.tell(format_args!("life {life}"));
            if !last {
                // Often before it is even open: recovery crashes, too.
                let most = self.random.pick(&[20, 200, 2000]);
                self.world.stop_after(self.random.below(most));
            }
            let engine = self.engine()?;
            let ended = engine.block_on(self.life());
            drop(engine);
            if let Some(why) = self.failure.borrow_mut().take() {
                return Err(format!("life {life}: {why}"));
            }
            ended.map_err(|why| format!("life {life}: {why}"))?;
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

    /// What is left after the host has gone down, with its disks or without.
    fn crash(&mut self) {
        let power = self.random.chance(60);
        self.world.tell(format_args!("crash{}", if power { ", without power" } else { "" }));
        self.disks.iter().for_each(|disk| disk.crash(power));
        if let Some(model) = &self.model {
            model.borrow_mut().crash();
        }
        self.crashes += 1;
    }

    /// From opening the array until its load is done, or everything stops.
    async fn life(&mut self) -> Result<(), String> {
        let world = self.world.clone();
        let stopped = pin!(world.stopped());
        let (random, disks) = (self.random.fork(), self.disks.clone());
        let opened = match select(stopped, self.subject.open(&disks)).await {
            Either::Left(_) => return Ok(()),
            Either::Right((opened, _)) => opened.map_err(|e| format!("open: {e}"))?,
        };
        let load = self.load(&*opened);
        let work = pin!(work(load, self.plan.clone(), self.disks.clone(), random));
        select(pin!(world.stopped()), work).await;
        Ok(())
    }

    fn load(&mut self, opened: &dyn Running) -> Rc<Load> {
        let (info, io) = (opened.info(), opened.io());
        let whole = info.block_size <= self.plan.block;
        let model = self
            .model
            .get_or_insert_with(|| Rc::new(RefCell::new(Model::new(info.size, info.block_size, whole))));
        Rc::new(Load {
            world: self.world.clone(),
            io,
            model: Rc::clone(model),
            failure: Rc::clone(&self.failure),
            beyond: Rc::clone(&self.beyond),
            stripe: info.size / self.plan.rows,
            info,
        })
    }
}

/// The load of a life, and what goes wrong meanwhile.
async fn work(load: Rc<Load>, plan: Plan, disks: Vec<Disk>, mut random: Random) {
    let pause = plan.latency;
    if random.chance(50) {
        load.read_all(random.fork()).await;
    }
    let client = |_| spawn(Rc::clone(&load).client(random.fork(), plan.operations, pause));
    let clients: Vec<_> = (0..plan.clients).map(client).collect();
    let trouble = spawn(trouble(disks, random.fork(), plan));
    join_all(clients).await;
    drop(trouble);
    load.read_all(random).await;
}

/// Disks that are slow for a while.
async fn trouble(disks: Vec<Disk>, mut random: Random, plan: Plan) {
    for _ in 0..plan.faults {
        sleep(plan.latency * random.below(200) as u32).await;
        let disk = random.pick(&disks);
        disk.straggle(true);
        sleep(plan.latency * random.below(200) as u32).await;
        disk.straggle(false);
    }
}
