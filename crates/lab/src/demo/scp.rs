//! scp over one of the links, to an sshd process for each connection, with keys and a
//! configuration of this run, so that those of the user and the machine have no effect.

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

/// Paths of sshd, which has to be started by its absolute path.
const SSHD: [&str; 3] = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/lib/ssh/sshd"];
/// The SFTP subsystem, built into sshd.
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
    /// Generates keys below `dir`, and starts the listener and the relay in front of it by `link`.
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
        // A test login: failures show before the measurement.
        scp.login()?;
        Ok(scp)
    }

    /// Copies a tree below `to`, and removes it again. Returns the seconds without those of a login.
    pub(super) fn copy(&self, from: &Path, to: &Path) -> Result<f64, String> {
        let login = self.login()?;
        let to = to.join("scp");
        let mut command = self.client("scp");
        command.args(["-q", "-r"]).arg(from).arg(format!("{}:{}", LOOPBACK.ip(), to.display()));
        let began = Instant::now();
        run(&mut command)?;
        let seconds = began.elapsed().as_secs_f64() - login;
        super::trees::remove(&to).map_err(|e| e.to_string())?;
        Ok(seconds.max(0.0))
    }

    /// Seconds of a login that runs `true`.
    fn login(&self) -> Result<f64, String> {
        let began = Instant::now();
        run(self.client("ssh").arg(LOOPBACK.ip().to_string()).arg("true"))?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// A command of ssh or scp with the keys and port of this sshd.
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
        // A last connection wakes the thread, which then reads the flag.
        let _ = TcpStream::connect(self.listener);
    }
}

/// Starts an sshd for each connection, until `ended` is set.
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
            // sshd ends with its connection; the thread reaps it.
            Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
            Err(e) => tracing::debug!("{sshd}: {e}"),
        }
    }
}

/// Runs a program. If it fails, the error is the last line of its standard error.
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
