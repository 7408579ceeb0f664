//! Both ends against another implementation: the `openssl` program.

#![cfg(feature = "s2n")]

use longhaul_auth::{Derivation, Generations, HashFunction, IdentityVersion, TlsKey, TlsPsk};
use longhaul_skip::skip;
use longhaul_tls::{Destination, Hello, Session, choose};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

const HOST: &str = "nqn.2014-08.org.example:host";
const SUBSYSTEM: &str = "nqn.2014-08.org.example:subsystem";
const LINE: &[u8] = b"a line that both ends should see\n";

fn key() -> TlsKey {
    let mut random = fastrand::Rng::with_seed(21);
    TlsKey::generate(HashFunction::Sha256, &mut |bytes| random.fill(bytes))
}

fn psk() -> TlsPsk {
    let (version, hash) = (IdentityVersion::V1, HashFunction::Sha256);
    key().psk(version, hash, HOST, SUBSYSTEM, Derivation::Standard).expect("derived")
}

/// `openssl`, ended with the test.
struct Openssl(Child);

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn openssl(verb: &str, more: &[&str]) -> Openssl {
    let psk = psk();
    let hex: String = psk.secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = Command::new("openssl")
        .args([verb, "-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256", "-quiet", "-psk", &hex])
        .args(["-psk_identity", &psk.identity])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    Openssl(child.expect("openssl"))
}

/// Goes through the handshake, and says and hears a line.
fn talk(session: &mut Session, stream: &mut TcpStream, first: Vec<u8>, peer: &mut Child) {
    let (mut input, mut output, mut buffer) = (first, Vec::new(), [0; 4096]);
    let rest = loop {
        let mut left = &input[..];
        let done = session.handshake(&mut left, &mut output).expect("a handshake");
        stream.write_all(&output).expect("sent");
        output.clear();
        if done {
            break left.to_vec();
        }
        let n = stream.read(&mut buffer).expect("received");
        assert!(n > 0, "the peer ended the connection");
        input = buffer[..n].to_vec();
    };
    session.seal(LINE, &mut output).expect("sealed");
    stream.write_all(&output).expect("sent");
    let mut heard = vec![0; LINE.len()];
    peer.stdout.as_mut().expect("piped").read_exact(&mut heard).expect("a line of the peer");
    assert_eq!(heard, LINE);
    peer.stdin.as_mut().expect("piped").write_all(LINE).expect("written");
    let (mut got, mut input) = (Vec::new(), rest);
    while got.len() < LINE.len() {
        let (mut left, mut plain) = (&input[..], [0; 256]);
        // Tickets of OpenSSL come before the line.
        let n = session.open(&mut left, &mut output, Destination::Bytes(&mut plain)).expect("opened");
        got.extend_from_slice(&plain[..n.expect("not ended")]);
        assert!(left.is_empty());
        if got.len() < LINE.len() {
            let n = stream.read(&mut buffer).expect("received");
            assert!(n > 0, "the peer ended the connection");
            input = buffer[..n].to_vec();
        }
    }
    assert_eq!(got, LINE);
}

fn is_missing() -> bool {
    Command::new("openssl").arg("version").output().is_err()
}

#[test]
fn a_host_talks_to_openssl() {
    if is_missing() {
        return skip!("openssl is not installed");
    }
    // A port that was free a moment ago; another process may have taken it since.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let mut peer = openssl("s_server", &["-nocert", "-accept", &format!("127.0.0.1:{port}")]);
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            // It reports nothing when it listens.
            Err(_) => assert!(peer.0.try_wait().expect("a child").is_none(), "openssl ended"),
        }
        std::thread::yield_now();
    };
    let mut session = Session::host(&[psk()]).expect("a session");
    talk(&mut session, &mut stream, Vec::new(), &mut peer.0);
    assert_eq!(session.suite(), "TLS_AES_128_GCM_SHA256");
}

#[test]
fn a_target_talks_to_openssl() {
    if is_missing() {
        return skip!("openssl is not installed");
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    let mut peer = openssl("s_client", &["-connect", &at]);
    let (mut stream, _) = listener.accept().expect("a connection");
    let (mut input, mut buffer) = (Vec::new(), [0; 4096]);
    let hello = loop {
        let n = stream.read(&mut buffer).expect("received");
        assert!(n > 0, "the peer ended the connection");
        input.extend_from_slice(&buffer[..n]);
        if let Some(hello) = Hello::parse(&input).expect("a ClientHello") {
            break hello;
        }
    };
    let chosen =
        choose(&hello, &BTreeMap::from([(HOST.to_owned(), Generations::from(key()))])).expect("a key");
    assert_eq!((chosen.hostnqn.as_str(), chosen.subnqn.as_str()), (HOST, SUBSYSTEM));
    let mut session = Session::target(&chosen.psk).expect("a session");
    talk(&mut session, &mut stream, input, &mut peer.0);
}
