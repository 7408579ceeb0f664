//! Hosts, targets and the catalog server of a file system are killed at random while a program on each host writes:
//! what was synced stays. `LONGHAUL_FS_KILLS` is their number, and `LONGHAUL_FS_KILLS_SEED` decides the order.

use super::{Shared, common};
use common::site::ADMIN;
use common::{PATIENCE, Running, kill_and_wait, mounts_below, number, signal, text, until};
use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const HOSTS: usize = 8;
/// Files of each host that are written over, and their bytes.
const FILES: usize = 3;
const LEN: usize = 150_000;
/// Files of each host that are made, before the oldest one is removed.
const MADE: usize = 6;

/// Set for a program that writes: its directory, and the number of its host.
const DIRECTORY: &str = "LONGHAUL_TEST_DIRECTORY";
const HOST: &str = "LONGHAUL_TEST_HOST";

/// What a program has in its directory for sure, as it has said.
#[derive(Default)]
struct Synced {
    /// The version of each file that is written over.
    versions: [u64; FILES],
    /// Files that were made, by the version of their content.
    made: BTreeSet<u64>,
    steps: u64,
}

impl Synced {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().expect("a number");
        match words[..] {
            ["written", file, version] => self.versions[number(file) as usize] = number(version),
            ["made", version] => drop(self.made.insert(number(version))),
            ["removes", version] => drop(self.made.remove(&number(version))),
            // Lines of the test harness.
            _ => return,
        }
        self.steps += 1;
    }
}

/// Records of 16 bytes, which say whose they are and of which version.
fn content(host: usize, version: u64, len: usize) -> Vec<u8> {
    let record = [(host as u64).to_le_bytes(), version.to_le_bytes()].concat();
    record.into_iter().cycle().take(len / 16 * 16).collect()
}

fn made_content(host: usize, version: u64) -> Vec<u8> {
    content(host, version, 1000 + (version as usize * 7919) % 200_000)
}

/// Writes over a file, or makes one and maybe removes another; says what is synced.
fn step(directory: &Path, host: usize, version: u64, made: &mut VecDeque<u64>) -> io::Result<()> {
    if version.is_multiple_of(2) {
        let file = version as usize / 2 % FILES;
        let path = directory.join(format!("file {file}"));
        let open = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        open.write_all_at(&content(host, version, LEN), 0)?;
        open.sync_all()?;
        println!("written {file} {version}");
        return Ok(());
    }
    let file = File::create_new(directory.join(format!("made {version}")))?;
    file.write_all_at(&made_content(host, version), 0)?;
    file.sync_all()?;
    File::open(directory)?.sync_all()?;
    println!("made {version}");
    made.push_back(version);
    if made.len() > MADE
        && let Some(oldest) = made.pop_front()
    {
        println!("removes {oldest}");
        fs::remove_file(directory.join(format!("made {oldest}")))?;
    }
    Ok(())
}

/// The program of a host; does nothing when it is run as a test. It is another process than the test: a process that
/// has files open there waits for the file system at each start of a program.
#[test]
fn a_program_that_writes() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let (host, mut made) = (number(HOST, 0) as usize, VecDeque::new());
    for version in 1.. {
        // What is not confirmed may be there or not. The host comes back, or what it waits for.
        if step(Path::new(&directory), host, version, &mut made).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Starts the program of a host; what it says is noted.
fn start(directory: &Path, host: usize) -> (Running, Arc<Mutex<Synced>>) {
    let mut program = Command::new(std::env::current_exe().expect("a path"));
    program.args(["--exact", "kills::a_program_that_writes", "--nocapture"]);
    program.env(DIRECTORY, directory).env(HOST, host.to_string()).stdout(Stdio::piped());
    let mut program = Running(program.spawn().expect("started"));
    let (said, synced) = (program.stdout.take().expect("a pipe"), Arc::<Mutex<Synced>>::default());
    let noted = Arc::clone(&synced);
    std::thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            noted.lock().expect("not poisoned").note(&line);
        }
    });
    (program, synced)
}

/// Whether all that was synced is in a directory.
fn check(directory: &Path, host: usize, synced: &Synced) {
    for (file, least) in synced.versions.into_iter().enumerate() {
        if least == 0 {
            continue;
        }
        let bytes = fs::read(directory.join(format!("file {file}"))).expect("it was synced");
        assert_eq!(bytes.len(), LEN / 16 * 16, "host {host}, file {file}");
        for record in bytes.chunks(16) {
            let (whose, version) = record.split_at(8);
            let [whose, version] =
                [whose, version].map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
            // A later one may be there that was not confirmed.
            assert!(
                whose == host as u64 && version >= least,
                "host {host}, file {file}: {version} of {whose}"
            );
        }
    }
    for version in &synced.made {
        let bytes = fs::read(directory.join(format!("made {version}"))).expect("it was synced");
        assert!(bytes == made_content(host, *version), "host {host}, made {version}: {} bytes", bytes.len());
    }
}

impl Shared {
    /// Removes what a killed process has left.
    fn clear(&self, host: &str, at: &Path) {
        until("the mount of the killed process is removed", || {
            let ran = self.run(host, &["umount", "--lazy", text(at)]);
            if ran.code != Some(0) {
                println!("{host}: {}", ran.stderr);
            }
            ran.code == Some(0)
        });
    }

    /// Mounts it on a host, once that works; the process that serves it.
    fn mount_patiently(&self, host: &str, at: &Path) -> String {
        let begun = Instant::now();
        loop {
            let ran = self.run(host, &["mount", "fs:p/f", text(at), "--hostnqn", ADMIN, "--json"]);
            if ran.code == Some(0) {
                return ran.events().remove(0)["pid"].to_string();
            }
            assert!(begun.elapsed() < PATIENCE, "host {host} does not mount it: {}", ran.stderr);
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn what_was_synced_stays_while_hosts_targets_and_the_catalog_server_are_killed() {
    let Some(mut shared) = Shared::of_size("384MiB", None) else { return };
    let (kills, seed) = (number("LONGHAUL_FS_KILLS", 12), number("LONGHAUL_FS_KILLS_SEED", 1));
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = |host: usize| format!("host{host}");
    // Where a killed host had it, nothing but the lazy unmount works.
    let mounts: Vec<PathBuf> = (0..HOSTS).map(|host| shared.at(&format!("mount-{}", name(host)))).collect();
    let directories: Vec<PathBuf> =
        mounts.iter().enumerate().map(|(host, at)| at.join(format!("of {host}"))).collect();
    let mut pids: Vec<String> = (0..HOSTS)
        .map(|host| {
            shared.knows(&name(host));
            let pid = shared.mount_patiently(&name(host), &mounts[host]);
            fs::create_dir(&directories[host]).expect("made");
            pid
        })
        .collect();
    let programs: Vec<_> =
        directories.iter().enumerate().map(|(host, directory)| start(directory, host)).collect();
    let steps = || programs.iter().map(|(_, synced)| synced.lock().expect("not poisoned").steps).sum::<u64>();
    let mut killed = [0; 3];
    for _ in 0..kills {
        let (before, more) = (steps(), rng.u64(1..40));
        until("the hosts go on", || steps() >= before + more);
        match rng.u8(0..10) {
            0..5 => {
                let host = rng.usize(..HOSTS);
                kill_and_wait(&pids[host]);
                shared.clear(&name(host), &mounts[host]);
                pids[host] = shared.mount_patiently(&name(host), &mounts[host]);
                killed[0] += 1;
            }
            5..8 => {
                let target = rng.usize(..3);
                let at = shared.site.kill(target);
                shared.site.restart(target, &at);
                killed[1] += 1;
            }
            _ => {
                shared.server.kill();
                shared.server.run();
                killed[2] += 1;
            }
        }
    }
    let before = steps();
    until("the hosts go on", || steps() >= before + HOSTS as u64);
    let confirmed = steps();
    let synced: Vec<Arc<Mutex<Synced>>> = programs
        .into_iter()
        .map(|(mut program, synced)| {
            signal(&program, "KILL");
            program.end(PATIENCE).expect("killed");
            synced
        })
        .collect();
    // What they have said is noted.
    until("their pipes end", || synced.iter().all(|synced| Arc::strong_count(synced) == 1));
    for host in 0..HOSTS {
        shared.umount(&name(host));
    }
    assert!(mounts_below(shared.site.directory.path()).is_empty());
    shared.knows("last");
    let at = shared.at("mount-last");
    shared.mount_patiently("last", &at);
    for (host, synced) in synced.iter().enumerate() {
        check(&at.join(format!("of {host}")), host, &synced.lock().expect("not poisoned"));
    }
    shared.umount("last");
    let checked = shared.run("last", &["fs", "check", "p/f", "--json", "--hostnqn", ADMIN]);
    assert_eq!(checked.events().pop().expect("a summary")["problems"], 0, "{checked:?}");
    println!(
        "seed {seed}: {killed:?} hosts, targets and servers were killed; {confirmed} steps were confirmed"
    );
}
