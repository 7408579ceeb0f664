//! The `longhaul` program: arguments in, the libraries of the workspace
//! above, words and JSON out.

#![forbid(unsafe_code)]

mod arguments;
mod audit;
mod central;
mod cli;
mod complete;
mod config;
mod events;
mod exit;
mod export;
mod helper;
mod hosts;
mod live;
mod mdns;
mod metrics;
mod output;
mod pools;
mod rpc;
mod screen;
mod service;
mod verbs;
mod words;

use cli::{Cli, Verb};
use config::VerbValues;
use exit::{Failure, Outcome};
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    longhaul_engine::buf::release_what_is_freed();
    if helper::is_called() {
        return helper::run();
    }
    complete::answer();
    let (cli, values) = match config::parse() {
        Ok(parsed) => parsed,
        Err(failure) => return tell(&failure, Output::new(config::wants_json())),
    };
    cli.log();
    let output = Output::new(cli.is_json());
    match output.end(run(cli, values, output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell(&failure, output),
    }
}

fn tell(failure: &Failure, output: Output) -> ExitCode {
    output.failure(failure);
    failure.exit.into()
}

/// Runs the verb; `values` are its settings.
fn run(cli: Cli, values: VerbValues, output: Output) -> Outcome {
    match cli.verb {
        Verb::Target(args) => verbs::target::run(args, values, output),
        Verb::Ctl(args) => verbs::ctl::run(&args, output),
        Verb::Discover(args) => verbs::discover::run(&args, output),
        Verb::Info(args) => verbs::info::run(&args, output),
        Verb::ShowHostnqn => {
            verbs::hostnqn::show(output);
            Ok(())
        }
        Verb::Key(args) => verbs::key::run(args, output),
        Verb::Ns(args) => verbs::ns::run(*args, output),
        Verb::Bench(args) => verbs::bench::run(args, output),
        Verb::Array(args) => verbs::array::run(*args, output),
        Verb::Pool(args) => verbs::pool::run(*args, output),
        Verb::Volume(args) => verbs::volume::run(*args, output),
        Verb::Fs(args) => verbs::fs::run(*args, output),
        Verb::Top(args) => verbs::top::run(&args, output),
        Verb::Cp(args) => verbs::cp::cp(args, output),
        Verb::Sync(args) => verbs::cp::sync(args, output),
        Verb::Agent(args) => verbs::agent::run(args, output),
        Verb::Attach(args) => verbs::attach::run(*args, output),
        Verb::Detach(args) => verbs::attach::detach(&args, output),
        Verb::Nbd(args) => verbs::attach::nbd::run(&args, output),
        Verb::List(args) => verbs::connections::list(&args, output),
        Verb::ConnectAll(args) => verbs::connections::connect_all(&args, output),
        Verb::DisconnectAll(args) => verbs::connections::disconnect_all(&args, output),
        Verb::Mkfs(args) => verbs::attach::mkfs::run(&args, output),
        Verb::Mount(args) => verbs::attach::mount::run(&args, output),
        Verb::Umount(args) => verbs::attach::mount::umount(&args, output),
        Verb::Demo(args) => verbs::demo::run(&args, output),
        Verb::Dataset(args) => verbs::dataset::run(args, output),
        Verb::Netbench(args) => verbs::netbench::run(&args, output),
        Verb::Report(args) => verbs::report::run(&args, output),
        Verb::Diagnose(args) => verbs::diagnose::run(&args, output),
        Verb::Study(args) => verbs::study::run(&args, output),
        Verb::Tune(args) => verbs::tune::run(&args, output),
        Verb::Wan(args) => verbs::wan::run(&args, output),
        Verb::Completions { shell, dir } => verbs::meta::completions(shell, dir.as_deref(), output),
        Verb::Man { dir } => verbs::meta::man(dir.as_deref(), output),
    }
}
