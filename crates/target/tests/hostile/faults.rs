//! A back end with a fault: a panic in it costs the connection that met it.
//! And the back ends that a queue opens with its first commands.

use crate::client::{BLOCK, read, write};
use crate::rig::{FILE, MEM, Rig};
use longhaul_block::{BackendSpec, BlockDevice, BlockIo, DeviceInfo, IoFuture, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, EngineKind, yield_now};
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::pdu::{CapsuleResp, DataPdu, PduType, flags};
use std::rc::Rc;
use std::sync::Arc;

/// Panics in every operation: reads when they are begun, the others while
/// they are under way.
struct Faulty;

impl BlockDevice for Faulty {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "faulty".into(),
            size: 1 << 20,
            block_size: BLOCK as u32,
            max_io: 1 << 20,
            optimal_io: 0,
            read_only: false,
            volatile_cache: true,
            discard: true,
            uuid: None,
        }
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async { Ok(Rc::new(Faulty) as Rc<dyn BlockIo>) })
    }
}

fn later<T: 'static>() -> IoFuture<T> {
    IoFuture::new(async {
        yield_now().await;
        panic!("a fault of the back end, while it works")
    })
}

impl BlockIo for Faulty {
    fn read(&self, _: u64, _: BufMut) -> IoFuture<BufMut> {
        panic!("a fault of the back end, at once")
    }

    fn write(&self, _: u64, _: Buf, _: WriteFlags) -> IoFuture<()> {
        later()
    }

    fn flush(&self) -> IoFuture<()> {
        later()
    }

    fn discard(&self, _: u64, _: u64) -> IoFuture<()> {
        later()
    }

    fn write_zeroes(&self, _: u64, _: u64, _: ZeroFlags) -> IoFuture<()> {
        later()
    }
}

/// The first commands of a queue, for namespaces whose devices the queue has
/// not opened yet, all in one segment.
pub fn first_commands_for_many_namespaces(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let dir = tempfile::tempdir().expect("directory");
    let more = [1, 2].map(|i| {
        let file = dir.path().join(i.to_string());
        let spec = format!("file:{},size=16MiB,block=4096", file.display());
        rig.export(BackendSpec::parse(&spec).expect("understood").open().expect("opened"))
    });
    let mut host = rig.host();
    // Two commands for each, so that some wait for a device that is open by then.
    // Reads: a write holds the next command back until it has its memory.
    let commands = [FILE, more[0], more[1], more[0], FILE, more[1]].map(|nsid| read(nsid, 7, BLOCK));
    let (mut bytes, mut open) = (Vec::new(), Vec::new());
    for sqe in commands {
        let cid = host.io.next_cid();
        bytes.extend(host.io.capsule(&sqe.with_cid(cid), &[]));
        open.push(cid);
    }
    host.io.send(&bytes);
    while !open.is_empty() {
        let pdu = host.io.recv().expect("the connection lives, and answers");
        let ended = match pdu.kind {
            PduType::C2HData => {
                assert!(pdu.data == [0; BLOCK], "a new file reads as zeroes");
                let header: DataPdu = pdu.view();
                (pdu.flags & flags::SUCCESS != 0).then(|| header.cccid.get())
            }
            PduType::CapsuleResp => {
                let resp: CapsuleResp = pdu.view();
                let cqe = Cqe::read(&resp.cqe).expect("16 bytes");
                assert_eq!(cqe.status(), Status::SUCCESS);
                Some(cqe.cid())
            }
            other => panic!("{other:?} instead of an answer"),
        };
        let Some(ended) = ended else { continue };
        let at = open.iter().position(|cid| *cid == ended).expect("each is answered once");
        open.remove(at);
    }
    drop(host);
    rig.finish();
}

pub fn panics_in_a_back_end(kind: EngineKind) {
    let Some(rig) = Rig::new(kind, |_| {}) else { return };
    let faulty = rig.export(Arc::new(Faulty));
    let data = vec![7; BLOCK];
    for (what, sqe, data) in [
        ("read", read(faulty, 0, BLOCK), &[][..]),
        ("write", write(faulty, 0, BLOCK), &data),
        ("flush", Sqe::flush(faulty), &[]),
    ] {
        let mut host = rig.host();
        host.verify(MEM, 0, 5);
        let cid = host.io.next_cid();
        let capsule = host.io.capsule(&sqe.with_cid(cid), data);
        host.io.send(&capsule);
        host.io.expect_end(what);
        rig.check();
    }
    rig.wait_for_connections(0);
    rig.remove(faulty);
    rig.finish();
}
