//! Reservations of a remote namespace, as its host uses them.

use crate::call::Data;
use crate::io::{RemoteIo, check};
use longhaul_block::{IoError, IoResult};
use longhaul_engine::{Buf, BufMut, Memory};
use longhaul_wire::command::{Sqe, io};
use longhaul_wire::identify::oncs;
use longhaul_wire::reservation::{
    AcquireAction, AcquireFields, PersistChange, RegisterAction, RegisterFields, ReleaseAction,
    ReleaseFields, ReservationReport, ReservationType, encode_keys,
};

/// Bytes of a report that are requested first: room for 63 registrants.
const REPORT: usize = 4096;

/// The reservation commands of a namespace (NVMe Base 2.1, "Reservations"). The host is
/// [`Options::hostid`](crate::Options::hostid), whichever connection a command takes.
///
/// A command whose connection is lost is sent again over the next one. All of them may be: those
/// that have been carried out already change nothing, except [`preempt`](Self::preempt), which then
/// ends with [`IoError::Reserved`] since the key that it names is registered no more; the report
/// says how it ended.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'a>(&'a RemoteIo);

impl RemoteIo {
    /// The reservation commands; `None` if the controller has none.
    pub fn reservation(&self) -> Option<Reservation<'_>> {
        (self.oncs & oncs::RESERVATIONS != 0).then_some(Reservation(self))
    }
}

impl Reservation<'_> {
    /// Registers this host with `key`, whatever its registration was before. `persist`: whether
    /// reservations of the namespace outlast a restart of the target from now on.
    ///
    /// # Errors
    /// [`IoError::Refused`] for [`PersistChange::Set`] where nothing can persist.
    pub async fn register(self, key: u64, persist: PersistChange) -> IoResult<()> {
        let fields = RegisterFields { action: RegisterAction::Replace, ignore_key: true, persist };
        self.send(io::RESERVATION_REGISTER, fields.cdw10(), &encode_keys(0, key)).await
    }

    /// Ends the registration of this host, and its reservation.
    ///
    /// # Errors
    /// [`IoError::Reserved`] if it is not registered with `key`.
    pub async fn unregister(self, key: u64) -> IoResult<()> {
        let fields = RegisterFields {
            action: RegisterAction::Unregister,
            ignore_key: false,
            persist: PersistChange::None,
        };
        self.send(io::RESERVATION_REGISTER, fields.cdw10(), &encode_keys(key, 0)).await
    }

    /// Reserves the namespace for this host, registered with `key`.
    ///
    /// # Errors
    /// [`IoError::Reserved`] if another host holds it, or this one has not registered `key`.
    pub async fn acquire(self, key: u64, kind: ReservationType) -> IoResult<()> {
        self.take(AcquireAction::Acquire, kind, [key, 0]).await
    }

    /// Ends the registration of the hosts with the key `other`, and takes their reservation over.
    /// When it completes, nothing that they have sent can change the namespace any more (Preempt
    /// and Abort).
    ///
    /// # Errors
    /// [`IoError::Reserved`] if no host is registered with `other`, or this one not with `key`.
    pub async fn preempt(self, key: u64, other: u64, kind: ReservationType) -> IoResult<()> {
        self.take(AcquireAction::PreemptAndAbort, kind, [key, other]).await
    }

    /// Gives the reservation back; nothing changes if this host does not hold it.
    ///
    /// # Errors
    /// [`IoError::Reserved`] if this host has not registered `key`.
    pub async fn release(self, key: u64, kind: ReservationType) -> IoResult<()> {
        let fields = ReleaseFields { action: ReleaseAction::Release, ignore_key: false, kind: Some(kind) };
        self.send(io::RESERVATION_RELEASE, fields.cdw10(), &key.to_le_bytes()).await
    }

    /// The registered hosts, and the holder of the reservation.
    ///
    /// # Errors
    /// [`IoError::Integrity`] if the controller's answer is not a report.
    pub async fn report(self) -> IoResult<ReservationReport> {
        let first = self.report_of(REPORT).await?;
        match first.missing {
            0 => Ok(first.report),
            missing => Ok(self.report_of(REPORT + missing).await?.report),
        }
    }

    async fn take(self, action: AcquireAction, kind: ReservationType, keys: [u64; 2]) -> IoResult<()> {
        let fields = AcquireFields { action, ignore_key: false, kind };
        self.send(io::RESERVATION_ACQUIRE, fields.cdw10(), &encode_keys(keys[0], keys[1])).await
    }

    async fn send(self, opcode: u8, cdw10: u32, keys: &[u8]) -> IoResult<()> {
        let sqe = Sqe::new(opcode).with_nsid(self.0.nsid).with_cdw(10, cdw10);
        let data = Data::Write(Memory::Shared(Buf::copy_of(keys)));
        let done = self.0.pool.submit_other(sqe, data).await?;
        check(&done)
    }

    async fn report_of(self, len: usize) -> IoResult<PartOfReport> {
        let sqe = Sqe::reservation_report(self.0.nsid, len as u32);
        let data = Data::Read(Memory::Buf(BufMut::zeroed(len)));
        let done = self.0.pool.submit_other(sqe, data).await?;
        check(&done)?;
        let Some(Memory::Buf(buf)) = done.memory else {
            return Err(IoError::Integrity("a reservation report came without data".into()));
        };
        let report = ReservationReport::decode(&buf);
        let report = report.ok_or_else(|| IoError::Integrity("a reservation report is too short".into()))?;
        let missing = ReservationReport::len_of(&buf).saturating_sub(len);
        Ok(PartOfReport { report, missing })
    }
}

/// A report, and how many bytes of it there were no room for.
struct PartOfReport {
    report: ReservationReport,
    missing: usize,
}
