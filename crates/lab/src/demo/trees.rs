//! A tree of small files over one of the links: by `longhaul cp` and, where OpenSSH is
//! installed, by `scp`. Both encrypt, and the times exclude scp's login.

use super::files::DataSet;
use super::scp::Scp;
use super::temporary::TemporaryDir;
use super::{DemoOptions, LOOPBACK, Spread};
use crate::Error;
use crate::removal::remove_tree;
use longhaul_transfer::wire::{Durability, Options, Placement};
use longhaul_transfer::{
    Agent, AgentConfig, Concurrency, CopySpec, Endpoint, Key, Monitor, PATIENCE, Settings, copy,
};
use longhaul_wan::Relay;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory of the agent for data in flight.
const MEMORY: usize = 256 << 20;
/// Time of scp after which further rounds leave it out.
const PATIENT: Duration = Duration::from_secs(20);

/// Copies of a tree of small files by both programs.
#[derive(Clone, Debug)]
pub struct SmallFileCopies {
    /// Number of files.
    pub files: usize,
    /// Size of all files.
    pub bytes: u64,
    /// Seconds of `longhaul cp`.
    pub ours: Spread,
    /// Seconds of `scp`, or why it could not be measured.
    pub scp: Result<Spread, String>,
}

/// Copies the files of `source` in rounds, by Longhaul and scp in turn.
pub(super) fn measure(
    source: &DataSet,
    options: &DemoOptions,
    tell: &dyn Fn(&str),
) -> Result<SmallFileCopies, Error> {
    let temporary = TemporaryDir::make("demo-copies")?;
    let to = temporary.path();
    let key = Key::random().map_err(Error::failed)?;
    let agent = Agent::start(AgentConfig {
        listen: vec![LOOPBACK],
        root: Some(to.to_owned()),
        key: Some(key.clone()),
        read_only: false,
        allow_owner: false,
        onward: false,
        readers: Concurrency::Measured,
        writers: Concurrency::Measured,
        memory: MEMORY,
        patience: PATIENCE,
        congestion: None,
        engine: options.engine.clone(),
    })
    .map_err(Error::failed)?;
    let start = |target| Relay::start_with(&options.engine, LOOPBACK, target, options.link());
    let relay = start(agent.address()).map_err(Error::failed)?;
    let settings = Settings { key: Some(key), engine: options.engine.clone(), ..Settings::default() };
    let mut scp = Scp::start(to, &|target| start(target));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        tell(&format!("round {round} of {}: {} files by longhaul cp", options.rounds, source.files.len()));
        let uri = format!("lh://{}/ours", relay.local_addr());
        let spec = CopySpec {
            sources: vec![Endpoint::Local(source.dir.as_os_str().as_encoded_bytes().to_vec())],
            destination: Endpoint::parse(OsStr::new(&uri)).map_err(Error::failed)?,
            place: Placement::Guess,
            recursive: true,
            filters: Vec::new(),
            files: Vec::new(),
            rate: 0,
            manifest: Vec::new(),
            // No fsync, as with scp.
            options: Options { durability: Durability::None, ..Options::default() },
        };
        let began = Instant::now();
        copy(&spec, &settings, &Arc::new(Monitor::new()))?;
        ours.push(began.elapsed().as_secs_f64());
        remove(&to.join("ours"))?;
        let enough = theirs.iter().sum::<f64>() > PATIENT.as_secs_f64();
        if let (Ok(other), false) = (&scp, enough) {
            tell(&format!("round {round} of {}: the same by scp", options.rounds));
            match other.copy(&source.dir, to) {
                Ok(seconds) => theirs.push(seconds),
                Err(why) => scp = Err(why),
            }
        }
    }
    let spread = |seconds: &[f64]| Spread::of(seconds).ok_or("it took no time".to_owned());
    Ok(SmallFileCopies {
        files: source.files.len(),
        bytes: source.bytes(),
        ours: spread(&ours).map_err(Error::failed)?,
        scp: scp.map(drop).and_then(|()| spread(&theirs)),
    })
}

/// Removes a copy, so that the next one does not find its files.
pub(super) fn remove(copy: &Path) -> Result<(), Error> {
    remove_tree(copy).map_err(|e| Error::failed(format!("cannot remove {}: {e}", copy.display())))
}
