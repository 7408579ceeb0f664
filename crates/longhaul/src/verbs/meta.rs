//! `longhaul completions` and `longhaul man`.

use crate::cli::Cli;
use crate::complete;
use crate::events::{CompletionsSummary, ManSummary};
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use clap::CommandFactory;
use clap_complete::Generator;
use std::path::Path;

/// Prints the script, or writes it to `dir` under the name that the shell looks for.
pub(crate) fn completions(shell: clap_complete::Shell, dir: Option<&Path>, output: Output) -> Outcome {
    let script = complete::script(shell)?;
    if let Some(dir) = dir {
        let path = dir.join(shell.file_name("longhaul"));
        let made = std::fs::create_dir_all(dir);
        made.and_then(|()| std::fs::write(&path, script)).map_err(|e| {
            Failure::failed(format!("cannot write the completion script to {}: {e}", dir.display()))
        })?;
        let path = Some(path.display().to_string());
        output.event(&CompletionsSummary { shell: shell.to_string(), path, script: None });
        return Ok(());
    }
    if !output.is_json() {
        output.document(script.trim_end());
    }
    output.event(&CompletionsSummary { shell: shell.to_string(), path: None, script: Some(script) });
    Ok(())
}

pub(crate) fn man(dir: Option<&Path>, output: Output) -> Outcome {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(Failure::failed)?;
        let page = String::from_utf8(page).map_err(Failure::failed)?;
        if !output.is_json() {
            output.document(page.trim_end());
        }
        output.event(&ManSummary { dir: None, page: Some(page) });
        return Ok(());
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .map_err(|e| Failure::failed(format!("cannot write manual pages to {}: {e}", dir.display())))?;
    output.event(&ManSummary { dir: Some(dir.display().to_string()), page: None });
    Ok(())
}
