//! What is told of a controller.

use super::until;
use futures_channel::mpsc::UnboundedReceiver;
use longhaul_initiator::ControllerEvent;

/// What has happened since the last look.
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

/// Waits for an event that `is` what is looked for.
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
