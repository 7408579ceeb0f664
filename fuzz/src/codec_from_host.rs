//! Everything that a host may send, as bytes.
//!
//! Input: a byte of settings, a byte for the size of pieces, the stream.

use crate::stream::{Machine, compare};
use longhaul_proto::controller::ConnectRequest;
use longhaul_proto::target::{CommandData, QueueLimits, TargetConfig, TargetEvent, TargetQueue};
use longhaul_proto::transport::{ENTRIES_MAX, Endpoint};
use longhaul_wire::command::{
    Abort, DatasetManagement, Direction, Features, GetLogPage, Identify, ReadWrite, SQE_LEN, Sqe, opcode_name,
};
use longhaul_wire::fabrics::{Connect, ConnectData, Property};
use longhaul_wire::pdu::{ALIGN_MAX, CommonHeader, Format, IcReq, Layout, PduType};
use std::collections::HashMap;
use zerocopy::{FromBytes, IntoBytes};

/// A target whose driver takes in-capsule data, and answers nothing: so its output does not depend
/// on when it is polled.
struct Silent {
    queue: TargetQueue,
    lengths: HashMap<u16, u32>,
}

impl Silent {
    fn new(settings: u8) -> Silent {
        let config = TargetConfig {
            header_digest: settings & 1 != 0,
            data_digest: settings & 2 != 0,
            cpda: (settings >> 2) & 7,
            ..TargetConfig::default()
        };
        let mut queue = TargetQueue::new(config);
        queue.set_limits(QueueLimits { entries: ENTRIES_MAX, in_capsule: 16384, flow_control: true });
        let mut silent = Silent { queue, lengths: HashMap::new() };
        if settings & 0x20 != 0 {
            silent.queue.handle(IcReq::new(1, 3, 0).as_bytes());
        }
        silent
    }
}

impl Machine for Silent {
    type Queue = TargetQueue;

    fn queue(&mut self) -> &mut TargetQueue {
        &mut self.queue
    }

    fn data_len(&self, slot: u16) -> u32 {
        self.lengths[&slot]
    }

    fn events(&mut self, transcript: &mut Vec<String>) {
        while let Some(event) = self.queue.poll_event() {
            if let TargetEvent::Command { slot, data: CommandData::InCapsule { len }, .. } = event {
                assert!(len <= 16384, "no more in capsule than the limit");
                self.lengths.insert(slot, len);
                self.queue.accept_payload(slot);
            }
            transcript.push(format!("{event:?}"));
        }
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&[settings, piece], stream)) = data.split_first_chunk::<2>() else { return };
    check_header(stream);
    check_command(stream);
    compare(|| Silent::new(settings), stream, piece.into());
}

/// The check of a common header accepts only layouts that add up.
pub(crate) fn check_header(bytes: &[u8]) {
    let Ok((common, _)) = CommonHeader::read_from_prefix(bytes) else { return };
    let Some(kind) = PduType::from_code(common.pdu_type) else { return };
    for bits in 0..4 {
        for align in [0, 1, 7, ALIGN_MAX] {
            let format = Format { header_digest: bits & 1 != 0, data_digest: bits & 2 != 0, align };
            let Ok(layout) = common.check(kind, format) else { continue };
            let Layout { header, header_digest, pad, data, data_digest } = layout;
            let before = u64::from(header) + u64::from(header_digest) + u64::from(pad);
            let all = before + u64::from(data) + u64::from(data_digest);
            assert_eq!(all, u64::from(common.plen.get()), "the parts are the whole");
            assert!(usize::from(header) == kind.hlen() && (data == 0 || kind.has_data() || header == 24));
            if data > 0 && kind.has_data() {
                assert_eq!(before, u64::from(common.pdo), "data begins at PDO");
                assert_eq!(before % (4 * (u64::from(align) + 1)), 0, "data is aligned");
            }
            if data <= longhaul_wire::pdu::DATA_MAX && kind.has_data() {
                let (built, built_pad) = CommonHeader::build(kind, 0, data, format);
                let again = built.check(kind, format).expect("a constructed command passes");
                assert_eq!((again.data, usize::from(again.pad)), (data, built_pad));
            }
        }
    }
}

fn check_command(bytes: &[u8]) {
    let Some(sqe) = Sqe::read(bytes) else { return };
    assert_eq!(sqe.to_bytes(), bytes[..SQE_LEN]);
    let shown = format!(
        "{sqe:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        ReadWrite::of(&sqe),
        DatasetManagement::of(&sqe),
        Identify::of(&sqe),
        GetLogPage::of(&sqe),
        Features::of(&sqe),
        Abort::of(&sqe),
        Connect::of(&sqe),
        Property::of(&sqe),
    );
    assert!(!shown.is_empty() && !opcode_name(bytes[0] & 1 != 0, sqe.opcode, sqe.fctype()).is_empty());
    assert!((1..=1 << 16).contains(&ReadWrite::of(&sqe).blocks));
    assert_eq!(GetLogPage::of(&sqe).len % 4, 0);
    if sqe.direction() == Direction::ToHost {
        return;
    }
    let data = &bytes[SQE_LEN..];
    let data = &data[..data.len().min(ConnectData::LEN)];
    if let Ok(request) = ConnectRequest::parse(&sqe, data) {
        // A host may be without a name; whether it may connect is for the controller to say.
        assert!(data.len() == ConnectData::LEN && !request.subnqn.is_empty());
    }
}
