//! Hosts that write, replace and read the same files while hosts are lost, checked by what each call was told: a
//! reader that opens a file after a writer has closed it sees that content or later content, and all of it.
//!
//! Each seed is one interleaving of steps. `POOLFS_SEEDS` says how many are run, and `POOLFS_SEED` which is the first.

mod common;

use common::dying::{Dying, End};
use common::{Calls, ROOT, WRITE, assert_right, memory, number};
use longhaul_catalog::Catalog;
use longhaul_fs::{Call, Errno, FileSystem, Handle};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, PoolFs};
use std::sync::Arc;
use std::time::Duration;

const FILES: [&[u8]; 2] = [b"one", b"two"];
/// Bytes of each version: of several stripes, and no multiple of one.
const LEN: usize = 70_000;
const HOSTS: usize = 3;
const STEPS: usize = 90;

/// A moment: each begin and end of a step has one of its own.
type Moment = u64;

/// A version of a file, by the host that has written it.
struct Written {
    file: usize,
    begun: Moment,
    /// `close` or `fsync` has said that it is there.
    confirmed: Option<Moment>,
    /// It is durable, also if its host is lost.
    is_durable: bool,
    /// From then on it is there or it is not: its host was lost, or the file was replaced meanwhile.
    uncertain: Option<Moment>,
    host: u64,
}

/// What a reader has found.
struct Seen {
    file: usize,
    version: usize,
    begun: Moment,
    ended: Moment,
}

#[derive(Default)]
struct History {
    now: Moment,
    written: Vec<Written>,
    seen: Vec<Seen>,
    /// When the name of a file was given to another file, or may have been.
    replaced: Vec<(usize, Moment)>,
}

impl History {
    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn last_moment(&self, version: usize) -> Moment {
        let written = &self.written[version];
        written.confirmed.or(written.uncertain).unwrap_or(Moment::MAX)
    }

    /// One version was over before another one began.
    fn precedes(&self, one: usize, other: usize) -> bool {
        self.last_moment(one) < self.written[other].begun
    }

    /// What this host has written, and is not durable, may be lost.
    fn lost(&mut self, host: u64) {
        let now = self.tick();
        for written in self.written.iter_mut().filter(|written| written.host == host && !written.is_durable) {
            written.uncertain.get_or_insert(now);
        }
    }

    fn check(&self, seed: u64) {
        for (index, seen) in self.seen.iter().enumerate() {
            let version = seen.version;
            assert_eq!(self.written[version].file, seen.file, "seed {seed}: content of another file");
            assert!(self.written[version].begun <= seen.ended, "seed {seed}: content that nothing wrote yet");
            for (other, written) in self.written.iter().enumerate() {
                let was_there = written.confirmed.is_some_and(|confirmed| confirmed < seen.begun)
                    && written.uncertain.is_none_or(|uncertain| uncertain > seen.begun);
                assert!(
                    written.file != seen.file || !was_there || !self.precedes(version, other),
                    "seed {seed}: version {version} was read at {}, after version {other} was confirmed",
                    seen.begun
                );
            }
            for before in self.seen[..index].iter().filter(|before| before.file == seen.file) {
                assert!(
                    before.ended >= seen.begun || !self.precedes(version, before.version),
                    "seed {seed}: version {version} was read at {} after version {}",
                    seen.begun,
                    before.version
                );
            }
        }
    }
}

fn content(version: usize) -> Vec<u8> {
    (version as u64).to_le_bytes().repeat(LEN / 8)
}

/// The version that content is of, all of it.
fn version(bytes: &[u8], seed: u64) -> usize {
    assert_eq!(bytes.len(), LEN, "seed {seed}: a part of a file");
    let first = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert!(bytes.chunks(8).all(|word| word == first.to_le_bytes()), "seed {seed}: parts of two versions");
    first as usize
}

enum Doing {
    Nothing,
    /// It has written a version, to the file itself or to one that takes its name.
    Writes(Handle, usize, Option<Vec<u8>>, Moment),
    Reads(Handle, usize, Moment),
}

struct Host {
    number: u64,
    fs: PoolFs,
    catalog: Arc<Dying>,
    /// Its lease has ended, and it may not know.
    is_expired: bool,
    doing: Doing,
}

struct Site {
    fs: TestFs,
    options: FsOptions,
    rng: fastrand::Rng,
    seed: u64,
    started: u64,
    history: History,
}

impl Site {
    fn new(seed: u64, leases: bool) -> Site {
        let make = if seed.is_multiple_of(2) { TestFs::fenced } else { TestFs::new };
        let fs = make(memory(), 3, (2, 1), 256).expect("made");
        let options = if leases { TestFs::leased() } else { TestFs::options() };
        let options = FsOptions {
            // What a lost host has sent may arrive later: its segments are not used again meanwhile.
            settle: FsOptions::default().settle,
            // Others wait for a host that is lost in the midst of something, for as long as its lease lasts, and a
            // host that has no catalog for this long.
            ttl: Duration::from_millis(500),
            patience: Duration::from_secs(1),
            ..options
        };
        let mut site = Site {
            fs,
            options,
            rng: fastrand::Rng::with_seed(seed),
            seed,
            started: 0,
            history: History::default(),
        };
        let mounted = site.fs.open().expect("mounted");
        for (file, name) in FILES.iter().enumerate() {
            mounted.put(ROOT, name, &content(file)).expect("written");
            let written =
                Written { file, begun: 0, confirmed: Some(0), is_durable: true, uncertain: None, host: 0 };
            site.history.written.push(written);
        }
        drop(mounted);
        site
    }

    fn start(&mut self) -> Host {
        self.started += 1;
        let (left, end) = match self.rng.u8(0..6) {
            0 => (self.rng.u64(4..40), End::Before),
            1 => (self.rng.u64(4..40), End::After),
            2 => (self.rng.u64(4..40), End::AnswerLost),
            _ => (u64::MAX, End::Before),
        };
        let catalog = Dying::new(&self.fs.catalog, left, end);
        match self.fs.open_by(Arc::clone(&catalog) as Arc<dyn Catalog>, &self.options) {
            Ok(fs) => Host { number: self.started, fs, catalog, is_expired: false, doing: Doing::Nothing },
            // It was lost already.
            Err(_) => self.start(),
        }
    }

    /// Its lease ends; whether it knows that or not, what is not confirmed by now never will be.
    fn expire(&mut self, host: &mut Host) {
        self.fs.catalog.revoke(host.fs.lease()).expect("revoked");
        host.is_expired = true;
        self.history.lost(host.number);
    }

    /// A host is lost, and another one comes.
    fn lose(&mut self, mut host: Host) -> Host {
        if !host.is_expired {
            host.catalog.set_away(true);
            self.expire(&mut host);
        }
        host.fs.lose();
        self.start()
    }

    /// The next thing that a host does; an error if it was lost at that.
    fn step(&mut self, host: &mut Host) -> Result<(), Errno> {
        match std::mem::replace(&mut host.doing, Doing::Nothing) {
            Doing::Nothing => {
                let (file, begun) = (self.rng.usize(0..FILES.len()), self.history.tick());
                match self.rng.u8(0..5) {
                    0 | 1 => {
                        let node = host.fs.lookup(ROOT, FILES[file])?.node;
                        let handle = host.fs.open(node, WRITE)?.1;
                        self.write(host, file, (handle, None), begun)
                    }
                    2 => {
                        let name = format!("new{}", self.history.written.len()).into_bytes();
                        let handle = host.fs.create(ROOT, &name, WRITE)?.1;
                        self.write(host, file, (handle, Some(name)), begun)
                    }
                    _ => {
                        let found = host.fs.lookup(ROOT, FILES[file]);
                        let handle = host.fs.open(found?.node, 0)?.1;
                        host.doing = Doing::Reads(handle, file, begun);
                        Ok(())
                    }
                }
            }
            Doing::Reads(handle, file, begun) => {
                let read = host.fs.read(handle, 0, 2 * LEN as u32);
                let ended = self.history.tick();
                let _ = host.fs.close(handle);
                let bytes = match read {
                    Ok(bytes) => bytes,
                    // Another host has replaced it since.
                    Err(Errno::STALE) if self.is_replaced(file, begun) => return Ok(()),
                    Err(e) => return Err(e),
                };
                let version = version(&bytes, self.seed);
                if host.is_expired {
                    // It knows what was there before its lease ended.
                    return Ok(());
                }
                self.history.seen.push(Seen { file, version, begun, ended });
                Ok(())
            }
            Doing::Writes(handle, version, new_name, opened) => {
                let file = self.history.written[version].file;
                let (syncs, syncs_name) = (new_name.is_some() || self.rng.bool(), self.rng.bool());
                let mut is_durable = syncs;
                let synced = if syncs { host.fs.sync(handle) } else { Ok(()) };
                let closed = host.fs.close(handle);
                let is_replaced = self.is_replaced(file, opened);
                if is_replaced && new_name.is_none() {
                    // It has written to a file that has no name any more.
                    let now = self.history.tick();
                    self.history.written[version].uncertain = Some(now);
                    return Ok(());
                }
                synced.and(closed)?;
                if let Some(name) = new_name {
                    let before = self.history.tick();
                    self.history.replaced.push((file, before));
                    let renamed = host.fs.rename((ROOT, &name), (ROOT, FILES[file]), 0);
                    let after = self.history.tick();
                    self.history.replaced.push((file, after));
                    renamed?;
                    if self.options.leases && syncs_name {
                        host.fs.wait(Call::SyncDirectory { node: ROOT })?;
                    }
                    is_durable = syncs_name;
                }
                assert!(!host.is_expired, "seed {}: confirmed after the lease had ended", self.seed);
                let now = self.history.tick();
                let written = &mut self.history.written[version];
                (written.confirmed, written.is_durable) = (Some(now), is_durable || !self.options.leases);
                Ok(())
            }
        }
    }

    fn is_replaced(&self, file: usize, since: Moment) -> bool {
        self.history.replaced.iter().any(|(other, at)| *other == file && *at >= since)
    }

    fn write(
        &mut self,
        host: &mut Host,
        file: usize,
        (handle, new_name): (Handle, Option<Vec<u8>>),
        opened: Moment,
    ) -> Result<(), Errno> {
        let (version, begun) = (self.history.written.len(), self.history.tick());
        let number = host.number;
        let written =
            Written { file, begun, confirmed: None, is_durable: false, uncertain: None, host: number };
        self.history.written.push(written);
        host.doing = Doing::Writes(handle, version, new_name, opened);
        host.fs.write(handle, 0, &content(version)).map(drop)
    }

    fn run(mut self) {
        let mut hosts: Vec<Option<Host>> = (0..HOSTS).map(|_| Some(self.start())).collect();
        for _ in 0..STEPS {
            for host in hosts.iter_mut().flatten() {
                if host.catalog.is_dead() && !host.is_expired {
                    self.expire(host);
                }
            }
            let at = self.rng.usize(0..HOSTS);
            let Some(mut host) = hosts[at].take() else { continue };
            let next = match self.rng.u8(0..40) {
                0 => self.lose(host),
                // It cannot reach the catalog for a while, and is given up by the others.
                1 if !host.is_expired => {
                    host.catalog.set_away(true);
                    self.expire(&mut host);
                    host.catalog.set_away(false);
                    host
                }
                _ => match self.step(&mut host) {
                    Ok(()) => host,
                    // Its lease may have run out on a machine that is short of time.
                    Err(_) if host.is_expired || host.catalog.is_dead() || host.fs.trouble().is_some() => {
                        self.lose(host)
                    }
                    // The answer to a transaction was lost: it may say so.
                    Err(_) if host.catalog.has_lost_an_answer() => self.lose(host),
                    Err(e) => panic!("seed {}: {e:?}", self.seed),
                },
            };
            hosts[at] = Some(next);
        }
        for mut host in hosts.into_iter().flatten() {
            match host.is_expired || host.catalog.is_dead() {
                true => {
                    if !host.is_expired {
                        self.expire(&mut host);
                    }
                    host.fs.lose();
                }
                false => drop(host.fs),
            }
        }
        let last = self.fs.open().expect("mounted");
        for (file, name) in FILES.iter().enumerate() {
            let begun = self.history.tick();
            let version = version(&last.content(ROOT, name).expect("read"), self.seed);
            let ended = self.history.tick();
            self.history.seen.push(Seen { file, version, begun, ended });
        }
        drop(last);
        self.history.check(self.seed);
        assert_right(&self.fs);
    }
}

both! { each_reader_sees_what_was_confirmed_before }

/// Seeds that have found something: a lease that a lost answer ended for the host that had it next.
const FOUND: [u64; 1] = [20_916];

fn each_reader_sees_what_was_confirmed_before(leases: bool) {
    let first = number("POOLFS_SEED", 1);
    for seed in FOUND.into_iter().chain(first..first + number("POOLFS_SEEDS", 40)) {
        Site::new(seed, leases).run();
    }
}
