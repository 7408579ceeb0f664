//! Namespaces, devices and addresses.
//!
//! Link `i`, counted from 1, is 10.77.`i`.1 at the client and 10.77.`i`.2 at
//! the server; with IPv6 fd77:`i`::1 and fd77:`i`::2. Its devices are called
//! `wan`*i* in either namespace, and not visible outside.

use crate::netns::Namespace;
use crate::{Error, sys};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const TUN: &str = "/dev/net/tun";

/// Packets that a device keeps until the emulator fetches them: as much as
/// 10 Gb/s bring in half a second in large packets.
const DEVICE_QUEUE: u32 = 10_000;

/// The reason why this machine, or this user, cannot create namespaces; `None` if it
/// probably can. Creates nothing.
pub(crate) fn without_namespaces() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("emulated links need root".into());
    }
    let tool = Command::new("ip").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !tool.is_ok_and(|status| status.success()) {
        return Some("emulated links need iproute2 (the program 'ip')".into());
    }
    if !Path::new("/proc/self/ns/net").exists() {
        return Some("emulated links need a kernel with network namespaces".into());
    }
    None
}

/// The reason why TUN devices cannot be used; `None` if they can.
pub(crate) fn without_tun() -> Option<String> {
    open_tun().err().map(|e| format!("emulated links need {TUN}: {e}"))
}

fn open_tun() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(TUN)
}

/// An end of link `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    Client = 1,
    Server = 2,
}

pub(crate) fn address(index: usize, end: LinkEnd) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, index as u8, end as u8)
}

pub(crate) fn address6(index: usize, end: LinkEnd) -> Ipv6Addr {
    // The digits are those of the decimal number.
    let decimal = u16::from_str_radix(&index.to_string(), 16).unwrap_or(0);
    Ipv6Addr::new(0xfd77, decimal, 0, 0, 0, 0, 0, end as u16)
}

pub(crate) fn device(index: usize) -> String {
    format!("wan{index}")
}

/// Brings up a new namespace.
pub(crate) fn prepare(namespace: &Namespace, tcp_buffers: Option<u64>) -> Result<(), Error> {
    ip(namespace, &["link set lo up".into()])?;
    namespace.run(|| {
        let Some(max) = tcp_buffers else { return Ok(()) };
        let set = |name: &str, value: String| {
            std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value)
                .map_err(Error::system(format!("cannot set net.ipv4.{name}")))
        };
        set("tcp_rmem", format!("4096 131072 {max}"))?;
        set("tcp_wmem", format!("4096 16384 {max}"))?;
        // Metrics that TCP caches must not carry over between connections.
        set("tcp_no_metrics_save", "1".into())
    })?
}

/// Creates the device of link `index` in a namespace.
pub(crate) fn attach(namespace: &Namespace, index: usize, end: LinkEnd, mtu: u32) -> Result<File, Error> {
    let name = device(index);
    let file = namespace.run(|| {
        let file = open_tun()?;
        sys::make_tun(&file, &name).map(|()| file)
    })?;
    let file = file.map_err(Error::system(format!("cannot make device {name}")))?;
    bring_up(namespace, index, end, mtu)?;
    Ok(file)
}

/// Gives the device of link `index` its addresses.
pub(crate) fn bring_up(namespace: &Namespace, index: usize, end: LinkEnd, mtu: u32) -> Result<(), Error> {
    let (name, address) = (device(index), address(index, end));
    let mut commands = vec![
        format!("link set {name} mtu {mtu} txqueuelen {DEVICE_QUEUE}"),
        format!("addr add {address}/24 dev {name}"),
    ];
    if Path::new("/proc/sys/net/ipv6").exists() {
        // Without link-local addresses the device sends nothing by itself.
        commands.push(format!("link set {name} addrgenmode none"));
        commands.push(format!("addr add {}/64 dev {name} nodad", address6(index, end)));
    }
    commands.push(format!("link set {name} up"));
    ip(namespace, &commands)
}

/// Packets that the kernel dropped before the emulator could fetch them.
pub(crate) fn device_drops(namespace: &Namespace, index: usize) -> u64 {
    let table = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
    table.ok().and_then(Result::ok).and_then(|table| parse_drops(&table, &device(index))).unwrap_or(0)
}

/// The column of dropped packets on transmission, the twelfth number.
fn parse_drops(table: &str, device: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

/// Runs commands of `ip` in a namespace.
pub(crate) fn ip(namespace: &Namespace, commands: &[String]) -> Result<(), Error> {
    let run = || {
        let mut child = Command::new("ip")
            .args(["-n", namespace.name(), "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all((commands.join("\n") + "\n").as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = run().map_err(Error::system("cannot run ip"))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).replace('\n', "; ");
    Err(Error::system(format!("ip in namespace {}", namespace.name()))(io::Error::other(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_from_the_table_of_devices() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes ...\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n \
                     wan1: 1 2 3 4 5 6 7 8 9 10 11 1234 13 14 15 16\n";
        assert_eq!(parse_drops(table, "wan1"), Some(1234));
        assert_eq!(parse_drops(table, "lo"), Some(12));
        assert_eq!(parse_drops(table, "wan"), None);
    }
}
