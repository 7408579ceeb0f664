//! Pools that two catalogs would manage: which of them does, what the other one is told, and how a pool goes from
//! one to the other.

mod common;

use common::{Doomed, GIB, MIB, Rig, check, empty, request};
use longhaul_catalog::{Catalog, Expect, FileCatalog, Txn};
use longhaul_pool::{Error, Host, Label, Manager, Pool, Quota, Recovered, import, take_over};
use std::sync::Arc;

fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("refused").to_string()
}

fn addresses(rig: &Rig) -> Vec<String> {
    rig.targets.lock().keys().cloned().collect()
}

fn labels(rig: &Rig) -> Vec<Label> {
    let all = rig.targets.lock();
    all.values().flat_map(|target| target.namespaces.values()).map(|stored| stored.label.clone()).collect()
}

/// Another host, with a catalog of its own.
fn other(rig: &Rig, name: &str) -> Host {
    Host { catalog: empty(&rig.clock), ..rig.host(name) }
}

fn keys(host: &Host) -> usize {
    host.catalog.range(b"", None).expect("read").entries.len()
}

const BY: &str = "host creator () manages it in catalog in memory, since 20";

#[test]
fn a_pool_in_use_elsewhere_says_by_whom_and_since_when() {
    let rig = Rig::new(4, GIB);
    let free = "t3".to_owned();
    let targets: Vec<(String, String)> =
        ["t0", "t1", "t2"].map(|at| (at.to_owned(), format!("rack-{at}"))).to_vec();
    let pool = Pool::create(&rig.host("creator"), "p", &targets, Quota::default()).expect("created");
    pool.create_volume(&request("v", MIB)).expect("created");
    let before = labels(&rig);
    let two = other(&rig, "two");
    for name in [None, Some("again")] {
        let error = said(import(&two, &addresses(&rig), None, name).map(|_| ()));
        let pool = name.unwrap_or("p");
        assert!(error.starts_with(&format!("pool {pool} is not imported: {BY}")), "{error}");
        assert!(error.contains("'longhaul pool export'") && error.contains("--force takes"), "{error}");
    }
    let error = said(Pool::create(&two, "q", &targets[..1], Quota::default()).map(|_| ()));
    let uses =
        format!("target t0 is not used: pool p ({}) uses it: creator made volume v", pool.record().uuid);
    assert!(error.starts_with(&uses) && error.contains(&format!(", and {BY}")), "{error}");
    assert!(error.contains("export it there ('longhaul pool export')"), "{error}");
    assert_eq!(keys(&two), 0, "nothing is recorded");
    let own = Pool::create(&two, "q", &[(free.clone(), free)], Quota::default()).expect("created");
    let error = said(own.add_target("t0", "rack"));
    assert!(error.starts_with(&uses) && error.contains(BY), "{error}");
    assert_eq!(labels(&rig), before);

    // Once it was exported, it is named as such, and can be imported.
    pool.export().expect("exported");
    let error = said(own.add_target("t0", "rack"));
    assert!(error.contains("and host creator () exported that pool on 20"), "{error}");
    let (imported, _) = import(&two, &addresses(&rig), Some("p"), None).expect("imported");
    check(&imported, &rig.targets);
    let manager = imported.record().manager.clone().expect("recorded");
    assert_eq!((manager.host.as_str(), manager.epoch, manager.released), ("two", 2, None));
    assert!(labels(&rig).iter().all(|label| label.manager.as_ref() == Some(&manager)));
}

#[test]
fn a_pool_that_was_taken_over_is_left_alone_by_its_former_catalog() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    pool.create_volume(&request("v", MIB)).expect("created");
    pool.check_managed().expect("managed here");
    let two = other(&rig, "two");
    let (taken, _) = take_over(&two, &addresses(&rig), None, None).expect("taken over");
    taken.create_volume(&request("w", MIB)).expect("created");
    let by =
        "pool p is not used by this catalog any more: host two () manages it in catalog in memory, since 20";
    for error in [
        said(pool.check_managed()),
        said(pool.set_hosts("v", &["nqn.2014-08.org.example:a".to_owned()])),
        said(pool.add_target("t0", "rack-t0")),
    ] {
        assert!(error.starts_with(by) && error.contains("has taken the pool over from here"), "{error}");
    }
    // It has no record of the new volume, and removes it all the same not.
    let Recovered { finished, held, swept, waiting } = pool.recover().expect("recovered");
    assert_eq!((finished, held, swept, rig.targets.count()), (0, 0, 0, 6));
    assert!(waiting.len() == 3 && waiting.iter().all(|why| why.contains(by)), "{waiting:?}");
    let names: Vec<String> = taken.volumes().expect("listed").into_iter().map(|v| v.name).collect();
    assert_eq!(names, ["v", "w"]);
    check(&taken, &rig.targets);
    taken.check_managed().expect("managed there");

    // Its export removes its records, and does not release what is not its own.
    let before = labels(&rig);
    assert_eq!(pool.export(), Ok(vec![]));
    assert_eq!(rig.catalog.range(b"", None).expect("read").entries, []);
    assert_eq!(labels(&rig), before);
    let three = other(&rig, "three");
    assert!(
        said(import(&three, &addresses(&rig), None, None).map(|_| ())).contains("host two () manages it")
    );
    assert_eq!(taken.export(), Ok(vec![]));
    let (again, _) = import(&three, &addresses(&rig), None, None).expect("imported");
    assert_eq!(again.record().manager.as_ref().map(|manager| manager.epoch), Some(3));
}

#[test]
fn a_pool_whose_volumes_hosts_use_is_not_imported() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    let volume = pool.create_volume(&request("v", MIB)).expect("created");
    pool.create_volume(&request("idle", MIB)).expect("created");
    let array = volume.array.expect("an array");
    let in_use = |is: Option<bool>| {
        let mut arrays = rig.targets.arrays.lock().expect("not poisoned");
        let array = arrays.get_mut(&array).expect("there");
        array.in_use = is.unwrap_or(array.in_use);
        array.in_use
    };
    in_use(Some(true));
    pool.export().expect("exported");
    let (before, two) = (labels(&rig), other(&rig, "two"));
    let error = said(import(&two, &addresses(&rig), None, None).map(|_| ()));
    assert_eq!(
        error,
        "pool p is not imported: volume v is in use: a session of a host writes to it; end that there, or --force \
         takes the volumes from these hosts"
    );
    assert_eq!((labels(&rig), keys(&two)), (before, 0));
    let (taken, _) = take_over(&two, &addresses(&rig), None, None).expect("taken over");
    assert!(!in_use(None), "its host has lost it");
    check(&taken, &rig.targets);
    // A catalog that has lost the pool gets it back, and its hosts keep what they use.
    in_use(Some(true));
    let anew = other(&rig, "two");
    let (again, _) = import(&anew, &addresses(&rig), None, None).expect("imported");
    assert!(in_use(None));
    assert_eq!(again.record(), taken.record());
}

#[test]
fn an_import_that_was_interrupted_is_made_again_by_its_host_alone() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    for name in ["a", "b"] {
        pool.create_volume(&request(name, MIB)).expect("created");
    }
    let volumes = pool.volumes().expect("listed");
    pool.export().expect("exported");
    let mut claimed = 0;
    for crash_at in 1.. {
        // As it was exported.
        let saved = rig.targets.lock().clone();
        let catalog: Arc<FileCatalog> = empty(&rig.clock);
        let doomed = Doomed::new(&catalog, &rig.targets, crash_at, None, crash_at);
        let done = import(&doomed.host("two"), &addresses(&rig), None, None).is_ok();
        let is_whole = !doomed.is_dead();
        let third = import(&other(&rig, "three"), &addresses(&rig), None, None);
        let by_two = |label: &Label| label.manager.as_ref().is_some_and(|manager| manager.host == "two");
        if let Err(e) = third {
            assert!(e.to_string().contains("host two () manages it"), "{e}");
            claimed += 1;
            let catalog: Arc<dyn Catalog> = Arc::<FileCatalog>::clone(&catalog);
            let host = Host { catalog, ..rig.host("two") };
            let pool = match done {
                true => Pool::open(&host, "p").expect("there"),
                false => match import(&host, &addresses(&rig), None, None) {
                    // Its name was the last thing that was written.
                    Err(Error::Imported(_)) => Pool::open(&host, "p").expect("there"),
                    imported => imported.expect("made again").0,
                },
            };
            assert_eq!(pool.volumes().expect("listed"), volumes);
            assert!(labels(&rig).iter().all(by_two));
            check(&pool, &rig.targets);
        } else {
            assert!(!done, "two catalogs have the pool");
        }
        *rig.targets.lock() = saved;
        if is_whole {
            break;
        }
    }
    assert!(claimed > 3, "{claimed} crashes after a label was written");
}

#[test]
fn a_host_that_imports_at_the_same_time_wins_alone() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    pool.create_volume(&request("v", MIB)).expect("created");
    pool.export().expect("exported");
    let hosts: Vec<Host> = (0..4).map(|n| other(&rig, &format!("h{n}"))).collect();
    let at = addresses(&rig);
    let done: Vec<Option<Pool>> = std::thread::scope(|scope| {
        let threads: Vec<_> = hosts
            .iter()
            .map(|host| scope.spawn(|| import(host, &at, None, None).ok().map(|(pool, _)| pool)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let managing: Vec<&Pool> = done.iter().flatten().filter(|pool| pool.check_managed().is_ok()).collect();
    assert!(managing.len() <= 1, "{} catalogs manage the pool", managing.len());
}

#[test]
fn a_pool_of_an_earlier_program_gets_a_manager() {
    let rig = Rig::new(3, GIB);
    let pool = rig.pool(Quota::default());
    pool.create_volume(&request("old", MIB)).expect("created");
    // As that program has left it.
    for target in rig.targets.lock().values_mut() {
        target.namespaces.values_mut().for_each(|stored| stored.label.manager = None);
    }
    let entry = rig.catalog.get(b"pools/p").expect("read").expect("there");
    let mut record: serde_json::Value = serde_json::from_slice(&entry.value).expect("JSON");
    record.as_object_mut().expect("an object").remove("manager");
    let put = Txn::new().expect(b"pools/p", Expect::Present).put(b"pools/p", record.to_string().as_bytes());
    assert!(rig.catalog.commit(&put).expect("committed").is_done());

    let error = said(
        Pool::create(&other(&rig, "two"), "q", &[("t0".into(), "r".into())], Quota::default()).map(|_| ()),
    );
    assert!(error.contains("creator made volume old there on 20") && error.contains("import it"), "{error}");
    let mut pool = Pool::open(&rig.host("creator"), "p").expect("read");
    assert_eq!(pool.record().manager, None);
    pool.check_managed().expect("managed here");
    pool.record_manager().expect("recorded");
    assert_eq!(Pool::open(&rig.host("creator"), "p").expect("read").record(), pool.record());
    pool.check_managed().expect("managed here");
    pool.create_volume(&request("new", MIB)).expect("created");
    let named = labels(&rig).into_iter().filter_map(|label| label.manager).collect::<Vec<Manager>>();
    assert_eq!(named, vec![pool.record().manager.clone().expect("recorded"); 3]);
    let error = said(import(&other(&rig, "two"), &addresses(&rig), None, None).map(|_| ()));
    assert!(error.contains(BY), "{error}");
}
