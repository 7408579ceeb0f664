//! Settings of a path's tuning made by hand, and those that were chosen.

use super::{IoDirection, Limit, PathPlan};
use longhaul_block::Advice;
use longhaul_block::units::{format_rate, format_size};
use longhaul_engine::net::TcpInfo;
use std::time::Duration;

/// Bytes in flight at most, a thread and direction: twice the product of
/// 10 Gb/s and 100 ms.
const IN_FLIGHT_MAX: u64 = 256 << 20;
/// Connections at most, a thread: 64 MiB each make the above many times over,
/// and 4 MiB each, what Linux allows a socket by default, 64 MiB.
const CONNECTIONS_MAX: u16 = 16;

/// Tuning of a path: a field that is `None` follows the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// Bytes to keep in flight, each direction.
    pub in_flight: Option<u64>,
    /// The most that tuning may choose for that.
    pub in_flight_max: u64,
    /// Connections of each thread that opens the device.
    pub connections: Option<u16>,
    /// The most that tuning may choose for that.
    pub connections_max: u16,
    /// Bytes at which an I/O is split into commands.
    pub io_size: Option<u32>,
    /// Bytes to read ahead of a sequential reader.
    pub read_ahead: Option<u64>,
}

impl Default for PathOptions {
    fn default() -> PathOptions {
        PathOptions {
            in_flight: None,
            in_flight_max: IN_FLIGHT_MAX,
            connections: None,
            connections_max: CONNECTIONS_MAX,
            io_size: None,
            read_ahead: None,
        }
    }
}

/// Measurements of a path, and the settings chosen for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathReport {
    /// The measurements, and the plan that follows from them.
    pub plan: PathPlan,
    /// The advice that callers get.
    pub advice: Advice,
    /// Round trip as TCP sees it at the moment, queues and all.
    pub smoothed: Duration,
    /// All connections of a thread as one, at that moment.
    pub tcp: TcpInfo,
}

impl PathReport {
    /// Bytes per second of the direction that carried most.
    pub fn rate(&self) -> f64 {
        self.plan.carried[0].max(self.plan.carried[1])
    }

    /// The direction that carried most.
    pub fn way(&self) -> IoDirection {
        if self.plan.carried[1] > self.plan.carried[0] { IoDirection::Write } else { IoDirection::Read }
    }

    /// Bytes that the path itself holds.
    pub fn bandwidth_delay_product(&self) -> u64 {
        (self.rate() * self.plan.rtt.as_secs_f64()) as u64
    }

    /// The whole in a sentence.
    pub fn sentence(&self) -> String {
        let plan = &self.plan;
        let rtt = plan.rtt.as_secs_f64() * 1e3;
        let rtt = if rtt < 10.0 { format!("{rtt:.2}") } else { format!("{rtt:.0}") };
        if self.rate() == 0.0 {
            // Before the first load, or while nothing gets through.
            return format!(
                "at {rtt} ms nothing arrived over this path lately, so its capacity is not known"
            );
        }
        let rate = format_rate(self.rate() * 8.0);
        let way = self.way();
        // Nothing kept more in flight from bringing more.
        let can = if plan.full[way as usize] { "can carry" } else { "carried" };
        let limit = match plan.limit {
            Some(Limit::Hosts) => {
                return format!(
                    "at {rtt} ms {rate} came through this path, which did not limit it: nothing queued and \
                     nothing was lost; {} does; 1 connection and {} in flight chosen",
                    Limit::Hosts,
                    format_size(plan.in_flight[way as usize])
                );
            }
            Some(limit) => format!("a connection is limited by {limit}"),
            None if plan.full[way as usize] && plan.connections == 1 => "one connection fills it".into(),
            None if plan.full[way as usize] => "they fill it".into(),
            None => "the load was too small to find its limit".into(),
        };
        let chosen = match plan.connections {
            1 => "1 connection".into(),
            n => format!("{n} connections"),
        };
        let bytes = format_size(plan.in_flight[way as usize]);
        format!("at {rtt} ms this path {can} {rate}; {limit}; {chosen} and {bytes} in flight chosen")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, SocketLimit};
    use super::*;

    #[test]
    fn a_path_in_a_sentence() {
        let mut plan = PathPlan {
            in_flight: [256 << 20, 4 << 20],
            connections: 8,
            rate: [1.25e9, 0.0],
            carried: [1.175e9, 0.0],
            rtt: Duration::from_millis(92),
            full: [true, false],
            limit: Some(Limit::Socket(SocketLimit { buffer: Buffer::FarSend, bytes: 4 << 20 })),
            settled: true,
        };
        let report =
            |plan| PathReport { plan, advice: Advice::LOCAL, smoothed: plan.rtt, tcp: TcpInfo::default() };
        assert_eq!(
            report(plan).sentence(),
            "at 92 ms this path can carry 9.4 Gb/s; a connection is limited by net.ipv4.tcp_wmem \
             (4 MiB in flight) on the far side; 8 connections and 256 MiB in flight chosen"
        );
        assert_eq!(report(plan).bandwidth_delay_product(), 108_100_000);
        (plan.limit, plan.connections, plan.rtt) = (None, 1, Duration::from_micros(150));
        assert_eq!(
            report(plan).sentence(),
            "at 0.15 ms this path can carry 9.4 Gb/s; one connection fills it; 1 connection and \
             256 MiB in flight chosen"
        );
        plan.full = [false; 2];
        assert!(report(plan).sentence().contains("carried 9.4 Gb/s; the load was too small"));
        plan.limit = Some(Limit::Hosts);
        assert_eq!(
            report(plan).sentence(),
            "at 0.15 ms 9.4 Gb/s came through this path, which did not limit it: nothing queued and nothing \
             was lost; the far side's device, or a processor does; 1 connection and 256 MiB in flight chosen"
        );
        plan.carried = [0.0; 2];
        assert!(report(plan).sentence().ends_with("lately, so its capacity is not known"));
    }
}
