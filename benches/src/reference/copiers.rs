//! Programs that copy trees of files to another machine: longhaul, and those in common use, where
//! they are installed. Each is started as its documentation recommends for speed, and tried once: a
//! program that does not copy a small tree is left out, by name and with the reason.

use crate::process::{self, Guard, Usage};
use crate::setup::{Place, Setup};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a trial of a peer may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How many things GridFTP and the others do at once, as is usual.
const AT_ONCE: &str = "4";
const FILES_AT_ONCE: &str = "16";
/// Bytes that socat moves at once.
const BLOCK: &str = "262144";

/// A program that copies trees of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Longhaul,
    /// `longhaul`, with a key.
    Encrypted,
    /// `tar` into one TCP stream and out of it again.
    Tar,
    Rsync,
    GridFtp,
    Xroot,
    Rclone,
}

impl Who {
    /// All except `longhaul`.
    pub(crate) const OTHERS: [Who; 5] = [Who::Tar, Who::Rsync, Who::GridFtp, Who::Xroot, Who::Rclone];

    fn is_ours(self) -> bool {
        matches!(self, Who::Longhaul | Who::Encrypted)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Who::Longhaul => "longhaul",
            Who::Encrypted => "longhaul, encrypted",
            Who::Tar => "tar, one TCP stream",
            Who::Rsync => "rsync",
            Who::GridFtp => "globus-url-copy",
            Who::Xroot => "xrdcp",
            Who::Rclone => "rclone",
        }
    }

    /// The programs of both sides.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Who::Longhaul | Who::Encrypted => &[],
            Who::Tar => &["socat", "tar"],
            Who::Rsync => &["rsync"],
            Who::GridFtp => &["globus-url-copy", "globus-gridftp-server"],
            Who::Xroot => &["xrdcp", "xrootd"],
            Who::Rclone => &["rclone"],
        }
    }
}

/// A running server that trees are copied to, and the program that does.
#[derive(Debug)]
pub(crate) struct Copier {
    pub(crate) who: Who,
    server: Guard,
    pub(crate) address: String,
    /// What the server serves.
    pub(crate) root: PathBuf,
    /// More arguments of `longhaul`.
    pub(crate) extra: Vec<String>,
    /// Of `longhaul`: what a copy has learned of the path is there for the next one.
    pub(crate) remembers: bool,
    config: TempDir,
}

/// The measurements of one copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) seconds: f64,
    /// Processor seconds of both sides.
    pub(crate) cpu: f64,
    /// Peak resident set of either side in bytes; the server's is since its start.
    pub(crate) memory: [u64; 2],
}

/// Our copier and those of `others` that are installed and can copy; and of each
/// of the rest its name and the reason.
pub(crate) fn all(setup: &Setup, root: &Path, others: &[Who]) -> Result<(Vec<Copier>, Vec<String>)> {
    let mut copiers = vec![Copier::start(Who::Longhaul, setup, root)?];
    let mut absent = Vec::new();
    for &who in others {
        let missing = who.programs().iter().find(|program| !is_installed(program));
        match missing {
            Some(program) => absent.push(format!("{}: {program} is not installed", who.name())),
            None => match Copier::start(who, setup, root).and_then(|copier| copier.tried(setup)) {
                Ok(copier) => copiers.push(copier),
                Err(e) => absent.push(format!("{}: {e:#}", who.name())),
            },
        }
    }
    Ok((copiers, absent))
}

pub(super) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| dir.join(program).is_file())
}

impl Copier {
    /// Starts the server of a peer, and waits until it listens.
    pub(crate) fn start(who: Who, setup: &Setup, root: &Path) -> Result<Copier> {
        Copier::start_with(who, setup, root, &[])
    }

    /// The same with more arguments for the server.
    pub(crate) fn start_with(who: Who, setup: &Setup, root: &Path, more: &[&str]) -> Result<Copier> {
        let config = tempfile::Builder::new().prefix("longhaul-benches-").tempdir()?;
        let host = setup.target.address;
        let port = setup.target.run(|| Ok(TcpListener::bind((host, 0))?.local_addr()?.port()))?;
        let port = port.map_err(|e: io::Error| anyhow!(e))?.to_string();
        let mut command = match who {
            Who::Longhaul | Who::Encrypted => setup.target.command(&setup.program),
            Who::Tar | Who::Rsync | Who::Rclone => setup.target.command(who.programs()[0]),
            Who::Xroot => setup.target.command(who.programs()[1]),
            Who::GridFtp => {
                let mut command = named(&setup.target, setup, config.path())?;
                command.arg(who.programs()[1]);
                command
            }
        };
        let address = format!("{host}:{port}");
        let host = host.to_string();
        let place = root.to_str().context("a path in UTF-8")?;
        match who {
            Who::Longhaul | Who::Encrypted => {
                command.args(["agent", "--json", "--listen", &address, "--root", place]);
                command.args(["--congestion", &setup.congestion]);
                // As root, if that runs the benchmarks: the others do so too.
                let user = fs::metadata("/proc/self")?.uid().to_string();
                command.args(["--user", &user]);
                match who {
                    Who::Encrypted => command.arg("--key-file").arg(config.path().join("key")),
                    _ => command.arg("--insecure"),
                };
            }
            Who::Tar => {
                command.args(["-b", BLOCK, &format!("TCP-LISTEN:{port},bind={host},reuseaddr,fork")]);
                command.arg(format!("SYSTEM:tar --extract --directory {place}"));
            }
            Who::Rsync => {
                let path = config.path().join("rsyncd.conf");
                let text =
                    format!("use chroot = no\nuid = 0\ngid = 0\n[data]\npath = {place}\nread only = no\n");
                fs::write(&path, text)?;
                command.args(["--daemon", "--no-detach", "--address", &host, "--port", &port]);
                command.arg("--config").arg(path);
            }
            Who::GridFtp => {
                command.args(["-s", "-aa", "-allow-root", "-anonymous-user", "root", "-p", &port]);
                command.args(["-control-interface", &host, "-data-interface", &host]);
            }
            Who::Xroot => {
                // It will not be root, and has files of its own.
                open_to_all(config.path())?;
                command.args(["-R", "nobody", "-p", &port, "-a"]).arg(config.path()).arg("-l");
                command.arg(config.path().join("log")).arg(place);
            }
            Who::Rclone => {
                // Files removed without its knowledge must not count as present.
                command.args(["serve", "webdav", place, "--addr", &address, "--dir-cache-time", "100ms"]);
            }
        }
        command.args(more);
        let ours = who.is_ours();
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(if ours { Stdio::piped() } else { Stdio::null() });
        let mut server = Guard(setup.target.start(&mut command)?);
        if ours {
            server.ready().context("the agent did not start")?;
        } else {
            await_listening(setup, &address)?;
        }
        let root = root.to_owned();
        Ok(Copier { who, server, address, root, extra: Vec::new(), remembers: false, config })
    }

    /// Copies a small tree to see whether it does.
    fn tried(self, setup: &Setup) -> Result<Copier> {
        let from = tempfile::Builder::new().prefix("longhaul-benches-").tempdir_in(&setup.dir)?;
        fs::create_dir(from.path().join("d"))?;
        fs::write(from.path().join("d/f"), [7; 100_000])?;
        fs::write(from.path().join("g"), "1")?;
        let copied = self.copy(setup, from.path(), "trial", false, Some(LIMIT)).context("a trial")?;
        ensure!(copied.is_some(), "a trial with two files took longer than {LIMIT:?}");
        self.clear("trial")?;
        Ok(self)
    }

    /// The command that copies the content of `from` to `to` below the root; for an `update`, over
    /// existing files.
    fn command(&self, setup: &Setup, from: &Path, to: &str, update: bool) -> Command {
        let mut command = match self.who {
            who if who.is_ours() => setup.load.command(&setup.program),
            Who::Tar => setup.load.command("sh"),
            Who::GridFtp => {
                let mut command = among_names(&setup.load, self.config.path());
                command.arg(self.who.programs()[0]);
                command
            }
            who => setup.load.command(who.programs()[0]),
        };
        let (address, from) = (&self.address, from.display());
        let there = self.root.join(to);
        let there = there.display();
        match self.who {
            Who::Longhaul | Who::Encrypted => {
                // Another one for each copy that is to know nothing.
                let state = self.config.path().join(if self.remembers { "known" } else { "unknown" });
                if !self.remembers {
                    let _ = fs::remove_dir_all(&state);
                }
                command.env("XDG_STATE_HOME", state);
                command.args(if update { &["sync"][..] } else { &["cp", "-r"] });
                command.args(["--fsync", "none", "--json", "--congestion", &setup.congestion]);
                if self.who == Who::Encrypted {
                    command.arg("--key-file").arg(self.config.path().join("key"));
                }
                command.args(&self.extra).args([format!("{from}/."), format!("lh://{address}/{to}")])
            }
            Who::Tar => {
                // It waits until the other side has closed, and so has written.
                let stream = format!("socat -b {BLOCK} -t 600 - TCP:{address}");
                let name = format!("--transform 's,^\\.,{to},'");
                command.args(["-c", &format!("tar --create --directory '{from}' {name} . | {stream}")])
            }
            Who::Rsync => command.args(["-a", &format!("{from}/"), &format!("rsync://{address}/data/{to}/")]),
            Who::GridFtp => command
                .args(["-q", "-fast", "-pp", "-cc", FILES_AT_ONCE, "-p", AT_ONCE, "-cd", "-r"])
                .args([format!("file://{from}/"), format!("ftp://{address}{there}/")]),
            Who::Xroot => command
                .args(["-r", "-s", "-f", "--streams", AT_ONCE, "--parallel", AT_ONCE])
                .args([format!("{from}/"), format!("root://{address}/{there}/")]),
            Who::Rclone => command
                .args(["copy", "--transfers", FILES_AT_ONCE, "--checkers", FILES_AT_ONCE])
                .args([format!("{from}"), format!(":webdav,url='http://{address}':{to}")]),
        };
        command
    }

    /// Copies the content of `from` to `to`; fails unless all of it is there then. A copy that
    /// takes longer than `limit` is ended, and returns `None`.
    pub(crate) fn copy(
        &self,
        setup: &Setup,
        from: &Path,
        to: &str,
        update: bool,
        limit: Option<Duration>,
    ) -> Result<Option<Copied>> {
        let wanted = tally(from)?;
        if self.who == Who::Xroot {
            // Its client makes no directory to put several things into.
            let place = self.root.join(to);
            fs::create_dir(&place).and_then(|()| open_to_all(&place)).context("a place for xrdcp")?;
        }
        let mut command = self.command(setup, from, to, update);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let before = process::family_time(self.server.pid())?;
        let began = Instant::now();
        let mut child = setup.load.start(&mut command)?;
        if limit.is_some_and(|limit| !process::ends_within(child.id(), limit)) {
            child.kill().and_then(|()| child.wait()).context("ending it")?;
            return Ok(None);
        }
        let (well, Usage { cpu, memory }) = process::wait_usage(child)?;
        let seconds = began.elapsed().as_secs_f64();
        process::await_children(self.server.pid());
        let there = process::family_time(self.server.pid())?.saturating_sub(before);
        ensure!(well, "{} failed", self.who.name());
        let copied = tally(&self.root.join(to))?;
        if copied != wanted {
            bail!("{} of {} files and {} of {} bytes arrived", copied.0, wanted.0, copied.1, wanted.1);
        }
        let memory = [memory, process::peak_memory(self.server.pid())?];
        Ok(Some(Copied { seconds, cpu: (cpu + there).as_secs_f64(), memory }))
    }

    /// Removes the copied files.
    pub(crate) fn clear(&self, to: &str) -> Result<()> {
        let path = self.root.join(to);
        fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))
    }
}

/// A file of names for [`among_names`].
const HOSTS: &str = "hosts";

/// What begins a command line in a place where addresses have names: GridFTP looks up
/// the name of its own address, and a namespace has no name server.
fn named(place: &Place, setup: &Setup, config: &Path) -> Result<Command> {
    let own = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let [here, there] = [setup.load.address, setup.target.address];
    let text = format!("127.0.0.1 localhost\n{here} here\n{there} there {own}\n");
    fs::write(config.join(HOSTS), text)?;
    Ok(among_names(place, config))
}

/// The same, with the names that were written there.
fn among_names(place: &Place, config: &Path) -> Command {
    let mut command = place.command("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]);
    command.arg(config.join(HOSTS));
    command
}

/// Lets every user write in a directory.
fn open_to_all(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))
}

/// Waits until a program on the target's side listens there.
pub(super) fn await_listening(setup: &Setup, address: &str) -> Result<()> {
    let address: SocketAddr = address.parse()?;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let reached = setup.load.run(|| TcpStream::connect_timeout(&address, PATIENCE).is_ok())?;
        if reached {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("its server does not listen within {PATIENCE:?}")
}

/// Files below a directory, and their bytes.
pub(crate) fn tally(dir: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes, mut open) = (0, 0, vec![dir.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            } else {
                files += 1;
                bytes += entry.metadata()?.len();
            }
        }
    }
    Ok((files, bytes))
}
