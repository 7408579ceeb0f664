//! A back end with a fault: a panic in it costs the connection that met it.

use crate::client::{BLOCK, read, write};
use crate::rig::{MEM, Rig};
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoFuture, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, Kind, yield_now};
use longhaul_wire::command::Sqe;
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

pub fn panics_in_a_back_end(kind: Kind) {
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
