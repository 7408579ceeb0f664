//! Pools and volumes without crashes: what is made, what is refused, and with which words.

mod common;

use common::{Doomed, GIB, MIB, Rig, check, check_empty, empty, request};
use longhaul_array::Layout;
use longhaul_catalog::Catalog;
use longhaul_pool::{
    Error, Host, Missing, Pool, Quota, Removed, TargetRecord, VolumeLayout, VolumeRecord, VolumeRequest,
    import, wall_time,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("refused").to_string()
}

#[test]
fn a_volume_is_made_and_removed_without_a_trace() {
    let rig = Rig::new(5, GIB);
    let pool = rig.pool(Quota::default());
    let made = VolumeRequest {
        spares: 1,
        hosts: vec!["nqn.2014-08.org.example:a".to_owned()],
        job: Some("7".to_owned()),
        lifetime: Some(Duration::from_secs(3600)),
        ..request("v", 100 * MIB)
    };
    let volume = pool.create_volume(&made).expect("created");
    assert_eq!(volume, pool.volume("v").expect("there"));
    assert_eq!((volume.members.len(), volume.array.is_some()), (4, true));
    let targets: BTreeSet<&str> = volume.members.iter().map(|member| member.target.as_str()).collect();
    assert_eq!(targets.len(), 4, "in failure domains of their own");
    {
        let all = rig.targets.lock();
        let label = all.values().flat_map(|t| t.namespaces.values()).map(|s| &s.label).next().expect("made");
        assert_eq!((&label.hosts, &label.job, label.expires), (&made.hosts, &made.job, volume.expires));
        assert_eq!((label.name.as_str(), label.pool_name.as_str()), ("v", "p"));
    }
    check(&pool, &rig.targets);
    assert_eq!(said(pool.create_volume(&made)), "there is a volume called v already: choose another name");
    assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
    assert_eq!(said(pool.remove_volume("v")), "there is no volume called v in pool p");
    check_empty(&pool, &rig);
}

#[test]
fn what_cannot_be_made_is_refused_and_leaves_nothing() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota { pool: Some(2 * GIB), job: Some(GIB) });
    let refused = |request: VolumeRequest, part: &str| {
        let error = said(pool.create_volume(&request));
        assert!(error.contains(part), "{error}");
        assert_eq!(pool.volumes().expect("listed"), []);
    };
    let base = || request("v", 100 * MIB);
    refused(VolumeRequest { width: 4, ..base() }, "4 members of");
    refused(
        VolumeRequest { size: 3 * GIB, ..base() },
        "more would exceed the limit of pool p, 2 GiB, of which 0 B",
    );
    let job = Some("7".to_owned());
    refused(VolumeRequest { size: GIB, job, ..base() }, "more would exceed the limit of job 7, 1 GiB");
    refused(
        VolumeRequest { name: "a/b".to_owned(), ..base() },
        "'a/b' cannot be the name of a volume: it has '/'",
    );
    refused(VolumeRequest { width: 1, ..base() }, "1 devices do not make an array");
    refused(VolumeRequest { lifetime: Some(Duration::ZERO), ..base() }, "its lifetime is 0");
    refused(VolumeRequest { lifetime: Some(Duration::MAX), ..base() }, "its lifetime has no end");
    rig.targets.set_down("t1", true);
    refused(base(), "t1 is not used: nothing listens there");
    rig.targets.set_down("t1", false);
    // Another one than was added answers at the address.
    rig.targets.lock().get_mut("t1").expect("known").id = "nqn.other".to_owned();
    refused(base(), "t1 is not used: it is nqn.other, and not nqn.1");
    check_empty(&pool, &rig);
}

#[test]
fn a_target_that_fails_in_between_undoes_the_volume() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    // The answer of one target of the three is lost, at each of the calls in turn.
    for seed in 0..40 {
        let lossy = Doomed::new(&rig.catalog, &rig.targets, u64::MAX, Some(12), seed);
        let made =
            Pool::open(&lossy.host("lossy"), "p").and_then(|p| p.create_volume(&request("v", 100 * MIB)));
        check(&pool, &rig.targets);
        rig.lose_hosts();
        assert_eq!(pool.recover().expect("recovered").waiting, Vec::<String>::new());
        match made {
            Ok(_) => assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole)),
            Err(e) => assert!(matches!(e, Error::Space { .. } | Error::Shortage(_)), "{e}"),
        }
        check_empty(&pool, &rig);
    }
}

#[test]
fn what_cannot_be_reached_is_removed_later() {
    let rig = Rig::new(4, GIB);
    let pool = rig.pool(Quota::default());
    for name in ["a", "b"] {
        pool.create_volume(&VolumeRequest { width: 4, job: Some("7".into()), ..request(name, 100 * MIB) })
            .expect("created");
    }
    rig.targets.set_down("t2", true);
    let why = "target t2: nothing listens there".to_owned();
    assert_eq!(pool.release("7"), Ok(Removed::Later(vec![why.clone(), why.clone()])));
    assert_eq!(pool.release("7"), Ok(Removed::Whole), "a second call does nothing");
    assert_eq!((rig.targets.count(), pool.volumes().expect("listed").len()), (2, 0));
    check(&pool, &rig.targets);
    // The target cannot leave, the pool cannot end, and the name can be used again.
    let error = said(pool.remove_target("t2"));
    assert_eq!(
        error,
        "target t2 is not removed: namespaces of a, b there wait for their removal, and it cannot be reached: if it \
         is gone for good, --force forgets them"
    );
    assert_eq!(
        said(Pool::open(&rig.host("x"), "p").expect("opened").destroy()),
        "pool p is not removed: 2 volumes are being made or removed"
    );
    let waiting = pool.recover().expect("recovered");
    assert_eq!((waiting.finished, waiting.waiting), (0, vec![why]));
    pool.create_volume(&request("a", MIB)).expect("created");
    assert_eq!(pool.remove_volume("a"), Ok(Removed::Whole));
    rig.targets.set_down("t2", false);
    assert_eq!(pool.recover().expect("recovered").finished, 2);
    check_empty(&pool, &rig);
}

#[test]
fn lifetimes_end() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    let lasts = |name: &str, hours: Option<u64>| {
        let lifetime = hours.map(|hours| Duration::from_secs(hours * 3600));
        let begin = wall_time();
        let expires =
            pool.create_volume(&VolumeRequest { lifetime, ..request(name, MIB) }).expect("created").expires;
        if let Some(hours) = hours {
            let (begin, end) = (begin + hours * 3600, wall_time() + hours * 3600 + 1);
            assert!(
                expires.is_some_and(|at| (begin..=end).contains(&at)),
                "{name}: {begin} {expires:?} {end}"
            );
        }
        expires
    };
    let ends =
        [("a", Some(1)), ("b", Some(2)), ("c", None), ("d", Some(3))].map(|(name, hours)| lasts(name, hours));
    let [Some(a), Some(b), None, Some(d)] = ends else { panic!("{ends:?}") };
    let names = || pool.volumes().expect("listed").into_iter().map(|v| v.name).collect::<Vec<_>>();
    assert_eq!(pool.expire(a - 1), Ok(Removed::Whole));
    assert_eq!(names(), ["a", "b", "c", "d"]);
    assert_eq!(pool.expire(a), Ok(Removed::Whole));
    assert_eq!(names(), ["b", "c", "d"]);
    // What every command does first ends them as well, and says what it could not reach.
    rig.targets.set_down("t0", true);
    let why = || vec!["target t0: nothing listens there".to_owned()];
    assert_eq!(pool.collect(b).map(|collected| collected.waiting), Ok(why()));
    assert_eq!(names(), ["c", "d"]);
    assert_eq!(pool.collect(d).map(|collected| collected.waiting), Ok(why()));
    assert_eq!(names(), ["c"]);
    rig.targets.set_down("t0", false);
    assert_eq!(pool.collect(d).map(|collected| collected.waiting), Ok(vec![]));
    check(&pool, &rig.targets);
    assert_eq!(rig.targets.count(), 3, "namespaces");
}

#[test]
fn the_host_that_opened_a_volume_last_is_the_one_that_is_named() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    let volume = pool.create_volume(&request("v", MIB)).expect("created");
    assert_eq!(pool.user_of(volume.uuid), Ok(None));
    for name in ["one", "two", "one"] {
        let (host, nqn) = (rig.host(name), format!("nqn.2014-08.org.example:{name}"));
        Pool::open(&host, "p").and_then(|pool| pool.record_user("v", &nqn)).expect("recorded");
        let user = pool.user_of(volume.uuid).expect("read").expect("recorded");
        assert_eq!((user.host.as_str(), &user.hostnqn), (name, &nqn));
    }
    assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
    assert_eq!(pool.user_of(volume.uuid), Ok(None));
    check_empty(&pool, &rig);
}

#[test]
fn targets_come_and_go() {
    let rig = Rig::new(4, GIB);
    let host = rig.host("h");
    let targets =
        |names: &[&str]| names.iter().map(|n| ((*n).to_owned(), "r".to_owned())).collect::<Vec<_>>();
    let pool = Pool::create(&host, "p", &targets(&["t0", "t1"]), Quota::default()).expect("created");
    let error = said(Pool::create(&host, "p", &targets(&["t2"]), Quota::default()).map(|_| ()));
    assert_eq!(error, "there is a pool called p already: choose another name");
    assert_eq!(host.pools(), Ok(vec!["p".to_owned()]));
    // One domain is one member.
    assert!(said(pool.create_volume(&request("v", MIB))).contains("and 1 can be placed"));
    let parity = VolumeLayout::Files(Layout::Parity);
    assert_eq!(
        said(pool.suited_width(parity, 0, 1)),
        "no volume can be made so: layout parity needs 2 members or more, spares included, in a failure domain each, and \
         pool p has targets in 1 failure domains: r (2); add targets of other hosts, or add those of one host that do not \
         fail together with 'domain=', or allow more members in a domain ('--per-domain')"
    );
    assert!(said(pool.suited_width(parity, 1, 2)).contains("needs 3 members or more, spares included, 2 in"));
    assert_eq!((pool.suited_width(parity, 0, 2), pool.suited_width(parity, 0, usize::MAX)), (Ok(2), Ok(2)));
    let shared = VolumeRequest { per_domain: usize::MAX, ..request("v", MIB) };
    pool.create_volume(&shared).expect("created");
    assert_eq!(said(pool.remove_target("t0")), "target t0 is not removed: it has members of v");
    pool.add_target("t2", "rack2").expect("added");
    assert_eq!(pool.add_target("t2", "rack2").map(|target| target.domain), Ok("rack2".to_owned()));
    assert_eq!(pool.add_target("t2", "rack3").map(|target| target.domain), Ok("rack3".to_owned()));
    assert_eq!(pool.remove_target("nqn.2").map(|target: TargetRecord| target.address), Ok("t2".to_owned()));
    assert_eq!(said(pool.remove_target("t2")), "there is no target called t2 in pool p");
    assert_eq!(said(pool.add_target("t9", "r")), "cannot look at target t9: nothing listens there");
    // A copy of the directory of a space, at a target with an identity of its own.
    let copy = rig.targets.lock()["t0"].namespaces.clone();
    rig.targets.lock().get_mut("t2").expect("known").namespaces = copy;
    let error = said(pool.add_target("t2", "r"));
    assert!(error.starts_with("target t2 is not used: namespaces of it are those of target t0"), "{error}");
    let anew = Host { catalog: empty(&rig.clock), ..rig.host("importer") };
    let all = ["t0", "t1", "t2"].map(str::to_owned);
    let error = said(import(&anew, &all, None, None).map(|_| ()));
    assert!(error.starts_with("target t2 is not used: namespaces of it are those of target t0"), "{error}");
    rig.targets.lock().get_mut("t2").expect("known").namespaces.clear();
    // A copy of a disk, and a target that has moved.
    rig.targets.lock().get_mut("t3").expect("known").id = "nqn.1".to_owned();
    let error = said(pool.add_target("t3", "r"));
    assert!(error.starts_with("target t3 is not used: it has the identity of target t1 (nqn.1)"), "{error}");
    let error = said(Pool::create(&host, "q", &targets(&["t1", "t3"]), Quota::default()).map(|_| ()));
    assert!(error.contains("uses it: h made volume v there on "), "{error}");
    let one = rig.targets.lock().remove("t1").expect("known");
    rig.targets.lock().insert("t3".to_owned(), one);
    pool.add_target("t3", "r").expect("moved");
    check(&pool, &rig.targets);
    // Another pool does not get a target with namespaces of this one.
    let error = said(Pool::create(&host, "q", &targets(&["t3"]), Quota::default()).map(|_| ()));
    assert!(error.starts_with("target t3 is not used: pool p ("), "{error}");
    assert_eq!(pool.status().expect("status").targets.len(), 2);
    assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
    pool.destroy().expect("destroyed");
    assert_eq!(rig.catalog.range(b"", None).expect("read").entries, []);
}

#[test]
fn a_lost_catalog_is_made_again_from_the_labels() {
    let rig = Rig::new(6, 10 * GIB);
    let pool = rig.pool(Quota::default());
    let mut made = Vec::new();
    for (i, layout) in Layout::ALL.into_iter().enumerate() {
        let layout = VolumeLayout::Array(layout);
        let job = (i % 2 == 0).then(|| "7".to_owned());
        made.push(VolumeRequest {
            layout,
            width: 4,
            spares: i % 3,
            job,
            ..request(&format!("v{i}"), 300 * MIB)
        });
    }
    made.push(VolumeRequest { layout: VolumeLayout::Single, width: 1, ..request("single", MIB) });
    for request in &made {
        pool.create_volume(request).expect("created");
    }
    // A name that only some of the labels have.
    rig.targets.set_down("t0", true);
    pool.rename_volume("v3", "renamed").expect("renamed");
    rig.targets.set_down("t0", false);
    assert_eq!(
        said(pool.rename_volume("v1", "renamed")),
        "there is a volume called renamed already: choose another name"
    );
    // What a host had begun when it was lost: namespaces without superblocks.
    for crash_at in 1.. {
        let doomed = Doomed::new(&rig.catalog, &rig.targets, crash_at, None, 1);
        let host = doomed.host("doomed");
        let refused = Pool::open(&host, "p").and_then(|pool| pool.create_volume(&request("lost", MIB)));
        assert!(refused.is_err(), "no crash left namespaces without an array");
        let arrays: Vec<bool> = {
            let all = rig.targets.lock();
            let stored = all.values().flat_map(|target| target.namespaces.values());
            stored.filter(|s| s.label.name == "lost").map(|s| s.array.is_some()).collect()
        };
        if !arrays.is_empty() && !arrays.contains(&true) {
            break;
        }
        rig.lose_hosts();
        pool.recover().expect("recovered");
    }
    let before = pool.status().expect("status");

    let anew =
        Rig { catalog: empty(&rig.clock), targets: Arc::clone(&rig.targets), clock: Arc::clone(&rig.clock) };
    let addresses: Vec<String> = rig.targets.lock().keys().cloned().collect();
    let (pool, found) = import(&anew.host("creator"), &addresses, None, None).expect("imported");
    let after = pool.status().expect("status");
    let ready: Vec<VolumeRecord> = before.volumes.iter().filter(|v| v.name != "lost").cloned().collect();
    assert_eq!(after.volumes, ready);
    assert_eq!((after.record.uuid, after.record.name.as_str()), (before.record.uuid, "p"));
    let records =
        |status: &longhaul_pool::Status| status.targets.iter().map(|t| t.record.clone()).collect::<Vec<_>>();
    assert_eq!(records(&after), records(&before));
    assert_eq!((found.whole.len(), found.missing.len(), found.left_over), (6, 0, 1));
    for name in [None, Some("other")] {
        let error = said(import(&anew.host("importer"), &addresses, None, name).map(|_| ()));
        assert!(error.starts_with("pool p is in this catalog already: to import it again"), "{error}");
    }
    pool.recover().expect("recovered");
    check(&pool, &anew.targets);
    for volume in pool.volumes().expect("listed") {
        assert_eq!(pool.remove_volume(&volume.name), Ok(Removed::Whole));
    }
    check_empty(&pool, &anew);
}

#[test]
fn an_import_says_what_is_missing_and_what_does_not_belong() {
    let rig = Rig::new(5, 10 * GIB);
    let host = rig.host("h");
    let targets =
        |range: std::ops::Range<usize>| range.map(|i| (format!("t{i}"), format!("r{i}"))).collect::<Vec<_>>();
    let addresses = |range: std::ops::Range<usize>| range.map(|i| format!("t{i}")).collect::<Vec<_>>();
    let pool = Pool::create(&host, "p", &targets(0..3), Quota::default()).expect("created");
    pool.create_volume(&request("parity", MIB)).expect("created");
    let stripe = VolumeRequest { layout: VolumeLayout::Array(Layout::Stripe), ..request("stripe", MIB) };
    pool.create_volume(&stripe).expect("created");
    let other = Pool::create(&host, "q", &targets(3..5), Quota::default()).expect("created");
    let single = VolumeRequest { layout: VolumeLayout::Single, width: 1, ..request("v", MIB) };
    let at = other.create_volume(&single).expect("created").members[0].target.clone();
    let at = format!("t{}", at.trim_start_matches("nqn."));

    let anew = || Host { catalog: empty(&rig.clock), ..rig.host("h") };
    let refused =
        |host: &Host, addresses: &[String], wanted| said(import(host, addresses, wanted, None).map(|_| ()));
    let error = refused(&anew(), &addresses(0..5), None);
    assert!(error.contains("there are several pools: name one of "), "{error}");
    assert_eq!(
        refused(&anew(), &addresses(0..5), Some("r")),
        "there is no pool called r in the labels of these targets"
    );
    let empty_one = addresses(3..5).into_iter().find(|address| *address != at).expect("another");
    assert_eq!(
        refused(&anew(), &[empty_one], None),
        "no namespace at these targets is of a pool: there is nothing to import"
    );
    assert_eq!(refused(&anew(), &["t9".to_owned()], None), "cannot look at target t9: nothing listens there");
    let twice = ["t0".to_owned(), "t0".to_owned()];
    assert!(refused(&anew(), &twice, None).contains("it has the identity of target t0"));

    // The name is enough where it is one pool's, and targets of the other one do no harm.
    let (_, found) = import(&anew(), &addresses(0..5), Some("p"), Some("again")).expect("imported");
    assert_eq!((found.whole, found.missing), (vec!["parity".to_owned(), "stripe".to_owned()], vec![]));
    let host = anew();
    let (pool, mut found) = import(&host, &addresses(0..2), None, None).expect("imported");
    let error = refused(&host, &addresses(0..3), Some("p"));
    assert!(
        error.starts_with("pool p is in this catalog already") && error.contains("pool export p"),
        "{error}"
    );
    found.missing.sort_by(|a, b| a.volume.cmp(&b.volume));
    let lost = |name: &str| {
        let members = pool.volume(name).expect("there").members;
        members.iter().position(|member| member.namespace.is_none()).expect("one is missing")
    };
    let missing =
        |name: &str, is_usable| Missing { volume: name.to_owned(), members: vec![lost(name)], is_usable };
    assert_eq!(found.missing, [missing("parity", true), missing("stripe", false)]);
    assert_eq!(found.whole, Vec::<String>::new());
    // A volume that lacks a member can be removed.
    assert_eq!(pool.remove_volume("stripe"), Ok(Removed::Whole));
}

#[test]
fn an_exported_pool_is_imported_elsewhere() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    let volume = pool.create_volume(&request("v", MIB)).expect("created");
    assert_eq!(
        said(Pool::open(&rig.host("x"), "p").expect("opened").destroy()),
        "pool p is not removed: it has 1 volumes: remove them first"
    );
    pool.export().expect("exported");
    assert_eq!(rig.catalog.range(b"", None).expect("read").entries, []);
    let addresses: Vec<String> = rig.targets.lock().keys().cloned().collect();
    let other = Host { catalog: empty(&rig.clock), ..rig.host("other") };
    let (pool, _) = import(&other, &addresses, None, Some("q")).expect("imported");
    assert_eq!(pool.volume("v").expect("there"), volume);
    assert_eq!(other.pools(), Ok(vec!["q".to_owned()]));
}
