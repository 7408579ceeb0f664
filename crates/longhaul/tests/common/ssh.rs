//! A fake ssh, and a real one on loopback.

use super::text;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes a fake ssh: `ssh -G` prints the host name `name`, and commands run on this machine, with
/// `listens` as the server's address in `SSH_CONNECTION`.
pub fn fake_ssh(dir: &Path, name: &str, listens: &str) -> PathBuf {
    let ssh = dir.join("ssh");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -G ] && echo hostname {name} && exit\n\
         while [ \"$1\" != far ]; do shift; done\n\
         export SSH_CONNECTION=\"{listens} 1 {listens} 22\"\ncd {} && exec sh -c \"$2\"\n",
        text(dir)
    );
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("set");
    ssh
}

/// Prepares an `sshd` that serves one connection on its standard input, with a key of its own.
/// Returns the option of `cp` that reaches it as "far", or why `sshd` cannot be used here.
pub fn sshd(dir: &Path) -> Result<String, String> {
    let server = Path::new("/usr/sbin/sshd");
    if !server.exists() {
        return Err("there is no sshd".into());
    }
    let path = |name: &str| text(&dir.join(name)).to_owned();
    for key in ["host", "user"] {
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).status();
        made.map_err(|e| format!("ssh-keygen: {e}"))?;
    }
    let config = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
         PermitRootLogin prohibit-password\nPidFile none\n",
        path("host"),
        path("user.pub")
    );
    fs::write(path("sshd_config"), config).expect("written");
    let config = format!(
        "Host far\nHostName 127.0.0.1\nProxyCommand {} -i -e -f {}\nIdentityFile {}\nIdentitiesOnly yes\n\
         UserKnownHostsFile {}\nStrictHostKeyChecking accept-new\nBatchMode yes\nLogLevel ERROR\n",
        text(server),
        path("sshd_config"),
        path("user"),
        path("known")
    );
    fs::write(path("ssh_config"), config).expect("written");
    let tried = Command::new("ssh").args(["-F", &path("ssh_config"), "far", "true"]).output();
    let tried = tried.map_err(|e| format!("ssh: {e}"))?;
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    if tried.status.success() { Ok(format!("ssh -F {}", path("ssh_config"))) } else { Err(said) }
}
