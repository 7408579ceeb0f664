//! Command-line arguments for the conditions of a link.

use crate::arguments::{parse_bytes, parse_time};
use crate::exit::Failure;
use longhaul_block::units::{parse_rate, parse_share};
use longhaul_wan::{Change, LinkDirection, Queue};
use std::time::Duration;

/// Conditions of a link: initial ones, or those to change to.
#[derive(Debug, clap::Args)]
pub(crate) struct ConditionArgs {
    /// Round-trip time, half of it in each direction
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) rtt: Option<Duration>,
    /// Rate in each direction, IP headers included, or 0 for no limit
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// Share of packets lost in each direction
    #[arg(long, value_name = "SHARE", value_parser = share)]
    loss: Option<f64>,
    /// Variation of the delay, plus and minus, without reordering
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    jitter: Option<Duration>,
    /// Queue of the link: a size, a time, bandwidth-delay products (0.1bdp), or auto
    #[arg(long, value_name = "QUEUE", value_parser = queue)]
    queue: Option<Queue>,
    /// Share of packets delayed, so that later ones overtake them
    #[arg(long, value_name = "SHARE", value_parser = share)]
    reorder: Option<f64>,
    /// Delay of reordered packets [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    reorder_by: Option<Duration>,
    /// Share of packets duplicated
    #[arg(long, value_name = "SHARE", value_parser = share)]
    duplicate: Option<f64>,
    /// Delay of the duplicate after the original [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    duplicate_after: Option<Duration>,
    /// Drop larger packets without an ICMP error (a PMTU black hole), or 0 for none
    #[arg(long, value_name = "BYTES")]
    black_hole: Option<u32>,
}

impl ConditionArgs {
    pub(crate) fn change(&self) -> Change {
        Change {
            direction: None,
            rtt: self.rtt,
            jitter: self.jitter,
            rate: self.rate,
            queue: self.queue,
            loss: self.loss,
            reorder: self.reorder,
            reorder_by: self.reorder_by,
            duplicate: self.duplicate,
            duplicate_after: self.duplicate_after,
            black_hole: self.black_hole,
            cut: None,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  longhaul wan set wan --rtt 100ms --loss 1%
  longhaul wan set wan --cut --direction back
  longhaul wan set wan --restore")]
pub(crate) struct SetArgs {
    /// Path to change
    pub(crate) name: String,
    /// Change one link only, by its number from 1
    #[arg(long, value_name = "I")]
    pub(crate) link: Option<usize>,
    /// Change one direction only: there (client to server) or back
    #[arg(long, value_name = "WAY", value_parser = direction)]
    direction: Option<LinkDirection>,
    /// Cut the link: packets under way are lost, and none pass
    #[arg(long, conflicts_with = "restore")]
    cut: bool,
    /// Restore a link that was cut
    #[arg(long)]
    restore: bool,
    #[command(flatten)]
    conditions: ConditionArgs,
}

impl SetArgs {
    pub(crate) fn change(&self) -> Result<Change, Failure> {
        let cut = (self.cut || self.restore).then_some(self.cut);
        let change = Change { cut, ..self.conditions.change() };
        if change == Change::default() {
            return Err(Failure::usage("nothing to change: name a condition, --cut or --restore"));
        }
        Ok(Change { direction: self.direction, ..change })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Path to show [default: all]
    pub(crate) name: Option<String>,
    /// Reset the counters
    #[arg(long)]
    pub(crate) reset: bool,
}

fn rate(text: &str) -> Result<u64, String> {
    parse_rate(text).map_err(|e| e.to_string())
}

fn share(text: &str) -> Result<f64, String> {
    parse_share(text).ok_or_else(|| format!("'{text}' is not a share, such as 0.1%"))
}

fn direction(text: &str) -> Result<LinkDirection, String> {
    match text {
        "there" => Ok(LinkDirection::There),
        "back" => Ok(LinkDirection::Back),
        _ => Err(format!("'{text}' is neither there nor back")),
    }
}

/// A size in bytes, unless its unit is one of time: `5ms`, `1s`, or products.
fn queue(text: &str) -> Result<Queue, String> {
    if text == "auto" {
        return Ok(Queue::Auto);
    }
    if let Some(number) = text.strip_suffix("bdp") {
        let products = number.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        return products.map(Queue::Products).ok_or_else(|| format!("'{text}' is not a number of products"));
    }
    if text.ends_with('s') {
        return parse_time(text).map(Queue::Time);
    }
    parse_bytes(text).map(Queue::Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_a_size_a_time_or_a_product() {
        assert_eq!(queue("250KiB"), Ok(Queue::Bytes(250 << 10)));
        assert_eq!(queue("1500"), Ok(Queue::Bytes(1500)));
        assert_eq!(queue("5ms"), Ok(Queue::Time(Duration::from_millis(5))));
        assert_eq!(queue("0.1bdp"), Ok(Queue::Products(0.1)));
        assert_eq!(queue("auto"), Ok(Queue::Auto));
        for wrong in ["-1bdp", "bdp", "much", "nanbdp"] {
            assert!(queue(wrong).is_err(), "{wrong}");
        }
    }
}
