//! Hosts that are lost at any step leave nothing behind.

mod common;

use common::{Doomed, GIB, MIB, Rig, check, check_empty, request};
use longhaul_array::Layout;
use longhaul_pool::{
    Error, Host, Label, Namespace, NamespaceId, Pool, Quota, Recovered, Removed, Space, SpaceError, Spaces,
    VolumeLayout, VolumeRecord, VolumeRequest,
};
use std::sync::Arc;
use uuid::Uuid;

/// Jobs of the randomized test.
const JOBS: u64 = 1000;

fn random_request(rng: &mut fastrand::Rng, job: u64) -> VolumeRequest {
    let layout = match rng.usize(0..=Layout::ALL.len() + 1) {
        0 => VolumeLayout::Single,
        i if i > Layout::ALL.len() => VolumeLayout::Files(Layout::Parity),
        i => VolumeLayout::Array(Layout::ALL[i - 1]),
    };
    let width = match layout {
        VolumeLayout::Single => 1,
        VolumeLayout::Array(Layout::StripeMirror) => rng.usize(1..3) * 2,
        VolumeLayout::Array(_) | VolumeLayout::Files(_) => rng.usize(3..6),
    };
    let spares = if layout.has_array() { rng.usize(0..2) } else { 0 };
    let size = rng.u64(1..600) * MIB;
    // Some names are taken.
    let name = format!("v{}", job - rng.u64(0..10).saturating_sub(8).min(job));
    VolumeRequest { layout, width, spares, job: Some(job.to_string()), ..request(&name, size) }
}

/// Recovers with a host without faults until nothing waits.
fn settle(rig: &Rig) -> Recovered {
    let pool = Pool::open(&rig.host("settler"), "p").expect("opened");
    rig.targets.lock().values_mut().for_each(|target| target.down = 0);
    rig.lose_hosts();
    rig.targets.arrive();
    let recovered = pool.recover().expect("recovered");
    assert_eq!((recovered.held, recovered.waiting.len()), (0, 0), "{recovered:?}");
    recovered
}

#[test]
fn a_thousand_jobs_with_a_crash_at_a_random_step_leak_nothing() {
    let mut rng = fastrand::Rng::with_seed(18);
    let rig = Rig::new(8, 20 * GIB);
    let pool = rig.pool(Quota::default());
    let (mut published, mut crashed, mut swept, mut finished, mut later) = (0, 0, 0, 0, 0);
    for job in 0..JOBS {
        for i in 0..8 {
            rig.targets.set_down(&format!("t{i}"), rng.u8(0..16) == 0);
        }
        let crash_at = rng.u64(1..90);
        let lossy = (rng.u8(0..4) == 0).then_some(10);
        let doomed = Doomed::new(&rig.catalog, &rig.targets, crash_at, lossy, rng.u64(..));
        let host = doomed.host(&format!("host{job}"));
        if let Ok(pool) = Pool::open(&host, "p") {
            if pool.create_volume(&random_request(&mut rng, job)).is_ok() {
                published += 1;
            }
            if rng.bool()
                && let Ok(Removed::Later(_)) = pool.release(&job.to_string())
            {
                later += 1;
            }
        }
        crashed += usize::from(doomed.is_dead());
        // Jobs end, also those whose host is lost.
        if let Some(old) = job.checked_sub(10)
            && let Ok(Removed::Later(_)) = pool.release(&old.to_string())
        {
            later += 1;
        }
        if rng.u8(0..3) == 0 {
            rig.lose_hosts();
        }
        if rng.u8(0..6) == 0 {
            rig.targets.arrive();
        }
        if rng.u8(0..3) == 0 {
            let crash_at = if rng.bool() { u64::MAX } else { rng.u64(1..60) };
            let doomed = Doomed::new(&rig.catalog, &rig.targets, crash_at, None, rng.u64(..));
            let recovered = Pool::open(&doomed.host("recoverer"), "p").and_then(|pool| pool.recover());
            if let Ok(recovered) = recovered {
                swept += recovered.swept;
                finished += recovered.finished;
            }
        }
        if job % 50 == 49 {
            check(&pool, &rig.targets);
        }
    }
    // The test has met what it is about. How often varies: members are made by threads.
    println!("{published} published, {crashed} crashed, {finished} finished, {swept} swept, {later} later");
    assert!([published, crashed, finished, swept, later].into_iter().all(|count| count > 0));
    settle(&rig);
    check(&pool, &rig.targets);
    for job in 0..JOBS {
        for _ in 0..2 {
            assert_eq!(pool.release(&job.to_string()), Ok(Removed::Whole));
        }
    }
    check_empty(&pool, &rig);
}

/// Every step of making and of removing one volume, not a random one.
#[test]
fn a_crash_at_each_step_is_undone_or_finished() {
    let mut steps = 0;
    for crash_at in 1.. {
        for seed in 0..3 {
            let rig = Rig::new(4, GIB);
            let pool = rig.pool(Quota::default());
            let doomed = Doomed::new(&rig.catalog, &rig.targets, crash_at, None, seed);
            let host = doomed.host("doomed");
            let made = Pool::open(&host, "p").and_then(|pool| {
                let made = pool.create_volume(&request("v", 100 * MIB))?;
                pool.remove_volume("v")?;
                Ok(made)
            });
            steps = crash_at;
            if made.is_ok() && !doomed.is_dead() {
                check_empty(&pool, &rig);
                assert!(steps > 30, "{steps} steps were tried");
                return;
            }
            // Before the lease has run out, no other host interferes.
            let before = pool.status().expect("status");
            assert_eq!(pool.recover().expect("recovered").held, before.intents.len());
            assert_eq!(pool.status().expect("status").intents, before.intents);
            settle(&rig);
            check(&pool, &rig.targets);
            // The volume is there wholly or not at all.
            if let Ok(volume) = pool.volume("v") {
                assert_eq!(rig.targets.count(), volume.members.len());
                assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
            }
            check_empty(&pool, &rig);
        }
    }
    unreachable!("{steps} steps");
}

/// Runs something of another host within a call.
type Meanwhile = Box<dyn Fn() + Send + Sync>;

/// Targets of a host that is stopped in the midst of a command, and goes on later.
struct Stopped {
    targets: Arc<common::Targets>,
    before_make: Option<Meanwhile>,
    before_format: Option<Meanwhile>,
}

impl Spaces for Stopped {
    fn space(&self, address: &str) -> Result<Space, SpaceError> {
        self.targets.space(address)
    }
    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError> {
        self.targets.list(address)
    }
    fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError> {
        // One member only: the others are made at the same time.
        if let Some(meanwhile) = self.before_make.as_ref().filter(|_| label.index == 1) {
            meanwhile();
        }
        self.targets.make(address, size, label)
    }
    fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        self.targets.remove(address, namespace)
    }
    fn grow(&self, address: &str, namespace: NamespaceId, size: u64) -> Result<(), SpaceError> {
        self.targets.grow(address, namespace, size)
    }
    fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError> {
        self.targets.relabel(address, namespace, label)
    }
    fn format(&self, volume: &VolumeRecord, members: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError> {
        // The superblocks are written, and then it is stopped.
        let array = self.targets.format(volume, members);
        if let Some(meanwhile) = &self.before_format {
            meanwhile();
        }
        array
    }
    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
        self.targets.array_on(address, namespace)
    }
}

#[test]
fn a_host_that_was_taken_for_lost_publishes_nothing() {
    for at_make in [false, true] {
        let rig = Arc::new(Rig::new(4, GIB));
        let pool = rig.pool(Quota::default());
        let overtake = || -> Meanwhile {
            let rig = Arc::clone(&rig);
            Box::new(move || {
                rig.lose_hosts();
                let other = Pool::open(&rig.host("other"), "p").expect("opened");
                assert_eq!(other.recover().expect("recovered").finished, 1);
                // The name is free, and the volume of that name is another one.
                other.create_volume(&request("v", 50 * MIB)).expect("created");
            })
        };
        let spaces = Stopped {
            targets: Arc::clone(&rig.targets),
            before_make: at_make.then(overtake),
            before_format: (!at_make).then(overtake),
        };
        let stopped = Host { spaces: Arc::new(spaces), ..rig.host("stopped") };
        let refused = Pool::open(&stopped, "p").expect("opened").create_volume(&request("v", 100 * MIB));
        match refused {
            Err(Error::Overtaken(name)) => assert_eq!(name, "v"),
            // The namespaces of the other members were removed while it was stopped.
            Err(Error::Space { attempted: "make an array", .. }) if at_make => {}
            other => panic!("{other:?}"),
        }
        pool.recover().expect("recovered");
        check(&pool, &rig.targets);
        assert_eq!(rig.targets.count(), 3);
        assert_eq!(pool.volume("v").expect("there").shape.size, 50 * MIB);
        assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
        check_empty(&pool, &rig);
    }
}

#[test]
fn hosts_that_allocate_at_the_same_time_never_promise_too_much() {
    // Room for twelve volumes.
    let rig = Rig::new(3, 12 * member_bytes());
    let pool = rig.pool(Quota::default());
    let results: Vec<bool> = std::thread::scope(|scope| {
        let host = |thread: usize| {
            let pool = Pool::open(&rig.host(&format!("host{thread}")), "p").expect("opened");
            let make = move |i| match pool.create_volume(&request(&format!("v{thread}-{i}"), 64 * MIB)) {
                Ok(_) => true,
                Err(Error::Shortage(_)) => false,
                Err(e) => panic!("{e}"),
            };
            (0..6).map(make).collect::<Vec<bool>>()
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || host(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("joined")).collect()
    });
    assert_eq!(results.iter().filter(|made| **made).count(), 12);
    assert_eq!(*rig.targets.full.lock().expect("not poisoned"), 0);
    check(&pool, &rig.targets);
}

/// Bytes of a member of a volume of 64 MiB.
fn member_bytes() -> u64 {
    let request = request("x", 64 * MIB);
    longhaul_pool::Shape::fit(request.layout, request.width, 0, request.unit, request.size)
        .expect("fits")
        .member_size
}
