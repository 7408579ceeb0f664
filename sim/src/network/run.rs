//! One simulation of hosts, a network and a target.

use super::Net;
use super::heads::Head;
use super::plan::NetworkPlan;
use super::trouble::{Counts, SECOND, Share, Site, TARGET, trouble};
use crate::disk::{Disk, Make};
use crate::load::Load;
use crate::model::Model;
use crate::network::part::Part;
use crate::network::wrong::Wrong;
use crate::outcome::{Failure, guarded};
use crate::random::Random;
use crate::world::World;
use futures_channel::oneshot;
use futures_util::future::{Either, join_all, select};
use longhaul_block::{BlockDevice, DeviceInfo};
use longhaul_engine::simulated::Host;
use longhaul_engine::{Engine, sleep, spawn};
use longhaul_initiator::{MultipathDevice, Options, RemoteDevice};
use longhaul_target::{Config, Target};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// What the target serves.
pub(super) const NQN: &str = "nqn.2014-08.org.nvmexpress:simulated";
pub(super) const UUID: Uuid = Uuid::from_u128(7);
const PORT: u16 = 4420;
/// The largest transfer of the simulated disk, in bytes.
const MAX_TRANSFER: u32 = 128 << 10;
/// How long a host that has crashed is down: packets that it has sent have had their effect by
/// then, or never will. Twice the longest keep-alive timeout, the longest pause of a target, and
/// the time that a disk takes.
const REBOOT: Duration = Duration::from_secs(300);
/// Halves of a disk's operations of a hundred that are far slower than the others
/// where everything is close to each other.
const STRAGGLERS: u32 = 15;
/// How often a host tries to connect for the first time.
const AGAIN: Duration = Duration::from_secs(1);
/// How long it does so: longer than all troubles together.
const TRIES: u32 = 3600;

/// A deliberate bug, to prove that the simulator notices it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planted {
    /// No bug is planted.
    #[default]
    Nothing,
    /// The initiator resends changes without knowing that those before have
    /// ended.
    NoFencing,
    /// The target acknowledges writes when they begin.
    EarlyAcknowledgement,
    /// The target's flush does nothing.
    NoFlush,
    /// A write that was under way when the connection was lost is taken for
    /// done.
    ForgetsAtReconnect,
    /// The generation does not change with a new connection.
    NoGeneration,
}

/// What a simulation has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkDone {
    /// Packets that have arrived, and events of the disk.
    pub events: u64,
    /// Faults by kind.
    pub counts: Counts,
    /// Distinguishes runs: equal for two runs of the same seed.
    pub digest: u64,
}

/// Runs a plan on a thread of its own, with a planted bug or none; with `loud`, prints every event
/// on standard error.
///
/// # Errors
/// Violations: content that no reader may see, an error of I/O, an operation that does not end
/// after the network is whole again, a panic.
pub fn run_network(
    plan: &NetworkPlan,
    planted: Planted,
    loud: bool,
) -> Result<NetworkDone, Failure<NetworkPlan>> {
    guarded(plan, || simulate(plan, planted, loud))
}

fn simulate(plan: &NetworkPlan, planted: Planted, loud: bool) -> Result<NetworkDone, String> {
    let mut random = Random::new(!plan.seed);
    let world = World::new(loud);
    world.tell(format_args!("seed {}: {plan}", plan.seed));
    let engine = Engine::simulated(random.bits()).map_err(|e| e.to_string())?;
    let failure: Rc<RefCell<Option<String>>> = Rc::default();
    let counts = engine.block_on(async {
        let site = site(plan, planted, &world, &mut random, Rc::clone(&failure));
        let all = pin!(everything(Rc::clone(&site), random));
        select(pin!(world.stopped()), all).await;
        // The first one is none.
        let takeovers = site.heads.lock().takeovers.saturating_sub(1);
        Counts { takeovers, ..site.counts.get() }
    });
    drop(engine);
    if let Some(why) = failure.borrow_mut().take() {
        return Err(why);
    }
    Ok(NetworkDone { events: world.events(), counts, digest: world.digest() })
}

fn site(
    plan: &NetworkPlan,
    planted: Planted,
    world: &World,
    random: &mut Random,
    failure: Rc<RefCell<Option<String>>>,
) -> Rc<Site> {
    let net = Net::new(plan.conditions, random.fork(), world);
    let size = plan.blocks * u64::from(plan.block);
    let make = Make {
        size: size * u64::from(plan.hosts),
        block: plan.block,
        volatile: plan.volatile,
        latency: plan.latency,
        window: None,
        knows: false,
    };
    let disk = Disk::new(0, make, world, random.fork());
    if plan.close {
        disk.straggle_some(STRAGGLERS);
    }
    if let Some(two) = plan.two {
        net.set_conditions(SECOND, two.second);
        match two.heads {
            true => disk.offer_reservations(),
            false => net.add_address(TARGET, SECOND),
        }
    }
    let share = |_| {
        Rc::new(Share {
            model: Rc::new(RefCell::new(Model::new(size, plan.block, true))),
            acknowledged: Cell::default(),
            doubtful: Cell::default(),
            losses: Cell::default(),
        })
    };
    let shares = (0..plan.hosts).map(share).collect();
    Rc::new(Site::new(world.clone(), net, disk, plan.clone(), planted, shares, failure))
}

/// All hosts with their lives, and the faults meanwhile.
async fn everything(site: Rc<Site>, mut random: Random) {
    site.start_target(0);
    if site.has_heads() {
        site.start_target(1);
    }
    let addr = |number: u32| IpAddr::V4(Ipv4Addr::new(10, 0, 1, number as u8 + 1));
    let hosts: Vec<_> = (0..site.plan.hosts).map(addr).collect();
    let lives =
        (0..).zip(&hosts).map(|(number, addr)| spawn(lives(Rc::clone(&site), number, *addr, random.fork())));
    let lives: Vec<_> = lives.collect();
    // Two at a time: a connection that is lost while the disk is slow, say.
    let troubled = (0..2).map(|_| spawn(trouble(Rc::clone(&site), hosts.clone(), random.fork())));
    join_all(troubled.collect::<Vec<_>>()).await;
    site.heal().await;
    join_all(lives).await;
}

/// The lives of a host: all but the last end with a crash.
async fn lives(site: Rc<Site>, number: u32, addr: IpAddr, mut random: Random) {
    let share = Rc::clone(&site.shares[number as usize]);
    for life in 1..=site.plan.lives {
        let last = life == site.plan.lives;
        site.world.tell(format_args!("life {life} of host {number}"));
        // Each life counts generations from the beginning.
        share.acknowledged.set(None);
        share.doubtful.set(None);
        let host = Host::new(addr);
        let (ended, end) = oneshot::channel::<()>();
        let work = work(Rc::clone(&site), number, Rc::clone(&share), random.fork(), last);
        host.spawn(async move {
            work.await;
            let _ = ended.send(());
        })
        .detach();
        let most = random.pick(&[50, 1_000, 20_000]);
        let crash = Duration::from_millis(random.below(most));
        let crash = async move { if last { std::future::pending().await } else { sleep(crash).await } };
        match select(end, pin!(crash)).await {
            Either::Left(_) => host.kill(),
            Either::Right(_) => {
                site.count(|counts| counts.crashes += 1);
                let power = random.chance(50);
                site.world.tell(format_args!("host {number} crashes"));
                if power {
                    site.net.power(addr, false);
                }
                host.kill();
                share.model.borrow_mut().depart();
                sleep(REBOOT).await;
                if power {
                    site.net.power(addr, true);
                }
            }
        }
    }
}

/// The load of a life.
async fn work(site: Rc<Site>, number: u32, share: Rc<Share>, mut random: Random, last: bool) {
    let device = match connect(&site, number).await {
        Ok(device) => device,
        Err(why) => return fail(&site, format!("host {number} cannot connect: {why}")),
    };
    let io = match device.device().open().await {
        Ok(io) => io,
        Err(e) => return fail(&site, format!("host {number} cannot open the namespace: {e}")),
    };
    let plan = &site.plan;
    let size = plan.blocks * u64::from(plan.block);
    let part = Part::new(io, u64::from(number) * size, Rc::clone(&share), Rc::clone(&site));
    let stripe = u64::from(plan.block) * if plan.close { 1 } else { 8 };
    let (info, model) = (DeviceInfo { size, ..device.device().info() }, Rc::clone(&share.model));
    let load = Rc::new(Load::new(&site.world, Rc::new(part), info, model, &site.failure, stripe));
    if random.chance(50) {
        load.read_all(random.fork()).await;
    }
    let pause = plan.conditions.delay + plan.latency;
    join_all(load.clients(&mut random, plan.clients, plan.operations, pause)).await;
    load.read_all(random).await;
    if last {
        drop(load);
        device.close().await;
    }
}

/// The namespace as a host has it, over one path or over two.
enum Remote {
    One(Arc<RemoteDevice>),
    Two(Arc<MultipathDevice>),
}

impl Remote {
    fn device(&self) -> &dyn BlockDevice {
        match self {
            Remote::One(device) => &**device,
            Remote::Two(device) => &**device,
        }
    }

    async fn close(&self) {
        match self {
            Remote::One(device) => device.close().await,
            Remote::Two(device) => device.close().await,
        }
    }
}

fn fail(site: &Site, why: String) {
    site.failure.borrow_mut().get_or_insert(why);
    site.world.stop();
}

/// Connects for the first time, as a program does that is started again until
/// its target is there.
async fn connect(site: &Site, number: u32) -> Result<Remote, String> {
    let plan = &site.plan;
    let mut options = Options {
        hdr_digest: plan.digests.0,
        data_digest: plan.digests.1,
        queue_size: plan.queue_size,
        kato: plan.kato,
        ctrl_loss: None,
        fencing: site.planted != Planted::NoFencing,
        max_transfer: MAX_TRANSFER,
        hostnqn: format!("nqn.2014-08.org.nvmexpress:host{number}"),
        hostid: Uuid::from_u128(u128::from(number) + 1),
        ..Options::default()
    };
    options.path.connections = plan.connections;
    let address = match plan.two {
        Some(_) => format!("{TARGET}:{PORT},{SECOND}:{PORT}"),
        None => format!("{TARGET}:{PORT}"),
    };
    let uri = format!("nvme+tcp://{address}/{NQN}?nsid=1");
    let uri = uri.parse().map_err(|e| format!("{uri}: {e:?}"))?;
    let mut tries = 0;
    loop {
        let connected = match plan.two {
            Some(_) => MultipathDevice::connect(&uri, options.clone()).await.map(Remote::Two),
            None => RemoteDevice::connect(&uri, options.clone()).await.map(Remote::One),
        };
        match connected {
            Ok(device) => return Ok(device),
            Err(e) if tries == TRIES => return Err(e.to_string()),
            Err(e) => site.world.tell(format_args!("host {number}: {e}")),
        }
        tries += 1;
        sleep(AGAIN).await;
    }
}

/// The target's machine.
pub(super) struct Export;

impl Export {
    /// Starts a target on the disk.
    pub(super) fn start(site: &Site, number: usize) -> Host {
        let host = Host::new(Site::address(number));
        let listen = match site.plan.two {
            Some(two) if !two.heads => vec![TARGET, SECOND],
            _ => vec![Site::address(number)],
        };
        let config = Config {
            listen: listen.into_iter().map(|address| SocketAddr::new(address, PORT)).collect(),
            in_capsule: site.plan.in_capsule,
            threads: site.plan.threads,
            ..Config::default()
        };
        let device: Arc<dyn BlockDevice> =
            Arc::new(Wrong { below: site.disk.clone(), planted: site.planted });
        let (failure, world) = (Rc::clone(&site.failure), site.world.clone());
        site.world.tell(format_args!("target {number} is started"));
        if site.has_heads() {
            let (disk, heads) = (site.disk.clone(), site.heads.clone());
            host.spawn(async move {
                let head = match Target::start(config).map_err(|e| e.to_string()) {
                    Ok(target) => Head::new(&disk, heads, world.clone(), target, number).await,
                    Err(e) => Err(e),
                };
                match head {
                    Ok(head) => head.run().await,
                    Err(e) => {
                        failure.borrow_mut().get_or_insert(format!("head {number} does not start: {e}"));
                        world.stop();
                    }
                }
            })
            .detach();
            return host;
        }
        host.spawn(async move {
            let started = Target::start(config)
                .and_then(|target| target.export(NQN, "disk", device, UUID).map(|_| target));
            match started {
                Ok(_serving) => std::future::pending().await,
                Err(e) => {
                    failure.borrow_mut().get_or_insert(format!("the target does not start: {e}"));
                    world.stop();
                }
            }
        })
        .detach();
        host
    }
}
