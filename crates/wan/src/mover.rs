//! The thread that moves packets between pairs of TUN devices.
//!
//! It sleeps until a device has packets, the next packet is due, or a command
//! arrives, and then does all there is to do: every wake-up takes a batch from
//! each device. Shortly before a packet is due it stays awake, since
//! falling asleep and waking up would take longer than that.
//!
//! Invariants:
//! - it alone touches flows and memory: other threads send it requests through a channel;
//! - a wake-up serves all flows in turn, and each for a bounded while, so that
//!   none waits for another one for long.

use crate::arena::Arena;
use crate::conditions::DirectionConditions;
use crate::flow::Flow;
use crate::packet;
use crate::statistics::DirectionStatistics;
use crate::{Error, sys};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Packets that one flow takes or delivers before the others have their turn.
const BATCH: usize = 32;

/// How close a packet's time has to be for the thread not to sleep until then,
/// in ns: about what a wake-up takes on a virtual machine.
const SPIN: u64 = 50_000;

/// Time that emulator and devices themselves take; subtracted from each delay.
const OWN_DELAY: Duration = Duration::from_micros(10);

/// One direction: packets are read from one device and written to another.
pub(crate) struct Route {
    pub(crate) from: Arc<File>,
    pub(crate) to: Arc<File>,
    pub(crate) way: DirectionConditions,
}

/// Counters of the thread and its flows.
pub(crate) struct MoverReport {
    pub(crate) flows: Vec<DirectionStatistics>,
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Duration,
    pub(crate) memory: u64,
    pub(crate) real_time: bool,
}

enum MoverCommand {
    Set { flow: usize, way: DirectionConditions, done: Sender<()> },
    Report { reset: bool, to: Sender<MoverReport> },
    Stop,
}

/// The running thread; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Mover {
    commands: Sender<MoverCommand>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    /// Starts moving; `memory` bounds the bytes of packets under way.
    pub(crate) fn start(routes: Vec<Route>, memory: usize, seed: u64) -> Result<Mover, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|e| Error::system("eventfd")(e.into()))?;
        let wake = Arc::new(wake);
        let (commands, inbox) = channel();
        let worker = Worker {
            routes: routes.into_iter().zip(seed..).map(Worker::route).collect(),
            arena: Arena::new(memory),
            wake: Arc::clone(&wake),
            inbox,
            begin: Instant::now(),
            since: (Instant::now(), Duration::ZERO),
            real_time: false,
        };
        let thread = std::thread::Builder::new().name("wan".into()).spawn(move || worker.run());
        let thread = Some(thread.map_err(Error::system("cannot start a thread"))?);
        Ok(Mover { commands, wake, thread })
    }

    /// Changes the conditions of a flow; they hold when this returns.
    pub(crate) fn set(&self, flow: usize, way: DirectionConditions) -> Result<(), Error> {
        let (done, answer) = channel();
        self.send(MoverCommand::Set { flow, way, done })?;
        answer.recv().map_err(|_| Error::Stopped)
    }

    pub(crate) fn report(&self, reset: bool) -> Result<MoverReport, Error> {
        let (to, answer) = channel();
        self.send(MoverCommand::Report { reset, to })?;
        answer.recv().map_err(|_| Error::Stopped)
    }

    fn send(&self, command: MoverCommand) -> Result<(), Error> {
        self.commands.send(command).map_err(|_| Error::Stopped)?;
        // It only fails when the counter is full: the thread wakes up anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(())
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        // A thread that has stopped by itself needs no command.
        let _ = self.send(MoverCommand::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct RunningRoute {
    from: Arc<File>,
    to: Arc<File>,
    flow: Flow,
}

struct Worker {
    routes: Vec<RunningRoute>,
    arena: Arena,
    wake: Arc<OwnedFd>,
    inbox: Receiver<MoverCommand>,
    /// Time zero of the flows.
    begin: Instant,
    /// Begin of the statistics, and processor time by then.
    since: (Instant, Duration),
    real_time: bool,
}

impl Worker {
    fn route((route, seed): (Route, u64)) -> RunningRoute {
        let flow = Flow::new(shortened(route.way), seed);
        RunningRoute { from: route.from, to: route.to, flow }
    }

    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn run(mut self) {
        self.real_time = sys::become_real_time().is_ok();
        // Sleep ends when it is to end; of no use, and no harm, to real time.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        self.since.1 = cpu_time();
        let files: Vec<_> = self.routes.iter().map(|route| Arc::clone(&route.from)).collect();
        let wake = Arc::clone(&self.wake);
        // ppoll: its time-out has nanoseconds, on every kernel, without a
        // call to set it first.
        let mut polled: Vec<_> = files.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
        polled.push(PollFd::new(&wake, PollFlags::IN));
        loop {
            let next = self.deliver();
            match poll(&mut polled, self.pause(next).as_ref()) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return tracing::error!("wan: cannot wait: {e}"),
            }
            for (i, event) in polled.iter().enumerate() {
                if event.revents().is_empty() {
                    continue;
                }
                if i < self.routes.len() {
                    self.collect(i);
                } else if !self.obey() {
                    return;
                }
            }
        }
    }

    /// How long to sleep: not at all right before `next`, nor behind it.
    fn pause(&self, next: Option<u64>) -> Option<Timespec> {
        let left = next?.saturating_sub(self.now()).saturating_sub(SPIN);
        Some(Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 })
    }

    /// Delivers the packets that are due; returns the time of the next one.
    fn deliver(&mut self) -> Option<u64> {
        let mut next = None;
        for i in 0..self.routes.len() {
            for _ in 0..BATCH {
                if self.routes[i].flow.next_due().is_none() {
                    break;
                }
                let now = self.now();
                let RunningRoute { to, flow, .. } = &mut self.routes[i];
                let Some(packet) = flow.take(now) else { break };
                match rustix::io::write(&**to, self.arena.bytes(packet.stored)) {
                    Ok(_) => flow.delivered(&packet, now),
                    Err(_) => flow.failed(&packet),
                }
                self.arena.free(packet.stored);
            }
            next = [next, self.routes[i].flow.next_due()].into_iter().flatten().min();
        }
        next
    }

    /// Takes a batch from a device.
    fn collect(&mut self, route: usize) {
        for _ in 0..BATCH {
            let now = self.now();
            let RunningRoute { from, flow, .. } = &mut self.routes[route];
            match self.arena.space() {
                Some(space) => match rustix::io::read(&**from, space) {
                    Ok(len) if len > packet::VNET => flow.arrive(&mut self.arena, now, len),
                    _ => return,
                },
                None => {
                    let mut lost = [0; packet::MAX];
                    match rustix::io::read(&**from, &mut lost) {
                        Ok(len) => flow.refuse(&lost[..len]),
                        Err(_) => return,
                    }
                }
            }
        }
    }

    /// Executes the waiting orders; false at the end.
    fn obey(&mut self) -> bool {
        // Level-triggered: to be read, whatever it says.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let now = self.now();
        for command in self.inbox.try_iter() {
            match command {
                MoverCommand::Set { flow, way, done } => {
                    if let Some(route) = self.routes.get_mut(flow) {
                        route.flow.change(&mut self.arena, now, shortened(way));
                    }
                    // The send fails only if the caller does not wait for it.
                    let _ = done.send(());
                }
                MoverCommand::Report { reset, to } => {
                    let flows = self.routes.iter().map(|route| route.flow.statistics()).collect();
                    let (elapsed, cpu) = (self.since.0.elapsed(), cpu_time() - self.since.1);
                    let memory = self.arena.taken() as u64;
                    let _ = to.send(MoverReport { flows, elapsed, cpu, memory, real_time: self.real_time });
                    if reset {
                        self.routes.iter_mut().for_each(|route| route.flow.reset());
                        self.since = (Instant::now(), cpu_time());
                    }
                }
                MoverCommand::Stop => return false,
            }
        }
        true
    }
}

/// A direction whose delay is shortened by that of the emulator itself.
fn shortened(way: DirectionConditions) -> DirectionConditions {
    DirectionConditions { delay: way.delay.saturating_sub(OWN_DELAY), ..way }
}

/// Processor time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
