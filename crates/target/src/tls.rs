//! TLS of a connection, before anything of NVMe/TCP.
//!
//! Invariants:
//! - a connection holds its place from the beginning, and gives way as any other that has not come to its Connect;
//! - the handshake and Connect together have the time that Connect has without TLS;
//! - the keys of a host are tried after the turn of its address, as messages of an authentication are;
//! - what Connect says is what the key in use is for, or it is refused;
//! - where TLS is required, a connection without it reaches no data: all that it may do is authenticate, to make a PSK
//!   for one with TLS, and that where the policy has it.

#[cfg(feature = "tls")]
use crate::generated::AllKeys;
use crate::generated::PskUse;
use crate::subsystem::Message;
use crate::target::Shared as Target;
use longhaul_auth::{Concatenation, SecureChannel};
use longhaul_conn::Channel;
use longhaul_conn::transport::Address;
use longhaul_proto::controller::ConnectRequest;
use longhaul_wire::nqn::DISCOVERY_NQN;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use crate::accept::tell_refused;
#[cfg(feature = "tls")]
use crate::audit::{AuditHost, RefusalReason};
#[cfg(feature = "tls")]
use crate::{ledger::Origin, observer::count};
#[cfg(feature = "tls")]
use futures_util::future::{Either, select};
#[cfg(feature = "tls")]
use longhaul_auth::KeySource;
#[cfg(feature = "tls")]
use longhaul_conn::{Chosen, HelloError, Refusal, SecureError};
#[cfg(feature = "tls")]
use longhaul_engine::{now, sleep};

/// Whether connections use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// No connection does.
    #[default]
    Off,
    /// A host may choose. One that authenticates may have a PSK made by that (secure channel concatenation).
    Allowed,
    /// Connections without may do nothing but authenticate for secure channel concatenation, and read the discovery
    /// log. Hosts need a secret, or a key for TLS.
    Concatenated,
    /// Connections without are refused. The further address of the discovery controller takes them.
    Required,
}

impl TlsPolicy {
    /// Whether it refuses a Connect of this queue on a connection without TLS, but for the discovery controller.
    pub(crate) fn refuses_without(self, qid: u16) -> bool {
        match self {
            TlsPolicy::Off | TlsPolicy::Allowed => false,
            TlsPolicy::Concatenated => qid != 0,
            TlsPolicy::Required => true,
        }
    }
}

/// What the key of a connection is for.
#[derive(Clone, Debug)]
pub(crate) struct Secured {
    pub(crate) hostnqn: String,
    pub(crate) subnqn: String,
    /// The generation of the key, or of the secret that the PSK was made with.
    pub(crate) generation: u32,
    /// Keeps the PSK, if that was made by an authentication.
    pub(crate) generated: Option<PskUse>,
}

impl Secured {
    //= NVMe-TCP 1.1, TLS PSK and PSK Identity Derivation: a PSK is that of a host and a subsystem
    pub(crate) fn is_for(&self, request: &ConnectRequest) -> bool {
        self.hostnqn == request.hostnqn && self.subnqn == request.subnqn
    }
}

impl Target {
    /// What a queue takes of secure channel concatenation.
    //= NVMe Base 2.1, AUTH_Negotiate message: secure channel concatenation is done on an admin queue
    pub(crate) fn concatenation(&self, request: &ConnectRequest, secured: Option<&Secured>) -> Concatenation {
        if request.qid != 0 || request.subnqn == DISCOVERY_NQN {
            return Concatenation::Off;
        }
        match (self.config.tls, secured) {
            (_, Some(Secured { generated: Some(_), .. })) => Concatenation::Allowed(SecureChannel::Replace),
            (TlsPolicy::Allowed, None) => Concatenation::Allowed(SecureChannel::New),
            (TlsPolicy::Concatenated, None) => Concatenation::Required(SecureChannel::New),
            _ => Concatenation::Off,
        }
    }
}

/// A connection on which NVMe/TCP begins.
pub(crate) struct Begun {
    pub(crate) channel: Channel,
    /// The first bytes of NVMe/TCP, if they were received already.
    pub(crate) first: Vec<u8>,
    pub(crate) secured: Option<Secured>,
    /// Time that is left until Connect.
    pub(crate) left: Duration,
}

impl Begun {
    fn plain(target: &Target, channel: Channel) -> Begun {
        let left = target.config.patience.connect;
        Begun { channel, first: Vec::new(), secured: None, left }
    }
}

type Inbox = futures_channel::mpsc::UnboundedReceiver<Message>;

/// Goes through the handshake, if there is one. None: there is no connection, and the log says why.
#[cfg(feature = "tls")]
pub(crate) async fn begin(
    target: &Arc<Target>,
    channel: Channel,
    (peer, local): (&Address, &Address),
    inbox: &mut Inbox,
) -> Option<Begun> {
    use futures_util::StreamExt;
    let policy = target.tls_at(local);
    let keys = target.config.keys.as_ref().filter(|_| policy != TlsPolicy::Off);
    let Some(keys) = keys else { return Some(Begun::plain(target, channel)) };
    let (began, patience) = (now(), target.config.patience.connect);
    let turn = async {
        let pace = target.authentications.of(Origin::at(peer), now());
        sleep(pace.take(now(), Duration::MAX).unwrap_or_default()).await;
    };
    let handshake = longhaul_engine::timeout(patience, shake_hands(target, channel, policy, keys, turn));
    let done = match select(Box::pin(handshake), inbox.next()).await {
        Either::Left((done, _)) => done,
        // It has to give way, or the target stops.
        Either::Right(_) => return None,
    };
    let left = patience.saturating_sub(longhaul_engine::since(began));
    match done {
        Ok(Ok((channel, first, secured))) => {
            if let Some(secured) = &secured {
                tracing::debug!("{peer}: TLS with the key of {} for {}", secured.hostnqn, secured.subnqn);
            }
            Some(Begun { channel, first, secured, left })
        }
        Ok(Err(e)) => {
            match &e {
                SecureError::Io(_) | SecureError::Eof => {}
                SecureError::Hello(_) => count(&target.incidents.protocol),
                SecureError::Refused(_) | SecureError::Tls(_) => count(&target.incidents.authentication),
            }
            let message = format_args!("{peer}: TLS: connection refused: {e}");
            target.quiet.refuse.say(message, |line| tracing::warn!("{line}"));
            if let Some(why) = reason(&e) {
                tell_refused(target, host(peer, &e), why);
            }
            None
        }
        Err(_) => {
            count(&target.incidents.late);
            let message = format_args!("{peer}: no TLS handshake within {} s", patience.as_secs());
            target.quiet.late.say(message, |line| tracing::info!("{line}"));
            tell_refused(target, AuditHost::unknown(peer.clone()), RefusalReason::NotProvedInTime);
            None
        }
    }
}

/// What the record says of it; none of a peer that went away, which was not refused.
#[cfg(feature = "tls")]
fn reason(why: &SecureError) -> Option<RefusalReason> {
    Some(match why {
        SecureError::Io(_) | SecureError::Eof => return None,
        SecureError::Hello(HelloError::PlainNvme) => RefusalReason::NoTls,
        SecureError::Refused(
            Refusal::NotNvme(_) | Refusal::UnknownHost { .. } | Refusal::NotGenerated { .. },
        ) => RefusalReason::NoKey,
        SecureError::Refused(Refusal::WrongKey { .. }) => RefusalReason::WrongSecret,
        SecureError::Refused(Refusal::Retired { generation, .. }) => {
            RefusalReason::RetiredSecret(*generation)
        }
        SecureError::Refused(Refusal::Unreadable { .. }) => RefusalReason::KeyUnreadable,
        SecureError::Refused(Refusal::OtherDerivation { .. } | Refusal::OtherHash { .. }) => {
            RefusalReason::Tls
        }
        SecureError::Hello(_) | SecureError::Tls(_) => RefusalReason::Tls,
    })
}

/// The host by the names that it gave, if it gave them.
#[cfg(feature = "tls")]
fn host(peer: &Address, why: &SecureError) -> AuditHost {
    let names = match why {
        SecureError::Refused(refusal) => refusal.names(),
        _ => None,
    };
    let names = names.map(|(hostnqn, subnqn)| (hostnqn.to_owned(), subnqn.to_owned()));
    AuditHost::named(peer.clone(), names.unwrap_or_default())
}

#[cfg(feature = "tls")]
async fn shake_hands(
    target: &Target,
    channel: Channel,
    policy: TlsPolicy,
    keys: &crate::Keys,
    turn: impl Future<Output = ()>,
) -> Result<(Channel, Vec<u8>, Option<Secured>), SecureError> {
    let mut first = Vec::new();
    if policy != TlsPolicy::Required {
        first = channel.receive_bytes(1).await?;
        match first.first() {
            None => return Err(SecureError::Eof),
            Some(byte) if !longhaul_conn::is_tls(*byte) => return Ok((channel, first, None)),
            Some(_) => {}
        }
    }
    let (hosts, generated) = (Arc::clone(&keys.hosts), Arc::clone(&target.generated));
    let all: Arc<dyn KeySource> = Arc::new(AllKeys { hosts, generated });
    let (session, chosen) = longhaul_conn::accept(&channel, first, &all, turn).await?;
    let Chosen { psk, hostnqn, subnqn, generation, is_generated, derivation } = chosen;
    let generated = match is_generated {
        false => None,
        true => match target.generated.use_of(&psk.identity) {
            Some(in_use) => Some(in_use),
            // Its time was over, or it was replaced, during the handshake.
            None => {
                return Err(Refusal::NotGenerated { hostnqn, subnqn, identity: psk.identity }.into());
            }
        },
    };
    tracing::debug!("TLS: host {hostnqn} uses {derivation}");
    let secured = Secured { hostnqn, subnqn, generation, generated };
    Ok((channel.with_session(session), Vec::new(), Some(secured)))
}

/// As above: this build has no TLS, and a configuration that wants it is refused.
#[cfg(not(feature = "tls"))]
pub(crate) async fn begin(
    target: &Arc<Target>,
    channel: Channel,
    _: (&Address, &Address),
    _: &mut Inbox,
) -> Option<Begun> {
    Some(Begun::plain(target, channel))
}
