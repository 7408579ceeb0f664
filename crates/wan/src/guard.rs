//! The guard: a process that creates and removes what outlives the emulator's process.
//!
//! The guard is a shell that reads orders from a pipe. When the pipe ends, because
//! the emulator is done or was killed, the guard removes all that it created, and
//! ends.
//!
//! Invariants:
//! - only the guard creates namespaces, so each namespace has a guard that knows
//!   of it;
//! - the guard removes only its own namespaces: it compares device and inode, since
//!   another namespace may have the name by then.

use crate::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Orders: `netns NAME` makes a namespace, `file PATH` will be removed. Each is answered by a line:
/// `ok`, or an error.
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT PIPE
spaces= files=
while read -r order name; do
    case $order in
    netns)
        if [ -e "/run/netns/$name" ]; then echo exists; continue; fi
        if why=$(ip netns add "$name" 2>&1); then
            spaces="$spaces $name=$(stat -Lc %d:%i "/run/netns/$name")"
            echo ok
        else
            echo "$why" | tr '\n' ' '; echo
        fi ;;
    file)
        files="$files
$name"
        echo ok ;;
    esac
done
for space in $spaces; do
    name=${space%%=*}
    if [ "$(stat -Lc %d:%i "/run/netns/$name" 2>/dev/null)" = "${space#*=}" ]; then
        ip netns del "$name"
    fi
done
echo "$files" | while read -r file; do
    if [ -n "$file" ]; then rm -f "$file"; fi
done
"#;

/// A running guard. Dropping it removes all that the guard created, and waits for that.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Guard {
    /// Starts a guard; `name` is shown in the list of processes.
    pub(crate) fn start(name: &str) -> Result<Guard, Error> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, &format!("longhaul-wan-guard {name}")])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Signals to the foreground of the terminal must not reach it.
            .process_group(0)
            .spawn()
            .map_err(Error::system("cannot start sh"))?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        match answers {
            Some(answers) => Ok(Guard { child, orders, answers: BufReader::new(answers) }),
            None => Err(Error::Stopped),
        }
    }

    /// Creates a namespace.
    pub(crate) fn netns(&mut self, name: &str) -> Result<(), Error> {
        match self.order("netns", name)?.as_str() {
            "ok" => Ok(()),
            "exists" => Err(Error::Exists { what: "namespace", name: name.to_owned() }),
            why => Err(Error::system("ip netns add")(std::io::Error::other(why.to_owned()))),
        }
    }

    /// Registers a file to be removed at the end.
    pub(crate) fn file(&mut self, path: &str) -> Result<(), Error> {
        self.order("file", path).map(drop)
    }

    fn order(&mut self, order: &str, name: &str) -> Result<String, Error> {
        let mut answer = String::new();
        let mut ask = || {
            let mut orders = self.orders.as_ref().ok_or(std::io::ErrorKind::BrokenPipe)?;
            orders.write_all(format!("{order} {name}\n").as_bytes())?;
            self.answers.read_line(&mut answer)
        };
        match ask().map_err(Error::system("the guard does not answer"))? {
            0 => Err(Error::Stopped),
            _ => Ok(answer.trim().to_owned()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.orders = None;
        // The guard ends by itself; its exit status carries no information.
        let _ = self.child.wait();
    }
}
