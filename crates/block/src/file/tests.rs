use super::*;
use futures_channel::oneshot;
use futures_util::future::join_all;
use longhaul_engine::{Config, Engine, EngineKind};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

fn run<T>(future: impl Future<Output = T>) -> T {
    Engine::new(&Config::default()).expect("engine").block_on(future)
}

fn sized(size: u64) -> FileOptions {
    FileOptions { size: Some(size), ..FileOptions::default() }
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    (dir, path)
}

fn open_error(path: &Path, options: &FileOptions) -> String {
    FileDevice::open_file(path, options).map(drop).expect_err("refused").to_string()
}

#[test]
fn content_stays_in_the_file_with_every_driver_and_alignment() {
    for kind in [EngineKind::Epoll, EngineKind::Uring] {
        let config = Config { kind, ..Config::default() };
        let Ok(engine) = Engine::new(&config) else {
            longhaul_skip::skip_part!("{kind} cannot be had here");
            continue;
        };
        for buffered in [false, true] {
            let (_dir, path) = scratch();
            let options = FileOptions { buffered, ..sized(1 << 20) };
            let device = FileDevice::open_file(&path, &options).expect("created");
            assert_eq!((device.info().size, device.info().block_size), (1 << 20, 4096));
            engine.block_on(async {
                let io = device.open().await.expect("opened");
                let data: Vec<u8> = (0..16384u32).map(|n| (n % 251) as u8).collect();
                io.write(4096, Buf::copy_of(&data), WriteFlags::default()).await.expect("written");
                // Memory that starts anywhere: the window is at an odd address.
                let mut odd = BufMut::zeroed(4097 + 8192);
                let mut odd = odd.split_off(4097);
                odd.copy_from_slice(&data[..8192]);
                io.write(65536, odd.freeze(), WriteFlags { fua: true }).await.expect("written");
                io.flush().await.expect("flushed");
                let mut odd = BufMut::zeroed(1 + 16384);
                let back = io.read(4096, odd.split_off(1)).await.expect("read");
                assert!(back[..] == data[..]);
                let back = io.read(65536, BufMut::zeroed(8192)).await.expect("read");
                assert!(back[..] == data[..8192]);
            });
            let file = std::fs::read(&path).expect("read");
            assert!(file[65536..65536 + 8192] == file[4096..4096 + 8192] && file[65537] == 1);
        }
    }
}

#[test]
fn a_dropped_write_still_happens() {
    let (_dir, path) = scratch();
    let device = FileDevice::open_file(&path, &sized(1 << 20)).expect("created");
    run(async {
        let io = device.open().await.expect("opened");
        drop(io.write(0, Buf::copy_of(&[5; 4096]), WriteFlags::default()));
        // A device promises no order, so look until it is there.
        loop {
            let back = io.read(0, BufMut::zeroed(4096)).await.expect("read");
            if back[..] == [5; 4096] {
                break;
            }
        }
    });
}

#[test]
fn flushes_and_durable_writes_hear_of_what_another_one_met() {
    let (_dir, path) = scratch();
    let options = FileOptions { buffered: true, ..sized(1 << 20) };
    let device = FileDevice::open_file(&path, &options).expect("created");
    run(async {
        let io = device.open().await.expect("opened");
        let (returns, call) = oneshot::channel::<io::Result<()>>();
        let inner = Arc::clone(&device.inner);
        let other = async move { inner.syncs.sync(async { call.await.expect("it returns") }).await };
        let other = begin(other, |rest| spawn(rest).detach());
        let mut all = join_all([
            io.flush(),
            io.write(0, Buf::copy_of(&[1; 4096]), WriteFlags { fua: true }),
            io.write_zeroes(4096, 4096, ZeroFlags { fua: true, may_deallocate: false }),
        ]);
        let early = longhaul_engine::timeout(Duration::from_millis(50), &mut all).await;
        assert!(early.is_err(), "the kernel may have told the other one of their loss");
        returns.send(Err(io::ErrorKind::StorageFull.into())).expect("it waits");
        assert_eq!(other.await, Err(IoError::NoSpace));
        assert_eq!(all.await, [const { Err(IoError::NoSpace) }; 3]);
        io.flush().await.expect("flushed");
    });
}

#[test]
fn space_comes_on_demand_and_goes_back() {
    let (_dir, path) = scratch();
    let device = FileDevice::open_file(&path, &sized(64 << 20)).expect("created");
    let blocks = || std::fs::metadata(&path).expect("there").blocks();
    assert!(blocks() < 64, "created sparse");
    run(async {
        let io = device.open().await.expect("opened");
        io.write(0, Buf::copy_of(&vec![1; 4 << 20]), WriteFlags::default()).await.expect("written");
        io.flush().await.expect("flushed");
        let full = blocks();
        assert!(full >= 8192, "{full}");
        if !device.info().discard {
            longhaul_skip::skip_part!("no holes in files here");
            return;
        }
        io.discard(0, 2 << 20).await.expect("discarded");
        assert!(blocks() < full, "space came back");
        let punch = ZeroFlags { fua: true, may_deallocate: true };
        io.write_zeroes(2 << 20, 1 << 20, punch).await.expect("zeroed");
        let keep = ZeroFlags::default();
        io.write_zeroes(3 << 20, 4096, keep).await.expect("zeroed");
        let back = io.read(0, BufMut::zeroed(4 << 20)).await.expect("read");
        let zeroes = (3 << 20) + 4096;
        assert!(back[..zeroes].iter().all(|b| *b == 0) && back[zeroes..].iter().all(|b| *b == 1));
        let end = device.info().size;
        assert!(io.discard(end, 4096).await.is_err());
        zeroes_without_help(&device, &*io, zeroes as u64).await;
    });
}

/// The way without help from the file system writes the same zeroes.
async fn zeroes_without_help(device: &FileDevice, io: &dyn BlockIo, at: u64) {
    device.inner.write_zeroes(at, 4096).await.expect("written");
    let back = io.read(at, BufMut::zeroed(8192)).await.expect("read");
    assert!(back[..4096].iter().all(|b| *b == 0) && back[4096..].iter().all(|b| *b == 1));
}

#[test]
fn sizes_are_kept_grown_and_never_shrunk() {
    let (_dir, path) = scratch();
    assert!(open_error(&path, &FileOptions::default()).contains("give size= to create it"));
    drop(FileDevice::open_file(&path, &sized(1 << 20)).expect("created"));
    let same = FileDevice::open_file(&path, &FileOptions::default()).expect("opened");
    assert_eq!(same.info().size, 1 << 20);
    drop(same);
    drop(FileDevice::open_file(&path, &sized(2 << 20)).expect("grown"));
    let message = open_error(&path, &sized(1 << 20));
    assert!(message.contains("has 2097152 bytes already and is not made shorter"), "{message}");
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 2 << 20);
    let message = open_error(&path, &sized((4 << 20) + 7));
    assert!(message.contains("not a whole number of blocks"), "{message}");
}

#[test]
fn a_resized_file_is_seen_after_a_refresh() {
    let (_dir, path) = scratch();
    let device = FileDevice::open_file(&path, &sized(1 << 20)).expect("created");
    run(async {
        let io = device.open().await.expect("opened");
        assert!(io.read(1 << 20, BufMut::zeroed(4096)).await.is_err());
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
        file.set_len((2 << 20) + 100).expect("grown");
        assert_eq!(device.info().size, 1 << 20);
        assert_eq!(device.refresh().expect("looked").size, 2 << 20);
        io.read(1 << 20, BufMut::zeroed(4096)).await.expect("read");
        file.set_len(8192).expect("cut");
        let error = io.read(1 << 20, BufMut::zeroed(4096)).await.map(drop).expect_err("gone");
        assert!(error.to_string().contains("was it made shorter?"), "{error}");
        assert_eq!(device.refresh().expect("looked").size, 8192);
    });
}

#[test]
fn one_server_writes_or_many_read() {
    let (_dir, path) = scratch();
    let ro = FileOptions { read_only: true, ..FileOptions::default() };
    let writer = FileDevice::open_file(&path, &sized(1 << 20)).expect("created");
    assert!(open_error(&path, &FileOptions::default()).contains("in use by another program"));
    assert!(open_error(&path, &ro).contains("in use by another program"));
    drop(writer);
    let reader = FileDevice::open_file(&path, &ro).expect("opened");
    let second = FileDevice::open_file(&path, &ro).expect("opened twice");
    assert!(open_error(&path, &FileOptions::default()).contains("in use"));
    run(async {
        let io = reader.open().await.expect("opened");
        let write = io.write(0, Buf::copy_of(&[1; 4096]), WriteFlags::default()).await;
        assert_eq!(write, Err(IoError::ReadOnly));
        assert_eq!(io.discard(0, 4096).await, Err(IoError::ReadOnly));
        io.read(0, BufMut::zeroed(4096)).await.expect("read");
    });
    drop(second);
}

#[test]
fn wrong_kinds_of_file_are_named() {
    let (dir, path) = scratch();
    assert!(open_error(dir.path(), &FileOptions::default()).contains("is not a regular file"));
    std::fs::write(&path, [0; 100]).expect("written");
    assert!(open_error(&path, &FileOptions::default()).contains("not a whole number of blocks"));
    let block = FileDevice::open_block(&path, &FileOptions::default()).map(drop).expect_err("refused");
    assert!(block.to_string().contains("for a regular file use file:PATH"), "{block}");
    let gone = open_error(&dir.path().join("no/such"), &sized(4096));
    assert!(gone.contains("no/such cannot be created: its directory does not exist"), "{gone}");
}

#[test]
fn odd_sizes_are_served_in_smaller_blocks() {
    let (_dir, path) = scratch();
    std::fs::write(&path, vec![3; 4096 + 512 + 10]).expect("written");
    let device = FileDevice::open_file(&path, &FileOptions::default()).expect("opened");
    assert_eq!((device.info().size, device.info().block_size), (4608, 512));
    run(async {
        let io = device.open().await.expect("opened");
        assert_eq!(io.read(4096, BufMut::zeroed(512)).await.expect("read")[..], [3; 512]);
    });
}

#[test]
fn a_full_disk_has_its_own_error() {
    let full = io::Error::from_raw_os_error(libc::ENOSPC);
    assert_eq!(IoError::from(full), IoError::NoSpace);
}

/// A file system of 2 MiB, until it is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Result<Small, String> {
        let dir = tempfile::tempdir().expect("directory");
        let args = ["-t", "tmpfs", "-o", "size=2m", "none"];
        let ran = std::process::Command::new("mount").args(args).arg(dir.path()).output();
        match ran {
            Ok(ran) if ran.status.success() => Ok(Small(dir)),
            Ok(ran) => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
            Err(e) => Err(format!("mount: {e}")),
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_file_without_room_says_so_before_a_write_is_acknowledged() {
    for kind in [EngineKind::Epoll, EngineKind::Uring] {
        let config = Config { kind, ..Config::default() };
        let Ok(engine) = Engine::new(&config) else {
            longhaul_skip::skip_part!("{kind} cannot be had here");
            continue;
        };
        for buffered in [false, true] {
            let small = match Small::mount() {
                Ok(small) => small,
                Err(why) => return longhaul_skip::skip!("a tmpfs takes root: {why}"),
            };
            let options = FileOptions { buffered, ..sized(8 << 20) };
            let device = FileDevice::open_file(&small.0.path().join("disk"), &options).expect("created");
            engine.block_on(async {
                const PIECE: usize = 256 << 10;
                let io = device.open().await.expect("opened");
                let mut taken = 0u8;
                let refused = loop {
                    let piece = Buf::copy_of(&[taken + 1; PIECE]);
                    match io.write(u64::from(taken) * PIECE as u64, piece, WriteFlags::default()).await {
                        Ok(()) => taken += 1,
                        Err(e) => break e,
                    }
                };
                assert_eq!(refused, IoError::NoSpace);
                assert!((4..=8).contains(&taken), "{taken} of 8 pieces that there is room for");
                // In place the file system has room, and the first writes are stored.
                io.write(0, Buf::copy_of(&[1; PIECE]), WriteFlags { fua: true }).await.expect("in place");
                assert_eq!(io.flush().await, Ok(()));
                for n in 0..taken {
                    let back =
                        io.read(u64::from(n) * PIECE as u64, BufMut::zeroed(PIECE)).await.expect("read");
                    assert!(back[..] == [n + 1; PIECE], "piece {n}");
                }
            });
        }
    }
}
