//! What a peer can do that a [`Session`](crate::Session) cannot.

use super::*;
use longhaul_auth::{Derivation, IdentityVersion, TlsKey};

fn psk() -> TlsPsk {
    let key = TlsKey::generate(HashFunction::Sha256, &mut |bytes| bytes.fill(5));
    let (host, subsystem) = ("nqn.2014-08.org.example:host", "nqn.2014-08.org.example:subsystem");
    key.psk(IdentityVersion::V1, key.hash(), host, subsystem, Derivation::Standard).expect("derived")
}

/// Both ends, with the host's first message.
fn begun(change: impl FnOnce(*mut s2n_psk) -> Result<(), Failed>) -> (Connection, Connection) {
    let mut host = Connection::new(true).expect("a host");
    host.add_changed(&psk(), change).expect("a key");
    let mut target = Connection::new(false).expect("a target");
    target.add(&psk()).expect("a key");
    (host, target)
}

/// Ends whose handshake is done.
fn pair() -> (Connection, Connection) {
    let (mut host, mut target) = begun(|_| Ok(()));
    let (mut hello, mut flight, mut answer) = (Vec::new(), Vec::new(), Vec::new());
    assert_eq!(host.negotiate(&mut &[][..], &mut hello), Err(Failed::Blocked));
    assert_eq!(target.negotiate(&mut &hello[..], &mut flight), Err(Failed::Blocked));
    assert_eq!(host.negotiate(&mut &flight[..], &mut answer), Ok(()));
    assert_eq!(target.negotiate(&mut &answer[..], &mut Vec::new()), Ok(()));
    for end in [&mut host, &mut target] {
        assert_eq!(end.end_handshake(), Ok(()));
    }
    (host, target)
}

fn open(at: &mut Connection, records: &[u8]) -> Result<Vec<u8>, Failed> {
    let mut plain = vec![0; 1000];
    let (n, _) = at.receive(&mut &records[..], &mut Vec::new(), Destination::Bytes(&mut plain))?;
    Ok(plain[..n].to_vec())
}

/// Early data could be sent again by an attacker that has recorded it, and it would be a write.
#[test]
fn a_target_takes_no_early_data() {
    const EARLY: &[u8] = b"a write before the proof";
    let (mut host, mut target) = begun(|key| {
        // SAFETY: a valid key.
        check(unsafe { s2n_psk_configure_early_data(key, 1 << 14, 0x13, 0x01) })
    });
    let (mut hello, mut flight) = (Vec::new(), Vec::new());
    let (mut sent, mut blocked) = (0, 0);
    let waits = host.with(&mut &[][..], &mut hello, |raw| {
        let (from, len) = (EARLY.as_ptr(), EARLY.len() as isize);
        // SAFETY: a valid connection, and bytes that live longer.
        check(unsafe { s2n_send_early_data(raw, from, len, &raw mut sent, &raw mut blocked) })
    });
    assert_eq!((waits, sent), (Err(Failed::Blocked), EARLY.len() as isize), "the host has sent it");
    let end = target.negotiate(&mut &hello[..], &mut flight);
    let (mut status, mut plain) = (s2n_early_data_status_t::OK, [0u8; 64]);
    // SAFETY: a valid connection, and a valid address.
    check(unsafe { s2n_connection_get_early_data_status(target.raw.as_ptr(), &raw mut status) })
        .expect("known");
    assert_eq!(status, s2n_early_data_status_t::REJECTED, "{end:?}");
    let to = Destination::Bytes(&mut plain);
    assert!(!matches!(target.receive(&mut &[][..], &mut Vec::new(), to), Ok((1.., _))));
    assert_eq!(plain, [0; 64]);
}

/// Each end may change the key that it sends with at any time, and the library does after many records.
#[test]
fn keys_of_a_connection_are_updated_in_both_directions() {
    let (mut host, mut target) = pair();
    for n in 0..4u8 {
        let (from, to) = if n % 2 == 0 { (&mut host, &mut target) } else { (&mut target, &mut host) };
        let kind = s2n_peer_key_update::KEY_UPDATE_NOT_REQUESTED;
        // SAFETY: a valid connection.
        check(unsafe { s2n_connection_request_key_update(from.raw.as_ptr(), kind) }).expect("asked");
        let (mut records, mut back) = (Vec::new(), Vec::new());
        from.send_bytes(&[n; 100], &mut records).expect("sealed");
        assert_eq!(open(to, &records), Ok(vec![n; 100]));
        to.send_bytes(&[n; 50], &mut back).expect("sealed");
        assert_eq!(open(from, &back), Ok(vec![n; 50]));
    }
}

/// What comes behind the handshake is as strange as what comes before it.
#[test]
fn any_records_behind_the_handshake_are_handled() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let (_, mut target) = pair();
        let mut garbage = vec![0; random.usize(6..300)];
        random.fill(&mut garbage);
        let len = (garbage.len() - 5) as u16;
        garbage[..5].copy_from_slice(&[random.u8(20..24), 3, 3, (len >> 8) as u8, len as u8]);
        if let Ok(plain) = open(&mut target, &garbage) {
            assert!(plain.is_empty(), "{garbage:?}");
        }
    }
}
