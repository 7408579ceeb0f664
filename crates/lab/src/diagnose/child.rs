//! Child processes with a timeout.

use longhaul_load::Stop;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Interval of checks for the stop flag.
const LOOK: Duration = Duration::from_millis(50);

/// How a child process ended.
#[derive(Debug)]
pub(super) enum ChildOutcome {
    /// It exited: status, standard output and standard error.
    Ended(ExitStatus, Vec<u8>, Vec<u8>),
    /// It exceeded the time limit, and was killed.
    Late,
    /// The run was stopped, and the child was killed.
    Stopped,
}

/// Runs a program to its end, or kills it after `limit` or when `stop` is set.
pub(super) fn run(command: &mut Command, limit: Duration, stop: &Stop) -> io::Result<ChildOutcome> {
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
    // Both pipes close when the child ends.
    let (mut written, mut said) = (None, None);
    loop {
        for (from, to) in [(&out, &mut written), (&err, &mut said)] {
            if to.is_none() {
                match from.recv_timeout(LOOK) {
                    Ok(bytes) => *to = Some(bytes),
                    Err(RecvTimeoutError::Disconnected) => *to = Some(Vec::new()),
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
        }
        if written.is_some()
            && said.is_some()
            && let Some(status) = child.try_wait()?
        {
            return Ok(ChildOutcome::Ended(status, written.unwrap_or_default(), said.unwrap_or_default()));
        }
        if stop.is_set() {
            end(&mut child);
            return Ok(ChildOutcome::Stopped);
        }
        if began.elapsed() > limit {
            end(&mut child);
            return Ok(ChildOutcome::Late);
        }
        if written.is_some() && said.is_some() {
            // Both pipes are closed: the child is about to exit.
            std::thread::sleep(LOOK / 50);
        }
    }
}

/// Reads a pipe to its end in a thread.
fn collect(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // After a read error the output read so far is used.
            let _ = pipe.read_to_end(&mut bytes);
        }
        // After a timeout the receiver was dropped, and so is the output.
        let _ = tx.send(bytes);
    });
    rx
}

fn end(child: &mut Child) {
    // The child may have exited meanwhile.
    let _ = child.kill();
    let _ = child.wait();
}

/// The command line of a program, without its directory.
pub(super) fn words(command: &Command) -> String {
    let name = std::path::Path::new(command.get_program()).file_name().unwrap_or_default();
    let all = std::iter::once(name).chain(command.get_args()).map(|word| word.to_string_lossy());
    all.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_ends_says_how() {
        let ran = run(&mut shell("echo out; echo err >&2; exit 3"), Duration::from_secs(60), &Stop::new());
        let Ok(ChildOutcome::Ended(status, out, err)) = ran else { panic!("{ran:?}") };
        assert_eq!((status.code(), &*out, &*err), (Some(3), &b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn what_does_not_end_is_ended() {
        let began = Instant::now();
        let late = run(&mut shell("exec sleep 600"), Duration::from_millis(100), &Stop::new());
        assert!(matches!(late, Ok(ChildOutcome::Late)), "{late:?}");
        // The child closes its output and keeps running.
        let silent = shell("exec sleep 600 >/dev/null 2>&1");
        let late = run(&mut { silent }, Duration::from_millis(100), &Stop::new());
        assert!(matches!(late, Ok(ChildOutcome::Late)), "{late:?}");
        let stop = Stop::new();
        stop.stop();
        let stopped = run(&mut shell("exec sleep 600"), Duration::from_secs(600), &stop);
        assert!(matches!(stopped, Ok(ChildOutcome::Stopped)), "{stopped:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "it was waited for");
    }

    #[test]
    fn a_program_is_named_with_its_arguments() {
        let mut command = Command::new("/usr/bin/longhaul");
        command.args(["cp", "a b", "c"]);
        assert_eq!(words(&command), "longhaul cp a b c");
    }
}
