//! Start, run and stop of an array.

use crate::assembly::assemble;
use crate::assembly::candidate::{Candidate, Examined, examine_all};
use crate::assembly::create::{self, Shape};
use crate::core::{Core, HaltReason};
use crate::device::{ArrayDevice, ArrayTask};
use crate::error::ArrayError;
use crate::format::heartbeat::Heartbeat;
use crate::format::superblock::Condition;
use crate::heal::upkeep;
use crate::options::Options;
use crate::session::memory::Memory;
use crate::session::{fence, guard};
use futures_channel::mpsc;
use futures_util::StreamExt;
use futures_util::future::join_all;
use longhaul_block::{BlockDevice, IoError, IoResult};
use longhaul_engine::{now, spawn};
use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// What an operation on arrays returns. It is boxed so that the code behind it is compiled once, in
/// this crate, and not again in each program that awaits it.
pub type ArrayFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// How often the superblocks may have changed while the array was being taken over.
const ROUNDS: u32 = 3;

thread_local! {
    /// The running arrays of this thread, by session.
    static HERE: RefCell<HashMap<Uuid, Rc<Core>>> = RefCell::default();
}

/// The array of a session, if it runs on this thread.
pub(crate) fn here(session: Uuid) -> Option<Rc<Core>> {
    HERE.with(|here| here.borrow().get(&session).cloned())
}

/// Creates an array, which reads as zeroes, and returns its UUID. Runs on any engine thread.
///
/// # Errors
/// The devices cannot form such an array; nothing was written then, unless a device failed.
pub fn create<'a>(
    devices: &'a [Arc<dyn BlockDevice>],
    spares: &'a [Arc<dyn BlockDevice>],
    shape: &'a Shape,
) -> ArrayFuture<'a, Result<Uuid, ArrayError>> {
    create_as(devices, spares, shape, Uuid::new_v4)
}

/// Like [`create()`], with identifiers from the caller: for simulations, which must be reproducible.
///
/// # Errors
/// As for [`create()`].
pub fn create_as<'a>(
    devices: &'a [Arc<dyn BlockDevice>],
    spares: &'a [Arc<dyn BlockDevice>],
    shape: &'a Shape,
    new_uuid: impl FnMut() -> Uuid + 'a,
) -> ArrayFuture<'a, Result<Uuid, ArrayError>> {
    create_witnessed(devices, spares, None, shape, new_uuid)
}

/// Like [`create_as`], with a witness: a device of at least [`WITNESS_SIZE`](crate::WITNESS_SIZE)
/// bytes that records the conditions of members, so that at most one of two halves continues
/// without the other.
///
/// # Errors
/// As for [`create()`].
pub fn create_witnessed<'a>(
    devices: &'a [Arc<dyn BlockDevice>],
    spares: &'a [Arc<dyn BlockDevice>],
    witness: Option<&'a Arc<dyn BlockDevice>>,
    shape: &'a Shape,
    new_uuid: impl FnMut() -> Uuid + 'a,
) -> ArrayFuture<'a, Result<Uuid, ArrayError>> {
    create::create(devices, spares, witness, shape, Box::new(new_uuid))
}

/// Assembles an array from its members, in any order, and runs it on the calling engine thread
/// until [`ArrayDevice::stop`]. Members that are not given count as missing.
///
/// After a crash, the journal is replayed and stripes that were being written are resynced before
/// this returns.
///
/// # Errors
/// The devices are not members of one array, or not enough of them; the [`ArrayError`] names the
/// device and the reason. Nothing was written then.
pub fn assemble(
    devices: &[Arc<dyn BlockDevice>],
    options: Options,
) -> ArrayFuture<'_, Result<Arc<ArrayDevice>, ArrayError>> {
    assemble_as(devices, options, Uuid::new_v4())
}

/// Like [`assemble()`], with a session UUID from the caller: for simulations, which must be
/// reproducible.
///
/// # Errors
/// As for [`assemble()`].
pub fn assemble_as(
    devices: &[Arc<dyn BlockDevice>],
    options: Options,
    session: Uuid,
) -> ArrayFuture<'_, Result<Arc<ArrayDevice>, ArrayError>> {
    assemble_with(devices, options, session, None)
}

/// Like [`assemble_as`], with the record that this host keeps of the array. The witness, if the
/// array has one, is among the devices.
///
/// # Errors
/// As for [`assemble()`].
pub fn assemble_with(
    devices: &[Arc<dyn BlockDevice>],
    options: Options,
    session: Uuid,
    memory: Option<Arc<dyn Memory>>,
) -> ArrayFuture<'_, Result<Arc<ArrayDevice>, ArrayError>> {
    Box::pin(start(devices, options, session, memory))
}

async fn start(
    devices: &[Arc<dyn BlockDevice>],
    options: Options,
    session: Uuid,
    memory: Option<Arc<dyn Memory>>,
) -> Result<Arc<ArrayDevice>, ArrayError> {
    let mut attempt = Attempt { devices, options, session, memory, beats: vec![None; devices.len()] };
    let mut rounds = ROUNDS;
    let (core, stale, was_clean) = loop {
        rounds -= 1;
        match attempt.own().await? {
            Owned { core, stale, was_clean, changed: false } => break (core, stale, was_clean),
            Owned { core, .. } if rounds == 0 => {
                core.give_back_all().await;
                let why = "its superblocks change while it is assembled: another host writes to it";
                return Err(ArrayError::TakenOver(why.into()));
            }
            Owned { core, .. } => core.end("it is assembled again"),
        }
    };
    // Heartbeats start before the recovery, which may take longer than a takeover waits.
    spawn(fence::run_heartbeat(Rc::clone(&core))).detach();
    if let Err(e) = begin(&core, was_clean).await {
        core.end("it could not be assembled");
        core.upkeep.ended().await;
        return Err(match core.halt_reason() {
            Some(HaltReason::TakenOver) => ArrayError::TakenOver(e.to_string()),
            _ => ArrayError::Assemble(e),
        });
    }
    for (index, candidate) in stale {
        core.members[index].put(candidate.device, candidate.io);
    }
    Ok(run(core))
}

/// An assembly, as far as it can be tried again.
struct Attempt<'a> {
    devices: &'a [Arc<dyn BlockDevice>],
    options: Options,
    session: Uuid,
    memory: Option<Arc<dyn Memory>>,
    /// The last heartbeats of other sessions, by place of the device.
    beats: Vec<Option<Heartbeat>>,
}

/// An array that this session owns.
struct Owned {
    core: Rc<Core>,
    stale: Vec<(usize, Candidate)>,
    was_clean: bool,
    /// The superblocks have changed between their examination and the takeover.
    changed: bool,
}

impl Attempt<'_> {
    /// Examines the devices, decides which are current, and takes ownership of them.
    async fn own(&mut self) -> Result<Owned, ArrayError> {
        let mut candidates = Vec::new();
        let results = examine_all(self.devices).await.into_iter().zip(self.devices);
        for ((result, device), last) in results.zip(&mut self.beats) {
            match result {
                Ok(mut candidate) => {
                    // An earlier attempt may have written over it.
                    match candidate.beat {
                        Some(beat) if beat.session == self.session => candidate.beat = *last,
                        beat => *last = beat,
                    }
                    candidates.push(candidate);
                }
                // The device counts as missing.
                Err(e) => tracing::warn!("{}: {e}", device.info().name),
            }
        }
        let examined: Vec<Examined> = candidates.iter().filter_map(Candidate::examined).collect();
        let options = self.options.clone();
        let mut assembly = assemble::arrange(candidates, &options)?;
        assembly.remove_late_members(&options);
        let known = self.memory.as_ref().and_then(|memory| memory.recall());
        assemble::check_enough(&assembly)?;
        assembly.check_current(options.degraded, known.as_ref())?;
        let (was_clean, reservable) = (assembly.superblock.clean, guard::reservable(&assembly));
        let (core, stale) = assemble::attach_members(assembly, options, self.session, self.memory.clone());
        fence::take_ownership(&core, &reservable).await?;
        // The last session may have recorded something since the examination, and then ended.
        let changed = join_all(examined.iter().map(Examined::has_changed)).await.contains(&true);
        Ok(Owned { core, stale, was_clean, changed })
    }
}

/// Recovers from a crash, if there was one, and publishes the new session.
async fn begin(core: &Rc<Core>, was_clean: bool) -> IoResult<()> {
    for member in &core.members {
        if member.is_usable() || member.is_missing() {
            member.state.note_missing();
            continue;
        }
        core.enter(member.index, Condition::Offline, "missing when the array was assembled");
    }
    let mut logs = assemble::read_logs(core, was_clean).await?;
    for member in &core.members {
        if let Condition::Rebuilding { partial: true, .. } = member.condition() {
            member.rows.begin_resync(core.intent.marked());
        }
    }
    core.publication.begin_epoch();
    core.publish().await?;
    core.remember(true).await;
    if was_clean {
        core.journal.resume(core.publication.epoch(), &[]);
    } else {
        let records = core.replay(std::mem::take(&mut logs.records)).await?;
        let stripes = core.resync().await?;
        tracing::info!(
            "array {}: was not stopped: {records} journal records replayed, {stripes} stripes checked",
            core.name
        );
    }
    if core.geometry().has_parity() {
        core.journal.mark(core).await?;
    }
    assemble::repair_logs(core, &logs).await
}

/// Serves an array on this thread.
fn run(core: Rc<Core>) -> Arc<ArrayDevice> {
    let (jobs, mut inbox) = mpsc::unbounded::<ArrayTask>();
    HERE.with(|here| here.borrow_mut().insert(core.session.uuid, Rc::clone(&core)));
    upkeep::start(&core);
    core.io.shortage.serve();
    let device = ArrayDevice::new(&core, jobs);
    let registered = RegistryEntry(core.session.uuid);
    spawn(async move {
        let _registered = registered;
        while let Some(job) = inbox.next().await {
            job(&core);
        }
    })
    .detach();
    Arc::new(device)
}

/// Entry of an array in `HERE`, removed when its task ends.
struct RegistryEntry(Uuid);

impl Drop for RegistryEntry {
    fn drop(&mut self) {
        let core = HERE.with(|here| here.borrow_mut().remove(&self.0));
        // Dropped while `HERE` is not borrowed.
        drop(core);
    }
}

/// Stops in order: all acknowledged data is in place and durable, and the superblocks are marked
/// clean.
pub(crate) async fn stop(core: &Rc<Core>) -> IoResult<()> {
    // Heartbeats and losses of members continue as long as there is I/O.
    core.close().await;
    let is_short = core.io.shortage.is_any();
    if is_short {
        core.end(
            "it could not be stopped in order: its members have no space for acknowledged writes, which are in \
             the journal, and are written by the next start",
        );
    }
    core.upkeep.stopping.set(true);
    core.upkeep.changed.notify();
    core.members_and_witness().for_each(|member| member.reach.changed.notify());
    core.upkeep.ended().await;
    if is_short {
        return Err(IoError::NoSpace);
    }
    let result = settle(core).await;
    match &result {
        Ok(()) => core.end("it was stopped"),
        // Nothing changes from here on; the next assembly recovers.
        Err(e) => core.end(&format!("it could not be stopped in order: {e}")),
    }
    result
}

/// Makes all data durable, and marks the array clean.
async fn settle(core: &Rc<Core>) -> IoResult<()> {
    core.flush_members().await?;
    core.intent.sweep(core, now()).await?;
    // Twice: a member that has not confirmed the first generation was rolled back, whatever it
    // holds of the second.
    core.publish().await?;
    core.publish_with(|| core.publication.mark_clean()).await?;
    core.remember(true).await;
    fence::release(core).await;
    Ok(())
}
