//! Asynchronous events.

use crate::access::AccessLog;
use crate::call::Data;
use crate::controller::Controller;
use crate::error::{Result, reason};
use crate::info::{ControllerEvent, active_namespaces, namespace_info};
use crate::setup::Admin;
use futures_util::future;
use longhaul_wire::command::Sqe;
use longhaul_wire::feature::{AsyncEvent, AsyncEventType, fid, notice};
use longhaul_wire::identify::{IdentifyController, decode_nsid_list, oaes};
use longhaul_wire::log::{AnaState, lid};
use std::rc::Rc;
use std::sync::Weak;

/// Asynchronous Event Requests kept outstanding: one for each kind of notice.
const AER_MAX: u8 = 3;

/// What a session asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscription {
    /// The events.
    wanted: u32,
    /// By how many requests.
    requests: u8,
    access: Option<AccessLog>,
    epoch: u64,
}

impl Subscription {
    pub(crate) fn new(id: &IdentifyController, epoch: u64) -> Subscription {
        let known = oaes::NAMESPACE_ATTRIBUTE | oaes::ANA_CHANGE | oaes::DISCOVERY_LOG_CHANGE;
        let requests = id.aerl.saturating_add(1).min(AER_MAX);
        Subscription { wanted: id.oaes & known, requests, access: AccessLog::of(id), epoch }
    }

    /// Reads the state of access to the namespace again.
    pub(crate) async fn read_access(self, admin: &Admin, controller: &Weak<Controller>) {
        let nsid = controller.upgrade().map(|controller| controller.namespace_now().nsid);
        let (Some(log), Some(nsid)) = (self.access, nsid) else { return };
        match log.read(admin, nsid).await {
            Ok(access) => {
                if let Some(controller) = controller.upgrade() {
                    controller.set_access(self.epoch, access);
                }
            }
            Err(e) => {
                tracing::warn!("{e}");
                // A command finds out.
                if let Some(controller) = controller.upgrade() {
                    controller.set_access(self.epoch, AnaState::Optimized);
                }
            }
        }
    }
}

/// Sends Asynchronous Event Requests and reports the events. Returns why that
/// ended.
pub(crate) async fn watch_events(
    admin: Rc<Admin>,
    controller: Weak<Controller>,
    subscription: Subscription,
) -> String {
    let Subscription { wanted, requests, .. } = subscription;
    if wanted == 0 {
        return future::pending::<String>().await;
    }
    let set = Sqe::set_features(fid::ASYNC_EVENT_CONFIG, 0, wanted, false);
    if let Err(e) = admin.command("Set Features (events)", set, 0).await {
        tracing::info!("no asynchronous events: {e}");
    }
    let loops = (0..requests).map(|_| watch_one(Rc::clone(&admin), controller.clone(), subscription));
    let watch = future::select_all(loops.map(Box::pin));
    let ((why, ..), ()) = future::join(watch, look_again(&admin, &controller, subscription)).await;
    why
}

/// Reports changes between the Identify of the session's setup and the first event request, for
/// which no event arrives.
async fn look_again(admin: &Admin, controller: &Weak<Controller>, subscription: Subscription) {
    let known = controller.upgrade().map(|one| (one.namespace_now(), one.settings.is_path));
    let Some((known, is_path)) = known else { return };
    if is_path {
        subscription.read_access(admin, controller).await;
    }
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
async fn watch_one(admin: Rc<Admin>, controller: Weak<Controller>, subscription: Subscription) -> String {
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
        if event.kind == AsyncEventType::Notice && event.info == notice::ANA_CHANGE {
            subscription.read_access(&admin, &controller).await;
        }
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
