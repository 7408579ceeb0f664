//! Helpers for unit tests.

use longhaul_engine::{Config, Engine};

/// Runs a future on an engine of the calling thread.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    Engine::new(&Config::default()).expect("engine").block_on(future)
}
