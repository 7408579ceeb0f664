//! A strict controller: what a host may send.

use crate::pdus::{Parser, Pdu};
use longhaul_proto::transport::Params;
use longhaul_wire::command::{SglKind, Sqe};
use longhaul_wire::pdu::{CapsuleCmd, DataPdu, Fes, Format, IcReq, PduType, TermReq, flags};
use std::collections::BTreeMap;

/// A command on the wire.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) cid: u16,
    /// The byte that its data consists of.
    pub(super) fill: u8,
    pub(super) len: u32,
    pub(super) writes: bool,
    /// Bytes of a read that were sent to the host.
    pub(super) sent: u32,
    /// Bytes of a write that R2Ts have asked for.
    pub(super) asked: u32,
    pub(super) last_sent: bool,
}

/// An R2T that the host has not answered wholly.
#[derive(Clone, Copy, Debug)]
struct R2t {
    cid: u16,
    ttag: u16,
    offset: u32,
    left: u32,
    fill: u8,
}

#[derive(Debug, Default)]
pub(super) struct Controller {
    pub(super) parser: Parser,
    pub(super) params: Option<Params>,
    /// Some PDU of the controller was not right.
    pub(super) damaged: bool,
    /// FES of the TermReq that came.
    pub(super) terminated: Option<u16>,
    /// Commands that were not answered.
    pub(super) commands: Vec<Seen>,
    /// Data bytes of commands that are not on the wire yet, by identifier.
    pub(super) fills: BTreeMap<u16, u8>,
    r2ts: Vec<R2t>,
    ic_req: bool,
}

impl Controller {
    pub(super) fn ready(&mut self, params: Params) {
        assert!(self.params.replace(params).is_none(), "set up once");
        self.parser.format = Format {
            header_digest: params.header_digest,
            data_digest: params.data_digest,
            align: params.cpda,
        };
    }

    /// An R2T was sent.
    pub(super) fn asked(&mut self, cid: u16, ttag: u16, offset: u32, left: u32, fill: u8) {
        self.r2ts.push(R2t { cid, ttag, offset, left, fill });
    }

    /// Judges every PDU that is there.
    pub(super) fn receive(&mut self) {
        while let Some(pdu) = self.parser.next() {
            assert_eq!(self.terminated, None, "nothing comes behind a TermReq");
            match pdu.kind {
                PduType::IcReq => {
                    let req: IcReq = pdu.view();
                    assert!(!std::mem::replace(&mut self.ic_req, true) && req.pfv.get() == 0);
                }
                PduType::CapsuleCmd => self.command(&pdu),
                PduType::H2CData => self.data(&pdu),
                PduType::H2CTermReq => {
                    let term: TermReq = pdu.view();
                    assert!(Fes::from_code(term.fes.get()).is_some());
                    self.terminated = Some(term.fes.get());
                }
                other => panic!("{other:?} is not a host's"),
            }
        }
    }

    fn command(&mut self, pdu: &Pdu) {
        let capsule: CapsuleCmd = pdu.view();
        let sqe = Sqe::read(&capsule.sqe).expect("64 bytes");
        let cid = sqe.cid();
        assert_ne!(cid, 0xFFFF);
        assert!(self.commands.iter().all(|c| c.cid != cid), "identifiers are used once at a time");
        let fill = self.fills.remove(&cid).expect("a command that was submitted");
        let in_capsule = matches!(sqe.sgl.kind(), SglKind::InCapsule { offset: 0 });
        assert!(in_capsule || pdu.data.is_empty());
        if in_capsule {
            assert_eq!(pdu.data.len(), sqe.sgl.length() as usize);
        }
        assert!(pdu.data.iter().all(|&byte| byte == fill), "its own data");
        let len = if in_capsule { 0 } else { sqe.sgl.length() };
        let writes = sqe.opcode & 1 != 0;
        self.commands.push(Seen { cid, fill, len, writes, sent: 0, asked: 0, last_sent: false });
    }

    fn data(&mut self, pdu: &Pdu) {
        let data: DataPdu = pdu.view();
        let (cid, ttag) = (data.cccid.get(), data.ttag.get());
        if self.damaged {
            // What the damaged R2Ts asked for is not known here.
            return assert_eq!(data.length.get() as usize, pdu.data.len());
        }
        let at = self.r2ts.iter().position(|r| (r.cid, r.ttag, r.offset) == (cid, ttag, data.offset.get()));
        let Some(at) = at else { panic!("data without an R2T: {data:?}") };
        let r2t = &mut self.r2ts[at];
        let len = data.length.get();
        assert!(len as usize == pdu.data.len() && len > 0 && len <= r2t.left, "as much as was asked for");
        let most = self.params.map_or(0, |params| params.maxh2cdata);
        assert!(len <= most, "{len} bytes, MAXH2CDATA is {most}");
        assert!(pdu.data.iter().all(|&byte| byte == r2t.fill), "its own data");
        r2t.offset += len;
        r2t.left -= len;
        assert_eq!(pdu.flags & flags::LAST_PDU != 0, r2t.left == 0, "LAST_PDU is on the last");
        if r2t.left == 0 {
            self.r2ts.remove(at);
        }
    }

    /// Every R2T was answered.
    pub(super) fn all_sent(&self) {
        assert!(self.r2ts.is_empty() || self.damaged, "{:?}", self.r2ts);
    }
}
