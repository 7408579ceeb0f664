//! Bounded queues between the stages, for threads and for tasks.
//!
//! Invariants:
//! - the weight of a queue is at most `limit`, unless it holds a single item or items
//!   were pushed with [`Queue::force`];
//! - a closed queue accepts forced items only, and is drained by its consumers;
//! - an aborted queue is empty, and neither producers nor consumers wait.

use crate::guard::lock;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

/// A bounded queue of many producers and many consumers.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    limit: usize,
    state: Mutex<QueueState<T>>,
    /// Wake threads that wait for space, and for items.
    room: Condvar,
    items: Condvar,
    /// Nanoseconds that threads waited for space, and for items.
    blocked: AtomicU64,
    starved: AtomicU64,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    closed: bool,
    aborted: bool,
    /// Items that were taken by [`Queue::pop_held`] and are in hand yet.
    held: usize,
    /// Tasks that wait for space, and for items.
    room: Vec<Waker>,
    takers: Vec<Waker>,
}

impl<T> QueueState<T> {
    /// Nothing follows.
    fn is_at_end(&self) -> bool {
        self.aborted || self.closed && self.held == 0 && self.items.is_empty()
    }
}

/// An item is in hand until this is dropped.
pub(crate) struct HeldItem<'q, T>(&'q Queue<T>);

impl<T> Drop for HeldItem<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.held -= 1;
        if state.is_at_end() {
            self.0.wake_all(&mut state);
        }
    }
}

impl<T> Queue<T> {
    /// A queue of at most `limit` weight.
    pub(crate) fn new(limit: usize) -> Queue<T> {
        Queue {
            limit,
            state: Mutex::new(QueueState {
                items: VecDeque::new(),
                weight: 0,
                closed: false,
                aborted: false,
                held: 0,
                room: Vec::new(),
                takers: Vec::new(),
            }),
            room: Condvar::new(),
            items: Condvar::new(),
            blocked: AtomicU64::new(0),
            starved: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        lock(&self.state)
    }

    fn has_room(&self, state: &QueueState<T>, weight: usize) -> bool {
        state.items.is_empty() || state.weight + weight <= self.limit
    }

    fn put(&self, state: &mut QueueState<T>, item: T, weight: usize) {
        state.items.push_back((item, weight));
        state.weight += weight;
        if state.takers.is_empty() {
            self.items.notify_one();
        } else {
            state.takers.drain(..).for_each(Waker::wake);
        }
    }

    fn take(&self, state: &mut QueueState<T>) -> Option<T> {
        let (item, weight) = state.items.pop_front()?;
        assert!(state.weight >= weight, "the weight of a queue is that of its items");
        state.weight -= weight;
        self.room.notify_one();
        state.room.drain(..).for_each(Waker::wake);
        Some(item)
    }

    /// Pushes an item; blocks the thread while the queue is full.
    ///
    /// # Errors
    /// The queue is closed; gives the item back.
    pub(crate) fn push(&self, item: T, weight: usize) -> Result<(), T> {
        let mut state = self.lock();
        if !state.closed && !self.has_room(&state, weight) {
            let began = Instant::now();
            while !state.closed && !self.has_room(&state, weight) {
                state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            self.blocked.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
        }
        if state.closed {
            return Err(item);
        }
        self.put(&mut state, item, weight);
        Ok(())
    }

    /// Pushes an item even if the queue is full or closed, for producers that are bounded
    /// otherwise and could deadlock by waiting. Only a consumer may force items into a
    /// closed queue, while it has one in hand: the other consumers may have ended otherwise.
    pub(crate) fn force(&self, item: T, weight: usize) {
        let mut state = self.lock();
        if !state.aborted {
            self.put(&mut state, item, weight);
        }
    }

    /// As [`push`](Self::push), in a task.
    ///
    /// # Errors
    /// The queue is closed; gives the item back.
    pub(crate) async fn push_async(&self, item: T, weight: usize) -> Result<(), T> {
        let mut item = Some(item);
        poll_fn(|cx| {
            let mut state = self.lock();
            if !state.closed && !self.has_room(&state, weight) {
                state.room.push(cx.waker().clone());
                return Poll::Pending;
            }
            let Some(item) = item.take() else { return Poll::Ready(Ok(())) };
            if state.closed {
                return Poll::Ready(Err(item));
            }
            self.put(&mut state, item, weight);
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Takes an item; blocks the thread while the queue is empty. `None` once the queue is
    /// closed and empty.
    pub(crate) fn pop(&self) -> Option<T> {
        self.take_next(self.lock()).map(|(item, _)| item)
    }

    /// As [`pop`](Self::pop), for consumers that may [force](Self::force) items: none of them finds the queue at
    /// its end while another one has an item in hand.
    pub(crate) fn pop_held(&self) -> Option<(T, HeldItem<'_, T>)> {
        let (item, mut state) = self.take_next(self.lock())?;
        state.held += 1;
        drop(state);
        Some((item, HeldItem(self)))
    }

    fn take_next<'q>(
        &'q self,
        mut state: MutexGuard<'q, QueueState<T>>,
    ) -> Option<(T, MutexGuard<'q, QueueState<T>>)> {
        if let Some(item) = self.take(&mut state) {
            return Some((item, state));
        }
        let began = Instant::now();
        while !state.is_at_end() {
            state = self.items.wait(state).unwrap_or_else(PoisonError::into_inner);
            if let Some(item) = self.take(&mut state) {
                self.starved.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
                return Some((item, state));
            }
        }
        None
    }

    /// Takes the first item if `wanted` accepts it.
    pub(crate) fn try_pop_if(&self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let mut state = self.lock();
        let first = state.items.front().is_some_and(|(item, _)| wanted(item));
        if first { self.take(&mut state) } else { None }
    }

    /// As [`pop`](Self::pop), in a task.
    pub(crate) async fn pop_async(&self) -> Option<T> {
        poll_fn(|cx| {
            let mut state = self.lock();
            match self.take(&mut state) {
                Some(item) => Poll::Ready(Some(item)),
                None if state.is_at_end() => Poll::Ready(None),
                None => {
                    state.takers.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn wake_all(&self, state: &mut QueueState<T>) {
        self.items.notify_all();
        self.room.notify_all();
        state.takers.drain(..).chain(state.room.drain(..)).for_each(Waker::wake);
    }

    /// Closes the queue: no more items follow.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.wake_all(&mut state);
    }

    /// Closes the queue and drops its items.
    pub(crate) fn abort(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.aborted = true;
        state.weight = 0;
        let items = std::mem::take(&mut state.items);
        self.wake_all(&mut state);
        drop(state);
        drop(items);
    }

    /// The weight of its items.
    pub(crate) fn weight(&self) -> usize {
        self.lock().weight
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Whether it has no items.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().items.is_empty()
    }

    /// The present fill and wait times.
    pub(crate) fn gauge(&self) -> Gauge {
        let fill = self.lock().weight as f64 / self.limit as f64;
        let seconds = |nanos: &AtomicU64| nanos.load(Relaxed) as f64 / 1e9;
        let empty = self.is_empty();
        Gauge { fill: fill.min(1.0), empty, blocked: seconds(&self.blocked), starved: seconds(&self.starved) }
    }
}

/// Fill and wait times of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauge {
    /// Weight as a share of the limit, 0 to 1.
    pub fill: f64,
    /// Whether it has no items.
    pub empty: bool,
    /// Seconds that producer threads waited for space, added up.
    pub blocked: f64,
    /// Seconds that consumer threads waited for items, added up.
    pub starved: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_engine::{Config, Engine};
    use std::sync::Arc;

    #[test]
    fn threads_and_tasks_pass_items_in_order_and_within_bounds() {
        let queue = Arc::new(Queue::new(10));
        let producer = Arc::clone(&queue);
        let thread = std::thread::spawn(move || {
            for i in 0..1000 {
                producer.push(i, 3).expect("open");
            }
            producer.close();
        });
        let engine = Engine::new(&Config::default()).expect("an engine");
        let got = engine.block_on(async {
            let mut got = Vec::new();
            while let Some(item) = queue.pop_async().await {
                assert!(queue.lock().weight <= 10);
                got.push(item);
            }
            got
        });
        thread.join().expect("joined");
        assert_eq!(got, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn an_aborted_queue_releases_producers_and_consumers() {
        let queue = Arc::new(Queue::new(1));
        queue.push(1, 1).expect("open");
        let waiting = Arc::clone(&queue);
        let thread = std::thread::spawn(move || waiting.push(2, 1));
        queue.abort();
        assert_eq!(thread.join().expect("joined"), Err(2));
        assert_eq!((queue.pop(), queue.push(3, 1)), (None, Err(3)));
        queue.force(4, 1);
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn a_consumer_may_force_items_into_a_closed_queue() {
        let queue = Queue::new(4);
        queue.push(1, 1).expect("open");
        queue.close();
        assert_eq!((queue.push(2, 1), queue.pop()), (Err(2), Some(1)));
        queue.force(1, 1);
        assert_eq!((queue.pop(), queue.pop()), (Some(1), None));
    }

    #[test]
    fn a_consumer_waits_while_another_one_may_force_items() {
        let queue = Arc::new(Queue::new(4));
        queue.push(1, 1).expect("open");
        let (item, held) = queue.pop_held().expect("the item");
        queue.close();
        let other = Arc::clone(&queue);
        let thread = std::thread::spawn(move || {
            let first = other.pop_held().map(|(item, _)| item);
            (first, other.pop_held().is_none())
        });
        // Whether the thread waits by now or comes later.
        queue.force(item + 1, 1);
        drop(held);
        assert_eq!(thread.join().expect("joined"), (Some(2), true));
    }

    #[test]
    fn an_item_heavier_than_the_limit_is_queued_alone() {
        let queue = Queue::new(4);
        queue.push("heavy", 9).expect("open");
        assert_eq!(queue.try_pop_if(|item| item.len() > 9), None);
        assert_eq!(queue.try_pop_if(|item| item.len() == 5), Some("heavy"));
    }
}
