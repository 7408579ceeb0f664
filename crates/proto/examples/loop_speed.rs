//! What a 4 KiB read costs in the two state machines alone: commands go
//! through both in memory, and payload is not copied.
//!
//! `cargo run --release -p longhaul-proto --example loop_speed [DEPTH]`

use longhaul_proto::host::{self, HostConfig, HostData, HostQueue};
use longhaul_proto::target::{self, QueueLimits, TargetConfig, TargetQueue};
use longhaul_proto::transport::{Batch, Endpoint, Piece, Want};
use longhaul_wire::command::Sqe;
use std::time::{Duration, Instant};

const LEN: u32 = 4096;
const ROUNDS: u32 = 100_000;

/// Passes a batch on, payload by its length only.
fn carry(batch: &Batch, mut bytes: impl FnMut(&[u8]), mut payload: impl FnMut(u16, u32)) {
    for piece in &batch.pieces {
        match *piece {
            Piece::Bytes { start, len } => bytes(&batch.bytes[start as usize..][..len as usize]),
            Piece::Payload { slot, len, .. } => payload(slot, len),
        }
    }
}

fn main() {
    let depth: u16 = std::env::args().nth(1).and_then(|d| d.parse().ok()).unwrap_or(32);
    let mut host = HostQueue::new(HostConfig { entries: depth + 1, ..HostConfig::default() });
    let mut target = TargetQueue::new(TargetConfig::default());
    let (mut to_target, mut to_host) = (Batch::default(), Batch::default());

    host.poll_transmit(&mut to_target);
    target.handle(&to_target.bytes);
    target.set_limits(QueueLimits { entries: depth + 1, in_capsule: 8192, flow_control: false });
    target.poll_transmit(&mut to_host);
    host.handle(&to_host.bytes);
    while target.poll_event().is_some() || host.poll_event().is_some() {}

    let (mut at_host, mut at_target) = (Duration::ZERO, Duration::ZERO);
    let sqe = Sqe::new(0x02).with_nsid(1);
    let mut done = 0u64;
    for _ in 0..ROUNDS {
        let t0 = Instant::now();
        while host.submit(sqe, HostData::Read { len: LEN }).is_ok() {}
        host.poll_transmit(&mut to_target);
        let t1 = Instant::now();
        target.handle(&to_target.bytes);
        while let Some(event) = target.poll_event() {
            if let target::TargetEvent::Command { slot, .. } = event {
                target.send_data_and_complete(slot, 0, LEN, 0);
            }
        }
        target.poll_transmit(&mut to_host);
        for piece in &to_host.pieces {
            if let Piece::Payload { slot, last: true, .. } = *piece {
                target.payload_sent(slot);
            }
        }
        let t2 = Instant::now();
        let host = std::cell::RefCell::new(&mut host);
        carry(
            &to_host,
            |bytes| assert_eq!(host.borrow_mut().handle(bytes), bytes.len()),
            |_, len| {
                let mut host = host.borrow_mut();
                assert!(matches!(host.want(), Want::Payload { .. }));
                host.handle_payload_len(len as usize);
            },
        );
        while let Some(event) = host.borrow_mut().poll_event() {
            done += u64::from(matches!(event, host::HostEvent::Completion { received: LEN, .. }));
        }
        at_host += t1 - t0 + t2.elapsed();
        at_target += t2 - t1;
    }
    let per = |time: Duration| time.as_nanos() as f64 / done as f64;
    println!(
        "{done} reads of {LEN} bytes at depth {depth}: {:.1} ns host, {:.1} ns target each",
        per(at_host),
        per(at_target)
    );
}
