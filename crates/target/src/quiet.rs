//! Messages that strangers can cause, as seldom as a log can bear.

use longhaul_engine::now;
use std::fmt::Arguments;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::subsystem::lock;

/// Lines of one kind in a [`PERIOD`] at most: enough to see what is going on.
const LINES: u64 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// Messages of one kind.
#[derive(Debug, Default)]
pub(crate) struct Quiet(Mutex<QuietState>);

#[derive(Debug, Default)]
struct QuietState {
    since: Option<Instant>,
    /// Messages in this period.
    count: u64,
}

impl Quiet {
    /// Gives the message to `log`, unless there were too many of late. How
    /// many were left out is said with the first of the next period.
    pub(crate) fn say(&self, message: Arguments<'_>, log: impl Fn(Arguments<'_>)) {
        self.say_at(now(), message, log);
    }

    fn say_at(&self, now: Instant, message: Arguments<'_>, log: impl Fn(Arguments<'_>)) {
        let mut state = lock(&self.0);
        let over = state.since.is_none_or(|since| now >= since + PERIOD);
        let left_out = if over { state.count.saturating_sub(LINES) } else { 0 };
        if over {
            *state = QuietState { since: Some(now), count: 0 };
        }
        state.count += 1;
        let speaks = state.count <= LINES;
        drop(state);
        match (speaks, left_out) {
            (true, 0) => log(message),
            (true, n) => log(format_args!("{message} (and {n} messages like this one before)")),
            (false, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn many_messages_become_a_few_lines_and_a_count() {
        let (quiet, lines) = (Quiet::default(), RefCell::new(Vec::new()));
        let start = Instant::now();
        let say = |at| quiet.say_at(at, format_args!("x"), |line| lines.borrow_mut().push(line.to_string()));
        (0..1000).for_each(|_| say(start));
        assert_eq!(lines.borrow().len() as u64, LINES);
        say(start + PERIOD);
        say(start + PERIOD);
        assert_eq!(lines.borrow()[LINES as usize..], ["x (and 990 messages like this one before)", "x"]);
    }
}
