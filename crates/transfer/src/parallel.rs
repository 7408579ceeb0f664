//! One step for many items, by several threads where each item waits for a file system that is far away.

use crate::guard::lock;
use crate::host::ThreadTimes;
use std::sync::Mutex;

/// Applies `step` to each item, by at most `width` threads together with the calling one; the results are in
/// the order of the items.
pub(crate) fn map<T: Send, R: Send>(width: usize, items: Vec<T>, step: impl Fn(T) -> R + Sync) -> Vec<R> {
    let width = width.min(items.len());
    if width <= 1 {
        return items.into_iter().map(step).collect();
    }
    let count = items.len();
    let next = Mutex::new(items.into_iter().enumerate());
    let results: Mutex<Vec<Option<R>>> = Mutex::new((0..count).map(|_| None).collect());
    let work = || {
        loop {
            let Some((index, item)) = lock(&next).next() else { return };
            let result = step(item);
            lock(&results)[index] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..width {
            let run = || {
                let _times = ThreadTimes;
                work();
            };
            let name = || std::thread::Builder::new().name("transfer-many".into());
            // The calling thread does all that no other one takes.
            if name().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_are_in_the_order_of_the_items_and_the_steps_overlap() {
        for width in [0, 1, 3, 100] {
            assert_eq!(map(width, (0..50).collect(), |n| n * 2), (0..50).map(|n| n * 2).collect::<Vec<_>>());
        }
        // Ends only if four steps run at the same time.
        let all = Barrier::new(4);
        map(4, vec![(); 4], |()| _ = all.wait());
        assert!(map(4, Vec::<u8>::new(), |n| n).is_empty());
    }
}
