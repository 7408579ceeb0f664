//! Connects the paths of a device.

use super::lost::{PathOf, follow, give_up_in_time, look_after_takeovers, settle_doubts};
use super::{Path, Shared};
use crate::controller::service;
use crate::device::RemoteDevice;
use crate::discover::{addresses_of, find_subsystem};
use crate::error::{Error, Result};
use crate::info::NamespaceInfo;
use crate::options::Options;
use crate::setup::{Endpoint, place_name};
use crate::uri::{PATHS_MAX, Uri};
use futures_channel::oneshot;
use futures_util::future::{join_all, join3, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use longhaul_engine::{Handle, Remote, sleep, spawn, timeout};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Silence of TCP after which a path is given up: less than where there is one path only, since all
/// that it costs is a reconnect.
const SILENCE: Duration = Duration::from_secs(1);
/// How long the other paths are waited for once the first one is connected.
const GRACE: Duration = Duration::from_secs(2);
/// Time between attempts to connect a path that has not been connected.
const AGAIN: Duration = Duration::from_secs(2);

type Connected = (Arc<Shared>, Vec<oneshot::Sender<()>>);

pub(super) async fn connect(uri: &Uri, options: Options) -> Result<Connected> {
    start(uri, options)?.1.await.map_err(|_| gone())?
}

pub(super) fn connect_blocking(uri: &Uri, options: Options) -> Result<Connected> {
    start(uri, options)?.1.wait().map_err(|_| gone())?
}

fn start(uri: &Uri, options: Options) -> Result<(Handle, Remote<Result<Connected>>)> {
    let options = options.with_uri(&uri.options);
    let (handle, uri) = (service(&options)?, uri.clone());
    let connecting = handle.spawn(move || connect_here(uri, options));
    Ok((handle, connecting))
}

pub(super) fn gone() -> Error {
    Error::Local("the thread that serves admin queues has ended".into())
}

async fn connect_here(uri: Uri, options: Options) -> Result<Connected> {
    let (uri, name) = (full(&uri, &options).await?, uri.to_string());
    let paths = uri.addresses().map(|(host, port)| {
        let address = place_name(&uri.transport, host, port);
        let (written, flushed) = (AtomicU64::new(0), AtomicU64::new(0));
        let (device, refused, trouble) = (OnceLock::new(), AtomicU64::new(0), Default::default());
        Path { address, uri: uri.at(host, port), device, written, flushed, refused, trouble }
    });
    let (paths, connected) = (paths.collect(), AtomicU64::new(0));
    let shared = Arc::new(Shared {
        name,
        options,
        paths,
        connected,
        takeovers: Mutex::default(),
        doubted: AtomicU64::new(0),
        namespace: OnceLock::new(),
    });
    let mut tasks = Vec::new();
    let mut connecting: FuturesUnordered<_> = (0..shared.paths.len())
        .map(|number| {
            let shared = Arc::clone(&shared);
            async move { (number, connect_path(&shared, number).await) }
        })
        .collect();
    let mut failed = None;
    while shared.first().is_none() {
        match connecting.next().await {
            Some((_, Ok(()))) => {}
            Some((number, Err(e))) => {
                note(&shared, number, &e);
                failed = Some(e);
            }
            None => return Err(failed.unwrap_or_else(gone)),
        }
    }
    let rest = async {
        let mut conflict = None;
        while let Some((number, result)) = connecting.next().await {
            if let Err(e) = result {
                note(&shared, number, &e);
                conflict = conflict.or(Some(e).filter(|e| matches!(e, Error::Refused { .. })));
            }
        }
        conflict
    };
    if let Some(conflict) = timeout(GRACE, rest).await.ok().flatten() {
        let there = shared.paths.iter().filter_map(|path| path.device.get());
        join_all(there.map(|device| device.close())).await;
        return Err(conflict);
    }
    for number in 0..shared.paths.len() {
        let (alive, dead) = oneshot::channel();
        tasks.push(alive);
        let task = serve(Arc::clone(&shared), number);
        spawn(async move { _ = select(pin!(task), dead).await }).detach();
    }
    let (alive, dead) = oneshot::channel();
    tasks.push(alive);
    let task = give_up_in_time(Arc::clone(&shared));
    spawn(async move { _ = select(pin!(task), dead).await }).detach();
    Ok((shared, tasks))
}

/// The URI with the subsystem's full NQN and all of its addresses.
async fn full(uri: &Uri, options: &Options) -> Result<Uri> {
    let mut uri = uri.clone();
    let mut failed = gone();
    if !uri.subnqn.starts_with("nqn.") {
        let mut found = None;
        for (host, port) in uri.addresses() {
            let endpoint = Endpoint::find(&uri.transport, host, port, options).await;
            let asked = match endpoint {
                Ok(endpoint) => find_subsystem(&endpoint, &uri.subnqn, options).await,
                Err(e) => Err(e),
            };
            match asked {
                Ok((subnqn, _)) => {
                    found = Some(subnqn);
                    break;
                }
                Err(e) => failed = e,
            }
        }
        uri.subnqn = found.ok_or(failed)?;
    }
    if uri.discover_paths {
        let endpoint = Endpoint::find(&uri.transport, &uri.host, uri.port, options).await?;
        for address in addresses_of(&endpoint, &uri.subnqn, options).await? {
            let known = uri.addresses().any(|(host, port)| (host, port) == (address.0.as_str(), address.1));
            if !known && uri.others.len() + 1 < PATHS_MAX {
                uri.others.push(address);
            }
        }
        uri.discover_paths = false;
    }
    Ok(uri)
}

fn note(shared: &Shared, number: usize, e: &Error) {
    let path = &shared.paths[number];
    tracing::warn!("{}: path {} is not used: {e}", shared.name, path.address);
    *path.trouble() = Some(e.to_string());
}

/// Connects a path, and makes sure that it leads to the same namespace.
async fn connect_path(shared: &Arc<Shared>, number: usize) -> Result<()> {
    let path = &shared.paths[number];
    // The device gives up when no path is left.
    let options = Options { ctrl_loss: None, silence: SILENCE, ..shared.options.clone() };
    let uri = Uri { options: crate::UriOptions::default(), ..path.uri.clone() };
    let device = RemoteDevice::connect_as(uri, options, true).await?;
    let namespace = device.namespace();
    let first = shared.namespace.get_or_init(|| namespace.clone());
    // A target that does not serve it may know an earlier size.
    let serves = device.controller.usable_since().is_some();
    if let Some(conflict) = conflict(first, &namespace, serves) {
        device.close().await;
        let others = || shared.paths.iter().filter(|other| other.device.get().is_some());
        let other = others().next().map_or("the other address", |other| &other.address);
        return Err(Error::Refused {
            addr: path.address.clone(),
            what: format!("to be a path to the namespace at {other}"),
            reason: conflict,
        });
    }
    device.controller.set_paths(Box::new(PathOf { shared: Arc::downgrade(shared), number }));
    if path.device.set(device).is_ok() {
        shared.connected.fetch_add(1, Ordering::Release);
    }
    *path.trouble() = None;
    Ok(())
}

/// Why `other` is not another path to the namespace of `first`.
fn conflict(first: &NamespaceInfo, other: &NamespaceInfo, serves: bool) -> Option<String> {
    let name = NamespaceInfo::identity;
    if first.uuid.is_none() && first.nguid == [0; 16] && first.eui64 == [0; 8] {
        return Some("the namespace has no UUID, NGUID or EUI64 by which it could be recognised".into());
    }
    if name(first) != name(other) || first.nsid != other.nsid {
        return Some(format!(
            "there it is namespace {} with {}, here namespace {} with {}",
            first.nsid,
            name(first),
            other.nsid,
            name(other)
        ));
    }
    if serves { first.conflict(other) } else { first.replaced(other) }
}

/// Serves a path: connects it, if it could not be, and then fences what is lost.
async fn serve(shared: Arc<Shared>, number: usize) {
    while shared.paths[number].device.get().is_none() {
        sleep(AGAIN).await;
        // One that comes late may lead to a target that was overtaken long ago.
        shared.doubt(number);
        match connect_path(&shared, number).await {
            Ok(()) => tracing::warn!("{}: path {} is in use", shared.name, shared.paths[number].address),
            Err(e @ Error::Refused { .. }) => return note(&shared, number, &e),
            Err(e) => *shared.paths[number].trouble() = Some(e.to_string()),
        }
    }
    let (lost, takeovers) = (follow(&shared, number), look_after_takeovers(&shared, number));
    join3(lost, takeovers, settle_doubts(&shared, number)).await;
}
