//! `longhaul report`.

mod picture;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_report::page::{Report, report};
use longhaul_report::{Document, ReadError};
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Makes one page of results, which needs no network and no other file: figures
with error bars, published numbers beside ours, tables, conditions, and what
does not count shown as such. Figures as SVG and all numbers as CSV are written
to a directory beside it; with --png figures as PNG, too, which Chromium or
Chrome draws without a window. Results are what bench, netbench, diagnose and
study write with --output, and what fio writes with --output-format=json.

Example:
  longhaul report before.json after.json -o report.html")]
pub(crate) struct Args {
    /// The results
    #[arg(value_name = "RESULT", required = true)]
    results: Vec<PathBuf>,
    /// Where to write the page
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Its heading
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Write the page alone
    #[arg(long)]
    no_files: bool,
    /// Write figures as PNG, too (takes Chromium or Chrome)
    #[arg(long, conflicts_with = "no_files")]
    png: bool,
}

/// Puts a file in place as a whole.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|e| {
        // There may be nothing to remove.
        let _ = std::fs::remove_file(&beside);
        Failure::failed(format!("cannot write {}: {e}", path.display()))
    })
}

/// Makes a page of results, with its files beside it.
pub(crate) fn page(path: &Path, results: &[PathBuf], title: &str) -> Outcome {
    let documents = results.iter().map(|path| Document::load(path)).collect::<Result<Vec<_>, _>>()?;
    let made = report(title, &documents, path);
    write(path, &made.html)?;
    files(path, &made).map(|_| ())
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    // What can be read is shown, also if something else cannot.
    let (mut documents, mut bad) = (Vec::new(), Vec::new());
    for path in &args.results {
        match Document::load(path) {
            Ok(document) => documents.push(document),
            Err(e) => {
                output.note(format_args!("longhaul: {e}"));
                bad.push(e);
            }
        }
    }
    if documents.is_empty() {
        let missing = bad.iter().all(|e| matches!(e, ReadError::Io { .. }));
        let exit = if missing { Exit::Failed } else { Exit::Usage };
        return Err(Failure::new(exit, "none of the results could be read: there is no page"));
    }
    let names: Vec<&str> = documents.iter().map(|document| document.record.name.as_str()).collect();
    let title = args.title.clone().unwrap_or_else(|| match names[..] {
        [one] if !one.is_empty() => one.to_owned(),
        _ => "Results".to_owned(),
    });
    let made = report(&title, &documents, &args.output);
    write(&args.output, &made.html)?;
    let dir = if args.no_files { None } else { Some(files(&args.output, &made)?) };
    // Without them there is a page all the same.
    let pictures = match &dir {
        Some(dir) if args.png => picture::draw(dir, &made),
        _ => Ok(0),
    };
    output.event(
        "summary",
        json!({
            "page": args.output, "files": dir, "results": documents.len(), "unreadable": bad.len(),
            "pictures": pictures.as_ref().ok(),
        }),
    );
    if !output.is_json() {
        output.line(format_args!("{}", args.output.display()));
    }
    match bad.len() {
        0 => pictures.map(|_| ()).map_err(|failure| Failure { in_result: true, ..failure }),
        bad => {
            let message =
                format!("{bad} of {} results could not be read, and are not in the page", args.results.len());
            Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) })
        }
    }
}

/// Writes figures and numbers to `NAME_files` beside the page.
fn files(page: &Path, made: &Report) -> Result<PathBuf, Failure> {
    let mut name = page.file_stem().unwrap_or_default().to_owned();
    name.push("_files");
    let dir = page.with_file_name(name);
    let make = |e: io::Error| Failure::failed(format!("cannot make {}: {e}", dir.display()));
    std::fs::create_dir_all(&dir).map_err(make)?;
    for (name, text) in &made.files {
        write(&dir.join(name), text)?;
    }
    Ok(dir)
}
