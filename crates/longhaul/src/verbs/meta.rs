//! `longhaul completions` and `longhaul man`.

use crate::cli::Cli;
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use clap::CommandFactory;
use serde_json::json;
use std::path::Path;

/// Prints the script, or writes it to `dir` under the name that the shell looks for.
pub(crate) fn completions(shell: clap_complete::Shell, dir: Option<&Path>, output: Output) -> Outcome {
    if let Some(dir) = dir {
        let made = std::fs::create_dir_all(dir);
        let wrote =
            made.and_then(|()| clap_complete::generate_to(shell, &mut Cli::command(), "longhaul", dir));
        let path = wrote.map_err(|e| {
            Failure::failed(format!("cannot write the completion script to {}: {e}", dir.display()))
        })?;
        output.event("summary", json!({ "shell": shell.to_string(), "path": path }));
        return Ok(());
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "longhaul", &mut script);
    let script = String::from_utf8(script).map_err(Failure::failed)?;
    output.event("summary", json!({ "shell": shell.to_string(), "script": script }));
    if !output.is_json() {
        output.document(script.trim_end());
    }
    Ok(())
}

pub(crate) fn man(dir: Option<&Path>, output: Output) -> Outcome {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(Failure::failed)?;
        let page = String::from_utf8(page).map_err(Failure::failed)?;
        output.event("summary", json!({ "page": page }));
        if !output.is_json() {
            output.document(page.trim_end());
        }
        return Ok(());
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .map_err(|e| Failure::failed(format!("cannot write manual pages to {}: {e}", dir.display())))?;
    output.event("summary", json!({ "dir": dir }));
    Ok(())
}
