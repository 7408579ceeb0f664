//! `longhaul demo`: a demonstration on one machine ([`longhaul_lab::demo`]).

mod tell;

use crate::arguments::{EngineArgs, parse_bytes, parse_rate, parse_time};
use crate::exit::{Exit, Failure, Outcome};
use crate::live::Pace;
use crate::output::Output;
use indicatif::{ProgressBar, ProgressStyle};
use longhaul_block::units::format_rate;
use longhaul_lab::demo::{self, DemoOptions, DemoProgress};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Uses memory, the temporary directory and loopback of this machine only, and
needs no root. Rates are measured after the ramp-up, for Longhaul and plain TCP
alike.")]
pub(crate) struct DemoArgs {
    /// Copy the files of this directory instead of a generated data set
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Size of the generated data set (file sizes as in production transfers)
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_bytes)]
    scale: u64,
    /// Round-trip time to the targets
    #[arg(long, value_name = "TIME", default_value = "15ms", value_parser = parse_time)]
    rtt: Duration,
    /// Rate of the link to each target, or 0 for no limit
    #[arg(long, value_name = "RATE", default_value = "2Gbit", value_parser = parse_rate)]
    rate: u64,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &DemoArgs, output: Output) -> Outcome {
    remove_temporary_on_signal()?;
    let options = DemoOptions {
        data: args.data.clone(),
        scale: args.scale,
        rtt: args.rtt,
        rate: args.rate,
        rounds: args.rounds,
        engine: args.engine.config(),
    };
    let line = ProgressLine::new(output);
    let demonstration = demo::run(&options, &line)?;
    drop(line);
    tell::tell(&demonstration, &options, output);
    Ok(())
}

/// Starts a thread that removes the temporary directories and exits on a signal.
fn remove_temporary_on_signal() -> Outcome {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Failure::failed)?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            demo::remove_temporary();
            std::process::exit(Exit::Failed as i32);
        }
    });
    Ok(())
}

/// The progress line: hidden without a terminal, and removed on drop.
struct ProgressLine {
    bar: ProgressBar,
    output: Output,
}

impl ProgressLine {
    fn new(output: Output) -> ProgressLine {
        let bar = if output.is_live() {
            crate::screen::add(ProgressBar::new_spinner())
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        ProgressLine { bar, output }
    }
}

impl DemoProgress for ProgressLine {
    fn note(&self, text: &str) {
        self.output.note(text);
    }

    fn step(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        self.bar.tick();
    }

    fn follow<'a>(&'a self, text: String) -> Box<dyn FnMut(u64) + 'a> {
        self.step(&text);
        let mut pace = Pace::new(Instant::now(), 0);
        Box::new(move |moved| {
            if pace.look(Instant::now(), moved) {
                let rate = pace.rate().map(|rate| format!(", {}", format_rate(rate * 8.0)));
                self.step(&format!("{text}{}", rate.unwrap_or_default()));
            }
        })
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
