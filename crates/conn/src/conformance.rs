//! Whether a transport keeps its [contract](crate::transport): tests for each implementation to pass, those of other
//! programs included.
//!
//! ```no_run
//! use longhaul_conn::{conformance, transport::InProcess};
//! use longhaul_engine::Config;
//! use std::sync::Arc;
//!
//! conformance::check(Arc::new(InProcess::new()), "name", &Config::default())?;
//! # Ok::<(), conformance::Fault>(())
//! ```
//!
//! Both ends are in this process, on two engine threads. What is checked: connecting and listening, order and content
//! of bytes in messages of every size, partial sends, back-pressure with bounded memory, both directions at once, every
//! way in which a connection ends and the calls that wait then, wake-ups, moves between threads, many connections.

mod content;
mod ends;
mod flow;

use crate::transport::{FreeStream, Stream, Transport};
use futures_channel::oneshot;
use longhaul_engine::{Config, Handle, Thread, spawn, timeout};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Time for one check: each takes a second at most, and a lost wake-up costs all of it.
const LIMIT: Duration = Duration::from_secs(60);

/// What a transport does wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The check that it has failed.
    pub check: &'static str,
    /// In words.
    pub why: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.why)
    }
}

impl std::error::Error for Fault {}

type Result<T> = std::result::Result<T, String>;

/// The transport, and the threads of both ends. Checks run on the near one.
#[derive(Clone)]
struct Bench {
    transport: Arc<dyn Transport>,
    /// Where the far end listens.
    address: String,
    far: Handle,
    limit: Duration,
}

/// Runs a check. In a macro, since the types of asynchronous functions have no name.
macro_rules! checks {
    ($bench:expr, $near:expr, $($name:literal: $check:path,)*) => {{
        $(
            let bench = $bench.clone();
            let limit = bench.limit;
            let run = $near.spawn(move || async move { timeout(limit, $check(bench)).await });
            let late = || Err(format!("not done after {} s: a wake-up or bytes were lost", limit.as_secs_f64()));
            let result = match run.wait() {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => late(),
                Err(_) => Err("the thread has ended: it panicked, as reported above".into()),
            };
            result.map_err(|why| Fault { check: $name, why })?;
        )*
        Ok(())
    }};
}

/// Checks a transport that listens at `address`, over and over again, on engines of this configuration. An address may
/// leave a part to the transport, as port 0 of TCP does.
///
/// # Errors
/// The first fault that was found.
///
/// # Panics
/// An engine thread cannot be started.
pub fn check(
    transport: Arc<dyn Transport>,
    address: &str,
    config: &Config,
) -> std::result::Result<(), Fault> {
    check_within(LIMIT, transport, address, config)
}

/// As [`check`], with another limit of the time for each part, of a minute there.
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub fn check_within(
    limit: Duration,
    transport: Arc<dyn Transport>,
    address: &str,
    config: &Config,
) -> std::result::Result<(), Fault> {
    let start = |name| Thread::start(name, config.clone()).expect("an engine thread");
    let (near, far) = (start("near"), start("far"));
    let bench = Bench { transport, address: address.to_owned(), far: far.handle(), limit };
    checks! {
        bench, near.handle(),
        "connecting": ends::connecting,
        "one byte at a time": flow::one_byte_at_a_time,
        "vectors": flow::vectors,
        "both directions at once": flow::both_directions,
        "back-pressure": flow::back_pressure,
        "wake-ups": flow::wake_ups,
        "registered memory": flow::registered,
        "half-close": ends::half_close,
        "an end that is dropped": ends::dropped,
        "a peer that goes while a send waits": ends::dropped_during_send,
        "shutdown of waiting calls": ends::shutdown_of_waiting,
        "abandon": ends::abandon,
        "a stream that moves": ends::moved,
        "many connections": ends::many,
    }
}

/// A failure of an operation that has to succeed.
fn failed(what: &str) -> impl Fn(io::Error) -> String {
    move |e| format!("{what} failed: {e}")
}

impl Bench {
    /// So many connections, made at once: the near ends, and the far ends in the same order. The listener is gone.
    async fn connect(&self, count: usize) -> Result<(Vec<Box<dyn Stream>>, Vec<FreeStream>)> {
        let (tell, told) = oneshot::channel();
        let Bench { transport, address, far, .. } = self.clone();
        let accepting = far.spawn(move || async move {
            let listener = transport.listen(&address).map_err(failed("listening"))?;
            let _ = tell.send(listener.address().to_string());
            let mut accepted = Vec::new();
            for _ in 0..count {
                accepted.push(listener.accept().await.map_err(failed("accepting"))?.0);
            }
            Ok::<_, String>(accepted)
        });
        let Ok(at) = told.await else {
            return Err(gone(accepting.await)?.err().unwrap_or_else(|| "there is no address".into()));
        };
        let connecting = |number: usize| {
            let (transport, at) = (Arc::clone(&self.transport), at.clone());
            spawn(async move {
                let stream = transport.connect(&at).await.map_err(failed("connecting"))?;
                // In the order in which they connect, far ends may be accepted in another one.
                content::send(&*stream, content::message(&(number as u64).to_le_bytes())).await?;
                Ok::<_, String>(stream)
            })
        };
        let mut near = Vec::new();
        for task in (0..count).map(connecting).collect::<Vec<_>>() {
            near.push(task.await?);
        }
        let accepted = gone(accepting.await)??;
        let sorting = self.far.spawn(move || async move {
            let mut numbered = Vec::new();
            for free in accepted {
                let stream = free.adopt().map_err(failed("adopting"))?;
                let number = content::receive_exactly(&*stream, size_of::<u64>()).await?;
                let number = number.try_into().map_or(0, u64::from_le_bytes);
                numbered.push((number, stream.into_free().map_err(failed("moving"))?));
            }
            numbered.sort_by_key(|(number, _)| *number);
            Ok::<_, String>(numbered)
        });
        let far = gone(sorting.await)??;
        if far.iter().map(|(number, _)| *number).ne(0..count as u64) {
            return Err("the first bytes of the connections are not those that were sent".into());
        }
        Ok((near, far.into_iter().map(|(_, stream)| stream).collect()))
    }

    /// One connection: the near end, and the far one.
    async fn pair(&self) -> Result<(Box<dyn Stream>, FreeStream)> {
        let (mut near, mut far) = self.connect(1).await?;
        near.pop().zip(far.pop()).ok_or_else(|| "there is no connection".into())
    }

    /// Runs a task with a far end, at the far thread.
    fn far<T: Send + 'static, F: Future<Output = Result<T>>>(
        &self,
        stream: FreeStream,
        task: impl FnOnce(Box<dyn Stream>) -> F + Send + 'static,
    ) -> impl Future<Output = Result<T>> {
        let run =
            self.far.spawn(move || async move { task(stream.adopt().map_err(failed("adopting"))?).await });
        async { gone(run.await)? }
    }
}

fn gone<T>(result: std::result::Result<T, longhaul_engine::EngineGone>) -> Result<T> {
    result.map_err(|_| "the far thread has ended: it panicked, as reported above".into())
}
