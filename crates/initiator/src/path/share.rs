//! The users that share the connections of a thread: every open of the device on
//! it.
//!
//! Invariants:
//! - a sharer is busy exactly while it has commands under way;
//! - a sharer that was busy in the last round counts, so that one that waits for
//!   each answer before its next request counts throughout; a sharer that is only
//!   open does not, except in the first round, when all may begin at once.

use super::{ConnectionPool, Reports};
use crate::controller::Controller;
use crate::error::Result;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared, WeakShared};
use longhaul_block::Advice;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// An I/O is cut no smaller for others' sake.
const IO_SIZE_MIN: u64 = 128 << 10;

/// Counts the users of a path that do I/O.
#[derive(Default)]
pub(super) struct Sharers {
    open: Cell<u32>,
    /// A round has ended since the path was idle: the counts below are valid.
    known: Cell<bool>,
    busy: Cell<u32>,
    /// At work in this round, and in the last one.
    now: Cell<u32>,
    before: Cell<u32>,
    round: Cell<u64>,
}

impl Sharers {
    /// How many share what there is, at least one.
    pub(super) fn count(&self) -> u32 {
        let known = self.busy.get().max(self.now.get()).max(self.before.get()).max(1);
        if self.known.get() { known } else { known.max(self.open.get()) }
    }

    /// The path is idle: any open user may begin, so all of them count.
    pub(super) fn handle_idle(&self) {
        self.known.set(false);
    }

    /// Ends a round.
    pub(super) fn end_round(&self) {
        self.known.set(true);
        self.before.set(self.now.take());
        self.round.set(self.round.get() + 1);
    }
}

/// One that has opened the device.
pub(crate) struct Sharer {
    all: Rc<Sharers>,
    commands: Cell<u32>,
    /// The last round in which it was counted, from 1.
    counted: Cell<u64>,
}

impl Sharer {
    pub(super) fn new(all: &Rc<Sharers>) -> Sharer {
        all.open.set(all.open.get() + 1);
        Sharer { all: Rc::clone(all), commands: Cell::new(0), counted: Cell::new(0) }
    }

    /// A command of it begins.
    pub(super) fn begin(&self) {
        let all = &self.all;
        if self.commands.replace(self.commands.get() + 1) == 0 {
            all.busy.set(all.busy.get() + 1);
        }
        let round = all.round.get() + 1;
        if self.counted.replace(round) != round {
            all.now.set(all.now.get() + 1);
        }
    }

    /// A command of it has ended.
    pub(super) fn end(&self) {
        self.commands.set(self.commands.get() - 1);
        if self.commands.get() == 0 {
            self.all.busy.set(self.all.busy.get() - 1);
        }
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        self.all.open.set(self.all.open.get() - 1);
    }
}

/// What each of `n` is to keep in flight, where `all` of them are to keep what
/// `all` says. Each can always have one I/O under way.
pub(super) fn share(all: Advice, n: u32) -> Advice {
    if n <= 1 {
        return all;
    }
    let part = |bytes: u64| bytes.div_ceil(n.into());
    let (read, write) = (part(all.read), part(all.write));
    let io_size = read.max(write).max(IO_SIZE_MIN).min(all.io_size.into());
    let io_size = 1u32 << io_size.max(1).ilog2();
    Advice {
        read,
        write,
        io_size: io_size.min(all.io_size),
        read_ahead: part(all.read_ahead),
        commands: all.commands.div_ceil(n).max(1),
    }
}

type OpeningPool = LocalBoxFuture<'static, Result<Rc<ConnectionPool>>>;

/// What this thread has open, or is about to.
enum PoolSlot {
    Open(Weak<ConnectionPool>),
    Opening(WeakShared<OpeningPool>),
}

thread_local! {
    /// Keyed by an address that is unique to a device while it is open.
    static PLACES: RefCell<Vec<(*const Reports, PoolSlot)>> = const { RefCell::new(Vec::new()) };
}

enum SharedPool {
    Open(Rc<ConnectionPool>),
    Opening(Shared<OpeningPool>),
}

impl PoolSlot {
    fn get(&self) -> Option<SharedPool> {
        match self {
            PoolSlot::Open(pool) => pool.upgrade().map(SharedPool::Open),
            PoolSlot::Opening(opening) => opening.upgrade().map(SharedPool::Opening),
        }
    }
}

/// The connections of this thread to the device of `reports`: existing ones, or new ones.
pub(super) async fn open_shared(
    controller: &Arc<Controller>,
    shift: u32,
    reports: &Arc<Reports>,
) -> Result<Rc<ConnectionPool>> {
    let key = Arc::as_ptr(reports);
    let found = PLACES.with_borrow_mut(|places| {
        places.retain(|(_, place)| place.get().is_some());
        places.iter().find(|(of, _)| *of == key).and_then(|(_, place)| place.get())
    });
    let opening = match found {
        Some(SharedPool::Open(pool)) => return Ok(pool),
        Some(SharedPool::Opening(opening)) => opening,
        None => {
            let (controller, reports) = (Arc::clone(controller), Arc::clone(reports));
            let open = async move { ConnectionPool::open(&controller, shift, reports).await };
            let opening = open.boxed_local().shared();
            if let Some(weak) = opening.downgrade() {
                PLACES.with_borrow_mut(|places| places.push((key, PoolSlot::Opening(weak))));
            }
            opening
        }
    };
    let pool = opening.await?;
    PLACES.with_borrow_mut(|places| {
        if let Some((_, place)) = places.iter_mut().find(|(of, _)| *of == key) {
            *place = PoolSlot::Open(Rc::downgrade(&pool));
        } else {
            places.push((key, PoolSlot::Open(Rc::downgrade(&pool))));
        }
    });
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_busy_users_count() {
        let all = Rc::new(Sharers::default());
        let some: Vec<_> = (0..3).map(|_| Sharer::new(&all)).collect();
        assert_eq!(all.count(), 3, "any of them may begin");
        all.end_round();
        assert_eq!(all.count(), 1, "all are idle, and one may begin");
        some[0].begin();
        some[0].begin();
        assert_eq!(all.count(), 1);
        some[1].begin();
        some[1].end();
        assert_eq!(all.count(), 2, "it was busy in this round");
        all.end_round();
        assert_eq!(all.count(), 2, "or not: that is known after a round");
        all.end_round();
        assert_eq!(all.count(), 1);
        some.iter().for_each(Sharer::begin);
        for _ in 0..4 {
            all.end_round();
        }
        assert_eq!(all.count(), 3, "for as long as it takes");
        some.iter().for_each(Sharer::end);
        some[0].end();
        assert_eq!(all.count(), 1);
        all.handle_idle();
        assert_eq!(all.count(), 3);
        drop(some);
        assert_eq!(all.count(), 1);
    }

    #[test]
    fn shares_add_up_and_none_is_nothing() {
        let all =
            Advice { read: 8 << 20, write: 4 << 20, io_size: 1 << 20, read_ahead: 10 << 20, commands: 1023 };
        assert_eq!(share(all, 1), all);
        let each = share(all, 16);
        assert_eq!((each.read, each.write, each.read_ahead), (512 << 10, 256 << 10, 640 << 10));
        assert_eq!((each.io_size, each.commands), (512 << 10, 64));
        let each = share(all, 100_000);
        assert_eq!((each.io_size, each.commands), (128 << 10, 1));
        assert_eq!(each.depth(each.read, 1 << 20), 1);
        assert_eq!(share(Advice { io_size: 4096, ..all }, 9).io_size, 4096, "no more than it takes");
    }
}
