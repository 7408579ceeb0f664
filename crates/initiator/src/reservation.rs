//! Reservations of a remote namespace, as its host uses them.
//!
//! Invariants:
//! - while `registered` of the controller has a key, no command goes to a new connection before the
//!   target has confirmed on that connection that this host is registered with it: a host that was
//!   preempted sends nothing again, also if no host holds the reservation any more;
//! - no registration is made but by [`Reservation::register`].

use crate::call::{Data, Pending};
use crate::controller::Controller;
use crate::error::{self, Result};
use crate::io::{RemoteIo, check};
use crate::path::ConnectionPool;
use crate::queue::Queue;
use crate::session::Session;
use longhaul_block::{IoError, IoFuture, IoResult, ReservationState, Reservations};
use longhaul_engine::{Buf, BufMut, Memory, timeout};
use longhaul_wire::command::{Sqe, io};
use longhaul_wire::identify::{oncs, rescap};
use longhaul_wire::reservation::{
    AcquireAction, AcquireFields, PersistChange, RegisterAction, RegisterFields, ReleaseAction,
    ReleaseFields, ReservationReport, ReservationType, encode_keys,
};
use std::rc::Rc;

/// Bytes of a report that are requested first: room for 63 registrants.
const REPORT: usize = 4096;

/// The reservation commands of a namespace (NVMe Base 2.1, "Reservations"). The host is
/// [`Options::hostid`](crate::Options::hostid), whichever connection a command takes.
///
/// A command whose connection is lost is sent again over the next one. All of them may be: those
/// that have been carried out already change nothing, except [`preempt`](Self::preempt), which then
/// ends with [`IoError::Reserved`] since the key that it names is registered no more; the report
/// says how it ended.
///
/// If another host ends the registration of this one, all I/O of the device fails for good once its
/// connections are lost, with [`IoError::Reserved`]: writes that waited for a new connection must
/// not land when no host holds the reservation any more.
#[derive(Clone)]
pub struct Reservation {
    pool: Rc<ConnectionPool>,
    nsid: u32,
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation(namespace {})", self.nsid)
    }
}

impl RemoteIo {
    /// The reservation commands; `None` if the controller has none.
    pub fn reservation(&self) -> Option<Reservation> {
        let has_some = self.oncs & oncs::RESERVATIONS != 0;
        has_some.then(|| Reservation { pool: Rc::clone(&self.pool), nsid: self.nsid })
    }

    /// As [`BlockIo::reservations`](longhaul_block::BlockIo::reservations) has them: the connections of one host
    /// share its identifier, so the holder alone is to write.
    pub(crate) fn lasting_reservations(&self) -> Option<Rc<dyn Reservations>> {
        let needed = rescap::PERSISTS | rescap::WRITE_EXCLUSIVE;
        self.reservations_of(ReservationType::WriteExclusive, needed)
    }

    /// As [`BlockIo::shared_reservations`](longhaul_block::BlockIo::shared_reservations) has them.
    pub(crate) fn shared_reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.reservations_of(ReservationType::WriteExclusiveAll, rescap::WRITE_EXCLUSIVE_ALL)
    }

    fn reservations_of(&self, kind: ReservationType, needed: u8) -> Option<Rc<dyn Reservations>> {
        let reservation = self.reservation().filter(|_| self.rescap & needed == needed)?;
        let persist = match self.rescap & rescap::PERSISTS {
            0 => PersistChange::None,
            _ => PersistChange::Set,
        };
        Some(Rc::new(TypedReservation { reservation, kind, persist }))
    }
}

impl Reservation {
    /// Registers this host with `key`, whatever its registration was before. `persist`: whether
    /// reservations of the namespace outlast a restart of the target from now on.
    ///
    /// # Errors
    /// [`IoError::Refused`] for [`PersistChange::Set`] where nothing can persist.
    pub async fn register(&self, key: u64, persist: PersistChange) -> IoResult<()> {
        let fields = RegisterFields { action: RegisterAction::Replace, ignore_key: true, persist };
        self.send(io::RESERVATION_REGISTER, fields.cdw10(), &encode_keys(0, key)).await?;
        // Not before: until then a new connection need not be refused.
        self.pool.controller().set_registered(Some(key));
        Ok(())
    }

    /// Ends the registration of this host, and its reservation.
    ///
    /// # Errors
    /// [`IoError::Reserved`] if it is not registered with `key`.
    pub async fn unregister(&self, key: u64) -> IoResult<()> {
        let fields = RegisterFields {
            action: RegisterAction::Unregister,
            ignore_key: false,
            persist: PersistChange::None,
        };
        // Before: the command may be sent again after it was carried out.
        self.pool.controller().set_registered(None);
        self.send(io::RESERVATION_REGISTER, fields.cdw10(), &encode_keys(key, 0)).await
    }

    /// Reserves the namespace for this host, registered with `key`.
    ///
    /// # Errors
    /// [`IoError::Reserved`] if another host holds it, or this one has not registered `key`.
    pub async fn acquire(&self, key: u64, kind: ReservationType) -> IoResult<()> {
        self.take(AcquireAction::Acquire, kind, [key, 0]).await
    }

    /// Ends the registration of the hosts with the key `other`, and takes their reservation over.
    /// When it completes, nothing that they have sent can change the namespace any more (Preempt
    /// and Abort).
    ///
    /// # Errors
    /// [`IoError::Reserved`] if no host is registered with `other`, or this one not with `key`.
    pub async fn preempt(&self, key: u64, other: u64, kind: ReservationType) -> IoResult<()> {
        self.take(AcquireAction::PreemptAndAbort, kind, [key, other]).await
    }

    /// Gives the reservation back; nothing changes if this host does not hold it.
    ///
    /// # Errors
    /// [`IoError::Reserved`] if this host has not registered `key`.
    pub async fn release(&self, key: u64, kind: ReservationType) -> IoResult<()> {
        let fields = ReleaseFields { action: ReleaseAction::Release, ignore_key: false, kind: Some(kind) };
        self.send(io::RESERVATION_RELEASE, fields.cdw10(), &key.to_le_bytes()).await
    }

    /// The registered hosts, and the holder of the reservation.
    ///
    /// # Errors
    /// [`IoError::Integrity`] if the controller's answer is not a report.
    pub async fn report(&self) -> IoResult<ReservationReport> {
        report(self.nsid, |sqe, data| self.pool.submit_other(sqe, data)).await
    }

    async fn take(&self, action: AcquireAction, kind: ReservationType, keys: [u64; 2]) -> IoResult<()> {
        let fields = AcquireFields { action, ignore_key: false, kind };
        self.send(io::RESERVATION_ACQUIRE, fields.cdw10(), &encode_keys(keys[0], keys[1])).await
    }

    async fn send(&self, opcode: u8, cdw10: u32, keys: &[u8]) -> IoResult<()> {
        let sqe = Sqe::new(opcode).with_nsid(self.nsid).with_cdw(10, cdw10);
        let data = Data::Write(Memory::Shared(Buf::copy_of(keys)));
        let done = self.pool.submit_other(sqe, data).await?;
        check(&done)
    }
}

/// The report of a namespace; `submit` sends a command.
async fn report(nsid: u32, submit: impl Fn(Sqe, Data) -> Pending) -> IoResult<ReservationReport> {
    let first = report_of(nsid, REPORT, &submit).await?;
    match first.missing {
        0 => Ok(first.report),
        missing => Ok(report_of(nsid, REPORT + missing, &submit).await?.report),
    }
}

async fn report_of(nsid: u32, len: usize, submit: impl Fn(Sqe, Data) -> Pending) -> IoResult<PartOfReport> {
    let sqe = Sqe::reservation_report(nsid, len as u32);
    let done = submit(sqe, Data::Read(Memory::Buf(BufMut::zeroed(len)))).await?;
    check(&done)?;
    let Some(Memory::Buf(buf)) = done.memory else {
        return Err(IoError::Integrity("a reservation report came without data".into()));
    };
    let report = ReservationReport::decode(&buf);
    let report = report.ok_or_else(|| IoError::Integrity("a reservation report is too short".into()))?;
    let missing = ReservationReport::len_of(&buf).saturating_sub(len);
    Ok(PartOfReport { report, missing })
}

/// A report, and how many bytes of it there were no room for.
struct PartOfReport {
    report: ReservationReport,
    missing: usize,
}

/// Makes sure that this host may use a new connection: if it has registered, the target must know
/// the registration still. Otherwise the controller is lost for good.
///
/// # Errors
/// The registration has ended, or the connection is lost.
pub(crate) async fn check_registered(
    controller: &Controller,
    session: &Session,
    queue: &Queue,
) -> Result<()> {
    let Some(key) = controller.registered() else { return Ok(()) };
    let (options, endpoint) = (&controller.settings.options, &session.endpoint);
    let limit = options.connect_timeout.min(endpoint.patience);
    let nsid = controller.namespace_now().nsid;
    let report = timeout(limit, report(nsid, |sqe, data| queue.submit(sqe, data))).await;
    let report = match report {
        Ok(Ok(report)) => report,
        Ok(Err(e)) => return Err(endpoint.unreachable(error::reason(&e))),
        Err(_) => return Err(endpoint.unreachable("it did not answer Reservation Report")),
    };
    let host = options.hostid.into_bytes();
    if report.registrants.iter().any(|one| one.hostid == host && one.key == key) {
        return Ok(());
    }
    tracing::warn!("{}: another host has ended the registration of this one: all I/O fails", endpoint.name);
    controller.preempted();
    Err(endpoint.unreachable(IoError::Reserved))
}

/// Reservations of one type, which outlast a restart of the target where it can keep them.
struct TypedReservation {
    reservation: Reservation,
    kind: ReservationType,
    persist: PersistChange,
}

impl TypedReservation {
    fn run<T: 'static, F: Future<Output = IoResult<T>> + 'static>(
        &self,
        command: impl FnOnce(Reservation) -> F,
    ) -> IoFuture<T> {
        // A command begins when it is called: it is submitted when its future is first polled.
        let (done, result) = futures_channel::oneshot::channel();
        let command = command(self.reservation.clone());
        longhaul_engine::spawn(async move { drop(done.send(command.await)) }).detach();
        IoFuture::new(async move { result.await.unwrap_or(Err(IoError::Aborted)) })
    }
}

impl Reservations for TypedReservation {
    fn register(&self, key: u64) -> IoFuture<()> {
        let persist = self.persist;
        self.run(move |this| async move { this.register(key, persist).await })
    }

    fn unregister(&self, key: u64) -> IoFuture<()> {
        self.run(move |this| async move { this.unregister(key).await })
    }

    fn acquire(&self, key: u64) -> IoFuture<()> {
        let kind = self.kind;
        self.run(move |this| async move { this.acquire(key, kind).await })
    }

    fn preempt(&self, key: u64, other: u64) -> IoFuture<()> {
        let kind = self.kind;
        self.run(move |this| async move { this.preempt(key, other, kind).await })
    }

    fn report(&self) -> IoFuture<ReservationState> {
        self.run(|this| async move {
            let report = this.report().await?;
            let holder = report.kind.and_then(|_| report.registrants.iter().find(|one| one.holds));
            // A registrant has an entry for each of its controllers.
            let mut registered: Vec<u64> = report.registrants.iter().map(|one| one.key).collect();
            registered.sort_unstable();
            registered.dedup();
            let is_shared = report.kind.is_some_and(ReservationType::is_all);
            Ok(ReservationState { holder: holder.map(|one| one.key), is_shared, registered })
        })
    }
}
