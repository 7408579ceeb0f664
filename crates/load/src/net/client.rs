//! The client: requests a measurement, and takes part in it.

use super::control::{Answer, Opening, REPORT_MAX, Say, hear, say};
use super::server::StreamEnds;
use super::{Half, NetPlan, SET_UP, VERSION};
use crate::run::Stop;
use longhaul_engine::Config;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(250);
/// Timeout for the server's half of the result.
const REPORT: Duration = Duration::from_secs(30);

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The plan is beyond the limits.
    #[error("{0}")]
    Plan(String),
    /// The server cannot be reached.
    #[error("cannot reach {server}: {source}")]
    Unreachable {
        /// Address of the server.
        server: SocketAddr,
        /// The error of connecting.
        source: io::Error,
    },
    /// The server refuses the measurement.
    #[error("{server} refuses: {reason}")]
    Refused {
        /// Address of the server.
        server: SocketAddr,
        /// The reason that the server gives.
        reason: String,
    },
    /// The connection to the server ended early.
    #[error("{server} was lost: {reason}")]
    Lost {
        /// Address of the server.
        server: SocketAddr,
        /// The error of the connection.
        reason: String,
    },
    /// The caller stopped the measurement.
    #[error("stopped before its time")]
    Stopped,
}

/// Result of a measurement, from both ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Half of this end, the client.
    pub here: Half,
    /// Half of the server.
    pub there: Half,
    /// Congestion control in use on this end's streams.
    pub congestion: String,
    /// The least round trip of this end's streams before any data was sent.
    pub round_trip: Option<Duration>,
}

/// Measures a path; blocks the calling thread. `progress` gets the time since
/// the beginning, and the bytes received and sent so far.
///
/// # Errors
/// The server cannot be reached, refuses, or was lost meanwhile.
pub fn measure(
    server: SocketAddr,
    plan: &NetPlan,
    engine: &Config,
    stop: &Stop,
    progress: &mut dyn FnMut(Duration, [u64; 2]),
) -> Result<Measured, NetError> {
    plan.check().map_err(NetError::Plan)?;
    let control = connect(server)?;
    let time = longhaul_engine::wall_time().as_nanos() as u64;
    let token = crate::pattern::mix(time ^ u64::from(std::process::id()) << 32);
    let lost = |e: io::Error| NetError::Lost { server, reason: e.to_string() };
    say(&control, &Opening::Control { version: VERSION, token, plan: plan.clone() }).map_err(lost)?;
    let Answer::Accepted { .. } = answer(server, &control, SET_UP)? else { return Err(unexpected(server)) };
    let mut ends = StreamEnds::new(engine, plan.connections()).map_err(lost)?;
    for index in 0..plan.streams {
        for client_sends in [plan.way.sends().then_some(true), plan.way.receives().then_some(false)] {
            let Some(client_sends) = client_sends else { continue };
            let socket = connect(server)?;
            say(&socket, &Opening::Stream { token, index, client_sends }).map_err(lost)?;
            ends.add(socket, index, client_sends, plan);
        }
    }
    let Answer::Ready = answer(server, &control, 2 * SET_UP)? else { return Err(unexpected(server)) };
    say(&control, &Say::Go).map_err(lost)?;
    let start = ends.begin();
    while start.elapsed() < plan.length() {
        std::thread::sleep(TICK.min(plan.length().saturating_sub(start.elapsed())));
        if stop.is_set() {
            return Err(NetError::Stopped);
        }
        progress(start.elapsed(), [ends.counts[0].load(Relaxed), ends.counts[1].load(Relaxed)]);
    }
    say(&control, &Say::Stop).map_err(lost)?;
    // The server's receivers end our senders.
    let there = match answer(server, &control, REPORT)? {
        Answer::Report { half } => *half,
        _ => return Err(unexpected(server)),
    };
    let here = ends.finish().map_err(|reason| NetError::Lost { server, reason })?;
    let looks = here.sent.iter().chain(&there.sent).flat_map(|stream| &stream.looks);
    let least = looks.filter_map(|look| look.min_rtt_us).fold(f64::INFINITY, f64::min);
    let round_trip = least.is_finite().then(|| Duration::from_secs_f64(least / 1e6));
    let sent = here.sent.iter().chain(&there.sent).map(|stream| stream.congestion.clone());
    let congestion = sent.into_iter().next().unwrap_or_default();
    Ok(Measured { here, there, congestion, round_trip })
}

fn unexpected(server: SocketAddr) -> NetError {
    NetError::Lost { server, reason: "it says something that does not belong here".into() }
}

fn connect(server: SocketAddr) -> Result<TcpStream, NetError> {
    let unreachable = |source| NetError::Unreachable { server, source };
    let socket = TcpStream::connect_timeout(&server, SET_UP).map_err(unreachable)?;
    socket.set_nodelay(true).map_err(unreachable)?;
    Ok(socket)
}

fn answer(server: SocketAddr, control: &TcpStream, patience: Duration) -> Result<Answer, NetError> {
    match hear(control, REPORT_MAX, patience) {
        Ok(Some(Answer::Refused { reason })) => Err(NetError::Refused { server, reason }),
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(NetError::Lost { server, reason: "it closed the connection".into() }),
        Err(e) => Err(NetError::Lost { server, reason: e.to_string() }),
    }
}
