//! Text for operators on stderr, NDJSON events for programs on stdout.
//!
//! Invariant: a closed pipe or a full disk behind either stream does not end the work, and a
//! closed pipe does not change the exit code.

use crate::events::ErrorEvent;
use crate::exit::{Failure, Outcome};
use crate::screen;
use longhaul_device::Reason;
use longhaul_results::schema;
use serde::Serialize;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::OnceLock;

/// The first error of a write to stdout; set once, and nothing is written after it.
static STDOUT_ERROR: OnceLock<io::Error> = OnceLock::new();

/// The output of a verb: text, or events with `--json`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Output {
        Output { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Whether progress lines are shown: stderr is a terminal.
    pub(crate) fn is_live(self) -> bool {
        screen::is_seen()
    }

    /// Writes an event to stdout, with `--json` only.
    pub(crate) fn event(self, event: &impl Serialize) {
        if !self.json {
            return;
        }
        match serde_json::to_string(event) {
            Ok(line) => self.write_stdout(&line),
            Err(e) => say(format_args!("longhaul: an event cannot be printed: {e}")),
        }
    }

    /// Writes a line of the result to stdout; with `--json` to stderr.
    pub(crate) fn line(self, text: impl std::fmt::Display) {
        if self.json {
            say(text);
        } else {
            self.write_stdout(&text.to_string());
        }
    }

    /// Writes a document, such as a manual page, to stdout, with `--json` too.
    pub(crate) fn document(self, text: &str) {
        self.write_stdout(text);
    }

    /// Whether nothing that is written to stdout arrives any more.
    pub(crate) fn is_closed(self) -> bool {
        STDOUT_ERROR.get().is_some()
    }

    /// Writes a note to stderr.
    pub(crate) fn note(self, text: impl std::fmt::Display) {
        say(text);
    }

    /// Writes a line to stdout, unless an earlier one failed: a reader could not see the gap.
    fn write_stdout(self, text: &str) {
        if STDOUT_ERROR.get().is_some() {
            return;
        }
        let written = screen::aside(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{text}").and_then(|()| out.flush())
        });
        if let Err(e) = written {
            let _ = STDOUT_ERROR.set(e);
        }
    }

    /// Reports a failure as the message on stderr, and as an `error` event unless the result has it.
    pub(crate) fn failure(self, failure: &Failure) {
        let Failure { exit, message, reason, in_result } = failure;
        if !in_result {
            self.event(&ErrorEvent { exit: *exit as u8, message, reason: reason.map(Reason::name) });
        }
        say(format_args!("longhaul: {message}"));
    }

    /// Reports a failure and exits, from any thread.
    pub(crate) fn abort(self, failure: &Failure) -> ! {
        screen::end();
        self.failure(failure);
        std::process::exit(failure.exit as i32)
    }

    /// The outcome of the program, given that of its work: a result that could not be written is a
    /// failure, except into a closed pipe (`| head`), whose reader needs no more.
    pub(crate) fn end(self, outcome: Outcome) -> Outcome {
        match STDOUT_ERROR.get().filter(|e| e.kind() != ErrorKind::BrokenPipe) {
            Some(e) => outcome.and(Err(Failure::failed(format_args!("cannot write to stdout: {e}")))),
            None => outcome,
        }
    }
}

/// Writes a line to stderr; errors are ignored.
pub(crate) fn say(text: impl std::fmt::Display) {
    let _ = screen::aside(|| writeln!(io::stderr(), "{text}"));
}

/// Writes a result document to a file.
pub(crate) fn save(path: &Path, document: &schema::Output) -> Outcome {
    longhaul_results::record::save(path, document)
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}
