//! System calls for which there is no safe wrapper.

use crate::netns::Namespace;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Offloads of the device: checksums, TCP segmentation. From
/// `linux/if_tun.h`: `TUN_F_CSUM`, `TSO4`, `TSO6`, `TSO_ECN`.
const OFFLOADS: libc::c_uint = 0x0f;
/// UDP segments as well (`TUN_F_USO4`, `USO6`), since Linux 6.2.
const OFFLOADS_UDP: libc::c_uint = OFFLOADS | 0x60;

/// Lowest real-time priority: above all threads without one.
const PRIORITY: c_int = 1;

/// Makes `file`, an open `/dev/net/tun`, a new device in the network namespace of the calling
/// thread. The device is removed when the file is closed.
pub(crate) fn make_tun(file: &File, name: &str) -> io::Result<()> {
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of the device is too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    let fd = file.as_raw_fd();
    // SAFETY: TUNSETIFF reads and writes an ifreq.
    done(unsafe { libc::ioctl(fd, libc::TUNSETIFF as libc::Ioctl, &raw mut request) })?;
    // SAFETY: TUNSETOFFLOAD takes a number.
    let set = |bits: libc::c_uint| done(unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD as libc::Ioctl, bits) });
    set(OFFLOADS_UDP).or_else(|_| set(OFFLOADS))
}

/// Real-time priority for the calling thread, not for its children.
pub(crate) fn become_real_time() -> io::Result<()> {
    // As a system call: the function of musl always fails.
    let (policy, priority) = (libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, PRIORITY);
    // SAFETY: it reads the parameters, which are a priority alone; 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn done(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets the command run within a namespace.
pub(crate) fn run_within(command: &mut Command, namespace: Namespace) {
    // SAFETY: between fork and exec only one system call is made, and nothing
    // is allocated: the error is a number.
    unsafe { command.pre_exec(move || Ok(namespace.enter()?)) };
}

/// Sends SIGTERM to the command when the thread that starts it ends.
pub(crate) fn end_with_starter(command: &mut Command) {
    // SAFETY: as above.
    unsafe {
        command.pre_exec(|| {
            let signal = Some(rustix::process::Signal::TERM);
            Ok(rustix::process::set_parent_process_death_signal(signal)?)
        });
    }
}
