//! Which cause keeps a copy from being faster, what to do about it, and how much
//! that brings.
//!
//! [`diagnose`] is given what was measured ([`Seen`]): the copy and its stages
//! alone, each fitted by [`crate::model`], the same copy with more and with less
//! at the same time, and what the sockets and the hosts say. It finds causes
//! that explain it and predicts for each the time that the copy would take
//! without it. The one that brings most is named first.
//!
//! Predictions come from measurements alone: what a remedy brings is what a run
//! with it took, or else the time by which the slowest stage exceeds the next
//! one.

use crate::model::{Fit, Stage};
use std::fmt;

/// Seconds a file above which opening or creating it is slow: a local file
/// system takes a tenth of it.
pub const SLOW_FILE: f64 = 0.002;
/// Less than this gain is not worth a change, and within the noise of runs.
pub const GAIN_MIN: f64 = 1.1;
/// Share of a run in which a socket's buffer was full, above which the buffer
/// limits it.
const HELD: f64 = 0.3;
/// Share of segments sent again above which losses limit TCP.
const LOSS: f64 = 0.001;
/// Share of a processor that is all of it.
const BUSY: f64 = 0.9;
/// Share of the processors that others may use before they are in the way.
const OTHERS: f64 = 0.4;

/// An end of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where it is read.
    Source,
    /// Where it is written.
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Source => "source",
            End::Destination => "destination",
        })
    }
}

/// A run with another number of something at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// How many.
    pub value: u32,
    /// Seconds that it took.
    pub seconds: f64,
}

/// The same number now, and others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// How many there are now.
    pub now: u32,
    /// Runs, that of now among them.
    pub tried: Vec<Tried>,
}

impl Sweep {
    /// The fewest that are within 3 % of the best.
    fn best(&self) -> Option<Tried> {
        let least = self.tried.iter().map(|tried| tried.seconds).fold(f64::INFINITY, f64::min);
        let good = self.tried.iter().filter(|tried| tried.seconds <= least * 1.03);
        good.min_by_key(|tried| tried.value).copied()
    }

    fn now(&self) -> Option<Tried> {
        self.tried.iter().find(|tried| tried.value == self.now).copied()
    }

    /// The best and what it gains, if that is worth it.
    fn gain(&self) -> Option<(Tried, f64)> {
        let (best, now) = (self.best()?, self.now()?);
        let gain = now.seconds / best.seconds;
        (best.value != now.value && gain >= GAIN_MIN).then_some((best, gain))
    }
}

/// What the sockets of the network stage said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sockets {
    /// Share of segments sent again.
    pub retransmitted: f64,
    /// Share of the time in which the receiver's window was full.
    pub peer_window: f64,
    /// Share of the time in which the sender's buffer was full.
    pub send_buffer: f64,
    /// Large packets vanish: only small ones get through.
    pub black_hole: bool,
}

/// What a host said during the whole copy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostSeen {
    /// Share of one processor that the busiest thread of the copy took.
    pub busiest: f64,
    /// Share of all processors that others took.
    pub others: f64,
    /// Its processors save power.
    pub saves_power: bool,
    /// One processor serves all interrupts of the network, and has no time
    /// left.
    pub interrupts: bool,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Files of the copy.
    pub files: f64,
    /// Its bytes.
    pub bytes: f64,
    /// The copy as it is.
    pub whole: Fit,
    /// Its stages alone, in the order of [`Stage::ALL`], where they were
    /// measured.
    pub stages: [Option<Fit>; 3],
    /// Files at the same time.
    pub files_at_once: Sweep,
    /// Connections.
    pub streams: Sweep,
    /// Seconds with and without checksums of the strength that is in use.
    pub checksum: Option<(f64, f64)>,
    /// Seconds with and without encryption.
    pub encryption: Option<(f64, f64)>,
    /// The network stage's sockets.
    pub sockets: Option<Sockets>,
    /// The hosts: source and destination.
    pub hosts: [HostSeen; 2],
}

/// What is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Finding and opening files.
    SlowOpen,
    /// Reading their bytes.
    SlowRead,
    /// Creating files.
    SlowCreate,
    /// Writing their bytes.
    SlowWrite,
    /// The network carries no more.
    LinkFull,
    /// Something on the way costs time for each file.
    NetworkPerFile,
    /// TCP's receive buffer at the destination.
    ReceiveBuffer,
    /// TCP's send buffer at the source.
    SendBuffer,
    /// Packets are lost.
    Loss,
    /// Large packets vanish.
    BlackHole,
    /// Checksums.
    Checksum,
    /// Encryption.
    Encryption,
    /// A processor, all of it.
    Processor(End),
    /// Other programs on a host.
    Others(End),
    /// A host saves power.
    PowerSaving(End),
    /// Interrupts on one processor.
    Interrupts(End),
    /// Fewer files at the same time than it takes.
    TooFewFiles(u32),
    /// More than is good.
    TooManyFiles(u32),
    /// Fewer connections than it takes.
    TooFewStreams(u32),
    /// More than is good.
    TooManyStreams(u32),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::SlowOpen => f.write_str("the source is slow to open files"),
            Cause::SlowRead => f.write_str("the source's storage is read as fast as it goes"),
            Cause::SlowCreate => f.write_str("the destination is slow to create files"),
            Cause::SlowWrite => f.write_str("the destination's storage is written as fast as it goes"),
            Cause::LinkFull => f.write_str("the network carries no more"),
            Cause::NetworkPerFile => f.write_str("each file costs time on the network"),
            Cause::ReceiveBuffer => {
                f.write_str("TCP's receive buffer at the destination is too small for the path")
            }
            Cause::SendBuffer => f.write_str("TCP's send buffer at the source is too small for the path"),
            Cause::Loss => f.write_str("packets are lost on the way, and TCP slows down for each of them"),
            Cause::BlackHole => f.write_str("large packets vanish on the way (an MTU black hole)"),
            Cause::Checksum => f.write_str("the checksum takes a processor, all of it"),
            Cause::Encryption => f.write_str("encryption takes a processor, all of it"),
            Cause::Processor(end) => write!(f, "a processor of the {end} has no time left"),
            Cause::Others(end) => write!(f, "other programs take the {end}'s processors"),
            Cause::PowerSaving(end) => write!(f, "the {end}'s processors save power"),
            Cause::Interrupts(end) => {
                write!(f, "one processor of the {end} serves all interrupts of the network")
            }
            Cause::TooFewFiles(_) => f.write_str("too few files are under way at the same time"),
            Cause::TooManyFiles(_) => f.write_str("too many files are under way at the same time"),
            Cause::TooFewStreams(_) => f.write_str("too few connections share the path"),
            Cause::TooManyStreams(_) => f.write_str("too many connections share the path"),
        }
    }
}

impl Cause {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Cause::SlowOpen => {
                "read more files at the same time (--readers), or bring metadata nearer".into()
            }
            Cause::SlowCreate => {
                "write more files at the same time (--writers), or bring metadata nearer".into()
            }
            Cause::SlowRead | Cause::SlowWrite => {
                "use faster storage there, or stripe it over more devices".into()
            }
            Cause::LinkFull => "nothing but a faster network, or less data (sync in place of cp)".into(),
            Cause::NetworkPerFile => {
                "use an agent of this version at the other end: it waits for no file".into()
            }
            Cause::ReceiveBuffer => "let tcp_rmem grow at the destination: longhaul tune apply there".into(),
            Cause::SendBuffer => "let tcp_wmem grow at the source: longhaul tune apply there".into(),
            Cause::Loss => {
                "use a congestion control that bears losses (--congestion bbr), and find what loses them"
                    .into()
            }
            Cause::BlackHole => {
                "let TCP probe for the size that gets through (net.ipv4.tcp_mtu_probing=1)".into()
            }
            Cause::Checksum => "use the quick checksum (--checksum xxh3)".into(),
            Cause::Encryption => "leave encryption out where the network is trusted".into(),
            Cause::Processor(_) => {
                "spread it over more connections and threads, or use a faster processor".into()
            }
            Cause::Others(end) => format!("move the other programs off the {end}"),
            Cause::PowerSaving(end) => {
                format!("use the governor 'performance' on the {end}: longhaul tune apply there")
            }
            Cause::Interrupts(end) => {
                format!("spread the interrupts of the network over the {end}'s processors (irqbalance, RPS)")
            }
            Cause::TooFewFiles(best) | Cause::TooManyFiles(best) => {
                format!("use --readers {best} --writers {best}")
            }
            Cause::TooFewStreams(best) | Cause::TooManyStreams(best) => format!("use --streams {best}"),
        }
    }
}

/// A cause, and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What it is.
    pub cause: Cause,
    /// How many times as fast the copy would be without it, where that can be
    /// told; 1 where nothing can be gained.
    pub gain: Option<f64>,
    /// What shows it.
    pub evidence: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.cause, self.evidence, self.cause.remedy())?;
        match self.gain {
            Some(gain) if gain >= GAIN_MIN => write!(f, "; {gain:.1} times as fast is to be expected"),
            Some(_) => f.write_str("; nothing else would make it faster"),
            None => f.write_str("; how much that brings cannot be told beforehand"),
        }
    }
}

/// Finds causes, the one that matters most first. There is always one.
pub fn diagnose(seen: &Seen) -> Vec<Finding> {
    let mut found = Vec::new();
    sweeps(seen, &mut found);
    work(seen, &mut found);
    let stage = longest(seen);
    if let Some((stage, gain)) = stage {
        found.push(of_stage(seen, stage, gain));
    }
    // What was tried and brought most is surest; a stage that is slow for each
    // file is the reason why many at once help, and is named before that.
    let weight = |finding: &Finding| match (finding.cause, finding.gain) {
        (Cause::BlackHole, _) => f64::INFINITY,
        (Cause::SlowOpen | Cause::SlowCreate, Some(gain)) => gain * 10.0,
        (Cause::ReceiveBuffer | Cause::SendBuffer | Cause::Loss, gain) => gain.unwrap_or(GAIN_MIN) * 10.0,
        (_, gain) => gain.unwrap_or(GAIN_MIN),
    };
    found.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    found
}

/// What was tried and was faster.
fn sweeps(seen: &Seen, found: &mut Vec<Finding>) {
    for (sweep, what) in [(&seen.files_at_once, "files at once"), (&seen.streams, "connections")] {
        let (Some((best, gain)), Some(now)) = (sweep.gain(), sweep.now()) else { continue };
        let (more, n) = (best.value > now.value, best.value);
        let cause = match (what, more) {
            ("connections", true) => Cause::TooFewStreams(n),
            ("connections", false) => Cause::TooManyStreams(n),
            (_, true) => Cause::TooFewFiles(n),
            (_, false) => Cause::TooManyFiles(n),
        };
        let evidence =
            format!("{:.1} s with {} {what}, {:.1} s with {n}", now.seconds, now.value, best.seconds);
        found.push(Finding { cause, gain: Some(gain), evidence });
    }
}

/// What takes processors.
fn work(seen: &Seen, found: &mut Vec<Finding>) {
    for (cause, runs, what) in
        [(Cause::Checksum, seen.checksum, "checksum"), (Cause::Encryption, seen.encryption, "encryption")]
    {
        let Some((with, without)) = runs else { continue };
        if with / without >= GAIN_MIN {
            let evidence = format!("{with:.1} s with {what}, {without:.1} s without");
            found.push(Finding { cause, gain: Some(with / without), evidence });
        }
    }
    for (end, host) in [End::Source, End::Destination].into_iter().zip(seen.hosts) {
        let others = host.others >= OTHERS;
        if host.interrupts {
            let evidence = "that processor is busy with nothing else".to_owned();
            found.push(Finding { cause: Cause::Interrupts(end), gain: None, evidence });
        }
        if host.busiest < BUSY && !others {
            continue;
        }
        let share = host.busiest * 100.0;
        if host.saves_power {
            let evidence = format!("the copy's busiest thread took {share:.0} % of a slow processor");
            found.push(Finding { cause: Cause::PowerSaving(end), gain: None, evidence });
        } else if others {
            let evidence = format!("they take {:.0} % of them", host.others * 100.0);
            let gain = 1.0 / (1.0 - host.others.min(0.9));
            found.push(Finding { cause: Cause::Others(end), gain: Some(gain), evidence });
        } else if found.is_empty() {
            let evidence = format!("the copy's busiest thread took {share:.0} % of one");
            found.push(Finding { cause: Cause::Processor(end), gain: None, evidence });
        }
    }
}

/// The longest stage, and what the copy gains if it takes no longer than the
/// next one.
fn longest(seen: &Seen) -> Option<(Stage, f64)> {
    let time = |fit: &Fit| fit.predict(seen.files, seen.bytes);
    let mut stages: Vec<(Stage, f64)> = Stage::ALL
        .into_iter()
        .zip(&seen.stages)
        .filter_map(|(stage, fit)| Some((stage, time(fit.as_ref()?))))
        .collect();
    stages.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (stage, most) = *stages.first()?;
    let next = stages.get(1).map_or(0.0, |(_, seconds)| *seconds);
    let whole = time(&seen.whole);
    let without = whole - (most - next);
    let gain = if without > 0.0 { (whole / without).max(1.0) } else { 1.0 };
    Some((stage, gain))
}

/// The cause within a stage.
fn of_stage(seen: &Seen, stage: Stage, gain: f64) -> Finding {
    let index = Stage::ALL.iter().position(|one| *one == stage).unwrap_or(0);
    let fit = seen.stages[index].unwrap_or(seen.whole);
    let (each, for_files) = (fit.t0.value, fit.t0.value * seen.files);
    let for_bytes = fit.predict(seen.files, seen.bytes) - for_files;
    let per_file = each >= SLOW_FILE && for_files > for_bytes;
    let files = format!("{:.1} ms a file, {:.1} s of {:.1} s", each * 1e3, for_files, for_files + for_bytes);
    let bytes = format!("{:.1} s of {:.1} s for the bytes alone", for_bytes, for_files + for_bytes);
    let finding = |cause, gain, evidence| Finding { cause, gain, evidence };
    match stage {
        Stage::Read if per_file => finding(Cause::SlowOpen, Some(gain), files),
        Stage::Write if per_file => finding(Cause::SlowCreate, Some(gain), files),
        Stage::Read => finding(Cause::SlowRead, Some(gain), bytes),
        Stage::Write => finding(Cause::SlowWrite, Some(gain), bytes),
        Stage::Network if per_file => finding(Cause::NetworkPerFile, Some(gain), files),
        Stage::Network => network(seen, bytes),
    }
}

fn network(seen: &Seen, bytes: String) -> Finding {
    let sockets = seen.sockets.unwrap_or_default();
    // More connections bring what one cannot: what they were seen to bring is
    // what a remedy of the one would.
    let gain = seen.streams.gain().map(|(_, gain)| gain);
    let percent = |share: f64| share * 100.0;
    let finding = |cause, evidence| Finding { cause, gain, evidence };
    if sockets.black_hole {
        return finding(Cause::BlackHole, "only small packets get through".into());
    }
    if sockets.retransmitted > LOSS {
        let evidence = format!("{:.2} % of the segments were sent again", percent(sockets.retransmitted));
        return finding(Cause::Loss, evidence);
    }
    if sockets.peer_window.max(sockets.send_buffer) >= HELD {
        let (cause, share) = if sockets.peer_window >= sockets.send_buffer {
            (Cause::ReceiveBuffer, sockets.peer_window)
        } else {
            (Cause::SendBuffer, sockets.send_buffer)
        };
        return finding(cause, format!("it was full for {:.0} % of the time", percent(share)));
    }
    Finding { cause: Cause::LinkFull, gain: Some(1.0), evidence: bytes }
}

#[cfg(test)]
mod tests;
