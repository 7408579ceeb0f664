//! Asynchronous events.

use crate::call::Data;
use crate::controller::Controller;
use crate::error::{Result, reason};
use crate::info::{ControllerEvent, active_namespaces, namespace_info};
use crate::setup::Admin;
use futures_util::future;
use longhaul_wire::command::Sqe;
use longhaul_wire::feature::{AsyncEvent, AsyncEventType, fid, notice};
use longhaul_wire::identify::{IdentifyController, decode_nsid_list, oaes};
use longhaul_wire::log::lid;
use std::rc::Rc;
use std::sync::Weak;

/// Asynchronous Event Requests kept outstanding: one for each kind of notice.
const AER_MAX: u8 = 3;

/// What to ask for: the events, and by how many requests.
pub(crate) fn subscribe(id: &IdentifyController) -> (u32, u8) {
    let wanted = id.oaes & (oaes::NAMESPACE_ATTRIBUTE | oaes::ANA_CHANGE | oaes::DISCOVERY_LOG_CHANGE);
    (wanted, id.aerl.saturating_add(1).min(AER_MAX))
}

/// Sends Asynchronous Event Requests and reports the events. Returns why that
/// ended.
pub(crate) async fn watch_events(
    admin: Rc<Admin>,
    controller: Weak<Controller>,
    (wanted, requests): (u32, u8),
) -> String {
    if wanted == 0 {
        return future::pending::<String>().await;
    }
    let set = Sqe::set_features(fid::ASYNC_EVENT_CONFIG, 0, wanted, false);
    if let Err(e) = admin.command("Set Features (events)", set, 0).await {
        tracing::info!("no asynchronous events: {e}");
    }
    let loops = (0..requests).map(|_| watch_one(Rc::clone(&admin), controller.clone()));
    let watch = future::select_all(loops.map(Box::pin));
    let ((why, ..), ()) = future::join(watch, look_again(&admin, &controller)).await;
    why
}

/// Reports changes between the Identify of the session's setup and the first event request, for
/// which no event arrives.
async fn look_again(admin: &Admin, controller: &Weak<Controller>) {
    let Some(known) = controller.upgrade().map(|controller| controller.namespace_now()) else { return };
    match namespace_info(admin, known.nsid).await {
        Ok(now) if now == known => {}
        Ok(_) => {
            if let Some(controller) = controller.upgrade() {
                controller.tell(&ControllerEvent::NamespaceChanged(known.nsid));
            }
        }
        Err(e) => tracing::debug!("{e}"),
    }
}

/// Keeps one Asynchronous Event Request outstanding. Returns why it ended.
async fn watch_one(admin: Rc<Admin>, controller: Weak<Controller>) -> String {
    loop {
        let done = match admin.queue.submit(Sqe::async_event_request(), Data::None).await {
            Ok(done) => done,
            Err(e) => return reason(&e),
        };
        let status = done.cqe.status();
        if !status.is_success() {
            tracing::info!("no more asynchronous events: {status}");
            return future::pending().await;
        }
        let event = AsyncEvent::from_dw0(done.cqe.dw0());
        let Some(controller) = controller.upgrade() else { return "closed".into() };
        if let Err(e) = report(&admin, &controller, event).await {
            tracing::warn!("asynchronous event: {e}");
        }
    }
}

/// Finds out what an event is about (reading the log page that it names
/// re-arms it) and notifies the listeners.
async fn report(admin: &Admin, controller: &Controller, event: AsyncEvent) -> Result<()> {
    if event.kind != AsyncEventType::Notice {
        tracing::warn!("{}: asynchronous event {event:?}", admin.endpoint.name);
        return Ok(());
    }
    match event.info {
        notice::NAMESPACE_ATTRIBUTE => {
            let log =
                admin.log_page("the changed namespaces", lid::CHANGED_NAMESPACES, u32::MAX, 0, 4096).await?;
            let mut changed: Vec<u32> = decode_nsid_list(&log).collect();
            if changed == [u32::MAX] {
                changed = active_namespaces(admin).await?;
            }
            for nsid in changed {
                controller.tell(&ControllerEvent::NamespaceChanged(nsid));
            }
        }
        notice::ANA_CHANGE => controller.tell(&ControllerEvent::AnaChanged),
        notice::DISCOVERY_LOG_CHANGE => controller.tell(&ControllerEvent::DiscoveryChanged),
        _ => tracing::debug!("{}: notice {event:?}", admin.endpoint.name),
    }
    Ok(())
}
