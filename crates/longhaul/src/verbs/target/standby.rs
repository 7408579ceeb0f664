//! Exports of arrays that another host may take over. With `standby`, of several targets that can serve
//! an array one does, and the others wait for its end; without, a target that was overtaken says so.

use crate::events::AccessChanged;
use crate::exit::Failure;
use crate::export::Export;
use crate::output::Output;
use longhaul_array::{HaltReason, Health};
use longhaul_block::BlockDevice;
use longhaul_device::Opener;
use longhaul_device::arrays::{ArrayWatch, RunningArray};
use longhaul_target::{StandbyDevice, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// How often an array that runs here is asked whether it does.
const LOOK: Duration = Duration::from_millis(500);
/// After what was tried in vain.
const RETRY: Duration = Duration::from_secs(1);

/// The array of an export, whose members are open.
pub(super) struct Standby {
    watch: ArrayWatch,
    pub(super) device: StandbyDevice,
}

impl Standby {
    pub(super) fn open(export: &Export, opener: &Opener) -> Result<Standby, Failure> {
        let watch = export.watch(opener)?;
        let (info, granularity) = watch.properties().map_err(|e| {
            let message = format!("{}: {e}", export.name);
            Failure { message, ..e.into() }
        })?;
        Ok(Standby { watch, device: StandbyDevice { info, granularity } })
    }
}

/// An export of an array, as its thread sees it.
pub(super) struct StandbyExport<'a> {
    pub(super) export: Arc<Export>,
    pub(super) nqn: String,
    /// Identifier and UUID of the namespace.
    pub(super) at: (u32, Uuid),
    pub(super) target: &'a Target,
    pub(super) opener: &'a Opener,
    /// The program ends, or does not serve the export any more.
    pub(super) ending: Arc<AtomicBool>,
    pub(super) output: Output,
}

impl StandbyExport<'_> {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Takes the array over when it can, and stands by again when another host has taken it. Ends when the
    /// export is not served any more; returns the array if it runs here then.
    pub(super) fn run(&self, first: Standby) -> Option<RunningArray> {
        let Standby { watch, .. } = first;
        let (mut watch, mut said) = (Some(watch), String::new());
        while !self.is_ending() {
            let opened = watch.take().map_or_else(|| self.export.watch(self.opener), Ok);
            let array = match opened.and_then(|watch| self.take_over(watch)) {
                Ok(Some(array)) => array,
                Ok(None) => return None,
                Err(Failure { message, .. }) => {
                    // Once for each reason, not at each retry.
                    if said != message {
                        tracing::warn!("{message}");
                        said = message;
                    }
                    std::thread::sleep(RETRY);
                    continue;
                }
            };
            said.clear();
            let served: Arc<dyn BlockDevice> = Arc::<longhaul_array::ArrayDevice>::clone(array.device());
            let device = StandbyDevice { info: served.info(), granularity: served.granularity() };
            self.target.serve(&self.nqn, self.at, served);
            self.tell("optimized", None);
            self.export.record_user(self.opener);
            let Some((halt, why)) = self.until_halted(&array) else { return Some(array) };
            self.target.stand_by(&self.nqn, self.at, device);
            self.tell("inaccessible", Some(why));
            if halt == Some(HaltReason::Stopped) {
                // An operator starts the array again.
                return Some(array);
            }
        }
        None
    }

    /// Waits for the end of the session that runs the array, and runs it here; `None` if the program
    /// ends first.
    fn take_over(&self, mut watch: ArrayWatch) -> Result<Option<RunningArray>, Failure> {
        let named = |e: longhaul_device::Error| {
            let message = format!("{}: {e}", self.export.name);
            Failure { message, ..e.into() }
        };
        let ending = Arc::clone(&self.ending);
        if !watch.wait_for_end(move || ending.load(Ordering::SeqCst)).map_err(named)? {
            return Ok(None);
        }
        watch.start().map(Some).map_err(named)
    }

    /// Waits until an array that runs here without `standby` has been taken over, if ever, and has the
    /// namespace inaccessible then.
    pub(super) fn watch(&self, array: &RunningArray) {
        let Some((Some(HaltReason::TakenOver), why)) = self.until_halted(array) else { return };
        let device: Arc<dyn BlockDevice> = Arc::<longhaul_array::ArrayDevice>::clone(array.device());
        let device = StandbyDevice { info: device.info(), granularity: device.granularity() };
        self.target.stand_by(&self.nqn, self.at, device);
        let user = self.export.user(self.opener).map_or_else(String::new, |user| format!("; {user}"));
        let (name, of) = (&self.export.name, self.export.device().unwrap_or_default());
        self.tell(
            "inaccessible",
            Some(format!(
                "{why}{user}. Nothing is written from here any more, and hosts are refused: use the other host, \
                 and stop this target. Two targets take over from each other if both are started with \
                 --export {name}={of},standby"
            )),
        );
    }

    /// Waits until the array has halted, and says why; `None` if the program ends first.
    fn until_halted(&self, array: &RunningArray) -> Option<(Option<HaltReason>, String)> {
        while !self.is_ending() {
            match array.wait(|device| async move { device.status().await }) {
                Ok(Ok(status)) if status.health == Health::Halted => {
                    return Some((status.halt, status.detail));
                }
                Ok(Ok(_)) => {}
                Ok(Err(e)) => return Some((None, e.to_string())),
                Err(e) => return Some((None, e.to_string())),
            }
            std::thread::sleep(LOOK);
        }
        None
    }

    fn tell(&self, access: &'static str, why: Option<String>) {
        let name = &self.export.name;
        match &why {
            None => self.output.note(format_args!("{name} is served here now")),
            Some(why) => self.output.note(format_args!("{name} is not served here any more: {why}")),
        }
        self.output.event(&AccessChanged { name: name.clone(), nsid: self.at.0, access, why });
    }
}
