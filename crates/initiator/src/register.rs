//! Registration of what a target serves with a central discovery controller.

use crate::call::Data;
use crate::controller::service;
use crate::error::Result;
use crate::options::Options;
use crate::queue::Signs;
use crate::setup::{Admin, Endpoint};
use futures_channel::mpsc::UnboundedReceiver;
use futures_channel::oneshot;
use futures_util::{FutureExt, StreamExt};
use longhaul_engine::{Buf, Memory, sleep, timeout};
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::Status;
use longhaul_wire::log::DiscoveryEntry;
use longhaul_wire::nqn::{self, DISCOVERY_NQN};
use longhaul_wire::registration::{DiscoveryInformation, Registration, RegistrationTask};
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

/// Keep Alive Timeout of a registration: what is lost is listed for no longer.
const KATO: Duration = Duration::from_secs(30);
/// Waits before the next attempt; each is twice as long as the last one.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LAST_WAIT: Duration = Duration::from_secs(30);
/// Time to take the registration back at the end.
const LEAVE: Duration = Duration::from_secs(2);

/// Gives the entries to register; an entry without an address is listed by the address that the target
/// connects from.
pub type Entries = Box<dyn Fn() -> Vec<DiscoveryEntry> + Send>;

/// Keeps a target registered with a central discovery controller, until this is dropped: over outages, and
/// with what changes.
#[derive(Debug)]
pub struct Registrar {
    stop: Option<oneshot::Sender<()>>,
    stopped: mpsc::Receiver<()>,
}

impl Registrar {
    /// Registers at `host` and `port`, in the background: what fails is logged, and tried again. The entity is
    /// the host NQN of `options`, `name` is what people call it. After each notice of `changes` the entries are
    /// registered anew.
    ///
    /// # Errors
    /// The thread for it cannot be started.
    pub fn start(
        (host, port): (String, u16),
        name: String,
        options: Options,
        entries: Entries,
        changes: UnboundedReceiver<()>,
    ) -> Result<Registrar> {
        let (stop, stopping) = oneshot::channel();
        let (done, stopped) = mpsc::channel();
        let options = Options { kato: KATO, ..options };
        let thread = service(&options)?;
        let registered = Registered { host, port, name, options, entries };
        drop(thread.spawn(move || async move {
            registered.keep(changes, stopping).await;
            // The target may have stopped waiting.
            let _ = done.send(());
        }));
        Ok(Registrar { stop: Some(stop), stopped })
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.stopped.recv_timeout(LEAVE);
    }
}

struct Registered {
    host: String,
    port: u16,
    name: String,
    options: Options,
    entries: Entries,
}

/// What ends a wait.
enum Event {
    Changed,
    Stop,
    Time,
}

impl Registered {
    async fn keep(&self, mut changes: UnboundedReceiver<()>, mut stop: oneshot::Receiver<()>) {
        let (mut wait, mut said) = (FIRST_WAIT, String::new());
        loop {
            let mut was_registered = false;
            let ended = self.register(&mut changes, &mut stop, &mut was_registered).await;
            let Err(e) = ended else { return };
            if was_registered {
                wait = FIRST_WAIT;
            }
            let why = e.to_string();
            // What stays as it is is not repeated.
            if was_registered || why != said {
                tracing::warn!("registration with a discovery controller: {why}; it is tried again");
            }
            said = why;
            if let Event::Stop = event(None, &mut stop, wait).await {
                return;
            }
            wait = (wait * 2).min(LAST_WAIT);
        }
    }

    /// One association. Returns when it is to stop.
    async fn register(
        &self,
        changes: &mut UnboundedReceiver<()>,
        stop: &mut oneshot::Receiver<()>,
        was_registered: &mut bool,
    ) -> Result<()> {
        let endpoint = Endpoint::resolve(&self.host, self.port).await?;
        let at = endpoint.name.clone();
        let (admin, _) = Admin::open(endpoint, &self.options, DISCOVERY_NQN, &Signs::default()).await?;
        admin.enable_and(async || Ok(())).await?;
        let mut task = RegistrationTask::Register;
        loop {
            // What has changed until now is in what is sent now.
            while changes.try_recv().is_ok() {}
            let entries = (self.entries)();
            let number = entries.len();
            self.send(&admin, task, entries).await?;
            tracing::info!("{number} entries are registered with the discovery controller {at}");
            (*was_registered, task) = (true, RegistrationTask::Update);
            loop {
                match event(Some(changes), stop, KATO / 3).await {
                    Event::Changed => break,
                    Event::Time => {
                        admin.command("Keep Alive", Sqe::keep_alive(), 0).await?;
                    }
                    Event::Stop => {
                        let leave = async {
                            // It ends with the association, too.
                            let _ = self.send(&admin, RegistrationTask::Deregister, Vec::new()).await;
                            admin.shut_down().await;
                        };
                        let _ = timeout(LEAVE, leave).await;
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn send(&self, admin: &Admin, task: RegistrationTask, entries: Vec<DiscoveryEntry>) -> Result<()> {
        const WHAT: &str = "the registration";
        let eid = nqn::to_field(&self.options.hostnqn);
        let data = Registration::of_direct(eid, &self.name, env!("CARGO_PKG_VERSION"), entries).encode();
        let sqe = DiscoveryInformation::sqe(task, u32::try_from(data.len()).unwrap_or(u32::MAX));
        let data = Data::Write(Memory::Shared(Buf::copy_of(&data)));
        let status = admin.submit(WHAT, sqe, data, admin.timeout).await?.cqe.status();
        let why = match status {
            s if s.is_success() => return Ok(()),
            s if s.is(Status::INVALID_OPCODE) => {
                "it is no central discovery controller (longhaul: --registrar)".into()
            }
            s if s.is(Status::OPERATION_DENIED) => {
                format!("host '{}' may not register (longhaul: --registrar)", self.options.hostnqn)
            }
            s => s.to_string(),
        };
        Err(admin.endpoint.refused(WHAT, why))
    }
}

/// Waits for a change, the end, or a time.
async fn event(
    changes: Option<&mut UnboundedReceiver<()>>,
    mut stop: &mut oneshot::Receiver<()>,
    time: Duration,
) -> Event {
    let mut pause = pin!(sleep(time).fuse());
    let changed = async {
        match changes {
            // The end of the target ends the registration too; the other branches decide.
            Some(changes) => match changes.next().await {
                Some(()) => {}
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    };
    let mut changed = pin!(changed.fuse());
    futures_util::select_biased! {
        _ = stop => Event::Stop,
        () = changed => Event::Changed,
        () = pause => Event::Time,
    }
}
