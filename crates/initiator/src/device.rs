//! A remote namespace as a block device.

use crate::controller::{Controller, Outage, Settings, service};
use crate::discover::find_subsystem;
use crate::error::{Error, Result};
use crate::info::{ControllerEvent, ControllerInfo, NamespaceInfo, SetUp, Which};
use crate::io::RemoteIo;
use crate::multipath::{PathState, PathStatus};
use crate::options::Options;
use crate::path::{ConnectionPool, PathReport, Reports, Traffic};
use crate::setup::{Endpoint, place_name};
use crate::uri::Uri;
use futures_channel::mpsc;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, Open};
use longhaul_engine::{now, since};
use longhaul_wire::identify::oncs;
use std::rc::Rc;
use std::sync::Arc;

/// The most that one call may ask for; it is split into commands below.
const MAX_IO: u32 = 1 << 30;

/// A remote namespace. Threads that open it get I/O queues of their own; all opens on one thread
/// share those, and the limits of I/O in flight.
pub struct RemoteDevice {
    pub(crate) controller: Arc<Controller>,
    nsid: u32,
    name: String,
    paths: Arc<Reports>,
}

impl RemoteDevice {
    /// Connects to the namespace that `uri` names. Runs on any engine thread.
    ///
    /// # Errors
    /// Each way in which it can fail is an [`Error`] of its own.
    pub async fn connect(uri: &Uri, options: Options) -> Result<Arc<RemoteDevice>> {
        let options = options.with_uri(&uri.options);
        let handle = service(&options)?;
        let uri = uri.clone();
        let gone = |_| Error::Local("the thread that serves admin queues has ended".into());
        handle.spawn(move || RemoteDevice::connect_here(uri, options)).await.map_err(gone)?
    }

    /// As [`connect`](Self::connect), for code that runs on no engine.
    ///
    /// # Errors
    /// As there.
    pub fn connect_blocking(uri: &Uri, options: Options) -> Result<Arc<RemoteDevice>> {
        let handle = service(&options)?;
        let options = options.with_uri(&uri.options);
        let uri = uri.clone();
        handle
            .spawn(move || RemoteDevice::connect_here(uri, options))
            .wait()
            .map_err(|_| Error::Local("the thread that serves admin queues has ended".into()))?
    }

    pub(crate) async fn connect_here(uri: Uri, options: Options) -> Result<Arc<RemoteDevice>> {
        RemoteDevice::connect_as(uri, options, false).await
    }

    /// The same, for one of several paths or the only one.
    pub(crate) async fn connect_as(uri: Uri, options: Options, is_path: bool) -> Result<Arc<RemoteDevice>> {
        let begun = now();
        if uri.is_multipath() {
            let why = format!("{uri} has several addresses, and only one can be used here: name one");
            return Err(Error::NotFound(why));
        }
        let endpoint = Endpoint::find(&uri.transport, &uri.host, uri.port, &options).await?;
        let (subnqn, round_trips) = if uri.subnqn.starts_with("nqn.") {
            (uri.subnqn.clone(), 0)
        } else {
            find_subsystem(&endpoint, &uri.subnqn, &options).await?
        };
        let (transport, host) = (uri.transport.clone(), uri.host.clone());
        let settings = Settings { transport, host, port: uri.port, subnqn, options, is_path };
        let which = uri.nsid.map_or(Which::Only, Which::Nsid);
        let searched = since(begun);
        let controller = Controller::open(endpoint, settings, which).await?;
        controller.began_earlier(searched, round_trips);
        let (nsid, name) = (controller.namespace_now().nsid, uri.to_string());
        let device = Arc::new(RemoteDevice { controller, nsid, name, paths: Arc::default() });
        RemoteDevice::follow(&device);
        Ok(device)
    }

    /// Keeps the namespace's properties current.
    fn follow(device: &Arc<RemoteDevice>) {
        use futures_util::StreamExt;
        let mut events = device.controller.events();
        let weak = Arc::downgrade(device);
        longhaul_engine::spawn(async move {
            while let Some(event) = events.next().await {
                let Some(device) = weak.upgrade() else { return };
                if event != ControllerEvent::NamespaceChanged(device.nsid) {
                    continue;
                }
                match device.controller.namespace(device.nsid).await {
                    Ok(namespace) => match device.namespace().replaced(&namespace) {
                        Some(replaced) => device.controller.give_up(&replaced).await,
                        None => device.controller.set_namespace(namespace),
                    },
                    Err(e) => tracing::warn!("{}: {e}", device.name),
                }
            }
        })
        .detach();
    }

    /// The controller that serves it, as it said when it was connected to the
    /// last time.
    pub fn controller(&self) -> Arc<ControllerInfo> {
        self.controller.info()
    }

    /// What the namespace is at this moment.
    pub fn namespace(&self) -> NamespaceInfo {
        self.controller.namespace_now()
    }

    /// How long it took to set up, and how many round trips.
    pub fn set_up(&self) -> SetUp {
        self.controller.set_up()
    }

    /// How often the target was lost since: its connections ended, and it had to
    /// be connected to again.
    pub fn disconnects(&self) -> u64 {
        self.controller.disconnects()
    }

    /// Why the target is disconnected; nothing while it is connected.
    pub fn outage(&self) -> Option<Outage> {
        self.controller.outage()
    }

    /// Events of the controller from now on.
    pub fn events(&self) -> mpsc::UnboundedReceiver<ControllerEvent> {
        self.controller.events()
    }

    /// Shuts the controller down and waits until it has. I/O that is under
    /// way fails. Dropping the device does the same without waiting.
    pub async fn close(&self) {
        self.controller.close().await;
    }

    /// Identifiers of all namespaces of the subsystem.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn namespaces(&self) -> Result<Vec<u32>> {
        self.controller.namespaces().await
    }

    /// Opens it on the calling engine thread, as [`BlockDevice::open`] does,
    /// with what only a remote namespace has.
    ///
    /// # Errors
    /// The controller is lost for good, or has no queue left.
    pub async fn open_io(&self) -> Result<Rc<RemoteIo>> {
        let NamespaceInfo { block_size, rescap, .. } = self.namespace();
        let shift = block_size.ilog2();
        let (pool, sharer) = ConnectionPool::join(&self.controller, shift, &self.paths).await?;
        let ControllerInfo { oncs, max_zeroes, .. } = *self.controller();
        Ok(Rc::new(RemoteIo { pool, sharer, nsid: self.nsid, shift, oncs, rescap, max_zeroes }))
    }

    /// The last measurement of a path to it, and the settings chosen for it, by any thread that has
    /// opened it; `None` before the first I/O.
    pub fn path(&self) -> Option<PathReport> {
        self.paths.last()
    }

    /// The I/O over the path since the device was opened, of all threads.
    pub fn traffic(&self) -> Traffic {
        self.paths.traffic()
    }

    /// The path to it, as it is at this moment.
    pub fn path_status(&self) -> PathStatus {
        let (report, is_connected) = (self.path(), self.outage().is_none());
        let round_trip =
            report.as_ref().map_or_else(|| self.controller().round_trip.0, |report| report.plan.rtt);
        let Settings { transport, host, port, .. } = &*self.controller.settings;
        PathStatus {
            address: place_name(transport, host, *port),
            state: if is_connected { PathState::of(self.controller.access()) } else { PathState::Lost },
            round_trip: Some(round_trip),
            report,
            traffic: self.traffic(),
            disconnects: self.disconnects(),
            why: self.controller.unusable_why().map(|outage| outage.why),
        }
    }
}

impl std::fmt::Debug for RemoteDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteDevice({})", self.name)
    }
}

impl BlockDevice for RemoteDevice {
    fn info(&self) -> DeviceInfo {
        let (namespace, controller) = (self.namespace(), self.controller());
        DeviceInfo {
            name: self.name.clone(),
            size: namespace.size,
            block_size: namespace.block_size,
            max_io: MAX_IO,
            optimal_io: namespace.optimal_io,
            read_only: namespace.read_only,
            volatile_cache: controller.write_cache,
            discard: controller.oncs & oncs::DATASET_MANAGEMENT != 0,
            uuid: namespace.uuid,
        }
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move { Ok(self.open_io().await? as Rc<dyn BlockIo>) })
    }
}
