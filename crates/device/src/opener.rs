//! Opening of devices by name.

use crate::arrays::{self, ArrayRecord, RunningArray};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::remotes::Remotes;
use longhaul_block::{BackendSpec, BlockDevice};
use longhaul_initiator::{MultipathDevice, Options, PathStatus, RemoteDevice, SCHEME, SCHEMES, Uri};
use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// A further kind of names, of a layer above this one.
pub trait Scheme: fmt::Debug + Send + Sync {
    /// What its names begin with, such as `volume:`.
    fn prefix(&self) -> &'static str;

    /// The form of its names, for messages: `volume:POOL/NAME`.
    fn form(&self) -> &'static str;

    /// Opens the device `name`, from which the prefix is cut, on a thread without an engine. Remote
    /// namespaces and arrays of it are opened by `opener`.
    ///
    /// # Errors
    /// As for [`crate::open`].
    fn open(&self, name: &str, opener: &Opener) -> Result<Device>;
}

/// Opens devices by name.
#[derive(Clone, Debug)]
pub struct Opener {
    /// Of connections to targets.
    pub(crate) options: Options,
    /// Threads that use one device at the same time.
    threads: u16,
    /// Further kinds of names.
    schemes: Vec<Arc<dyn Scheme>>,
    /// What it and its clones have opened.
    remotes: Remotes,
}

impl Opener {
    /// An opener with these options, for devices that one thread uses at a time.
    pub fn new(options: Options) -> Opener {
        Opener { options, threads: 1, schemes: Vec::new(), remotes: Remotes::default() }
    }

    /// The same opener, which knows the names of `scheme` too.
    #[must_use]
    pub fn with_scheme(mut self, scheme: Arc<dyn Scheme>) -> Opener {
        self.schemes.push(scheme);
        self
    }

    /// Options of connections to targets.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The same opener, for devices that `threads` use at the same time.
    pub fn for_threads(self, threads: usize) -> Opener {
        Opener { threads: u16::try_from(threads).unwrap_or(u16::MAX), ..self }
    }

    /// The same opener, for the devices of an array that this process is about to run: as a host of
    /// their own, which no other process is. So the members can be reserved against every other
    /// process, also of this machine, and of machines with the same identity (clones).
    pub(crate) fn for_array(mut self) -> Opener {
        self.options.hostid = Uuid::new_v4();
        self.remotes = Remotes::default();
        self
    }

    /// Each path to each remote namespace that it or a clone of it has opened and that is open, with the
    /// name of the device.
    pub fn paths(&self) -> Vec<(String, PathStatus)> {
        self.remotes.paths()
    }

    /// The engine of threads that use the devices.
    pub fn config(&self) -> longhaul_engine::Config {
        self.options.engine.clone()
    }

    /// Connects to a remote namespace at one address.
    ///
    /// # Errors
    /// The URI is invalid, or the target cannot be reached or refuses.
    pub fn connect(&self, uri: &str) -> Result<Arc<RemoteDevice>> {
        let uri: Uri = uri.parse().map_err(longhaul_initiator::Error::Uri)?;
        let options = self.connection_options(&uri);
        let device = RemoteDevice::connect_blocking(&uri, options)?;
        self.remotes.add(&Device::Remote(Arc::clone(&device)));
        Ok(device)
    }

    /// Connects to a remote namespace at all addresses of its URI.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_any(&self, uri: &str) -> Result<Device> {
        let uri: Uri = uri.parse().map_err(longhaul_initiator::Error::Uri)?;
        let options = self.connection_options(&uri);
        let device = match uri.is_multipath() {
            true => Device::Multipath(MultipathDevice::connect_blocking(&uri, options)?),
            false => Device::Remote(RemoteDevice::connect_blocking(&uri, options)?),
        };
        self.remotes.add(&device);
        Ok(device)
    }

    fn connection_options(&self, uri: &Uri) -> Options {
        let mut options = self.options.clone();
        let connections = options.path.connections.or(uri.options.connections).unwrap_or(1);
        options.queues = self.threads.saturating_mul(connections);
        options
    }

    /// Opens a device that is to join an array, on a thread of its own: the thread of the
    /// calling engine serves its other tasks meanwhile.
    pub(crate) async fn open_in_background(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        let (opener, name) = (self.clone(), name.to_owned());
        longhaul_engine::blocking(move || opener.open_blocking(&name).map(|device| device.block())).await
    }

    /// Opens the device `name`, as [`crate::open`] does. The calling engine serves its other tasks
    /// meanwhile.
    ///
    /// # Errors
    /// As for [`crate::open`].
    pub async fn open(&self, name: &str) -> Result<Device> {
        let (opener, name) = (self.clone(), name.to_owned());
        longhaul_engine::blocking(move || opener.open_blocking(&name)).await
    }

    /// As [`Self::open`], for threads without an engine.
    ///
    /// # Errors
    /// As for [`crate::open`].
    pub fn open_blocking(&self, name: &str) -> Result<Device> {
        if name.contains("://") {
            if !name.starts_with(SCHEMES) {
                let scheme = name.split("://").next().unwrap_or_default();
                return Err(Error::invalid(format!(
                    "'{scheme}://' is not a device: use {SCHEME}://HOST/SUBNQN"
                )));
            }
            return self.connect_any(name);
        }
        if let Some(array) = name.strip_prefix(arrays::SCHEME) {
            // Only the array's own thread uses its members.
            let opener = self.clone().for_threads(1);
            let array = RunningArray::open(&ArrayRecord::find(array)?, &opener)?;
            return Ok(Device::Array(Box::new(array)));
        }
        for scheme in &self.schemes {
            if let Some(rest) = name.strip_prefix(scheme.prefix()) {
                return scheme.open(rest, self);
            }
        }
        let spec = match BackendSpec::parse(name) {
            Ok(spec) => spec,
            Err(e) if looks_like_backend(name) => return Err(Error::invalid(e)),
            Err(_) => self.path_spec(name)?,
        };
        spec.open().map(Device::Local).map_err(Error::failed)
    }

    /// Whether `name` has the form of a device: a URI of a namespace, a known prefix, or a path that
    /// exists.
    pub fn is_device(&self, name: &str) -> bool {
        name.starts_with(SCHEMES)
            || name.starts_with(arrays::SCHEME)
            || self.schemes.iter().any(|scheme| name.starts_with(scheme.prefix()))
            || looks_like_backend(name)
            || Path::new(name).exists()
    }

    fn path_spec(&self, name: &str) -> Result<BackendSpec> {
        let kind = match std::fs::metadata(Path::new(name)) {
            Ok(meta) if meta.file_type().is_block_device() => "block",
            Ok(_) => "file",
            Err(e) => {
                let more: String = self.schemes.iter().map(|scheme| format!("{}, ", scheme.form())).collect();
                return Err(Error::failed(format!(
                    "cannot open '{name}': {e}; a device is a path, file:PATH, mem:SIZE, null:SIZE, \
                     array:NAME, {more}or nvme+tcp://HOST/SUBNQN"
                )));
            }
        };
        BackendSpec::parse(&format!("{kind}:{}", name.replace(',', ",,"))).map_err(Error::invalid)
    }
}

impl Default for Opener {
    fn default() -> Opener {
        Opener::new(Options::default())
    }
}

fn looks_like_backend(name: &str) -> bool {
    ["file:", "block:", "mem:", "null:"].iter().any(|kind| name.starts_with(kind))
}
