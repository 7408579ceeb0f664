//! How the NBD server ends: with what was lost told, and whoever does not
//! receive.

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
    // It goes without a flush, and without goodbye.
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
        // Replies come, and none is taken out.
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
