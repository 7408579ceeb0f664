//! Exit codes of the command-line contract.

use crate::output::Output;
use longhaul_block::IoError;
use std::fmt;
use std::process::ExitCode;

/// How a run ended. The numbers are a promise to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Did not work, for a reason that has no number of its own.
    Failed = 1,
    /// The arguments make no sense.
    Usage = 2,
    /// Done, but not all of it.
    Partly = 3,
    /// Content differs from what was written.
    Mismatch = 4,
    /// The far side could not be reached.
    Unreachable = 5,
    /// The far side refused.
    Refused = 6,
    /// It took too long.
    TimedOut = 7,
    /// There was nothing to do, and the caller asked for a code of its own for that.
    Nothing = 8,
}

impl Exit {
    /// The code of this number; a failure, if there is none.
    pub(crate) fn of(number: Option<u64>) -> Exit {
        let all = [
            Exit::Usage,
            Exit::Partly,
            Exit::Mismatch,
            Exit::Unreachable,
            Exit::Refused,
            Exit::TimedOut,
            Exit::Nothing,
        ];
        all.into_iter().find(|exit| Some(*exit as u64) == number).unwrap_or(Exit::Failed)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error with the exit code that it ends the program with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// The result on stdout is whole, and says it too: no event comes behind.
    pub(crate) in_result: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure { exit, message: message.to_string(), in_result: false }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    pub(crate) fn failed(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Failed, message)
    }
}

impl From<IoError> for Failure {
    fn from(e: IoError) -> Failure {
        let exit = match e {
            IoError::Integrity(_) => Exit::Mismatch,
            IoError::Unreachable(_) => Exit::Unreachable,
            _ => Exit::Failed,
        };
        Failure::new(exit, e)
    }
}

/// Whether nothing to do is told by the exit code.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct NothingToDo {
    /// Exit with 8 if there was nothing to do (without it, that is 0)
    #[arg(long)]
    exit_code: bool,
}

impl NothingToDo {
    /// There was nothing to do: the result, which has its summary already, is whole.
    pub(crate) fn nothing(self, message: impl fmt::Display, output: Output) -> Outcome {
        if self.exit_code {
            return Err(Failure { in_result: true, ..Failure::new(Exit::Nothing, message) });
        }
        output.note(format_args!("longhaul: {message}"));
        Ok(())
    }
}

/// What a verb returns.
pub(crate) type Outcome = Result<(), Failure>;
