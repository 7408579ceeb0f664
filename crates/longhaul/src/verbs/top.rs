//! `longhaul top`.

mod lines;
mod terminal;

use crate::arguments::parse_time;
use crate::events::{TopArray, TopPath, TopPool, TopRebuild, TopSample, TopSummary, TopWay, micros};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use crate::pools::PoolArgs;
use longhaul_device::arrays::{SCHEME as ARRAY, running};
use longhaul_initiator::Options;
use longhaul_pool::live::{Answer, ArrayNow, Now, PathNow, Watch, WayNow};
use longhaul_pool::{KnownPool, SCHEME, Status};
use longhaul_poolfs::{FsName, SCHEME as FILES};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use terminal::{Key, Terminal};
use uuid::Uuid;

/// Intervals shorter than this would measure the questions themselves.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest timeout of connecting to a target: one that takes longer is shown as not reachable.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// How often signals and keys are looked at.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shows the pools with their targets, and the volumes, arrays and file systems that
processes of this host run with the paths to their members: throughput, latency,
commands in flight, health, time left of a rebuild. On a terminal it is redrawn in place
until q or Ctrl-C; elsewhere each refresh is a block of lines, and an event with
--json.

Examples:
  longhaul top
  longhaul top scratch --interval 5s
  longhaul top --json --count 10")]
pub(crate) struct TopArgs {
    /// Pools [default: all that this host knows, and arrays that are in no pool]
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
    #[command(flatten)]
    refreshes: Refreshes,
    #[command(flatten)]
    access: PoolArgs,
}

/// How often what is watched is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Refreshes {
    /// Time between two refreshes
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "1s")]
    interval: Duration,
    /// End after so many refreshes [default: go on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl Refreshes {
    fn check(&self) -> Outcome {
        if self.interval < INTERVAL_MIN {
            return Err(Failure::usage("--interval is 100 ms or more"));
        }
        Ok(())
    }
}

/// What is shown of what runs here.
enum Wanted<'a> {
    /// All of these pools; all there is if none is named.
    Pools(&'a [String]),
    /// These file systems with their snapshots; all if none is named.
    Files(&'a [FsName]),
}

pub(crate) fn run(args: &TopArgs, output: Output) -> Outcome {
    args.refreshes.check()?;
    let pools = pools(args)?;
    if pools.is_empty() && running().is_empty() {
        output.note(
            "nothing to show: no pool is known to this user on this host, and no array runs here. 'longhaul pool \
             status POOL --catalog CATALOG' makes a pool known, 'longhaul pool create' makes one, and \
             'longhaul attach', 'mount' or 'target' of a volume or an array runs it",
        );
        output.event(&TopSummary { samples: 0 });
        return Ok(());
    }
    show(pools, args.access.initiator.options(), &Wanted::Pools(&args.pools), &args.refreshes, output)
}

/// `longhaul fs top`.
pub(super) fn files(names: &[FsName], refreshes: &Refreshes, output: Output) -> Outcome {
    refreshes.check()?;
    // Nothing is asked but the processes of this host.
    show(Vec::new(), Options::default(), &Wanted::Files(names), refreshes, output)
}

fn show(
    pools: Vec<KnownPool>,
    mut options: Options,
    wanted: &Wanted<'_>,
    args: &Refreshes,
    output: Output,
) -> Outcome {
    options.connect_timeout = options.connect_timeout.min(args.interval.clamp(INTERVAL_MIN * 5, CONNECT_MAX));
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&end)).map_err(Failure::failed)?;
    }
    let mut sink = match !output.is_json() && std::io::stdout().is_terminal() {
        true => Sink::Terminal(Terminal::enter().map_err(Failure::failed)?, Vec::new()),
        false if output.is_json() => Sink::Events,
        false => Sink::Lines,
    };
    let (watch, begun) = (Watch::start(pools, &options, args.interval), Instant::now());
    let view = || View::new(watch.look(), wanted, begun.elapsed());
    let mut samples = 0;
    // What is known at once is not waited for; it has no rates yet.
    if matches!(sink, Sink::Terminal(..)) {
        sink.show(&view(), output);
    }
    'on: while args.count.is_none_or(|count| samples < count) {
        let at = begun + args.interval.saturating_mul(u32::try_from(samples + 1).unwrap_or(u32::MAX));
        while let Some(rest) = at.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            if end.load(Ordering::Relaxed)
                || output.is_closed()
                || sink.wait(rest.min(LOOK)) == Some(Key::Quit)
            {
                break 'on;
            }
        }
        sink.show(&view(), output);
        samples += 1;
    }
    sink.end(output);
    output.event(&TopSummary { samples });
    Ok(())
}

/// The pools that are meant.
fn pools(args: &TopArgs) -> Result<Vec<KnownPool>, Failure> {
    let access = &args.access;
    Ok(match (&args.pools[..], &access.catalog) {
        ([], None) => KnownPool::all()?,
        ([], Some(catalog)) => {
            let names = KnownPool::new("", catalog)?.host(access.targets()?)?.pools()?;
            names.iter().map(|name| KnownPool::new(name, catalog)).collect::<Result<_, _>>()?
        }
        (names, Some(catalog)) => {
            names.iter().map(|name| KnownPool::new(name, catalog)).collect::<Result<_, _>>()?
        }
        (names, None) => names.iter().map(|name| KnownPool::find(name)).collect::<Result<_, _>>()?,
    })
}

/// Where refreshes go.
enum Sink {
    /// Drawn in place, with the last lines, which stay when it has ended.
    Terminal(Terminal, Vec<String>),
    Lines,
    Events,
}

impl Sink {
    fn show(&mut self, view: &View, output: Output) {
        match self {
            Sink::Terminal(terminal, last) => {
                *last = lines::lines(view, false);
                terminal.draw(&lines::lines(view, terminal.has_colours()));
            }
            Sink::Lines => output.document(&(lines::lines(view, false).join("\n") + "\n")),
            Sink::Events => output.event(&view.event()),
        }
    }

    /// Waits for so long, or for a key.
    fn wait(&mut self, time: Duration) -> Option<Key> {
        match self {
            Sink::Terminal(terminal, _) => terminal.wait(time),
            Sink::Lines | Sink::Events => {
                std::thread::sleep(time);
                None
            }
        }
    }

    fn end(self, output: Output) {
        if let Sink::Terminal(terminal, last) = self {
            drop(terminal);
            output.document(&last.join("\n"));
        }
    }
}

/// What is shown at a refresh.
struct View {
    elapsed: Duration,
    pools: BTreeMap<String, Option<Answer<Status>>>,
    /// Names as devices, with the arrays.
    arrays: Vec<(String, Uuid, Answer<ArrayNow>)>,
    /// The line that is shown if there are none.
    none: &'static str,
}

impl View {
    fn new(now: Now, wanted: &Wanted<'_>, elapsed: Duration) -> View {
        let mut arrays = Vec::new();
        for (uuid, answer) in now.arrays {
            let name = match wanted {
                Wanted::Pools(named) => in_pools(&now.pools, named, uuid, &answer),
                Wanted::Files(named) => among_files(named, &answer),
            };
            arrays.extend(name.map(|name| (name, uuid, answer)));
        }
        arrays.sort_by(|a, b| a.0.cmp(&b.0));
        let none = match wanted {
            Wanted::Pools(_) => "no volume and no array runs on this host: paths are shown of those that do",
            Wanted::Files(_) => "no such file system is mounted or copied on this host by this user",
        };
        View { elapsed, pools: now.pools, arrays, none }
    }

    fn event(&self) -> TopSample {
        TopSample {
            elapsed_seconds: self.elapsed.as_secs_f64(),
            pools: self.pools.iter().map(|(name, answer)| pool(name, answer.as_ref())).collect(),
            arrays: self.arrays.iter().map(|(name, uuid, answer)| array(name, *uuid, answer)).collect(),
        }
    }
}

/// The name as a device of what is in one of these pools, or is anything at all if none is named.
fn in_pools(
    pools: &BTreeMap<String, Option<Answer<Status>>>,
    named: &[String],
    uuid: Uuid,
    answer: &Answer<ArrayNow>,
) -> Option<String> {
    let now = answer.last.as_ref().ok();
    if let Some(files) = now.filter(|now| now.is_fs) {
        let pool = files.name.split_once('/').map_or("", |(pool, _)| pool);
        let is_wanted = named.is_empty() || named.iter().any(|name| name == pool);
        return is_wanted.then(|| format!("{FILES}{}", files.name));
    }
    let single = now.and_then(|now| now.volume);
    let volume = pools.iter().find_map(|(pool, status)| {
        let status = status.as_ref()?.last.as_ref().ok()?;
        let is_it =
            |volume: &&longhaul_pool::VolumeRecord| volume.array == Some(uuid) || single == Some(volume.uuid);
        let volume = status.volumes.iter().find(is_it)?;
        Some(format!("{SCHEME}{pool}/{}", volume.name))
    });
    match (volume, &answer.last) {
        (Some(volume), _) => Some(volume),
        (None, _) if !named.is_empty() => None,
        (None, Ok(array)) if array.volume.is_some() => Some(format!("{SCHEME}{}", array.name)),
        (None, Ok(array)) => Some(format!("{ARRAY}{}", array.name)),
        (None, Err(_)) => Some(format!("{ARRAY}{uuid}")),
    }
}

/// The name of one of these file systems or of a snapshot, or of any if none is named.
fn among_files(named: &[FsName], answer: &Answer<ArrayNow>) -> Option<String> {
    let files = answer.last.as_ref().ok().filter(|now| now.is_fs)?;
    let of = files.name.split('@').next().unwrap_or_default();
    let is_wanted = named.is_empty() || named.iter().any(|name| name.to_string() == of);
    is_wanted.then(|| format!("{FILES}{}", files.name))
}

fn pool(name: &str, answer: Option<&Answer<Status>>) -> TopPool {
    let status = answer.and_then(|answer| answer.last.as_ref().ok());
    let targets = status.map_or(&[][..], |status| &status.targets);
    TopPool {
        name: name.to_owned(),
        error: answer.and_then(|answer| answer.last.as_ref().err().cloned()),
        age_seconds: answer.map(|answer| answer.at.elapsed().as_secs_f64()),
        volumes: status.map_or(0, |status| status.volumes.len()),
        capacity: targets.iter().map(|target| target.record.capacity).sum(),
        used: status.map_or(0, |status| status.usage.total()),
        pending: status.map_or(0, |status| status.intents.len()),
        targets: targets.iter().map(Into::into).collect(),
    }
}

fn array(name: &str, uuid: Uuid, answer: &Answer<ArrayNow>) -> TopArray {
    let (now, error) = match &answer.last {
        Ok(now) => (Some(now), None),
        Err(why) => (None, Some(why.clone())),
    };
    let total = |of: fn(&PathNow) -> WayNow| way(now.map_or_else(WayNow::default, |now| now.total(of)));
    TopArray {
        uuid: uuid.to_string(),
        device: name.to_owned(),
        error,
        age_seconds: answer.at.elapsed().as_secs_f64(),
        health: now.map(|now| now.health.clone()),
        detail: now.map_or_else(String::new, |now| now.detail.clone()),
        layout: now.map_or_else(String::new, |now| now.layout.clone()),
        size: now.map_or(0, |now| now.size),
        read: total(|path| path.read),
        write: total(|path| path.write),
        rebuild: now.and_then(|now| now.filling.as_ref()).map(|filling| TopRebuild {
            member: filling.member,
            done: filling.share(),
            bytes_per_second: filling.rate,
            remaining_seconds: filling.left.map(|left| left.as_secs_f64()),
        }),
        paths: now.map_or_else(Vec::new, |now| now.paths.iter().map(path).collect()),
    }
}

fn path(path: &PathNow) -> TopPath {
    TopPath {
        member: path.member,
        address: path.address.clone(),
        state: path.state.clone(),
        why: path.why.clone(),
        round_trip_us: path.round_trip.map(micros),
        disconnects: path.disconnects,
        read: way(path.read),
        write: way(path.write),
    }
}

fn way(way: WayNow) -> TopWay {
    TopWay {
        bits_per_second: way.bytes_per_second.map(|rate| rate * 8.0),
        commands_per_second: way.commands_per_second,
        latency_us: way.latency.map(micros),
        in_flight: way.in_flight,
    }
}
