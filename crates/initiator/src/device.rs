//! A remote namespace as a block device.

use crate::controller::{Controller, ControllerEvent, ControllerInfo, NamespaceInfo, service};
use crate::discover::find_subsystem;
use crate::error::{Error, Result, io_error};
use crate::options::Options;
use crate::queue::{Data, Done, Queue};
use crate::setup::Endpoint;
use crate::uri::Uri;
use futures_channel::mpsc;
use futures_util::future::try_join_all;
use longhaul_block::{
    BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, Memory};
use longhaul_wire::command::{DsmRange, ReadWrite, Sqe, io};
use longhaul_wire::identify::oncs;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};
use zerocopy::IntoBytes;

/// The most that one call may ask for; it is split into commands below.
const MAX_IO: u32 = 1 << 30;
/// Blocks of one range of Dataset Management or Write Zeroes are counted in
/// 16 bits (Write Zeroes, 0's based) or 32 bits (a range).
const ZEROES_BLOCKS_MAX: u64 = 1 << 16;

/// A remote namespace. Threads that open it get an I/O queue of their own.
pub struct RemoteDevice {
    controller: Arc<Controller>,
    nsid: u32,
    name: String,
    namespace: RwLock<NamespaceInfo>,
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

    async fn connect_here(uri: Uri, options: Options) -> Result<Arc<RemoteDevice>> {
        let endpoint = Endpoint::resolve(&uri.host, uri.port).await?;
        let subnqn = if uri.subnqn.starts_with("nqn.") {
            uri.subnqn.clone()
        } else {
            find_subsystem(&endpoint, &uri.subnqn, &options).await?
        };
        let controller = Controller::open(endpoint, subnqn, options).await?;
        let nsid = match uri.nsid {
            Some(nsid) => nsid,
            None => only_namespace(&controller).await?,
        };
        let namespace = controller.namespace(nsid).await.map_err(|e| match e {
            // Invalid Namespace or Format, and so on: there is none.
            Error::Refused { addr, reason, .. } => Error::NotFound(format!(
                "{addr} has no namespace {nsid} in {} ({reason})",
                controller.info.subnqn
            )),
            e => e,
        })?;
        let name = uri.to_string();
        let device = Arc::new(RemoteDevice { controller, nsid, name, namespace: RwLock::new(namespace) });
        RemoteDevice::follow(&device);
        Ok(device)
    }

    /// Keeps what is known of the namespace current.
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
                    Ok(namespace) => {
                        *device.namespace.write().unwrap_or_else(PoisonError::into_inner) = namespace;
                    }
                    Err(e) => tracing::warn!("{}: {e}", device.name),
                }
            }
        })
        .detach();
    }

    /// The controller that serves it.
    pub fn controller(&self) -> &ControllerInfo {
        &self.controller.info
    }

    /// What the namespace is at this moment.
    pub fn namespace(&self) -> NamespaceInfo {
        self.namespace.read().unwrap_or_else(PoisonError::into_inner).clone()
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

    fn max_transfer(&self) -> u32 {
        let block = self.namespace().block_size;
        let limit = self.controller.info.max_transfer.unwrap_or(u64::MAX);
        let limit = limit.min(self.controller.options.max_transfer.into()) as u32;
        (limit / block * block).max(block)
    }
}

async fn only_namespace(controller: &Controller) -> Result<u32> {
    let (name, nqn) = (&controller.endpoint.name, &controller.info.subnqn);
    match controller.namespaces().await?[..] {
        [] => Err(Error::NotFound(format!("{nqn} at {name} has no namespace"))),
        [nsid] => Ok(nsid),
        ref all => {
            let all: Vec<_> = all.iter().map(u32::to_string).collect();
            let all = all.join(", ");
            Err(Error::NotFound(format!("{nqn} at {name} has namespaces {all}: choose one with ?nsid=N")))
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
        let namespace = self.namespace();
        DeviceInfo {
            name: self.name.clone(),
            size: namespace.size,
            block_size: namespace.block_size,
            max_io: MAX_IO,
            optimal_io: namespace.optimal_io,
            read_only: namespace.read_only,
            volatile_cache: self.controller.info.write_cache,
            discard: self.controller.info.oncs & oncs::DATASET_MANAGEMENT != 0,
            uuid: namespace.uuid,
        }
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let queue = self.controller.open_queue().await?;
            let io = RemoteIo {
                queue: Rc::new(queue),
                nsid: self.nsid,
                shift: self.namespace().block_size.ilog2(),
                max_transfer: self.max_transfer(),
                oncs: self.controller.info.oncs,
            };
            Ok(Rc::new(io) as Rc<dyn BlockIo>)
        })
    }
}

/// A remote namespace opened on one thread.
struct RemoteIo {
    queue: Rc<Queue>,
    nsid: u32,
    /// Logical block size as a power of two.
    shift: u32,
    max_transfer: u32,
    oncs: u16,
}

fn check(done: &Done) -> IoResult<()> {
    let status = done.cqe.status();
    if status.is_success() { Ok(()) } else { Err(io_error(status)) }
}

impl RemoteIo {
    fn lba(&self, bytes: u64) -> u64 {
        bytes >> self.shift
    }

    fn read_command(&self, offset: u64, dst: BufMut) -> impl Future<Output = IoResult<BufMut>> + use<> {
        let len = dst.len();
        let rw = ReadWrite::new(self.lba(offset), self.lba(len as u64) as u32);
        let sqe = rw.to_sqe(io::READ, self.nsid);
        let pending = self.queue.submit(sqe, Data::Read(Memory::Buf(dst)));
        async move {
            let done = pending.await?;
            check(&done)?;
            match done.memory {
                Some(Memory::Buf(buf)) if done.received as usize == len => Ok(buf),
                _ => Err(IoError::Integrity(format!("{} of {len} bytes came", done.received))),
            }
        }
    }

    fn write_command(&self, offset: u64, src: Buf, fua: bool) -> impl Future<Output = IoResult<()>> + use<> {
        let mut rw = ReadWrite::new(self.lba(offset), self.lba(src.len() as u64) as u32);
        rw.fua = fua;
        let sqe = rw.to_sqe(io::WRITE, self.nsid);
        let pending = self.queue.submit(sqe, Data::Write(Memory::Shared(src)));
        async move { check(&pending.await?) }
    }

    fn command(&self, sqe: Sqe, data: Data) -> impl Future<Output = IoResult<()>> + use<> {
        let pending = self.queue.submit(sqe, data);
        async move { check(&pending.await?) }
    }
}

/// Ends of pieces of at most `max` bytes.
fn pieces(len: usize, max: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(max).map(move |start| (len - start).min(max))
}

impl BlockIo for RemoteIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let max = self.max_transfer as usize;
        let whole = Rc::clone(&self.queue);
        if dst.is_empty() {
            return IoFuture::ready(Ok(dst));
        }
        if dst.len() <= max {
            let read = self.read_command(offset, dst);
            return IoFuture::new(async move {
                let _open = whole;
                read.await
            });
        }
        let mut reads = Vec::new();
        let (mut rest, mut at) = (dst, offset);
        for len in pieces(rest.len(), max).collect::<Vec<_>>() {
            let tail = rest.split_off(len);
            reads.push(self.read_command(at, rest));
            (rest, at) = (tail, at + len as u64);
        }
        IoFuture::new(async move {
            let _open = whole;
            let mut parts = try_join_all(reads).await?.into_iter();
            let mut all = parts.next().unwrap_or_else(|| BufMut::zeroed(0));
            for part in parts {
                all.unsplit(part).map_err(|_| IoError::Integrity("parts of a read do not join".into()))?;
            }
            Ok(all)
        })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let max = self.max_transfer as usize;
        let whole = Rc::clone(&self.queue);
        if src.is_empty() {
            return IoFuture::ready(Ok(()));
        }
        if src.len() <= max {
            let write = self.write_command(offset, src, flags.fua);
            return IoFuture::new(async move {
                let _open = whole;
                write.await
            });
        }
        let mut writes = Vec::new();
        let mut done = 0;
        for len in pieces(src.len(), max) {
            let part = src.slice(done..done + len);
            writes.push(self.write_command(offset + done as u64, part, flags.fua));
            done += len;
        }
        IoFuture::new(async move {
            let _open = whole;
            try_join_all(writes).await.map(drop)
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let whole = Rc::clone(&self.queue);
        let flush = self.command(Sqe::flush(self.nsid), Data::None);
        IoFuture::new(async move {
            let _open = whole;
            flush.await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        if self.oncs & oncs::DATASET_MANAGEMENT == 0 {
            return IoFuture::ready(Err(IoError::Unsupported("discard")));
        }
        let most = u64::from(u32::MAX) << self.shift;
        let mut commands = Vec::new();
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(most);
            let range = DsmRange::new(self.lba(offset + done), self.lba(piece) as u32);
            let data = Data::Write(Memory::Shared(Buf::copy_of(range.as_bytes())));
            commands.push(self.command(Sqe::deallocate(self.nsid, 1), data));
            done += piece;
        }
        let whole = Rc::clone(&self.queue);
        IoFuture::new(async move {
            let _open = whole;
            try_join_all(commands).await.map(drop)
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        if self.oncs & oncs::WRITE_ZEROES == 0 {
            return IoFuture::ready(Err(IoError::Unsupported("write zeroes")));
        }
        let most = ZEROES_BLOCKS_MAX << self.shift;
        let mut commands = Vec::new();
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(most);
            let mut rw = ReadWrite::new(self.lba(offset + done), self.lba(piece) as u32);
            rw.fua = flags.fua;
            rw.deallocate = flags.may_deallocate;
            commands.push(self.command(rw.to_sqe(io::WRITE_ZEROES, self.nsid), Data::None));
            done += piece;
        }
        let whole = Rc::clone(&self.queue);
        IoFuture::new(async move {
            let _open = whole;
            try_join_all(commands).await.map(drop)
        })
    }
}
