//! An emulated long link as the place of a measurement.

use crate::setup::{Place, Setup};
use anyhow::{Context, Result, bail};
use longhaul_wan::{Change, Conditions, Namespace, Statistics, Wan, WanPlan};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A measurement during which the emulator was late is made again, so often at
/// most.
const ATTEMPTS: u32 = 4;

/// What 99 % of packets may be late: a fiftieth of the round trip, but what a
/// scheduler does to short ones.
const LATE_SHARE: f64 = 0.02;
const LATE_LEAST: Duration = Duration::from_micros(250);

/// Both ends of an emulated link, or of a star of them.
pub(crate) struct Link {
    wan: Wan,
    rtt: Duration,
    /// Measurements that were thrown away.
    void: AtomicU32,
}

impl Link {
    /// One link, or a star with `servers`.
    pub(crate) fn start(conditions: Conditions, servers: Option<usize>) -> Result<Link> {
        Link::of(WanPlan { star: servers, ..WanPlan::new(WanPlan::unique_name("bench"), conditions) })
    }

    /// The same with the packets of Ethernet as it is set up by default: of 1500 bytes.
    pub(crate) fn ethernet(conditions: Conditions, servers: Option<usize>) -> Result<Link> {
        let plan = WanPlan::new(WanPlan::unique_name("bench"), conditions);
        Link::of(WanPlan { star: servers, mtu: 1500, ..plan })
    }

    fn of(plan: WanPlan) -> Result<Link> {
        let rtt = plan.conditions.rtt();
        // The same losses in each run.
        let plan = WanPlan { seed: Some(1), ..plan };
        Ok(Link { wan: Wan::start(plan)?, rtt, void: AtomicU32::new(0) })
    }

    /// `setup` with the target behind link `index` (from 1), and windows of
    /// measurement long enough for it.
    pub(crate) fn setup(&self, setup: &Setup, index: usize) -> Setup {
        Setup {
            target: Place::within(self.wan.server(index), self.wan.server_address(index)),
            load: Place::within(self.wan.client(), self.wan.client_address(index)),
            ramp: setup.ramp.max(RAMP_LEAST) + RAMP_ROUND_TRIPS * self.rtt,
            runtime: setup.runtime.max(WINDOW_LEAST) + WINDOW_ROUND_TRIPS * self.rtt,
            ..setup.clone()
        }
    }

    pub(crate) fn set(&self, change: &Change) -> Result<()> {
        Ok(self.wan.set_all(change)?)
    }

    /// The same of one link, from 1.
    pub(crate) fn set_one(&self, index: usize, change: &Change) -> Result<()> {
        Ok(self.wan.set(index, change)?)
    }

    /// The namespace of a server, and of the client.
    pub(crate) fn server(&self, index: usize) -> &Namespace {
        self.wan.server(index)
    }

    pub(crate) fn client(&self) -> &Namespace {
        self.wan.client()
    }

    /// The addresses at the ends of a link.
    pub(crate) fn server_address(&self, index: usize) -> Ipv4Addr {
        self.wan.server_address(index)
    }

    pub(crate) fn client_address(&self, index: usize) -> Ipv4Addr {
        self.wan.client_address(index)
    }

    /// The traffic since the last measurement began.
    pub(crate) fn statistics(&self) -> Result<Statistics> {
        Ok(self.wan.statistics()?)
    }

    pub(crate) fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Measures once the emulator is on time; says if it never was.
    pub(crate) fn on_time<T>(&self, mut measure: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            self.wan.take_statistics()?;
            let measured = measure()?;
            let statistics = self.wan.take_statistics()?;
            match self.unfit(&statistics) {
                None => return Ok(measured),
                Some(why) => {
                    eprintln!("  thrown away: {why}");
                    self.void.fetch_add(1, Relaxed);
                }
            }
        }
        bail!("the emulated link was late {ATTEMPTS} times in a row: this machine is too busy to measure")
    }

    /// Measures once; returns whether the emulator was on time, too.
    pub(crate) fn once<T>(&self, measure: impl FnOnce() -> Result<T>) -> Result<(T, bool)> {
        self.wan.take_statistics()?;
        let measured = measure()?;
        Ok((measured, self.unfit(&self.wan.take_statistics()?).is_none()))
    }

    fn unfit(&self, statistics: &Statistics) -> Option<String> {
        let late = statistics.late_p99();
        if statistics.lost_here() > 0 {
            Some(format!("the emulator lost {} packets", statistics.lost_here()))
        } else if late > LATE_LEAST.max(self.rtt.mul_f64(LATE_SHARE)) {
            Some(format!("1 % of packets were over {late:?} late"))
        } else {
            None
        }
    }

    /// The same where the machine is part of the question: a measurement whose emulator is late
    /// again counts. Returns whether it was on time.
    pub(crate) fn mostly_on_time<T>(&self, mut measure: impl FnMut() -> Result<T>) -> Result<(T, bool)> {
        let mut last = None;
        for _ in 0..2 {
            self.wan.take_statistics()?;
            let measured = measure()?;
            let late = self.unfit(&self.wan.take_statistics()?).is_some();
            last = Some((measured, late));
            if !late {
                break;
            }
        }
        last.context("nothing was measured")
    }

    /// Measurements that were thrown away so far.
    pub(crate) fn void(&self) -> u32 {
        self.void.load(Relaxed)
    }
}

/// TCP needs tens of round trips to fill a long path, and cubic more where the
/// queue overflows first; all subjects get the same time for it.
const RAMP_LEAST: Duration = Duration::from_millis(700);
const RAMP_ROUND_TRIPS: u32 = 30;
const WINDOW_LEAST: Duration = Duration::from_secs(2);
const WINDOW_ROUND_TRIPS: u32 = 10;

/// A rate for people, in the table's unit.
pub(crate) fn rate(bits_per_second: u64) -> String {
    format!("{} Gb/s", bits_per_second as f64 / 1e9)
}

/// A round trip for people.
pub(crate) fn round_trip(rtt: Duration) -> String {
    format!("{} ms", rtt.as_secs_f64() * 1e3)
}
