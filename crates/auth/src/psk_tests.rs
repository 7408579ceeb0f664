//! Keys and derivations against values that other implementations have published.

use super::*;
use crate::testing::random;

/// The example of NVMe-TCP 1.1, "PSK Interchange Format".
const EXAMPLE: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
/// Of 48 bytes, from libnvme's tests.
const LONG: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn digest_of(key: &TlsKey, derivation: Derivation) -> String {
    let psk = key.psk(IdentityVersion::V1, key.hash(), HOST, SUBSYSTEM, derivation).unwrap();
    psk.identity.rsplit_once(' ').unwrap().1.to_owned()
}

#[test]
//= test: NVMe-TCP 1.1, PSK Interchange Format
fn the_example_of_the_specification_is_read_and_written() {
    let key: TlsKey = EXAMPLE.parse().unwrap();
    assert_eq!(*key.bytes, hex("5512DBB6737D0106F65975B773DFB011FFC344BCF442E2DD6D8BC4870B5D5B03"));
    assert_eq!((*key.reveal()).as_str(), EXAMPLE);
    for text in [EXAMPLE.replace(":01:", ":00:"), LONG.to_owned()] {
        assert_eq!(*text.parse::<TlsKey>().unwrap().reveal(), text);
    }
    for hash in [HashFunction::Sha256, HashFunction::Sha384] {
        let made = TlsKey::generate(hash, &mut random(3));
        assert_eq!(format!("{}\n", *made.reveal()).parse::<TlsKey>(), Ok(made.clone()), "a line of a file");
        assert_eq!((made.hash(), format!("{made:?}").as_str()), (hash, "TlsKey"));
        assert_ne!(TlsKey::generate(hash, &mut random(4)), made);
    }
}

/// libnvme 1.16, `test/psk.c`: digests of retained PSKs, in both derivations.
#[test]
//= test: NVMe-TCP 1.1, TLS PSK and PSK Identity Derivation
fn identities_are_those_of_libnvme() {
    let (short, long): (TlsKey, TlsKey) = (EXAMPLE.parse().unwrap(), LONG.parse().unwrap());
    assert_eq!(digest_of(&short, Derivation::Standard), "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=");
    assert_eq!(digest_of(&short, Derivation::Legacy), "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=");
    assert_eq!(
        digest_of(&long, Derivation::Standard),
        "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a"
    );
    assert_eq!(
        digest_of(&long, Derivation::Legacy),
        "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz"
    );
    let whole = short.psk(IdentityVersion::V1, short.hash(), HOST, SUBSYSTEM, Derivation::Standard).unwrap();
    assert_eq!(
        whole.identity,
        "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="
    );
    let first = long.psk(IdentityVersion::V0, long.hash(), HOST, SUBSYSTEM, Derivation::Standard).unwrap();
    assert_eq!(first.identity, "NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys");
}

/// Linux, `drivers/nvme/common/tests/auth_kunit.c`: PSKs that are retained ones as they are.
#[test]
//= test: NVMe-TCP 1.1, TLS PSK and PSK Identity Derivation
fn tls_psks_are_those_of_linux() {
    for (retained, digest, expected) in [
        (
            "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
            "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
            "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
        ),
    ] {
        let key = TlsKey { bytes: Zeroizing::new(hex(retained)), hash: None };
        let of = |version, derivation| key.psk(version, key.hash(), "hostnqn", "subsysnqn", derivation);
        let psk = of(IdentityVersion::V1, Derivation::Standard).unwrap();
        assert!(psk.identity.ends_with(&format!("hostnqn subsysnqn {digest}")), "{}", psk.identity);
        assert_eq!(*psk.secret, hex(expected));
        let legacy = of(IdentityVersion::V1, Derivation::Legacy).unwrap();
        assert_eq!(legacy.identity, psk.identity, "the retained PSK is not derived");
        assert_ne!(legacy.secret, psk.secret);
        assert_ne!(of(IdentityVersion::V0, Derivation::Standard).unwrap().secret, psk.secret);
    }
}

/// Retained ones as they are, so that each derivation differs in the second step alone.
#[test]
fn each_derivation_gives_another_psk() {
    let key = TlsKey { bytes: Zeroizing::new(vec![7; 32]), hash: None };
    for (version, equal) in [(IdentityVersion::V0, 1), (IdentityVersion::V1, 0)] {
        let all = [Derivation::USED, Derivation::NAMED].concat();
        let of = |derivation| key.psk(version, key.hash(), "hostnqn", "subsysnqn", derivation).unwrap();
        let psks: Vec<_> = all.into_iter().map(of).collect();
        assert!(psks.iter().all(|psk| psk.identity == psks[0].identity));
        let different: std::collections::BTreeSet<_> = psks.iter().map(|psk| psk.secret.to_vec()).collect();
        // Of version 0 libnvme before 1.10 does as that before 1.16.
        assert_eq!(different.len() + equal, psks.len(), "{version:?}");
    }
}

#[test]
fn each_wrong_field_is_named() {
    let wrong = |text: &str| text.parse::<TlsKey>().unwrap_err();
    assert_eq!(wrong(""), TlsKeyError::Prefix);
    assert_eq!(wrong("NVMeTLSkey-2:01:AAAA:"), TlsKeyError::Prefix);
    assert_eq!(wrong("DHHC-1:01:AAAA:"), TlsKeyError::Chap);
    assert_eq!(wrong(&EXAMPLE.replace(":01:", ":03:")), TlsKeyError::Hash);
    assert_eq!(wrong(&EXAMPLE.replace(":01:", ":1:")), TlsKeyError::Hash);
    assert_eq!(wrong(&EXAMPLE[..EXAMPLE.len() - 1]), TlsKeyError::End);
    assert_eq!(wrong("NVMeTLSkey-1:01"), TlsKeyError::End);
    assert_eq!(wrong("NVMeTLSkey-1:01:!!!!:"), TlsKeyError::Base64);
    assert_eq!(wrong("NVMeTLSkey-1:01:AAAA:"), TlsKeyError::Length(0));
    assert_eq!(wrong(&EXAMPLE.replace("VRL", "VRM")), TlsKeyError::Crc);
    for cut in 0..EXAMPLE.len() {
        let said = wrong(&EXAMPLE[..cut]).to_string();
        assert!(cut < 20 || !said.contains(&EXAMPLE[16..20]), "the key is shown: {said}");
    }
}

#[test]
fn names_that_do_not_fit_are_refused() {
    let key: TlsKey = EXAMPLE.parse().unwrap();
    let long = "n".repeat(200);
    let psk = |version, hash, host: &str| key.psk(version, hash, host, &long, Derivation::Standard);
    let sha = HashFunction::Sha256;
    assert_eq!(psk(IdentityVersion::V0, sha, &long).unwrap_err(), DeriveError::TooLong(410));
    assert!(psk(IdentityVersion::V1, sha, &long).is_ok(), "the digest stands for the names");
    assert!(psk(IdentityVersion::V1, sha, &"n".repeat(256)).is_err());
    assert_eq!(
        psk(IdentityVersion::V1, HashFunction::Sha512, HOST).unwrap_err(),
        DeriveError::Hash("SHA-512")
    );
    assert_eq!(psk(IdentityVersion::V1, HashFunction::Sha384, HOST).unwrap().secret.len(), 48, "any key");
}

#[test]
fn identities_are_taken_apart() {
    let key: TlsKey = LONG.parse().unwrap();
    for version in [IdentityVersion::V0, IdentityVersion::V1] {
        for hash in [HashFunction::Sha256, HashFunction::Sha384] {
            let psk = key.psk(version, hash, HOST, SUBSYSTEM, Derivation::Standard).unwrap();
            let is =
                Identity { kind: IdentityKind::Retained, version, hash, hostnqn: HOST, subnqn: SUBSYSTEM };
            assert_eq!(Identity::parse(psk.identity.as_bytes()), Some(is));
        }
    }
    for other in [
        "",
        "NVMe0R01",
        "NVMe0R01 host",
        "NVMe0R01 host ",
        "NVMe0R01 host sub digest",
        "NVMe1R01 host sub",
        "NVMe1R01 host sub ",
        "NVMe1R01 host sub digest more",
        "NVMe0R03 host sub",
        "NVMe0G01 host sub",
        "NVMe2R01 host sub digest",
        "alice",
    ] {
        assert_eq!(Identity::parse(other.as_bytes()), None, "{other}");
    }
    assert_eq!(Identity::parse(b"NVMe0R01 \xff sub"), None);
}

/// Linux 7.1, `drivers/nvme/common/tests/auth_kunit.c`: what its two ends make of a session key and two challenges.
#[test]
//= test: NVMe Base 2.1, Generated PSK for TLS
//= test: NVMe-TCP 1.1, TLS PSK and PSK Identity Derivation
fn generated_psks_are_those_of_linux() {
    for (hash, generated, digest, secret) in [
        (
            HashFunction::Sha256,
            "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
            "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            HashFunction::Sha384,
            "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
            "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
        ),
    ] {
        let count = |from: u8| (from..=u8::MAX).take(hash.digest_len()).collect::<Vec<u8>>();
        let second: Vec<u8> = (0..=u8::MAX).rev().take(hash.digest_len()).collect();
        let psk = GeneratedPsk::of_session(hash, &count(b'A'), &count(0), &second);
        assert_eq!(*psk.bytes, hex(generated));
        let tls = psk.psk("hostnqn", "subsysnqn").unwrap();
        assert_eq!(tls.identity, format!("NVMe1G{:02} hostnqn subsysnqn {digest}", hash.code()));
        assert_eq!((&*tls.secret, tls.hash), (&hex(secret), hash));
        assert_eq!(format!("{psk:?}"), "GeneratedPsk");
        let identity = Identity::parse(tls.identity.as_bytes()).unwrap();
        assert_eq!((identity.kind, identity.hostnqn), (IdentityKind::Generated, "hostnqn"));
    }
}

#[test]
fn a_generated_psk_of_a_hash_function_without_a_cipher_suite_is_none() {
    let psk = GeneratedPsk::of_session(HashFunction::Sha512, &[1; 64], &[2; 64], &[3; 64]);
    assert!(matches!(psk.psk(HOST, SUBSYSTEM), Err(DeriveError::Hash("SHA-512"))));
}
