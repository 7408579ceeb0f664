//! Connections that are made ahead of the queues that will use them, so that
//! many queues take no more round trips than one.
//!
//! Invariants:
//! - a connection of a pool is under way, ready, or taken;
//! - waiting calls of [`Pool::take`] get connections first come, first served,
//!   in the order in which these become ready; no more calls wait than
//!   connections are under way, so that none waits in vain;
//! - connections beyond what [`Pool::keep`] has left end, also those that are
//!   still under way, and all of them with the pool.

use crate::error::{Error, Result, reason};
use crate::handshake::handshake;
use crate::options::Options;
use crate::queue::{Queue, Signs};
use crate::reach::reach;
use crate::setup::Endpoint;
use crate::tls;
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use longhaul_conn::{Channel, FreeChannel};
use longhaul_engine::{now, since, spawn};
use longhaul_proto::host::{HostConfig, HostQueue};
use longhaul_wire::nqn::DISCOVERY_NQN;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A connection whose parameters are agreed on, not yet bound to a thread.
pub(crate) struct Prepared {
    queue: HostQueue,
    channel: FreeChannel,
}

impl Prepared {
    /// Round trips that [`open`](Self::open) takes: TCP's own, ICReq with
    /// ICResp, and the handshake of TLS.
    pub(crate) fn round_trips(endpoint: &Endpoint, options: &Options) -> u32 {
        2 + u32::from(options.tls || endpoint.generated.is_some())
    }

    /// The same without TLS, for an authentication that makes a PSK.
    pub(crate) async fn open_plain(
        endpoint: &Endpoint,
        options: &Options,
        config: HostConfig,
    ) -> Result<Prepared> {
        Prepared::begin(endpoint, options, config, async |channel| Ok(channel)).await
    }

    /// Opens a connection to a subsystem, and agrees on its parameters.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        options: &Options,
        subnqn: &str,
        config: HostConfig,
    ) -> Result<Prepared> {
        let secure = async |channel: Channel| match (options.tls, options.concat, &endpoint.generated) {
            (_, _, Some(psk)) => tls::begin_generated(endpoint, psk, channel).await,
            (true, _, None) => tls::begin(endpoint, options, subnqn, channel).await,
            // Nothing but discovery, which asks for no authentication, is without TLS.
            (false, true, None) if subnqn != DISCOVERY_NQN => {
                Err(endpoint.refused("TLS", "no PSK was made for it"))
            }
            (false, _, None) => Ok(channel),
        };
        Prepared::begin(endpoint, options, config, secure).await
    }

    async fn begin(
        endpoint: &Endpoint,
        options: &Options,
        config: HostConfig,
        secure: impl AsyncFnOnce(Channel) -> Result<Channel>,
    ) -> Result<Prepared> {
        let what = "the connection set-up";
        let begun = now();
        let channel = endpoint.within(options.connect_timeout, what, reach(endpoint, options)).await?;
        // What a place that was there before takes is known.
        let left = options.connect_timeout.saturating_sub(since(begun));
        let ready = async {
            let channel = secure(channel).await?;
            let queue = handshake(&channel, config)
                .await
                .map_err(|e| endpoint.incompatible(format!("no NVMe/TCP there: {}", reason(&e))))?;
            Ok((queue, channel))
        };
        let (queue, channel) = endpoint.within(left.min(endpoint.patience), what, ready).await?;
        let channel = channel.into_free().map_err(|e| Error::Local(e.to_string()))?;
        Ok(Prepared { queue, channel })
    }

    /// Serves it from the calling engine thread.
    pub(crate) fn serve(self, signs: &Signs, done_bytes: &Rc<Cell<u64>>) -> Result<Queue> {
        let channel = self.channel.adopt().map_err(|e| Error::Local(e.to_string()))?;
        Ok(Queue::serve(self.queue, channel, signs.clone(), Rc::clone(done_bytes)))
    }
}

/// See the module. Threads share it.
pub(crate) struct Pool(Arc<Mutex<PreparedState<Prepared>>>);

fn lock<T>(state: &Mutex<PreparedState<T>>) -> MutexGuard<'_, PreparedState<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

struct PreparedState<T> {
    ready: Vec<T>,
    /// What ends each of those under way, by its number.
    under_way: BTreeMap<usize, oneshot::Sender<()>>,
    waiting: VecDeque<oneshot::Sender<T>>,
}

impl<T> Default for PreparedState<T> {
    fn default() -> PreparedState<T> {
        PreparedState { ready: Vec::new(), under_way: BTreeMap::new(), waiting: VecDeque::new() }
    }
}

impl Pool {
    /// Begins `n` connections on the calling engine thread, all at once.
    pub(crate) fn begin(
        n: usize,
        endpoint: &Endpoint,
        options: &Options,
        subnqn: &str,
        config: HostConfig,
    ) -> Pool {
        let pool = Pool(Arc::default());
        for number in 0..n {
            let (cancel, cancelled) = oneshot::channel();
            lock(&pool.0).under_way.insert(number, cancel);
            let (endpoint, options, state) = (endpoint.clone(), options.clone(), Arc::downgrade(&pool.0));
            let subnqn = subnqn.to_owned();
            spawn(async move {
                let open = Box::pin(Prepared::open(&endpoint, &options, &subnqn, config));
                let made = match select(open, cancelled).await {
                    Either::Left((made, _)) => made,
                    Either::Right(_) => return,
                };
                if let Err(e) = &made {
                    // The queue that needs it connects by itself, and reports a failure.
                    tracing::debug!("a connection that was made ahead: {e}");
                }
                if let Some(state) = state.upgrade() {
                    lock(&state).arrive(number, made.ok());
                }
            })
            .detach();
        }
        pool
    }

    /// A connection that is ready, or the next that will be; `None` if no connection is
    /// left for the caller.
    pub(crate) async fn take(&self) -> Option<Prepared> {
        let next = match lock(&self.0).take() {
            Ok(ready) => return Some(ready),
            Err(next) => next?,
        };
        next.await.ok()
    }

    /// Keeps no more than `n`, and ends the others.
    pub(crate) fn keep(&self, n: usize) {
        let gone = lock(&self.0).keep(n);
        drop(gone);
    }
}

impl<T> PreparedState<T> {
    /// One that is ready, or else what will give the next, or nothing.
    fn take(&mut self) -> std::result::Result<T, Option<oneshot::Receiver<T>>> {
        if let Some(ready) = self.ready.pop() {
            return Ok(ready);
        }
        self.waiting.retain(|waiting| !waiting.is_canceled());
        if self.waiting.len() >= self.under_way.len() {
            return Err(None);
        }
        let (tx, rx) = oneshot::channel();
        self.waiting.push_back(tx);
        Err(Some(rx))
    }

    /// One is ready, or has failed.
    fn arrive(&mut self, number: usize, made: Option<T>) {
        if self.under_way.remove(&number).is_none() {
            return;
        }
        let mut made = made;
        while let Some(ready) = made.take() {
            match self.waiting.pop_front() {
                Some(first) => made = first.send(ready).err(),
                None => self.ready.push(ready),
            }
        }
        self.waiting.retain(|waiting| !waiting.is_canceled());
        self.waiting.truncate(self.under_way.len());
    }

    /// As [`Pool::keep`]; returns the entries to drop. Ready ones are kept before those that may
    /// never be.
    fn keep(&mut self, n: usize) -> (Vec<T>, Vec<oneshot::Sender<()>>) {
        let gone = self.ready.split_off(n.min(self.ready.len()));
        let left = n - self.ready.len();
        let mut cancelled = Vec::new();
        while self.under_way.len() > left {
            cancelled.extend(self.under_way.pop_last().map(|(_, cancel)| cancel));
        }
        self.waiting.truncate(self.under_way.len());
        (gone, cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(n: usize) -> (PreparedState<u8>, Vec<oneshot::Receiver<()>>) {
        let mut state = PreparedState::default();
        let cancelled = (0..n).map(|number| {
            let (cancel, cancelled) = oneshot::channel();
            state.under_way.insert(number, cancel);
            cancelled
        });
        let cancelled = cancelled.collect();
        (state, cancelled)
    }

    fn wait(state: &mut PreparedState<u8>) -> oneshot::Receiver<u8> {
        state.take().expect_err("none is ready").expect("one is under way")
    }

    #[test]
    fn the_first_that_is_ready_goes_to_the_first_that_waits() {
        let (mut state, _cancelled) = begun(3);
        let (mut first, mut second) = (wait(&mut state), wait(&mut state));
        state.arrive(2, Some(2));
        assert_eq!(first.try_recv(), Ok(Some(2)));
        assert_eq!(second.try_recv(), Ok(None));
        state.arrive(0, Some(0));
        assert_eq!(second.try_recv(), Ok(Some(0)));
        state.arrive(1, Some(1));
        assert_eq!(state.take().ok(), Some(1));
        assert!(matches!(state.take(), Err(None)));
    }

    #[test]
    fn a_failed_connection_ends_the_last_wait() {
        let (mut state, _cancelled) = begun(2);
        let (mut first, mut second) = (wait(&mut state), wait(&mut state));
        assert!(matches!(state.take(), Err(None)), "two are under way, and two wait");
        state.arrive(0, None);
        assert_eq!(first.try_recv(), Ok(None));
        assert!(second.try_recv().is_err(), "one is left, for the first");
        state.arrive(1, None);
        assert!(first.try_recv().is_err());
    }

    #[test]
    fn a_cancelled_wait_is_passed_over() {
        let (mut state, _cancelled) = begun(2);
        let first = wait(&mut state);
        let mut second = wait(&mut state);
        drop(first);
        state.arrive(0, Some(7));
        assert_eq!(second.try_recv(), Ok(Some(7)));
    }

    #[test]
    fn what_was_not_granted_ends() {
        let (mut state, mut cancelled) = begun(4);
        state.arrive(1, Some(1));
        state.arrive(2, Some(2));
        let (gone, cancels) = state.keep(3);
        assert_eq!((gone.len(), cancels.len()), (0, 1));
        drop(cancels);
        assert!(cancelled[3].try_recv().is_err(), "it was cancelled");
        assert_eq!(cancelled[0].try_recv(), Ok(None), "it continues");
        let (gone, cancels) = state.keep(1);
        assert_eq!((gone, cancels.len()), (vec![2], 1));
        state.arrive(0, Some(0));
        let (gone, _) = state.keep(0);
        assert_eq!(gone, [1], "a late connection is dropped");
    }
}
