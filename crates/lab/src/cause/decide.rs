//! The decision.

use super::{
    Cause, Change, Congestion, CopyMeasurements, End, Finding, GAIN_MIN, Remedy, SLOW_FILE, SLOW_LOOKUP,
    SLOW_OPERATION, Sockets, Sweep,
};
use crate::model::{Fit, Stage};

/// Share of a run in which a socket's buffer was full, above which the buffer
/// limits it.
const HELD: f64 = 0.3;
/// Share of retransmitted segments above which losses limit TCP.
const LOSS: f64 = 0.001;
/// Share of the retransmitted segments that had arrived, above which they were not
/// lost but late.
const NEEDLESS: f64 = 0.5;
/// Share of a processor that is all of it.
const BUSY: f64 = 0.9;
/// Share of the time that may go by because others have the processors before they
/// are in the way.
const LOST: f64 = 0.2;
/// Share of what a stage's remedy would bring that fewer at the same time bring,
/// from which on they are the remedy.
const CROWD: f64 = 0.4;
/// How many threads of a copy want a processor at a time, on average, if it does
/// nothing else: a thread that waits for one now and then, but mostly for a disk or
/// a network, is not slower for that.
const WANTED: f64 = 0.7;
/// Share of what the best congestion control brings that one brings which slows
/// down for losses as well, from which on losses are not what slows the copy down.
const AS_WELL: f64 = 0.5;
/// Threads that write at an agent, as many as are tried on this machine.
const AGENT_WRITERS: u32 = 16;
/// How much longer it may take with the best number of readers alone than with
/// that of both: the writers are no cause then.
const ALONE: f64 = 1.1;
/// Bounds, in orders of magnitude, of one remedy's share of the gain from more readers and writers:
/// most of it, or next to nothing.
const MOST: f64 = 0.5;
const LITTLE: f64 = 0.2;

/// Finds causes, the one that matters most first. There is always one.
pub fn diagnose(seen: &CopyMeasurements) -> Vec<Finding> {
    let mut found = Vec::new();
    threads(seen, &mut found);
    streams(seen, &mut found);
    work(seen, &mut found);
    hosts(seen, &mut found);
    if let Some((stage, gain)) = longest(seen) {
        found.extend(of_stage(seen, stage, gain));
    }
    let all = found.clone();
    let quick = quick_without_crowd(seen);
    found.retain(|finding| !all.iter().any(|cause| explains(cause, finding, quick)));
    rank(&mut found);
    found
}

/// Puts the finding first that brings most.
pub fn rank(found: &mut [Finding]) {
    let weight = |finding: &Finding| match finding.cause {
        // Nothing gets across: how fast it would be is no question yet.
        Cause::BlackHole => f64::INFINITY,
        _ => finding.gain.unwrap_or(GAIN_MIN),
    };
    found.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
}

/// Whether one thing is seen only because of another; `quick`: see
/// [`quick_without_crowd`].
fn explains(one: &Finding, other: &Finding, quick: bool) -> bool {
    use Cause::{
        BlackHole, Congestion, Interrupts, Loss, Others, PowerSaving, Processor, ReceiveBuffer, Reordering,
        SendBuffer, SlowCreate, SlowMetadata, SlowOpen, SlowRead, SlowWrite, SmallQueue, TooFewFiles,
        TooFewReaders, TooFewStreams, TooFewWriters, TooManyFiles,
    };
    let cause = &one.cause;
    match &other.cause {
        TooFewFiles | TooFewReaders | TooFewWriters => {
            matches!(cause, SlowOpen | SlowCreate | SlowMetadata(_))
        }
        TooFewStreams => matches!(
            cause,
            ReceiveBuffer | SendBuffer | Loss | SmallQueue | Reordering | Congestion | BlackHole
        ),
        Processor(end) => {
            matches!(cause, Others(other) | PowerSaving(other) | Interrupts(other) if other == end)
        }
        SlowOpen | SlowCreate if quick && *cause == TooManyFiles => true,
        // Slow because of the crowd: as fast as it is to be without it, or nearly.
        SlowOpen | SlowCreate | SlowMetadata(_) | SlowRead | SlowWrite => {
            *cause == TooManyFiles && one.gain >= other.gain.map(|gain| gain * CROWD)
        }
        _ => false,
    }
}

/// Whether fewer threads take a short time for each file: then not the storage is slow, but
/// too many threads use it.
fn quick_without_crowd(seen: &CopyMeasurements) -> bool {
    seen.threads.gain().is_some_and(|(best, _)| {
        best.value < seen.threads.now && best.seconds * f64::from(best.value) < SLOW_OPERATION * seen.files
    })
}

/// Other numbers of threads, where they were faster: the present number and the better one.
fn more_threads(seen: &CopyMeasurements) -> Option<(Change, bool, f64, String)> {
    let sweep = &seen.threads;
    let (best, gain) = sweep.gain()?;
    let (n, before) = (best.value, best.seconds * gain);
    // Which of both it is: the one that does it without the other, or most of it where
    // the other does nothing alone.
    let enough = |seconds: f64| seconds <= best.seconds * ALONE;
    let share = |seconds: f64| (before / seconds).ln() / gain.ln();
    let is_it =
        |one: f64, other: f64| enough(one) && !enough(other) || share(one) >= MOST && share(other) < LITTLE;
    let (change, after) = match seen.alone {
        [Some(reading), Some(writing)] if is_it(reading, writing) => (Change::Readers(n), reading),
        [Some(reading), Some(writing)] if is_it(writing, reading) => (Change::Writers(n), writing),
        [Some(reading), None] if enough(reading) => (Change::Readers(n), reading),
        [None, Some(writing)] if enough(writing) => (Change::Writers(n), writing),
        _ => (Change::Threads(n), best.seconds),
    };
    let evidence = format!("{before:.1} s with {} files at once, {after:.1} s with {n}", sweep.now);
    Some((change, n > sweep.now, before / after, evidence))
}

fn threads(seen: &CopyMeasurements, found: &mut Vec<Finding>) {
    let Some((change, more, gain, evidence)) = more_threads(seen) else { return };
    let cause = match (&change, more) {
        (_, false) => Cause::TooManyFiles,
        (Change::Readers(_), true) => Cause::TooFewReaders,
        (Change::Writers(_), true) => Cause::TooFewWriters,
        _ => Cause::TooFewFiles,
    };
    found.push(Finding { cause, remedy: Remedy::Copy(change), gain: Some(gain), evidence });
}

fn streams(seen: &CopyMeasurements, found: &mut Vec<Finding>) {
    let Some((best, gain)) = seen.streams.gain() else { return };
    let (n, now, before) = (best.value, seen.streams.now, best.seconds * gain);
    let cause = if n > now { Cause::TooFewStreams } else { Cause::TooManyStreams };
    let evidence = format!("{before:.1} s with {now} connections, {:.1} s with {n}", best.seconds);
    found.push(Finding { cause, remedy: Remedy::Copy(Change::Streams(n)), gain: Some(gain), evidence });
}

/// What takes processors in the copy.
fn work(seen: &CopyMeasurements, found: &mut Vec<Finding>) {
    let quick = Remedy::Copy(Change::QuickChecksum);
    for (cause, pair, what, remedy) in [
        (Cause::Checksum, seen.checksum, "the checksum", quick),
        (Cause::Encryption, seen.encryption, "encryption", Remedy::People),
    ] {
        let Some(pair) = pair.filter(|pair| pair.gain() >= GAIN_MIN) else { continue };
        let evidence = format!("{:.1} s with {what}, {:.1} s without", pair.with, pair.without);
        found.push(Finding { cause, remedy, gain: Some(pair.gain()), evidence });
    }
}

/// What takes processors besides it.
fn hosts(seen: &CopyMeasurements, found: &mut Vec<Finding>) {
    // A stage that is so many times as fast with more at the same time, on the same processors and
    // beside the same programs, waited for them no longer than that run took.
    let more = |sweep: &Sweep| sweep.gain().filter(|(best, _)| best.value > sweep.now);
    let hidden = [more(&seen.threads), more(&seen.streams)].into_iter().flatten().map(|(_, gain)| gain);
    let most = 1.0 / hidden.fold(1.0, f64::max);
    for (end, host) in [End::Source, End::Destination].into_iter().zip(seen.hosts) {
        let mut add = |cause, remedy, gain, evidence| found.push(Finding { cause, remedy, gain, evidence });
        let share = host.busiest * 100.0;
        if host.interrupts {
            let evidence = "that processor does little else".to_owned();
            add(Cause::Interrupts(end), Remedy::People, None, evidence);
        }
        let lost = host.lost.min(most);
        if lost >= LOST && host.wanted >= WANTED {
            let evidence = format!("the copy waited for them for {:.0} % of the time", lost * 100.0);
            let gain = 1.0 / (1.0 - lost.min(0.99));
            add(Cause::Others(end), Remedy::People, Some(gain), evidence);
        }
        if host.busiest < BUSY {
            continue;
        }
        if host.saves_power {
            let evidence = format!("the copy's busiest thread took {share:.0} % of a slow processor");
            add(Cause::PowerSaving(end), Remedy::Tune(end), None, evidence);
        } else {
            let evidence = format!("the copy's busiest thread took {share:.0} % of one");
            add(Cause::Processor(end), Remedy::People, None, evidence);
        }
    }
}

/// The longest stage, and what the copy gains if it takes no longer than the
/// next one, where that is known.
fn longest(seen: &CopyMeasurements) -> Option<(Stage, Option<f64>)> {
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
    // No copy takes less than one of its stages, whatever the noise of the fits.
    let without = (whole - (most - next)).max(next);
    Some((stage, (next > 0.0).then(|| (whole / without).max(1.0))))
}

/// The cause within a stage.
fn of_stage(seen: &CopyMeasurements, stage: Stage, gain: Option<f64>) -> Option<Finding> {
    let index = Stage::ALL.iter().position(|one| *one == stage)?;
    let fit = seen.stages[index].unwrap_or(seen.whole);
    let (each, for_files) = (fit.t0.value, fit.t0.value * seen.files);
    let for_bytes = fit.predict(seen.files, seen.bytes) - for_files;
    let all = for_files + for_bytes;
    let per_file = each >= SLOW_FILE && for_files > for_bytes;
    let files = format!("{:.1} ms a file, {for_files:.1} s of {all:.1} s", each * 1e3);
    let bytes = format!("{for_bytes:.1} s of {all:.1} s for the bytes alone");
    let of_people = |cause, evidence| Some(Finding { cause, remedy: Remedy::People, gain, evidence });
    let end = if stage == Stage::Read { End::Source } else { End::Destination };
    let host = seen.hosts[usize::from(end == End::Destination)];
    match stage {
        Stage::Network if per_file => of_people(Cause::NetworkPerFile, files),
        Stage::Network => network(seen, bytes),
        Stage::Read | Stage::Write if per_file => {
            let lookup = host.lookup.filter(|seconds| *seconds >= SLOW_LOOKUP);
            let (cause, evidence) = match (lookup, stage) {
                (Some(seconds), _) => {
                    let evidence = format!("{:.1} ms for the metadata of a file; {files}", seconds * 1e3);
                    (Cause::SlowMetadata(end), evidence)
                }
                (None, Stage::Read) => (Cause::SlowOpen, files),
                (None, _) => (Cause::SlowCreate, files),
            };
            // The cost of each file is hidden by many concurrent files.
            if stage == Stage::Write && seen.agent_writes {
                return Some(Finding { cause, remedy: Remedy::AgentWriters(AGENT_WRITERS), gain, evidence });
            }
            match more_threads(seen).filter(|(_, more, ..)| *more) {
                Some(_) if each * f64::from(seen.threads.now) < SLOW_OPERATION => None,
                Some((change, _, gain, _)) => {
                    Some(Finding { cause, remedy: Remedy::Copy(change), gain: Some(gain), evidence })
                }
                None => of_people(cause, evidence),
            }
        }
        Stage::Read | Stage::Write => {
            let cause = if stage == Stage::Read { Cause::SlowRead } else { Cause::SlowWrite };
            let device = host.device.map(|share| format!(", its device busy for {:.0} %", share * 100.0));
            of_people(cause, bytes + &device.unwrap_or_default())
        }
    }
}

/// Nothing but small packets gets across: there is nothing else to measure then.
pub fn black_hole() -> Finding {
    let evidence = "a few bytes get through, and full packets do not".to_owned();
    Finding { cause: Cause::BlackHole, remedy: Remedy::Tune(End::Source), gain: None, evidence }
}

/// What keeps TCP from being faster, or that the link is full.
fn network(seen: &CopyMeasurements, bytes: String) -> Option<Finding> {
    let sockets = seen.sockets.unwrap_or_default();
    let percent = |share: f64| share * 100.0;
    let finding = |cause, remedy, gain, evidence| Some(Finding { cause, remedy, gain, evidence });
    if sockets.black_hole {
        return Some(black_hole());
    }
    let other = seen.congestion.as_ref().and_then(|congestion| {
        let (name, gain) = congestion.gain()?;
        Some((name.to_owned(), gain))
    });
    // More connections help where one cannot carry the rate: their measured gain is that of a
    // remedy for the one.
    let streams = seen.streams.gain().filter(|(best, _)| best.value > seen.streams.now);
    let held = sockets.peer_window.max(sockets.send_buffer);
    if sockets.retransmitted > LOSS
        && let Some(found) = wrong_control(seen)
    {
        return Some(found);
    }
    if let Some(cause) = losses(&sockets, other.is_some() || streams.is_some()) {
        let evidence = format!("{:.2} % of the segments were retransmitted", percent(sockets.retransmitted));
        let evidence = match (&cause, sockets.at_half_rate) {
            (Cause::Reordering, _) => {
                format!("{evidence}, {:.0} % of them for nothing", percent(sockets.needless))
            }
            (_, Some(half)) => format!("{evidence}, {:.2} % at half the rate", percent(half)),
            (_, None) => evidence,
        };
        return match (other, streams) {
            (Some((name, gain)), streams) if streams.is_none_or(|(_, more)| more <= gain * ALONE) => {
                finding(cause, Remedy::Copy(Change::Congestion(name)), Some(gain), evidence)
            }
            (_, Some((best, gain))) => {
                finding(cause, Remedy::Copy(Change::Streams(best.value)), Some(gain), evidence)
            }
            _ => finding(cause, Remedy::People, None, evidence),
        };
    }
    if held >= HELD {
        let (cause, end) = if sockets.peer_window >= sockets.send_buffer {
            (Cause::ReceiveBuffer, End::Destination)
        } else {
            (Cause::SendBuffer, End::Source)
        };
        let evidence = format!("it was full for {:.0} % of the time", percent(held));
        return finding(cause, Remedy::Tune(end), streams.map(|(_, gain)| gain), evidence);
    }
    if let (Some((name, gain)), Some(congestion)) = (other, &seen.congestion) {
        return Some(other_control(congestion, &name, gain));
    }
    finding(Cause::LinkFull, Remedy::People, Some(1.0), bytes)
}

/// Another congestion control, where one that slows down for losses brings about
/// as much as the best: the losses are what the present one makes itself then.
fn wrong_control(seen: &CopyMeasurements) -> Option<Finding> {
    let congestion = seen.congestion.as_ref()?;
    let ((name, most), (_, alike)) = (congestion.gain()?, congestion.gain_of_loss_based()?);
    (alike - 1.0 >= AS_WELL * (most - 1.0)).then(|| other_control(congestion, name, most))
}

fn other_control(congestion: &Congestion, name: &str, gain: f64) -> Finding {
    let (now, before) = (&congestion.now, congestion.seconds);
    Finding {
        cause: Cause::Congestion,
        remedy: Remedy::Copy(Change::Congestion(name.to_owned())),
        gain: Some(gain),
        evidence: format!("{before:.1} s with {now}, {:.1} s with {name}", before / gain),
    }
}

/// Why segments were retransmitted, if that limits: a full link loses some, too,
/// and nothing helps it.
fn losses(sockets: &Sockets, something_helps: bool) -> Option<Cause> {
    let persists = sockets.at_half_rate.is_none_or(|share| share > LOSS);
    if sockets.retransmitted <= LOSS || !(something_helps || persists) {
        return None;
    }
    Some(match persists {
        _ if sockets.needless >= NEEDLESS => Cause::Reordering,
        true => Cause::Loss,
        false => Cause::SmallQueue,
    })
}
