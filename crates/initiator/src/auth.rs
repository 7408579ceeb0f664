//! Authentication of a queue behind its Connect, where the target or this host wants it.

use crate::call::{Data, Done};
use crate::error::{Error, Result, reason};
use crate::options::Options;
use crate::queue::Queue;
use crate::setup::{Endpoint, bytes_of};
use longhaul_auth::{
    DhGroup, HashFunction, HostExchange, HostKey, HostOptions, HostStep, Refused, SecureChannel, TlsPsk,
};
use longhaul_engine::{Buf, BufMut, Memory};
use longhaul_wire::command::{Sqe, fctype};
use longhaul_wire::fabrics::ConnectResponse;
use longhaul_wire::fabrics::auth::{MESSAGE_MAX, authreq};
use longhaul_wire::nqn::DISCOVERY_NQN;
use std::sync::atomic::{AtomicU16, Ordering};

/// Authenticates the queue. Returns the round trips that it took, one after another; none where neither side
/// wants it.
///
/// # Errors
/// The target refuses this host, or does not prove what it is; the target wants it and this host has no
/// secret, or the other way round.
pub(crate) async fn authenticate(
    endpoint: &Endpoint,
    options: &Options,
    queue: &Queue,
    subnqn: &str,
    connected: ConnectResponse,
) -> Result<u32> {
    let wants = |bit| connected.authreq & bit != 0;
    if wants(authreq::SECURE_CHANNEL) {
        let why =
            "it wants an authentication that makes a key for TLS: use --concat (or concat=true), or --tls";
        return Err(endpoint.refused(WHAT, why));
    }
    // The PSK in use is the proof of both ends.
    if endpoint.generated.is_some() && !wants(authreq::TRANSACTION) {
        return Ok(0);
    }
    let key = match options.key(subnqn).map_err(|why| endpoint.refused(WHAT, why))? {
        None if !wants(authreq::TRANSACTION) => return Ok(0),
        None => return Err(no_secret(endpoint, options, "it wants a proof that this is")),
        Some(key) if !wants(authreq::TRANSACTION) => {
            // An attacker between both would leave it out.
            return match key.controller {
                None => Ok(0),
                // What a discovery controller lists is no secret, and what is found there has to prove itself.
                Some(_) if subnqn == DISCOVERY_NQN => Ok(0),
                Some(_) => Err(endpoint.refused(WHAT, "it does not prove what it is, as --keys wants")),
            };
        }
        Some(key) => key,
    };
    exchange(endpoint, options, queue, (subnqn, key), SecureChannel::None).await.map(|(_, done)| done)
}

/// Authenticates an admin queue without TLS so that both ends have a PSK for it: that, and the round trips that it took.
///
/// # Errors
/// As those of [`authenticate`]. The target asks for no authentication, or refuses to make a PSK, as an attacker in
/// the target's place may.
pub(crate) async fn make_psk(
    endpoint: &Endpoint,
    options: &Options,
    queue: &Queue,
    subnqn: &str,
    connected: ConnectResponse,
) -> Result<(TlsPsk, u32)> {
    let Some(key) = options.key(subnqn).map_err(|why| endpoint.refused(WHAT, why))? else {
        return Err(no_secret(endpoint, options, "TLS by an authentication needs a secret of"));
    };
    if connected.authreq == 0 {
        let why = "it asks for no authentication, of which --concat makes the key for TLS; a target does so with \
                   --keys and --tls concatenated or allowed";
        return Err(endpoint.refused(WHAT, why));
    }
    let (done, round_trips) =
        exchange(endpoint, options, queue, (subnqn, key), SecureChannel::New).await.map_err(|e| match e {
            Error::Refused { addr, what, reason } if reason == Refused::Concatenation.to_string() => {
                let reason =
                    format!("{reason}; a target makes keys for TLS with --tls concatenated or allowed");
                Error::Refused { addr, what, reason }
            }
            e => e,
        })?;
    // Both are there after an exchange of this kind.
    let psk = done.into_psk().ok_or_else(|| endpoint.refused(WHAT, "it has made no key for TLS"))?;
    let psk = psk.psk(&options.hostnqn, subnqn).map_err(|e| endpoint.incompatible(e))?;
    Ok((psk, round_trips))
}

const WHAT: &str = "authentication";

fn no_secret(endpoint: &Endpoint, options: &Options, why: &str) -> Error {
    let make = "make a secret known to both with 'longhaul key make', and name its directory with --keys";
    endpoint.refused(WHAT, format!("{why} {}: {make}", options.hostnqn))
}

/// Goes through an exchange: its end, and the round trips that it took.
async fn exchange(
    endpoint: &Endpoint,
    options: &Options,
    queue: &Queue,
    (subnqn, key): (&str, HostKey),
    secure_channel: SecureChannel,
) -> Result<(HostExchange, u32)> {
    let host = HostOptions {
        hostnqn: options.hostnqn.clone(),
        subnqn: subnqn.to_owned(),
        key,
        secure_channel,
        hashes: HashFunction::ALL.into(),
        groups: DhGroup::ALL.into_iter().filter(|group| *group != DhGroup::Null).collect(),
    };
    let (mut exchange, mut message) = HostExchange::begin(host, transaction());
    let mut round_trips = 0;
    loop {
        let data = Data::Write(Memory::Shared(Buf::copy_of(&message)));
        let send = Sqe::authentication(fctype::AUTHENTICATION_SEND, message.len() as u32);
        submit(endpoint, options, queue, "Authentication Send", send, data).await?;
        let data = Data::Read(Memory::Buf(BufMut::zeroed(MESSAGE_MAX)));
        let receive = Sqe::authentication(fctype::AUTHENTICATION_RECEIVE, MESSAGE_MAX as u32);
        let answer = submit(endpoint, options, queue, "Authentication Receive", receive, data).await?;
        round_trips += 2;
        let answer = bytes_of(&answer);
        // Milliseconds of arithmetic: other tasks of the thread go on.
        let handled = longhaul_engine::blocking(move || {
            let step = exchange.handle(&answer, &mut longhaul_engine::random);
            (exchange, step)
        });
        let step;
        (exchange, step) = handled.await;
        let (result, last) = match step {
            HostStep::Send(next) => {
                message = next;
                continue;
            }
            HostStep::Done(last) => (Ok(()), last),
            HostStep::Failed(why, last) => (Err(endpoint.refused(WHAT, why)), last),
        };
        if let Some(last) = last {
            let send = Sqe::authentication(fctype::AUTHENTICATION_SEND, last.len() as u32);
            let data = Data::Write(Memory::Shared(Buf::copy_of(&last)));
            let sent = submit(endpoint, options, queue, "Authentication Send", send, data).await;
            round_trips += 1;
            if result.is_ok() {
                sent?;
            }
        }
        return result.map(|()| (exchange, round_trips));
    }
}

async fn submit(
    endpoint: &Endpoint,
    options: &Options,
    queue: &Queue,
    what: &'static str,
    sqe: Sqe,
    data: Data,
) -> Result<Done> {
    let limit = options.connect_timeout.min(endpoint.patience);
    let answer = endpoint.within(limit, what, async {
        queue.submit(sqe, data).await.map_err(|e| endpoint.unreachable(reason(&e)))
    });
    let done = answer.await?;
    match done.cqe.status().is_success() {
        true => Ok(done),
        false => Err(Error::Refused {
            addr: endpoint.name.clone(),
            what: what.to_owned(),
            reason: done.cqe.status().to_string(),
        }),
    }
}

/// An identifier that no other exchange of this process has at the same time.
fn transaction() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
