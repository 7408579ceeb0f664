//! Namespaces that this host makes, removes and attaches at a target, as an administrator of it
//! (NVMe Base 2.1, "Namespace Management" and "Namespace Attachment").
//!
//! An [`Administrator`] is a controller of the subsystem that has the capacity (a *space* of
//! Longhaul's target). Its methods run on any executor, at any number at a time. A command whose
//! connection is lost fails with [`ManagementError::Connection`], and may have been carried out: the
//! caller looks at [`list`](Administrator::list), whose labels name the namespaces. The next
//! command connects anew.
//!
//! ```no_run
//! use longhaul_initiator::namespaces::{Administrator, NamespaceLabel, NewNamespace};
//! use longhaul_initiator::Options;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let uri = "nvme+tcp://dtn1.example.org/space".parse()?;
//! let space = Administrator::connect(&uri, Options::default()).await?;
//! let label = NamespaceLabel {
//!     hosts: vec!["nqn.2014-08.org.example:node1".into()],
//!     job: "4711".into(),
//!     ..NamespaceLabel::default()
//! };
//! let nsid = space.create_namespace(&NewNamespace { size: 1 << 30, block_size: 4096, label }).await?;
//! space.delete_namespace(nsid).await?;
//! # Ok(())
//! # }
//! ```

mod connection;
mod error;

pub use error::{ManagementError, ManagementResult};
pub use longhaul_wire::management::{LabelError, NamespaceLabel};

use crate::call::{Data, Done};
use crate::controller::service;
use crate::error::Error;
use crate::options::Options;
use crate::uri::Uri;
use connection::{Connection, Job, Target, serve};
use futures_channel::{mpsc, oneshot};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use longhaul_engine::{Buf, Handle, Memory, Remote};
use longhaul_wire::command::Sqe;
use longhaul_wire::identify::{IdentifyController, nmic, oacs};
use longhaul_wire::management::{
    AttachmentAction, BLOCK_SHIFTS, CONTROLLERS_MAX, ChangeAction, NamespaceCreate, encode_controller_list,
};
use uuid::Uuid;

/// Identify commands under way at a time while namespaces are listed: half of an admin queue.
const LIST_DEPTH: usize = 16;

/// What a clone is asked for by.
pub(crate) const CLONE: &str = "Namespace Change (clone)";

/// A namespace to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNamespace {
    /// Size in bytes, a multiple of `block_size`.
    pub size: u64,
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// The hosts that it is attached to, and its purpose; `label.thin`: capacity is taken as it is
    /// written to, otherwise all of it is reserved.
    pub label: NamespaceLabel,
}

/// A namespace of a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedNamespace {
    /// Namespace identifier, from 1.
    pub nsid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// NGUID, which is also the UUID of the namespace at Longhaul's targets.
    pub uuid: Uuid,
    /// Several hosts may be attached at a time.
    pub shared: bool,
    /// The hosts that it is attached to, and its purpose. Empty at other targets.
    pub label: NamespaceLabel,
    /// The label cannot be read, for this reason.
    pub unreadable: Option<LabelError>,
}

/// Capacity of a space in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// All of it (TNVMCAP).
    pub total: u128,
    /// What namespaces can still be made of (UNVMCAP).
    pub unallocated: u128,
}

/// A controller with the right to manage the namespaces of its subsystem. See the module.
pub struct Administrator {
    jobs: mpsc::UnboundedSender<Job>,
    /// The task on the service thread.
    served: Remote<()>,
    name: String,
    hostnqn: String,
}

impl Administrator {
    /// Connects to the subsystem that `uri` names (an `nsid` in it does not matter).
    ///
    /// # Errors
    /// [`ManagementError::Connection`], or [`ManagementError::NotPermitted`] if the subsystem does
    /// not offer its management to this host.
    pub async fn connect(uri: &Uri, options: Options) -> ManagementResult<Administrator> {
        let options = options.with_uri(&uri.options);
        let handle = service(&options)?;
        let administrator = Administrator::begin(&handle, uri, options);
        administrator.check().await?;
        Ok(administrator)
    }

    /// As [`connect`](Self::connect), for code that runs on no engine.
    ///
    /// # Errors
    /// As there.
    pub fn connect_blocking(uri: &Uri, options: Options) -> ManagementResult<Administrator> {
        let uri = uri.clone();
        let handle = service(&options)?;
        let connected = handle.spawn(move || async move { Administrator::connect(&uri, options).await });
        connected.wait().map_err(|_| service_has_ended())?
    }

    fn begin(handle: &Handle, uri: &Uri, options: Options) -> Administrator {
        let (jobs, inbox) = mpsc::unbounded();
        let (name, hostnqn) = (uri.to_string(), options.hostnqn.clone());
        let target = Target { uri: uri.clone(), options };
        let served = handle.spawn(move || serve(target, inbox));
        Administrator { jobs, served, name, hostnqn }
    }

    /// Whether the controller offers management to this host.
    async fn check(&self) -> ManagementResult<()> {
        let id = self.identify_controller().await?;
        if id.oacs & oacs::NAMESPACE_MANAGEMENT == 0 {
            let (addr, hostnqn) = (self.name.clone(), self.hostnqn.clone());
            return Err(ManagementError::NotPermitted { addr, hostnqn });
        }
        Ok(())
    }

    /// Where it is: the URI.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// NQN of this host.
    pub fn hostnqn(&self) -> &str {
        &self.hostnqn
    }

    /// Makes a namespace, attached to the hosts that its label names: its identifier. It is durable,
    /// and reads as zeroes.
    ///
    /// # Errors
    /// [`ManagementError::Full`], [`ManagementError::TooMany`], or those of any command.
    pub async fn create_namespace(&self, new: &NewNamespace) -> ManagementResult<u32> {
        let shift = BLOCK_SHIFTS.iter().position(|shift| 1 << shift == new.block_size);
        let whole = new.size != 0 && new.size.is_multiple_of(new.block_size.max(1).into());
        let (Some(format), true) = (shift, whole) else {
            return Err(ManagementError::Size { size: new.size, block_size: new.block_size });
        };
        let blocks = new.size / u64::from(new.block_size);
        let mut fields = NamespaceCreate {
            nsze: blocks,
            ncap: blocks,
            flbas: format as u8,
            nmic: nmic::SHARED,
            ..NamespaceCreate::default()
        };
        fields.vendor.copy_from_slice(&new.label.encode()?);
        let done =
            self.send("Namespace Management (create)", Sqe::create_namespace(), fields.encode()).await?;
        Ok(done.cqe.dw0())
    }

    /// Removes a namespace and its content. I/O of hosts that use it fails.
    ///
    /// # Errors
    /// [`ManagementError::NotFound`], or those of any command.
    pub async fn delete_namespace(&self, nsid: u32) -> ManagementResult<()> {
        let sqe = Sqe::delete_namespace(nsid);
        self.send("Namespace Management (delete)", sqe, Vec::new()).await.map(drop)
    }

    /// Puts `label` in place of the label that a namespace has. From then on it is attached to the
    /// hosts that `label` names and to no other; whether it is thin does not change. A vendor specific
    /// command of Longhaul's targets, which takes hosts that are not connected too.
    ///
    /// # Errors
    /// [`ManagementError::NotFound`], or those of any command.
    pub async fn set_label(&self, nsid: u32, label: &NamespaceLabel) -> ManagementResult<()> {
        let sqe = Sqe::namespace_change(nsid, ChangeAction::Label);
        self.send("Namespace Change (label)", sqe, label.encode()?).await.map(drop)
    }

    /// Makes a namespace larger: to `size` bytes, a multiple of its block size. Its hosts see the
    /// change by an event. A vendor specific command of Longhaul's targets.
    ///
    /// # Errors
    /// [`ManagementError::Full`], [`ManagementError::NotFound`], or those of any command, as Invalid
    /// Field for a size that is smaller.
    pub async fn grow_namespace(&self, nsid: u32, size: u64) -> ManagementResult<()> {
        let namespace = self.namespace(nsid).await?;
        let block_size = namespace.block_size;
        if !size.is_multiple_of(block_size.into()) {
            return Err(ManagementError::Size { size, block_size });
        }
        let grow = ChangeAction::Grow { blocks: size / u64::from(block_size) };
        let sqe = Sqe::namespace_change(nsid, grow);
        self.send("Namespace Change (size)", sqe, Vec::new()).await.map(drop)
    }

    /// Makes a namespace with the content that `nsid` has at one moment, attached to the hosts that
    /// `label` names: its identifier. It is durable, and takes capacity as one of the two is written to. A
    /// vendor specific command of Longhaul's targets.
    ///
    /// # Errors
    /// [`ManagementError::NoClones`], [`ManagementError::NotFound`], [`ManagementError::Full`], or those of
    /// any command.
    pub async fn clone_namespace(&self, nsid: u32, label: &NamespaceLabel) -> ManagementResult<u32> {
        let sqe = Sqe::namespace_change(nsid, ChangeAction::Clone { only_try: false });
        Ok(self.send(CLONE, sqe, label.encode()?).await?.cqe.dw0())
    }

    /// Whether a namespace can be cloned: the target tries it on a file of its own, and makes nothing.
    ///
    /// # Errors
    /// As for [`clone_namespace`](Self::clone_namespace).
    pub async fn check_clones(&self, nsid: u32) -> ManagementResult<()> {
        let sqe = Sqe::namespace_change(nsid, ChangeAction::Clone { only_try: true });
        let label = NamespaceLabel::default().encode()?;
        self.send(CLONE, sqe, label).await.map(drop)
    }

    /// Attaches a namespace to the hosts of these controllers, which are connected now.
    ///
    /// # Errors
    /// [`ManagementError::AlreadyAttached`], [`ManagementError::NotFound`], or those of any command.
    pub async fn attach(&self, nsid: u32, cntlids: &[u16]) -> ManagementResult<()> {
        self.attachment(nsid, cntlids, AttachmentAction::Attach).await
    }

    /// Detaches a namespace from the hosts of these controllers.
    ///
    /// # Errors
    /// [`ManagementError::NotAttached`], [`ManagementError::NotFound`], or those of any command.
    pub async fn detach(&self, nsid: u32, cntlids: &[u16]) -> ManagementResult<()> {
        self.attachment(nsid, cntlids, AttachmentAction::Detach).await
    }

    async fn attachment(&self, nsid: u32, cntlids: &[u16], action: AttachmentAction) -> ManagementResult<()> {
        let what = match action {
            AttachmentAction::Attach => "Namespace Attachment (attach)",
            AttachmentAction::Detach => "Namespace Attachment (detach)",
        };
        let list = encode_controller_list(&cntlids[..cntlids.len().min(CONTROLLERS_MAX)]);
        self.send(what, Sqe::namespace_attachment(nsid, action), list).await.map(drop)
    }

    /// All namespaces of the space, in increasing order of their identifiers. One that is removed
    /// meanwhile may be missing.
    ///
    /// # Errors
    /// Those of any command.
    pub async fn list(&self) -> ManagementResult<Vec<AllocatedNamespace>> {
        self.run(async |connection| {
            let nsids = connection.allocated().await?;
            let all = stream::iter(nsids).map(|nsid| connection.namespace(nsid));
            let all: Vec<Option<_>> = all.buffered(LIST_DEPTH).try_collect().await?;
            Ok(all.into_iter().flatten().collect())
        })
        .await
    }

    /// One namespace of the space.
    ///
    /// # Errors
    /// [`ManagementError::NotFound`], or those of any command.
    pub async fn namespace(&self, nsid: u32) -> ManagementResult<AllocatedNamespace> {
        self.run(async move |connection| {
            let addr = connection.admin.endpoint.name.clone();
            connection.namespace(nsid).await?.ok_or(ManagementError::NotFound { addr, nsid })
        })
        .await
    }

    /// Controllers of the subsystem, of all hosts; or those of the hosts that a namespace is attached
    /// to.
    ///
    /// # Errors
    /// [`ManagementError::NotFound`], or those of any command.
    pub async fn controllers(&self, nsid: Option<u32>) -> ManagementResult<Vec<u16>> {
        self.run(async move |connection| connection.controllers(nsid).await).await
    }

    /// Identifier of this controller. It changes with each connection.
    ///
    /// # Errors
    /// Those of a connection.
    pub async fn cntlid(&self) -> ManagementResult<u16> {
        self.run(async |connection| Ok(connection.cntlid)).await
    }

    /// Capacity of the space, as of its last change.
    ///
    /// # Errors
    /// Those of any command.
    pub async fn capacity(&self) -> ManagementResult<Capacity> {
        let id = self.identify_controller().await?;
        Ok(Capacity { total: id.tnvmcap, unallocated: id.unvmcap })
    }

    /// Shuts the controller down. Dropping this does the same without waiting.
    pub async fn close(self) {
        let Administrator { jobs, served, .. } = self;
        drop(jobs);
        // If the thread has ended there is nothing to wait for.
        let _ = served.await;
    }

    async fn identify_controller(&self) -> ManagementResult<IdentifyController> {
        self.run(async |connection| Ok(connection.admin.identify_controller().await?)).await
    }

    async fn send(&self, what: &'static str, sqe: Sqe, data: Vec<u8>) -> ManagementResult<Done> {
        self.run(async move |connection| {
            let data = match data.is_empty() {
                true => Data::None,
                false => Data::Write(Memory::Shared(Buf::copy_of(&data))),
            };
            let done = connection.admin.submit(what, sqe, data, connection.timeout).await?;
            connection.check(what, sqe.nsid(), done.cqe.status())?;
            Ok(Done { memory: None, ..done })
        })
        .await
    }

    /// Runs `f` with the connection on the service thread.
    async fn run<T: Send + 'static>(
        &self,
        f: impl AsyncFnOnce(&Connection) -> ManagementResult<T> + Send + 'static,
    ) -> ManagementResult<T> {
        let (tx, rx) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            Box::pin(async move {
                let result = match connection {
                    Ok(connection) => {
                        let result = f(&connection).await;
                        if let Err(ManagementError::Connection(Error::TimedOut { .. })) = &result {
                            // Whatever it hangs on, the next command gets a connection of its own.
                            connection.admin.queue.close();
                        }
                        result
                    }
                    Err(e) => Err(e.into()),
                };
                // The caller may have given up.
                let _ = tx.send(result);
            })
        });
        self.jobs.unbounded_send(job).map_err(|_| service_has_ended())?;
        rx.await.map_err(|_| service_has_ended())?
    }
}

impl std::fmt::Debug for Administrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Administrator({})", self.name)
    }
}

fn service_has_ended() -> Error {
    Error::Local("the thread that serves admin queues has ended".into())
}
