//! How verbs reach pools: the catalog, and the targets.

use crate::arguments::InitiatorArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_catalog::CatalogSpec;
use longhaul_device::arrays::{ArrayClient, ArrayRecord, ArrayRequest};
use longhaul_pool::{Error, KnownPool, Pool, Targets, wall_time};
use std::sync::Arc;

/// Options of all verbs that use pools.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PoolArgs {
    /// The catalog: file:PATH, server:HOST[:PORT], or
    /// etcd:HOST:PORT[,HOST:PORT…][/PREFIX] [default: the one that this host knows
    /// the pool by]
    #[arg(long, value_name = "CATALOG")]
    pub(crate) catalog: Option<CatalogSpec>,
    #[command(flatten)]
    pub(crate) initiator: InitiatorArgs,
}

/// A volume that is for no host.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct NoHost {
    /// For no host until volume open names one
    #[arg(long, conflicts_with = "hosts")]
    pub(crate) no_host: bool,
}

impl NoHost {
    /// The hosts that may use a volume: this one, unless others are named, or none is to.
    pub(crate) fn or_default(self, named: &[String], own: &str) -> Vec<String> {
        if named.is_empty() && !self.no_host { vec![own.to_owned()] } else { named.to_vec() }
    }
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
        let pool = Pool::open(&known.host(Arc::clone(&targets))?, name);
        let pool = pool.map_err(|e| without_catalog(name, e.into()))?;
        known.save()?;
        Ok(OpenPool { pool, known, targets })
    }

    /// Opens a pool, and finishes what waits in it: see [`Pool::collect`]. What still waits after that
    /// does not keep the command from its work.
    /// A pool that another catalog has taken over is refused.
    pub(crate) fn open_and_collect(&self, name: &str) -> Result<(OpenPool, Vec<String>), Failure> {
        let mut opened = self.open(name)?;
        opened.pool.check_managed()?;
        opened.pool.record_manager()?;
        let waiting = opened.pool.collect(wall_time())?.waiting;
        for why in &waiting {
            tracing::info!("pool {name}: {why}");
        }
        Ok((opened, waiting))
    }
}

/// A failure of a command, with the volumes that go on all the same if the catalog cannot be reached: what keeps
/// two hosts from writing to one is at its members.
fn without_catalog(pool: &str, failure: Failure) -> Failure {
    if failure.exit != Exit::Unreachable {
        return failure;
    }
    let mut volumes: Vec<String> = ArrayRecord::of_volumes()
        .unwrap_or_default()
        .into_iter()
        .filter(|record| record.name.split_once('/').is_some_and(|(of, _)| of == pool))
        .filter_map(|record| {
            let status = ArrayClient::ask(&record, &ArrayRequest::Status)?.ok()?;
            let guard = match status["guard"].as_str()? {
                "reservations" => "reservations at its members keep other hosts from writing",
                "mixed" => "reservations and heartbeats at its members keep other hosts from writing",
                _ => {
                    "heartbeats at its members keep other hosts from writing, and it stops 4 s after the last"
                }
            };
            Some(format!("volume {} is in use on this host and goes on: {guard}", record.name))
        })
        .collect();
    if volumes.is_empty() {
        return failure;
    }
    volumes.sort_unstable();
    Failure { message: format!("{}; {}", failure.message, volumes.join("; ")), ..failure }
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
