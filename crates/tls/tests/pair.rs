//! Both ends against each other, in memory.

#![cfg(feature = "s2n")]

use longhaul_auth::{Derivation, Generations, HashFunction, IdentityVersion, TlsKey, TlsPsk};
use longhaul_engine::{Buf, BufMut, Memory};
use longhaul_tls::{
    Chosen, Destination, Hello, HelloError, Refusal, Session, TlsError, alert_record, choose,
};
use std::collections::BTreeMap;

const HOST: &str = "nqn.2014-08.org.example:host";
const SUBSYSTEM: &str = "nqn.2014-08.org.example:subsystem";

type Keys = BTreeMap<String, Generations<TlsKey>>;

fn key(seed: u64, hash: HashFunction) -> TlsKey {
    let mut random = fastrand::Rng::with_seed(seed);
    TlsKey::generate(hash, &mut |bytes| random.fill(bytes))
}

fn known(key: &TlsKey) -> Keys {
    [(HOST.to_owned(), key.clone().into())].into()
}

fn psk(key: &TlsKey, version: IdentityVersion, derivation: Derivation) -> TlsPsk {
    key.psk(version, key.hash(), HOST, SUBSYSTEM, derivation).expect("derived")
}

fn both(key: &TlsKey) -> Vec<TlsPsk> {
    [IdentityVersion::V1, IdentityVersion::V0].map(|version| psk(key, version, Derivation::Standard)).into()
}

/// The first message of a host that offers these.
fn hello_of(psks: &[TlsPsk]) -> (Session, Vec<u8>) {
    let mut host = Session::host(psks).expect("a session");
    let mut hello = Vec::new();
    assert_eq!(host.handshake(&mut &[][..], &mut hello), Ok(false));
    (host, hello)
}

fn chosen(hello: &[u8], keys: &Keys) -> Result<Chosen, Refusal> {
    choose(&Hello::parse(hello).expect("a ClientHello").expect("complete"), keys)
}

/// Ends whose handshake is done.
fn pair(key: &TlsKey) -> (Session, Session) {
    let (mut host, hello) = hello_of(&both(key));
    let chosen = chosen(&hello, &known(key)).expect("a key");
    assert_eq!((chosen.hostnqn.as_str(), chosen.subnqn.as_str(), chosen.generation), (HOST, SUBSYSTEM, 1));
    let mut target = Session::target(&chosen.psk).expect("a session");
    let mut flight = Vec::new();
    assert_eq!(target.handshake(&mut &hello[..], &mut flight), Ok(false));
    let mut answer = Vec::new();
    assert_eq!(host.handshake(&mut &flight[..], &mut answer), Ok(true));
    assert_eq!(target.handshake(&mut &answer[..], &mut flight), Ok(true));
    (host, target)
}

fn open(at: &mut Session, records: &[u8], most: usize) -> Result<Option<Vec<u8>>, TlsError> {
    let (mut plain, mut input) = (vec![0; most], records);
    let n = at.open(&mut input, &mut Vec::new(), Destination::Bytes(&mut plain))?;
    Ok(n.map(|n| plain[..n].to_vec()))
}

#[test]
fn both_suites_carry_data_in_both_directions() {
    for (hash, suite) in
        [(HashFunction::Sha256, "TLS_AES_128_GCM_SHA256"), (HashFunction::Sha384, "TLS_AES_256_GCM_SHA384")]
    {
        let (mut host, mut target) = pair(&key(1, hash));
        assert_eq!((host.suite(), target.suite()), (suite, suite));
        assert!(host.identity().expect("an identity").starts_with(b"NVMe1R0"), "the preferred one");
        assert_eq!(host.identity(), target.identity());
        let data: Vec<u8> = (0..100_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let mut records = Vec::new();
        host.seal(&data, &mut records).expect("sealed");
        assert!(records.len() > data.len() && records.len() < data.len() + 40 * 8, "{}", records.len());
        assert!(!records.windows(32).any(|window| window == &data[1000..1032]), "encrypted");
        assert_eq!(open(&mut target, &records, 200_000), Ok(Some(data.clone())));
        records.clear();
        target.seal_segment(&Buf::copy_of(&data).segment(), &mut records).expect("sealed");
        let mut memory = Memory::Buf(BufMut::zeroed(data.len() + 20));
        let to = Destination::Memory(&mut memory, 10, data.len());
        assert_eq!(host.open(&mut &records[..], &mut Vec::new(), to), Ok(Some(data.len())));
        assert_eq!(memory.bytes().expect("bytes")[10..data.len() + 10], data);
    }
}

#[test]
fn records_may_come_in_any_pieces() {
    let (mut host, mut target) = pair(&key(2, HashFunction::Sha256));
    let data: Vec<u8> = (0..40_000u32).map(|i| i as u8).collect();
    let mut records = Vec::new();
    host.seal(&data, &mut records).expect("sealed");
    host.end(&mut records);
    let mut got = Vec::new();
    for piece in records.chunks(777) {
        let mut input = piece;
        loop {
            let mut plain = [0; 1000];
            match target.open(&mut input, &mut Vec::new(), Destination::Bytes(&mut plain)).expect("opened") {
                Some(0) => break,
                Some(n) => got.extend_from_slice(&plain[..n]),
                None => {
                    assert_eq!(got, data);
                    return;
                }
            }
        }
        assert!(input.is_empty(), "all of a piece is taken before more is asked for");
    }
    panic!("the end of the host's side was not seen");
}

#[test]
fn a_wrong_key_and_an_unknown_host_are_named() {
    let right = key(3, HashFunction::Sha256);
    let (_, hello) = hello_of(&both(&key(4, HashFunction::Sha256)));
    let refusal = chosen(&hello, &known(&right)).expect_err("another key");
    assert!(matches!(&refusal, Refusal::WrongKey { hostnqn, .. } if hostnqn == HOST), "{refusal}");
    let refusal = chosen(&hello, &Keys::default()).expect_err("no key");
    assert!(matches!(&refusal, Refusal::UnknownHost { hostnqn, .. } if hostnqn == HOST), "{refusal}");
    // What the target answers is what the host says then.
    for (keys, says) in [(known(&right), TlsError::WrongKey), (Keys::default(), TlsError::UnknownIdentity)] {
        let (mut host, hello) = hello_of(&both(&key(4, HashFunction::Sha256)));
        let refusal = chosen(&hello, &keys).expect_err("refused");
        let answer = alert_record(refusal.alert());
        assert_eq!(host.handshake(&mut &answer[..], &mut Vec::new()), Err(says));
        assert_eq!(host.handshake(&mut &answer[..], &mut Vec::new()), Err(TlsError::Ended));
    }
    let mut other = psk(&right, IdentityVersion::V0, Derivation::Standard);
    other.identity = "alice".into();
    let (_, hello) = hello_of(&[other]);
    assert_eq!(chosen(&hello, &known(&right)).expect_err("no NVMe"), Refusal::NotNvme("alice".into()));
}

/// Hosts with libnvme before 1.16 are those of most distributions.
#[test]
fn a_host_that_derives_as_old_libnvme_gets_in() {
    let right = key(5, HashFunction::Sha256);
    for derivation in Derivation::USED {
        for version in [IdentityVersion::V0, IdentityVersion::V1] {
            let (mut host, hello) = hello_of(&[psk(&right, version, derivation)]);
            let chosen = chosen(&hello, &known(&right)).expect("a key");
            assert_eq!(chosen.derivation, derivation);
            let (mut target, mut flight) = (Session::target(&chosen.psk).expect("a session"), Vec::new());
            target.handshake(&mut &hello[..], &mut flight).expect("goes on");
            assert_eq!(host.handshake(&mut &flight[..], &mut Vec::new()), Ok(true));
        }
        let (_, hello) = hello_of(&[psk(&key(6, HashFunction::Sha256), IdentityVersion::V1, derivation)]);
        assert!(matches!(chosen(&hello, &known(&right)), Err(Refusal::WrongKey { .. })));
    }
}

#[test]
fn a_derivation_of_older_libnvme_is_named() {
    let right = key(5, HashFunction::Sha256);
    for (version, derivation) in
        [(IdentityVersion::V1, Derivation::Early), (IdentityVersion::V0, Derivation::First)]
    {
        let (_, hello) = hello_of(&[psk(&right, version, derivation)]);
        let refusal = chosen(&hello, &known(&right)).expect_err("another derivation");
        assert!(
            matches!(&refusal, Refusal::OtherDerivation { derivation: named, .. } if *named == derivation)
        );
    }
}

/// GnuTLS before it could be told the hash function of a key proves every key with SHA-256.
#[test]
fn a_proof_with_the_wrong_hash_function_is_named() {
    let right = key(5, HashFunction::Sha384);
    for derivation in Derivation::USED {
        let of = |key: &TlsKey| {
            let psk = psk(key, IdentityVersion::V1, derivation);
            hello_of(&[TlsPsk { hash: HashFunction::Sha256, ..psk }]).1
        };
        let refusal = chosen(&of(&right), &known(&right)).expect_err("another hash function");
        assert!(matches!(refusal, Refusal::OtherHash { .. }), "{refusal}");
        let said = refusal.to_string();
        assert!(said.contains("of SHA-384") && said.contains("with SHA-256"), "{said}");
        let other = chosen(&of(&key(7, HashFunction::Sha384)), &known(&right)).expect_err("another key");
        assert!(matches!(other, Refusal::WrongKey { .. }), "{other}");
    }
}

#[test]
fn a_rotated_key_is_taken_until_it_is_retired() {
    let [first, second, third] = [6, 7, 8].map(|seed| key(seed, HashFunction::Sha256));
    let (previous, retired) = (Some(second.clone()), Some(first.clone()));
    let keys = Keys::from([(HOST.to_owned(), Generations { number: 3, current: third, previous, retired })]);
    let (_, hello) = hello_of(&both(&second));
    assert_eq!(chosen(&hello, &keys).expect("accepted").generation, 2);
    let (_, hello) = hello_of(&both(&first));
    let refusal = chosen(&hello, &keys).expect_err("retired");
    assert!(matches!(refusal, Refusal::Retired { generation: 1, .. }), "{refusal}");
}

/// The library finds a wrong binder too, should this crate choose by the name alone.
#[test]
fn a_handshake_needs_the_key() {
    let (_, hello) =
        hello_of(&[psk(&key(9, HashFunction::Sha256), IdentityVersion::V0, Derivation::Standard)]);
    let other = psk(&key(10, HashFunction::Sha256), IdentityVersion::V0, Derivation::Standard);
    let mut target = Session::target(&other).expect("a session");
    target.handshake(&mut &hello[..], &mut Vec::new()).expect_err("another key");
    // Nor does a target get in that does not know the key.
    let (mut host, hello) = hello_of(std::slice::from_ref(&other));
    let mut target = Session::target(&other).expect("a session");
    let mut flight = Vec::new();
    target.handshake(&mut &hello[..], &mut flight).expect("goes on");
    let at = flight.len() - 10;
    flight[at] ^= 1;
    host.handshake(&mut &flight[..], &mut Vec::new()).expect_err("changed");
}

#[test]
fn a_changed_record_ends_the_connection() {
    for at in [5, 100, 16_000, 17_000] {
        let (mut host, mut target) = pair(&key(11, HashFunction::Sha256));
        let mut records = Vec::new();
        host.seal(&[7; 20_000], &mut records).expect("sealed");
        records[at] ^= 0x10;
        let mut plain = vec![0; 20_000];
        let mut input = &records[..];
        let end = loop {
            match target.open(&mut input, &mut Vec::new(), Destination::Bytes(&mut plain)) {
                Ok(Some(1..)) => {}
                end => break end,
            }
        };
        assert_eq!(end, Err(TlsError::Record), "byte {at}");
        assert_eq!(open(&mut target, &records, 10), Err(TlsError::Ended));
        assert_eq!(target.seal(b"x", &mut Vec::new()), Err(TlsError::Ended));
    }
}

#[test]
fn records_are_not_taken_twice_nor_out_of_order() {
    let (mut host, mut target) = pair(&key(12, HashFunction::Sha256));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    host.seal(b"first", &mut first).expect("sealed");
    host.seal(b"second", &mut second).expect("sealed");
    assert_eq!(open(&mut target, &first, 100), Ok(Some(b"first".to_vec())));
    assert_eq!(open(&mut target, &first, 100), Err(TlsError::Record), "the same again");
    let (mut host, mut target) = pair(&key(12, HashFunction::Sha256));
    host.seal(b"first", &mut Vec::new()).expect("sealed");
    second.clear();
    host.seal(b"second", &mut second).expect("sealed");
    assert_eq!(open(&mut target, &second, 100), Err(TlsError::Record), "the first was left out");
}

#[test]
fn a_handshake_that_is_cut_waits_and_opens_nothing() {
    let key = key(13, HashFunction::Sha256);
    let (mut host, hello) = hello_of(&both(&key));
    for cut in 0..hello.len() {
        assert!(Hello::parse(&hello[..cut]).expect("so far").is_none());
    }
    let psk = chosen(&hello, &known(&key)).expect("a key").psk;
    let mut target = Session::target(&psk).expect("a session");
    let mut flight = Vec::new();
    for byte in &hello {
        assert_eq!(target.handshake(&mut &[*byte][..], &mut flight), Ok(false));
    }
    let mut answer = Vec::new();
    let (last, all_but) = flight.split_last().expect("a flight");
    assert_eq!(host.handshake(&mut &all_but[..], &mut answer), Ok(false));
    assert_eq!(host.seal(b"early", &mut Vec::new()), Err(TlsError::Ended), "nothing before it is done");
    drop((last, target));
}

/// A recorded handshake gives an attacker nothing: the target draws its part anew.
#[test]
fn a_replayed_handshake_is_refused() {
    let key = key(14, HashFunction::Sha256);
    let (mut host, hello) = hello_of(&both(&key));
    let psk = chosen(&hello, &known(&key)).expect("a key").psk;
    let (mut first, mut flight, mut answer) =
        (Session::target(&psk).expect("a session"), Vec::new(), Vec::new());
    first.handshake(&mut &hello[..], &mut flight).expect("goes on");
    host.handshake(&mut &flight[..], &mut answer).expect("done");
    let mut data = Vec::new();
    host.seal(b"a write", &mut data).expect("sealed");
    let (mut again, mut other) = (Session::target(&psk).expect("a session"), Vec::new());
    assert_eq!(again.handshake(&mut &hello[..], &mut other), Ok(false));
    assert_ne!(flight, other);
    let replayed = [answer, data].concat();
    again.handshake(&mut &replayed[..], &mut Vec::new()).expect_err("the answer was to another flight");
}

#[test]
fn a_peer_without_tls_and_an_older_version_are_named() {
    let icreq = [0, 0, 128, 0, 128, 0, 0, 0];
    assert_eq!(Hello::parse(&icreq).expect_err("plain"), HelloError::PlainNvme);
    let (mut host, _) = hello_of(&both(&key(15, HashFunction::Sha256)));
    // TermReq of a target.
    assert_eq!(host.handshake(&mut &[3, 0, 24, 0][..], &mut Vec::new()), Err(TlsError::NotTls));
    // A host does not go on with TLS 1.2: a ServerHello without supported_versions.
    let (mut host, _) = hello_of(&both(&key(15, HashFunction::Sha256)));
    let hello = [&[3, 3][..], &[5; 32], &[0], &[0xc0, 0x2f], &[0]].concat();
    let message = [&[2, 0, 0, hello.len() as u8][..], &hello].concat();
    let record = [&[22, 3, 3, 0, message.len() as u8][..], &message].concat();
    host.handshake(&mut &record[..], &mut Vec::new()).expect_err("TLS 1.2");
}
