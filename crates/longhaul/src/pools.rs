//! How verbs reach pools: the catalog, and the targets.

use crate::arguments::InitiatorArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_catalog::CatalogSpec;
use longhaul_pool::{Error, KnownPool, Pool, Targets, wall_time};
use std::sync::Arc;

/// Options of all verbs that use pools.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PoolArgs {
    /// The catalog: file:PATH, or etcd:HOST:PORT[,HOST:PORT…][/PREFIX] [default: the
    /// one that this host knows the pool by]
    #[arg(long, value_name = "CATALOG")]
    pub(crate) catalog: Option<CatalogSpec>,
    #[command(flatten)]
    pub(crate) initiator: InitiatorArgs,
}

/// A pool, with what it was opened by.
pub(crate) struct OpenPool {
    pub(crate) pool: Pool,
    pub(crate) known: KnownPool,
    pub(crate) targets: Arc<Targets>,
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        longhaul_device::Error::from(e).into()
    }
}

impl PoolArgs {
    /// Connections to targets.
    pub(crate) fn targets(&self) -> Result<Arc<Targets>, Failure> {
        Ok(Arc::new(Targets::new(self.initiator.options())?))
    }

    /// NQN of this host.
    pub(crate) fn hostnqn(&self) -> String {
        self.initiator.options().hostnqn
    }

    /// Opens a pool. One in a catalog that is named is known on this host from then on.
    pub(crate) fn open(&self, name: &str) -> Result<OpenPool, Failure> {
        let known = match &self.catalog {
            Some(catalog) => KnownPool::new(name, catalog)?,
            None => KnownPool::find(name)?,
        };
        let targets = self.targets()?;
        let pool = Pool::open(&known.host(Arc::clone(&targets))?, name)?;
        known.save()?;
        Ok(OpenPool { pool, known, targets })
    }

    /// Opens a pool, and finishes what waits in it: see [`Pool::collect`]. What still waits after that
    /// does not keep the command from its work.
    pub(crate) fn open_and_collect(&self, name: &str) -> Result<(OpenPool, Vec<String>), Failure> {
        let opened = self.open(name)?;
        let waiting = opened.pool.collect(wall_time())?.waiting;
        for why in &waiting {
            tracing::info!("pool {name}: {why}");
        }
        Ok((opened, waiting))
    }
}

/// Ends a command whose work is done but for what waits for targets.
pub(crate) fn end(waiting: &[String], what: &str, output: Output) -> Outcome {
    if waiting.is_empty() {
        return Ok(());
    }
    for why in waiting {
        output.note(format_args!("waiting: {why}"));
    }
    let message = format!("{what}: {} targets cannot be reached; a later command finishes it", waiting.len());
    Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) })
}
