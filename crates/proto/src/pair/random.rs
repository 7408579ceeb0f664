//! Random input: no panic, bounded memory, no corrupted content.

use super::Rng as Seeded;
use super::*;
use crate::host::HostData;
use crate::transport::BACKLOG_MAX;
use longhaul_wire::command::{Sgl, Sqe};
use longhaul_wire::pdu::{CommonHeader, DataPdu, Format, IcReq, IcResp, PduType};
use proptest::prelude::*;
use zerocopy::IntoBytes;

const ENTRIES: u16 = 4;

/// A PDU that is nearly right: valid lengths around arbitrary fields, so that
/// random input gets past the first check.
#[derive(Clone, Debug)]
struct Near {
    pdu_type: u8,
    flags: u8,
    id: u16,
    tag: u16,
    offset: u32,
    length: u32,
    data: usize,
    opcode: u8,
    sgl: u8,
    /// Xor of one byte of the header.
    damage: Option<(u8, u8)>,
}

fn near() -> impl Strategy<Value = Near> {
    let small = prop_oneof![4 => 0u32..4, 4 => Just(4096u32), 2 => 0u32..20_000, 1 => any::<u32>()];
    let sgl = prop_oneof![Just(0x01u8), Just(0x5a), any::<u8>()];
    let damage = proptest::option::weighted(0.1, (0u8..72, any::<u8>()));
    let ids = (0u16..6, 0u16..40);
    (2u8..10, 0u8..16, ids, small.clone(), small, 0usize..9000, 0u8..8, sgl, damage).prop_map(
        |(pdu_type, flags, (id, tag), offset, length, data, opcode, sgl, damage)| Near {
            // TermReqs end the connection: not too often.
            pdu_type: if pdu_type < 4 && tag > 0 { pdu_type + 4 } else { pdu_type },
            flags,
            id,
            tag,
            offset,
            length,
            data,
            opcode,
            sgl,
            damage,
        },
    )
}

impl Near {
    fn bytes(&self) -> Vec<u8> {
        let Some(pdu_type) = PduType::from_code(self.pdu_type) else { return vec![self.pdu_type; 24] };
        // Mostly as much data as is declared.
        let data = if self.length <= 20_000 && !self.data.is_multiple_of(8) {
            self.length as usize
        } else {
            self.data
        };
        let data = if pdu_type.has_data() { data } else { 0 };
        let (common, _) = CommonHeader::build(pdu_type, self.flags & !3, data as u32, Format::default());
        let mut out = match pdu_type {
            PduType::CapsuleCmd => {
                let sgl = Sgl::make(0, self.length, self.sgl);
                let sqe = Sqe::new(self.opcode).with_cid(self.id).with_cdw(10, self.offset).with_sgl(sgl);
                [common.as_bytes(), &sqe.to_bytes()].concat()
            }
            _ => DataPdu::new(common, self.id, self.tag, self.offset, self.length).as_bytes().to_vec(),
        };
        if let Some((at, xor)) = self.damage
            && let Some(byte) = out.get_mut(usize::from(at))
        {
            *byte ^= xor;
        }
        out.resize(out.len() + data, 0xa5);
        out
    }
}

fn target(answers: Answers) -> TargetEnd {
    let limits = QueueLimits { entries: ENTRIES, in_capsule: 8192, flow_control: false };
    let config = TargetConfig { maxh2cdata: 4096, r2t_bytes: 6000, ..TargetConfig::default() };
    let mut end = TargetEnd::new(TargetQueue::new(config), limits, answers, 1 << 20, 3);
    end.receive(IcReq::new(0, 0, 1).as_bytes());
    end
}

fn host() -> HostEnd {
    let config = HostConfig { entries: ENTRIES, maxr2t: 4, in_capsule: 512, ..HostConfig::default() };
    let mut end = HostEnd::new(HostQueue::new(config), 3);
    end.receive(IcResp::new(0, 0, 4096).as_bytes());
    end
}

fn keep_busy(host: &mut HostEnd, n: usize) {
    let result = match n % 3 {
        0 => host.read(0, 4096),
        1 => host.write(0, vec![1; 8192]),
        _ => host.submit(Sqe::new(0), HostData::None, Vec::new()),
    };
    assert!(result.is_ok() || host.queue.room() == 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..600), fresh in any::<bool>()) {
        let (mut t, mut h) = (target(Answers::AtOnce), host());
        if fresh {
            t = TargetEnd::new(TargetQueue::new(TargetConfig::default()), PairConfig::default().limits, Answers::AtOnce, 0, 1);
            h = HostEnd::new(HostQueue::new(HostConfig::default()), 1);
        }
        t.receive(&bytes);
        h.receive(&bytes);
        prop_assert!(t.transmit().len() < 4096 && h.transmit().len() < 4096);
    }

    #[test]
    fn nearly_valid_pdus_to_a_target(pdus in prop::collection::vec(near(), 1..60), shuffled in any::<bool>()) {
        let mut end = target(if shuffled { Answers::Shuffled } else { Answers::AtOnce });
        for pdu in &pdus {
            end.receive(&pdu.bytes());
            prop_assert!(end.queue.open_commands() <= usize::from(ENTRIES));
            prop_assert!(end.transmit().len() <= BACKLOG_MAX);
        }
    }

    #[test]
    fn nearly_valid_pdus_to_a_host(pdus in prop::collection::vec(near(), 1..60)) {
        let mut end = host();
        for (n, pdu) in pdus.iter().enumerate() {
            if end.closed.is_none() {
                keep_busy(&mut end, n);
            }
            end.receive(&pdu.bytes());
            prop_assert!(end.queue.outstanding() < usize::from(ENTRIES));
            prop_assert!(end.transmit().len() <= BACKLOG_MAX);
        }
    }

    /// With digests, a flipped bit anywhere behind the set-up is found: every
    /// command that succeeds has the right content, or the connection ends.
    #[test]
    fn a_flipped_bit_never_corrupts(at in 0u64..8 * 30_000, to_target in any::<bool>(), seed in any::<u64>()) {
        let mut config = PairConfig { seed, device: 64 << 10, segments: Segments::UpTo(700), ..PairConfig::default() };
        config.host.header_digest = true;
        config.host.data_digest = true;
        config.host.in_capsule = 4096;
        config.target.maxh2cdata = 4096;
        config.target.c2h_bytes = 3000;
        let mut pair = Pair::connected(config);
        let mut rng = Seeded::new(seed);
        let old = rng.bytes(64 << 10);
        pair.target.device.copy_from_slice(&old);
        let new = [rng.bytes(4096), rng.bytes(9000)];
        pair.flip_bit(to_target, at);
        let mut writes = Vec::new();
        for (i, data) in new.iter().enumerate() {
            writes.push((pair.host.write(i as u32 * 32, data.clone()).expect("room"), i));
        }
        let read = pair.host.read(64, 9000).expect("room");
        pair.run();
        let ended = pair.host.closed.is_some() || pair.target.closed.is_some();
        prop_assert!(ended || pair.host.done.len() == 3, "nothing hangs: {:?}", pair.host.done);
        for done in pair.host.done.drain(..).filter(|d| d.cqe.status().is_success()) {
            if done.slot == read {
                prop_assert_eq!(&done.memory[..], &old[64 * BLOCK..][..9000]);
            } else if let Some(&(_, i)) = writes.iter().find(|w| w.0 == done.slot) {
                prop_assert_eq!(&pair.target.device[i * 32 * BLOCK..][..new[i].len()], &new[i][..]);
            }
        }
        for (i, data) in new.iter().enumerate() {
            let at = i * 32 * BLOCK;
            let now = &pair.target.device[at..][..data.len()];
            prop_assert!(now == &data[..] || now == &old[at..][..data.len()], "old or new, nothing else");
        }
    }
}
