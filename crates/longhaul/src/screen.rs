//! The line on a terminal that shows how far something is.
//!
//! Invariant: all that is written to the terminal goes through [`aside`], which takes
//! the line away first: nothing is ever written behind or into it.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Once};
use tracing_subscriber::fmt::MakeWriter;

/// All lines of this process; standard error has room for them if it is a terminal.
static ALL: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Steps of a bar.
const STEPS: u64 = 1000;

/// Whether people look at standard error.
pub(crate) fn is_seen() -> bool {
    io::stderr().is_terminal()
}

/// Whether colours are for the terminal: <https://no-color.org>.
pub(crate) fn has_colours() -> bool {
    is_seen() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Does something that writes to the terminal, with the line out of its way.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    if is_seen() { ALL.suspend(write) } else { write() }
}

/// Gives a bar that others move its place on the terminal.
pub(crate) fn add(bar: ProgressBar) -> ProgressBar {
    if is_seen() { ALL.add(bar) } else { ProgressBar::hidden() }
}

/// The program ends: no line comes back.
pub(crate) fn end() {
    // Where there is none to clear, there is none that could come back either.
    let _ = ALL.clear();
    ALL.set_draw_target(ProgressDrawTarget::hidden());
}

/// A line; it goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Line {
    bar: ProgressBar,
    styled: [Once; 2],
}

impl Line {
    /// One that has nothing to say yet.
    pub(crate) fn new() -> Line {
        let bar = ProgressBar::hidden();
        bar.set_length(STEPS);
        Line { bar, styled: [Once::new(), Once::new()] }
    }

    /// Says how far it is: in words, cut to the width of the terminal, behind a bar if
    /// the share that is done is known.
    pub(crate) fn show(&self, share: Option<f64>, words: impl Into<String>) {
        if !is_seen() {
            return;
        }
        let (style, template) = match share {
            Some(_) => (0, "{bar:12} {percent:>3} % {wide_msg}"),
            None => (1, "{spinner} {wide_msg}"),
        };
        self.styled[style].call_once(|| {
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style);
            }
        });
        if self.bar.is_hidden() {
            // The first time: before, nothing is drawn over what others may ask.
            ALL.add(self.bar.clone());
        }
        self.bar.set_position((share.unwrap_or(0.0).clamp(0.0, 1.0) * STEPS as f64) as u64);
        self.bar.set_message(words.into());
        self.bar.tick();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Standard error, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stderr;

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Stderr;

    fn make_writer(&'a self) -> Stderr {
        Stderr
    }
}

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // A record of the log comes as one.
        aside(|| io::stderr().write_all(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
