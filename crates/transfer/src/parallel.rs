//! One step for many items, by several threads where each item waits for a file system that is far away.

use crate::guard::lock;
use crate::host::ThreadTimes;
use std::sync::Mutex;

/// Threads that help with such steps, of all who use them together.
#[derive(Debug)]
pub(crate) struct Helpers {
    free: Mutex<usize>,
}

/// For files of this machine, which the threads of a stage are enough for.
pub(crate) static NO_HELPERS: Helpers = Helpers { free: Mutex::new(0) };

/// A helper that is taken, until this is dropped.
struct Taken<'h>(&'h Helpers);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *lock(&self.0.free) += 1;
    }
}

impl Helpers {
    pub(crate) fn new(most: usize) -> Helpers {
        Helpers { free: Mutex::new(most) }
    }

    fn take(&self) -> Option<Taken<'_>> {
        let mut free = lock(&self.free);
        *free = free.checked_sub(1)?;
        Some(Taken(self))
    }

    /// Applies `step` to each item, by the calling thread and as many helpers as are free, also later; the
    /// results are in the order of the items.
    pub(crate) fn map<T: Send, R: Send>(&self, items: Vec<T>, step: impl Fn(T) -> R + Sync) -> Vec<R> {
        let count = items.len();
        let next = Mutex::new(items.into_iter().enumerate());
        let results: Mutex<Vec<Option<R>>> = Mutex::new((0..count).map(|_| None).collect());
        // Also returns how many items are left.
        let take = || {
            let mut next = lock(&next);
            next.next().map(|item| (item, next.len()))
        };
        let carry_out = |(index, item): (usize, T)| {
            let result = step(item);
            lock(&results)[index] = Some(result);
        };
        let help = |taken: Taken<'_>| {
            let _times = ThreadTimes;
            while let Some((item, _)) = take() {
                carry_out(item);
            }
            drop(taken);
        };
        std::thread::scope(|scope| {
            while let Some((item, left)) = take() {
                // A thread for each item that is left, at most: each of those at work takes another one next.
                for _ in 0..left {
                    let Some(taken) = self.take() else { break };
                    let thread = std::thread::Builder::new().name("transfer-many".into());
                    // The calling thread does all that no other one takes.
                    if thread.spawn_scoped(scope, || help(taken)).is_err() {
                        break;
                    }
                }
                carry_out(item);
            }
        });
        let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        results.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_are_in_the_order_of_the_items_and_the_steps_overlap() {
        for most in [0, 1, 3, 100] {
            let helpers = Helpers::new(most);
            let doubled = helpers.map((0..50).collect(), |n| n * 2);
            assert_eq!(doubled, (0..50).map(|n| n * 2).collect::<Vec<_>>());
            assert_eq!(*lock(&helpers.free), most, "all are given back");
        }
        // Ends only if four steps run at the same time.
        let (all, helpers) = (Barrier::new(4), Helpers::new(3));
        helpers.map(vec![(); 4], |()| _ = all.wait());
        assert!(helpers.map(Vec::<u8>::new(), |n| n).is_empty());
        // The caller alone where none are free; and with those that become free meanwhile.
        let taken: Vec<_> = std::iter::from_fn(|| helpers.take()).collect();
        assert_eq!((taken.len(), helpers.map(vec![1, 2], |n| n + 1)), (3, vec![2, 3]));
        let (two, taken) = (Barrier::new(2), Mutex::new(taken));
        helpers.map(vec![false, true, true], |waits| {
            lock(&taken).clear();
            _ = waits.then(|| two.wait());
        });
    }
}
