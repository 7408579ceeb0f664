//! Targets that are far away: over a relay that delays loopback, or behind an emulated link.

use super::{PROGRAM, Target, emulated};
use longhaul_wan::{Conditions, Wan, WanPlan};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts a target with `command`, which runs the program in its namespace.
pub fn serve(mut command: Command, listen: IpAddr, export: &str) -> Target {
    let listen = format!("{}", SocketAddr::new(listen, 0));
    command.args(["target", "--json", "--insecure", "--listen", &listen, "--export", export]);
    command.env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null()).stdout(Stdio::piped());
    Target::spawn(command)
}

/// Address that the target listens on.
pub fn address(target: &Target) -> SocketAddr {
    target.addr().parse().expect("an address")
}

/// An emulated link of `rate` bit/s; `None`, with the reason on standard error, where it cannot be made.
pub fn link(rtt: Duration, rate: u64) -> Option<Wan> {
    emulated(WanPlan::new(WanPlan::unique_name("d"), Conditions::new(rtt, Some(rate))))
}

/// Starts a target behind the first link.
pub fn serve_behind(wan: &Wan, export: &str) -> Target {
    serve(wan.server(1).bound_command(PROGRAM), wan.server_address(1).into(), export)
}
