//! Exit codes of the program, a contract with scripts.

use crate::output::Output;
use longhaul_array::ArrayError;
use longhaul_block::IoError;
use longhaul_device::Reason;
use std::fmt;
use std::process::ExitCode;

/// How a run ended. Scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// An error without a code of its own.
    Failed = 1,
    /// Invalid arguments or configuration.
    Usage = 2,
    /// Done, but not all of it.
    Partly = 3,
    /// Content differs from what was written.
    Mismatch = 4,
    /// The remote side could not be reached, or the connection to it was lost.
    Unreachable = 5,
    /// The operation was refused, by the remote side or to protect data.
    Refused = 6,
    /// A timeout expired.
    TimedOut = 7,
    /// There was nothing to do, and `--exit-code` asked for this code in that case.
    Nothing = 8,
}

impl Exit {
    /// The exit code `number`; [`Exit::Failed`] for an unknown one.
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

/// An error, and the exit code that the program ends with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// What programs tell the failure apart by; `None` for most.
    pub(crate) reason: Option<Reason>,
    /// The result on stdout already reports the failure, so that no `error` event follows it.
    pub(crate) in_result: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure { exit, message: message.to_string(), reason: None, in_result: false }
    }

    /// The failure with what programs tell it apart by.
    pub(crate) fn because(self, reason: Option<Reason>) -> Failure {
        Failure { reason, ..self }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    pub(crate) fn failed(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Failed, message)
    }
}

impl From<longhaul_device::Error> for Failure {
    fn from(e: longhaul_device::Error) -> Failure {
        let reason = e.reason();
        Failure::new(Exit::of(Some(e.kind() as u64)), e).because(reason)
    }
}

impl From<IoError> for Failure {
    fn from(e: IoError) -> Failure {
        longhaul_device::Error::from(e).into()
    }
}

impl From<ArrayError> for Failure {
    fn from(e: ArrayError) -> Failure {
        longhaul_device::Error::from(e).into()
    }
}

impl From<longhaul_lab::Error> for Failure {
    fn from(e: longhaul_lab::Error) -> Failure {
        use longhaul_lab::Error as Lab;
        let exit = match e {
            Lab::Device(e) => return e.into(),
            Lab::Connect(e) => return e.into(),
            Lab::Copy(e) => return e.into(),
            Lab::Mismatch(_) => Exit::Mismatch,
            Lab::Usage(_) => Exit::Usage,
            Lab::TimedOut(_) => Exit::TimedOut,
            // The program runs itself: its exit codes are these.
            Lab::Run { exit, .. } => Exit::of(exit.and_then(|code| u64::try_from(code).ok())),
            Lab::Failed(_) => Exit::Failed,
        };
        Failure::new(exit, e)
    }
}

impl From<longhaul_initiator::Error> for Failure {
    fn from(e: longhaul_initiator::Error) -> Failure {
        longhaul_device::Error::from(e).into()
    }
}

/// Whether the exit code reports that there was nothing to do.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct NothingToDo {
    /// Exit with 8 instead of 0 if there was nothing to do
    #[arg(long)]
    exit_code: bool,
}

impl NothingToDo {
    /// Ends a run that had nothing to do, and whose summary was written.
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
