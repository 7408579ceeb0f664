//! Several hosts that share the disks of one array: which of them has it, and
//! what becomes of the others.
//!
//! A turn ends the use of the array by one host (it stops the array, goes down,
//! or is cut off from all disks for a while), and has others try to take it over,
//! often at the same moment.
//!
//! Invariants:
//! - at most one host at a time has the array, and in the end one has it;
//! - what a host has flushed is what the next one reads;
//! - of a host that was cut off while another has taken the array over no write
//!   is acknowledged any more, and none changes what is read: each fails.

mod line;

use crate::content::{self, SECTOR};
use crate::disk::Disk;
use crate::load::Load;
use crate::model::{Fragile, Model};
use crate::plan::Plan;
use crate::random::Random;
use crate::run::{Done, Failure, guarded};
use crate::subject::{Arrayed, Subject};
use crate::world::World;
use futures_util::future::join_all;
use line::{Line, Link};
use longhaul_array::{ArrayDevice, ArrayError};
use longhaul_block::{BlockDevice, BlockIo, WriteFlags};
use longhaul_engine::{BufMut, Engine, sleep, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Hosts that try to have the array at the same moment, at most.
const RIVALS: u64 = 3;
/// Attempts at having it, each by one host alone, until one must have succeeded.
const ATTEMPTS: u32 = 4;
/// How long a host is cut off at most, in milliseconds: it waits as long for
/// members that it needs, and takes the array back if it is not gone.
const CUT_OFF: u64 = 120_000;
/// A takeover takes longer than another's heartbeat is waited for.
const TAKEOVER: u64 = 20_000;
/// How long an operation of a host that has lost the array may take to fail.
const FAILS: Duration = Duration::from_secs(900);
/// How long an assembly may take.
const OPENS: Duration = Duration::from_secs(3600);
/// The writer that no reader may see: one that has lost the array.
const INTRUDER: u32 = u32::MAX;

/// A host that has the array, or had it.
struct Owner {
    array: Arc<ArrayDevice>,
    io: Rc<dyn BlockIo>,
    link: Link,
}

struct Hosts<'a> {
    plan: &'a Plan,
    subject: &'a Arrayed,
    world: World,
    disks: Vec<Disk>,
    random: Random,
    model: Option<Rc<RefCell<Model>>>,
    failure: Rc<RefCell<Option<String>>>,
}

/// Runs a plan with several hosts, on a thread of its own; with `loud`, tells of
/// every event on standard error.
///
/// # Errors
/// Whatever must not be, as of [`run`](crate::run).
pub fn run_hosts(plan: &Plan, loud: bool) -> Result<Done, Failure> {
    guarded(plan, || {
        let subject = Arrayed::new(plan);
        let mut random = Random::new(plan.seed ^ 0x68_6f73_7473);
        let world = World::new(loud);
        world.tell(format_args!("seed {}: {plan}", plan.seed));
        let make = plan.make(subject.member_size(plan.rows));
        let disks = (0..plan.width).map(|n| Disk::new(n as u64, make, &world, random.fork())).collect();
        let engine = Engine::simulated(random.bits()).map_err(|e| e.to_string())?;
        let mut hosts =
            Hosts { plan, subject: &subject, world, disks, random, model: None, failure: Rc::default() };
        engine.block_on(hosts.turns())?;
        let (events, digest) = (hosts.world.events(), hosts.world.digest());
        Ok(Done { events, crashes: 0, digest })
    })
}

impl Hosts<'_> {
    async fn turns(&mut self) -> Result<(), String> {
        self.subject.create(&self.disks).await.map_err(|e| format!("create: {e}"))?;
        let mut owner = self.contend().await?;
        for turn in 1..=self.plan.lives + 1 {
            self.world.tell(format_args!("turn {turn}"));
            self.use_it(&owner).await?;
            owner = match self.random.below(4) {
                0 => {
                    timeout(OPENS, owner.array.stop())
                        .await
                        .map_err(|_| "not stopped".to_owned())?
                        .map_err(|e| format!("stop: {e}"))?;
                    self.contend().await?
                }
                1 => {
                    self.world.tell(format_args!("the host goes down"));
                    owner.link.go_down();
                    self.contend().await?
                }
                _ => self.cut_off(owner).await?,
            };
        }
        self.use_it(&owner).await?;
        owner.array.stop().await.map_err(|e| format!("stop: {e}"))
    }

    /// One host tries to have the array.
    async fn attempt(&self) -> Result<Owner, ArrayError> {
        let link = Link::default();
        let lines = self.disks.iter().map(|disk| Arc::new(Line::new(disk, &link)) as Arc<dyn BlockDevice>);
        let array = self.subject.assemble(lines.collect()).await?;
        let io = array.open().await.map_err(ArrayError::Assemble)?;
        Ok(Owner { array, io, link })
    }

    /// Several hosts try at the same moment; one has the array in the end.
    async fn contend(&mut self) -> Result<Owner, String> {
        let rivals = self.random.between(1, RIVALS);
        let delays: Vec<u64> =
            (0..rivals).map(|_| if self.random.chance(50) { 0 } else { self.random.below(600) }).collect();
        let attempts = delays.into_iter().map(async |delay| {
            sleep(Duration::from_millis(delay)).await;
            self.attempt().await
        });
        let results = timeout(OPENS, join_all(attempts)).await.map_err(|_| "nobody has it".to_owned())?;
        let mut owners: Vec<Owner> = Vec::new();
        for result in results {
            match result {
                Ok(owner) => owners.push(owner),
                Err(ArrayError::InUse(_)) => {}
                Err(e) => return Err(format!("assembly by one of several hosts: {e}")),
            }
        }
        let running = owners.len();
        self.world.tell(format_args!("{rivals} hosts at the same moment, {running} have it"));
        if running > 1 {
            return Err(format!("{running} hosts have it at the same time"));
        }
        let mut last = None;
        for _ in 0..ATTEMPTS {
            if let Some(owner) = owners.pop() {
                self.hand_over();
                return Ok(owner);
            }
            match self.attempt().await {
                Ok(owner) => owners.push(owner),
                Err(e) => last = Some(e),
            }
        }
        Err(format!(
            "no host can have it, though none does: {}",
            last.map_or(String::new(), |e| e.to_string())
        ))
    }

    /// What the last host has not flushed may be lost.
    fn hand_over(&self) {
        if let Some(model) = &self.model {
            model.borrow_mut().crash(Fragile::Nothing);
        }
    }

    /// The load of the host that has the array.
    fn load(&mut self, owner: &Owner) -> Rc<Load> {
        let info = owner.array.info();
        let whole = info.block_size <= self.plan.block;
        let model = self
            .model
            .get_or_insert_with(|| Rc::new(RefCell::new(Model::new(info.size, info.block_size, whole))));
        Rc::new(Load {
            world: self.world.clone(),
            io: Rc::clone(&owner.io),
            model: Rc::clone(model),
            failure: Rc::clone(&self.failure),
            beyond: Rc::default(),
            stopping: Cell::default(),
            cut_off: Cell::default(),
            quiet: false,
            may_crash: false,
            stripe: info.size / self.plan.rows,
            info,
        })
    }

    fn check(&self) -> Result<(), String> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// A host reads everything, and puts load on the array.
    async fn use_it(&mut self, owner: &Owner) -> Result<(), String> {
        let load = self.load(owner);
        load.read_all(self.random.fork()).await;
        let pause = self.plan.latency;
        let client = |_| spawn(Rc::clone(&load).client(self.random.fork(), self.plan.operations, pause));
        join_all((0..self.plan.clients).map(client).collect::<Vec<_>>()).await;
        load.read_all(self.random.fork()).await;
        self.check()
    }

    /// The host is cut off from all disks; another one takes the array over, or
    /// not, and uses it; the first is connected again.
    async fn cut_off(&mut self, owner: Owner) -> Result<Owner, String> {
        self.world.tell(format_args!("the host is cut off"));
        owner.link.cut();
        if self.random.chance(20) {
            // Nobody notices.
            sleep(Duration::from_millis(self.random.below(CUT_OFF))).await;
            owner.link.connect(false);
            return Ok(owner);
        }
        // It goes on writing all the time.
        let late = spawn(intrude(Rc::clone(&owner.io), owner.array.info().size, self.random.fork()));
        sleep(Duration::from_millis(self.random.below(TAKEOVER))).await;
        let next = self.contend().await?;
        self.use_it(&next).await?;
        self.world.tell(format_args!("the host is connected again"));
        owner.link.connect(true);
        let acknowledged = timeout(FAILS, late).await;
        let acknowledged = acknowledged.map_err(|_| {
            format!(
                "a write of a host that has lost the array neither fails nor ends in {} s",
                FAILS.as_secs()
            )
        })?;
        if acknowledged > 0 {
            return Err(format!("{acknowledged} writes of a host that has lost the array were acknowledged"));
        }
        self.use_it(&next).await?;
        Ok(next)
    }
}

/// Writes of a host that is cut off; gives how many were acknowledged.
async fn intrude(io: Rc<dyn BlockIo>, size: u64, mut random: Random) -> usize {
    let writes = (0..8).map(|_| {
        let (after, at) = (random.below(TAKEOVER), random.below(size / 4096) * 4096);
        let io = Rc::clone(&io);
        async move {
            sleep(Duration::from_millis(after)).await;
            let mut data = BufMut::zeroed(4096);
            content::fill(&mut data, at / SECTOR as u64, INTRUDER);
            io.write(at, data.freeze(), WriteFlags::default()).await
        }
    });
    let results = join_all(writes.collect::<Vec<_>>()).await;
    results.into_iter().filter(Result::is_ok).count()
}
