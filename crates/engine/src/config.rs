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
pub enum EngineKind {
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

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(s: &str) -> Result<EngineKind, String> {
        match s {
            "auto" | "" => Ok(EngineKind::Auto),
            "uring" | "io_uring" => Ok(EngineKind::Uring),
            "epoll" => Ok(EngineKind::Epoll),
            _ => Err(format!("unknown engine '{s}': use uring, epoll or auto")),
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineKind::Auto => "auto",
            EngineKind::Uring => "uring",
            EngineKind::Epoll => "epoll",
            EngineKind::Simulated => "simulated",
        })
    }
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which driver; `Auto` also looks at the environment variable
    /// `LONGHAUL_ENGINE`.
    pub kind: EngineKind,
    /// Longest spin before sleep; zero never spins. The spin adapts below
    /// this bound: it grows while events come soon, and stops when they do
    /// not or when the core is wanted by others.
    pub spin: Duration,
    /// Pins the engine's thread to this processor (for [`crate::Thread`]).
    pub cpu: Option<usize>,
}

impl Default for Config {
    fn default() -> Config {
        Config { kind: EngineKind::Auto, spin: SPIN_MAX, cpu: None }
    }
}

impl Config {
    /// The driver that is asked for, the environment included.
    pub(crate) fn wanted(&self) -> Result<EngineKind, String> {
        match self.kind {
            EngineKind::Auto => std::env::var(ENGINE_ENV).unwrap_or_default().parse(),
            kind => Ok(kind),
        }
    }
}
