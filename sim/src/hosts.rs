//! Several hosts that share the disks of one array: which of them owns it, and what happens to the
//! others.
//!
//! A turn ends the use of the array by one host (it stops the array, crashes, also in the middle of
//! its load, is suspended, or is cut off from all disks or from some), and has others try to take
//! it over, often at the same moment, or without seeing all of it.
//!
//! Invariants:
//! - at most one host at a time owns the array, and in the end one does;
//! - data that a host has flushed is read by the next one;
//! - of a host that was cut off while another has taken the array over no write is acknowledged any
//!   more, and none has an effect: each fails, and so does each read. Where all members have reservations, that holds of
//!   writes that were under way as well.

mod faults;
mod line;
mod turns;

use crate::content::{self, SECTOR};
use crate::disk::Disk;
use crate::load::Load;
use crate::model::Model;
use crate::outcome::{Failure, guarded};
use crate::plan::Plan;
use crate::random::Random;
use crate::run::Done;
use crate::subject::{Arrayed, Subject};
use crate::world::World;
use futures_util::future::join_all;
use line::{Line, Link};
use longhaul_array::{ArrayDevice, ArrayError, Layout};
use longhaul_block::{BlockDevice, BlockIo, WriteFlags};
use longhaul_engine::{BufMut, Engine, Task, sleep, timeout};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Hosts that try to have the array at the same moment, at most.
const RIVALS: u64 = 3;
/// Attempts at having it, each by one host alone, until one must have succeeded.
const ATTEMPTS: u32 = 4;
/// How long an operation of a host that has lost the array may take to fail.
const FAILS: Duration = Duration::from_secs(900);
/// How long an assembly may take.
const OPENS: Duration = Duration::from_secs(3600);
/// Arrays in a hundred that have a witness.
const WITNESSED: u32 = 40;
/// Arrays in a hundred all of whose devices have reservations, and arrays in a hundred of which some
/// have them.
const RESERVED: [u64; 2] = [45, 15];
/// Reads of a host that has lost the array.
const PEEKS: u64 = 8;
/// The writer that no reader may see: one that has lost the array.
const INTRUDER: u32 = u32::MAX;

/// A host that has the array, or had it.
struct Owner {
    array: Arc<ArrayDevice>,
    io: Rc<dyn BlockIo>,
    /// Its identifier.
    host: u64,
    /// Its connections, by place of the disk.
    links: Vec<Link>,
}

impl Owner {
    fn cut(&self) {
        self.links.iter().for_each(Link::cut);
    }

    fn connect(&self, taken: bool) {
        self.links.iter().for_each(|link| link.connect(taken));
    }

    fn go_down(&self) {
        self.links.iter().for_each(Link::go_down);
    }
}

struct Hosts<'a> {
    plan: &'a Plan,
    subject: &'a Arrayed,
    engine: &'a Engine,
    world: World,
    /// The members by place, and behind them the witness, if there is one.
    disks: Vec<Disk>,
    random: Random,
    model: Option<Rc<RefCell<Model>>>,
    failure: Rc<RefCell<Option<String>>>,
    /// The witness is lost, and was given up.
    given_up: bool,
    /// A member has failed, and is not known to be whole again.
    hurt: bool,
}

/// Runs a plan with several hosts, on a thread of its own; with `loud`, prints every event on
/// standard error.
///
/// # Errors
/// Violations, as of [`run`](crate::run).
pub fn run_hosts(plan: &Plan, loud: bool) -> Result<Done, Failure> {
    guarded(plan, || {
        let subject = Arrayed::new(plan);
        let mut random = Random::new(plan.seed ^ 0x68_6f73_7473);
        let world = World::new(loud);
        world.tell(format_args!("seed {}: {plan}", plan.seed));
        let make = plan.make(subject.member_size(plan.rows));
        let devices = plan.width + usize::from(random.chance(WITNESSED));
        let disks: Vec<Disk> =
            (0..devices).map(|n| Disk::new(n as u64, make, &world, random.fork())).collect();
        offer_reservations(&disks, plan, &world);
        let engine = Engine::simulated(random.bits()).map_err(|e| e.to_string())?;
        let mut hosts = Hosts {
            plan,
            subject: &subject,
            engine: &engine,
            world,
            disks,
            random,
            model: None,
            failure: Rc::default(),
            given_up: false,
            hurt: false,
        };
        engine.block_on(hosts.turns())?;
        let (events, digest) = (hosts.world.events(), hosts.world.digest());
        Ok(Done { events, crashes: 0, digest })
    })
}

/// Chooses which disks have reservations.
fn offer_reservations(disks: &[Disk], plan: &Plan, world: &World) {
    // A generator of its own: the other choices of a seed are unaffected.
    let mut random = Random::new(plan.seed ^ 0x72_6573_6572_7665);
    let [all, some] = RESERVED;
    let percent = match random.below(100) {
        n if n < all => 100,
        n if n < all + some => 50,
        _ => 0,
    };
    for disk in disks.iter().filter(|_| random.chance(percent)) {
        disk.offer_reservations();
        world.tell(format_args!("{} has reservations", disk.name()));
    }
}

impl Hosts<'_> {
    async fn turns(&mut self) -> Result<(), String> {
        let (members, witness) = self.disks.split_at(self.plan.width);
        let made = self.subject.create_witnessed(members, witness.first()).await;
        made.map_err(|e| format!("create: {e}"))?;
        let mut owner = self.contend().await?;
        for turn in 1..=self.plan.lives + 1 {
            self.world.tell(format_args!("turn {turn}"));
            self.use_it(&owner).await?;
            owner = match self.random.below(13) {
                0 => {
                    self.stop(&owner).await?;
                    self.contend().await?
                }
                1 => {
                    self.world.tell(format_args!("the host crashes"));
                    owner.go_down();
                    self.contend().await?
                }
                2 => self.split(owner).await?,
                3 => self.partial(owner).await?,
                4 => self.rolled_back(owner).await?,
                5 => self.suspended(owner).await?,
                6 => self.apart(owner).await?,
                7 => self.halves(owner).await?,
                8 => self.crashed(owner).await?,
                9 => self.failing(owner).await?,
                10 => self.without_witness(owner).await?,
                _ => self.cut_off(owner).await?,
            };
        }
        self.use_it(&owner).await?;
        owner.array.stop().await.map_err(|e| format!("stop: {e}"))
    }

    async fn stop(&self, owner: &Owner) -> Result<(), String> {
        let stopped = timeout(OPENS, owner.array.stop()).await.map_err(|_| "not stopped".to_owned())?;
        stopped.map_err(|e| format!("stop: {e}"))
    }

    /// Waits until all members are whole.
    async fn heal(&self, owner: &Owner) -> Result<(), String> {
        let healed = timeout(OPENS, owner.array.wait_healthy()).await.map_err(|_| "not healed".to_owned())?;
        healed.map_err(|e| format!("healing: {e}"))
    }

    /// Whether these members are enough to continue with, by the layout alone.
    fn is_enough(&self, members: &[usize]) -> bool {
        let width = self.plan.width;
        match self.plan.layout {
            Layout::Stripe => members.len() == width,
            Layout::Mirror => !members.is_empty(),
            Layout::StripeMirror => {
                (0..width / 2).all(|pair| members.iter().any(|member| member / 2 == pair))
            }
            Layout::Parity => members.len() + 1 >= width,
            Layout::DoubleParity => members.len() + 2 >= width,
        }
    }

    /// Everything there is.
    fn all(&self) -> Vec<usize> {
        (0..self.plan.width).chain(self.witness()).collect()
    }

    /// The place of the witness, if there is one.
    fn witness(&self) -> Option<usize> {
        self.disks.len().checked_sub(1).filter(|last| *last >= self.plan.width && !self.given_up)
    }

    /// All members but these.
    fn others(&self, members: &[usize]) -> Vec<usize> {
        (0..self.plan.width).filter(|member| !members.contains(member)).collect()
    }

    /// These members, and perhaps the witness.
    fn with_witness(&mut self, members: &[usize]) -> Vec<usize> {
        let witness = self.witness().filter(|_| self.random.chance(50));
        members.iter().copied().chain(witness).collect()
    }

    /// Some members that the array can do without; may be empty.
    fn spared(&mut self) -> Vec<usize> {
        let (mut spared, most) = (Vec::new(), self.random.between(1, self.plan.width as u64));
        for _ in 0..most {
            let member = self.random.below(self.plan.width as u64) as usize;
            let more = [&spared[..], &[member]].concat();
            if !spared.contains(&member) && self.is_enough(&self.others(&more)) {
                spared = more;
            }
        }
        spared
    }

    /// One host that sees these devices tries to have the array.
    async fn attempt(&self, view: &[usize]) -> Result<Owner, ArrayError> {
        self.attempt_as(view, false).await
    }

    /// The same; `degraded` is the operator's assurance that the missing members hold no newer
    /// data.
    async fn attempt_as(&self, view: &[usize], degraded: bool) -> Result<Owner, ArrayError> {
        let links: Vec<Link> = (0..self.disks.len()).map(|_| Link::default()).collect();
        let host = self.subject.new_host();
        let line = |place: &usize| {
            let disk = self.disks[*place].for_host(host);
            Arc::new(Line::new(&disk, &links[*place])) as Arc<dyn BlockDevice>
        };
        let array = self.subject.assemble(view.iter().map(line).collect(), degraded).await?;
        let io = array.open().await.map_err(ArrayError::Assemble)?;
        Ok(Owner { array, io, host, links })
    }

    /// The same, repeated if a host that has ended may still count as its user.
    async fn attempt_again(&self, view: &[usize]) -> Result<Owner, ArrayError> {
        let mut attempts = 1;
        loop {
            match self.attempt(view).await {
                Err(e) if is_of_another_host(&e) && attempts < ATTEMPTS => attempts += 1,
                result => return result,
            }
        }
    }

    /// Resolves when no disk is being changed.
    async fn idle(&self) {
        while !self.disks.iter().all(Disk::is_idle) {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The expected content of the array, for a host elsewhere, which gives it back.
    fn take_model(&mut self) -> Result<Model, String> {
        let model = self.model.take().and_then(Rc::into_inner).map(RefCell::into_inner);
        model.ok_or_else(|| "a load has not ended".into())
    }

    /// Several hosts try at the same moment; one has the array in the end.
    async fn contend(&mut self) -> Result<Owner, String> {
        let rivals = self.random.between(1, RIVALS);
        let delays: Vec<u64> =
            (0..rivals).map(|_| if self.random.chance(50) { 0 } else { self.random.below(600) }).collect();
        let attempts = delays.into_iter().map(async |delay| {
            sleep(Duration::from_millis(delay)).await;
            self.attempt(&self.all()).await
        });
        let results = timeout(OPENS, join_all(attempts))
            .await
            .map_err(|_| "no host has opened the array in time".to_owned())?;
        let mut owners: Vec<Owner> = Vec::new();
        for result in results {
            match result {
                Ok(owner) => owners.push(owner),
                Err(e) if is_of_another_host(&e) => {}
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
            match self.attempt(&self.all()).await {
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
            let mut model = model.borrow_mut();
            let stripe = model.len() / self.plan.rows as usize;
            let marred = self.disks.iter().any(Disk::is_marred);
            model.crash(self.plan.fragile(stripe, marred, self.hurt));
        }
    }

    /// The load of the host that has the array.
    fn load(&mut self, owner: &Owner) -> Rc<Load> {
        let info = owner.array.info();
        let model = Model::shared(&mut self.model, &info, self.plan.block);
        let stripe = info.size / self.plan.rows;
        Rc::new(Load::new(&self.world, Rc::clone(&owner.io), info, model, &self.failure, stripe))
    }

    fn check(&self) -> Result<(), String> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Begins the clients of a load.
    fn clients(&mut self, load: &Rc<Load>) -> Vec<Task<()>> {
        let Plan { clients, operations, latency, .. } = *self.plan;
        load.clients(&mut self.random, clients, operations, latency)
    }

    /// A host reads everything, and puts load on the array.
    async fn use_it(&mut self, owner: &Owner) -> Result<(), String> {
        let load = self.load(owner);
        load.read_all(self.random.fork()).await;
        join_all(self.clients(&load)).await;
        load.read_all(self.random.fork()).await;
        self.check()
    }
}

/// Whether another host has the array, or is about to.
fn is_of_another_host(e: &ArrayError) -> bool {
    matches!(e, ArrayError::InUse(_) | ArrayError::Reserved { .. } | ArrayError::TakenOver(_))
}

/// All requests of a host that has lost the array fail, in bounded time.
async fn all_fail(requests: impl Future<Output = usize>) -> Result<(), String> {
    match timeout(FAILS, requests).await {
        Ok(0) => Ok(()),
        Ok(count) => Err(format!("{count} requests of a host that has lost the array had no error")),
        Err(_) => Err(format!("a request of a host that has lost the array takes {} s", FAILS.as_secs())),
    }
}

/// Reads of a host that has lost the array; gives how many were answered.
async fn peek(io: Rc<dyn BlockIo>, size: u64) -> usize {
    let reads = (0..PEEKS).map(|n| io.read(size / PEEKS * n / 4096 * 4096, BufMut::zeroed(4096)));
    join_all(reads.collect::<Vec<_>>()).await.into_iter().filter(Result::is_ok).count()
}

/// Writes of a host that has lost the array, begun within so many milliseconds;
/// gives how many were acknowledged.
async fn intrude(io: Rc<dyn BlockIo>, size: u64, mut random: Random, within: u64) -> usize {
    let writes = (0..8).map(|_| {
        let (after, at) = (random.below(within), random.below(size / 4096) * 4096);
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
