//! Requests to an array wherever it runs on this host: in another process, or else in this one, which runs
//! it for the requests.

use super::control::{ArrayClient, ArrayReply, ArrayRequest};
use super::record::ArrayRecord;
use super::running::RunningArray;
use crate::error::{Error, ErrorKind, Result};
use crate::opener::Opener;
use serde_json::Value;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The process that runs an array.
enum Runner {
    /// Another process of this host, reached through its control socket.
    Other,
    /// This process runs the array.
    This(Box<(RunningArray, Opener)>),
}

/// An array that can be asked for something.
pub struct ArrayAccess {
    record: ArrayRecord,
    runner: Runner,
}

impl ArrayAccess {
    /// Finds the process that runs the array, or else runs it in this one, by what `opener` opens.
    ///
    /// # Errors
    /// The process does not answer; or those of [`RunningArray::open`].
    pub fn open(record: &ArrayRecord, opener: impl FnOnce() -> Opener) -> Result<ArrayAccess> {
        let record = record.clone();
        match ArrayClient::ask(&record, &ArrayRequest::Status) {
            Some(Err(e)) if e.kind() == ErrorKind::TimedOut => Err(e),
            Some(_) => Ok(ArrayAccess { record, runner: Runner::Other }),
            None => {
                let opener = opener();
                let running = RunningArray::open(&record, &opener)?;
                Ok(ArrayAccess { record, runner: Runner::This(Box::new((running, opener))) })
            }
        }
    }

    /// Whether this process runs the array.
    pub fn is_own(&self) -> bool {
        matches!(self.runner, Runner::This(_))
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// Those of the array; or the process that ran it has ended.
    pub fn ask(&self, request: ArrayRequest) -> ArrayReply {
        match &self.runner {
            Runner::Other => ArrayClient::ask(&self.record, &request)
                .unwrap_or_else(|| Err(Error::failed("the process that ran the array has ended"))),
            Runner::This(this) => {
                let opener = this.1.clone();
                this.0.wait(move |device| async move { request.run(&device, &opener).await })?
            }
        }
    }

    /// Sends a request, and calls `show` with the status of the array at each `interval` until its reply.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn follow(
        &self,
        request: ArrayRequest,
        interval: Duration,
        mut show: impl FnMut(&Value),
    ) -> ArrayReply {
        let (done, answer) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(done.send(self.ask(request))));
            loop {
                match answer.recv_timeout(interval) {
                    Ok(reply) => return reply,
                    Err(RecvTimeoutError::Disconnected) => return Err(Error::failed("it ended early")),
                    Err(RecvTimeoutError::Timeout) => show(&self.ask(ArrayRequest::Status)?),
                }
            }
        })
    }

    /// Stops the array if this process runs it.
    ///
    /// # Errors
    /// Not everything could be made durable.
    pub fn end(self) -> Result<()> {
        match self.runner {
            Runner::Other => Ok(()),
            Runner::This(this) => this.0.stop(),
        }
    }
}
