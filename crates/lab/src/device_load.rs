//! Loads on named devices, repeated, with what the devices and the path add to a result.

use crate::Error;
use crate::emulated::{self, Link};
use futures_util::future::join_all;
use longhaul_block::{BlockDevice, signature};
use longhaul_device::Device;
use longhaul_engine::{Config, Thread};
use longhaul_initiator::RemoteDevice;
use longhaul_load::watch::{Expect, Watch, tcp_sample};
use longhaul_load::{BenchError, Job, Live, Repeated, Stop, Threads, run as run_load};
use longhaul_results::record::TcpSample;
use longhaul_results::schema;
use std::sync::Arc;
use std::time::Duration;

/// Interval of samples of the connections.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Upper bound of samples of one run, which is reached after more than an hour.
const SAMPLES_MAX: usize = 4096;

/// A load on named devices.
#[derive(Clone, Copy)]
pub struct DeviceLoad<'a> {
    /// The devices as they were opened.
    pub named: &'a [Device],
    /// The devices of the load: the same, or what they were joined to.
    pub devices: &'a [Arc<dyn BlockDevice>],
    /// Its threads.
    pub threads: &'a Threads,
    /// What to do.
    pub job: &'a Job,
    /// How often.
    pub runs: u16,
}

/// Takes the progress of one run.
pub type RunProgress<'a> = Box<dyn FnMut(&Live) + 'a>;

impl DeviceLoad<'_> {
    /// Runs the load. `progress` makes what takes the progress of each run, by its number from 1; it is
    /// dropped when the run ends. If a run fails, returns those before it with the error.
    ///
    /// # Errors
    /// The first run failed.
    pub fn run<'p>(
        &self,
        stop: &Stop,
        progress: &mut dyn FnMut(u16) -> RunProgress<'p>,
    ) -> Result<(Repeated, Option<BenchError>), BenchError> {
        let mut runs = Repeated::new();
        for number in 1..=self.runs {
            let link = Link::here();
            let watch = Watch::start();
            let mut sampler = TcpSampler::default();
            let mut shown = progress(number);
            let mut progress = |now: &Live| {
                sampler.look(watch.elapsed(), self.named);
                shown(now);
            };
            let results = run_load(self.devices, self.job, self.threads, stop, &mut progress);
            drop(shown);
            let watched = watch.end();
            let expect = link.map_or_else(Expect::default, |link| link.expect());
            let expect = expected(expect, round_trip(self.named));
            let results = match results {
                Ok(results) => results,
                Err(e) if runs.is_empty() => return Err(e),
                Err(e) => return Ok((runs, Some(e))),
            };
            runs.push(results, &watched, &expect, sampler.samples, stop.is_set());
            if stop.is_set() {
                break;
            }
        }
        Ok((runs, None))
    }
}

/// Conditions for a valid run: those of the emulated link, with the round trip measured to a
/// device. Attached and mounted devices have no measured round trip, and use that of the link.
fn expected(link: Expect, measured: Option<Duration>) -> Expect {
    Expect { round_trip: measured.or(link.round_trip), ..link }
}

/// The longest round trip to a device.
fn round_trip(named: &[Device]) -> Option<Duration> {
    let remotes = named.iter().flat_map(Device::remotes);
    remotes
        .map(|device| device.path().map_or_else(|| device.controller().round_trip.0, |path| path.plan.rtt))
        .max()
}

/// Conditions that the results depend on besides the load.
pub fn conditions(named: &[Device]) -> Vec<(String, String)> {
    let remotes = named.iter().flat_map(Device::remotes);
    let congestion = remotes.map(|device| device.controller().congestion.clone());
    let mut congestion: Vec<String> = congestion.collect();
    congestion.dedup();
    let mut found: Vec<_> = emulated::words().into_iter().collect();
    if !congestion.is_empty() {
        found.push(("congestion control of sockets".into(), congestion.join(", ")));
    }
    if let Some(rtt) = round_trip(named) {
        found.push(("round trip".into(), format!("{:.3} ms", rtt.as_secs_f64() * 1e3)));
    }
    found
}

/// The fewest I/O queues that a remote device grants, if those are fewer than `threads`, and its name.
pub fn granted(devices: &[Device], threads: usize) -> Option<(usize, String)> {
    let remotes = devices.iter().flat_map(Device::remotes);
    let remote = remotes.map(|device| (usize::from(device.controller().queues).max(1), device.info().name));
    remote.min_by_key(|(queues, _)| *queues).filter(|(queues, _)| *queues < threads)
}

/// Finds the first of `names` with a known signature on it, which a load would destroy. Unknown data,
/// as of an earlier load, does not count, nor does a device that cannot be read: the load itself
/// fails with its error.
///
/// # Errors
/// The thread that reads cannot be started.
pub fn known_content(
    names: &[String],
    named: &[Device],
    engine: Config,
) -> Result<Option<(String, signature::Content)>, Error> {
    let thread = Thread::start("longhaul-content", engine).map_err(Error::failed)?;
    let devices: Vec<Arc<dyn BlockDevice>> = named.iter().map(Device::block).collect();
    let look = async move |device: Arc<dyn BlockDevice>| {
        let io = device.open().await?;
        signature::look(&*io, &device.info()).await
    };
    let looked = thread.handle().spawn(move || async move { join_all(devices.into_iter().map(look)).await });
    let found = looked.wait().map_err(Error::failed)?;
    for (name, content) in names.iter().zip(found) {
        match content {
            Ok(content) if content.is_known() => return Ok(Some((name.clone(), content))),
            Ok(_) => {}
            Err(e) => tracing::warn!("{name}: its content cannot be checked before it is overwritten: {e}"),
        }
    }
    Ok(None)
}

/// Numbers of connections that the tuner chose on the paths, and why.
pub fn paths(devices: &[Device]) -> Vec<schema::Path> {
    let path = |device: Arc<RemoteDevice>| {
        let report = device.path()?;
        Some(schema::Path {
            device: device.info().name.clone(),
            round_trip_us: report.plan.rtt.as_secs_f64() * 1e6,
            connections: report.plan.connections,
            disconnects: device.disconnects(),
            sentence: report.sentence(),
        })
    };
    devices.iter().flat_map(Device::remotes).filter_map(path).collect()
}

/// Samples of the connections during a run.
#[derive(Default)]
struct TcpSampler {
    samples: Vec<TcpSample>,
    next: Duration,
}

impl TcpSampler {
    fn look(&mut self, at: Duration, named: &[Device]) {
        if at < self.next || self.samples.len() >= SAMPLES_MAX {
            return;
        }
        self.next = at + SAMPLE_INTERVAL;
        for device in named.iter().flat_map(Device::remotes) {
            if let Some(report) = device.path() {
                self.samples.push(tcp_sample(at, device.info().name, &report.tcp));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_load::watch::Watched;
    use longhaul_results::record::Code;

    #[test]
    fn a_load_on_what_is_attached_is_judged_by_the_link_below() {
        let ms = Duration::from_millis;
        let behind = Expect { round_trip: Some(ms(100)), ..Expect::default() };
        let seen = Watched { retransmitted: Some(0.5), ..Watched::default() };
        let codes = |expect: Expect| {
            let validity = seen.judge(&expect);
            validity.reasons.iter().map(|reason| reason.code).collect::<Vec<_>>()
        };
        let attached = expected(behind, None);
        assert_eq!(attached.round_trip, Some(ms(100)));
        assert_eq!(codes(attached), [Code::TooShort, Code::Retransmitting], "1 s is ten round trips");
        assert_eq!(expected(behind, Some(ms(7))).round_trip, Some(ms(7)), "a measurement is better");
        assert_eq!(expected(Expect::default(), None).round_trip, None);
    }
}
