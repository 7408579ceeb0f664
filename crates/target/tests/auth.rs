//! A target whose hosts have to prove who they are: what those get that do not.

#![allow(unreachable_pub, dead_code, reason = "the client is that of another test")]

#[path = "hostile/client.rs"]
mod client;

use client::{BLOCK, CC_ENABLE, Client, Done, HOSTNQN, NQN, Name, STRANGER, read, write};
use longhaul_auth::{HostExchange, HostOptions, HostStep, Refused, SecureChannel};
use longhaul_block::BackendSpec;
use longhaul_target::{Config, DhGroup, HashFunction, HostKey, Keys, Patience, Secret, Target};
use longhaul_wire::command::{Sgl, Sqe, admin, fctype};
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::auth::{Authentication, authreq};
use longhaul_wire::fabrics::{ConnectData, ConnectResponse, offset};
use longhaul_wire::pdu::IcReq;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uuid::Uuid;
use zerocopy::IntoBytes;

fn random(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut random = fastrand::Rng::with_seed(seed);
    move |bytes| random.fill(bytes)
}

fn key(seed: u64) -> HostKey {
    let secret = |seed| Secret::generate(HashFunction::Sha256, &mut random(seed));
    HostKey { secret: secret(seed), controller: Some(secret(seed + 1000)) }
}

fn target(change: impl FnOnce(&mut Config)) -> Target {
    let hosts = BTreeMap::from([(HOSTNQN.to_owned(), key(1)), (Name::other(2).hostnqn, key(2))]);
    let keys = Keys::new(Arc::new(hosts));
    let listen = vec!["127.0.0.1:0".parse().expect("address")];
    let mut config = Config { listen, threads: 2, keys: Some(keys), ..Config::default() };
    change(&mut config);
    let target = Target::start(config).expect("started");
    let device = BackendSpec::parse("mem:16MiB,block=4096").expect("understood").open().expect("opened");
    target.export(NQN, "disk", device, Uuid::from_u128(1)).expect("exported");
    target
}

/// Connects a queue: the connection, and what it requires.
fn connect(target: &Target, qid: u16, cntlid: u16, name: &Name) -> (Client, ConnectResponse) {
    let mut client = Client::open(target.addresses()[0], 0);
    let done = client.connect(&Sqe::connect(qid, 31, 0, 0), &name.connect_data(cntlid));
    assert_eq!(done.status, Status::SUCCESS);
    (client, ConnectResponse::from_dw0(done.result as u32))
}

fn send(client: &mut Client, message: &[u8]) -> Done {
    let sqe = Sqe::authentication(fctype::AUTHENTICATION_SEND, message.len() as u32);
    client.call(&sqe.with_sgl(Sgl::in_capsule(0, message.len() as u32)), message)
}

fn receive(client: &mut Client) -> Done {
    client.call(&Sqe::authentication(fctype::AUTHENTICATION_RECEIVE, 4096), &[])
}

/// An exchange of a host that has this key, and its first message.
fn begin(name: &Name, key: HostKey) -> (HostExchange, Vec<u8>) {
    let options = HostOptions {
        hostnqn: name.hostnqn.clone(),
        subnqn: NQN.into(),
        key,
        hashes: HashFunction::ALL.into(),
        groups: DhGroup::ALL.into(),
        secure_channel: SecureChannel::None,
    };
    HostExchange::begin(options, 7)
}

/// What the host's end of the exchange came to.
fn prove(client: &mut Client, name: &Name, key: HostKey) -> Result<(), Refused> {
    let (mut exchange, mut message) = begin(name, key);
    loop {
        assert_eq!(send(client, &message).status, Status::SUCCESS);
        let answer = receive(client);
        assert_eq!((answer.status, answer.data.len()), (Status::SUCCESS, 4096));
        match exchange.handle(&answer.data, &mut random(99)) {
            HostStep::Send(next) => message = next,
            HostStep::Done(last) => {
                if let Some(last) = last {
                    assert_eq!(send(client, &last).status, Status::SUCCESS);
                }
                return Ok(());
            }
            HostStep::Failed(why, _) => return Err(why),
        }
    }
}

fn required(client: &mut Client, sqe: &Sqe, data: &[u8]) {
    let done = client.call(sqe, data);
    assert!(done.status.is(Status::AUTHENTICATION_REQUIRED), "{sqe:?}: {}", done.status);
    assert!(done.data.is_empty());
}

//= test: NVMe Base 2.1, Authentication Required
#[test]
fn nothing_else_is_taken_before_the_proof() {
    let target = target(|_| {});
    let name = Name::default();
    let (mut queue, connected) = connect(&target, 0, 0xFFFF, &name);
    assert_eq!(connected.authreq, authreq::TRANSACTION);
    let all = (0..=0xFF_u8).filter(|opcode| ![admin::FABRICS].contains(opcode));
    for opcode in all.filter(|opcode| opcode & 1 == 0) {
        required(&mut queue, &Sqe::new(opcode).with_nsid(1).with_sgl(Sgl::transport(4096)), &[]);
    }
    for sqe in [
        Sqe::property_get(offset::CAP, true),
        Sqe::property_set(offset::CC, false, CC_ENABLE),
        Sqe::disconnect(),
    ] {
        required(&mut queue, &sqe, &[]);
    }
    assert_eq!(prove(&mut queue, &name, key(1)), Ok(()));
    queue.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    assert_eq!(queue.result(&Sqe::property_get(offset::CSTS, false)) & 1, 1, "ready");
}

/// The proof of the admin queue is none for an I/O queue.
#[test]
fn each_queue_has_to_be_proved() {
    let target = target(|_| {});
    let name = Name::default();
    let (mut queue, connected) = connect(&target, 0, 0xFFFF, &name);
    assert_eq!(prove(&mut queue, &name, key(1)), Ok(()));
    queue.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    let (mut io, of_io) = connect(&target, 1, connected.cntlid, &name);
    assert_eq!(of_io.authreq, authreq::TRANSACTION);
    let block = vec![0x5A; BLOCK];
    required(&mut io, &write(1, 0, BLOCK), &block);
    required(&mut io, &read(1, 0, BLOCK), &[]);
    // Another host cannot prove itself on it.
    assert_eq!(prove(&mut io, &Name::other(2), key(2)), Err(Refused::Failed));
    io.expect_end("a queue on which a host was refused");
    let (mut io, _) = connect(&target, 2, connected.cntlid, &name);
    assert_eq!(prove(&mut io, &name, key(1)), Ok(()));
    assert_eq!(io.call(&read(1, 0, BLOCK), &[]).data, vec![0; BLOCK], "the write had no effect");
    assert_eq!(io.call(&write(1, 0, BLOCK), &block).status, Status::SUCCESS);
    assert_eq!(io.call(&read(1, 0, BLOCK), &[]).data, block);
    // Once more, on a queue that is in use.
    assert_eq!(prove(&mut io, &name, key(1)), Ok(()));
    assert_eq!(io.call(&read(1, 0, BLOCK), &[]).data, block);
    assert_eq!(prove(&mut io, &name, key(3)), Err(Refused::Failed));
    io.expect_end("a queue on which a later proof was wrong");
}

#[test]
fn hosts_without_their_secret_are_refused() {
    let target = target(|_| {});
    for (name, key) in [
        (Name::default(), key(2)),
        // The name of another, with one's own secret.
        (Name::other(2), key(1)),
        // Half of it: the controller's answer is wrong for this host.
        (Name::default(), HostKey { controller: key(2).controller, ..key(1) }),
    ] {
        let (mut queue, _) = connect(&target, 0, 0xFFFF, &name);
        assert_eq!(prove(&mut queue, &name, key), Err(Refused::Failed));
    }
    let mut client = Client::open(target.addresses()[0], 0);
    let done = client.connect(&Sqe::connect(0, 31, 0, 0), &Name::other(3).connect_data(0xFFFF));
    assert!(done.status.is(Status::CONNECT_INVALID_HOST), "{}", done.status);
    client.expect_end("a host that is not known");
}

#[test]
fn a_queue_that_is_not_proved_in_time_ends() {
    let enable = Duration::from_millis(300);
    let target = target(|config| config.patience = Patience { enable, ..Patience::default() });
    let name = Name::default();
    let (mut queue, connected) = connect(&target, 0, 0xFFFF, &name);
    assert_eq!(prove(&mut queue, &name, key(1)), Ok(()));
    queue.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    let began = Instant::now();
    let (mut io, _) = connect(&target, 1, connected.cntlid, &name);
    io.expect_end("a queue without a proof");
    assert!(began.elapsed() >= enable);
    assert_eq!(queue.result(&Sqe::property_get(offset::CSTS, false)) & 1, 1, "the controller goes on");
}

#[test]
fn commands_and_messages_that_are_wrong_cost_themselves_or_the_queue() {
    let target = target(|_| {});
    let name = Name::default();
    let (mut queue, _) = connect(&target, 0, 0xFFFF, &name);
    let sent = Sqe::authentication(fctype::AUTHENTICATION_SEND, 72).with_sgl(Sgl::in_capsule(0, 72));
    let fields = |fields: Authentication| {
        let [cdw10, cdw11] = fields.dwords();
        sent.with_cdw(10, cdw10).with_cdw(11, cdw11)
    };
    let good = Authentication::with_length(72);
    for wrong in [
        Authentication { protocol: 0xE8, ..good },
        Authentication { specific: [1, 2], ..good },
        Authentication { specific: [0, 1], ..good },
        Authentication::with_length(71),
        Authentication::with_length(0),
        Authentication::with_length(u32::MAX),
    ] {
        let done = queue.call(&fields(wrong), &[0; 72]);
        assert!(done.status.is(Status::INVALID_FIELD), "{wrong:?}: {}", done.status);
    }
    let long = Sqe::authentication(fctype::AUTHENTICATION_RECEIVE, 4100);
    assert!(queue.call(&long, &[]).status.is(Status::INVALID_FIELD));
    assert!(receive(&mut queue).status.is(Status::SEQUENCE_ERROR), "nothing is due");
    // None of these is a message: the answer says so, and is the last.
    for message in [vec![0; 3], vec![9; 72], vec![1, 4, 0, 0, 7, 0, 0, 0]] {
        let (mut queue, _) = connect(&target, 0, 0xFFFF, &name);
        assert_eq!(send(&mut queue, &message).status, Status::SUCCESS);
        let answer = receive(&mut queue);
        assert_eq!(answer.data[..2], [0, 0xF1], "Failure1 to {message:?}");
        queue.expect_end("a queue with a message that is none");
    }
    assert_eq!(prove(&mut queue, &name, key(1)), Ok(()), "the first queue goes on");
}

/// Messages of exchanges that the target answers of an address at once, and in each second from then on
/// (docs/target-limits.md).
const BURST: usize = 512;
const RATE: usize = 50;

/// Begins an exchange with a secret that is not the host's, and goes on as far as it is answered; the number of
/// messages that were. `None`: it has no connection any more.
fn begin_in_vain(client: &mut Client, name: &Name, answered: &AtomicUsize) -> Option<()> {
    client.send(IcReq::new(0, 0, 0).as_bytes());
    client.recv()?;
    let connect = Sqe::connect(0, 31, 0, 0).with_sgl(Sgl::in_capsule(0, ConnectData::LEN as u32));
    let connect = client.capsule(&connect.with_cid(1), name.connect_data(0xFFFF).as_bytes());
    client.send(&connect);
    client.recv()?;
    let (_, message) = begin(name, key(3));
    let sqe = Sqe::authentication(fctype::AUTHENTICATION_SEND, message.len() as u32)
        .with_sgl(Sgl::in_capsule(0, message.len() as u32));
    // The same first message again and again: each begins the exchange anew.
    loop {
        let capsule = client.capsule(&sqe.with_cid(2), &message);
        client.send(&capsule);
        client.recv()?;
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Strangers that know a host's name ask for proofs without end. No more is answered than an address may ask for, and
/// other hosts are served meanwhile, and can authenticate.
#[test]
fn exchanges_without_end_leave_others_their_service() {
    const STRANGERS: usize = 4;
    /// Long enough for many more messages than an address may have, were there no limit.
    const FLOOD: Duration = Duration::from_secs(3);
    let target = target(|_| {});
    let host = Name::default();
    let (mut admin, connected) = connect(&target, 0, 0xFFFF, &host);
    assert_eq!(prove(&mut admin, &host, key(1)), Ok(()));
    admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
    let (mut queue, _) = connect(&target, 1, connected.cntlid, &host);
    assert_eq!(prove(&mut queue, &host, key(1)), Ok(()));
    let (over, answered, begun) = (AtomicBool::new(false), AtomicUsize::new(0), Instant::now());
    // The latest connection of each stranger, which may be waiting for its turn at the end.
    let streams: [Mutex<Option<std::net::TcpStream>>; STRANGERS] = Default::default();
    std::thread::scope(|scope| {
        for stream in &streams {
            let (over, answered, addr) = (&over, &answered, target.addresses()[0]);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let mut client = Client::tcp_from(STRANGER, addr).expect("the kernel takes it");
                    *stream.lock().expect("no panic") = Some(client.again().stream);
                    let _ = begin_in_vain(&mut client, &Name::other(2), answered);
                }
            });
        }
        let mut round = 0_u8;
        while answered.load(Ordering::Relaxed) < BURST || begun.elapsed() < FLOOD {
            assert!(begun.elapsed() < client::PATIENCE, "{answered:?} of {BURST} were answered");
            round = round.wrapping_add(1);
            let block = vec![round; BLOCK];
            assert_eq!(queue.call(&write(1, 7, BLOCK), &block).status, Status::SUCCESS);
            assert_eq!(queue.call(&read(1, 7, BLOCK), &[]).data, block);
            if round.is_multiple_of(8) {
                assert_eq!(prove(&mut queue, &host, key(1)), Ok(()), "round {round}");
            }
        }
        over.store(true, Ordering::Relaxed);
        for stream in &streams {
            let stream = stream.lock().expect("no panic");
            let _ = stream.as_ref().map(|stream| stream.shutdown(Shutdown::Both));
        }
    });
    let (answered, seconds) = (answered.into_inner(), begun.elapsed().as_secs_f64());
    let most = BURST + (RATE as f64 * (seconds + 1.0)) as usize + STRANGERS;
    assert!(answered <= most, "{answered} messages in {seconds:.1} s");
}
