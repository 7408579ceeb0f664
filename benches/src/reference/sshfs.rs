//! sshfs: a directory of the far machine through ssh.

use super::copiers::{await_listening, is_installed};
use crate::process::Guard;
use crate::setup::Setup;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const SERVER: &str = "/usr/sbin/sshd";
/// Where sshd leaves its rights, which its service makes.
const EMPTY: &str = "/run/sshd";

/// A far directory that sshfs has mounted.
pub(crate) struct Sshfs {
    setup: Setup,
    path: PathBuf,
    _server: Guard,
    _dir: TempDir,
}

impl Sshfs {
    /// Mounts one, with keys of its own; or why that cannot be done here.
    pub(crate) fn start(setup: &Setup) -> Result<std::result::Result<Sshfs, String>> {
        for program in ["sshfs", "ssh", "ssh-keygen"] {
            if !is_installed(program) {
                return Ok(Err(format!("{program} is not installed")));
            }
        }
        if !Path::new(SERVER).exists() {
            return Ok(Err(format!("there is no {SERVER}")));
        }
        let dir = tempfile::Builder::new().prefix("longhaul-benches-").tempdir_in(&setup.dir)?;
        Ok(Sshfs::mount(setup, dir).map_err(|e| format!("{e:#}")))
    }

    fn mount(setup: &Setup, dir: TempDir) -> Result<Sshfs> {
        let path = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "user"] {
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]))?;
        }
        fs::create_dir_all(EMPTY).with_context(|| format!("cannot make {EMPTY}"))?;
        for name in ["there", "here"] {
            fs::create_dir(dir.path().join(name))?;
        }
        let host = setup.target.address;
        let server = format!(
            "ListenAddress {host}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             PasswordAuthentication no\nPermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n",
            path("host"),
            path("user.pub")
        );
        fs::write(path("sshd_config"), server)?;
        let client = format!(
            "Host far\nHostName {host}\nIdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\n\
             StrictHostKeyChecking accept-new\nBatchMode yes\nLogLevel ERROR\n",
            path("user"),
            path("known")
        );
        fs::write(path("ssh_config"), client)?;
        let mut server = setup.target.command(SERVER);
        server.args(["-D", "-e", "-f", &path("sshd_config")]);
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(path("sshd.log"))?);
        let server = Guard(setup.target.start(&mut server)?);
        let said = || fs::read_to_string(path("sshd.log")).unwrap_or_default();
        await_listening(setup, &format!("{host}:22")).with_context(said)?;
        let mut mount = setup.load.command("sshfs");
        mount.args(["-F", &path("ssh_config"), &format!("far:{}", path("there")), &path("here")]);
        run(&mut mount)?;
        let here = dir.path().join("here");
        Ok(Sshfs { setup: setup.clone(), path: here, _server: server, _dir: dir })
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Sshfs {
    fn drop(&mut self) {
        if let Err(e) = run(self.setup.load.command("fusermount3").arg("-uz").arg(&self.path)) {
            eprintln!("  {}: {e:#}", self.path.display());
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    if !ran.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    }
    Ok(())
}
