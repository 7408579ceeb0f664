//! Everything that a controller may send, as bytes.
//!
//! Input: a byte of settings, a byte for the size of pieces, the stream.

use crate::stream::{Machine, compare};
use longhaul_proto::host::{HostConfig, HostData, HostEvent, HostQueue};
use longhaul_proto::transport::{CloseReason, Endpoint, Fault};
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::{CQE_LEN, Cqe};
use longhaul_wire::pdu::{Fes, IcResp};
use zerocopy::IntoBytes;

/// Bytes that each command reads or writes.
const LEN: u32 = 10_000;

/// A host with a read, a write and a flush under way again and again, which submits no more: so its
/// output does not depend on when it is polled.
struct Silent {
    queue: HostQueue,
}

impl Silent {
    fn new(settings: u8) -> Silent {
        let config = HostConfig {
            header_digest: settings & 1 != 0,
            data_digest: settings & 2 != 0,
            hpda: (settings >> 2) & 7,
            maxr2t: 4,
            entries: 16,
            in_capsule: 512,
            no_flow_control: settings & 0x40 != 0,
        };
        let mut queue = HostQueue::new(config);
        if settings & 0x20 != 0 {
            queue.handle(IcResp::new(1, settings & 3, 4096).as_bytes());
            for i in 0..config.entries - 1 {
                let data = match i % 3 {
                    0 => HostData::Read { len: LEN },
                    1 => HostData::Write { len: LEN },
                    _ => HostData::None,
                };
                queue.submit(Sqe::new(2 - (i % 3) as u8), data).expect("room");
            }
        }
        Silent { queue }
    }
}

impl Machine for Silent {
    type Queue = HostQueue;

    fn queue(&mut self) -> &mut HostQueue {
        &mut self.queue
    }

    fn data_len(&self, slot: u16) -> u32 {
        assert_eq!(slot % 3, 0, "payload for a command that reads");
        LEN
    }

    fn events(&mut self, transcript: &mut Vec<String>) {
        while let Some(event) = self.queue.poll_event() {
            if let HostEvent::Completion { received, .. } = event {
                assert!(received <= LEN);
            }
            transcript.push(format!("{event:?}"));
        }
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&[settings, piece], stream)) = data.split_first_chunk::<2>() else { return };
    crate::codec_from_host::check_header(stream);
    if let Some(cqe) = Cqe::read(stream) {
        assert_eq!(cqe.to_bytes(), stream[..CQE_LEN]);
        assert!(!format!("{cqe:?} {}", cqe.status()).is_empty());
        let code = u16::from_le_bytes([stream[0], stream[1]]);
        let fei = cqe.dw1();
        let reason = CloseReason::Terminated { fes: code, fei };
        assert!(!reason.to_string().is_empty());
        if let Some(fes) = Fes::from_code(code) {
            assert_eq!(fes as u16, code);
            assert!(!Fault { fes, fei, what: "" }.to_string().is_empty());
        }
    }
    compare(|| Silent::new(settings), stream, piece.into());
}
