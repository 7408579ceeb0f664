//! Hosts that make, change and remove volumes of one pool at the same time, with every fault that a
//! catalog, targets and hosts can have.
//!
//! The code of pools runs as it is, over a catalog in memory and targets in memory. A seed chooses which
//! host makes the next call, how it ends, and what happens beside it: answers that are lost,
//! transactions and commands that take effect long after their host gave up or crashed, hosts that are
//! paused for longer than their leases, targets that go, hosts that are cut off from the catalog but not
//! from the targets. What must hold is in `judge.rs`.

mod arrays;
mod judge;
mod plan;
mod site;
mod turns;
mod user;
mod view;

pub use plan::PoolPlan;
pub use site::PoolCounts;

use crate::outcome::{Failure, guarded};
use crate::random::Random;
use site::Site;
use std::sync::Arc;
use user::User;

/// Runs one simulation; `loud` prints every call on standard error.
///
/// # Errors
/// A violation.
pub fn run_pools(plan: &PoolPlan, loud: bool) -> Result<PoolCounts, Failure<PoolPlan>> {
    guarded(plan, || simulate(plan, loud))
}

fn simulate(plan: &PoolPlan, loud: bool) -> Result<PoolCounts, String> {
    let mut random = Random::new(plan.seed);
    let site = Arc::new(Site::new(plan, &mut random, loud));
    site.make_pool(&judge::judge_of(&site));
    let users: Vec<User> =
        (0..plan.hosts).map(|host| User::new(&site, host, plan.operations, random.fork())).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = users.into_iter().map(|user| scope.spawn(move || user.work())).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    judge::settle(&site)?;
    Ok(site.counts())
}
