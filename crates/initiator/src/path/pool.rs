//! The connections over which one thread reaches a namespace, and the task
//! that measures and tunes them.
//!
//! Invariants:
//! - a command is on one connection from submission to completion, and counted in
//!   flight there for as long;
//! - connections are only added, and all of them end with the [`ConnectionPool`];
//! - while nothing is in flight the task sleeps without a timer.

use super::meter::Meter;
use super::share::{Sharer, Sharers, open_shared, share};
use super::traffic::AllCounters;
use super::{IoDirection, Limits, PathOptions, PathPlan, PathReport, Sample, Sockets, Traffic, Tuner};
use crate::call::{Data, Done, Pending, Waiting};
use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::io_queue::{IoQueue, OtherPath};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use longhaul_block::{Advice, IoResult};
use longhaul_engine::net::TcpInfo;
use longhaul_engine::{now, since, sleep, spawn};
use longhaul_wire::command::Sqe;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A split is no smaller than this: below, commands cost more than they gain.
const IO_SIZE_MIN: u64 = 128 << 10;
/// Commands that each connection should have, so that it is not idle when
/// one completes.
const COMMANDS_MIN: u64 = 4;

/// The last report of a device's path, and what went over it, for `RemoteDevice`.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    last: Mutex<Option<PathReport>>,
    traffic: AllCounters,
}

impl Reports {
    pub(crate) fn last(&self) -> Option<PathReport> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.sum()
    }

    fn set(&self, report: PathReport) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }
}

struct PooledConnection {
    connection: Rc<IoQueue>,
    in_flight: Rc<Cell<u64>>,
    /// What the kernel said when the last round ended.
    before: Cell<TcpInfo>,
}

/// See the module.
pub(crate) struct ConnectionPool {
    connections: RefCell<Vec<PooledConnection>>,
    controller: Arc<Controller>,
    /// Block size as a power of two.
    shift: u32,
    reports: Arc<Reports>,
    next_seq: Rc<Cell<u64>>,
    /// Commands that one connection takes at a time.
    commands: u16,
    /// Bytes of data that a command takes with it.
    in_capsule: Cell<u64>,
    /// Takes the calls while the controller is away.
    other_path: RefCell<Option<Rc<dyn OtherPath>>>,
    /// A connection is being opened, or no more are to be had.
    opening: Cell<bool>,
    meter: Rc<Meter>,
    sharers: Rc<Sharers>,
    tuner: RefCell<Tuner>,
    plan: Cell<PathPlan>,
    epoch: Instant,
}

/// A command that is counted in flight until this is dropped.
struct Flight {
    in_flight: Rc<Cell<u64>>,
    meter: Rc<Meter>,
    sharer: Rc<Sharer>,
    way: IoDirection,
    bytes: u64,
    began: Instant,
    done: bool,
}

impl Flight {
    fn complete(&mut self) {
        self.done = true;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.in_flight.set(self.in_flight.get() - self.bytes);
        let latency = self.done.then(|| since(self.began));
        self.meter.end(self.way, self.bytes, latency);
        self.sharer.end();
    }
}

impl ConnectionPool {
    /// The connections of the calling thread, which all users of the device on it share, and a
    /// share in them.
    ///
    /// # Errors
    /// No connection exists, and none can be made.
    pub(crate) async fn join(
        controller: &Arc<Controller>,
        shift: u32,
        reports: &Arc<Reports>,
    ) -> Result<(Rc<ConnectionPool>, Rc<Sharer>)> {
        controller.check()?;
        let pool = open_shared(controller, shift, reports).await?;
        let sharer = pool.another_sharer();
        Ok((pool, sharer))
    }

    /// A share for another user.
    pub(crate) fn another_sharer(&self) -> Rc<Sharer> {
        Rc::new(Sharer::new(&self.sharers))
    }

    /// Begins with as many connections as were asked for by hand, all at once,
    /// or with one; it is open when the first of them is there.
    ///
    /// # Errors
    /// None can be had; later ones are tried for.
    pub(super) async fn open(
        controller: &Arc<Controller>,
        shift: u32,
        reports: Arc<Reports>,
    ) -> Result<Rc<ConnectionPool>> {
        let next_seq = Rc::default();
        let (info, options) = (controller.info(), &controller.settings.options.path);
        let n = options.connections.unwrap_or(1).clamp(1, info.queues.max(1));
        let (first, others) =
            first_of(open_connections(n.into(), controller, shift, &next_seq, true)).await?;
        let most = options.connections.unwrap_or(options.connections_max).clamp(1, info.queues.max(1));
        let entries = u16::try_from(info.queue_entries).unwrap_or(u16::MAX);
        let commands = controller.settings.options.queue_size.clamp(2, entries.max(2)) - 1;
        let limits = Limits { in_flight: options.in_flight_max, connections: most };
        let tuner = Tuner::new(limits, info.round_trip.0, Duration::ZERO);
        let meter = Rc::<Meter>::default();
        reports.traffic.watch(meter.counters());
        let pool = Rc::new(ConnectionPool {
            connections: RefCell::default(),
            controller: Arc::clone(controller),
            shift,
            reports,
            next_seq,
            commands,
            in_capsule: Cell::new(info.in_capsule),
            plan: Cell::new(tuner.plan()),
            tuner: RefCell::new(tuner),
            other_path: RefCell::default(),
            opening: Cell::new(n > 1),
            meter,
            sharers: Rc::default(),
            epoch: now(),
        });
        pool.push(first);
        pool.follow();
        pool.gather(others);
        let weak = Rc::downgrade(&pool);
        let meter = Rc::clone(&pool.meter);
        spawn(async move { tune(weak, meter).await }).detach();
        Ok(pool)
    }

    /// The controller that the connections belong to.
    pub(crate) fn controller(&self) -> &Controller {
        &self.controller
    }

    fn options(&self) -> &PathOptions {
        &self.controller.settings.options.path
    }

    fn push(self: &Rc<Self>, connection: IoQueue) {
        let weak = Rc::downgrade(self);
        connection.relieve(Box::new(move |held| match weak.upgrade() {
            Some(pool) => pool.take_over(held),
            None => held,
        }));
        if let Some(other) = &*self.other_path.borrow() {
            connection.set_other_path(Rc::clone(other));
        }
        let before = Cell::new(connection.tcp_info().unwrap_or_default());
        let connection = Rc::new(connection);
        self.connections.borrow_mut().push(PooledConnection { connection, in_flight: Rc::default(), before });
    }

    /// Gives what a connection holds that gets no connection to one that has one.
    fn take_over(&self, held: Vec<Waiting>) -> Vec<Waiting> {
        let (connection, _) = self.least();
        if !connection.is_connected() {
            return held;
        }
        for waiting in held {
            connection.take_over(waiting);
        }
        Vec::new()
    }

    /// Has another path take over the calls while the controller is away.
    pub(crate) fn set_other_path(&self, other: &Rc<dyn OtherPath>) {
        *self.other_path.borrow_mut() = Some(Rc::clone(other));
        for one in self.connections.borrow().iter() {
            one.connection.set_other_path(Rc::clone(other));
        }
    }

    /// Takes over calls of another path; gives them back while there is no connection.
    pub(crate) fn take_from_other_path(&self, calls: Vec<Waiting>) -> Vec<Waiting> {
        if !self.is_connected() {
            return calls;
        }
        for waiting in calls {
            self.least().0.take_from_other_path(waiting);
        }
        Vec::new()
    }

    /// Whether commands of any kind go to the controller as they are submitted.
    pub(crate) fn is_connected(&self) -> bool {
        self.connections.borrow().iter().any(|one| one.connection.is_connected())
    }

    /// What is in flight in this direction, in bytes.
    pub(crate) fn in_flight(&self, way: IoDirection) -> u64 {
        self.meter.in_flight(way)
    }

    /// What the tuner has found, with the settings made by hand.
    pub(crate) fn plan(&self) -> PathPlan {
        self.plan.get()
    }

    /// The number that the next command gets.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq.get()
    }

    /// Aborts commands by their numbers. Ends when the target has answered.
    pub(crate) async fn abort(&self, which: &Range<u64>) {
        let all = self.connections.borrow().iter().map(|one| one.connection.downgrade()).collect::<Vec<_>>();
        let each = all.iter().filter_map(Weak::upgrade).map(|one| one.abort(which.clone()));
        futures_util::future::join_all(each).await;
    }

    /// Submits a command that moves data, on the connection that has least to do.
    pub(crate) fn submit(
        &self,
        sharer: &Rc<Sharer>,
        way: IoDirection,
        sqe: Sqe,
        data: Data,
    ) -> impl Future<Output = IoResult<Done>> + use<> {
        let bytes = match &data {
            Data::Read(memory) | Data::Write(memory) => memory.len() as u64,
            Data::None => 0,
        };
        let (connection, in_flight) = self.least();
        in_flight.set(in_flight.get() + bytes);
        let asked = way == IoDirection::Write && bytes > self.in_capsule.get();
        self.meter.begin(way, bytes, asked);
        sharer.begin();
        let (meter, sharer) = (Rc::clone(&self.meter), Rc::clone(sharer));
        let mut flight = Flight { in_flight, meter, sharer, way, bytes, began: now(), done: false };
        let pending = connection.submit(sqe, data);
        async move {
            let _open = connection;
            let done = pending.await?;
            flight.complete();
            Ok(done)
        }
    }

    /// Submits any other command.
    pub(crate) fn submit_other(&self, sqe: Sqe, data: Data) -> Pending {
        self.least().0.submit(sqe, data)
    }

    /// The connection with least to do, of those in use; one that is connected, if
    /// any is.
    fn least(&self) -> (Rc<IoQueue>, Rc<Cell<u64>>) {
        let all = self.connections.borrow();
        let used = usize::from(self.plan.get().connections).clamp(1, all.len());
        let key = |one: &PooledConnection| (!one.connection.is_connected(), one.in_flight.get());
        let mut best = &all[0];
        if used > 1 || !best.connection.is_connected() {
            // Without a connected one in use, connections out of use serve as well.
            let used = if all[..used].iter().any(|l| l.connection.is_connected()) { used } else { all.len() };
            best = all[..used].iter().min_by_key(|one| key(one)).unwrap_or(best);
        }
        (Rc::clone(&best.connection), Rc::clone(&best.in_flight))
    }

    fn max_transfer(&self) -> u32 {
        self.connections.borrow()[0].connection.max_transfer() as u32
    }

    /// Bytes of one command: what leaves each connection several.
    pub(crate) fn io_size(&self) -> u32 {
        let most = self.max_transfer();
        if let Some(size) = self.options().io_size {
            return size.min(most);
        }
        let plan = self.plan.get();
        let bytes = plan.in_flight[0].max(plan.in_flight[1]);
        let each = bytes / (COMMANDS_MIN * u64::from(plan.connections.max(1)));
        let size = 1u64 << each.max(IO_SIZE_MIN).ilog2();
        size.min(most.into()) as u32
    }

    /// How often the controller had to be connected to again.
    pub(crate) fn disconnects(&self) -> u64 {
        self.controller.disconnects()
    }

    /// Since when there is no controller.
    pub(crate) fn away_since(&self) -> Option<Instant> {
        self.controller.away_since()
    }

    /// How much each sharer is to keep in flight.
    pub(crate) fn advice_each(&self) -> Advice {
        share(self.advice(), self.sharers.count())
    }

    /// The users at work now.
    pub(crate) fn sharers(&self) -> u32 {
        self.sharers.count()
    }

    /// How much to keep in flight.
    fn advice(&self) -> Advice {
        let (plan, options) = (self.plan.get(), self.options());
        let [read, write] = plan.in_flight;
        let io_size = self.io_size();
        // Two more wait for the reader while the rest is on its way.
        let read_ahead = options.read_ahead.unwrap_or(read + 2 * u64::from(io_size));
        let all = u32::try_from(self.connections.borrow().len()).unwrap_or(u32::MAX);
        Advice { read, write, io_size, read_ahead, commands: u32::from(self.commands).saturating_mul(all) }
    }

    /// Carries out the tuner's plan, with settings made by hand in its place.
    fn follow(&self) {
        let plan = self.by_hand(self.tuner.borrow().plan());
        if plan.connections != self.plan.get().connections {
            tracing::debug!("{} connections: {:?}", plan.connections, plan.limit);
        }
        self.plan.set(plan);
    }

    /// A plan with the settings made by hand in its place.
    fn by_hand(&self, mut plan: PathPlan) -> PathPlan {
        let options = self.options();
        if let Some(bytes) = options.in_flight {
            plan.in_flight = [bytes; 2];
        }
        if let Some(connections) = options.connections {
            plan.connections = connections.clamp(1, self.controller.info().queues.max(1));
        }
        plan
    }

    /// Opens connections until there are as many as the plan says.
    fn grow(self: &Rc<ConnectionPool>) {
        let missing =
            usize::from(self.plan.get().connections).saturating_sub(self.connections.borrow().len());
        if missing == 0 || self.opening.replace(true) {
            return;
        }
        let opening = open_connections(missing, &self.controller, self.shift, &self.next_seq, false);
        self.gather(opening);
    }

    /// Takes connections as they come.
    fn gather(self: &Rc<ConnectionPool>, mut opening: Opening) {
        let weak = Rc::downgrade(self);
        spawn(async move {
            let mut good = true;
            while let Some(connection) = opening.next().await {
                let Some(pool) = weak.upgrade() else { return };
                match connection {
                    Ok(connection) => pool.push(connection),
                    Err(e) => {
                        tracing::info!("no further connection: {e}");
                        good = false;
                    }
                }
            }
            let Some(pool) = weak.upgrade() else { return };
            // If one was refused, more will be.
            pool.opening.set(!good);
            pool.grow();
        })
        .detach();
    }

    /// Ends a round.
    fn round(self: &Rc<ConnectionPool>) -> Duration {
        let all = self.connections.borrow();
        if !all.iter().any(|one| one.connection.is_connected()) {
            drop(all);
            return self.without();
        }
        let looks = all.iter().map(|one| {
            let now = one.connection.tcp_info().unwrap_or_default();
            (one.before.replace(now), now)
        });
        let looks: Vec<_> = looks.collect();
        let connections = u16::try_from(all.len()).unwrap_or(u16::MAX);
        drop(all);
        // It may be another controller by now.
        self.in_capsule.set(self.controller.info().in_capsule);
        let tcp = TcpInfo::together(looks.iter().map(|(_, now)| now));
        let rtt = looks.iter().map(|(_, now)| now.rtt).filter(|rtt| !rtt.is_zero()).min();
        let mut round = self.meter.take();
        self.sharers.end_round();
        let moved = |count: fn(&TcpInfo) -> u64| {
            let bytes = looks.iter().map(|(before, now)| count(now).saturating_sub(count(before))).sum();
            Some(bytes).filter(|&bytes: &u64| bytes > 0)
        };
        round.ways[IoDirection::Read as usize].moved = moved(|info| info.received);
        round.ways[IoDirection::Write as usize].moved = moved(|info| info.acknowledged);
        round.ways[IoDirection::Read as usize].lost =
            looks.iter().any(|(a, b)| b.out_of_order > a.out_of_order);
        round.ways[IoDirection::Write as usize].lost =
            looks.iter().any(|(a, b)| b.retransmissions > a.retransmissions);
        let models_path = self.controller.info().congestion.starts_with("bbr");
        let sample = Sample {
            now: since(self.epoch),
            ways: round.ways,
            rtt,
            latency_min: round.latency_min,
            sockets: Sockets { models_path, ..Sockets::between(looks.into_iter()) },
            connections,
        };
        self.tuner.borrow_mut().handle_sample(&sample);
        self.follow();
        self.grow();
        let plan = self.by_hand(self.tuner.borrow().settled());
        tracing::trace!("{sample:?} {plan:?}");
        let advice = self.advice();
        self.reports.set(PathReport { plan, advice, smoothed: rtt.unwrap_or_default(), tcp });
        self.tuner.borrow().round()
    }

    /// Ends a round without a connection.
    fn without(&self) -> Duration {
        self.meter.take();
        self.sharers.end_round();
        let mut tuner = self.tuner.borrow_mut();
        tuner.handle_outage(since(self.epoch));
        tuner.round()
    }

    /// Begins to measure.
    fn begin(&self) -> Duration {
        self.meter.take();
        for one in self.connections.borrow().iter() {
            one.before.set(one.connection.tcp_info().unwrap_or_default());
        }
        let mut tuner = self.tuner.borrow_mut();
        tuner.handle_idle(since(self.epoch));
        tuner.round()
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        self.meter.close();
    }
}

/// Connections that are being opened.
type Opening = FuturesUnordered<LocalBoxFuture<'static, Result<IoQueue>>>;

/// Begins to open `n` connections. If they are the `first`, that they are ready
/// belongs to the device's being set up.
fn open_connections(
    n: usize,
    controller: &Arc<Controller>,
    shift: u32,
    next_seq: &Rc<Cell<u64>>,
    first: bool,
) -> Opening {
    let begun = now();
    let open = |_| {
        let (controller, next_seq) = (Arc::clone(controller), Rc::clone(next_seq));
        let open = async move {
            let (connection, round_trips) = IoQueue::open(&controller, shift, next_seq).await?;
            if first {
                controller.queue_is_ready(since(begun), round_trips);
            }
            Ok(connection)
        };
        open.boxed_local()
    };
    (0..n).map(open).collect()
}

/// The first that is there, and the others.
async fn first_of(mut opening: Opening) -> Result<(IoQueue, Opening)> {
    let mut failed = None;
    while let Some(opened) = opening.next().await {
        match opened {
            Ok(connection) => return Ok((connection, opening)),
            Err(e) => failed = Some(e),
        }
    }
    Err(failed.unwrap_or_else(|| Error::Local("no connection was asked for".into())))
}

/// Ends a round after another, as long as there is I/O.
async fn tune(pool: Weak<ConnectionPool>, meter: Rc<Meter>) {
    loop {
        meter.wait_for_work().await;
        let Some(mut round) = pool.upgrade().map(|pool| pool.begin()) else { return };
        while meter.is_busy() {
            sleep(round).await;
            let Some(pool) = pool.upgrade() else { return };
            round = pool.round();
        }
        if let Some(pool) = pool.upgrade() {
            pool.sharers.handle_idle();
        }
    }
}
