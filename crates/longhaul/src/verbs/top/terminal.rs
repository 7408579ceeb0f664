//! A terminal that is drawn on in place.
//!
//! Invariant: the terminal is as it was before when this is dropped: its mode, its cursor, and what was
//! on it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Size where the terminal does not say one.
const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// The screen that is given back at the end, without a cursor (xterm, DEC private modes).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The terminal shows what is between these at once; one that does not know them shows it as it comes.
const BEGIN: &str = "\x1b[?2026h\x1b[H";
const END: &str = "\x1b[J\x1b[?2026l";
/// Erases the rest of the line.
const REST: &str = "\x1b[K";

/// What was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
}

/// See the module.
pub(super) struct Terminal {
    /// The mode of the keyboard before, if there is one.
    before: Option<Termios>,
}

impl Terminal {
    /// Takes the terminal of standard output, and the keys of standard input if that is a terminal.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn enter() -> io::Result<Terminal> {
        let keyboard = io::stdin();
        let before = keyboard.is_terminal().then(|| tcgetattr(&keyboard).ok()).flatten();
        if let Some(before) = &before {
            let mut keys = before.clone();
            // Each key at once, unseen; Ctrl-C stays a signal.
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            keys.special_codes[SpecialCodeIndex::VMIN] = 0;
            keys.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&keyboard, OptionalActions::Now, &keys)?;
        }
        let terminal = Terminal { before };
        write(ENTER)?;
        Ok(terminal)
    }

    /// <https://no-color.org>
    pub(super) fn has_colours(&self) -> bool {
        std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Draws lines over those from before, cut to the size of the terminal.
    pub(super) fn draw(&mut self, lines: &[String]) {
        let size = tcgetwinsize(io::stdout()).ok();
        let (columns, rows) = match size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row))) {
            Some((columns, rows)) if columns > 0 && rows > 0 => (columns, rows),
            _ => (COLUMNS, ROWS),
        };
        let mut text = BEGIN.to_owned();
        for (number, line) in fitted(lines, rows).iter().enumerate() {
            if number > 0 {
                text.push('\n');
            }
            text.push_str(&cut(line, columns));
            text.push_str(REST);
        }
        text.push_str(END);
        // A terminal that has gone ends the program by a signal.
        let _ = write(&text);
    }

    /// Waits for so long, or until a key that means something is typed.
    pub(super) fn wait(&mut self, time: Duration) -> Option<Key> {
        let keyboard = io::stdin();
        if self.before.is_none() {
            std::thread::sleep(time);
            return None;
        }
        let limit = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let mut wanted = [PollFd::new(&keyboard, PollFlags::IN)];
        // A signal ends the wait as well.
        if poll(&mut wanted, Some(&limit)).unwrap_or(0) == 0 {
            return None;
        }
        let mut typed = [0; 64];
        match rustix::io::read(&keyboard, &mut typed) {
            // The keyboard has gone.
            Ok(0) => Some(Key::Quit),
            Ok(count) => typed[..count].iter().any(|key| b"qQ".contains(key)).then_some(Key::Quit),
            Err(_) => None,
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// As many lines as there is room for; the last one says how many there are more.
fn fitted(lines: &[String], rows: usize) -> Vec<String> {
    if lines.len() <= rows {
        return lines.to_vec();
    }
    let shown = rows.saturating_sub(1);
    let mut fitted = lines[..shown].to_vec();
    fitted.push(format!("… {} more lines: a larger terminal, or longhaul top | less", lines.len() - shown));
    fitted
}

/// A line cut to this many columns. Escape sequences take none, and all of them are kept.
fn cut(line: &str, columns: usize) -> String {
    let (mut cut, mut width) = (String::new(), 0);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            cut.push(c);
            for c in chars.by_ref() {
                cut.push(c);
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else if width < columns && !c.is_control() {
            cut.push(c);
            width += 1;
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_to_the_terminal() {
        assert_eq!(cut("abcdef", 3), "abc");
        assert_eq!(cut("a\x1b[31mbc\x1b[0md", 2), "a\x1b[31mb\x1b[0m", "a colour ends");
        assert_eq!(cut("a\r\nb\tc", 9), "abc", "what a target says moves no cursor");
        let lines: Vec<String> = (0..5).map(|n| n.to_string()).collect();
        assert_eq!(fitted(&lines, 5), lines);
        let few = fitted(&lines, 3);
        assert_eq!((few.len(), &few[1][..]), (3, "1"));
        assert!(few[2].starts_with("… 3 more"), "{few:?}");
    }
}
