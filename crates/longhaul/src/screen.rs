//! Progress lines on a terminal.
//!
//! Invariant: all output to the terminal goes through [`aside`], which clears the progress lines
//! first, so that no output is mixed with them.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Once};
use tracing_subscriber::fmt::MakeWriter;

/// All progress lines of this process; drawn on stderr if it is a terminal.
static ALL: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Resolution of a progress bar.
const STEPS: u64 = 1000;

/// Whether stderr is a terminal.
pub(crate) fn is_seen() -> bool {
    io::stderr().is_terminal()
}

/// Whether to colour output to the terminal: <https://no-color.org>.
pub(crate) fn has_colours() -> bool {
    is_seen() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Runs `write`, which writes to the terminal, with the progress lines cleared.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    if is_seen() { ALL.suspend(write) } else { write() }
}

/// Adds a bar that the caller updates; hidden where stderr is not a terminal.
pub(crate) fn add(bar: ProgressBar) -> ProgressBar {
    if is_seen() { ALL.add(bar) } else { ProgressBar::hidden() }
}

/// Clears the progress lines for good, before the program exits.
pub(crate) fn end() {
    // An error leaves the lines on the terminal; the program ends all the same.
    let _ = ALL.clear();
    ALL.set_draw_target(ProgressDrawTarget::hidden());
}

/// A progress line; cleared on drop.
#[derive(Debug)]
pub(crate) struct Line {
    bar: ProgressBar,
    styled: [Once; 2],
}

impl Line {
    /// A line that is not shown before [`Self::show`].
    pub(crate) fn new() -> Line {
        let bar = ProgressBar::hidden();
        bar.set_length(STEPS);
        Line { bar, styled: [Once::new(), Once::new()] }
    }

    /// Shows `text`, cut to the width of the terminal; after a bar if the share done, from 0 to 1,
    /// is known.
    pub(crate) fn show(&self, share: Option<f64>, text: impl Into<String>) {
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
            // Added at the first call: an empty line could be drawn over a password prompt.
            ALL.add(self.bar.clone());
        }
        self.bar.set_position((share.unwrap_or(0.0).clamp(0.0, 1.0) * STEPS as f64) as u64);
        self.bar.set_message(text.into());
        self.bar.tick();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A log writer to stderr that clears the progress lines.
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
        // The subscriber writes each log record with a single call.
        aside(|| io::stderr().write_all(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
