//! `longhaul report`.

use crate::events::ReportSummary;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_engine::state_file;
use longhaul_report::page::{Report, report};
use longhaul_report::picture::draw;
use longhaul_results::{Document, ReadError};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Creates one self-contained page from results: figures with error bars, published
values beside the measured ones, tables and conditions; invalid results are
marked. Figures as SVG and all values as CSV are written to a directory beside
the page; with --png also figures as PNG, rendered by headless Chromium or
Chrome. Results are written by bench, netbench, diagnose and study with
--output, and by fio with --output-format=json.

Example:
  longhaul report before.json after.json -o report.html")]
pub(crate) struct ReportArgs {
    /// Result files of bench, study and other verbs, or of fio
    #[arg(value_name = "RESULT", required = true)]
    results: Vec<PathBuf>,
    /// File to write the page to
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Title of the page
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Write only the page
    #[arg(long)]
    no_files: bool,
    /// Write figures as PNG, too (needs Chromium or Chrome)
    #[arg(long, conflicts_with = "no_files")]
    png: bool,
}

/// Replaces a file atomically.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    state_file::replace(path, text.as_bytes())
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}

/// Creates a page from results, with its files beside it.
pub(crate) fn page(path: &Path, results: &[PathBuf], title: &str) -> Outcome {
    let documents = results.iter().map(|path| Document::load(path)).collect::<Result<Vec<_>, _>>()?;
    let made = report(title, &documents, path);
    write(path, &made.html)?;
    files(path, &made).map(|_| ())
}

pub(crate) fn run(args: &ReportArgs, output: Output) -> Outcome {
    // An unreadable result does not keep the others from the page.
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
        return Err(Failure::new(exit, "none of the results could be read: no page was written"));
    }
    let names: Vec<&str> = documents.iter().map(|document| document.record.name.as_str()).collect();
    let title = args.title.clone().unwrap_or_else(|| match names[..] {
        [one] if !one.is_empty() => one.to_owned(),
        _ => "Results".to_owned(),
    });
    let made = report(&title, &documents, &args.output);
    write(&args.output, &made.html)?;
    let dir = if args.no_files { None } else { Some(files(&args.output, &made)?) };
    // The page is written even if the pictures fail.
    let pictures = match &dir {
        Some(dir) if args.png => draw(dir, &made),
        _ => Ok(0),
    }
    .map_err(|why| {
        Failure::new(Exit::Partly, format!("{why}; the page, its SVG figures and its CSV are written"))
    });
    output.event(&ReportSummary {
        page: args.output.display().to_string(),
        files: dir.map(|dir| dir.display().to_string()),
        results: documents.len(),
        unreadable: bad.len(),
        pictures: pictures.as_ref().ok().copied(),
    });
    if !output.is_json() {
        output.line(format_args!("{}", args.output.display()));
    }
    match bad.len() {
        0 => pictures.map(|_| ()).map_err(|failure| Failure { in_result: true, ..failure }),
        bad => {
            let message = format!(
                "{bad} of {} results could not be read, and are missing in the page",
                args.results.len()
            );
            Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) })
        }
    }
}

/// Writes figures and values to `NAME_files` beside the page.
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
