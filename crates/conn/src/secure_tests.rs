//! Channels with TLS, on real sockets.

use super::*;
use crate::channel::{Channel, Incoming};
use longhaul_auth::{Derivation, Generations, HashFunction, IdentityVersion, TlsKey};
use longhaul_engine::net::{SocketOptions, TcpListener, TcpStream};
use longhaul_engine::{Buf, BufMut, Config, Engine, Memory, spawn};
use std::collections::BTreeMap;

const HOST: &str = "nqn.2014-08.org.example:host";
const SUBSYSTEM: &str = "nqn.2014-08.org.example:subsystem";

fn key(seed: u8) -> TlsKey {
    TlsKey::generate(HashFunction::Sha256, &mut |bytes| bytes.fill(seed))
}

/// The keys of a target that knows [`HOST`].
fn known(key: TlsKey) -> Arc<dyn KeySource> {
    Arc::new(BTreeMap::from([(HOST.to_owned(), Generations::from(key))]))
}

fn psks(key: &TlsKey, host: &str) -> Vec<TlsPsk> {
    let of = |version| key.psk(version, key.hash(), host, SUBSYSTEM, Derivation::Standard);
    [IdentityVersion::V1, IdentityVersion::V0].map(|version| of(version).expect("derived")).into()
}

async fn sockets() -> (Channel, Channel) {
    let options = SocketOptions::default();
    let listener = TcpListener::bind("127.0.0.1:0".parse().expect("address")).expect("bound");
    let addr = listener.local_addr().expect("an address");
    let host = TcpStream::connect(addr, &options).await.expect("connected");
    let (target, _) = listener.accept().await.expect("accepted");
    (host.into(), TcpStream::from_std(target, &options).expect("adopted").into())
}

/// The results of both ends.
async fn both(
    at_host: TlsKey,
    at_target: TlsKey,
    name: &'static str,
) -> (Result<Channel, SecureError>, Result<(Channel, Chosen), SecureError>) {
    let (host, target) = sockets().await;
    let keys = known(at_target);
    let accepting = spawn(async move {
        let (session, chosen) = accept(&target, Vec::new(), &keys, async {}).await?;
        Ok((target.with_session(session), chosen))
    });
    let session = connect(&host, &psks(&at_host, name)).await;
    (session.map(|session| host.with_session(session)), accepting.await)
}

#[test]
fn payload_is_decrypted_into_its_memory_and_the_rest_is_staged() {
    let engine = Engine::new(&Config::default()).expect("an engine");
    engine.block_on(async {
        let (host, target) = both(key(1), key(1), HOST).await;
        let (host, (target, chosen)) = (host.expect("connected"), target.expect("accepted"));
        assert_eq!((chosen.hostnqn.as_str(), chosen.subnqn.as_str()), (HOST, SUBSYSTEM));
        let data: Vec<u8> = (0..300_000u32).map(|at| ((at * 31) >> 5) as u8).collect();
        let sent = data.clone();
        let sending = spawn(async move {
            let secure = host.session().expect("a session");
            secure.borrow_mut().seal(b"header").expect("sealed");
            secure.borrow_mut().seal_segment(&Buf::copy_of(&sent).segment()).expect("sealed");
            secure.borrow_mut().seal(b"next header").expect("sealed");
            secure.borrow_mut().end();
            let sealed = secure.borrow_mut().take_sealed();
            assert!(!sealed.windows(6).any(|window| window == b"header"), "encrypted");
            host.send(message(sealed)).await.0.expect("sent");
            host
        });
        let mut incoming = Incoming::new(4096, &target);
        incoming.set_staging_limit(6);
        let mut header = Vec::new();
        while header.len() < 6 {
            incoming.set_staging_limit(6 - header.len());
            assert!(incoming.receive(&target).await.expect("received") > 0);
            header.extend_from_slice(incoming.staged());
        }
        assert_eq!(header, b"header");
        let (mut memory, mut at) = (Memory::Buf(BufMut::zeroed(data.len())), 0);
        let mut behind = Vec::new();
        while at < data.len() {
            incoming.set_direct(memory, at, data.len() - at);
            incoming.set_staging_limit(4096);
            let n = incoming.receive(&target).await.expect("received");
            let (back, placed) = incoming.take_direct().expect("memory");
            assert_eq!(n, placed + incoming.staged().len());
            behind.extend_from_slice(incoming.staged());
            (memory, at) = (back, at + placed);
        }
        assert!(memory.bytes().expect("bytes") == data);
        while incoming.receive(&target).await.expect("received") > 0 {
            behind.extend_from_slice(incoming.staged());
        }
        assert_eq!(behind, b"next header", "then the end of what the host sends");
        drop(sending.await);
    });
}

#[test]
fn each_end_says_why_there_is_no_connection() {
    let engine = Engine::new(&Config::default()).expect("an engine");
    engine.block_on(async {
        let (host, target) = both(key(1), key(2), HOST).await;
        assert!(matches!(host, Err(SecureError::Tls(TlsError::WrongKey))), "{host:?}");
        assert!(matches!(target, Err(SecureError::Refused(Refusal::WrongKey { .. }))), "{target:?}");
        let (host, target) = both(key(1), key(1), "nqn.2014-08.org.example:x").await;
        assert!(matches!(host, Err(SecureError::Tls(TlsError::UnknownIdentity))), "{host:?}");
        assert!(matches!(target, Err(SecureError::Refused(Refusal::UnknownHost { .. }))), "{target:?}");
        // A host without TLS.
        let (host, target) = sockets().await;
        send(&host, vec![0, 0, 128, 0, 128, 0, 0, 0]).await.expect("sent");
        let keys = known(key(1));
        let refused = accept(&target, Vec::new(), &keys, async {}).await;
        assert!(matches!(refused, Err(SecureError::Hello(HelloError::PlainNvme))), "{refused:?}");
        // A target without TLS, which takes the first message for a malformed PDU.
        let (host, target) = sockets().await;
        send(&target, vec![3, 0, 24, 0, 24, 0, 0, 0]).await.expect("sent");
        let refused = connect(&host, &psks(&key(1), HOST)).await;
        assert!(matches!(refused, Err(SecureError::Tls(TlsError::NotTls))), "{refused:?}");
    });
}

/// The peer of an established channel that sends these bytes behind its handshake, and closes the socket.
async fn after_the_end(last: impl FnOnce(&mut Secure) -> Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
    let (host, target) = both(key(1), key(1), HOST).await;
    let (host, (target, _)) = (host.expect("connected"), target.expect("accepted"));
    let bytes = last(&mut host.session().expect("a session").borrow_mut());
    send(&host, bytes).await.expect("sent");
    host.shutdown(std::net::Shutdown::Write).expect("shut down");
    let (mut incoming, mut all) = (Incoming::new(4096, &target), Vec::new());
    loop {
        match incoming.receive(&target).await {
            Ok(1..) => all.extend_from_slice(incoming.staged()),
            end => return (end, all),
        }
    }
}

#[test]
fn a_stream_that_is_cut_is_an_error_and_one_that_is_ended_is_not() {
    let engine = Engine::new(&Config::default()).expect("an engine");
    engine.block_on(async {
        let sealed = |secure: &mut Secure| {
            secure.seal(&[7; 100]).expect("sealed");
            secure.take_sealed()
        };
        let (end, data) = after_the_end(|secure| {
            secure.seal(&[7; 100]).expect("sealed");
            secure.end();
            secure.take_sealed()
        })
        .await;
        assert!(matches!(end, Ok(0)) && data == [7; 100], "{end:?}");
        // Between two records, within one, and before all of them.
        for len in [usize::MAX, 60, 0] {
            let (end, data) = after_the_end(|secure| {
                let mut bytes = sealed(secure);
                bytes.truncate(len);
                bytes
            })
            .await;
            let e = end.expect_err("cut");
            assert!(
                e.kind() == io::ErrorKind::UnexpectedEof && e.to_string().contains("close_notify"),
                "{e}"
            );
            assert_eq!(data.len(), if len == usize::MAX { 100 } else { 0 });
        }
    });
}

#[test]
fn a_changed_record_is_an_error_and_brings_nothing() {
    let engine = Engine::new(&Config::default()).expect("an engine");
    engine.block_on(async {
        let (end, data) = after_the_end(|secure| {
            secure.seal(&[7; 100]).expect("sealed");
            let mut bytes = secure.take_sealed();
            bytes[50] ^= 1;
            secure.end();
            bytes.extend(secure.take_sealed());
            bytes
        })
        .await;
        assert!(end.is_err_and(|e| e.kind() == io::ErrorKind::InvalidData) && data.is_empty());
    });
}

/// Answers of the library are records of the same sequence as data.
#[test]
fn what_is_sealed_while_other_records_are_sent_is_not_lost() {
    let engine = Engine::new(&Config::default()).expect("an engine");
    engine.block_on(async {
        let (end, data) = after_the_end(|secure| {
            secure.seal(b"first").expect("sealed");
            let mut bytes = secure.take_sealed();
            secure.seal(b"second").expect("sealed");
            secure.give_back(bytes.clone());
            secure.end();
            bytes.extend(secure.take_sealed());
            bytes
        })
        .await;
        assert!(matches!(end, Ok(0)) && data == b"firstsecond", "{end:?}");
    });
}
