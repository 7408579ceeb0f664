//! The kernel's own NVMe/TCP host on a target of this process.

use super::{KernelSide, appears, open};
use crate::device::Local;
use crate::error::AttachError;
use crate::served::Requests;
use longhaul_target::{Config, HostAccess, HostLists, Target};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// The control file that makes connections, and the kernel module that provides it.
const FABRICS: &str = "/dev/nvme-fabrics";
const MODULE: &str = "nvme-tcp";
/// The prefix of the NQN of each subsystem served in this way.
const PREFIX: &str = "nqn.2014-08.org.nvmexpress:longhaul:attach:";

/// Keep-alive interval and controller loss timeout in seconds: if this process ends, its target
/// does not come back.
const KEEP_ALIVE: u32 = 30;
const LOSS: u32 = 10;

/// A controller of the kernel, and the target that it is connected to.
pub(super) struct Host {
    device: PathBuf,
    nqn: String,
    target: Option<Target>,
}

impl Host {
    pub(super) fn start(requests: &Arc<dyn Requests>) -> Result<Host, AttachError> {
        let mut fabrics = open(Path::new(FABRICS), MODULE)?;
        let id = Uuid::new_v4();
        let (nqn, host) = (format!("{PREFIX}{id}"), format!("nqn.2014-08.org.nvmexpress:uuid:{id}"));
        // Every program on this machine reaches the port: the target admits only
        // the random host NQN, which only the kernel knows.
        let only = HostAccess::Only(BTreeSet::from([host.clone()]));
        let hosts = HostLists { all: only.into(), ..HostLists::default() };
        let listen = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))];
        let failed =
            |e: longhaul_target::Error| AttachError::NoKernel(format!("the target on loopback: {e}"));
        let target =
            Target::start(Config { listen, hosts, threads: 1, ..Config::default() }).map_err(failed)?;
        let device = Arc::new(Local::new(Arc::clone(requests)));
        // Not the identity of the device behind it: the kernel refuses a second path with the same
        // one.
        target.export(&nqn, "attached", device, id).map_err(failed)?;
        let port = target.addresses().first().map_or(0, SocketAddr::port);
        let wish = format!(
            "transport=tcp,traddr=127.0.0.1,trsvcid={port},nqn={nqn},hostnqn={host},hostid={id},\
             keep_alive_tmo={KEEP_ALIVE},reconnect_delay=1,ctrl_loss_tmo={LOSS}"
        );
        let refused = |e| AttachError::NoKernel(format!("the kernel's NVMe host did not connect: {e}"));
        fabrics.write_all(wish.as_bytes()).map_err(refused)?;
        let mut said = String::new();
        // The answer names the new controller; success is all that matters here.
        fabrics.read_to_string(&mut said).map_err(refused)?;
        let mut host = Host { device: PathBuf::new(), nqn, target: Some(target) };
        // If a later step fails, dropping this removes the controller.
        host.device = appears("the namespace's block device", || namespace(&host.nqn))?;
        Ok(host)
    }
}

/// The block device of the only namespace of a subsystem.
fn namespace(nqn: &str) -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/block").ok()?.flatten();
    let is_it = |path: &Path| {
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        read("device/subsysnqn").trim() == nqn && read("hidden").trim() != "1"
    };
    let found = entries.map(|entry| entry.path()).find(|path| is_it(path))?;
    Some(Path::new("/dev").join(found.file_name()?)).filter(|device| device.exists())
}

/// Has the kernel disconnect from a subsystem.
fn disconnect(nqn: &str) -> Result<(), AttachError> {
    for entry in fs::read_dir("/sys/class/nvme").into_iter().flatten().flatten() {
        let controller = entry.path();
        let is_it = fs::read_to_string(controller.join("subsysnqn")).is_ok_and(|of| of.trim() == nqn);
        if is_it {
            let delete = controller.join("delete_controller");
            let what = format!("{}: disconnecting", delete.display());
            fs::write(delete, "1").map_err(AttachError::system(what))?;
        }
    }
    Ok(())
}

/// Removes the controller that a process that has ended left behind for `device`, if it was one of
/// these.
pub(super) fn forget(device: &Path) -> Result<(), AttachError> {
    let Some(name) = device.file_name() else { return Ok(()) };
    let nqn = fs::read_to_string(Path::new("/sys/block").join(name).join("device/subsysnqn"));
    match nqn.as_deref().map(str::trim) {
        Ok(nqn) if nqn.starts_with(PREFIX) => disconnect(nqn),
        _ => Ok(()),
    }
}

impl KernelSide for Host {
    fn device(&self) -> &Path {
        &self.device
    }

    /// The target notices it by itself, within a second, and tells the host.
    fn resize(&mut self, _size: u64) -> Result<(), AttachError> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), AttachError> {
        // The target ends last, so that the host can shut its controller down in order.
        let Some(target) = self.target.take() else { return Ok(()) };
        let disconnected = disconnect(&self.nqn);
        target.stop();
        disconnected
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{e}");
        }
    }
}
