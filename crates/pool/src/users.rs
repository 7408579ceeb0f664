//! Hosts that use the namespaces of a volume, as these show it, and how they lose them.

use crate::spaces::SpaceError;
use longhaul_array::{Options, running_session};
use longhaul_block::{BlockDevice, BlockIo, IoError, IoResult, ReservationState, Reservations};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Key of this program where it preempts the reservation of a host that runs no array: those of arrays begin
/// with 4C48h as well, and are never this one, which no session has.
pub(crate) const KEY: u64 = 0x4C48_0000_0000_0001;

/// The array on the devices, and whether it was stopped, by the newest superblock.
async fn array_on(devices: &[Arc<dyn BlockDevice>]) -> Option<(Uuid, bool)> {
    let labels = longhaul_array::survey(devices).await;
    let newest = labels.into_iter().flatten().flatten().max_by_key(|label| label.generation)?;
    Some((newest.array, newest.clean))
}

/// What shows that a host uses the devices; see [`Spaces::in_use`](crate::Spaces::in_use).
pub(crate) async fn user_of(devices: &[Arc<dyn BlockDevice>]) -> Option<String> {
    match array_on(devices).await {
        Some((_, true)) => None,
        Some((array, false)) => {
            let session = running_session(devices, array, &Options::default()).await?;
            Some(format!("session {session} of a host writes heartbeats to its members"))
        }
        None => {
            for device in devices {
                if let Ok(Some((_, ReservationState { holder: Some(key), .. }))) = reserved(device).await {
                    return Some(format!("a host has reserved its namespace (key {key:#x})"));
                }
            }
            None
        }
    }
}

/// The reservations of a device, and what it knows of them.
async fn reserved(
    device: &Arc<dyn BlockDevice>,
) -> IoResult<Option<(Rc<dyn Reservations>, ReservationState)>> {
    let io: Rc<dyn BlockIo> = device.open().await?;
    let Some(reservations) = io.reservations() else { return Ok(None) };
    let state = reservations.report().await?;
    Ok(Some((reservations, state)))
}

fn failed(e: IoError) -> SpaceError {
    SpaceError::Failed(e.to_string())
}

/// Takes the devices from the host that uses them; see [`Spaces::evict`](crate::Spaces::evict).
pub(crate) async fn preempt(devices: &[Arc<dyn BlockDevice>]) -> Result<(), SpaceError> {
    if array_on(devices).await.is_some() {
        // A session of its own preempts the other one, finishes what that had begun, and stops.
        let options = Options { preempt: true, ..Options::default() };
        let array = longhaul_array::assemble(devices, options).await?;
        return array.stop().await.map_err(failed);
    }
    for device in devices {
        let io: Rc<dyn BlockIo> = device.open().await.map_err(failed)?;
        let exclusive = io.reservations();
        let Some(reservations) = io.shared_reservations().or_else(|| exclusive.clone()) else { continue };
        let ReservationState { holder: Some(holder), is_shared, registered } =
            reservations.report().await.map_err(failed)?
        else {
            continue;
        };
        // Each session of a file system holds it.
        let (reservations, others) = match (is_shared, exclusive) {
            (true, _) => (reservations, registered),
            (false, Some(exclusive)) => (exclusive, vec![holder]),
            (false, None) => continue,
        };
        reservations.register(KEY).await.map_err(failed)?;
        let mut preempted = Ok(());
        for other in others {
            match reservations.preempt(KEY, other).await {
                // It has left by now.
                Err(IoError::Reserved) if is_shared => {}
                result => preempted = preempted.and(result),
            }
        }
        let _ = reservations.unregister(KEY).await;
        preempted.map_err(failed)?;
    }
    Ok(())
}
