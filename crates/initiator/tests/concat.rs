//! Secure channel concatenation: TLS with a PSK that an authentication has made, both ends, and attackers.

mod common;

use common::channel::{connect_on, receive};
use common::raw::Raw;
use common::relay::{Relay, Way};
use common::{NQN, backend, connect, disk, engines, export, read, target, until};
use longhaul_auth::{
    DhGroup, GeneratedPsk, Generations, HashFunction, HostExchange, HostKey, HostOptions, HostStep,
    KeySource, Refused, Secret, SecureChannel, TlsKey, TlsPsk,
};
use longhaul_conn::{Channel, SecureError, TlsError};
use longhaul_engine::net::{SocketOptions, TcpStream};
use longhaul_engine::{Config as EngineConfig, Engine};
use longhaul_initiator::namespaces::{Administrator, ManagementError};
use longhaul_initiator::{Error, Options, PathOptions, discover};
use longhaul_target::{Config, Keys, Patience, Target, TlsPolicy};
use longhaul_wire::command::{Sgl, Sqe, fctype};
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::fabrics::auth::authreq;
use longhaul_wire::fabrics::{CNTLID_DYNAMIC, Cc, ConnectData, ConnectResponse, cattr, offset};
use longhaul_wire::log::{treq, tsas};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;
use zerocopy::IntoBytes;

const HOST: &str = "nqn.2026-11.io.longhaul:test:known";
const OTHER: &str = "nqn.2026-11.io.longhaul:test:other";
const MORE: &str = "nqn.2026-11.io.longhaul:test:more";
/// First byte of a record of the TLS handshake.
const TLS: u8 = 22;

fn secret(seed: u64) -> Secret {
    let mut random = fastrand::Rng::with_seed(seed);
    Secret::generate(HashFunction::Sha256, &mut |bytes| random.fill(bytes))
}

fn key(seed: u64, is_mutual: bool) -> HostKey {
    HostKey { secret: secret(seed), controller: is_mutual.then(|| secret(seed + 100)) }
}

fn keys(all: &[(&str, HostKey)]) -> Arc<dyn KeySource> {
    let all = all.iter().map(|(host, key)| ((*host).to_owned(), key.clone()));
    Arc::new(all.collect::<BTreeMap<String, HostKey>>())
}

/// A target that knows two hosts.
fn secured(policy: TlsPolicy, change: impl FnOnce(&mut Config)) -> Target {
    target(|config| {
        (config.tls, config.statistics) = (policy, true);
        config.keys = Some(Keys::new(keys(&[(HOST, key(1, true)), (OTHER, key(2, true))])));
        change(config);
    })
}

fn options(seed: u64, is_mutual: bool) -> Options {
    let keys = Some(keys(&[(HOST, key(seed, is_mutual))]));
    Options { hostnqn: HOST.into(), keys, concat: true, ..Options::default() }
}

fn refused(uri: &str, options: Options) -> String {
    let failure = connect(uri, options).expect_err("refused");
    assert!(matches!(failure, Error::Refused { .. }), "{failure:?}");
    failure.to_string()
}

fn refusals(target: &Target) -> u64 {
    target.observer().statistics().expect("a target that runs").incidents.authentication
}

/// What went over a relay: the first byte of each connection, and all bytes of hosts and targets.
#[derive(Default)]
struct Seen {
    first: BTreeMap<usize, u8>,
    bytes: Vec<u8>,
}

fn watched(relay: &Relay) -> Arc<Mutex<Seen>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let to = Arc::clone(&seen);
    relay.tamper(Some(Box::new(move |connection, way, bytes| {
        let mut seen = to.lock().expect("no panic");
        if way == Way::Forward {
            seen.first.entry(connection).or_insert(bytes[0]);
        }
        seen.bytes.extend_from_slice(bytes);
    })));
    seen
}

#[test]
fn data_goes_over_tls_alone_and_over_connections_that_are_made_again() {
    const MARK: &[u8] = b"longhaul: written in the clear? ";
    for engine in engines() {
        for is_mutual in [false, true] {
            let target = secured(TlsPolicy::Concatenated, |config| config.engine = engine.clone());
            let relay = Relay::start(target.addresses()[0]);
            let seen = watched(&relay);
            let path = PathOptions { connections: Some(3), ..PathOptions::default() };
            let options = Options { engine: engine.clone(), path, ..options(1, is_mutual) };
            let disk = disk(&relay.uri(&export(&target, "mem:32MiB")), options);
            let plain = |seen: &Seen| seen.first.values().filter(|first| **first != TLS).count();
            for (n, len) in [1 << 20, 8192, 4 << 20, 65_536].into_iter().enumerate() {
                let (content, at) = (MARK.repeat(len / MARK.len()), (n as u64) << 22);
                disk.write_at(&content, at).expect("written");
                assert!(read(&disk, at, len).expect("read") == content, "{len} bytes");
                if n == 1 {
                    assert_eq!(plain(&seen.lock().expect("no panic")), 1, "for the authentication");
                    // Each controller has a PSK of its own.
                    relay.flap();
                }
            }
            let seen = seen.lock().expect("no panic");
            assert!(plain(&seen) >= 2 && seen.first.len() > plain(&seen) + 3, "{:?}", seen.first);
            assert!(!seen.bytes.windows(MARK.len()).any(|bytes| bytes == MARK), "it was");
            let identity = format!("NVMe1G01 {HOST} {NQN} ");
            let identities =
                seen.bytes.windows(identity.len() + 44).filter(|b| b.starts_with(identity.as_bytes()));
            let digests: BTreeSet<_> = identities.map(|bytes| bytes[identity.len()..].to_vec()).collect();
            assert!(digests.len() >= 2, "{digests:?}");
        }
    }
}

#[test]
fn every_policy_that_has_it_serves_hosts_that_want_it() {
    let both = HostKeys { generations: Mutex::new(Generations::from(key(1, true))) };
    for (policy, configured, with, without) in [
        (TlsPolicy::Allowed, true, true, true),
        (TlsPolicy::Concatenated, true, true, false),
        (TlsPolicy::Required, true, false, false),
        (TlsPolicy::Off, false, false, true),
    ] {
        let keys = Arc::new(HostKeys { generations: Mutex::new(both.now()) });
        let target = secured(policy, |config| config.keys = Some(Keys::new(Arc::clone(&keys) as _)));
        let uri = export(&target, "mem:16MiB");
        let options = Options { keys: Some(keys), ..options(1, true) };
        let device = connect(&uri, options.clone());
        assert_eq!(device.is_ok(), with, "{policy:?}: {device:?}");
        assert!(device.is_ok_and(|device| device.controller().tls) == with);
        let plain = connect(&uri, Options { concat: false, ..options.clone() });
        assert_eq!(plain.is_ok(), without, "{policy:?}: {plain:?}");
        // A key for TLS, beside it.
        let tls = connect(&uri, Options { concat: false, tls: true, ..options });
        assert_eq!(tls.is_ok(), configured, "{policy:?}: {tls:?}");
    }
}

#[test]
fn a_host_without_it_is_told_what_to_do_and_discovery_says_what_a_port_takes() {
    let target = secured(TlsPolicy::Concatenated, |_| {});
    let uri = export(&target, "mem:16MiB");
    let said = refused(&uri, Options { concat: false, ..options(1, true) });
    assert!(said.contains("--concat"), "{said}");
    let said = refused(&uri, Options { keys: None, ..options(1, true) });
    assert!(said.contains("longhaul key make") && said.contains(HOST), "{said}");
    let at = target.addresses()[0];
    let log = discover(&at.ip().to_string(), at.port(), options(1, true)).expect("a log");
    assert!(log.records.iter().any(|record| record.subnqn == NQN));
    for record in &log.records {
        assert_eq!((record.treq & 0b11, record.sectype), (treq::SECURE_REQUIRED, tsas::TLS_1_3));
    }
}

/// A peer in the target's place, or a relay before the target, that keeps both from making a PSK.
#[test]
fn a_host_never_goes_on_without_tls() {
    // Targets that want no authentication, or make no PSK.
    let open = target(|_| {});
    let said = refused(&export(&open, "mem:16MiB"), options(1, false));
    assert!(said.contains("asks for no authentication"), "{said}");
    let plain = secured(TlsPolicy::Off, |_| {});
    let said = refused(&export(&plain, "mem:16MiB"), options(1, false));
    assert!(said.contains("secure channel") && said.contains("--tls concatenated"), "{said}");
    // An attacker between both, at a target that would do without.
    let target = secured(TlsPolicy::Allowed, |_| {});
    let uri = export(&target, "mem:16MiB");
    /// Changes the message that begins with the first bytes: where in it, and to what.
    type Change = (&'static [u8], usize, u8);
    // SC_C of AUTH_Negotiate: none, and another one; RVALID of DH-HMAC-CHAP_Success1.
    const CHANGES: [(Change, bool); 4] = [
        ((&[0, 0, 0, 0], 6, 0), true),
        ((&[0, 0, 0, 0], 6, 3), true),
        ((&[1, 3], 8, 1), false),
        ((&[1, 3], 8, 0), true),
    ];
    for ((begin, at, to), is_mutual) in CHANGES {
        let relay = Relay::start(target.addresses()[0]);
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let first = Arc::clone(&seen);
        relay.tamper(Some(Box::new(move |connection, way, bytes| {
            if way == Way::Forward {
                first.lock().expect("no panic").insert(connection);
            }
            // A capsule or its data, whose message is behind a header of PDU and command.
            for header in [24, 72] {
                let is_it =
                    bytes.get(header..).is_some_and(|rest| rest.len() >= 16 && rest.starts_with(begin));
                if is_it && matches!((bytes[0], header), (4, 72) | (6 | 7, 24)) {
                    bytes[header + at] = to;
                }
            }
        })));
        let failure = connect(&relay.uri(&uri), options(1, is_mutual)).expect_err("refused");
        assert!(matches!(failure, Error::Refused { .. }), "{begin:?} {at} {to}: {failure:?}");
        assert_eq!(
            seen.lock().expect("no panic").len(),
            1,
            "{begin:?} {at} {to}: one connection, and no other"
        );
    }
    // AUTHREQ of the response to Connect.
    let relay = Relay::start(target.addresses()[0]);
    relay.tamper(Some(Box::new(|_, way, bytes| {
        if way == Way::Back && bytes[0] == 5 && bytes.len() == 24 {
            bytes[10] = 0;
        }
    })));
    let said = refused(&relay.uri(&uri), options(1, false));
    assert!(said.contains("asks for no authentication"), "{said}");
    assert!(connect(&uri, options(1, false)).is_ok());
}

/// A host in bytes, without TLS: its admin queue of a subsystem, and how Connect was completed.
fn plain_queue(addr: SocketAddr, subnqn: &str, (qid, cntlid): (u16, u16)) -> (Raw, Cqe) {
    let mut raw = Raw::open(addr);
    let data = ConnectData::new(Uuid::from_u128(7), cntlid, subnqn, HOST);
    raw.submit(Sqe::connect(qid, 31, cattr::NO_FLOW_CONTROL, 0), Some(data.as_bytes().to_vec()));
    let cqe = raw.completion().1;
    (raw, cqe)
}

/// Goes through an exchange on it, and says the last word only if it is to. The PSK, if one was made.
fn exchange(
    raw: &mut Raw,
    subnqn: &str,
    is_mutual: bool,
    secure_channel: SecureChannel,
    is_ended: bool,
) -> Result<Option<GeneratedPsk>, Refused> {
    let host = HostOptions {
        hostnqn: HOST.into(),
        subnqn: subnqn.into(),
        key: key(1, is_mutual),
        hashes: vec![HashFunction::Sha256],
        groups: vec![DhGroup::Ffdhe2048],
        secure_channel,
    };
    let send = |raw: &mut Raw, message: Vec<u8>| {
        raw.submit(Sqe::authentication(fctype::AUTHENTICATION_SEND, message.len() as u32), Some(message));
        assert!(raw.completion().1.status().is_success());
    };
    let mut random = |bytes: &mut [u8]| longhaul_engine::random(bytes);
    let (mut exchange, mut message) = HostExchange::begin(host, 9);
    loop {
        send(raw, message);
        let slot = raw.submit_read(Sqe::authentication(fctype::AUTHENTICATION_RECEIVE, 4096), 4096);
        assert!(raw.completion().1.status().is_success());
        let answer = raw.data(slot).to_vec();
        match exchange.handle(&answer, &mut random) {
            HostStep::Send(next) => message = next,
            HostStep::Done(last) => {
                if let Some(last) = last.filter(|_| is_ended) {
                    send(raw, last);
                }
                return Ok(exchange.into_psk());
            }
            HostStep::Failed(why, _) => return Err(why),
        }
    }
}

/// An authentication for a subsystem, and the PSK of it.
fn make_psk(addr: SocketAddr, subnqn: &str, is_mutual: bool) -> (Raw, TlsPsk) {
    let (mut raw, cqe) = plain_queue(addr, subnqn, (0, CNTLID_DYNAMIC));
    assert_eq!(ConnectResponse::from_dw0(cqe.dw0()).authreq, authreq::SECURE_CHANNEL);
    let made = exchange(&mut raw, subnqn, is_mutual, SecureChannel::New, true);
    let psk = made.expect("authenticated").expect("a PSK").psk(HOST, subnqn).expect("derived");
    (raw, psk)
}

/// Commands that are refused on a queue for want of authentication.
fn takes_nothing(raw: &mut Raw) {
    let cc = Cc(0).with_en(1).with_iosqes(6).with_iocqes(4);
    for sqe in [
        Sqe::property_get(offset::CAP, true),
        Sqe::property_set(offset::CC, false, cc.0.into()),
        Sqe::identify(1, 0, 0),
        Sqe::keep_alive(),
    ] {
        match sqe {
            sqe if sqe.opcode == Sqe::identify(1, 0, 0).opcode => raw.submit_read(sqe, 4096),
            sqe => raw.submit(sqe, None),
        };
        let status = raw.completion().1.status();
        assert!(status.is(Status::AUTHENTICATION_REQUIRED), "{sqe:?}: {status}");
    }
}

#[test]
//= test: NVMe Base 2.1, Secure Channel Concatenation
fn a_queue_without_tls_takes_nothing_but_the_exchange() {
    for policy in [TlsPolicy::Concatenated, TlsPolicy::Allowed] {
        let target = secured(policy, |_| {});
        export(&target, "mem:16MiB");
        let addr = target.addresses()[0];
        // A host that says the last word, and one that does not.
        for (is_mutual, is_ended) in [(false, true), (true, true), (true, false)] {
            let (mut raw, cqe) = plain_queue(addr, NQN, (0, CNTLID_DYNAMIC));
            let cntlid = ConnectResponse::from_dw0(cqe.dw0()).cntlid;
            let made = exchange(&mut raw, NQN, is_mutual, SecureChannel::New, is_ended);
            assert!(made.expect("authenticated").is_some());
            takes_nothing(&mut raw);
            // Nor after an authentication of another kind, where that is taken.
            match exchange(&mut raw, NQN, is_mutual, SecureChannel::None, true) {
                Ok(_) => {
                    assert_eq!(policy, TlsPolicy::Allowed);
                    takes_nothing(&mut raw);
                }
                Err(why) => assert_eq!((policy, why), (TlsPolicy::Concatenated, Refused::Concatenation)),
            }
            // The controller has no I/O queues either.
            let (_, cqe) = plain_queue(addr, NQN, (1, cntlid));
            assert!(!cqe.status().is_success(), "{policy:?}");
        }
    }
    // Where it is required, authentication alone, or the replacement of what there is not, is a mismatch.
    let target = secured(TlsPolicy::Concatenated, |_| {});
    export(&target, "mem:16MiB");
    for channel in [SecureChannel::None, SecureChannel::Replace] {
        let (mut raw, _) = plain_queue(target.addresses()[0], NQN, (0, CNTLID_DYNAMIC));
        let refused = exchange(&mut raw, NQN, true, channel, true).expect_err("refused");
        assert_eq!(refused, Refused::Concatenation);
        raw.wait_for_end();
    }
}

#[test]
fn a_controller_with_tls_has_no_queue_without() {
    for policy in [TlsPolicy::Concatenated, TlsPolicy::Allowed] {
        let target = secured(policy, |_| {});
        let device = connect(&export(&target, "mem:16MiB"), options(1, true)).expect("connected");
        let before = refusals(&target);
        let (_, cqe) = plain_queue(target.addresses()[0], NQN, (9, device.controller().cntlid));
        assert!(cqe.status().is(Status::CONNECT_INVALID_HOST), "{policy:?}: {}", cqe.status());
        until("it to be counted", || refusals(&target) == before + 1);
    }
}

/// A channel with this PSK, if the target takes it.
async fn channel(addr: SocketAddr, psk: &TlsPsk) -> Result<Channel, SecureError> {
    let socket = TcpStream::connect(addr, &SocketOptions::default()).await.expect("connected");
    let channel = Channel::from(socket);
    let session = longhaul_conn::connect(&channel, std::slice::from_ref(psk)).await?;
    Ok(channel.with_session(session))
}

fn on_engine<T>(future: impl Future<Output = T>) -> T {
    Engine::new(&EngineConfig::default()).expect("an engine").block_on(future)
}

/// Why there is no connection with this PSK.
fn no_channel(addr: SocketAddr, psk: &TlsPsk) -> TlsError {
    match on_engine(channel(addr, psk)) {
        Err(SecureError::Tls(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_psk_is_for_one_host_and_one_subsystem() {
    const CODE: u16 = 0x07FF;
    let target = secured(TlsPolicy::Concatenated, |_| {});
    export(&target, "mem:16MiB");
    target.export(MORE, "more", backend("mem:16MiB"), Uuid::from_u128(9)).expect("exported");
    let addr = target.addresses()[0];
    let (_, psk) = make_psk(addr, NQN, true);
    let refused =
        (u16::from(Status::CONNECT_INVALID_HOST.sct()) << 8) | u16::from(Status::CONNECT_INVALID_HOST.sc());
    // The names of Connect are others.
    for (host, subnqn) in [(OTHER, NQN), (HOST, MORE), (OTHER, MORE)] {
        let status = on_engine(async {
            let channel = channel(addr, &psk).await.expect("a channel");
            connect_on(&channel, 0, CNTLID_DYNAMIC, host, subnqn).await
        });
        assert_eq!(status & CODE, refused, "{host} {subnqn}");
    }
    // The names, the digest, or the kind of the identity are others, or the key is.
    for identity in [
        psk.identity.replace(HOST, OTHER),
        psk.identity.replace(NQN, MORE),
        psk.identity.replace("NVMe1G01", "NVMe1G02"),
        psk.identity.replacen(&psk.identity[psk.identity.len() - 9..], "AAAAAAAA=", 1),
    ] {
        assert_ne!(identity, psk.identity);
        let changed = TlsPsk { identity, ..psk.clone() };
        assert!(matches!(no_channel(addr, &changed), TlsError::UnknownIdentity), "{changed:?}");
    }
    let mut secret = psk.secret.clone();
    secret[7] ^= 1;
    assert!(matches!(no_channel(addr, &TlsPsk { secret, ..psk.clone() }), TlsError::WrongKey));
    let retained = TlsPsk { identity: psk.identity.replace("NVMe1G", "NVMe1R"), ..psk.clone() };
    assert!(matches!(no_channel(addr, &retained), TlsError::UnknownIdentity));
    // It is right all the same.
    let status = on_engine(async {
        let channel = channel(addr, &psk).await.expect("a channel");
        connect_on(&channel, 0, CNTLID_DYNAMIC, HOST, NQN).await
    });
    assert_eq!(status, 0);
}

#[test]
fn a_psk_ends_with_its_time_or_its_last_connection() {
    let target = secured(TlsPolicy::Concatenated, |config| {
        config.patience = Patience { enable: Duration::from_millis(700), ..Patience::default() };
    });
    export(&target, "mem:16MiB");
    let addr = target.addresses()[0];
    let (_, psk) = make_psk(addr, NQN, false);
    let opens = |psk: &TlsPsk| on_engine(channel(addr, psk)).is_ok();
    // A connection that keeps it: one that has not come to its Connect.
    let engine = Engine::new(&EngineConfig::default()).expect("an engine");
    let open = engine.block_on(channel(addr, &psk)).expect("a channel");
    // One that no connection uses, and that is newer.
    let (_, unused) = make_psk(addr, NQN, false);
    until("the time of the newer one to be over", || engine.block_on(channel(addr, &unused)).is_err());
    let why = engine.block_on(channel(addr, &unused)).expect_err("over");
    assert!(matches!(why, SecureError::Tls(TlsError::UnknownIdentity)), "{why}");
    assert!(engine.block_on(channel(addr, &psk)).is_ok(), "it is in use");
    drop(open);
    drop(engine);
    until("it to be forgotten", || !opens(&psk));
    assert!(matches!(no_channel(addr, &psk), TlsError::UnknownIdentity));
}

/// Keys that change while connections are open.
#[derive(Debug)]
struct HostKeys {
    generations: Mutex<Generations<HostKey>>,
}

impl HostKeys {
    fn now(&self) -> Generations<HostKey> {
        self.generations.lock().expect("no panic").clone()
    }
}

impl KeySource for HostKeys {
    fn key_of(&self, _: &str, _: &str) -> Result<Option<Generations<HostKey>>, String> {
        Ok(Some(self.now()))
    }

    fn tls_key_of(&self, _: &str, _: &str) -> Result<Option<Generations<TlsKey>>, String> {
        Ok(Some(TlsKey::generate(HashFunction::Sha256, &mut |bytes| bytes.fill(7)).into()))
    }
}

#[test]
fn a_psk_of_a_secret_that_is_retired_opens_nothing() {
    let keys = Arc::new(HostKeys { generations: Mutex::new(key(1, true).into()) });
    let target =
        secured(TlsPolicy::Concatenated, |config| config.keys = Some(Keys::new(Arc::clone(&keys) as _)));
    export(&target, "mem:16MiB");
    let addr = target.addresses()[0];
    let (_, psk) = make_psk(addr, NQN, true);
    let change = |number, previous| {
        let retired = None;
        *keys.generations.lock().expect("no panic") =
            Generations { number, current: key(5, true), previous, retired };
    };
    change(2, Some(key(1, true)));
    assert!(on_engine(channel(addr, &psk)).is_ok(), "the one before is accepted");
    change(2, None);
    assert!(matches!(no_channel(addr, &psk), TlsError::UnknownIdentity));
}

/// A command on a channel, and its data that is written: the PDU of the answer.
async fn call(channel: &Channel, sqe: Sqe, data: &[u8]) -> Vec<u8> {
    const CAPSULE: u8 = 72;
    const C2H_DATA: u8 = 7;
    const SUCCESS: u8 = 8;
    let (sgl, offset) = match (data.len(), sqe.fctype()) {
        (0, fctype::AUTHENTICATION_RECEIVE) => (Sgl::transport(4096), 0),
        (0, _) => (Sgl::transport(0), 0),
        (len, _) => (Sgl::in_capsule(0, len as u32), CAPSULE),
    };
    let mut bytes = vec![4, 0, CAPSULE, offset];
    bytes.extend_from_slice(&(u32::from(CAPSULE) + data.len() as u32).to_le_bytes());
    bytes.extend_from_slice(sqe.with_sgl(sgl).as_bytes());
    bytes.extend_from_slice(data);
    channel.send_bytes(bytes).await.expect("sent");
    let mut pdu = receive(channel, 24).await;
    let len = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize;
    pdu.extend_from_slice(&receive(channel, len - 24).await);
    if pdu[0] == C2H_DATA && pdu[1] & SUCCESS == 0 {
        assert_eq!(receive(channel, 24).await[22..24], [0, 0], "the completion behind the data");
    }
    pdu
}

/// REPLACETLSPSK: the PSK of the connection opens nothing any more, and the new one does.
#[test]
//= test: NVMe Base 2.1, AUTH_Negotiate message
fn a_host_makes_another_psk_on_its_admin_queue() {
    let target = secured(TlsPolicy::Concatenated, |_| {});
    export(&target, "mem:16MiB");
    let addr = target.addresses()[0];
    let (_, first) = make_psk(addr, NQN, true);
    on_engine(async {
        let admin = channel(addr, &first).await.expect("a channel");
        assert_eq!(connect_on(&admin, 0, CNTLID_DYNAMIC, HOST, NQN).await, 0);
        let host = HostOptions {
            hostnqn: HOST.into(),
            subnqn: NQN.into(),
            key: key(1, true),
            hashes: vec![HashFunction::Sha384],
            groups: vec![DhGroup::Ffdhe2048],
            secure_channel: SecureChannel::Replace,
        };
        let (mut exchange, mut message) = HostExchange::begin(host, 3);
        let mut random = |bytes: &mut [u8]| longhaul_engine::random(bytes);
        loop {
            let send = Sqe::authentication(fctype::AUTHENTICATION_SEND, message.len() as u32);
            assert_eq!(call(&admin, send, &message).await[22..24], [0, 0]);
            let receive = Sqe::authentication(fctype::AUTHENTICATION_RECEIVE, 4096);
            let answer = call(&admin, receive, &[]).await;
            assert_eq!((answer[0], answer.len()), (7, 24 + 4096), "C2HData: {answer:?}");
            match exchange.handle(&answer[24..], &mut random) {
                HostStep::Send(next) => message = next,
                HostStep::Done(last) => {
                    let last = last.expect("the target has proved what it is");
                    let send = Sqe::authentication(fctype::AUTHENTICATION_SEND, last.len() as u32);
                    assert!(channel(addr, &first).await.is_ok(), "until the host has judged");
                    assert_eq!(call(&admin, send, &last).await[22..24], [0, 0]);
                    break;
                }
                HostStep::Failed(why, _) => panic!("{why}"),
            }
        }
        let second = exchange.into_psk().expect("a PSK").psk(HOST, NQN).expect("derived");
        assert!(second.identity.starts_with("NVMe1G02 ") && second.identity != first.identity);
        assert!(channel(addr, &second).await.is_ok());
        let old = channel(addr, &first).await.expect_err("it was replaced");
        assert!(matches!(old, SecureError::Tls(TlsError::UnknownIdentity)), "{old}");
        // The connection goes on: a property is read.
        let answer = call(&admin, Sqe::property_get(offset::CAP, true), &[]).await;
        assert_eq!((answer[0], &answer[22..24]), (5, &[0, 0][..]));
    });
}

#[test]
fn administration_uses_it_too() {
    let target = secured(TlsPolicy::Concatenated, |_| {});
    let relay = Relay::start(target.addresses()[0]);
    let seen = watched(&relay);
    let uri = relay.uri(&export(&target, "mem:16MiB"));
    let administrator = Administrator::connect_blocking(&uri.parse().expect("a URI"), options(1, true));
    // The export is no space: that was asked over TLS.
    assert!(matches!(administrator, Err(ManagementError::NotPermitted { .. })), "{administrator:?}");
    let first: Vec<_> = seen.lock().expect("no panic").first.values().copied().collect();
    assert_eq!(first, [0, TLS]);
}
