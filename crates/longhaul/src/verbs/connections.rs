//! `longhaul list`, `connect-all` and `disconnect-all`: devices and file systems listed in
//! `connections.conf`, which are attached and mounted at boot.
//!
//! A line of the file holds the arguments of one `longhaul attach` or `longhaul mount`. Each
//! runs in a process of its own.

use crate::cli::{Cli, Verb};
use crate::events::{ConnectionResult, ConnectionsSummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::verbs::attach;
use clap::Parser;
use longhaul_device::attached::{Attachment, absolute};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The default file.
const FILE: &str = "/etc/longhaul/connections.conf";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line of the file is an attach or a mount, as on the command line:
  attach nvme+tcp://dtn1/scratch --at /run/scratch
  mount array:scratch /mnt/scratch --ctrl-loss-timeout -1
A # begins a comment; quoting is that of a shell.")]
pub(crate) struct ConnectionsArgs {
    /// File that lists the connections
    #[arg(long, value_name = "FILE", default_value = FILE)]
    config: PathBuf,
}

/// A line of the file.
#[derive(Debug)]
struct Connection {
    /// Line number, from 1.
    line: usize,
    /// Arguments of `longhaul`.
    words: Vec<String>,
    devices: Vec<String>,
    path: PathBuf,
    is_mount: bool,
}

impl Connection {
    /// Whether a process serves the device; the record of a killed process does not count.
    fn is_connected(&self) -> bool {
        absolute(&self.path).ok().and_then(|path| Attachment::find(&path)).is_some_and(|(_, lives)| lives)
    }

    /// Runs the program with these arguments. A failure has the message of the child process.
    fn run(&self, words: &[&str]) -> Outcome {
        let program = std::env::current_exe().map_err(Failure::failed)?;
        let ran = Command::new(program).args(words).stdin(Stdio::null()).output().map_err(Failure::failed)?;
        if ran.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&ran.stderr);
        let message = stderr.trim().strip_prefix("longhaul: ").unwrap_or(stderr.trim()).to_owned();
        let exit = ran.status.code().and_then(|code| u64::try_from(code).ok());
        Err(Failure::new(Exit::of(exit), format!("line {}: {message}", self.line)))
    }
}

/// Reads the file; `None` if it does not exist.
fn read(file: &Path) -> Result<Option<Vec<Connection>>, Failure> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::failed(format!("cannot read {}: {e}", file.display()))),
    };
    parse(&text).map(Some).map_err(|why| Failure::usage(format!("{}, {why}", file.display())))
}

fn parse(text: &str) -> Result<Vec<Connection>, String> {
    let mut all: Vec<Connection> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let wrong = |why: &str| format!("line {line}: {why}");
        let words = shlex::split(text).ok_or_else(|| wrong("a quote is not closed"))?;
        if words.is_empty() {
            continue;
        }
        let typed = std::iter::once("longhaul".to_owned()).chain(words.clone());
        let cli = Cli::try_parse_from(typed).map_err(|e| {
            let message = e.to_string();
            wrong(message.lines().next().unwrap_or_default().trim_start_matches("error: "))
        })?;
        let (connection, is_mount) = match &cli.verb {
            Verb::Mount(args) => (args.in_background(), true),
            Verb::Attach(args) => (args.in_background(), false),
            _ => (None, false),
        };
        let Some((path, devices)) = connection else {
            return Err(wrong(
                "it is neither 'attach DEVICE --at PATH' nor 'mount DEVICE DIR', in the background",
            ));
        };
        if !path.is_absolute() {
            return Err(wrong(&format!("{} does not begin with a slash", path.display())));
        }
        if let Some(other) = all.iter().find(|other| other.path == path) {
            return Err(wrong(&format!("{} is in line {} already", path.display(), other.line)));
        }
        all.push(Connection { line, words, devices, path, is_mount });
    }
    Ok(all)
}

/// Runs `longhaul list`.
pub(crate) fn list(args: &ConnectionsArgs, output: Output) -> Outcome {
    let listed = read(&args.config)?.unwrap_or_default();
    let missing = listed.into_iter().filter(|connection| !connection.is_connected());
    let missing: Vec<_> = missing.map(|connection| (connection.path, connection.devices)).collect();
    attach::list(&missing, output)
}

/// Runs `longhaul connect-all`.
pub(crate) fn connect_all(args: &ConnectionsArgs, output: Output) -> Outcome {
    let all = required(args)?;
    let (there, missing): (Vec<_>, Vec<_>) = all.into_iter().partition(Connection::is_connected);
    // In parallel, so that an unreachable device does not delay the others.
    let results: Vec<Outcome> = std::thread::scope(|scope| {
        let run = |connection: &Connection| {
            connection.run(&connection.words.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let running: Vec<_> = missing.iter().map(|connection| scope.spawn(move || run(connection))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Failure::failed("it panicked"))))
            .collect()
    });
    finish(&args.config, CONNECTED, (there.len(), &missing), results, output)
}

/// What `connect-all` has done with a connection; `disconnect-all` has `disconnected` it.
const CONNECTED: &str = "connected";

/// Runs `longhaul disconnect-all`.
pub(crate) fn disconnect_all(args: &ConnectionsArgs, output: Output) -> Outcome {
    let all = required(args)?;
    let (mut there, gone): (Vec<_>, Vec<_>) = all.into_iter().partition(Connection::is_connected);
    // In reverse order: a later mount may lie below an earlier one.
    there.reverse();
    let end = |connection: &Connection| {
        let verb = if connection.is_mount { "umount" } else { "detach" };
        connection.run(&[verb, &connection.path.to_string_lossy()])
    };
    let results = there.iter().map(end).collect();
    finish(&args.config, "disconnected", (gone.len(), &there), results, output)
}

fn required(args: &ConnectionsArgs) -> Result<Vec<Connection>, Failure> {
    let file = args.config.display();
    let why = || {
        Failure::usage(format!("{file} does not exist: create it, with an attach or a mount in each line"))
    };
    read(&args.config)?.ok_or_else(why)
}

/// Reports the result of each connection.
fn finish(
    file: &Path,
    done: &str,
    (already, all): (usize, &[Connection]),
    results: Vec<Outcome>,
    output: Output,
) -> Outcome {
    let mut failed = Vec::new();
    for (connection, result) in all.iter().zip(results) {
        let (path, devices) = (&connection.path, connection.devices.join(" "));
        let why = result.as_ref().err().map(|failure| failure.message.clone());
        output.event(&ConnectionResult {
            path: path.display().to_string(),
            devices: connection.devices.clone(),
            done: why.is_none(),
            message: why,
        });
        match result {
            Ok(()) if !output.is_json() => output.line(format_args!("{done} {} ({devices})", path.display())),
            Ok(()) => {}
            Err(failure) => {
                output.note(format_args!("longhaul: {}, {}", file.display(), failure.message));
                failed.push(failure.exit);
            }
        }
    }
    let number = all.len() - failed.len();
    output.event(&ConnectionsSummary {
        connected: (done == CONNECTED).then_some(number),
        disconnected: (done != CONNECTED).then_some(number),
        already,
        failed: failed.len(),
    });
    let exit = match (failed.first(), number + already) {
        (None, _) => return Ok(()),
        (Some(exit), 0) => *exit,
        (Some(_), _) => Exit::Partly,
    };
    let why = format!("{} of {} are not {done}; see above", failed.len(), all.len() + already);
    Err(Failure { in_result: true, ..Failure::new(exit, why) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_like_the_command_line() {
        let text = "# comment\n\nattach nvme+tcp://dtn1/x --at /run/x --via fuse # another\n\
                    mount array:y '/mnt/with space' -o noatime --ctrl-loss-timeout -1\n";
        let all = parse(text).expect("connections");
        let seen: Vec<_> =
            all.iter().map(|c| (c.line, c.path.to_str().expect("UTF-8"), c.is_mount)).collect();
        assert_eq!(seen, [(3, "/run/x", false), (4, "/mnt/with space", true)]);
        assert_eq!(all[1].devices, ["array:y"]);
    }

    #[test]
    fn each_fault_names_its_line() {
        for (text, why) in [
            ("\nattach mem:1MiB", "line 2: "),
            ("bench mem:1MiB", "line 1: it is neither"),
            ("attach --list", "line 1: it is neither"),
            ("mount mem:1MiB /mnt --foreground", "in the background"),
            ("mount mem:1MiB /mnt --viva fuse", "--viva"),
            ("mount mem:1MiB mnt", "mnt does not begin with a slash"),
            ("mount mem:1MiB '/mnt", "a quote is not closed"),
            ("mount mem:1MiB /a\nmount mem:2MiB /a", "line 2: /a is in line 1 already"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        }
    }
}
