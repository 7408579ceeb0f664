//! The target's memory is bounded, and commands beyond the bound wait.

mod common;

use common::{PATIENCE, Target, text};
use longhaul_block::{BlockDevice, WriteFlags};
use longhaul_engine::procfs::Process;
use longhaul_engine::{Buf, BufMut, Config, Engine};
use longhaul_initiator::{Options, PathOptions, RemoteDevice};
use std::time::Duration;

const CONNECTIONS: usize = 128;
const DEPTH: usize = 128;
const BLOCK: usize = 128 << 10;
const BOUND_KIB: u64 = 256 << 10;

/// Peak resident set in KiB.
fn peak(target: &Target) -> u64 {
    Process::of(target.child.id()).peak_resident().expect("a peak") >> 10
}

/// 128 connections with 128 writes of 128 KiB each, then with as many reads
/// as this process has memory for: eight and more times what the target may
/// use. All complete, no connection is closed, and the bound holds.
#[test]
fn a_load_of_many_times_the_bound_is_done_within_it() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    // 1 ms of delay keeps buffers in use for longer than a fast disk would.
    for (spec, more) in [
        (format!("x=file:{},size=256MiB,delay=1ms", text(&path)), &[][..]),
        ("x=null:256MiB,delay=1ms".into(), &["--in-capsule", "0"]),
    ] {
        let target = Target::start(&[&spec], &[&["--memory", "256MiB"], more].concat());
        let before = peak(&target);
        let uri = target.uri(0).parse().expect("a URI");
        // One entry of a queue always stays empty.
        let path = PathOptions { connections: Some(CONNECTIONS as u16), ..PathOptions::default() };
        let options = Options { queue_size: DEPTH as u16 + 1, path, ..Options::default() };
        let device = RemoteDevice::connect_blocking(&uri, options).expect("connected");
        let mut events = device.events();
        let source = Buf::copy_of(&vec![0x5a; BLOCK]);
        Engine::new(&Config::default()).expect("engine").block_on(async {
            // Commands go to the least loaded connection, so that each has as many.
            let io = device.open().await.expect("opened");
            let end = longhaul_engine::now() + PATIENCE;
            while usize::from(device.set_up().queues) < CONNECTIONS {
                assert!(longhaul_engine::now() < end, "{:?}", device.set_up());
                longhaul_engine::sleep(Duration::from_millis(1)).await;
            }
            let at = |i: usize| (i * BLOCK) as u64 % (256 << 20);
            let mut writes = Vec::new();
            for _ in 0..DEPTH * CONNECTIONS {
                writes.push(io.write(at(writes.len()), source.clone(), WriteFlags::default()));
            }
            for write in writes {
                write.await.expect("written");
            }
            let mut reads = Vec::new();
            for _ in 0..DEPTH / 16 * CONNECTIONS {
                reads.push(io.read(at(reads.len()), BufMut::zeroed(BLOCK)));
            }
            for read in reads {
                read.await.expect("read");
            }
            io.flush().await.expect("flushed");
            // No connection was replaced.
            assert!(events.try_recv().is_err(), "nothing has happened to the controller");
        });
        let peak = peak(&target);
        eprintln!("{spec}: {before} KiB at rest, {peak} KiB at the peak");
        assert!(peak < BOUND_KIB, "{spec}: {peak} KiB");
        assert!(peak > before + (32 << 10), "{spec}: the load was no load");
        target.stop();
    }
}
