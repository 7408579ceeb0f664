//! Virtual time, the choices of a seed, and the hosts and the network of a simulation.
//!
//! Invariants:
//! - time stands still while anything can run, and never goes back;
//! - every choice follows from the seed and from the choices requested before.

mod hosts;
mod sockets;

pub use hosts::Host;
pub(crate) use hosts::{Ends, Groups, Member, OUTSIDE, inside};
pub use sockets::{Listening, Network, Wire, set_network};
pub(crate) use sockets::{connect, listen, recv, send};

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What the wall clock shows when a simulation begins: a date that looks like one.
const WALL_EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// The clock and the dice of an engine that is simulated.
pub(crate) struct Simulated {
    began: Instant,
    now: Cell<Instant>,
    /// How long the machine was suspended.
    suspended: Cell<Duration>,
    /// How long the machine was paused from outside.
    paused: Cell<Duration>,
    state: Cell<u64>,
    pub(crate) groups: Groups,
    pub(crate) network: RefCell<Option<Rc<dyn Network>>>,
}

/// A number that a simulation's seed decides on; nothing on an engine that is
/// not simulated, and outside engine threads.
pub fn random() -> Option<u64> {
    let mut chosen = None;
    crate::exec::try_with_core(|core| chosen = core.simulated().map(Simulated::bits));
    chosen
}

/// Whether the calling thread's engine is simulated.
pub fn is_simulated() -> bool {
    let mut simulated = false;
    crate::exec::try_with_core(|core| simulated = core.simulated().is_some());
    simulated
}

impl Simulated {
    /// Time begins at an instant that means nothing: only distances from it do.
    pub(crate) fn new(seed: u64) -> Simulated {
        let began = Instant::now();
        Simulated {
            began,
            now: Cell::new(began),
            suspended: Cell::default(),
            paused: Cell::default(),
            state: Cell::new(seed),
            groups: Groups::default(),
            network: RefCell::default(),
        }
    }

    /// The time since the simulation began, with suspensions.
    pub(crate) fn boot_time(&self) -> Duration {
        self.now.get() - self.began + self.suspended.get()
    }

    /// A date, with suspensions and pauses.
    pub(crate) fn wall_time(&self) -> Duration {
        WALL_EPOCH + self.boot_time() + self.paused.get()
    }

    /// The machine was suspended for `time`.
    pub(crate) fn suspend(&self, time: Duration) {
        self.suspended.set(self.suspended.get() + time);
    }

    /// The machine was paused from outside for `time`.
    pub(crate) fn pause(&self, time: Duration) {
        self.paused.set(self.paused.get() + time);
    }

    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Lets the time pass until `then`.
    pub(crate) fn jump(&self, then: Instant) {
        self.now.set(self.now.get().max(then));
    }

    /// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    /// generators").
    fn bits(&self) -> u64 {
        let state = self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.set(state);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `count`, which is not zero.
    pub(crate) fn below(&self, count: usize) -> usize {
        let mixed = self.bits();
        // The high half of the product: as even as 64 bits are.
        ((u128::from(mixed) * count as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Config, Engine, EngineKind, boot_time, kind, now, sleep, spawn, timeout, wall_time, yield_now,
    };
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    /// The order in which tasks that are all ready get their turns.
    fn order(seed: u64) -> Vec<u32> {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let engine = Engine::simulated(seed).expect("engine");
        engine.block_on(async {
            let start = |i| {
                let seen = Rc::clone(&seen);
                spawn(async move {
                    for _ in 0..3 {
                        seen.borrow_mut().push(i);
                        yield_now().await;
                    }
                })
            };
            for task in (0..5).map(start).collect::<Vec<_>>() {
                task.await;
            }
        });
        drop(engine);
        Rc::into_inner(seen).expect("the tasks have ended").into_inner()
    }

    #[test]
    fn the_seed_decides_on_the_order_and_nothing_else_does() {
        assert_eq!(order(1), order(1));
        let orders: std::collections::BTreeSet<_> = (0..20).map(order).collect();
        assert!(orders.len() > 10, "{orders:?}");
        for order in orders {
            assert!((0..5).all(|i| order.iter().filter(|o| **o == i).count() == 3), "{order:?}");
        }
    }

    #[test]
    fn a_day_passes_at_once_and_exactly() {
        const DAY: Duration = Duration::from_secs(86_400);
        let engine = Engine::simulated(7).expect("engine");
        engine.block_on(async {
            assert_eq!(kind(), EngineKind::Simulated);
            let began = now();
            let late = spawn(async { sleep(DAY).await });
            assert!(timeout(DAY / 2, sleep(DAY)).await.is_err());
            assert_eq!(now() - began, DAY / 2);
            late.await;
            assert_eq!(now() - began, DAY);
        });
    }

    #[test]
    fn a_suspension_is_seen_by_the_boot_clock_and_a_pause_by_the_wall_clock_alone() {
        const HOUR: Duration = Duration::from_secs(3600);
        let engine = Engine::simulated(8).expect("engine");
        let clocks = || engine.block_on(async { (now(), boot_time(), wall_time()) });
        let (now, boot, wall) = clocks();
        engine.suspend(HOUR);
        assert_eq!(clocks(), (now, boot + HOUR, wall + HOUR));
        engine.pause(HOUR);
        assert_eq!(clocks(), (now, boot + HOUR, wall + 2 * HOUR));
        engine.block_on(sleep(HOUR));
        assert_eq!(clocks(), (now + HOUR, boot + 2 * HOUR, wall + 3 * HOUR));
    }

    #[test]
    #[should_panic(expected = "every task waits, and there is no timer")]
    fn waiting_for_ever_is_noticed() {
        Engine::simulated(0).expect("engine").block_on(std::future::pending::<()>());
    }

    #[test]
    fn there_are_no_sockets() {
        let engine = Engine::simulated(0).expect("engine");
        let refused =
            engine.block_on(async { crate::net::TcpListener::bind("127.0.0.1:0".parse().unwrap()) });
        assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(std::io::ErrorKind::Unsupported));
        drop(engine);
        let config = Config { kind: EngineKind::Simulated, ..Config::default() };
        assert!(Engine::new(&config).is_err());
    }
}
