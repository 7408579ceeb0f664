//! How a simulation ends, whatever it is of.

use crate::plan::Plan;
use std::fmt;
use std::panic::AssertUnwindSafe;

/// What a seed stands for, in words and as a command.
pub trait Replay: Clone + fmt::Display {
    /// The command that does the same again.
    fn again(&self) -> String;
}

/// A violation, and how to reproduce it.
#[derive(Clone, Debug)]
pub struct Failure<P = Plan> {
    /// The plan that it happened in.
    pub plan: Box<P>,
    /// What happened, in words.
    pub what: String,
}

impl<P: Replay> fmt::Display for Failure<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        writeln!(f, "  {}", self.plan)?;
        write!(f, "  again: {}", self.plan.again())
    }
}

/// Runs a simulation on a thread of its own; a panic is a failure like any other.
pub(crate) fn guarded<P: Replay, D: Send>(
    plan: &P,
    simulate: impl FnOnce() -> Result<D, String> + Send,
) -> Result<D, Failure<P>> {
    let simulate = || std::panic::catch_unwind(AssertUnwindSafe(simulate));
    let result = std::thread::scope(|scope| scope.spawn(simulate).join());
    let fail = |what| Failure { plan: Box::new(plan.clone()), what };
    match result {
        Ok(Ok(result)) => result.map_err(fail),
        Ok(Err(panic)) | Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Err(fail(format!("panic: {text}")))
        }
    }
}
