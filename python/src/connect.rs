//! Options of connections to targets.

use crate::error;
use longhaul_device::Opener;
use longhaul_device::keys::KeyDirectory;
use longhaul_initiator::{Options, TLS_MISSING};
use longhaul_pool::Volumes;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How targets are reached: `None` is the default of the command line. Times are in seconds.
#[derive(Debug, FromPyObject)]
pub(crate) struct Connect {
    #[pyo3(item)]
    keys: Option<PathBuf>,
    #[pyo3(item)]
    hostnqn: Option<String>,
    #[pyo3(item)]
    tls: bool,
    #[pyo3(item)]
    connect_timeout: Option<f64>,
    /// Infinite: for ever.
    #[pyo3(item)]
    ctrl_loss_timeout: Option<f64>,
    #[pyo3(item)]
    congestion: Option<String>,
}

/// A time in seconds.
pub(crate) fn seconds(py: Python<'_>, name: &str, time: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(time).map_err(|e| error::invalid(py, format_args!("{name}: {e}")))
}

impl Connect {
    /// An opener of devices with these options, which knows volumes too.
    pub(crate) fn opener(&self, py: Python<'_>) -> PyResult<Opener> {
        if self.tls && !cfg!(feature = "tls") {
            return Err(error::invalid(py, TLS_MISSING));
        }
        let defaults = Options::default();
        let keys = self.keys.as_deref().map(KeyDirectory::open).transpose();
        let keys = keys.map_err(|e| error::of_device(py, &e))?;
        let options = Options {
            hostnqn: self.hostnqn.clone().unwrap_or(defaults.hostnqn),
            keys: keys.map(|keys| Arc::new(keys) as _),
            tls: self.tls,
            connect_timeout: match self.connect_timeout {
                Some(time) => seconds(py, "connect_timeout", time)?,
                None => defaults.connect_timeout,
            },
            ctrl_loss: match self.ctrl_loss_timeout {
                Some(f64::INFINITY) => None,
                Some(time) => Some(seconds(py, "ctrl_loss_timeout", time)?),
                None => defaults.ctrl_loss,
            },
            congestion: self.congestion.clone(),
            ..defaults
        };
        Ok(Opener::new(options).with_scheme(Arc::new(Volumes)))
    }
}
