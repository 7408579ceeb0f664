//! scp over one of the links, to an sshd that is started for it: each connection has one of its
//! own, with keys made for this run, so that no configuration of the user or the machine counts.

use super::LOOPBACK;
use longhaul_wan::Relay;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Where it is installed; it has to be called by its whole path.
const SSHD: [&str; 3] = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/lib/ssh/sshd"];
/// What it answers a client's first bytes through, in any mode.
const SFTP: &str = "internal-sftp";

/// An sshd behind a link.
#[derive(Debug)]
pub(super) struct Scp {
    dir: PathBuf,
    relay: Relay,
    listener: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Scp {
    /// Makes keys below `dir`, and reaches an sshd through what `link` starts.
    pub(super) fn start(dir: &Path, link: &dyn Fn(SocketAddr) -> io::Result<Relay>) -> Result<Scp, String> {
        let sshd = SSHD.into_iter().find(|path| Path::new(path).exists());
        let sshd = sshd.ok_or("sshd is not installed")?;
        let dir = dir.join("ssh");
        fs::create_dir(&dir).map_err(|e| e.to_string())?;
        for name in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(name));
            run(&mut command)?;
        }
        let path = |name: &str| dir.join(name).display().to_string();
        let config = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             PermitRootLogin prohibit-password\nPidFile none\nLogLevel QUIET\nSubsystem sftp {SFTP}\n",
            path("host"),
            path("user.pub")
        );
        let configured = dir.join("sshd_config");
        fs::write(&configured, config).map_err(|e| e.to_string())?;
        let listener = TcpListener::bind(LOOPBACK).map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let relay = link(address).map_err(|e| e.to_string())?;
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        std::thread::spawn(move || serve(&listener, sshd, &configured, &end));
        let scp = Scp { dir, relay, listener: address, ended };
        // What does not work is found out before anything is measured.
        scp.login()?;
        Ok(scp)
    }

    /// Copies a tree below `to` and removes it again: the seconds without those of a login.
    pub(super) fn copy(&self, from: &Path, to: &Path) -> Result<f64, String> {
        let login = self.login()?;
        let to = to.join("scp");
        let mut command = self.client("scp");
        command.args(["-q", "-r"]).arg(from).arg(format!("{}:{}", LOOPBACK.ip(), to.display()));
        let began = Instant::now();
        run(&mut command)?;
        let seconds = began.elapsed().as_secs_f64() - login;
        super::trees::remove(&to).map_err(|failure| failure.message)?;
        Ok(seconds.max(0.0))
    }

    /// Seconds of a login that does nothing.
    fn login(&self) -> Result<f64, String> {
        let began = Instant::now();
        run(self.client("ssh").arg(LOOPBACK.ip().to_string()).arg("true"))?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// ssh or scp, with these keys, to this sshd.
    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-F", "none", "-o"]).arg(format!("Port={}", self.relay.local_addr().port()));
        command.arg("-o").arg(format!("IdentityFile={}", self.dir.join("user").display()));
        for option in [
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
        ] {
            command.args(["-o", option]);
        }
        command
    }
}

impl Drop for Scp {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // The thread that serves looks at it with the next connection.
        let _ = TcpStream::connect(self.listener);
    }
}

/// Starts an sshd for each connection, until the end.
fn serve(listener: &TcpListener, sshd: &str, config: &Path, ended: &AtomicBool) {
    for stream in listener.incoming() {
        if ended.load(Relaxed) {
            return;
        }
        let started = stream.and_then(|stream| {
            let _ = stream.set_nodelay(true);
            let output = OwnedFd::from(stream.try_clone()?);
            let mut command = Command::new(sshd);
            command.args(["-i", "-f"]).arg(config).stderr(Stdio::null());
            command.stdin(OwnedFd::from(stream)).stdout(output).spawn()
        });
        match started {
            // It ends with its connection.
            Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
            Err(e) => tracing::debug!("{sshd}: {e}"),
        }
    }
}

/// Runs a program; what it says is the error if it fails.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => format!("{name} is not installed"),
        _ => format!("{name}: {e}"),
    })?;
    let said = String::from_utf8_lossy(&ran.stderr);
    match ran.status.success() {
        true => Ok(()),
        false => {
            let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no reason");
            Err(format!("{name} does not work here: {last}"))
        }
    }
}
