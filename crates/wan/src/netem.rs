//! Links emulated by the kernel (netem), where the kernel has it.
//!
//! ```text
//! client wan1 --veth-- c1 [bridge br1] s1 --veth-- wan1 server
//! ```
//!
//! Both devices of the bridge, in a namespace between the ends, delay the packets that
//! they send. So TCP at the ends detects a full queue by loss, as behind a real router,
//! and not by back-pressure of its own host.
//!
//! netem does not emulate all of the model ([`unsupported`]), counts all drops
//! together, and does not measure lateness.

use crate::conditions::{Conditions, DirectionConditions};
use crate::error::Error;
use crate::netns::Namespace;
use crate::setup::{self, LinkEnd};
use crate::statistics::DirectionStatistics;
use crate::wan::lock;
use std::io;
use std::process::Command;
use std::sync::Mutex;

/// Limit of queued packets without a rate: those of 9000 bytes that arrive in a second
/// at 10 Gb/s.
const UNLIMITED: u64 = 140_000;

/// Lower limit of its queue, in packets: TCP cannot start with fewer.
const FEWEST: u64 = 4;

/// Whether the kernel has netem; tried in a namespace of this process.
pub(crate) fn works(namespace: &Namespace) -> bool {
    tc(namespace, "qdisc add dev lo root netem delay 1ms").is_ok()
        && tc(namespace, "qdisc del dev lo root").is_ok()
}

/// The condition that netem cannot emulate, if there is one.
pub(crate) fn unsupported(conditions: &Conditions) -> Option<&'static str> {
    [&conditions.there, &conditions.back].into_iter().find_map(|way| {
        let asked = [
            (way.reorder > 0.0, "packets held back"),
            (way.duplicate > 0.0, "late duplicates"),
            (way.black_hole.is_some(), "a black hole for large packets"),
        ];
        asked.into_iter().find(|(asked, _)| *asked).map(|(_, what)| what)
    })
}

/// A link's ends within the middle namespace.
#[derive(Debug)]
pub(crate) struct NetemLink {
    middle: Namespace,
    index: usize,
    mtu: u32,
    /// Counters of replaced emulators, for both directions.
    past: Mutex<[DirectionStatistics; 2]>,
}

impl NetemLink {
    /// Joins client and server by a bridge in `middle`.
    pub(crate) fn make(
        middle: &Namespace,
        ends: [&Namespace; 2],
        index: usize,
        mtu: u32,
        conditions: &Conditions,
    ) -> Result<NetemLink, Error> {
        let device = setup::device(index);
        let mut commands = vec![format!("link add br{index} mtu {mtu} type bridge")];
        for (port, end) in [format!("c{index}"), format!("s{index}")].iter().zip(ends) {
            // One packet of the wire each, or netem would count and lose up to
            // 64 KiB as one.
            commands.push(format!(
                "link add {port} mtu {mtu} gso_max_segs 1 type veth \
                 peer name {device} mtu {mtu} gso_max_segs 1 netns {}",
                end.name()
            ));
            commands.push(format!("link set {port} master br{index} up"));
        }
        commands.push(format!("link set br{index} up"));
        setup::ip(middle, &commands)?;
        for (namespace, end) in ends.iter().zip([LinkEnd::Client, LinkEnd::Server]) {
            setup::bring_up(namespace, index, end, mtu)?;
        }
        let link = NetemLink { middle: middle.clone(), index, mtu, past: Mutex::default() };
        link.set(true, None, &conditions.there)?;
        link.set(false, None, &conditions.back)?;
        Ok(link)
    }

    /// The device that sends in this direction.
    fn port(&self, there: bool) -> String {
        format!("{}{}", if there { 's' } else { 'c' }, self.index)
    }

    /// Sets a direction that had the conditions `before`, if it had any.
    pub(crate) fn set(
        &self,
        there: bool,
        before: Option<&DirectionConditions>,
        way: &DirectionConditions,
    ) -> Result<(), Error> {
        let port = self.port(there);
        // netem keeps a rate that a change does not name, and the packets on their way: to remove a
        // rate, the queue is replaced by a new one, which is empty.
        let anew =
            |old: &DirectionConditions| way.rate.is_none() && old.rate.is_some() || way.cut && !old.cut;
        let verb = match before {
            None => "add",
            Some(old) if anew(old) => {
                let counted = self.statistics(there)?;
                tc(&self.middle, &format!("qdisc del dev {port} root"))?;
                lock(&self.past)[usize::from(!there)] = counted;
                "add"
            }
            Some(_) => "change",
        };
        tc(&self.middle, &format!("qdisc {verb} dev {port} root netem {}", words(way, self.mtu))).map(drop)
    }

    /// Counters of a direction, since it was made.
    pub(crate) fn statistics(&self, there: bool) -> Result<DirectionStatistics, Error> {
        let text = tc(&self.middle, &format!("-s -j qdisc show dev {}", self.port(there)))?;
        let now = parse(&text).unwrap_or_default();
        Ok(now.and(&lock(&self.past)[usize::from(!there)]))
    }
}

/// The parameters of netem for a direction.
fn words(way: &DirectionConditions, mtu: u32) -> String {
    let micros = |time: std::time::Duration| format!("{}us", time.as_micros());
    let limit = match (way.rate, way.queue_bytes()) {
        (Some(rate), Some(queue)) => {
            let flying = u128::from(rate) * way.delay.as_nanos() / 8_000_000_000;
            let bytes = u64::try_from(flying).unwrap_or(u64::MAX).saturating_add(queue);
            bytes.div_ceil(mtu.into()).max(FEWEST)
        }
        _ => UNLIMITED,
    };
    let mut words = format!("limit {} delay {}", limit.min(u32::MAX.into()), micros(way.delay));
    if !way.jitter.is_zero() {
        words += &format!(" {}", micros(way.jitter));
    }
    let loss = if way.cut { 1.0 } else { way.loss };
    if loss > 0.0 {
        words += &format!(" loss random {}%", loss * 100.0);
    }
    if let Some(rate) = way.rate {
        words += &format!(" rate {rate}bit");
    }
    words
}

/// Parses the counters of the emulator from `tc -s -j qdisc show`.
fn parse(text: &str) -> Option<DirectionStatistics> {
    let all: serde_json::Value = serde_json::from_str(text).ok()?;
    let netem = all.as_array()?.iter().find(|qdisc| qdisc["kind"] == "netem")?;
    let number = |name: &str| netem[name].as_u64().unwrap_or(0);
    let (packets, bytes, drops) = (number("packets"), number("bytes"), number("drops"));
    Some(DirectionStatistics {
        packets_in: packets + drops,
        packets_out: packets,
        bytes_in: bytes,
        bytes_out: bytes,
        dropped_queue: drops,
        ..DirectionStatistics::default()
    })
}

fn tc(namespace: &Namespace, command: &str) -> Result<String, Error> {
    let failed = |why: io::Error| Error::system(format!("tc {command}"))(why);
    let output = Command::new("tc")
        .args(["-n", namespace.name()])
        .args(command.split_whitespace())
        .output()
        .map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn netem_parameters_of_a_direction() {
        let ms = Duration::from_millis;
        let mut way = DirectionConditions {
            delay: ms(50),
            rate: Some(1_000_000_000),
            ..DirectionConditions::default()
        };
        // 6.25 MB under way, and 12.5 MB in the queue.
        assert_eq!(words(&way, 9000), "limit 2084 delay 50000us rate 1000000000bit");
        way = DirectionConditions { loss: 0.001, jitter: ms(2), rate: None, ..way };
        assert_eq!(words(&way, 9000), "limit 140000 delay 50000us 2000us loss random 0.1%");
        way.cut = true;
        assert!(words(&way, 9000).ends_with("loss random 100%"));
    }

    #[test]
    fn conditions_that_netem_cannot_emulate_are_reported() {
        let mut conditions = Conditions::default();
        assert_eq!(unsupported(&conditions), None);
        conditions.back.black_hole = Some(1500);
        assert_eq!(unsupported(&conditions), Some("a black hole for large packets"));
    }

    #[test]
    fn counters_are_read() {
        let text = r#"[{"kind":"netem","handle":"8001:","root":true,"bytes":5000,"packets":7,"drops":3}]"#;
        let stats = parse(text).unwrap();
        assert_eq!((stats.packets_in, stats.packets_out, stats.dropped()), (10, 7, 3));
        assert_eq!(parse("[]"), None);
    }
}
