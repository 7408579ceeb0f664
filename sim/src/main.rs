//! `longhaul-sim --seeds 10000`: looks for a seed that fails.

#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use longhaul_array::{Layout, Mechanism};
use longhaul_sim::network::{Counts, NetworkPlan, Planted, run_network};
use longhaul_sim::pools::{PoolCounts, PoolPlan, run_pools};
use longhaul_sim::subject::of;
use longhaul_sim::{Plan, Theme, run, run_hosts};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The kind of simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Simulated {
    /// Arrays and their disks
    Arrays,
    /// Initiators, a target and the network between them
    Network,
    /// The same with two paths to the target, or to two that serve in turn
    Paths,
    /// Hosts that make, change and remove volumes of a pool
    Pools,
}

/// Simulate arrays and their disks, or hosts and a network, with all their faults, seed by seed.
#[derive(Debug, Parser)]
#[command(name = "longhaul-sim", max_term_width = 100)]
struct Args {
    /// What to simulate
    #[arg(long, value_name = "WORLD", value_enum, default_value_t = Simulated::Arrays)]
    world: Simulated,
    /// How many seeds to try
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first: u64,
    /// Only this seed, with every event printed on standard error
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Only these layouts (a seed then stands for something else)
    #[arg(long, value_name = "LAYOUT,…", value_delimiter = ',')]
    layout: Vec<Layout>,
    /// Only plans with this theme (mixed, quiet, long, wide, repair, hosts), instead of the
    /// theme that the seed chooses
    #[arg(long, value_name = "THEME")]
    theme: Option<Theme>,
    /// Switch off a part of the array that protects its data, to see after how many seeds that
    /// is detected (docs/simulation-results.md)
    #[arg(long, value_name = "MECHANISM")]
    without: Option<Mechanism>,
    /// Continue after a seed that fails
    #[arg(long)]
    keep_going: bool,
    /// Threads, each with seeds of its own [default: processors]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

fn main() -> ExitCode {
    if search(&Args::parse()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tries the seeds; whether all passed.
fn search(args: &Args) -> bool {
    let layouts = if args.layout.is_empty() { &Layout::ALL[..] } else { &args.layout[..] };
    let (first, end) = args.seed.map_or((args.first, args.first + args.seeds), |seed| (seed, seed + 1));
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    // Panics are findings, which are reported with their seed.
    std::panic::set_hook(Box::new(|_| {}));
    let counts = Mutex::new(Counts::default());
    let pool_counts = Mutex::new(PoolCounts::default());
    let (next, events, crashes) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let failures = Mutex::new(0u64);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while args.keep_going || failures.lock().is_ok_and(|failures| *failures == 0) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    if matches!(args.world, Simulated::Network | Simulated::Paths) {
                        let plan = match args.world {
                            Simulated::Paths => NetworkPlan::with_two_paths(seed),
                            _ => NetworkPlan::new(seed),
                        };
                        match run_network(&plan, Planted::Nothing, args.seed.is_some()) {
                            Ok(done) => {
                                events.fetch_add(done.events, Ordering::Relaxed);
                                if let Ok(mut counts) = counts.lock() {
                                    counts.add(&done.counts);
                                }
                            }
                            Err(failure) => tell(seed, &failure, &failures),
                        }
                        continue;
                    }
                    if args.world == Simulated::Pools {
                        match run_pools(&PoolPlan::new(seed), args.seed.is_some()) {
                            Ok(found) => {
                                if let Ok(mut counts) = pool_counts.lock() {
                                    counts.add(&found);
                                }
                            }
                            Err(failure) => tell(seed, &failure, &failures),
                        }
                        continue;
                    }
                    let themed = |theme| Plan::themed(seed, layouts, theme);
                    let plan = args.theme.map_or_else(|| Plan::new(seed, layouts), themed);
                    let plan = Plan { without: args.without, ..plan };
                    let loud = args.seed.is_some();
                    let result = match plan.theme {
                        Theme::Hosts => run_hosts(&plan, loud),
                        _ => run(&plan, &*of(&plan), loud),
                    };
                    match result {
                        Ok(done) => {
                            events.fetch_add(done.events, Ordering::Relaxed);
                            crashes.fetch_add(done.crashes, Ordering::Relaxed);
                        }
                        Err(failure) => tell(seed, &failure, &failures),
                    }
                }
            });
        }
    });
    let failed = failures.into_inner().unwrap_or(u64::MAX);
    let (seeds, events) = (next.into_inner().min(end) - first, events.into_inner());
    let what = match args.world {
        Simulated::Arrays => format!("{events} disk events, {} crashes", crashes.into_inner()),
        Simulated::Network | Simulated::Paths => {
            let counts = counts.into_inner().unwrap_or_default();
            format!("{events} packets and disk events, {} troubles: {counts:?}", counts.all())
        }
        Simulated::Pools => format!("{:?}", pool_counts.into_inner().unwrap_or_default()),
    };
    println!("{seeds} seeds, {failed} failed; {what}; {:.1} s", began.elapsed().as_secs_f64());
    failed == 0
}

fn tell(seed: u64, failure: &dyn std::fmt::Display, failures: &Mutex<u64>) {
    println!("seed {seed}: {failure}");
    if let Ok(mut failures) = failures.lock() {
        *failures += 1;
    }
}
