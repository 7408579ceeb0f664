//! Words for people on stderr, NDJSON events for programs on stdout.

use crate::exit::{Failure, Outcome};
use longhaul_bench::schema;
use serde_json::{Map, Value};
use std::io::{IsTerminal, Write};
use std::path::Path;

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
        std::io::stderr().is_terminal()
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
            eprintln!("{text}");
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
        eprintln!("{text}");
    }

    /// A reader that has gone (`| head`) ends the program quietly.
    fn raw(self, text: &str) {
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
            std::process::exit(0);
        }
    }
}

/// Writes a result to a file.
pub(crate) fn save(path: &Path, document: &schema::Output) -> Outcome {
    longhaul_bench::record::save(path, document)
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}
