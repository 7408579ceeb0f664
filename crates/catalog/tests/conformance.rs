//! What every engine of the catalog does.

mod common;

use common::{Etcd, Server};
use longhaul_catalog::server::Limits;
use longhaul_catalog::{
    Catalog, Commit, Error, Event, Expect, FileCatalog, FileOptions, MAX_CHANGES, MAX_OPERATIONS, Revision,
    Txn, Watch,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for what must come: much above what any of it takes.
const LONG: Duration = Duration::from_secs(120);

/// Two handles of one catalog, as two processes have them.
struct Pair(Arc<dyn Catalog>, Arc<dyn Catalog>);

fn done(commit: longhaul_catalog::Result<Commit>) -> Revision {
    match commit {
        Ok(Commit::Done(revision)) => revision,
        other => panic!("{other:?}"),
    }
}

fn conflict(commit: longhaul_catalog::Result<Commit>) -> Revision {
    match commit {
        Ok(Commit::Conflict(revision)) => revision,
        other => panic!("{other:?}"),
    }
}

fn pairs(catalog: &dyn Catalog, prefix: &[u8], at: Option<Revision>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let found = catalog.range(prefix, at).expect("read");
    found.entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

fn pair(key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (key.to_vec(), value.to_vec())
}

fn a_transaction_is_made_whole_or_not_at_all(Pair(a, b): &Pair) {
    let first = Txn::new().expect(b"t/a", Expect::Absent).put(b"t/a", b"1").put(b"t/b", b"2");
    let revision = done(a.commit(&first));
    let late = Txn::new().expect(b"t/c", Expect::Absent).expect(b"t/a", Expect::Absent);
    assert_eq!(conflict(b.commit(&late.put(b"t/c", b"3").delete(b"t/b"))), revision);
    assert_eq!(pairs(&**b, b"t/", None), [pair(b"t/a", b"1"), pair(b"t/b", b"2")]);
    let entry = b.get(b"t/a").expect("read").expect("there");
    assert_eq!((entry.created, entry.modified, entry.lease), (revision, revision, None));
    assert_eq!(b.get(b"t/c").expect("read"), None);
}

fn a_stale_revision_conflicts(Pair(a, b): &Pair) {
    let first = done(a.commit(&Txn::new().put(b"s/a", b"1")));
    let update = |value| Txn::new().expect(b"s/a", Expect::Modified(first)).put(b"s/a", value);
    let second = done(b.commit(&update(b"2")));
    assert!(second > first);
    assert_eq!(conflict(a.commit(&update(b"3"))), second);
    let entry = a.get(b"s/a").expect("read").expect("there");
    assert_eq!((entry.value, entry.created, entry.modified), (b"2".to_vec(), first, second));
    // A key that was made anew is another one.
    done(a.commit(&Txn::new().expect(b"s/a", Expect::Present).delete(b"s/a")));
    conflict(a.commit(&Txn::new().expect(b"s/a", Expect::Present).delete(b"s/a")));
    let third = done(a.commit(&Txn::new().expect(b"s/a", Expect::Absent).put(b"s/a", b"1")));
    conflict(b.commit(&Txn::new().expect(b"s/a", Expect::Modified(second)).delete(b"s/a")));
    assert_eq!(b.get(b"s/a").expect("read").expect("there").created, third);
}

fn nothing_to_delete_is_no_revision(Pair(a, b): &Pair) {
    let before = done(a.commit(&Txn::new().put(b"n/a", b"")));
    assert_eq!(done(b.commit(&Txn::new().delete(b"n/none"))), before);
    assert_eq!(done(b.commit(&Txn::new())), before);
    assert_eq!(a.range(b"n/", None).expect("read").revision, before);
}

fn a_range_is_of_its_prefix_and_sorted(Pair(a, b): &Pair) {
    let keys: [&[u8]; 6] = [b"r/", b"r/\0", b"r/a", b"r/\xff", b"r/\xff\xff", b"r/a/b"];
    let all = keys.iter().fold(Txn::new(), |txn, key| txn.put(key, key));
    done(a.commit(&all.put(b"r.", b"before").put(b"r0", b"after")));
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let expected: Vec<_> = sorted.iter().map(|key| pair(key, key)).collect();
    assert_eq!(pairs(&**b, b"r/", None), expected);
    assert_eq!(pairs(&**b, b"r/\xff", None), expected[4..]);
    assert_eq!(pairs(&**b, b"r/none", None), []);
}

fn a_long_range_is_whole(Pair(a, b): &Pair) {
    let count = 1200;
    for chunk in 0..count / 100 {
        let keys = (chunk * 100..(chunk + 1) * 100).map(|i| format!("l/{i:05}"));
        done(a.commit(&keys.fold(Txn::new(), |txn, key| txn.put(key.as_bytes(), key.as_bytes()))));
    }
    let found = b.range(b"l/", None).expect("read");
    let expected: Vec<_> = (0..count).map(|i| format!("l/{i:05}").into_bytes()).collect();
    assert_eq!(found.entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>(), expected);
}

fn a_range_is_read_page_by_page(Pair(a, b): &Pair) {
    let keys: Vec<Vec<u8>> = (0..50).map(|i: u32| format!("pages/{i:02}").into_bytes()).collect();
    let all = keys.iter().fold(Txn::new(), |txn, key| txn.put(key, b"1"));
    done(a.commit(&all.put(b"pages", b"before").put(b"pages0", b"after")));
    let page = |after: &[u8], most| -> Vec<Vec<u8>> {
        b.page(b"pages/", after, most).expect("read").into_iter().map(|entry| entry.key).collect()
    };
    let (mut found, mut after) = (Vec::new(), b"pages/".to_vec());
    loop {
        let next = page(&after, 7);
        assert!(next.len() == 7 || found.len() + next.len() == 50);
        let Some(last) = next.last() else { break };
        after.clone_from(last);
        found.extend(next);
    }
    assert_eq!(found, keys);
    assert_eq!(page(b"", 2), keys[..2]);
    assert_eq!(page(b"pages/105", 2), keys[11..13]);
    assert!([page(b"pages/49", 5), page(b"q", 5), page(b"pages/", 0)].iter().all(Vec::is_empty));
    let until = |after: &[u8], last: &[u8], most| -> Vec<Vec<u8>> {
        let page = b.page_until(b"pages/", after, last, most).expect("read");
        page.into_iter().map(|entry| entry.key).collect()
    };
    assert_eq!(until(&keys[3], &keys[7], 50), keys[4..=7]);
    assert_eq!(until(&keys[3], &keys[7], 2), keys[4..6]);
    assert_eq!(until(b"", b"q", 50), keys);
    assert_eq!(
        until(b"pages/", b"pages/1999", 50),
        keys[..=keys.partition_point(|key| **key <= b"pages/1999"[..]) - 1]
    );
    assert!(
        [until(&keys[7], &keys[7], 5), until(&keys[7], &keys[3], 5), until(b"", b"a", 5)]
            .iter()
            .all(Vec::is_empty)
    );
}

fn several_keys_are_read_at_once(Pair(a, b): &Pair) {
    let keys: Vec<Vec<u8>> = (0..300).map(|i: u32| format!("all/{i:03}").into_bytes()).collect();
    for some in keys.chunks(100) {
        done(a.commit(&some.iter().fold(Txn::new(), |txn, key| txn.put(key, key))));
    }
    let last = done(a.commit(&Txn::new().put(b"all/007", b"new").delete(b"all/008")));
    let mut wanted: Vec<Vec<u8>> = keys.iter().rev().cloned().collect();
    wanted.extend([b"all/none".to_vec(), b"all/007".to_vec()]);
    let found = b.get_all(&wanted).expect("read");
    let expected: Vec<Vec<u8>> = keys.iter().filter(|key| key[..] != *b"all/008").cloned().collect();
    assert_eq!(found.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>(), expected);
    assert_eq!((&found[7].value[..], found[7].modified), (&b"new"[..], last));
    assert_eq!(Some(&found[9]), b.get(&found[9].key).expect("read").as_ref());
    assert_eq!(b.get_all(&[]).expect("read"), []);
}

fn an_old_revision_can_be_read(Pair(a, b): &Pair) {
    let one = done(a.commit(&Txn::new().put(b"o/a", b"1").put(b"o/b", b"1")));
    let two = done(a.commit(&Txn::new().put(b"o/a", b"2").delete(b"o/b").put(b"o/c", b"2")));
    let three = done(a.commit(&Txn::new().delete(b"o/a").put(b"o/b", b"3")));
    assert_eq!(pairs(&**b, b"o/", Some(one)), [pair(b"o/a", b"1"), pair(b"o/b", b"1")]);
    assert_eq!(pairs(&**b, b"o/", Some(two)), [pair(b"o/a", b"2"), pair(b"o/c", b"2")]);
    assert_eq!(pairs(&**b, b"o/", Some(three)), [pair(b"o/b", b"3"), pair(b"o/c", b"2")]);
    assert_eq!(b.range(b"o/", Some(one)).expect("read").entries[1].modified, one);
    assert!(matches!(b.range(b"o/", Some(three + 1_000_000)), Err(Error::Invalid(_))));
}

/// Waits for as many events.
fn take(watch: &mut dyn Watch, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        let more = watch.next(LONG).expect("watched");
        assert!(!more.is_empty(), "{} of {count} events", events.len());
        events.extend(more);
    }
    events
}

fn event(revision: Revision, key: &[u8], value: Option<&[u8]>) -> Event {
    Event { revision, key: key.to_vec(), value: value.map(<[u8]>::to_vec) }
}

fn a_watch_tells_all_changes_in_order(Pair(a, b): &Pair) {
    let zero = done(a.commit(&Txn::new().put(b"w/before", b"0")));
    let one = done(a.commit(&Txn::new().put(b"w/a", b"1")));
    let two = done(a.commit(&Txn::new().put(b"w/a", b"2").put(b"v/other", b"")));
    let mut watch = b.watch(b"w/", zero + 1).expect("watched");
    let past = [event(one, b"w/a", Some(b"1")), event(two, b"w/a", Some(b"2"))];
    assert_eq!(take(&mut *watch, 2), past);
    let live = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| take(&mut *watch, 3));
        let three = done(a.commit(&Txn::new().delete(b"w/a").put(b"w/b", b"\0\xff")));
        let four = done(a.commit(&Txn::new().put(b"w/c", b"")));
        (waiting.join().expect("joined"), three, four)
    });
    let (mut events, three, four) = live;
    // Within one revision there is no order.
    events[..2].sort_by(|x, y| x.key.cmp(&y.key));
    let expected =
        [event(three, b"w/a", None), event(three, b"w/b", Some(b"\0\xff")), event(four, b"w/c", Some(b""))];
    assert_eq!(events, expected);
    // Two watches of one handle are apart.
    let mut other = b.watch(b"w/", four).expect("watched");
    assert_eq!(take(&mut *other, 1), [event(four, b"w/c", Some(b""))]);
    assert_eq!(watch.next(Duration::ZERO).expect("watched"), []);
}

fn what_no_engine_can_do_is_refused(Pair(a, _): &Pair) {
    let twice = Txn::new().put(b"i/a", b"1").delete(b"i/a");
    assert!(matches!(a.commit(&twice), Err(Error::Invalid(_))));
    let many = |n: usize| (0..n).fold(Txn::new(), |txn, i| txn.put(format!("i/{i}").as_bytes(), b""));
    assert!(matches!(a.commit(&many(MAX_CHANGES + 1)), Err(Error::Invalid(_))));
    let expects = |n: usize| (0..n).fold(Txn::new(), |txn, i| txn.expect(&[b'e', i as u8], Expect::Absent));
    assert!(matches!(a.commit(&expects(MAX_OPERATIONS + 1)), Err(Error::Invalid(_))));
    done(a.commit(&expects(MAX_OPERATIONS)));
    let large = vec![7; 1_000_000];
    done(a.commit(&Txn::new().put(b"i/large", &large)));
    assert_eq!(a.get(b"i/large").expect("read").expect("there").value, large);
}

fn many_changes_are_made_together(Pair(a, b): &Pair) {
    let lease = a.grant(LONG * 10).expect("granted");
    let key = |i: usize| format!("many/{i:04}").into_bytes();
    let all = |expect| {
        (0..MAX_CHANGES).fold(Txn::new().expect(&key(0), expect), |txn, i| match i % 2 {
            0 => txn.put(&key(i), &key(i)),
            _ => txn.put_leased(&key(i), &key(i), lease),
        })
    };
    let first = done(a.commit(&all(Expect::Absent)));
    assert!(b.range(b"many/", None).expect("read").entries.iter().all(|entry| entry.modified == first));
    conflict(b.commit(&all(Expect::Absent)));
    let gone = (0..MAX_CHANGES).fold(Txn::new(), |txn, i| txn.delete(&key(i)));
    conflict(b.commit(&gone.clone().expect(&key(7), Expect::Absent)));
    assert_eq!(b.range(b"many/", None).expect("read").entries.len(), MAX_CHANGES);
    a.revoke(lease).expect("revoked");
    assert_eq!(b.range(b"many/", None).expect("read").entries.len(), MAX_CHANGES / 2);
    done(b.commit(&gone));
    assert_eq!(pairs(&**a, b"many/", None), []);
}

fn keys_and_a_page_are_read_at_once(Pair(a, b): &Pair) {
    let all = (0..9u8).fold(Txn::new(), |txn, i| txn.put(&[b'p', b'/', i], &[i]));
    done(a.commit(&all.put(b"p", b"other")));
    let keys = [b"p".to_vec(), b"p/none".to_vec(), vec![b'p', b'/', 3]];
    let names = |entries: &[longhaul_catalog::Entry]| -> Vec<Vec<u8>> {
        entries.iter().map(|entry| entry.key.clone()).collect()
    };
    let (found, page) = b.page_with(&keys, b"p/", &[b'p', b'/', 4], 2).expect("read");
    assert_eq!(names(&found), [keys[0].clone(), keys[2].clone()]);
    assert_eq!(names(&page), [vec![b'p', b'/', 5], vec![b'p', b'/', 6]]);
    let (found, page) = b.page_with(&keys[1..2], b"none/", b"none/", 10).expect("read");
    assert_eq!((found, page), (Vec::new(), Vec::new()));
    let (found, page) = b.page_with(&keys, b"p/", b"q", 10).expect("read");
    assert_eq!((found.len(), page), (2, Vec::new()));
}

fn a_key_vanishes_with_its_lease(Pair(a, b): &Pair) {
    // Long enough to be there still when it is looked at, whatever else the machine does.
    let long = a.grant(LONG * 10).expect("granted");
    assert!(b.keep(long).expect("kept") >= LONG * 10);
    let first = done(a.commit(&Txn::new().put_leased(b"k/a", b"1", long).put_leased(b"k/b", b"1", long)));
    assert_eq!(b.get(b"k/a").expect("read").expect("there").lease, Some(long));
    // A put without the lease takes the key out of it.
    let second = done(b.commit(&Txn::new().put(b"k/b", b"2")));
    let mut watch = b.watch(b"k/", first).expect("watched");
    assert_eq!(take(&mut *watch, 3).last().map(|event| event.revision), Some(second));
    a.revoke(long).expect("revoked");
    let gone = take(&mut *watch, 1);
    assert_eq!((gone[0].key.as_slice(), &gone[0].value), (&b"k/a"[..], &None));
    assert_eq!(pairs(&**b, b"k/", None), [pair(b"k/b", b"2")]);
    a.revoke(long).expect("revoking again does nothing");
    assert!(matches!(b.keep(long), Err(Error::LeaseExpired(lease)) if lease == long));
    let late = Txn::new().put(b"k/c", b"").put_leased(b"k/d", b"", long);
    assert!(matches!(a.commit(&late), Err(Error::LeaseExpired(lease)) if lease == long));
    assert_eq!(b.get(b"k/c").expect("read"), None);
}

fn a_lease_that_is_not_kept_runs_out(Pair(a, b): &Pair) {
    let from = done(a.commit(&Txn::new().put(b"e/before", b"")));
    let mut watch = b.watch(b"e/a", from).expect("watched");
    // On a busy machine it may run out before it is used.
    let short = loop {
        let short = a.grant(Duration::from_secs(1)).expect("granted");
        match a.commit(&Txn::new().put_leased(b"e/a", b"1", short)) {
            Err(Error::LeaseExpired(lease)) => assert_eq!(lease, short),
            commit => {
                done(commit);
                break short;
            }
        }
    };
    let events = take(&mut *watch, 2);
    assert_eq!(events[1].value, None);
    assert!(matches!(a.keep(short), Err(Error::LeaseExpired(_))));
    assert_eq!(pairs(&**a, b"e/", None), [pair(b"e/before", b"")]);
}

fn counters_lose_no_increment(Pair(a, b): &Pair) {
    let (threads, each) = (4, 10);
    done(a.commit(&Txn::new().put(b"c/n", b"0")));
    let increment = |catalog: &dyn Catalog| loop {
        let entry = catalog.get(b"c/n").expect("read").expect("there");
        let n: u64 = String::from_utf8_lossy(&entry.value).parse().expect("a number");
        let next = Txn::new().expect(b"c/n", Expect::Modified(entry.modified));
        if catalog.commit(&next.put(b"c/n", (n + 1).to_string().as_bytes())).expect("committed").is_done() {
            return;
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let catalog = if thread % 2 == 0 { a } else { b };
            scope.spawn(move || (0..each).for_each(|_| increment(&**catalog)));
        }
    });
    let total = (threads * each).to_string();
    assert_eq!(pairs(&**a, b"c/", None), [pair(b"c/n", total.as_bytes())]);
}

/// Random transactions do what they do to a map, and the watch tells the same.
fn it_is_a_map(Pair(a, b): &Pair) {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut model: BTreeMap<Vec<u8>, (Vec<u8>, Revision)> = BTreeMap::new();
    let mut states = Vec::new();
    let start = done(a.commit(&Txn::new().put(b"m.", b"")));
    let mut watch = b.watch(b"m/", start).expect("watched");
    let mut changes = 0;
    for _ in 0..100 {
        let mut next = model.clone();
        let (mut txn, mut holds) = (Txn::new(), true);
        let key = |rng: &mut fastrand::Rng| vec![b'm', b'/', rng.u8(b'a'..b'f')];
        for _ in 0..rng.usize(0..3) {
            let key = key(&mut rng);
            let known = model.get(&key).map(|(_, revision)| *revision);
            let expect = match rng.u8(0..4) {
                0 => Expect::Absent,
                1 => Expect::Present,
                _ => Expect::Modified(known.unwrap_or(start)),
            };
            holds &= match expect {
                Expect::Absent => known.is_none(),
                Expect::Present => known.is_some(),
                Expect::Modified(revision) => known == Some(revision),
            };
            txn = txn.expect(&key, expect);
        }
        let mut keys: Vec<_> = (0..rng.usize(0..4)).map(|_| key(&mut rng)).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut changed = 0;
        for key in keys {
            if rng.bool() {
                let value: Vec<u8> = (0..rng.usize(0..5)).map(|_| rng.u8(..)).collect();
                txn = txn.put(&key, &value);
                // The revision is known once it is made.
                next.insert(key, (value, 0));
                changed += 1;
            } else {
                changed += usize::from(next.remove(&key).is_some());
                txn = txn.delete(&key);
            }
        }
        let catalog = if rng.bool() { a } else { b };
        match catalog.commit(&txn).expect("committed") {
            Commit::Conflict(_) => assert!(!holds, "{txn:?}"),
            Commit::Done(revision) => {
                assert!(holds, "{txn:?}");
                next.values_mut().filter(|(_, at)| *at == 0).for_each(|(_, at)| *at = revision);
                model = next;
                changes += changed;
                let state: Vec<_> = model.iter().map(|(key, (value, _))| pair(key, value)).collect();
                states.push((revision, state));
            }
        }
    }
    for (revision, state) in &states {
        assert_eq!(pairs(&**a, b"m/", Some(*revision)), *state);
    }
    let mut seen = BTreeMap::new();
    for event in take(&mut *watch, changes) {
        match event.value {
            Some(value) => seen.insert(event.key, value),
            None => seen.remove(&event.key),
        };
    }
    let state: Vec<_> = seen.into_iter().collect();
    assert_eq!(Some(&state), states.last().map(|(_, state)| state));
    let found = b.range(b"m/", None).expect("read").entries;
    assert!(found.iter().all(|entry| model[&entry.key].1 == entry.modified));
}

/// After its old revisions were forgotten by `compact`, neither range nor watch gives half an answer.
fn a_forgotten_revision_is_refused(Pair(a, b): &Pair, compact: &dyn Fn(Revision)) {
    let one = done(a.commit(&Txn::new().put(b"z/a", b"1")));
    let two = done(a.commit(&Txn::new().put(b"z/a", b"2")));
    compact(two);
    assert_eq!(b.range(b"z/", Some(one)), Err(Error::Compacted { at: one }));
    let refused = b.watch(b"z/", one).and_then(|mut watch| watch.next(LONG));
    assert!(matches!(refused, Err(Error::Compacted { .. })), "{refused:?}");
    assert_eq!(pairs(&**b, b"z/", None), [pair(b"z/a", b"2")]);
}

/// A check, and its name.
type Check = (&'static str, fn(&Pair));

macro_rules! checks {
    ($($check:ident),+ $(,)?) => { [$((stringify!($check), $check as fn(&Pair))),+] };
}

const CHECKS: [Check; 16] = checks![
    a_transaction_is_made_whole_or_not_at_all,
    a_stale_revision_conflicts,
    nothing_to_delete_is_no_revision,
    a_range_is_of_its_prefix_and_sorted,
    a_long_range_is_whole,
    a_range_is_read_page_by_page,
    several_keys_are_read_at_once,
    an_old_revision_can_be_read,
    a_watch_tells_all_changes_in_order,
    what_no_engine_can_do_is_refused,
    many_changes_are_made_together,
    keys_and_a_page_are_read_at_once,
    a_key_vanishes_with_its_lease,
    a_lease_that_is_not_kept_runs_out,
    counters_lose_no_increment,
    it_is_a_map,
];

fn run(pair: &Pair) {
    for (name, check) in CHECKS {
        println!("{name}");
        check(pair);
    }
}

#[test]
fn a_file_conforms() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("catalog");
    let open = || Arc::new(FileCatalog::open(&path).expect("opened"));
    run(&Pair(open(), open()));
    let path = dir.path().join("short");
    let open = || {
        let options = FileOptions { keep: 5, ..FileOptions::default() };
        Arc::new(FileCatalog::open_with(&path, options).expect("opened"))
    };
    let catalog = open();
    let compact = |_| {
        for i in 0..6u8 {
            done(catalog.commit(&Txn::new().put(b"other", &[i])));
        }
    };
    a_forgotten_revision_is_refused(&Pair(catalog.clone(), open()), &compact);
}

#[test]
fn memory_conforms() {
    let catalog = Arc::new(FileCatalog::in_memory().expect("opened"));
    run(&Pair(catalog.clone(), catalog));
}

#[test]
fn a_server_conforms() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start(&dir.path().join("catalog"));
    run(&Pair(Arc::new(server.catalog()), Arc::new(server.catalog())));
    let options = FileOptions { keep: 5, ..FileOptions::default() };
    let server = Server::start_with(&dir.path().join("short"), options, Limits::default());
    let catalog = Arc::new(server.catalog());
    let compact = |_| {
        for i in 0..6u8 {
            done(catalog.commit(&Txn::new().put(b"other", &[i])));
        }
    };
    a_forgotten_revision_is_refused(&Pair(catalog.clone(), Arc::new(server.catalog())), &compact);
}

#[test]
fn etcd_conforms() {
    let Some(etcd) = Etcd::start(1) else { return longhaul_skip::skip!("etcd is not installed") };
    // Others use the same etcd.
    let other = etcd.catalog("");
    done(other.commit(&Txn::new().put(b"other/t/a", b"").put(b"z", b"")));
    let open = || Arc::new(etcd.catalog("longhaul/"));
    run(&Pair(open(), open()));
    let compact = |revision: Revision| {
        let request = serde_json::json!({ "revision": revision.to_string() });
        assert!(etcd.ask(0, "kv/compaction", &request).is_some());
    };
    a_forgotten_revision_is_refused(&Pair(open(), open()), &compact);
    assert!(other.range(b"longhaul/", None).expect("read").entries.len() > 1200);
    // Without a prefix, the keys of all are seen.
    assert_eq!(other.range(b"", None).expect("read").entries.len(), {
        other.range(b"longhaul/", None).expect("read").entries.len() + 2
    });
}
