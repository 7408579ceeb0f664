//! Administrative operations on a running array.

use crate::array::ArrayFuture;
use crate::assembly::candidate::{Candidate, check_device, examine};
use crate::assembly::current::Ancestry;
use crate::core::Core;
use crate::device::ArrayDevice;
use crate::error::ArrayError;
use crate::format::superblock::{Condition, MAX_SPARES, Superblock};
use crate::heal::replace::Spare;
use crate::heal::scrub::ScrubReport;
use crate::heal::upkeep::TaskGuard;
use crate::io::admission::Admitted;
use crate::member::Member;
use crate::options::Options;
use crate::session::fence::{TAKEOVER_BEATS, check_idle};
use longhaul_block::{BlockDevice, IoError, IoResult};
use longhaul_engine::{spawn, timeout};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

impl Core {
    /// Examines a device that is to join the array.
    pub(crate) async fn examine_new_device(
        self: &Rc<Self>,
        device: Arc<dyn BlockDevice>,
        force: bool,
        uuid: Uuid,
    ) -> Result<(Spare, Candidate), ArrayError> {
        check_device(&*device)?;
        let name = device.info().name;
        if self.joining.is_left(&name) {
            let why = "writes of an earlier attempt to use it have not ended";
            return Err(ArrayError::Refused(format!("array {}: {name} cannot be used: {why}", self.name)));
        }
        let candidate = self.examine_in_time(&device).await?;
        let (size, needs) = (device.info().size, self.geometry().end());
        if size < needs {
            return Err(ArrayError::TooSmall { device: candidate.name(), size, needs });
        }
        if let Some(found) = &candidate.superblock {
            let in_use =
                self.members.iter().any(|member| member.uuid() == found.member && member.is_usable())
                    || self.spares.has(found.member);
            if in_use {
                return Err(ArrayError::Double { device: candidate.name(), other: "a member in use".into() });
            }
        }
        // A former member of this array may join as a new device, but not one that has continued
        // without the array.
        if !force {
            if let Some(found) = candidate.superblock.as_ref().filter(|found| found.array == self.array) {
                let place = self.members.iter().find(|member| member.uuid() == found.member);
                if self.ancestry(found, place.map(|member| member.state.since())) == Ancestry::Diverged {
                    let (device, own, ours) = (candidate.name(), found.age(), self.superblock().age());
                    return Err(ArrayError::Newer { device, own, ours });
                }
            }
            candidate.check_free(Some(self.array))?;
            self.in_member_time(&name, candidate.check_content()).await?;
        }
        let heartbeat = self.options.heartbeat.max(Options::default().heartbeat);
        let own = Some(self.session.uuid);
        let idle = check_idle(std::slice::from_ref(&candidate), own, heartbeat);
        match timeout(self.options.member_timeout + heartbeat * TAKEOVER_BEATS, idle).await {
            Ok(idle) => idle?,
            Err(_) => return Err(self.unanswered(&name)),
        }
        Ok((Spare { uuid, device: Some(device) }, candidate))
    }

    /// Runs what only reads a device, within the timeout of a member.
    async fn in_member_time<T>(
        &self,
        device: &str,
        looks: impl Future<Output = Result<T, ArrayError>>,
    ) -> Result<T, ArrayError> {
        timeout(self.options.member_timeout, looks).await.unwrap_or_else(|_| Err(self.unanswered(device)))
    }

    fn unanswered(&self, device: &str) -> ArrayError {
        let seconds = self.options.member_timeout.as_secs_f64();
        let source = IoError::Unreachable(format!("it did not answer in {seconds:.1} s"));
        ArrayError::Device { device: device.to_owned(), source }
    }

    /// Opens and examines a device, within the timeout of a member.
    pub(crate) async fn examine_in_time(
        &self,
        device: &Arc<dyn BlockDevice>,
    ) -> Result<Candidate, ArrayError> {
        self.in_member_time(&device.info().name, examine(device)).await
    }

    pub(crate) fn check_index(&self, index: usize) -> Result<(), ArrayError> {
        match index < self.geometry().width {
            true => Ok(()),
            false => Err(ArrayError::TooFew(format!("there is no member {index}"))),
        }
    }

    async fn replace(
        self: &Rc<Self>,
        index: usize,
        device: Arc<dyn BlockDevice>,
        force: bool,
        uuid: Uuid,
    ) -> Result<(), ArrayError> {
        self.check_index(index)?;
        self.check_needed(index)?;
        let (_, candidate) = self.examine_new_device(device, force, uuid).await?;
        let (_admitted, name) = (self.admit_change()?, candidate.name());
        self.reserve_given(uuid, &candidate, force).await?;
        let placed = self.replace_member(index, uuid, candidate.device, candidate.io, false).await;
        let Err(source) = placed else { return Ok(()) };
        self.give_back(uuid, false);
        self.check_needed(index)?;
        Err(ArrayError::Device { device: name, source })
    }

    /// Admits a change of the array's members.
    pub(crate) fn admit_change(self: &Rc<Self>) -> Result<Admitted, ArrayError> {
        self.admit().map_err(|e| match e {
            IoError::Offline(why) => ArrayError::Refused(why),
            e => e.into(),
        })
    }

    /// Refuses if the array has halted, or needs this member.
    fn check_needed(self: &Rc<Self>, index: usize) -> Result<(), ArrayError> {
        drop(self.admit_change()?);
        if self.members.cannot_lose(index) {
            Err(ArrayError::Refused(self.why_needed(index)))
        } else {
            Ok(())
        }
    }

    /// Lets a spare leave the array.
    async fn remove_spare(self: &Rc<Self>, device: &str) -> Result<(), ArrayError> {
        let _admitted = self.admit_change()?;
        let is_it = |spare: &Spare| spare.device.as_ref().is_some_and(|found| found.info().name == device);
        let Some(spare) = self.spares.list().into_iter().find(is_it) else {
            return Err(ArrayError::NoMember(format!("{device} (it is no spare of array {})", self.name)));
        };
        self.publish_with(|| self.spares.remove(spare.uuid)).await?;
        self.give_back(spare.uuid, false);
        Ok(())
    }

    async fn wait_rebuilt(self: &Rc<Self>, index: usize) -> IoResult<()> {
        let Some(member) = self.members.get(index) else {
            return Err(IoError::Offline(format!("there is no member {index}")));
        };
        loop {
            let ended = || member.is_active() || member.is_missing() || self.is_halted();
            self.upkeep.changed.until(ended).await;
            self.check_running()?;
            if member.is_active() {
                return Ok(());
            }
            let back = self.upkeep.changed.until(|| !member.is_missing() || self.is_halted());
            let has_failed = member.condition() == Condition::Failed;
            if has_failed || timeout(self.options.spare_grace, back).await.is_err() {
                let name = member.name().unwrap_or_default();
                let (condition, why) = (member.condition(), member.state.reason());
                return Err(IoError::Offline(format!(
                    "member {index} ({name}) is {condition:?}, and its rebuild has stopped: {why}"
                )));
            }
        }
    }

    async fn add_spare(
        self: &Rc<Self>,
        device: Arc<dyn BlockDevice>,
        force: bool,
        uuid: Uuid,
    ) -> Result<(), ArrayError> {
        drop(self.admit_change()?);
        let found = self.examine_in_time(&device).await?.superblock;
        if found.is_some_and(|found| self.spares.is_unattached(found.member)) {
            // The spare was unreachable, or the last attempt was interrupted.
            return self.offer(device).await.map(drop);
        }
        if !self.spares.has_room() {
            return Err(ArrayError::TooFew(format!("there are {MAX_SPARES} spares already")));
        }
        let (spare, mut candidate) = self.examine_new_device(device, force, uuid).await?;
        let _admitted = self.admit_change()?;
        self.reserve_given(uuid, &candidate, force).await?;
        candidate.io = self.joining_io(&candidate.name(), &candidate.io);
        // The device first: it must be writable, and does not belong to the array until the
        // superblocks of the members list it.
        let superblock = Superblock { member: uuid, ..self.superblock() };
        let added = async {
            crate::assembly::create::enlist(&candidate, &superblock).await?;
            Ok(self.publish_with(|| self.spares.add(spare)).await?)
        };
        added.await.inspect_err(|_| self.give_back(uuid, false))
    }
}

/// Runs an operation on the array's thread; it continues if its future is dropped.
fn on_its_thread<'a, T, E, F>(
    array: &'a ArrayDevice,
    run: impl FnOnce(Rc<Core>) -> F + Send + 'static,
) -> ArrayFuture<'a, Result<T, E>>
where
    T: Send + 'static,
    E: From<IoError> + Send + 'static,
    F: Future<Output = Result<T, E>> + 'static,
{
    Box::pin(async move {
        array
            .ask(move |core, answer| {
                let future = run(Rc::clone(core));
                spawn(async move { drop(answer.send(future.await)) }).detach();
            })
            .await?
    })
}

impl ArrayDevice {
    /// Replaces member `index` by `device` and starts its rebuild.
    ///
    /// # Errors
    /// The device is too small, cannot be written, or belongs to an array or has other content; the
    /// array needs the member, or has halted. The member is still in use then, and nothing was
    /// changed on the others.
    pub fn replace(
        &self,
        index: usize,
        device: Arc<dyn BlockDevice>,
        force: bool,
    ) -> ArrayFuture<'_, Result<(), ArrayError>> {
        let uuid = Uuid::new_v4();
        on_its_thread(self, move |core| async move { core.replace(index, device, force, uuid).await })
    }

    /// Moves member `index`, which is active, to `device`, and returns when that has its place. The
    /// member stays in use until then, and what is written meanwhile goes to both devices: no
    /// redundancy is lost, and an array without any can be moved too. It goes on if the future is
    /// dropped, and a second call with a device of the same name waits for it. The rate is that of
    /// rebuilds; the progress is shown as theirs.
    ///
    /// # Errors
    /// As for [`Self::replace`]; or the member is not active, or is lost meanwhile, or cannot be read; or
    /// `device` fails, or is too slow, or the move is [given up](Self::cancel_move). The member has its
    /// device then, and `device` is not part of the array.
    pub fn move_member(
        &self,
        index: usize,
        device: Arc<dyn BlockDevice>,
        force: bool,
    ) -> ArrayFuture<'_, Result<(), ArrayError>> {
        let uuid = Uuid::new_v4();
        on_its_thread(self, move |core| async move { core.move_member(index, device, force, uuid).await })
    }

    /// Gives up a move to the device of this name, if one is under way, and returns when none is. True if
    /// the device is a member: it has moved there before.
    ///
    /// # Errors
    /// The array's thread has ended.
    pub fn cancel_move(&self, device: &str) -> ArrayFuture<'_, IoResult<bool>> {
        let device = device.to_owned();
        on_its_thread(self, move |core| async move { Ok(core.cancel_move(&device).await) })
    }

    /// Lets the spare on the device of this name leave the array.
    ///
    /// # Errors
    /// The array has no such spare, or has halted.
    pub fn remove_spare(&self, device: &str) -> ArrayFuture<'_, Result<(), ArrayError>> {
        let device = device.to_owned();
        on_its_thread(self, move |core| async move { core.remove_spare(&device).await })
    }

    /// Attaches a device of this array that was unreachable at assembly, or was opened again after
    /// it had been given up: a member is resynced, a spare is kept. False if the array has no use
    /// for it.
    ///
    /// # Errors
    /// The device is not of this array, or cannot be read.
    pub fn offer(&self, device: Arc<dyn BlockDevice>) -> ArrayFuture<'_, Result<bool, ArrayError>> {
        on_its_thread(self, move |core| async move { core.offer(device).await })
    }

    /// UUIDs of the members that are offline and whose devices are missing or have been given up:
    /// they return if their devices are opened again and [offered](Self::offer).
    ///
    /// # Errors
    /// The array's thread has ended.
    pub fn unattached_members(&self) -> ArrayFuture<'_, IoResult<Vec<Uuid>>> {
        on_its_thread(self, |core| async move { Ok(core.members_without_device().await) })
    }

    /// Adds a spare, which replaces a member when one is lost. A spare of this array that was
    /// unreachable is attached again. If there are [`MAX_SPARES`] already, an unreachable one is
    /// dropped for it.
    ///
    /// # Errors
    /// The device is too small, cannot be written, or belongs to an array or has other content; the
    /// array has halted.
    pub fn add_spare(
        &self,
        device: Arc<dyn BlockDevice>,
        force: bool,
    ) -> ArrayFuture<'_, Result<(), ArrayError>> {
        let uuid = Uuid::new_v4();
        on_its_thread(self, move |core| async move { core.add_spare(device, force, uuid).await })
    }

    /// Makes the array as large as its members have become; they are asked for their size. All of
    /// what is added reads as zeroes. Returns the sizes before and after in bytes: they are equal if
    /// no stripe more fits. Handles that are open have the new size.
    ///
    /// # Errors
    /// Not all members are there and complete, a spare is too small, or the array cannot be extended
    /// any further: it has the size that it had. After an error of a member it has one or the other.
    pub fn grow(&self) -> ArrayFuture<'_, Result<(u64, u64), ArrayError>> {
        on_its_thread(self, |core| async move { core.grow().await })
    }

    /// Pauses writes, and returns when those under way are in place on the members, durably. From then
    /// until the pause ends the content of the members stays as it is: a copy of each that is made
    /// meanwhile is of one moment, and has all writes that were acknowledged before. Reads go on; writes
    /// wait. It ends by [`resume`](Self::resume), by the number that this returns, or by itself after
    /// `limit`.
    ///
    /// # Errors
    /// The array is paused already, a member is missing or being rebuilt, or what is under way does not
    /// end within `limit`: writes go on then.
    pub fn pause(&self, limit: Duration) -> ArrayFuture<'_, Result<u64, ArrayError>> {
        on_its_thread(self, move |core| async move { core.pause(limit).await })
    }

    /// Ends a pause. False if it had ended by itself: writes may have been done since.
    ///
    /// # Errors
    /// The array's thread has ended.
    pub fn resume(&self, pause: u64) -> ArrayFuture<'_, IoResult<bool>> {
        on_its_thread(self, move |core| async move { Ok(core.resume(pause)) })
    }

    /// Reads and verifies everything, and repairs what is wrong. Ends early if the array stops.
    ///
    /// # Errors
    /// The array has no redundancy, or more is lost than its redundancy allows.
    pub fn scrub(&self) -> ArrayFuture<'_, IoResult<ScrubReport>> {
        on_its_thread(self, |core| async move {
            // The scrub writes repairs until it notices that the array is stopping.
            let _running = TaskGuard::new(&core);
            core.scrub().await
        })
    }

    /// Sets the limit in bytes per second at which a scrub reads each member.
    ///
    /// # Errors
    /// The array's thread has ended.
    pub fn set_scrub_rate(&self, rate: Option<u64>) -> ArrayFuture<'_, IoResult<()>> {
        Box::pin(self.ask(move |core, answer| {
            core.upkeep.scrub_rate.set(rate);
            // The caller may have dropped its future.
            let _ = answer.send(());
        }))
    }

    /// Sets the limit in bytes per second at which a rebuild reads each member, and a scrub, unless
    /// it has a limit of its own.
    ///
    /// # Errors
    /// The array's thread has ended.
    pub fn set_rebuild_rate(&self, rate: Option<u64>) -> ArrayFuture<'_, IoResult<()>> {
        Box::pin(self.ask(move |core, answer| {
            core.upkeep.rebuild_rate.set(rate);
            // The caller may have dropped its future.
            let _ = answer.send(());
        }))
    }

    /// Returns when member `index` is complete. If it goes offline meanwhile, waits for as long as
    /// a spare would before it replaces the member.
    ///
    /// # Errors
    /// There is no such member, or it has failed, or stays offline; the array has halted, or its
    /// thread has ended.
    pub fn wait_rebuilt(&self, index: usize) -> ArrayFuture<'_, IoResult<()>> {
        on_its_thread(self, move |core| async move { core.wait_rebuilt(index).await })
    }

    /// Returns when all members are active, and none may have lost what it had acknowledged.
    ///
    /// # Errors
    /// The array has halted, or its thread has ended; what a member has lost with its cache is on
    /// no other.
    pub fn wait_healthy(&self) -> ArrayFuture<'_, IoResult<()>> {
        on_its_thread(self, |core| async move {
            let healthy = || core.members.all_active();
            loop {
                core.upkeep.changed.until(|| healthy() || core.is_halted()).await;
                core.check_running()?;
                // A member that has reconnected stays active until a flush has verified it.
                core.members.iter().for_each(Member::look_at_generation);
                if core.members.doubtful().next().is_some() {
                    core.flush_members().await?;
                    continue;
                }
                // The superblocks must record it, so that it holds after a crash as well.
                core.published().await;
                if healthy() {
                    return core.check_running();
                }
            }
        })
    }
}
