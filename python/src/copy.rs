//! Copies of trees of files: what `longhaul cp` does.

use crate::connect::seconds;
use crate::{error, wait};
use longhaul_device::{Error, ErrorKind, state};
use longhaul_transfer::wire::{Durability, Hash, Op, Options, Placement};
use longhaul_transfer::{
    Concurrency, CopySpec, Endpoint, Filter, Key, KnownPaths, Monitor, Settings, Ssh, Summary,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// Files that failed which an error names.
const NAMED: usize = 5;

/// What a copy takes beside its ends.
#[derive(Debug, FromPyObject)]
pub(crate) struct CopyArguments {
    #[pyo3(item)]
    recursive: bool,
    #[pyo3(item)]
    exclude: Vec<String>,
    #[pyo3(item)]
    include: Vec<String>,
    #[pyo3(item)]
    owner: bool,
    #[pyo3(item)]
    xattrs: bool,
    #[pyo3(item)]
    checksum: String,
    #[pyo3(item)]
    fsync: String,
    #[pyo3(item)]
    verify_after: bool,
    /// Bits a second.
    #[pyo3(item)]
    rate_limit: Option<u64>,
    #[pyo3(item)]
    connections: Option<usize>,
    #[pyo3(item)]
    key_file: Option<PathBuf>,
    #[pyo3(item)]
    ssh: Vec<String>,
    #[pyo3(item)]
    remote_program: String,
    #[pyo3(item)]
    congestion: Option<String>,
    #[pyo3(item)]
    connect_timeout: f64,
    #[pyo3(item)]
    timeout: f64,
}

impl CopyArguments {
    fn options(&self, py: Python<'_>) -> PyResult<Options> {
        Ok(Options {
            hash: match self.checksum.as_str() {
                "xxh3" => Hash::Quick,
                "blake3" => Hash::Strong,
                other => {
                    return Err(error::invalid(py, format!("checksum is 'xxh3' or 'blake3', not '{other}'")));
                }
            },
            durability: match self.fsync.as_str() {
                "none" => Durability::None,
                "end" => Durability::End,
                "file" => Durability::File,
                other => {
                    return Err(error::invalid(
                        py,
                        format!("fsync is 'none', 'end' or 'file', not '{other}'"),
                    ));
                }
            },
            owner: self.owner,
            xattrs: self.xattrs,
            verify: self.verify_after,
            ..Options::default()
        })
    }

    fn spec(&self, py: Python<'_>, sources: &[OsString], destination: &OsString) -> PyResult<CopySpec> {
        let endpoint = |text: &OsString| Endpoint::parse(text).map_err(|e| error::invalid(py, e));
        let taken = self.include.iter().map(|pattern| format!("+{pattern}"));
        let filters: Vec<String> =
            taken.chain(self.exclude.iter().map(|pattern| format!("-{pattern}"))).collect();
        Filter::new(&filters).map_err(|e| error::invalid(py, e))?;
        Ok(CopySpec {
            sources: sources.iter().map(endpoint).collect::<PyResult<_>>()?,
            destination: endpoint(destination)?,
            place: Placement::Guess,
            recursive: self.recursive,
            filters,
            files: Vec::new(),
            // A rate of 0 means no limit, so that limits below 8 bits a second are rounded up.
            rate: self.rate_limit.map_or(0, |bits| (bits / 8).max(1)),
            manifest: Vec::new(),
            options: self.options(py)?,
        })
    }

    fn settings(&self, py: Python<'_>) -> PyResult<Settings> {
        let key = self.key_file.as_deref().map(|path| {
            Key::load(path).map_err(|e| {
                error::of_device(py, &Error::new(ErrorKind::Failed, format_args!("{}: {e}", path.display())))
            })
        });
        Ok(Settings {
            ssh: Ssh {
                program: self.ssh.clone(),
                remote_program: self.remote_program.clone(),
                ..Ssh::default()
            },
            key: key.transpose()?,
            streams: self.connections.map_or(Concurrency::Measured, Concurrency::Fixed),
            known_paths: Some(KnownPaths::at(state::directory().join("paths"))),
            connect: seconds(py, "connect_timeout", self.connect_timeout)?,
            silence: seconds(py, "timeout", self.timeout.max(1.0))?,
            congestion: self.congestion.clone(),
            ..Settings::default()
        })
    }
}

/// Why the copy is not complete, with the first files that failed; `None` if all were copied.
fn incomplete(summary: &Summary, monitor: &Monitor) -> Option<Error> {
    let failed = summary.counts.failed;
    let troubles: Vec<_> =
        monitor.take_troubles().into_iter().filter(|trouble| trouble.op != Op::Skip).collect();
    if failed == 0 {
        return None;
    }
    let named: Vec<String> = troubles
        .iter()
        .take(NAMED)
        .map(|trouble| format!("{}: {} ({})", trouble.path, trouble.message, trouble.op.name()))
        .collect();
    let is_wrong = troubles.iter().any(|trouble| trouble.op == Op::Verify);
    let kind = if is_wrong { ErrorKind::Mismatch } else { ErrorKind::Incomplete };
    let why = named.join("; ");
    let message = format!("{failed} of the files and directories could not be copied: {why}");
    Some(Error::new(kind, message))
}

/// Copies; a dictionary of counts.
#[pyfunction]
pub(crate) fn cp<'py>(
    py: Python<'py>,
    sources: Vec<OsString>,
    destination: OsString,
    arguments: CopyArguments,
) -> PyResult<Bound<'py, PyDict>> {
    let (spec, settings) = (arguments.spec(py, &sources, &destination)?, arguments.settings(py)?);
    let monitor = Arc::new(Monitor::new());
    let shared = Arc::clone(&monitor);
    let copied =
        wait::patiently(py, move || longhaul_transfer::copy(&spec, &settings, &shared), || monitor.cancel())?;
    let summary = copied.map_err(|e| {
        let kind = ErrorKind::of(Some(e.kind_number()));
        error::of_device(py, &Error::new(kind, format_args!("{e}{}", e.hint())))
    })?;
    if let Some(e) = incomplete(&summary, &monitor) {
        return Err(error::of_device(py, &e));
    }
    let result = PyDict::new(py);
    result.set_item("files", summary.counts.files)?;
    result.set_item("others", summary.counts.others)?;
    result.set_item("bytes", summary.counts.bytes)?;
    result.set_item("same", summary.counts.same)?;
    result.set_item("seconds", summary.elapsed.as_secs_f64())?;
    result.set_item("resumed", summary.resumed)?;
    result.set_item("connections", summary.streams)?;
    Ok(result)
}
