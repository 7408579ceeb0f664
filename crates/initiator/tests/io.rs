//! Content: data written through a target is read back unchanged, on both engines, with all back
//! ends, sizes, digests and capsules.

mod common;

use common::{NQN, backend, connect, disk, engines, export, in_time, pattern, read, serve, target};
use longhaul_block::filter::{Filtered, OpKind, Stats};
use longhaul_block::{BlockDevice, Blocking, IoError, MemDevice, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, Engine};
use longhaul_initiator::{Error, Options, discover};
use std::sync::Arc;
use uuid::Uuid;

const MIB: usize = 1 << 20;

fn exercise(disk: &Blocking) {
    let block = disk.info().block_size as usize;
    let written = pattern(3 * MIB, 1);
    disk.write_at(&written, 0).expect("written");
    disk.flush().expect("flushed");
    assert!(read(disk, 0, written.len()).expect("read") == written);

    // One block at a time, at odd places.
    for at in [1, 7, 255, 256, 700] {
        let one = pattern(block, 100 + at as u64);
        disk.write_at(&one, (at * block) as u64).expect("written");
        assert!(read(disk, (at * block) as u64, block).expect("read") == one);
    }

    disk.write_zeroes(block as u64, (64 * block) as u64).expect("zeroed");
    let around = read(disk, 0, 66 * block).expect("read");
    assert!(around[..block] == written[..block], "before the zeroes");
    assert!(around[block..65 * block].iter().all(|b| *b == 0), "the zeroes");
    assert!(around[65 * block..] == written[65 * block..66 * block], "behind the zeroes");

    let end = disk.info().size - MIB as u64;
    disk.write_at(&pattern(MIB, 3), end).expect("written");
    disk.discard(end, MIB as u64).expect("discarded");
    let rest = read(disk, end, MIB).expect("read");
    assert!(rest.iter().all(|b| *b == 0) || rest == pattern(MIB, 3), "zeroes or the old content");
    disk.flush().expect("flushed");
}

#[test]
fn every_back_end_on_every_engine() {
    let dir = tempfile::tempdir().expect("directory");
    for engine in engines() {
        let file = dir.path().join(engine.kind.to_string());
        let file = file.display();
        for spec in [
            "mem:32MiB".into(),
            "mem:32MiB,block=512".into(),
            format!("file:{file}-4k,size=32MiB,block=4096"),
            format!("file:{file}-512,size=32MiB,block=512,buffered"),
        ] {
            let target = target(|config| config.engine = engine.clone());
            let uri = export(&target, &spec);
            let disk = disk(&uri, Options { engine: engine.clone(), ..Options::default() });
            assert_eq!(disk.info().size, 32 * MIB as u64, "{spec}");
            exercise(&disk);
            drop(disk);
            assert!(target.stop(), "{spec}");
        }
    }
}

/// The file below holds the data written through the network.
#[test]
fn a_flush_reaches_the_file() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    let (_target, uri) = serve(&format!("file:{},size=8MiB", path.display()));
    let disk = disk(&uri, Options::default());
    let written = pattern(5 * MIB + 4096, 4);
    disk.write_at(&written, 4096).expect("written");
    disk.flush().expect("flushed");
    let found = std::fs::read(&path).expect("read");
    assert!(found[4096..4096 + written.len()] == written);
    assert!(found[..4096].iter().chain(&found[4096 + written.len()..]).all(|b| *b == 0));
}

#[test]
fn what_exceeds_the_largest_transfer_is_split() {
    for engine in engines() {
        let target = target(|config| config.engine = engine.clone());
        let stats = Arc::new(Filtered::new(
            Arc::new(MemDevice::new(64 << 20, 4096).expect("mapped")),
            Stats::default(),
        ));
        let nsid = target.export(NQN, "disk", stats.clone(), Uuid::new_v4()).expect("exported");
        let uri = format!("nvme+tcp://{}/{NQN}?nsid={nsid}", target.addresses()[0]);
        let device =
            connect(&uri, Options { engine: engine.clone(), ..Options::default() }).expect("connected");
        assert_eq!(device.controller().max_transfer, Some(MIB as u64));
        let lengths = [4 * MIB, 4 * MIB + 4096, MIB + 4096, 3 * MIB - 4096, 9 * MIB + 12_288];
        Engine::new(&engine).expect("engine").block_on(async {
            let io = device.open().await.expect("opened");
            let mut commands = 0;
            for (i, len) in lengths.into_iter().enumerate() {
                let bytes = pattern(len, i as u64);
                let at = 4096 * (i as u64 + 1);
                io.write(at, Buf::copy_of(&bytes), WriteFlags { fua: i % 2 == 0 }).await.expect("written");
                let back = io.read(at, BufMut::zeroed(len)).await.expect("read");
                assert!(back[..] == bytes[..], "{len} bytes");
                commands += len.div_ceil(MIB) as u64;
            }
            let counts = stats.filter().snapshot();
            assert_eq!(counts.of(OpKind::Read).begun, commands);
            assert_eq!(counts.of(OpKind::Write).bytes, lengths.iter().sum::<usize>() as u64);
            // More blocks than one Write Zeroes can name.
            let zeroes = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
            io.write_zeroes(0, 64 << 20, zeroes).await.expect("zeroed");
            let back = io.read(0, BufMut::zeroed(16 * MIB)).await.expect("read");
            assert!(back.iter().all(|b| *b == 0));
        });
    }
}

#[test]
fn digests_in_every_combination() {
    for engine in engines() {
        let target = target(|config| config.engine = engine.clone());
        let uri = export(&target, "mem:32MiB");
        for (hdr_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
            let options = Options { hdr_digest, data_digest, engine: engine.clone(), ..Options::default() };
            let device = connect(&uri, options).expect("connected");
            let granted = (device.controller().hdr_digest, device.controller().data_digest);
            assert_eq!(granted, (hdr_digest, data_digest));
            exercise(&Blocking::open_on(device, engine.clone()).expect("opened"));
        }
    }
}

#[test]
fn digests_that_are_not_granted_are_done_without() {
    let target = target(|config| (config.hdr_digest, config.data_digest) = (false, false));
    let uri = export(&target, "mem:32MiB");
    let options = Options { hdr_digest: true, data_digest: true, ..Options::default() };
    let device = connect(&uri, options).expect("connected");
    assert_eq!((device.controller().hdr_digest, device.controller().data_digest), (false, false));
    exercise(&Blocking::open(device).expect("opened"));
}

#[test]
fn every_size_of_capsule() {
    for engine in engines() {
        for in_capsule in [0, 8 << 10, 1 << 20, 4 << 20] {
            let target = target(|config| {
                config.engine = engine.clone();
                config.in_capsule = in_capsule;
            });
            let uri = export(&target, "mem:32MiB");
            let max_transfer = 4 << 20;
            let options = Options { engine: engine.clone(), max_transfer, ..Options::default() };
            let device = connect(&uri, options).expect("connected");
            assert_eq!(device.controller().in_capsule, u64::from(in_capsule));
            assert_eq!(device.controller().max_transfer, Some(u64::from(in_capsule.max(1 << 20))));
            // A write of the largest size, and one just above what fits.
            let bytes = pattern(4 * MIB + 8192, 5);
            let engine = engine.clone();
            let write = Buf::copy_of(&bytes);
            let back = in_time("a write", move || {
                Engine::new(&engine).expect("engine").block_on(async {
                    let io = device.open().await.expect("opened");
                    io.write(0, write.clone(), WriteFlags::default()).await.expect("written");
                    let odd = (in_capsule as usize + 4096).min(4 * MIB);
                    let at = 16 << 20;
                    io.write(at, write.slice(4096..4096 + odd), WriteFlags::default())
                        .await
                        .expect("written");
                    let back = io.read(at, BufMut::zeroed(odd)).await.expect("read");
                    assert!(back[..] == write[4096..4096 + odd]);
                    io.read(0, BufMut::zeroed(write.len())).await.expect("read").freeze()
                })
            });
            assert!(back[..] == bytes[..], "{in_capsule}");
        }
    }
}

/// Ten times as many operations as the queue has entries, begun at once.
#[test]
fn a_full_queue_is_not_a_fault() {
    const OPERATIONS: u64 = 320;
    for engine in engines() {
        let target = target(|config| config.engine = engine.clone());
        let uri = export(&target, "mem:32MiB,delay=1ms");
        let options = Options { queue_size: 32, engine: engine.clone(), ..Options::default() };
        let device = connect(&uri, options).expect("connected");
        in_time("a full queue", move || {
            Engine::new(&engine).expect("engine").block_on(async {
                let io = device.open().await.expect("opened");
                let writes: Vec<_> = (0..OPERATIONS)
                    .map(|i| io.write(i * 4096, Buf::copy_of(&pattern(4096, i)), WriteFlags::default()))
                    .collect();
                for write in writes {
                    write.await.expect("written");
                }
                let reads: Vec<_> =
                    (0..OPERATIONS).map(|i| io.read(i * 4096, BufMut::zeroed(4096))).collect();
                for (i, read) in (0..).zip(reads) {
                    assert!(read.await.expect("read")[..] == pattern(4096, i)[..], "{i}");
                }
            });
        });
    }
}

#[test]
fn threads_have_queues_of_their_own() {
    const THREADS: u64 = 8;
    const PART: usize = 2 * MIB;
    for engine in engines() {
        let target = target(|config| config.engine = engine.clone());
        let uri = export(&target, "mem:32MiB");
        let device =
            connect(&uri, Options { engine: engine.clone(), ..Options::default() }).expect("connected");
        let [opened, counted] = [(); 2].map(|()| std::sync::Barrier::new(THREADS as usize + 1));
        std::thread::scope(|scope| {
            for t in 0..THREADS {
                let (engine, opened, counted) = (engine.clone(), &opened, &counted);
                let device: Arc<dyn BlockDevice> = device.clone();
                scope.spawn(move || {
                    let disk = Blocking::open_on(device, engine).expect("opened");
                    opened.wait();
                    counted.wait();
                    for round in 0..4 {
                        let bytes = pattern(PART, t * 100 + round);
                        disk.write_at(&bytes, t * PART as u64).expect("written");
                        assert!(read(&disk, t * PART as u64, PART).expect("read") == bytes);
                    }
                });
            }
            opened.wait();
            // That of the controller, and one for each thread.
            let connections = target.connections() as u64;
            counted.wait();
            assert_eq!(connections, 1 + THREADS);
        });
        let whole = Blocking::open_on(device, engine).expect("opened");
        for t in 0..THREADS {
            assert!(read(&whole, t * PART as u64, PART).expect("read") == pattern(PART, t * 100 + 3));
        }
    }
}

#[test]
fn two_namespaces_of_a_subsystem_are_apart() {
    let target = target(|_| {});
    let (one, two) = (export(&target, "mem:8MiB"), export(&target, "mem:16MiB,block=512"));
    assert!(one.ends_with("nsid=1") && two.ends_with("nsid=2"));
    let (first, second) = (disk(&one, Options::default()), disk(&two, Options::default()));
    assert_eq!((first.info().size, first.info().block_size), (8 << 20, 4096));
    assert_eq!((second.info().size, second.info().block_size), (16 << 20, 512));
    assert_ne!(first.info().uuid, second.info().uuid);
    first.write_at(&pattern(MIB, 1), 0).expect("written");
    second.write_at(&pattern(MIB, 2), 0).expect("written");
    assert!(read(&first, 0, MIB).expect("read") == pattern(MIB, 1));
    assert!(read(&second, 0, MIB).expect("read") == pattern(MIB, 2));

    let (plain, _) = one.split_once('?').expect("an option");
    let e = connect(plain, Options::default()).expect_err("which one?").to_string();
    assert!(e.contains("namespaces 1, 2: choose one with ?nsid=N"), "{e}");
    let e = connect(&format!("{plain}?nsid=3"), Options::default()).expect_err("it does not exist");
    assert!(matches!(e, Error::NotFound(_)) && e.to_string().contains("no namespace 3"), "{e}");
}

#[test]
fn short_names_are_looked_up() {
    let target = target(|_| {});
    export(&target, "mem:8MiB");
    let other = "nqn.2026-11.io.longhaul:test:other";
    target.export(other, "other", backend("mem:4MiB"), Uuid::new_v4()).expect("exported");
    let addr = target.addresses()[0];

    let log = discover(&addr.ip().to_string(), addr.port(), Options::default()).expect("discovered");
    let mut names: Vec<_> = log.records.iter().filter_map(|r| r.uri()).collect();
    names.sort();
    assert_eq!(names, [format!("nvme+tcp://{addr}/{NQN}"), format!("nvme+tcp://{addr}/{other}")]);

    let device = connect(&format!("nvme+tcp://{addr}/other"), Options::default()).expect("connected");
    assert_eq!((device.info().size, device.controller().subnqn.as_str()), (4 << 20, other));
    let e =
        connect(&format!("nvme+tcp://{addr}/nowhere"), Options::default()).expect_err("it does not exist");
    assert!(matches!(e, Error::NotFound(_)) && e.to_string().contains("'nowhere'"), "{e}");
    // Not a whole part of the name.
    connect(&format!("nvme+tcp://{addr}/ther"), Options::default()).expect_err("it does not exist");
    let e = connect(&format!("nvme+tcp://{addr}/{NQN}x"), Options::default()).expect_err("it does not exist");
    assert!(matches!(e, Error::NotFound(_)) && e.to_string().contains("longhaul discover"), "{e}");
}

#[test]
fn what_makes_no_sense_is_refused_and_the_rest_goes_on() {
    let (_target, uri) = serve("mem:8MiB");
    let device = connect(&uri, Options::default()).expect("connected");
    Engine::new(&longhaul_engine::Config::default()).expect("engine").block_on(async {
        let io = device.open().await.expect("opened");
        let past = io.read(8 << 20, BufMut::zeroed(4096)).await.expect_err("past the end");
        assert!(past.to_string().contains("LBA"), "{past}");
        let past = io.write((8 << 20) - 4096, Buf::copy_of(&[1; 8192]), WriteFlags::default()).await;
        assert!(matches!(past, Err(IoError::Refused(_) | IoError::OutOfRange { .. })), "{past:?}");
        io.write(0, Buf::copy_of(&[9; 4096]), WriteFlags::default()).await.expect("written");
        assert_eq!(io.read(0, BufMut::zeroed(4096)).await.expect("read")[..], [9; 4096]);
        assert!(io.read(0, BufMut::zeroed(0)).await.expect("nothing").is_empty());
    });
}
