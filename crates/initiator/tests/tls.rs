//! Connections with TLS: which hosts are accepted, and the errors of those that are refused.

mod common;

use common::channel::connect_on;
use common::relay::{Relay, Way};
use common::{NQN, backend, connect, disk, engines, export, pattern, read, target, until};
use longhaul_auth::{
    Derivation, Generations, HashFunction, HostKey, IdentityVersion, KeySource, Secret, TlsKey,
};
use longhaul_conn::Channel;
use longhaul_engine::net::{SocketOptions, TcpStream};
use longhaul_engine::{Config as EngineConfig, Engine};
use longhaul_initiator::transport::{InProcess, Transport, Unix};
use longhaul_initiator::{Error, Options, PathOptions, discover};
use longhaul_target::{Config, IncidentCounts, Keys, Patience, Target, TlsPolicy, TransportListener};
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::CNTLID_DYNAMIC;
use longhaul_wire::log::{treq, tsas};
use longhaul_wire::pdu::IcReq;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use uuid::Uuid;
use zerocopy::IntoBytes;

const HOST: &str = "nqn.2026-11.io.longhaul:test:known";
const OTHER: &str = "nqn.2026-11.io.longhaul:test:other";
const DECODE_ERROR: u8 = 50;
const DECRYPT_ERROR: u8 = 51;
const PROTOCOL_VERSION: u8 = 70;

fn key(seed: u64, hash: HashFunction) -> TlsKey {
    let mut random = fastrand::Rng::with_seed(seed);
    TlsKey::generate(hash, &mut |bytes| random.fill(bytes))
}

fn keys(all: &[(&str, u64)]) -> Arc<dyn KeySource> {
    let hash = |seed| if seed % 2 == 0 { HashFunction::Sha384 } else { HashFunction::Sha256 };
    let of = |&(host, seed): &(&str, u64)| (host.to_owned(), key(seed, hash(seed)).into());
    Arc::new(all.iter().map(of).collect::<BTreeMap<_, Generations<TlsKey>>>())
}

fn secured(policy: TlsPolicy, change: impl FnOnce(&mut Config)) -> Target {
    target(|config| {
        (config.tls, config.statistics) = (policy, true);
        config.keys = Some(Keys::new(keys(&[(HOST, 1), (OTHER, 2)])));
        change(config);
    })
}

fn options(seed: u64) -> Options {
    Options { hostnqn: HOST.into(), keys: Some(keys(&[(HOST, seed)])), tls: true, ..Options::default() }
}

fn incidents(target: &Target) -> IncidentCounts {
    target.observer().statistics().expect("a target that runs").incidents
}

/// Waits for these incidents: a host may know of the end of a connection before the target has counted it.
fn counted(target: &Target, holds: impl Fn(&IncidentCounts) -> bool) {
    until("the incidents are counted", || holds(&incidents(target)));
}

fn failure(uri: &str, options: Options) -> Error {
    connect(uri, options).expect_err("refused")
}

#[test]
fn large_and_small_io_goes_both_ways_and_over_a_connection_that_is_made_again() {
    for engine in engines() {
        for (host, seed, digests) in [(HOST, 1, false), (OTHER, 2, true)] {
            let target = secured(TlsPolicy::Required, |config| config.engine = engine.clone());
            let relay = Relay::start(target.addresses()[0]);
            let uri = relay.uri(&export(&target, "mem:64MiB"));
            let path = PathOptions { connections: Some(3), ..PathOptions::default() };
            let options = Options {
                hostnqn: host.into(),
                keys: Some(keys(&[(host, seed)])),
                hdr_digest: digests,
                data_digest: digests,
                engine: engine.clone(),
                path,
                ..options(seed)
            };
            let disk = disk(&uri, options);
            for (n, len) in [(8 << 20) - 4096, 4096, 8192, 1 << 20, 65_536].into_iter().enumerate() {
                let (content, at) = (pattern(len, n as u64), (n as u64) << 23);
                disk.write_at(&content, at).expect("written");
                assert!(read(&disk, at, len).expect("read") == content, "{len} bytes");
                // The second half is on connections that were made again.
                if n == 2 {
                    relay.flap();
                }
            }
        }
    }
}

#[test]
fn over_other_transports_it_is_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket").to_str().expect("a path").to_owned();
    let ways: [(Arc<dyn Transport>, String); 2] =
        [(Arc::new(Unix), socket), (Arc::new(InProcess::new()), "a target".into())];
    for (transport, address) in ways {
        let uri = format!("nvme+own://{}/{NQN}", address.replace('/', "%2F"));
        let listener = TransportListener { transport: Arc::clone(&transport), address };
        let target = secured(TlsPolicy::Required, |config| config.transports = vec![listener]);
        export(&target, "mem:32MiB");
        let transports = BTreeMap::from([("own".to_owned(), transport)]);
        let with = |options| Options { transports: transports.clone(), ..options };
        let remote = connect(&uri, with(options(1))).expect("connected");
        assert!(remote.controller().tls);
        let (disk, content) = (longhaul_block::Blocking::open(remote).expect("opened"), pattern(3 << 20, 1));
        disk.write_at(&content, 4096).expect("written");
        assert!(read(&disk, 4096, content.len()).expect("read") == content);
        let plain = failure(&uri, with(Options { tls: false, ..options(1) })).to_string();
        assert!(plain.contains("--tls"), "{plain}");
        let wrong = failure(&uri, with(options(3))).to_string();
        assert!(wrong.contains("another key"), "{wrong}");
    }
}

#[test]
fn a_host_without_the_right_key_is_told_why_and_not_which() {
    let target = secured(TlsPolicy::Required, |_| {});
    let uri = export(&target, "mem:32MiB");
    let wrong = failure(&uri, options(3)).to_string();
    assert!(wrong.contains("another key") && wrong.contains(&format!("NVMe1R01 {HOST} {NQN} ")), "{wrong}");
    let secret = key(3, HashFunction::Sha256).reveal();
    assert!(!wrong.contains(&secret["NVMeTLSkey-1:01:".len()..][..12]), "{wrong}");
    let stranger = "nqn.2026-11.io.longhaul:test:x";
    let unknown = Options { hostnqn: stranger.into(), keys: Some(keys(&[(stranger, 1)])), ..options(1) };
    let unknown = failure(&uri, unknown).to_string();
    assert!(unknown.contains("unknown_psk_identity"), "{unknown}");
    let none = failure(&uri, Options { keys: None, ..options(1) }).to_string();
    assert!(none.contains("longhaul key make --tls") && none.contains(HOST), "{none}");
    // Without TLS it is not answered, and gets a hint.
    let plain = failure(&uri, Options { tls: false, ..options(1) }).to_string();
    assert!(plain.contains("--tls"), "{plain}");
    counted(&target, |counts| counts.authentication >= 2 && counts.protocol >= 1);
    assert!(connect(&uri, options(1)).is_ok());
}

#[test]
fn a_target_without_tls_is_no_target_for_it() {
    let target = target(|_| {});
    let uri = export(&target, "mem:32MiB");
    let refused = failure(&uri, options(1)).to_string();
    assert!(refused.contains("speaks no TLS"), "{refused}");
    assert!(connect(&uri, Options::default()).is_ok());
}

#[test]
fn where_tls_is_allowed_a_host_without_it_still_has_to_be_known() {
    let target = secured(TlsPolicy::Allowed, |_| {});
    let uri = export(&target, "mem:32MiB");
    assert!(connect(&uri, options(1)).is_ok());
    let plain = failure(&uri, Options { tls: false, ..options(1) }).to_string();
    assert!(plain.contains("not allowed"), "it has no secret to prove itself with: {plain}");
}

#[test]
fn discovery_says_which_addresses_take_tls_alone() {
    for (policy, want) in [
        (TlsPolicy::Required, (treq::SECURE_REQUIRED, tsas::TLS_1_3)),
        (TlsPolicy::Allowed, (treq::SECURE_UNSPECIFIED, tsas::TLS_1_3)),
    ] {
        let target = secured(policy, |config| {
            config.discovery = Some("127.0.0.3:0".parse().expect("an address"));
        });
        export(&target, "mem:32MiB");
        let (io, discovery) = (target.addresses()[0], target.discovery_address().expect("an address"));
        for (at, tls) in [(io, true), (discovery, true), (discovery, false)] {
            let log =
                discover(&at.ip().to_string(), at.port(), Options { tls, ..options(1) }).expect("a log");
            let of = |port: u16| {
                let record = log.records.iter().find(|r| r.trsvcid == port.to_string()).expect("a record");
                (record.treq & 0b11, record.sectype)
            };
            assert_eq!(of(io.port()), want, "at {at}, TLS: {tls}");
        }
        let without = discover(&io.ip().to_string(), io.port(), Options { tls: false, ..options(1) });
        assert_eq!(without.is_err(), policy == TlsPolicy::Required);
    }
}

async fn channel(addr: SocketAddr, subnqn: &str, derivation: Derivation) -> Result<Channel, String> {
    let socket = TcpStream::connect(addr, &SocketOptions::default()).await.map_err(|e| e.to_string())?;
    let key = key(1, HashFunction::Sha256);
    let psk = key.psk(IdentityVersion::V1, key.hash(), HOST, subnqn, derivation).expect("derived");
    let channel = Channel::from(socket);
    let session = longhaul_conn::connect(&channel, &[psk]).await.map_err(|e| e.to_string())?;
    Ok(channel.with_session(session))
}

/// The status of a Connect in these names, on a connection by the key of [`HOST`] for `secured`.
async fn connect_as(addr: SocketAddr, secured: &str, hostnqn: &str, subnqn: &str) -> u16 {
    let channel = channel(addr, secured, Derivation::Standard).await.expect("a channel");
    connect_on(&channel, 0, CNTLID_DYNAMIC, hostnqn, subnqn).await
}

#[test]
fn a_key_is_for_one_host_and_one_subsystem() {
    const MORE: &str = "nqn.2026-11.io.longhaul:test:more";
    const CODE: u16 = 0x07FF;
    let target = secured(TlsPolicy::Required, |_| {});
    let uri = export(&target, "mem:32MiB");
    target.export(MORE, "more", backend("mem:16MiB"), Uuid::from_u128(9)).expect("exported");
    let (addr, engine) = (target.addresses()[0], Engine::new(&EngineConfig::default()).expect("an engine"));
    engine.block_on(async {
        assert_eq!(connect_as(addr, NQN, HOST, NQN).await, 0);
        let before = incidents(&target).authentication;
        let refused = (u16::from(Status::CONNECT_INVALID_HOST.sct()) << 8)
            | u16::from(Status::CONNECT_INVALID_HOST.sc());
        // Another known host's name, a subsystem that the key is not for, and both.
        for (secured, host, subnqn) in [(NQN, OTHER, NQN), (NQN, HOST, MORE), (MORE, OTHER, NQN)] {
            let status = connect_as(addr, secured, host, subnqn).await;
            assert_eq!(status & CODE, refused, "{host} {subnqn}");
        }
        counted(&target, |counts| counts.authentication == before + 3);
        // Nor an I/O queue of a controller of the other host.
        let device =
            connect(&uri, Options { hostnqn: OTHER.into(), keys: Some(keys(&[(OTHER, 2)])), ..options(2) });
        let device = device.expect("connected");
        let cntlid = device.controller().cntlid;
        let parameters = (u16::from(Status::CONNECT_INVALID_PARAMETERS.sct()) << 8)
            | u16::from(Status::CONNECT_INVALID_PARAMETERS.sc());
        for (host, why) in [(OTHER, refused), (HOST, parameters)] {
            let channel = channel(addr, NQN, Derivation::Standard).await.expect("a channel");
            assert_eq!(connect_on(&channel, 9, cntlid, host, NQN).await & CODE, why, "{host}");
        }
        counted(&target, |counts| counts.authentication == before + 4);
        let legacy = channel(addr, NQN, Derivation::Legacy).await.expect("a channel");
        assert_eq!(connect_on(&legacy, 0, CNTLID_DYNAMIC, OTHER, NQN).await & CODE, refused);
    });
}

/// A Linux target with one key: GnuTLS looks at the first identity alone, and refuses it if it is another one. What a
/// target took once is offered first from then on.
#[test]
fn a_target_that_looks_at_the_first_identity_alone_is_reached_with_every_kind_of_key() {
    let target = secured(TlsPolicy::Required, |_| {});
    let uri = export(&target, "mem:32MiB");
    let (key, sha) = (key(1, HashFunction::Sha256), HashFunction::Sha256);
    for (version, derivation) in [
        (IdentityVersion::V1, Derivation::Standard),
        (IdentityVersion::V1, Derivation::Legacy),
        (IdentityVersion::V0, Derivation::Standard),
    ] {
        let relay = Relay::start(target.addresses()[0]);
        let taken = key.psk(version, sha, HOST, NQN, derivation).expect("derived").identity;
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        let mut begun = BTreeSet::new();
        relay.tamper(Some(Box::new(move |connection, way, bytes| {
            if way == Way::Forward && begun.insert(connection) {
                let first = bytes.windows(4).position(|window| window == b"NVMe").expect("an identity");
                if !bytes[first..].starts_with(taken.as_bytes()) {
                    // No ClientHello any more: the target answers with an alert.
                    bytes[5] = 0xFF;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        })));
        let disk = disk(&relay.uri(&uri), options(1));
        let content = pattern(64 << 10, 3);
        disk.write_at(&content, 0).expect("written");
        let before = refused.load(Ordering::Relaxed);
        assert_eq!(before == 0, (version, derivation) == (IdentityVersion::V1, Derivation::Standard));
        // Connections that end without an answer are no reason to make another offer.
        relay.turn_away(2);
        assert!(read(&disk, 0, content.len()).expect("read") == content);
        assert_eq!(refused.load(Ordering::Relaxed), before, "{version:?} {derivation:?}: known by then");
    }
}

/// What a connection gets that begins with these bytes, until the target ends it.
fn answer_to(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = std::net::TcpStream::connect(addr).expect("connected");
    stream.set_read_timeout(Some(common::PATIENCE)).expect("a limit");
    stream.write_all(bytes).expect("sent");
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// A ClientHello with these extensions, in a record.
fn hello(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(extensions);
    let mut message = vec![1, 0];
    message.extend_from_slice(&(body.len() as u16).to_be_bytes());
    message.extend_from_slice(&body);
    let mut record = vec![22, 3, 1];
    record.extend_from_slice(&(message.len() as u16).to_be_bytes());
    record.extend_from_slice(&message);
    record
}

#[test]
fn what_is_no_hello_of_tls_1_3_gets_an_alert_or_the_end() {
    let target = secured(TlsPolicy::Required, |_| {});
    let uri = export(&target, "mem:32MiB");
    let addr = target.addresses()[0];
    let alert = |number: u8| vec![21, 3, 3, 0, 2, 2, number];
    // Versions: 1.2 alone, and none.
    assert_eq!(answer_to(addr, &hello(&[0, 43, 0, 3, 2, 3, 3])), alert(PROTOCOL_VERSION));
    assert_eq!(answer_to(addr, &hello(&[])), alert(PROTOCOL_VERSION));
    // An extension that is longer than all of them.
    assert_eq!(answer_to(addr, &hello(&[0, 43, 255, 255, 2, 3, 4])), alert(DECODE_ERROR));
    // Neither TLS nor NVMe/TCP, and NVMe/TCP.
    assert_eq!(answer_to(addr, b"GET / HTTP/1.1\r\n\r\n"), b"");
    assert_eq!(answer_to(addr, IcReq::new(0, 0, 0).as_bytes()), b"");
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..64 {
        let mut garbage = vec![0; random.usize(5..600)];
        random.fill(&mut garbage);
        let len = (garbage.len() - 5) as u16;
        garbage[..5].copy_from_slice(&[22, 3, 1, (len >> 8) as u8, len as u8]);
        // The target waits for more of a message, if that is what it begins to be: then this end gives up.
        let mut stream = std::net::TcpStream::connect(addr).expect("connected");
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer[0] == 21 && answer[6] != DECRYPT_ERROR, "{answer:?}");
    }
    assert!(connect(&uri, options(1)).is_ok());
}

#[test]
fn handshakes_that_are_not_ended_keep_no_host_out() {
    const HALF_OPEN: usize = 100;
    let target = secured(TlsPolicy::Required, |config| {
        config.max_connections = 64;
        config.patience = Patience { connect: Duration::from_secs(60), ..Patience::default() };
    });
    let uri = export(&target, "mem:32MiB");
    let disk = disk(&uri, options(1));
    let content = pattern(1 << 20, 4);
    let begun: Vec<_> = (0..HALF_OPEN)
        .map(|n| {
            let mut stream = std::net::TcpStream::connect(target.addresses()[0]).expect("connected");
            // Some say nothing, others a part of a ClientHello.
            let hello = hello(&[0, 43, 0, 3, 2, 3, 4]);
            let _ = stream.write_all(&hello[..n % 40]);
            disk.write_at(&content, ((n % 16) as u64) << 20).expect("written");
            stream
        })
        .collect();
    until("every connection to be accepted", || incidents(&target).accepted >= HALF_OPEN as u64);
    assert!(target.connections() <= 64);
    let another =
        connect(&uri, Options { hostnqn: OTHER.into(), keys: Some(keys(&[(OTHER, 2)])), ..options(2) });
    another.expect("a place, and a controller");
    assert!(read(&disk, 0, 1 << 20).expect("read") == content);
    drop(begun);
}

#[test]
fn a_handshake_that_takes_too_long_ends() {
    let connect = Duration::from_millis(300);
    let target =
        secured(TlsPolicy::Required, |config| config.patience = Patience { connect, ..Patience::default() });
    assert_eq!(answer_to(target.addresses()[0], &hello(&[])[..20]), b"");
    assert_eq!(answer_to(target.addresses()[0], b""), b"");
    counted(&target, |counts| counts.late >= 2);
    until("the places to be free", || target.connections() == 0);
}

/// A bit that changes on the way ends the connection, and no byte of it reaches a block or a caller.
#[test]
fn changed_records_end_the_connection_and_change_no_data() {
    let target = secured(TlsPolicy::Required, |_| {});
    let relay = Relay::start(target.addresses()[0]);
    let disk = disk(&relay.uri(&export(&target, "mem:32MiB")), options(1));
    let mut random = fastrand::Rng::with_seed(9);
    for round in 0..6 {
        let way = if round % 2 == 0 { Way::Forward } else { Way::Back };
        let (content, at) = (pattern(1 << 20, round), round << 20);
        if way == Way::Back {
            disk.write_at(&content, at).expect("written");
        }
        let before = relay.accepted();
        let (mut left, from) = (1, random.usize(..4096));
        relay.tamper(Some(Box::new(move |_, on, bytes| {
            // A large piece: data, and not the beginning of a handshake.
            if on == way && left > 0 && bytes.len() > 4096 {
                bytes[from] ^= 0x10;
                left -= 1;
            }
        })));
        if way == Way::Forward {
            disk.write_at(&content, at).expect("written");
        }
        assert!(read(&disk, at, content.len()).expect("read") == content, "round {round}");
        assert!(relay.accepted() > before, "round {round}: a connection was made again");
        relay.tamper(None);
        assert!(read(&disk, at, content.len()).expect("read") == content, "round {round}");
    }
}

/// A host that goes away in the middle of its handshake, also once the target has answered, leaves nothing behind.
#[test]
fn a_handshake_that_is_cut_costs_nothing_lasting() {
    let target = secured(TlsPolicy::Required, |_| {});
    let uri = export(&target, "mem:32MiB");
    let hello = recorded_hello(&target);
    for cut in [1, 5, 60, hello.len() - 1, hello.len()] {
        for _ in 0..20 {
            let mut stream = std::net::TcpStream::connect(target.addresses()[0]).expect("connected");
            stream.set_read_timeout(Some(common::PATIENCE)).expect("a limit");
            stream.write_all(&hello[..cut]).expect("sent");
            if cut == hello.len() {
                let mut answer = [0; 5];
                stream.read_exact(&mut answer).expect("an answer");
                assert_eq!(answer[0], 22, "the target goes on with a hello that is right, also again");
            }
        }
    }
    until("the places to be free", || target.connections() == 0);
    let counts = incidents(&target);
    assert_eq!((counts.authentication, counts.protocol, counts.late), (0, 0, 0), "{counts:?}");
    assert!(connect(&uri, options(1)).is_ok());
}

/// The first message of a host with the right key.
fn recorded_hello(target: &Target) -> Vec<u8> {
    let relay = Relay::start(target.addresses()[0]);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = Arc::clone(&seen);
    relay.tamper(Some(Box::new(move |_, way, bytes| {
        let mut seen = to.lock().expect("no panic");
        if way == Way::Forward && seen.is_empty() {
            seen.extend_from_slice(bytes);
        }
    })));
    drop(
        connect(&relay.uri(&format!("nvme+tcp://{}/{NQN}", target.addresses()[0])), options(1))
            .expect("connected"),
    );
    until("the connections to end", || target.connections() == 0);
    let hello = seen.lock().expect("no panic").clone();
    assert_eq!(hello[0], 22);
    hello
}

/// The address of discovery takes connections without TLS, and is no way around it.
#[test]
fn where_tls_is_required_no_address_takes_a_connect_without_it() {
    let target = secured(TlsPolicy::Required, |config| {
        config.discovery = Some("127.0.0.3:0".parse().expect("an address"));
        // A host that could prove itself without TLS.
        config.keys = Some(Keys::new(Arc::new(BothKeys)));
    });
    export(&target, "mem:32MiB");
    let addr = target.discovery_address().expect("an address");
    let plain = Options { tls: false, keys: Some(Arc::new(BothKeys)), ..options(1) };
    assert!(discover("127.0.0.3", addr.port(), plain.clone()).is_ok(), "what there is may be asked");
    let before = incidents(&target).authentication;
    let refused = failure(&format!("nvme+tcp://{addr}/{NQN}"), plain.clone()).to_string();
    assert!(refused.contains("not allowed"), "{refused}");
    counted(&target, |counts| counts.authentication == before + 1);
    let tls = Options { tls: true, ..plain };
    assert!(
        connect(&format!("nvme+tcp://{addr}/{NQN}"), tls).is_ok(),
        "and the proof of the secret within TLS"
    );
}

/// A host with a secret and a key for TLS.
#[derive(Debug)]
struct BothKeys;

impl KeySource for BothKeys {
    fn key_of(&self, _: &str, _: &str) -> Result<Option<Generations<HostKey>>, String> {
        let secret = Secret::generate(HashFunction::Sha256, &mut |bytes| bytes.fill(3));
        Ok(Some(HostKey { secret, controller: None }.into()))
    }

    fn tls_key_of(&self, _: &str, _: &str) -> Result<Option<Generations<TlsKey>>, String> {
        Ok(Some(key(1, HashFunction::Sha256).into()))
    }
}
