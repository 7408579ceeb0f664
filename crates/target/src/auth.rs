//! Authentication of one queue, before anything else is taken on it.
//!
//! Invariants:
//! - a queue on which it is required takes nothing but Authentication Send and Receive until the host has
//!   proved that it knows its secret;
//! - one message of a queue at a time is received or handled, and its memory is bounded;
//! - the arithmetic runs outside the engine's thread, which serves other connections meanwhile, and after the
//!   turn of the peer's address: a peer does not get more of it by asking often;
//! - a queue on which it has failed ends;
//! - a queue without TLS on which a host has begun to make a PSK for TLS takes nothing but the exchange, for ever.

use crate::audit::RefusalReason;
use crate::connection::{Connection, Work};
use crate::observer::count;
use crate::pace::Pace;
use longhaul_auth::{
    Concatenation, ControllerExchange, ControllerOptions, DhGroup, GeneratedPsk, HashFunction, KeySource,
    Progress, SecureChannel,
};
use longhaul_engine::{BufMut, Memory, Task, now, sleep, spawn};
use longhaul_proto::controller::Reply;
use longhaul_proto::target::CommandData;
use longhaul_wire::command::{Sqe, admin, fctype};
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::auth::{Authentication, MESSAGE_MAX, PROTOCOL_SPECIFIC, SECURITY_PROTOCOL};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// The most bytes that a message is received into or sent from: what the Linux kernel's host offers.
const BUFFER_MAX: usize = 4096;
const _: () = assert!(MESSAGE_MAX <= BUFFER_MAX);

/// The hosts that may connect, and how they prove who they are.
#[derive(Clone, Debug)]
pub struct Keys {
    /// What each host knows, looked up at each connection. No other host may connect.
    pub hosts: Arc<dyn KeySource>,
    /// Hash functions that may be used, the preferred one first.
    pub hashes: Vec<HashFunction>,
    /// Diffie-Hellman groups that may be used, the preferred one first. With the null group a secret can be
    /// tried out against what was recorded on the network.
    pub groups: Vec<DhGroup>,
}

impl Keys {
    /// With every hash function, and every group but the null one.
    pub fn new(hosts: Arc<dyn KeySource>) -> Keys {
        let groups = DhGroup::ALL.into_iter().filter(|group| *group != DhGroup::Null).collect();
        Keys { hosts, hashes: HashFunction::ALL.into(), groups }
    }

    /// What the host of this NQN is to prove to the subsystem; none if it may not connect.
    ///
    /// # Errors
    /// Its key cannot be read, in words.
    pub(crate) fn of(&self, hostnqn: &str, subnqn: &str) -> Result<Option<ControllerOptions>, String> {
        let keys = self.hosts.key_of(hostnqn, subnqn)?;
        Ok(keys.map(|keys| ControllerOptions {
            hostnqn: hostnqn.to_owned(),
            subnqn: subnqn.to_owned(),
            keys,
            hashes: self.hashes.clone(),
            groups: self.groups.clone(),
            concatenation: Concatenation::Off,
        }))
    }
}

/// How a host proves its identity on a queue.
pub(crate) struct Proof {
    pub(crate) options: ControllerOptions,
    /// The generation of the secret by which it has done so before: the PSK of its connection was made with that. It
    /// may do so again.
    pub(crate) before: Option<u32>,
}

/// Authentication of a queue.
pub(crate) struct QueueAuth {
    hostnqn: String,
    subnqn: String,
    is_authenticated: Cell<bool>,
    /// It makes a PSK for another connection, with TLS.
    is_for_psk: Cell<bool>,
    /// None while a message is handled.
    exchange: RefCell<Option<ControllerExchange>>,
    /// A message is received or handled.
    is_busy: Cell<bool>,
    /// The turns of the peer's address.
    pace: Arc<Pace>,
    /// Ends a connection that is not authenticated in time.
    _timer: Task<()>,
}

impl QueueAuth {
    pub(crate) fn new(connection: &Rc<Connection>, proof: Proof) -> Rc<QueueAuth> {
        let Proof { options, before } = proof;
        let (hostnqn, subnqn) = (options.hostnqn.clone(), options.subnqn.clone());
        let exchange = match before {
            Some(generation) => ControllerExchange::proved(options, generation),
            None => ControllerExchange::new(options),
        };
        Rc::new_cyclic(|this| QueueAuth {
            hostnqn,
            subnqn,
            is_authenticated: Cell::new(before.is_some()),
            is_for_psk: Cell::new(false),
            exchange: RefCell::new(Some(exchange)),
            is_busy: Cell::new(false),
            pace: connection.target.authentications.of(connection.origin(), now()),
            _timer: spawn(limit(this.clone(), Rc::downgrade(connection))),
        })
    }

    fn report(&self, connection: &Connection, what: std::fmt::Arguments<'_>) {
        count(&connection.target.incidents.authentication);
        let message = format_args!("{}: host {}: {what}", connection.peer(), self.hostnqn);
        connection.target.quiet.refuse.say(message, |line| tracing::warn!("{line}"));
    }

    /// Whether a command is not for the queue itself.
    pub(crate) fn takes(&self, sqe: &Sqe) -> bool {
        !self.is_authenticated.get() || self.is_for_psk.get() || is_authentication(sqe)
    }

    pub(crate) fn command(&self, connection: &Rc<Connection>, slot: u16, sqe: &Sqe, data: CommandData) {
        let refuse = |status: Status| {
            connection.refusals.count();
            connection.complete(slot, Reply::error(status));
        };
        //= NVMe Base 2.1, Authentication Required: until then only authentication commands are taken
        if !is_authentication(sqe) {
            return refuse(Status::AUTHENTICATION_REQUIRED.dnr());
        }
        let fields = Authentication::of(sqe);
        let len = data.bytes();
        //= NVMe Base 2.1, Authentication Send command: SECP is E9h, and SPSP0 and SPSP1 are 01h
        let is_ours = fields.protocol == SECURITY_PROTOCOL && fields.specific == [PROTOCOL_SPECIFIC; 2];
        if !is_ours || !(1..=BUFFER_MAX).contains(&len) || len != fields.length as usize {
            return refuse(Status::INVALID_FIELD.dnr());
        }
        if self.is_busy.get() {
            return refuse(Status::SEQUENCE_ERROR.dnr());
        }
        if sqe.fctype() == fctype::AUTHENTICATION_RECEIVE {
            return self.answer(connection, slot, len);
        }
        self.is_busy.set(true);
        connection.fetch(slot, data, Work::Authenticate, Some(Memory::Buf(BufMut::zeroed(len))));
    }

    /// Sends what is due to the host.
    fn answer(&self, connection: &Rc<Connection>, slot: u16, len: usize) {
        let mut exchange = self.exchange.borrow_mut();
        let Some(exchange) = &mut *exchange else {
            return connection.complete(slot, Reply::error(Status::SEQUENCE_ERROR.dnr()));
        };
        let Some(message) = exchange.poll() else {
            connection.refusals.count();
            return connection.complete(slot, Reply::error(Status::SEQUENCE_ERROR.dnr()));
        };
        if message.len() > len {
            return connection.complete(slot, Reply::error(Status::INVALID_FIELD.dnr()));
        }
        let mut buffer = BufMut::zeroed(len);
        buffer[..message.len()].copy_from_slice(&message);
        connection.send_read(slot, Memory::Buf(buffer), None);
        if matches!(exchange.progress(), Progress::Failed(_)) {
            connection.shared.end();
        }
    }

    /// A message of the host has come; none if what was to be one has not.
    pub(crate) fn received(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        slot: u16,
        message: Option<Vec<u8>>,
    ) {
        let Some(message) = message else { return self.is_busy.set(false) };
        let (this, use_) = (Rc::clone(self), connection.use_of(slot));
        connection.spawn(async move |connection| {
            sleep(this.pace.take(now(), Duration::MAX).unwrap_or_default()).await;
            let Some(mut exchange) = this.exchange.take() else { return };
            let exchange = longhaul_engine::blocking(move || {
                exchange.handle(&message, &mut longhaul_engine::random);
                exchange
            });
            let mut exchange = exchange.await;
            let (progress, generation) = (exchange.progress(), exchange.generation());
            let psk = exchange.take_psk();
            //= NVMe Base 2.1, Secure Channel Concatenation: a queue on which a new PSK is made carries nothing but the exchange
            if exchange.channel() == SecureChannel::New {
                this.is_for_psk.set(true);
            }
            *this.exchange.borrow_mut() = Some(exchange);
            this.is_busy.set(false);
            this.note(&connection, progress, generation);
            if let Some((channel, psk)) = psk {
                this.keep(&connection, channel, &psk, generation.unwrap_or_default());
            }
            connection.finish(slot, use_, Status::SUCCESS);
        });
    }

    /// Keeps the PSK that both ends have made.
    fn keep(&self, connection: &Connection, channel: SecureChannel, psk: &GeneratedPsk, generation: u32) {
        let psk = match psk.psk(&self.hostnqn, &self.subnqn) {
            Ok(psk) => psk,
            Err(why) => {
                self.report(connection, format_args!("no PSK for TLS can be made: {why}"));
                return connection.close();
            }
        };
        let generated = &connection.target.generated;
        tracing::debug!("{}: host {}: made the PSK '{}'", connection.peer(), self.hostnqn, psk.identity);
        if channel == SecureChannel::New {
            generated.add(psk, &self.hostnqn, generation);
            let (generated, patience) = (Arc::clone(generated), connection.target.config.patience.enable);
            spawn(async move {
                sleep(patience).await;
                generated.forget();
            })
            .detach();
        } else if let Some(in_use) = connection.secured().and_then(|secured| secured.generated.as_ref()) {
            //= NVMe Base 2.1, AUTH_Negotiate message: REPLACETLSPSK replaces the PSK of the connection
            generated.replace(in_use, psk, generation);
        }
    }

    fn note(&self, connection: &Connection, progress: Progress, generation: Option<u32>) {
        match progress {
            Progress::Pending => {}
            Progress::Authenticated => {
                if !self.is_authenticated.replace(true) {
                    let generation = generation.unwrap_or_default();
                    tracing::debug!(
                        "{}: host {}: authenticated, with generation {generation} of its key",
                        connection.peer(),
                        self.hostnqn
                    );
                    connection.tell_authenticated(generation, self.is_for_psk.get());
                }
            }
            Progress::Failed(why) => {
                let was_authenticated = self.is_authenticated.replace(false);
                connection.tell_unauthenticated(why, was_authenticated);
                self.report(connection, format_args!("authentication failed: {why}"));
            }
        }
    }
}

/// Ends a connection whose host does not prove in time who it is.
async fn limit(auth: Weak<QueueAuth>, connection: Weak<Connection>) {
    let Some(limit) = connection.upgrade().map(|connection| connection.target.config.patience.enable) else {
        return;
    };
    sleep(limit).await;
    if let (Some(auth), Some(connection)) = (auth.upgrade(), connection.upgrade())
        && !auth.is_authenticated.get()
    {
        auth.report(
            &connection,
            format_args!("not authenticated within {} s, disconnected", limit.as_secs()),
        );
        connection.tell_refused(RefusalReason::NotProvedInTime);
        connection.close();
    }
}

fn is_authentication(sqe: &Sqe) -> bool {
    sqe.opcode == admin::FABRICS
        && [fctype::AUTHENTICATION_SEND, fctype::AUTHENTICATION_RECEIVE].contains(&sqe.fctype())
}
