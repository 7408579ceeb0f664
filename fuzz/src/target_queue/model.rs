//! A strict host: what a controller may send.

use crate::pdus::{Parser, Pdu};
use longhaul_proto::target::TargetConfig;
use longhaul_proto::transport::Params;
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::pdu::{
    CapsuleResp, DGST_DATA, DGST_HEADER, DataPdu, Fes, Format, IcReq, IcResp, PduType, TermReq, flags,
};
use std::collections::{BTreeMap, VecDeque};

/// How the driver answered a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) status: Status,
    /// Not 0, unless it may go as a SUCCESS flag.
    pub(super) result: u64,
    /// Data that was asked for is still to come: the answer waits for it.
    pub(super) draining: bool,
}

/// A command as the host knows it.
#[derive(Debug, Default)]
struct Submitted {
    len: u32,
    /// Bytes of a read that came.
    received: u32,
    /// Bytes of a write that R2Ts asked for.
    asked: u32,
    last_seen: bool,
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug)]
struct R2t {
    cid: u16,
    ttag: u16,
    offset: u32,
    left: u32,
}

#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) parser: Parser,
    pub(super) ic_req: Option<IcReq>,
    /// Some PDU of the host was damaged.
    pub(super) damaged: bool,
    /// FES of the TermReq that came.
    pub(super) terminated: Option<u16>,
    params: Option<Params>,
    ic_resp: bool,
    /// By identifier, oldest first: one that was answered may be used again
    /// before the answer is on its way.
    commands: BTreeMap<u16, VecDeque<Submitted>>,
    r2ts: Vec<R2t>,
}

impl Host {
    pub(super) fn ready(&mut self, params: Params, config: &TargetConfig) {
        assert!(self.params.replace(params).is_none(), "set up once");
        assert!(config.header_digest || !params.header_digest, "only what the controller allows");
        assert!(config.data_digest || !params.data_digest, "only what the controller allows");
        assert!(params.maxr2t > 0);
    }

    pub(super) fn submitted(&mut self, cid: u16, len: u32) {
        self.commands.entry(cid).or_default().push_back(Submitted { len, ..Submitted::default() });
    }

    pub(super) fn answer(&mut self, cid: u16, answer: Answer) {
        let all = self.commands.get_mut(&cid).expect("a command that was announced");
        let command = all.back_mut().expect("a command that was announced");
        assert!(command.answer.replace(answer).is_none());
    }

    /// The R2T number `which` of those that wait for data.
    pub(super) fn next_r2t(&self, which: usize) -> Option<(u16, u16, u32, u32)> {
        let r2t = self.r2ts.get(which % self.r2ts.len().max(1))?;
        Some((r2t.cid, r2t.ttag, r2t.offset, r2t.left))
    }

    /// It was answered with so many bytes.
    pub(super) fn answered(&mut self, which: usize, len: u32) {
        let at = which % self.r2ts.len().max(1);
        let Some(r2t) = self.r2ts.get_mut(at) else { return };
        r2t.offset += len;
        r2t.left -= len;
        if r2t.left == 0 {
            self.r2ts.remove(at);
        }
    }

    /// Judges every PDU that is there.
    pub(super) fn receive(&mut self, flow_control: bool) {
        while let Some(pdu) = self.parser.next() {
            assert_eq!(self.terminated, None, "nothing comes behind a TermReq");
            match pdu.kind {
                PduType::IcResp => self.ic_resp(&pdu),
                PduType::CapsuleResp => self.response(&pdu, flow_control),
                PduType::R2T => self.r2t(&pdu),
                PduType::C2HData => self.data(&pdu, flow_control),
                PduType::C2HTermReq => {
                    let term: TermReq = pdu.view();
                    assert!(Fes::from_code(term.fes.get()).is_some());
                    self.terminated = Some(term.fes.get());
                }
                other => panic!("{other:?} is not a controller's"),
            }
        }
    }

    fn ic_resp(&mut self, pdu: &Pdu) {
        let resp: IcResp = pdu.view();
        let params = self.params.expect("an answer to a good request");
        assert!(!std::mem::replace(&mut self.ic_resp, true), "one ICResp");
        assert_eq!(resp.dgst & DGST_HEADER != 0, params.header_digest);
        assert_eq!(resp.dgst & DGST_DATA != 0, params.data_digest);
        self.parser.format = Format {
            header_digest: params.header_digest,
            data_digest: params.data_digest,
            align: params.hpda,
        };
    }

    fn pop(&mut self, cid: u16) -> (Submitted, Answer) {
        let all = self.commands.get_mut(&cid).expect("an answer to a command");
        let command = all.pop_front().expect("one answer a command");
        let answer = command.answer.expect("an answer of the driver");
        (command, answer)
    }

    fn response(&mut self, pdu: &Pdu, flow_control: bool) {
        let resp: CapsuleResp = pdu.view();
        let cqe = Cqe::read(&resp.cqe).expect("16 bytes");
        assert!(flow_control != (cqe.sqhd() == 0xFFFF), "SQHD says whether there is flow control");
        if cqe.result() == 0 && !cqe.status().is_success() {
            // Refused by the transport alone, without an event for the driver.
            let own = [
                Status::COMMAND_ID_CONFLICT,
                Status::INVALID_FIELD,
                Status::DATA_SGL_LENGTH,
                Status::SGL_TYPE,
                Status::SGL_OFFSET,
                Status::INVALID_SGL_COUNT,
            ];
            assert!(own.contains(&cqe.status().code()) && cqe.status().is_dnr(), "{}", cqe.status());
            return;
        }
        let (_, answer) = self.pop(cqe.cid());
        assert_eq!((cqe.status(), cqe.result()), (answer.status, answer.result));
        assert!(self.r2ts.iter().all(|r2t| r2t.cid != cqe.cid()) || self.damaged, "its data has come");
    }

    fn r2t(&mut self, pdu: &Pdu) {
        let r2t: DataPdu = pdu.view();
        let (cid, ttag, offset, len) = (r2t.cccid.get(), r2t.ttag.get(), r2t.offset.get(), r2t.length.get());
        let command = self.commands.get_mut(&cid).and_then(|all| all.front_mut());
        let command = command.expect("an R2T for a command under way");
        assert_eq!(offset, command.asked, "data is asked for in order");
        assert!(len > 0 && len <= command.len - command.asked, "within the command's data");
        command.asked += len;
        // What a damaged PDU answered is not known here: its tag may be free.
        if self.damaged {
            self.r2ts.retain(|other| other.ttag != ttag);
        }
        assert!(self.r2ts.iter().all(|other| other.ttag != ttag), "tags are used once at a time");
        self.r2ts.push(R2t { cid, ttag, offset, left: len });
        let outstanding = self.r2ts.iter().filter(|r2t| r2t.cid == cid).count();
        let most = self.params.map_or(0, |params| params.maxr2t as usize);
        // The model does not distinguish a host whose answer was slightly wrong.
        assert!(outstanding <= most || self.damaged, "{outstanding} R2Ts, {most} are allowed");
    }

    fn data(&mut self, pdu: &Pdu, flow_control: bool) {
        let data: DataPdu = pdu.view();
        let cid = data.cccid.get();
        let command = self.commands.get_mut(&cid).and_then(|all| all.front_mut());
        let command = command.expect("data for a command under way");
        assert!(!command.last_seen, "nothing comes behind LAST_PDU");
        assert_eq!(data.length.get() as usize, pdu.data.len());
        assert_eq!(data.offset.get(), command.received, "data comes in order");
        command.received += data.length.get();
        assert!(command.received <= command.len, "no more than the command asked for");
        command.last_seen = pdu.flags & flags::LAST_PDU != 0;
        if pdu.flags & flags::SUCCESS != 0 {
            assert!(command.last_seen && !flow_control, "SUCCESS is allowed");
            let (_, answer) = self.pop(cid);
            assert!(answer.status.is_success() && answer.result == 0, "SUCCESS hides nothing");
        }
    }

    /// Every answer of the driver has come, but those that wait for data.
    pub(super) fn all_answered(&self) {
        for (cid, all) in &self.commands {
            for command in all {
                let late = command.answer.is_some_and(|answer| !answer.draining);
                assert!(!late, "command {cid} was answered: {command:?}");
            }
        }
    }
}
