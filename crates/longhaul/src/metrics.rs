//! `--metrics` of verbs that serve.

use crate::arguments::resolve;
use crate::exit::Failure;
use longhaul_engine::address::{self, ListenAddress};
use longhaul_metrics::{Bound, Server};

/// Port of metrics: that of exporters of OpenTelemetry, in Prometheus's list of ports.
const METRICS_PORT: u16 = 9464;

/// Where metrics are served.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MetricsArgs {
    /// Serve metrics for Prometheus at this address and port (default port: 9464): /metrics, /healthz
    /// and /readyz
    #[arg(long, value_name = "ADDR:PORT", value_parser = address::listen::<METRICS_PORT>)]
    metrics: Option<ListenAddress>,
}

impl MetricsArgs {
    /// Whether metrics are asked for.
    pub(crate) fn is_on(&self) -> bool {
        self.metrics.is_some()
    }

    /// Listens with the rights that the process has now, if metrics are asked for, and starts no thread.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub(crate) fn bind(&self) -> Result<Option<Bound>, Failure> {
        let Some(listen) = &self.metrics else { return Ok(None) };
        Bound::bind(resolve(listen)?).map(Some).map_err(Failure::failed)
    }

    /// Serves metrics from now on, if they are asked for; until [`Server::set_ready`] the program is not
    /// ready, for the reason `not_ready`.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind), and [`start`].
    pub(crate) fn start(&self, not_ready: &str) -> Result<Option<Server>, Failure> {
        start(self.bind()?, not_ready)
    }
}

/// Serves metrics where it is listened.
///
/// # Errors
/// No thread can be started.
pub(crate) fn start(bound: Option<Bound>, not_ready: &str) -> Result<Option<Server>, Failure> {
    let failed = |e| Failure::failed(format_args!("cannot start a thread for metrics: {e}"));
    bound.map(|bound| bound.start(not_ready)).transpose().map_err(failed)
}
