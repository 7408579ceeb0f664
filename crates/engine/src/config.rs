//! How an engine is set up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Environment variable that forces the driver: `uring`, `epoll` or `auto`.
pub(crate) const ENGINE_ENV: &str = "LONGHAUL_ENGINE";

/// Upper bound of the adaptive spin before an idle engine goes to sleep.
/// About two loopback round trips of a small message: longer waits are not
/// worth a core.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// The kernel interface that an engine uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// io_uring where it works, else epoll.
    #[default]
    Auto,
    /// io_uring, where the kernel supports it.
    Uring,
    /// epoll, with file I/O on helper threads.
    Epoll,
    /// Virtual time, without sockets and files: what
    /// [`Engine::simulated`](crate::Engine::simulated) makes, and nothing else.
    Simulated,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(s: &str) -> Result<Kind, String> {
        match s {
            "auto" | "" => Ok(Kind::Auto),
            "uring" | "io_uring" => Ok(Kind::Uring),
            "epoll" => Ok(Kind::Epoll),
            _ => Err(format!("unknown engine '{s}': use uring, epoll or auto")),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Auto => "auto",
            Kind::Uring => "uring",
            Kind::Epoll => "epoll",
            Kind::Simulated => "simulated",
        })
    }
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which driver; `Auto` also looks at the environment variable
    /// `LONGHAUL_ENGINE`.
    pub kind: Kind,
    /// Longest spin before sleep; zero never spins. The spin adapts below
    /// this bound: it grows while events come soon, and stops when they do
    /// not or when the core is wanted by others.
    pub spin: Duration,
    /// Pins the engine's thread to this processor (for [`crate::Thread`]).
    pub cpu: Option<usize>,
}

impl Default for Config {
    fn default() -> Config {
        Config { kind: Kind::Auto, spin: SPIN_MAX, cpu: None }
    }
}

impl Config {
    /// The driver that is asked for, the environment included.
    pub(crate) fn wanted(&self) -> Result<Kind, String> {
        match self.kind {
            Kind::Auto => std::env::var(ENGINE_ENV).unwrap_or_default().parse(),
            kind => Ok(kind),
        }
    }
}
