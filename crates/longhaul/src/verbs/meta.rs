//! `longhaul completions` and `longhaul man`.

use crate::cli::Cli;
use crate::exit::{Failure, Outcome};
use clap::CommandFactory;
use std::io::Write;
use std::path::Path;

pub(crate) fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "longhaul", &mut text);
    std::io::stdout().write_all(&text).map_err(Failure::failed)
}

pub(crate) fn man(dir: Option<&Path>) -> Outcome {
    match dir {
        Some(dir) => clap_mangen::generate_to(Cli::command(), dir)
            .map_err(|e| Failure::failed(format!("cannot write manual pages to {}: {e}", dir.display()))),
        None => clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout()).map_err(Failure::failed),
    }
}
