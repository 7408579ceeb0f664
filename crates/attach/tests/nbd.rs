//! How the NBD server ends: it reports lost writes, and disconnects clients that
//! do not receive. And how it reports allocation.

use longhaul_attach::Served;
use longhaul_attach::nbd::{Address, Export, Nbd};
use longhaul_block::filter::{Errors, Filtered, OpKind, OpSet};
use longhaul_block::{BlockDevice, IoError, MemDevice};
use longhaul_engine::Config;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;

fn server(device: Arc<dyn BlockDevice>, socket: &Path) -> Nbd {
    let requests = Arc::new(Served::open(device, Config::default(), 16 * MIB).expect("opened"));
    let export = Export { name: "d".into(), requests };
    Nbd::start(vec![export], &[Address::Unix(socket.to_owned())]).expect("started")
}

/// A client that has chosen the export, in the old way.
fn client(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("connected");
    stream.read_exact(&mut [0; 18]).expect("greeted");
    stream.write_all(&3u32.to_be_bytes()).expect("sent");
    stream.write_all(&0x4948_4156_454f_5054u64.to_be_bytes()).expect("sent");
    stream.write_all(&[0, 0, 0, 1, 0, 0, 0, 1, b'd']).expect("sent");
    stream.read_exact(&mut [0; 10]).expect("chosen");
    stream
}

fn request(kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend([0, 0]);
    out.extend(kind.to_be_bytes());
    out.extend(7u64.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(len.to_be_bytes());
    out
}

#[test]
fn a_loss_that_no_client_waited_for_is_told_at_the_end() {
    let dir = tempfile::tempdir().expect("directory");
    let socket = dir.path().join("nbd");
    let inner = Arc::new(MemDevice::new(16 * MIB, 4096).expect("mapped"));
    let mut errors = Errors::new(1.0, 0);
    errors.ops = OpSet::NONE.with(OpKind::Write);
    let nbd = server(Arc::new(Filtered::new(inner, errors)), &socket);
    let mut stream = client(&socket);
    stream.write_all(&request(WRITE, 0, 4096)).expect("sent");
    stream.write_all(&[1; 4096]).expect("sent");
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).expect("taken");
    assert_eq!(reply[4..8], [0; 4], "taken");
    // It disconnects without a flush and without NBD_CMD_DISC.
    drop(stream);
    let stopped = nbd.stop();
    assert!(matches!(stopped, Err(IoError::Medium(_))), "{stopped:?}");
}

#[test]
fn a_client_that_does_not_receive_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().expect("directory");
    let socket = dir.path().join("nbd");
    let device = Arc::new(MemDevice::new(16 * MIB, 4096).expect("mapped"));
    for hurry in [false, true] {
        let nbd = server(device.clone(), &socket);
        let mut stream = client(&socket);
        for n in 0..8 {
            stream.write_all(&request(READ, n * MIB, 1 << 20)).expect("sent");
        }
        // Replies arrive, and the client receives none of them.
        while rustix::io::ioctl_fionread(&stream).expect("asked") == 0 {
            std::thread::yield_now();
        }
        let (cut, (tell, told)) = (nbd.cut(), channel());
        let stopping = std::thread::spawn(move || tell.send(nbd.stop()).expect("a listener"));
        if hurry {
            cut();
        }
        let patience = Duration::from_secs(if hurry { 4 } else { 60 });
        let stopped = told.recv_timeout(patience).expect("it ends");
        assert_eq!(stopped, Ok(()));
        stopping.join().expect("no panic");
        drop(stream);
    }
}

const OPTION: u64 = 0x4948_4156_454f_5054;

/// Sends an option: the kinds and data of its answers, to the last one.
fn option(stream: &mut UnixStream, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut out = OPTION.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    stream.write_all(&out).expect("sent");
    let mut replies = Vec::new();
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).expect("a reply");
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let mut data = vec![0; number(16) as usize];
        stream.read_exact(&mut data).expect("its data");
        let kind = number(12);
        replies.push((kind, data));
        if kind == 1 || kind & 1 << 31 != 0 {
            return replies;
        }
    }
}

/// The data of an option about metadata contexts of the export `d`.
fn contexts(queries: &[&str]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let count = (queries.len() as u32).to_be_bytes().to_vec();
    let queries = queries.iter().flat_map(|query| text(query)).collect();
    [text("d"), count, queries].concat()
}

/// A reply in one chunk: its type and data.
fn chunk(stream: &mut UnixStream) -> (u16, Vec<u8>) {
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("a chunk");
    assert_eq!(head[..6], [0x66, 0x8e, 0x33, 0xef, 0, 1], "structured, and the last");
    let len = u32::from_be_bytes(head[16..20].try_into().expect("4 bytes"));
    let mut data = vec![0; len as usize];
    stream.read_exact(&mut data).expect("its data");
    (u16::from_be_bytes([head[6], head[7]]), data)
}

#[test]
fn a_client_that_asks_is_told_what_is_allocated() {
    const STRUCTURED: u32 = 8;
    const LIST: u32 = 9;
    const SET: u32 = 10;
    const GO: u32 = 7;
    const BLOCK_STATUS: u16 = 7;
    let dir = tempfile::tempdir().expect("directory");
    let socket = dir.path().join("nbd");
    let nbd = server(Arc::new(MemDevice::new(16 * MIB, 4096).expect("mapped")), &socket);
    let connect = || {
        let mut stream = UnixStream::connect(&socket).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("time limit");
        stream.read_exact(&mut [0; 18]).expect("greeted");
        stream.write_all(&3u32.to_be_bytes()).expect("sent");
        stream
    };
    let go = [&1u32.to_be_bytes()[..], b"d", &[0, 0]].concat();
    let named = |id: u32| (4, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    let done = || (1, Vec::new());
    let mut stream = connect();
    assert_ne!(option(&mut stream, SET, &contexts(&["base:allocation"]))[0].0 & 1 << 31, 0, "not yet");
    assert_eq!(option(&mut stream, STRUCTURED, &[]), [done()]);
    for all in [&[][..], &["base:"], &["base:allocation"]] {
        assert_eq!(option(&mut stream, LIST, &contexts(all)), [named(0), done()], "{all:?}");
    }
    for none in [&[][..], &["base:"], &["qemu:dirty-bitmap:a"]] {
        assert_eq!(option(&mut stream, SET, &contexts(none)), [done()], "{none:?}");
    }
    assert_eq!(option(&mut stream, SET, &contexts(&["base:allocation"])), [named(1), done()]);
    option(&mut stream, GO, &go);
    for (offset, len) in [(0, 16 << 20), (4096, 1), (MIB, 1 << 20)] {
        stream.write_all(&request(BLOCK_STATUS, offset, len)).expect("sent");
        let extent = [1, len, 0].map(u32::to_be_bytes);
        assert_eq!(chunk(&mut stream), (5, extent.as_flattened().to_vec()), "{len} bytes at {offset}");
    }
    for (offset, len) in [(0, 0), (16 * MIB, 1), (0, (16 << 20) + 1)] {
        stream.write_all(&request(BLOCK_STATUS, offset, len)).expect("sent");
        let (kind, data) = chunk(&mut stream);
        assert_eq!((kind, &data[..4]), (1 << 15 | 1, &[0, 0, 0, 22][..]), "{len} bytes at {offset}");
    }
    drop(stream);

    // Without the context, the command is refused, and the connection stays usable.
    let mut stream = connect();
    option(&mut stream, STRUCTURED, &[]);
    option(&mut stream, GO, &go);
    stream.write_all(&request(BLOCK_STATUS, 0, 4096)).expect("sent");
    assert_eq!(chunk(&mut stream).0, 1 << 15 | 1);
    stream.write_all(&request(READ, 0, 512)).expect("sent");
    assert_eq!(chunk(&mut stream).1[8..], [0; 512]);
    drop(stream);

    let uri = format!("nbd+unix:///d?socket={}", socket.display());
    match std::process::Command::new("nbdinfo").args(["--map", &uri]).output() {
        Ok(map) => {
            let said = String::from_utf8_lossy(&map.stdout).into_owned();
            assert!(map.status.success(), "{said}{}", String::from_utf8_lossy(&map.stderr));
            let words: Vec<&str> = said.split_whitespace().collect();
            assert_eq!(words[..3], ["0", "16777216", "0"], "{said}");
        }
        Err(e) => longhaul_skip::skip_part!("nbdinfo: {e}"),
    }
    assert_eq!(nbd.stop(), Ok(()));
}
