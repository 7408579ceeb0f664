//! Words for people on stderr, NDJSON events for programs on stdout.
//!
//! Invariant: whoever reads either may go at any time, or have no room left. That
//! ends no work, and no exit code becomes another one by it.

use crate::exit::{Failure, Outcome};
use crate::screen;
use longhaul_bench::schema;
use serde_json::{Map, Value};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::OnceLock;

/// Why stdout takes nothing any more.
static GONE: OnceLock<io::Error> = OnceLock::new();

/// Where a verb's output goes.
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

    /// Whether a live line makes sense.
    pub(crate) fn is_live(self) -> bool {
        screen::is_seen()
    }

    /// One event, if events are wanted.
    pub(crate) fn event(self, name: &str, fields: Value) {
        if !self.json {
            return;
        }
        let mut event = Map::new();
        event.insert("event".into(), name.into());
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.raw(&Value::Object(event).to_string());
    }

    /// A line of the result: to stdout, unless events are wanted there.
    pub(crate) fn line(self, text: impl std::fmt::Display) {
        if self.json {
            say(text);
        } else {
            self.raw(&text.to_string());
        }
    }

    /// The whole result, as one document on stdout.
    pub(crate) fn document(self, text: &str) {
        self.raw(text);
    }

    /// A note for people.
    pub(crate) fn note(self, text: impl std::fmt::Display) {
        say(text);
    }

    /// After the first line that could not be written no other is: what is behind
    /// a gap would be read as if there was none.
    fn raw(self, text: &str) {
        if GONE.get().is_some() {
            return;
        }
        let written = screen::aside(|| {
            let mut out = io::stdout().lock();
            writeln!(out, "{text}").and_then(|()| out.flush())
        });
        if let Err(e) = written {
            let _ = GONE.set(e);
        }
    }

    /// Says why the program ends, unless the result says it.
    pub(crate) fn failure(self, failure: &Failure) {
        let Failure { exit, message, in_result } = failure;
        if !in_result {
            self.event("error", serde_json::json!({ "exit": *exit as u8, "message": message }));
        }
        say(format_args!("longhaul: {message}"));
    }

    /// Ends the program from whatever thread this is.
    pub(crate) fn abort(self, failure: &Failure) -> ! {
        screen::end();
        self.failure(failure);
        std::process::exit(failure.exit as i32)
    }

    /// What a run has come to whose work came to `outcome`. A result that could not
    /// be written is a failure; a reader that has gone (`| head`) has what it wanted.
    pub(crate) fn end(self, outcome: Outcome) -> Outcome {
        match GONE.get().filter(|e| e.kind() != ErrorKind::BrokenPipe) {
            Some(e) => outcome.and(Err(Failure::failed(format_args!("cannot write to stdout: {e}")))),
            None => outcome,
        }
    }
}

/// A line on stderr, if anybody is there.
pub(crate) fn say(text: impl std::fmt::Display) {
    let _ = screen::aside(|| writeln!(io::stderr(), "{text}"));
}

/// Writes a result to a file.
pub(crate) fn save(path: &Path, document: &schema::Output) -> Outcome {
    longhaul_bench::record::save(path, document)
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}
