//! Both ends against each other, against values that were computed by other means, and against attackers.

use longhaul_auth::{
    Concatenation, ControllerExchange, ControllerOptions, DhGroup, Generations, HashFunction, HostExchange,
    HostKey, HostOptions, HostStep, Progress, Refused, Secret, SecureChannel,
};
use longhaul_wire::fabrics::auth::{AuthMessage, Challenge, Negotiate, Reply, Success};
use proptest::prelude::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
const SUBSYSTEM: &str = "nqn.2026-11.io.longhaul:disk";
/// Bytes 0 to 31, for SHA-256; bytes 100 to 163, for SHA-512.
const HOST_SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CONTROLLER_SECRET: &str =
    "DHHC-1:03:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOEhYaHiImKi4yNjo+QkZKTlJWWl5iZmpucnZ6foKGio8FPdnY=:";

fn random(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut random = fastrand::Rng::with_seed(seed);
    move |bytes| random.fill(bytes)
}

fn host() -> HostOptions {
    HostOptions {
        hostnqn: HOST.into(),
        subnqn: SUBSYSTEM.into(),
        key: HostKey {
            secret: HOST_SECRET.parse().unwrap(),
            controller: Some(CONTROLLER_SECRET.parse().unwrap()),
        },
        hashes: HashFunction::ALL.into(),
        groups: DhGroup::ALL.into(),
        secure_channel: SecureChannel::None,
    }
}

fn controller() -> ControllerOptions {
    let HostOptions { hostnqn, subnqn, key, hashes, groups, .. } = host();
    let concatenation = Concatenation::Off;
    ControllerOptions { hostnqn, subnqn, keys: key.into(), hashes, groups, concatenation }
}

/// Ends that make a PSK.
fn concatenating() -> (HostOptions, ControllerOptions) {
    let channel = SecureChannel::New;
    (
        HostOptions { secure_channel: channel, ..host() },
        ControllerOptions { concatenation: Concatenation::Required(channel), ..controller() },
    )
}

/// Runs an exchange; `tamper` sees each message, from the host and to it.
fn run(
    host: &HostOptions,
    mut controller: ControllerExchange,
    mut tamper: impl FnMut(&mut Vec<u8>),
) -> (HostStep, Progress) {
    let (mut random_host, mut random_controller) = (random(1), random(2));
    let (mut exchange, mut message) = HostExchange::begin(host.clone(), 0x0506);
    loop {
        tamper(&mut message);
        controller.handle(&message, &mut random_controller);
        let Some(mut answer) = controller.poll() else { panic!("no answer to {message:?}") };
        tamper(&mut answer);
        match exchange.handle(&answer, &mut random_host) {
            HostStep::Send(next) => message = next,
            end => {
                if let HostStep::Done(Some(last)) | HostStep::Failed(_, Some(last)) = &end {
                    controller.handle(last, &mut random_controller);
                    assert_eq!(controller.poll(), None, "nothing is due");
                }
                return (end, controller.progress());
            }
        }
    }
}

#[test]
fn every_hash_and_group_authenticates_both() {
    for hash in HashFunction::ALL {
        for group in DhGroup::ALL {
            let wanted = ControllerOptions { hashes: vec![hash], groups: vec![group], ..controller() };
            let (end, progress) = run(&host(), ControllerExchange::new(wanted.clone()), |_| ());
            assert!(matches!(end, HostStep::Done(Some(_))), "{hash:?} {group:?}: {end:?}");
            assert_eq!(progress, Progress::Authenticated);
            let one_way = HostOptions { key: HostKey { controller: None, ..host().key }, ..host() };
            let (end, progress) = run(&one_way, ControllerExchange::new(wanted), |_| ());
            assert_eq!((end, progress), (HostStep::Done(None), Progress::Authenticated));
        }
    }
}

/// The responses of RFC 2104's HMAC over the fields of the specification, computed with another language's
/// library.
#[test]
fn responses_are_those_of_the_specification() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let fill = |exponent: u8, challenge: u8, sequence: u32| {
        move |bytes: &mut [u8]| match bytes.len() {
            4 => bytes.copy_from_slice(&sequence.to_le_bytes()),
            48 => bytes.fill(challenge),
            _ => bytes.fill(exponent),
        }
    };
    for (group, expected) in [
        (
            DhGroup::Null,
            "aa89a257336c53eeea8a23eb8bcec5a1fb703c57375eff32c28816ef7492d775b62a81390cd283bad9db035032c04cd7",
        ),
        (
            DhGroup::Ffdhe2048,
            "1c8072fb5f94bda941dbf4de87b696561c95ddad673b248649f55ff009651e0dd3aa9b462c5d900ae27504ee8a14abc3",
        ),
    ] {
        let options =
            ControllerOptions { hashes: vec![HashFunction::Sha384], groups: vec![group], ..controller() };
        let mut controller = ControllerExchange::new(options);
        let host = host();
        let (mut exchange, negotiate) = HostExchange::begin(host.clone(), 0x0506);
        controller.handle(&negotiate, &mut fill(0x11, 0xC1, 0x0102_0304));
        let step = exchange.handle(&controller.poll().unwrap(), &mut fill(0x22, 0xC2, 0x0A0B_0C0D));
        let HostStep::Send(reply) = step else { panic!("{step:?}") };
        let Ok(AuthMessage::Reply(read)) = AuthMessage::decode(&reply) else { panic!("{reply:?}") };
        assert_eq!((hex(&read.response), read.sequence), (expected.to_owned(), 0x0A0B_0C0D), "{group:?}");
        controller.handle(&reply, &mut random(0));
        let Ok(AuthMessage::Success1(read)) = AuthMessage::decode(&controller.poll().unwrap()) else {
            panic!()
        };
        if group == DhGroup::Null {
            assert_eq!(
                hex(&read.response.unwrap()),
                "5a4dcf18b0622291956cc6f48b5b6f64231d8a6d1188e760884fdbd7c29b432c59c48425cab6cbb800effb402a6afc9f"
            );
        }
    }
}

#[test]
fn the_previous_generation_is_accepted_and_a_retired_one_is_named() {
    let key = |seed| {
        let secret = |seed| Secret::generate(HashFunction::Sha256, &mut random(seed));
        HostKey { secret: secret(seed), controller: Some(secret(seed + 100)) }
    };
    let rotated = Generations { number: 7, current: key(3), previous: Some(key(2)), retired: Some(key(1)) };
    let retired = Generations { number: 7, current: key(3), previous: None, retired: Some(key(2)) };
    let ends = |keys: &Generations, key| {
        let controller = ControllerExchange::new(ControllerOptions { keys: keys.clone(), ..controller() });
        let (end, progress) = run(&HostOptions { key, ..host() }, controller, |_| ());
        (matches!(end, HostStep::Done(_)), progress)
    };
    // With the subsystem's secret of the same generation: else the host would refuse it.
    for accepted in [key(3), key(2)] {
        assert_eq!(ends(&rotated, accepted), (true, Progress::Authenticated));
    }
    assert_eq!(ends(&rotated, key(1)), (false, Progress::Failed(Refused::Retired(5))));
    assert_eq!(ends(&retired, key(2)), (false, Progress::Failed(Refused::Retired(6))));
    assert_eq!(ends(&retired, key(1)), (false, Progress::Failed(Refused::Failed)), "long gone");
    let mixed = HostKey { controller: key(3).controller, ..key(2) };
    assert!(!ends(&rotated, mixed).0, "the host has halves of two generations");
}

#[test]
fn another_secret_name_or_subsystem_is_refused_on_the_side_that_sees_it() {
    let other = || Secret::generate(HashFunction::Sha256, &mut random(9));
    let knows = |secret| HostOptions { key: HostKey { secret, ..host().key }, ..host() };
    let failed = |end: &HostStep| matches!(end, HostStep::Failed(Refused::Failed, _));
    for stranger in [
        knows(other()),
        HostOptions { hostnqn: "nqn.x".into(), ..host() },
        HostOptions { subnqn: "nqn.y".into(), ..host() },
        // Of the same bytes, but used as it is.
        knows(HOST_SECRET.replace(":01:", ":00:").parse().unwrap()),
    ] {
        let (end, progress) = run(&stranger, ControllerExchange::new(controller()), |_| ());
        assert!(failed(&end), "{end:?}");
        assert_eq!(progress, Progress::Failed(Refused::Failed));
    }
    // The host asks for a proof, and the controller has another secret, or none.
    for secret in [Some(other()), None] {
        let key = HostKey { controller: secret, ..host().key };
        let stranger = ControllerOptions { keys: key.into(), ..controller() };
        let (end, progress) = run(&host(), ControllerExchange::new(stranger), |_| ());
        assert!(failed(&end), "{end:?}");
        assert_eq!(progress, Progress::Failed(Refused::Failed));
    }
}

#[test]
fn what_only_one_side_has_is_named() {
    let only = |hashes: &[HashFunction], groups: &[DhGroup]| ControllerOptions {
        hashes: hashes.to_vec(),
        groups: groups.to_vec(),
        ..controller()
    };
    let few = HostOptions { hashes: vec![HashFunction::Sha256], groups: vec![DhGroup::Null], ..host() };
    for (wanted, why) in [
        (only(&[HashFunction::Sha512], &DhGroup::ALL), Refused::Hash),
        (only(&HashFunction::ALL, &[DhGroup::Ffdhe2048]), Refused::Group),
    ] {
        let (end, progress) = run(&few, ControllerExchange::new(wanted), |_| ());
        assert_eq!((end, progress), (HostStep::Failed(why, None), Progress::Failed(why)));
    }
    let mut asked = ControllerExchange::new(controller());
    let negotiate = Negotiate { transaction: 1, secure_channel: 1, hashes: vec![1], groups: vec![0] };
    asked.handle(&AuthMessage::Negotiate(negotiate).encode(), &mut random(1));
    assert_eq!(asked.progress(), Progress::Failed(Refused::Concatenation));
}

/// A controller that chooses what was not offered, as an attacker between both would have it.
#[test]
fn a_downgrade_is_refused() {
    let strict =
        HostOptions { hashes: vec![HashFunction::Sha512], groups: vec![DhGroup::Ffdhe2048], ..host() };
    for (hash, group, why) in [(1, 1, Refused::Hash), (3, 0, Refused::Group), (9, 1, Refused::Hash)] {
        let (mut exchange, _) = HostExchange::begin(strict.clone(), 7);
        let digest = HashFunction::from_code(hash).map_or(32, HashFunction::digest_len);
        let public = vec![5; DhGroup::from_code(group).map_or(0, DhGroup::public_len)];
        let one = Challenge { transaction: 7, hash, group, sequence: 1, challenge: vec![1; digest], public };
        let end = exchange.handle(&AuthMessage::Challenge(one).encode(), &mut random(1));
        assert!(matches!(end, HostStep::Failed(found, Some(_)) if found == why), "{end:?}");
    }
}

#[test]
fn a_reply_that_was_right_once_is_not_right_again() {
    let mut recorded = Vec::new();
    run(&host(), ControllerExchange::new(controller()), |message| recorded.push(message.clone()));
    let reply =
        recorded.iter().find(|one| matches!(AuthMessage::decode(one), Ok(AuthMessage::Reply(_)))).unwrap();
    let mut again = ControllerExchange::new(controller());
    let mut drawn = random(77);
    again.handle(&recorded[0], &mut drawn);
    again.poll().unwrap();
    again.handle(reply, &mut drawn);
    assert_eq!(again.progress(), Progress::Failed(Refused::Failed));
    // Nor to the same challenge, which is answered once.
    let mut twice = ControllerExchange::new(controller());
    let mut drawn = random(2);
    twice.handle(&recorded[0], &mut drawn);
    twice.handle(reply, &mut drawn);
    assert_eq!(twice.progress(), Progress::Authenticated);
    twice.handle(reply, &mut drawn);
    assert_eq!(twice.progress(), Progress::Failed(Refused::Message));
}

/// Computed with another language's library from the fields of the specification, the group's formula included.
#[test]
//= test: NVMe Base 2.1, Generated PSK for TLS
fn the_psk_of_an_exchange_is_that_of_the_specification() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (hash, response, digest, secret) in [
        (
            HashFunction::Sha256,
            "5cffc2610a54dc2aa4df67921e016d4fc2c03ce48948cdc00c2ca6f34221e2fe",
            "G+wCRfpfjsl7QyEzu86QFKflNxIH98oGz+y7uOWAsy4=",
            "877fa941b917fbd7e66f4e28dbc8b4f9c4fdeb868b6f54dfec7f987d575e1a1a",
        ),
        (
            HashFunction::Sha384,
            "9afbf85812fc32ccd1c89a74674b257d3d72b5e78afd4b1fd5139e48354b657ff37a396e10d63fe77259d7461df96b85",
            "X/9MLOcPdUHOo7qGljxSZVx5R4wM8lg8DTE5+5mEuIWjl4hxGO/OEFwl5BJ5u376",
            "1eac2cf8841e980e5457ce804ba7feab131dc02f96127cc20bbe2ae5d385d50396574aef196c36e06494e768f1ee5311",
        ),
    ] {
        for is_mutual in [false, true] {
            let len = hash.digest_len();
            let fill = |exponent: u8, challenge: u8, sequence: u32| {
                move |bytes: &mut [u8]| match bytes.len() {
                    4 => bytes.copy_from_slice(&sequence.to_le_bytes()),
                    found if found == len => bytes.fill(challenge),
                    _ => bytes.fill(exponent),
                }
            };
            let (mut host, mut options) = concatenating();
            (options.hashes, options.groups) = (vec![hash], vec![DhGroup::Ffdhe2048]);
            if !is_mutual {
                host.key.controller = None;
            }
            let mut controller = ControllerExchange::new(options);
            let (mut exchange, negotiate) = HostExchange::begin(host, 0x0506);
            controller.handle(&negotiate, &mut fill(0x11, 0xC1, 0x0102_0304));
            let step = exchange.handle(&controller.poll().unwrap(), &mut fill(0x22, 0xC2, 9));
            let HostStep::Send(reply) = step else { panic!("{step:?}") };
            let Ok(AuthMessage::Reply(read)) = AuthMessage::decode(&reply) else { panic!("{reply:?}") };
            assert_eq!(hex(&read.response), response);
            assert_eq!((read.sequence != 0, read.challenge.is_some()), (is_mutual, true));
            controller.handle(&reply, &mut random(0));
            let step = exchange.handle(&controller.poll().unwrap(), &mut random(0));
            let HostStep::Done(last) = step else { panic!("{step:?}") };
            assert_eq!(last.is_some(), is_mutual);
            if let Some(last) = last {
                assert!(controller.take_psk().is_none(), "the host judges yet");
                controller.handle(&last, &mut random(0));
            }
            let (channel, theirs) = controller.take_psk().expect("a PSK");
            assert!(controller.take_psk().is_none() && channel == SecureChannel::New);
            for psk in [theirs, exchange.into_psk().expect("a PSK")] {
                let tls = psk.psk(HOST, SUBSYSTEM).expect("derived");
                assert_eq!(tls.identity, format!("NVMe1G{:02} {HOST} {SUBSYSTEM} {digest}", hash.code()));
                assert_eq!(hex(&tls.secret), secret);
            }
        }
    }
}

#[test]
fn a_psk_is_made_with_functions_and_groups_that_go_with_it() {
    let (host, controller) = concatenating();
    let (_, negotiate) = HostExchange::begin(host.clone(), 1);
    let Ok(AuthMessage::Negotiate(offered)) = AuthMessage::decode(&negotiate) else { panic!() };
    assert_eq!(
        (offered.secure_channel, &offered.hashes[..]),
        (2, &[1, 2][..]),
        "SHA-512 has no cipher suite"
    );
    assert!(!offered.groups.contains(&0), "without a group there is no secret");
    // Whatever a host offers.
    for (hashes, groups, why) in [(vec![3], vec![1], Refused::Hash), (vec![1], vec![0], Refused::Group)] {
        let mut asked = ControllerExchange::new(controller.clone());
        let negotiate = Negotiate { transaction: 1, secure_channel: 2, hashes, groups };
        asked.handle(&AuthMessage::Negotiate(negotiate).encode(), &mut random(1));
        assert_eq!(asked.progress(), Progress::Failed(why));
    }
    // Nor by a controller that chooses what was not offered.
    for (hash, group, why) in [(3, 1, Refused::Hash), (1, 0, Refused::Group)] {
        let (mut exchange, _) = HostExchange::begin(host.clone(), 7);
        let digest = HashFunction::from_code(hash).map_or(32, HashFunction::digest_len);
        let public = vec![5; DhGroup::from_code(group).map_or(0, DhGroup::public_len)];
        let one = Challenge { transaction: 7, hash, group, sequence: 1, challenge: vec![1; digest], public };
        let end = exchange.handle(&AuthMessage::Challenge(one).encode(), &mut random(1));
        assert!(matches!(end, HostStep::Failed(found, Some(_)) if found == why), "{end:?}");
        assert!(exchange.into_psk().is_none());
    }
}

#[test]
//= test: NVMe Base 2.1, AUTH_Negotiate message
fn what_the_ends_want_of_a_secure_channel_has_to_be_the_same() {
    let (none, new, replace) = (SecureChannel::None, SecureChannel::New, SecureChannel::Replace);
    for (concatenation, taken) in [
        (Concatenation::Off, vec![none]),
        (Concatenation::Allowed(new), vec![none, new]),
        (Concatenation::Required(new), vec![new]),
        (Concatenation::Allowed(replace), vec![none, replace]),
    ] {
        for secure_channel in [none, new, replace] {
            let options = ControllerOptions { concatenation, ..controller() };
            let wanted = HostOptions { secure_channel, ..host() };
            let (end, progress) = run(&wanted, ControllerExchange::new(options), |_| ());
            let mismatch = Refused::Concatenation;
            let expected = match taken.contains(&secure_channel) {
                true => Progress::Authenticated,
                false => Progress::Failed(mismatch),
            };
            assert_eq!(progress, expected, "{concatenation:?} {secure_channel:?}");
            let is_refused = end == HostStep::Failed(mismatch, None);
            assert_eq!(is_refused, !taken.contains(&secure_channel), "{end:?}");
        }
        // Reserved values.
        for secure_channel in [1, 4, 255] {
            let mut asked = ControllerExchange::new(ControllerOptions { concatenation, ..controller() });
            let negotiate = Negotiate { transaction: 1, secure_channel, hashes: vec![1], groups: vec![1] };
            asked.handle(&AuthMessage::Negotiate(negotiate).encode(), &mut random(1));
            assert_eq!(asked.progress(), Progress::Failed(Refused::Concatenation));
        }
    }
}

/// An attacker between both clears what the host wants, or asks for it in its place.
#[test]
fn a_secure_channel_is_neither_taken_away_nor_added() {
    for (wanted, made) in [(SecureChannel::New, 0), (SecureChannel::None, 2), (SecureChannel::New, 3)] {
        for concatenation in [SecureChannel::New, SecureChannel::Replace].map(Concatenation::Allowed) {
            let options = ControllerOptions { concatenation, ..controller() };
            let host = HostOptions { secure_channel: wanted, ..host() };
            let (end, progress) = run(&host, ControllerExchange::new(options), |message| {
                if message[..2] == [0, 0] {
                    message[6] = made;
                }
            });
            assert!(matches!(end, HostStep::Failed(..)), "{wanted:?} {made}: {end:?}");
            assert!(matches!(progress, Progress::Failed(_)), "{wanted:?} {made}: {progress:?}");
        }
    }
}

/// What goes into the PSK is what the responses are made of: a changed public value, or challenge of the controller,
/// makes no PSK; a changed challenge of the host makes another one than the host's, which opens nothing.
#[test]
fn a_changed_exchange_makes_no_common_psk() {
    let (mut host, options) = concatenating();
    host.key.controller = None;
    for (message, at) in [([1u8, 1], 16), ([1, 1], 16 + 32), ([1, 2], 16 + 32), ([1, 2], 16 + 64 + 9)] {
        let mut controller = ControllerExchange::new(options.clone());
        let (mut exchange, mut sent) = HostExchange::begin(host.clone(), 5);
        let change = |bytes: &mut Vec<u8>| {
            if bytes[..2] == message {
                bytes[at] ^= 1;
            }
        };
        let end = loop {
            change(&mut sent);
            controller.handle(&sent, &mut random(1));
            let mut answer = controller.poll().expect("an answer");
            change(&mut answer);
            match exchange.handle(&answer, &mut random(2)) {
                HostStep::Send(next) => sent = next,
                end => break end,
            }
        };
        let theirs =
            controller.take_psk().map(|(_, psk)| psk.psk(HOST, SUBSYSTEM).expect("derived").identity);
        let ours = exchange.into_psk().map(|psk| psk.psk(HOST, SUBSYSTEM).expect("derived").identity);
        let is_challenge_of_host = message == [1, 2] && at == 48;
        assert_eq!(
            (theirs.is_some(), ours.is_some()),
            (is_challenge_of_host, is_challenge_of_host),
            "{end:?}"
        );
        assert!(theirs.is_none() || theirs != ours);
    }
}

/// A host that wants a PSK sends its challenge.
#[test]
fn a_psk_needs_both_challenges() {
    let (mut host, options) = concatenating();
    host.key.controller = None;
    let (_, progress) = run(&host, ControllerExchange::new(options), |message| {
        if message[..2] == [1, 2] {
            message[8] = 0;
        }
    });
    assert_eq!(progress, Progress::Failed(Refused::Payload));
}

/// An attacker without a secret has the controller answer its own challenge.
#[test]
fn a_challenge_is_not_reflected() {
    let options = ControllerOptions { groups: vec![DhGroup::Null], ..controller() };
    let mut exchange = ControllerExchange::new(options);
    let negotiate = Negotiate { transaction: 1, secure_channel: 0, hashes: vec![1], groups: vec![0] };
    exchange.handle(&AuthMessage::Negotiate(negotiate).encode(), &mut random(1));
    let Ok(AuthMessage::Challenge(posed)) = AuthMessage::decode(&exchange.poll().unwrap()) else { panic!() };
    let reply = Reply {
        transaction: 1,
        response: vec![0; 32],
        sequence: posed.sequence,
        challenge: Some(posed.challenge),
        public: Vec::new(),
    };
    exchange.handle(&AuthMessage::Reply(reply).encode(), &mut random(1));
    let Ok(AuthMessage::Failure1(_)) = AuthMessage::decode(&exchange.poll().unwrap()) else { panic!() };
    assert_eq!(exchange.progress(), Progress::Failed(Refused::Failed));
}

#[test]
fn a_success_without_a_proof_is_none() {
    let host = host();
    let (mut exchange, negotiate) = HostExchange::begin(host.clone(), 3);
    let mut controller = ControllerExchange::new(controller());
    controller.handle(&negotiate, &mut random(1));
    let HostStep::Send(_) = exchange.handle(&controller.poll().unwrap(), &mut random(2)) else { panic!() };
    let success = Success { transaction: 3, digest: 32, response: None };
    let end = exchange.handle(&AuthMessage::Success1(success).encode(), &mut random(3));
    assert!(matches!(end, HostStep::Failed(Refused::Failed, Some(_))), "{end:?}");
    // Nor one that comes before the challenge.
    let (mut exchange, _) = HostExchange::begin(host.clone(), 3);
    let success = Success { transaction: 3, digest: 32, response: None };
    let end = exchange.handle(&AuthMessage::Success1(success).encode(), &mut random(3));
    assert!(matches!(end, HostStep::Failed(Refused::Message, Some(_))), "{end:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// One bit of one message is another one: neither side believes the other, but for bits that nothing
    /// depends on.
    #[test]
    fn a_changed_message_authenticates_nobody(which in 0usize..4, bit in any::<prop::sample::Index>()) {
        let options = ControllerOptions { groups: vec![DhGroup::Null], ..controller() };
        let (mut n, mut counts) = (0, true);
        let (end, progress) = run(&host(), ControllerExchange::new(options), |message| {
            if n == which {
                let bit = bit.index(8 * message.len());
                let before = AuthMessage::decode(message);
                message[bit / 8] ^= 1 << (bit % 8);
                // Reserved bits, and offers that are not taken.
                counts = before != AuthMessage::decode(message) && which != 0;
            }
            n += 1;
        });
        if counts {
            prop_assert!(matches!(end, HostStep::Failed(..)), "{:?}", end);
            prop_assert!(matches!(progress, Progress::Failed(_)), "{:?}", progress);
        }
    }

    #[test]
    fn any_bytes_are_handled(messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 0..5)) {
        let mut exchange = ControllerExchange::new(controller());
        for message in &messages {
            exchange.handle(message, &mut random(1));
            exchange.poll();
            prop_assert!(exchange.progress() != Progress::Authenticated);
        }
        let host = host();
        let (mut exchange, _) = HostExchange::begin(host.clone(), 1);
        for message in &messages {
            let step = exchange.handle(message, &mut random(1));
            prop_assert!(!matches!(step, HostStep::Done(_)), "{:?}", step);
        }
    }
}
