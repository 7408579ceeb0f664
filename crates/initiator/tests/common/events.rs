//! Events of a controller.

use super::until;
use futures_channel::mpsc::UnboundedReceiver;
use longhaul_initiator::ControllerEvent;

/// The events since the last call.
pub fn drain(events: &mut UnboundedReceiver<ControllerEvent>) -> Vec<ControllerEvent> {
    std::iter::from_fn(|| events.try_recv().ok()).collect()
}

/// Whether there is a connection again.
pub fn is_reconnected(event: &ControllerEvent) -> bool {
    matches!(event, ControllerEvent::Reconnected { .. })
}

/// Waits until there is a connection again.
pub fn reconnected(events: &mut UnboundedReceiver<ControllerEvent>) {
    until_event("to be reconnected", events, is_reconnected);
}

/// Waits for an event that `is` accepts.
pub fn until_event(
    what: &str,
    events: &mut UnboundedReceiver<ControllerEvent>,
    is: impl Fn(&ControllerEvent) -> bool,
) -> ControllerEvent {
    let cell = std::cell::RefCell::new((events, None));
    until(what, || {
        let (events, found) = &mut *cell.borrow_mut();
        *found = drain(events).into_iter().find(&is);
        found.is_some()
    });
    cell.into_inner().1.expect("found")
}
