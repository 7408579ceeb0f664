//! Copies, from the side that starts them.

pub(crate) mod endpoint;
pub(crate) mod ssh;
pub(crate) mod task;

use crate::agent::STREAMS;
use crate::host;
use crate::link::noise::Key;
use crate::monitor::Monitor;
use crate::receive::null_sink::is_null_sink;
use crate::send::synthetic;
use crate::session::error::SessionError;
use crate::tree::MountedFs;
use crate::tree::root::{Root, last_name, means_contents, split, trimmed};
use crate::tune::{Concurrency, KnownPaths};
use crate::wire::{CopyDirection, Counts, Onward, Options, Placement, Refusal, RefusalKind, Request, show};
use endpoint::{Endpoint, Server};
use futures_util::future::{Either, select};
use longhaul_engine::{Config, Thread};
use ssh::{Remote, Ssh, Via};
use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use task::CopyTask;

/// What to copy.
#[derive(Clone, Debug)]
pub struct CopySpec {
    /// Sources: all paths of this machine, all in one file system, or all at one agent.
    pub sources: Vec<Endpoint>,
    /// Where the objects are copied to.
    pub destination: Endpoint,
    /// Whether sources go into the destination or in its place.
    pub place: Placement,
    /// Whether directories are copied.
    pub recursive: bool,
    /// Include and exclude rules; see [`crate::Filter`].
    pub filters: Vec<String>,
    /// Copies only these paths below each source; empty for all.
    pub files: Vec<Vec<u8>>,
    /// Rate limit in bytes a second; 0 for none.
    pub rate: u64,
    /// Name of the manifest in the destination, which lists all files with their BLAKE3
    /// checksums; empty for none.
    pub manifest: Vec<u8>,
    /// Options of the receiver.
    pub options: Options,
}

/// How a copy is carried out.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of data connections.
    pub streams: Concurrency,
    /// Where numbers of connections are kept from one copy to the next, by the address that is sent to.
    pub known_paths: Option<KnownPaths>,
    /// Reader threads on this machine.
    pub readers: Concurrency,
    /// Writer threads on this machine.
    pub writers: Concurrency,
    /// Bytes of read data that may wait to be sent; [`None`] for as much as keeps readers
    /// and connections busy.
    pub read_ahead: Option<usize>,
    /// Pre-shared key of the agent; encrypts the connections.
    pub key: Option<Key>,
    /// How agents are started over ssh.
    pub ssh: Ssh,
    /// Timeout for connecting.
    pub connect: Duration,
    /// How long sent data may stay unacknowledged before a connection is given up.
    pub silence: Duration,
    /// TCP congestion control of sent data, by the kernel's name.
    pub congestion: Option<String>,
    /// The file systems of endpoints that name one.
    pub file_systems: Vec<MountedFs>,
    /// Settings of the engine.
    pub engine: Config,
}

impl Settings {
    /// What the paths of an endpoint on this machine are resolved in.
    fn root_of(&self, endpoint: Option<&Endpoint>) -> Result<Root, CopyError> {
        let Some(name) = endpoint.and_then(Endpoint::file_system) else { return Ok(Root::Here) };
        let found = self.file_systems.iter().find(|fs| fs.name() == name);
        let missing = || CopyError::Usage(format!("the file system fs:{name} is not open"));
        found.cloned().map(Root::Mounted).ok_or_else(missing)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            streams: Concurrency::Measured,
            known_paths: None,
            readers: Concurrency::Measured,
            writers: Concurrency::Measured,
            read_ahead: None,
            key: None,
            ssh: Ssh::default(),
            connect: Duration::from_secs(30),
            silence: crate::link::SILENCE,
            congestion: None,
            file_systems: Vec::new(),
            engine: Config::default(),
        }
    }
}

/// Result of a copy.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Objects and bytes by outcome.
    pub counts: Counts,
    /// Duration, without the start of agents over ssh.
    pub elapsed: Duration,
    /// Whether the copy resumed an interrupted run.
    pub resumed: bool,
    /// Data connections used; 0 in a local or third-party copy.
    pub streams: u16,
    /// TCP congestion control of the sender, if it is known.
    pub congestion: Option<String>,
    /// Whether the data went through ssh.
    pub through_ssh: bool,
}

/// Why a copy could not begin, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Sources, destination or options do not go together.
    #[error("{0}")]
    Usage(String),
    /// The agent cannot be reached.
    #[error("cannot reach {server}: {reason}")]
    Unreachable {
        /// Host and port.
        server: String,
        /// The cause, in words.
        reason: String,
    },
    /// Connecting took too long.
    #[error("cannot reach {server} within {} s", .after.as_secs())]
    TimedOut {
        /// Host and port.
        server: String,
        /// The time limit that expired.
        after: Duration,
    },
    /// One of the sides refused.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The session failed.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// The monitor has cancelled it.
    #[error("the copy was interrupted")]
    Cancelled,
}

impl CopyError {
    /// Whether the error is one of the connection, so that another route may work.
    pub(crate) fn is_connection_error(&self) -> bool {
        matches!(
            self,
            CopyError::Unreachable { .. }
                | CopyError::TimedOut { .. }
                | CopyError::Session(SessionError::Link(_) | SessionError::Lost)
        )
    }

    /// Advice to append to the message; may be empty.
    pub fn hint(&self) -> &'static str {
        match self {
            CopyError::Session(SessionError::Link(_) | SessionError::Lost | SessionError::Silent(_))
            | CopyError::Cancelled => "; the same command resumes the copy",
            _ => "",
        }
    }

    /// The class of the error, by the number of `longhaul_device::ErrorKind` that the program ends with.
    pub fn kind_number(&self) -> u64 {
        let (failed, invalid, incomplete, unreachable, refused, timed_out) = (1, 2, 3, 5, 6, 7);
        match self {
            CopyError::Usage(_) => invalid,
            CopyError::Unreachable { .. } => unreachable,
            CopyError::TimedOut { .. } | CopyError::Session(SessionError::Silent(_)) => timed_out,
            CopyError::Refused(refusal) | CopyError::Session(SessionError::Refused(refusal)) => {
                match refusal.kind {
                    RefusalKind::NotAllowed | RefusalKind::Version | RefusalKind::Busy => refused,
                    RefusalKind::Unreachable => unreachable,
                    RefusalKind::TimedOut => timed_out,
                    _ => failed,
                }
            }
            CopyError::Session(SessionError::Link(_) | SessionError::Lost) => unreachable,
            CopyError::Session(_) => failed,
            CopyError::Cancelled => incomplete,
        }
    }
}

impl From<crate::LinkError> for CopyError {
    fn from(e: crate::LinkError) -> CopyError {
        CopyError::Session(e.into())
    }
}

impl From<Refusal> for CopyError {
    fn from(refusal: Refusal) -> CopyError {
        CopyError::Refused(refusal)
    }
}

/// Copies, and blocks until the end; `monitor` shows progress.
///
/// # Errors
/// The copy could not begin, or ended early. Objects that failed in an otherwise complete
/// copy are in the counts, and in the monitor's failures.
pub fn copy(spec: &CopySpec, settings: &Settings, monitor: &Arc<Monitor>) -> Result<Summary, CopyError> {
    let mut request = request(spec)?;
    request.congestion = settings.congestion.clone().unwrap_or_default();
    request.tune_streams = settings.streams.is_measured();
    let from = spec.sources.first().and_then(Endpoint::server);
    let to = spec.destination.server();
    let place = |source: &Endpoint| (source.server(), source.file_system().map(str::to_owned));
    let first = spec.sources.first().map(place);
    if spec.sources.iter().any(|source| Some(place(source)) != first) {
        return Err(CopyError::Usage(
            "all sources have to be in one place: on this machine, in one file system, or at one agent"
                .into(),
        ));
    }
    let roots = (settings.root_of(spec.sources.first())?, settings.root_of(Some(&spec.destination))?);
    if settings.streams.most_streams() > STREAMS.into() {
        return Err(CopyError::Usage(format!("between 1 and {STREAMS} streams can be used")));
    }
    let mut settings = settings.clone();
    let way = match (from.is_some(), to.is_some()) {
        (false, false) => None,
        (false, true) => Some(CopyDirection::Push),
        (true, false) => Some(CopyDirection::Pull),
        (true, true) => Some(CopyDirection::Onward),
    };
    // Agents started over ssh end when these are dropped.
    let mut _third = None;
    if way == Some(CopyDirection::Onward)
        && let Some(to) = to.clone()
    {
        let (server, key) = match to {
            Server::Agent(host, port) => ((host, port), settings.key.clone()),
            Server::Ssh(host) => {
                let remote: &Remote = _third.insert(Remote::start(&host, &settings, monitor)?);
                (remote.server.clone(), Some(remote.key.clone()))
            }
        };
        if key.is_some() && settings.key.is_none() && matches!(from, Some(Server::Agent(..))) {
            let message = format!("the key of {} would go to the other agent in the clear", server.0);
            return Err(CopyError::Usage(message));
        }
        let streams = settings.streams.most_streams() as u16;
        request.onward = Some(Onward { host: server.0, port: server.1, streams, key });
        // The requester needs a control connection only.
        settings.streams = Concurrency::Fixed(1);
    }
    let reached = match from.or(to) {
        Some(server) => Some(reach(server, &mut settings, monitor)?),
        None => None,
    };
    let (server, channel, _remote) = match reached {
        Some(Reached { server, channel, remote }) => (Some(server), channel, remote),
        None => (None, None, None),
    };
    let began = monitor.begin();
    let thread = Thread::start("transfer", settings.engine.clone()).map_err(SessionError::from)?;
    let monitor = Arc::clone(monitor);
    let remote = thread.handle().spawn(move || async move {
        // The task owns the channel through ssh, which keeps the agent alive.
        let shared = Arc::clone(&monitor);
        let job = CopyTask { request, roots, settings, monitor, channel: RefCell::new(channel) };
        let copying = async {
            match (server, way) {
                (Some(server), Some(CopyDirection::Push)) => job.push(server).await,
                (Some(server), Some(CopyDirection::Pull)) => job.pull(server).await,
                (Some(server), Some(CopyDirection::Onward)) => job.third_party(server).await,
                _ => job.local().await,
            }
        };
        match select(pin!(copying), pin!(shared.cancelled())).await {
            Either::Left((result, _)) => result,
            // What was copied stays with its journal, as after a lost connection.
            Either::Right(((), _)) => Err(CopyError::Cancelled),
        }
    });
    let lost = |_| CopyError::Session(SessionError::Lost);
    let summary = remote.wait().map_err(lost)??;
    Ok(Summary { elapsed: began.elapsed(), ..summary })
}

/// An agent that can be connected to.
pub(crate) struct Reached {
    /// Its host and port.
    pub(crate) server: (String, u16),
    /// The channel through ssh, where data may go that way.
    pub(crate) channel: Option<std::net::TcpStream>,
    /// The agent that was started, which ends when this is dropped.
    pub(crate) remote: Option<Remote>,
}

/// Finds the agent of a server, and starts it where it is reached over ssh. The settings get its key.
pub(crate) fn reach(
    server: Server,
    settings: &mut Settings,
    monitor: &Arc<Monitor>,
) -> Result<Reached, CopyError> {
    match server {
        Server::Agent(host, port) => Ok(Reached { server: (host, port), channel: None, remote: None }),
        Server::Ssh(host) => {
            let mut remote = Remote::start(&host, settings, monitor)?;
            settings.key = Some(remote.key.clone());
            let channel = match settings.ssh.via {
                Via::Direct => None,
                Via::Any | Via::Ssh => Some(remote.channel().map_err(SessionError::from)?),
            };
            Ok(Reached { server: remote.server.clone(), channel, remote: Some(remote) })
        }
    }
}

fn request(spec: &CopySpec) -> Result<Request, CopyError> {
    let sources: Vec<Vec<u8>> = spec.sources.iter().map(|source| source.path().to_vec()).collect();
    if sources.is_empty() {
        return Err(CopyError::Usage("there is nothing to copy".into()));
    }
    let several = sources.len() > 1 || sources.iter().any(|source| means_contents(source));
    let place = if spec.place == Placement::Guess && several { Placement::Into } else { spec.place };
    if synthetic::is_synthetic(spec.destination.path()) {
        return Err(CopyError::Usage(format!("{} is a source only", spec.destination)));
    }
    if sources.iter().any(|source| is_null_sink(source)) {
        return Err(CopyError::Usage("null: is a destination only".into()));
    }
    for source in sources.iter().filter(|source| synthetic::is_synthetic(source)) {
        synthetic::Synthetic::parse(source, usize::MAX).map_err(CopyError::Usage)?;
    }
    if !spec.files.is_empty() && spec.options.delete {
        return Err(CopyError::Usage(
            "files that are not listed would be removed: list files or delete, not both".into(),
        ));
    }
    refuse_twins(spec)?;
    let request = Request {
        destination: spec.destination.path().to_vec(),
        place,
        sources,
        key: key(spec, place, &host::name()),
        options: spec.options,
        filters: spec.filters.clone(),
        recursive: spec.recursive,
        files: spec.files.clone(),
        rate: spec.rate,
        manifest: spec.manifest.clone(),
        ..Request::default()
    };
    if !request.fits() && spec.sources.iter().any(|source| source.server().is_some()) {
        let message = "the list of files is too long to be sent to the other side: 2 MiB are the bound";
        return Err(CopyError::Usage(message.into()));
    }
    Ok(request)
}

/// Refuses sources that would overwrite each other, as cp(1) does.
fn refuse_twins(spec: &CopySpec) -> Result<(), CopyError> {
    let mut names = HashSet::new();
    for source in spec.sources.iter().filter(|source| !means_contents(source.path())) {
        let name = last_name(source.path());
        if !names.insert(name) {
            let (name, to) = (show(name), &spec.destination);
            return Err(CopyError::Usage(format!(
                "will not overwrite just-created '{name}' in {to} with '{source}': copy them one after the other"
            )));
        }
    }
    Ok(())
}

/// Key of a copy, for its journal: equal for the same sources and destination, however
/// they are spelled. Includes the host for local sources. Part of on-disk names, so its
/// computation must not change.
fn key(spec: &CopySpec, place: Placement, host: &str) -> u64 {
    let mut name = format!("{place:?}").into_bytes();
    for (end, sends) in [(&spec.destination, false)].into_iter().chain(spec.sources.iter().map(|s| (s, true)))
    {
        name.push(0);
        match end {
            Endpoint::Local(path) if !endpoint::is_special(path) => {
                if sends {
                    name.extend_from_slice(host.as_bytes());
                    name.push(0);
                }
                name.extend_from_slice(&spelled_out(path));
            }
            // All machines reach the same names there.
            _ if end.file_system().is_some() || sends && end.server().is_none() => {
                name.extend_from_slice(format!("{host}\0{end}").as_bytes())
            }
            _ => name.extend_from_slice(end.to_string().as_bytes()),
        }
    }
    xxhash_rust::xxh3::xxh3_64(&name)
}

/// A path here, as one that says the same from everywhere. The last component is
/// what it is, since a link there is copied and not followed.
fn spelled_out(path: &[u8]) -> Vec<u8> {
    let real = |path: &[u8]| {
        let path = if path.is_empty() { b"." } else { path };
        let real = std::fs::canonicalize(OsStr::from_bytes(path));
        real.map_or_else(|_| path.to_vec(), |real| real.into_os_string().into_vec())
    };
    if means_contents(path) {
        return [&real(path)[..], b"/."].concat();
    }
    let (parent, name) = split(trimmed(path));
    [&real(parent)[..], b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(sources: &[&str], to: &str) -> CopySpec {
        let end = |text: &&str| Endpoint::parse(OsStr::new(text)).expect("an endpoint");
        CopySpec {
            sources: sources.iter().map(end).collect(),
            destination: end(&to),
            place: Placement::Guess,
            recursive: true,
            filters: Vec::new(),
            files: Vec::new(),
            rate: 0,
            manifest: Vec::new(),
            options: Options::default(),
        }
    }

    #[test]
    fn a_copy_has_one_key_however_it_is_spelled_and_each_machine_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = |rest: &str| format!("{}/{rest}", dir.path().display());
        std::fs::create_dir(dir.path().join("data")).expect("made");
        std::os::unix::fs::symlink(dir.path(), dir.path().join("way")).expect("linked");
        let key = |from: &str, host: &str| key(&spec(&[from], "lh://h/x"), Placement::Guess, host);
        let plain = key(&text("data"), "one");
        for same in ["./data", "data/", "way/data", "data/../data"] {
            assert_eq!(key(&text(same), "one"), plain, "{same}");
        }
        for other in ["data/.", "datum", "way"] {
            assert_ne!(key(&text(other), "one"), plain, "{other}");
        }
        assert_ne!(key(&text("data"), "two"), plain, "another machine");
        assert_ne!(key("zero:1k", "one"), key("zero:1k", "two"));
        assert_eq!(key("lh://a/data", "one"), key("lh://a/data", "two"), "what another machine sends");
    }

    #[test]
    fn sources_of_one_name_are_refused() {
        for twins in [["a/x", "b/x"], ["a/x/", "b//x"], ["lh://h/a/x", "lh://h/x"]] {
            let refused = request(&spec(&twins, "dst"));
            assert!(
                matches!(&refused, Err(CopyError::Usage(m)) if m.contains("will not overwrite just-created 'x'")),
                "{twins:?}: {refused:?}"
            );
        }
        for good in [["a/x", "b/y"], ["a/.", "b/."], ["a/x", "b/x/."]] {
            assert!(request(&spec(&good, "dst")).is_ok(), "{good:?}");
        }
    }
}
