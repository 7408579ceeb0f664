//! A controller behind the transport: commands as bytes into a `TargetQueue`,
//! and a driver that does what the controller asks for when it likes.
//!
//! Input: operations, each a byte ([`op`]) and its arguments.

use crate::input::Input;
use crate::pdus::{Parser, Pdu};
use longhaul_proto::controller::{
    ABORT_LIMIT, AER_LIMIT, Action, Change, ConnectRequest, Content, Controller, DiscoveryContent, Env,
    ErrorRecord, HealthCounters, HostAccess, Instance, NvmContent, OtherReset, REGISTRATION_ENTRIES_MAX,
    Reply, SubsystemView, parse_registration,
};
use longhaul_proto::target::{CommandData, QueueLimits, TargetConfig, TargetEvent, TargetQueue};
use longhaul_proto::transport::{Batch, Endpoint, Piece, Want};
use longhaul_wire::command::{Sgl, Sqe, admin, fctype, is_fabrics};
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::fabrics::ConnectData;
use longhaul_wire::nqn::DISCOVERY_NQN;
use longhaul_wire::pdu::{CapsuleResp, Format, IcReq, PduType};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use uuid::Uuid;
use zerocopy::IntoBytes;

/// Operations of this target, by their first byte.
pub mod op {
    #![allow(missing_docs, reason = "each is a command or a call of that name")]

    pub const COMMAND: u8 = 0;
    pub const CONNECT: u8 = 1;
    pub const CONNECT_IO: u8 = 2;
    pub const IO_FABRICS: u8 = 3;
    pub const CHANGE_DONE: u8 = 4;
    pub const ABORT_DONE: u8 = 5;
    pub const NAMESPACE_CHANGED: u8 = 6;
    pub const ANA_CHANGED: u8 = 7;
    pub const DISCOVERY_CHANGED: u8 = 8;
    pub const QUEUE_CLOSED: u8 = 9;
    pub const TIME: u8 = 10;
    pub const RECORD_ERROR: u8 = 11;
    pub(super) const COUNT: u8 = 12;
}

const OPS_MAX: usize = 1000;
const SUBNQN: &str = "nqn.2014-08.org.example:disk";
const HOSTNQN: &str = "nqn.2014-08.org.example:host";
const HOSTID: Uuid = Uuid::from_u128(7);
const CNTLID: u16 = 5;
const MAX_QUEUES: u16 = 8;

struct Rig {
    queue: TargetQueue,
    parser: Parser,
    view: SubsystemView,
    controller: Option<Controller>,
    now: Instant,
    /// Identifiers of event requests that wait.
    held: BTreeSet<u16>,
    /// Slots of Abort commands that were handed to the driver.
    aborts: Vec<u16>,
    changes: Vec<Change>,
    /// Commands answered, and answers seen on the wire.
    answered: u64,
    seen: u64,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut rig = Rig::new(&mut input);
    for _ in 0..OPS_MAX {
        if input.is_empty() || rig.queue.is_closed() {
            break;
        }
        rig.step(&mut input);
        rig.events();
        rig.transmit();
        rig.check();
    }
}

impl Rig {
    fn new(input: &mut Input<'_>) -> Rig {
        let settings = input.u8();
        let discovery = settings & 1 != 0;
        let content = if discovery {
            Content::Discovery(DiscoveryContent {
                generation: 3,
                records: Vec::new(),
                registrars: Some(HostAccess::Any),
            })
        } else {
            let namespaces = (1..4).map(|nsid| longhaul_proto::controller::NamespaceView {
                nsid,
                ..crate::structures::namespace(1000, 12, settings)
            });
            let ana = (settings & 2 != 0).then_some(1);
            Content::Nvm(NvmContent { max_nsid: 8, namespaces: namespaces.collect(), ana, space: None })
        };
        let hosts =
            if settings & 4 != 0 { HostAccess::Only([HOSTNQN.to_owned()].into()) } else { HostAccess::Any };
        let view = SubsystemView {
            nqn: if discovery { DISCOVERY_NQN } else { SUBNQN }.to_owned(),
            serial: "1".into(),
            model: "fuzz".into(),
            firmware: "1".into(),
            max_transfer: 1 << 16,
            in_capsule: 1 << 16,
            max_queues: MAX_QUEUES,
            max_queue_size: 64,
            hosts,
            content,
        };
        let mut queue = TargetQueue::new(TargetConfig::default());
        queue.set_limits(QueueLimits { entries: 32, in_capsule: 8192, flow_control: false });
        queue.handle(IcReq::new(0, 0, 0).as_bytes());
        let mut rig = Rig {
            queue,
            parser: Parser::default(),
            view,
            controller: None,
            now: Instant::now(),
            held: BTreeSet::new(),
            aborts: Vec::new(),
            changes: Vec::new(),
            answered: 0,
            seen: 0,
        };
        rig.events();
        rig.transmit();
        rig
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let code = input.u8() % op::COUNT;
        if code == op::CONNECT {
            return self.connect(input);
        }
        if code == op::COMMAND {
            let sqe = command(input);
            return self.send(&sqe, &[]);
        }
        let Some(controller) = &mut self.controller else { return };
        match code {
            op::CONNECT_IO => {
                let (sqe, data) = connect(input, &self.view.nqn, CNTLID);
                let Ok(request) = ConnectRequest::parse(&sqe, &data) else { return };
                let ready = controller.is_ready();
                let before: Vec<u16> = controller.queues().collect();
                match controller.connect_io(&request, &self.view) {
                    Ok(params) => {
                        assert!(ready && !before.contains(&params.qid), "a queue is made once, when ready");
                        assert!((1..=MAX_QUEUES).contains(&params.qid) && params.cntlid == CNTLID);
                        assert!((2..=self.view.max_queue_size).contains(&params.entries));
                        assert!(!self.view.is_discovery(), "discovery controllers have no I/O queues");
                    }
                    Err(reply) => assert!(!reply.status.is_success()),
                }
            }
            op::IO_FABRICS => {
                let sqe = command(input).with_nsid(input.u8().into());
                let qid = u16::from(input.u8() % 10);
                match controller.handle_io_fabrics(qid, &sqe) {
                    Action::Complete(reply) => assert!(!reply.status.is_success()),
                    Action::Disconnect => assert!(controller.queues().all(|open| open != qid)),
                    other => panic!("{other:?} for a Fabrics command of an I/O queue"),
                }
            }
            op::CHANGE_DONE => {
                if let Some(change) = self.changes.pop() {
                    controller.change_done(change);
                }
            }
            op::ABORT_DONE => {
                if let Some(slot) = self.aborts.pop() {
                    let reply = controller.abort_done(input.bool());
                    self.answered += 1;
                    self.queue.complete(slot, reply.status, reply.result);
                }
            }
            op::NAMESPACE_CHANGED => {
                let first = input.u32();
                let count = u32::from(input.u16());
                controller.namespaces_changed((0..count).map(|i| first.wrapping_add(i)));
            }
            op::ANA_CHANGED => controller.ana_changed(),
            op::DISCOVERY_CHANGED => controller.discovery_changed(),
            op::QUEUE_CLOSED => controller.queue_closed(input.u8().into()),
            op::TIME => {
                self.now += Duration::from_millis(input.u32().into());
                if controller.handle_timeout(self.now).is_some() {
                    assert!(!controller.is_ready(), "a controller whose host has disappeared has failed");
                }
            }
            _ => {
                let status = Status::new(2, input.u8());
                let (cid, lba) = (input.u16(), input.u32().into());
                let record = ErrorRecord { sqid: 1, cid, opcode: 2, status, nsid: 1, lba };
                assert!(controller.record_error(record).is_more());
            }
        }
        self.report();
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let cntlid = if input.u8() == 0xFF { input.u16() } else { 0xFFFF };
        let (sqe, data) = connect(input, &self.view.nqn, cntlid);
        self.send(&sqe.with_sgl(Sgl::in_capsule(0, data.len() as u32)), &data);
    }

    /// Sends a command through the transport, as a host does.
    fn send(&mut self, sqe: &Sqe, data: &[u8]) {
        let bytes = Pdu::encode(PduType::CapsuleCmd, 0, &sqe.to_bytes(), data, Format::default());
        let taken = self.queue.handle(&bytes);
        let mut payload = Vec::new();
        let mut first = None;
        while let Some(event) = self.queue.poll_event() {
            match event {
                TargetEvent::Command { slot, sqe, data: CommandData::InCapsule { .. } } => {
                    first = Some((slot, sqe));
                    self.queue.accept_payload(slot);
                    if let Want::Payload { len, .. } = self.queue.want() {
                        payload = bytes[taken..][..len as usize].to_vec();
                        self.queue.handle_payload(&payload);
                    }
                }
                TargetEvent::Command { slot, sqe, data } => self.command(slot, &sqe, data, &[]),
                TargetEvent::DataComplete { slot, result } => {
                    let (first, sqe) = first.take().expect("the command was announced before");
                    assert!(first == slot && result.is_ok());
                    self.command(slot, &sqe, CommandData::InCapsule { len: 0 }, &payload);
                }
                TargetEvent::Ready(_) | TargetEvent::Displaced { .. } | TargetEvent::Closed(_) => {}
            }
        }
    }

    fn reply(&mut self, slot: u16, reply: Reply) {
        self.answered += 1;
        self.queue.complete(slot, reply.status, reply.result);
    }

    fn command(&mut self, slot: u16, sqe: &Sqe, data: CommandData, bytes: &[u8]) {
        let Some(controller) = &mut self.controller else { return self.first(slot, sqe, bytes) };
        let health = HealthCounters::default();
        let ready = controller.is_ready();
        let env = Env { now: self.now, subsystem: &self.view, health: &health };
        let action = controller.handle_admin(sqe, env);
        if !ready && !is_fabrics(sqe.opcode) {
            let refused = matches!(&action, Action::Complete(reply) if !reply.status.is_success());
            assert!(refused, "{action:?} before the controller is ready");
        }
        match action {
            Action::Complete(reply) => {
                assert!(reply.status.is_success() || reply.status.is_more(), "failures are in the log");
                self.reply(slot, reply);
            }
            Action::Data(out) => {
                assert_eq!(out.len(), sqe.sgl.length() as usize, "as long as the SGL says");
                assert!(out.len() <= self.view.mdts_bytes() as usize, "at most MDTS");
                match data {
                    CommandData::HostBuffer { len } if len > 0 => {
                        self.answered += 1;
                        self.queue.send_data_and_complete(slot, 0, len, 0);
                    }
                    _ => self.reply(slot, Reply::error(Status::DATA_SGL_LENGTH.dnr())),
                }
            }
            Action::Hold => {
                assert!(self.held.insert(sqe.cid()) && self.held.len() <= AER_LIMIT);
            }
            Action::Abort { .. } => {
                self.aborts.push(slot);
                assert!(self.aborts.len() <= usize::from(ABORT_LIMIT));
            }
            Action::ResetOther(fields) => {
                assert_ne!(fields.icid, CNTLID);
                let outcome = match fields.ciu % 3 {
                    0 => OtherReset::Done,
                    1 => OtherReset::InProgress,
                    _ => OtherReset::NotYours,
                };
                let controller = self.controller.as_mut().expect("it has answered");
                let reply = controller.reset_other_done(outcome);
                self.reply(slot, reply);
            }
            Action::Change(change) => {
                self.changes.push(change);
                self.reply(slot, Reply::ok(0));
                if change == Change::Disabling {
                    // Held requests are forgotten; the driver ends them.
                    for cid in std::mem::take(&mut self.held) {
                        let slot = self.queue.find(cid).expect("a request that was held is open");
                        self.reply(slot, Reply::error(Status::ABORT_REQUESTED));
                    }
                }
            }
            Action::WriteCache { .. } => self.reply(slot, Reply::ok(0)),
            Action::ReservationPersistence { .. } => self.reply(slot, Reply::ok(1)),
            Action::PersistReservations { .. } => self.reply(slot, Reply::ok(0)),
            Action::Register { len, .. } => {
                let status = match parse_registration(bytes, controller.hostnqn()) {
                    Ok(registration) => {
                        assert!(registration.entries.len() <= REGISTRATION_ENTRIES_MAX, "{len} bytes");
                        Status::SUCCESS
                    }
                    Err(status) => status.dnr(),
                };
                self.reply(slot, status.into());
            }
            Action::Manage(_) | Action::Controllers { .. } => panic!("the subsystem has no space"),
            Action::Disconnect => panic!("the admin queue is not deleted with Disconnect"),
        }
        self.report();
    }

    /// The first command: only Connect makes a controller.
    fn first(&mut self, slot: u16, sqe: &Sqe, bytes: &[u8]) {
        let connected = ConnectRequest::parse(sqe, bytes).and_then(|request| {
            assert!(sqe.opcode == admin::FABRICS && sqe.fctype() == fctype::CONNECT);
            if request.subnqn != self.view.nqn {
                return Err(request.unknown_subsystem());
            }
            Controller::connect(request, CNTLID, &self.view, self.now)
        });
        let reply = match connected {
            Ok((mut controller, params)) => {
                controller.set_instance(Instance::new(params.entries.into()));
                assert!(params.qid == 0 && params.entries <= self.view.max_queue_size);
                assert_eq!(controller.hostid(), HOSTID);
                self.controller = Some(controller);
                params.reply()
            }
            Err(reply) => {
                assert!(!reply.status.is_success());
                reply
            }
        };
        self.reply(slot, reply);
    }

    /// Completes event requests for which there is an event.
    fn report(&mut self) {
        while let Some((cid, reply)) = self.controller.as_mut().and_then(Controller::poll_event) {
            assert!(self.held.remove(&cid), "a request is completed once");
            let slot = self.queue.find(cid).expect("a request that was held is open");
            self.reply(slot, reply);
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.queue.poll_event() {
            assert!(!matches!(event, TargetEvent::Command { .. }), "commands are handled as they are sent");
        }
    }

    fn transmit(&mut self) {
        let mut batch = Batch::default();
        self.queue.poll_transmit(&mut batch);
        for piece in &batch.pieces {
            match *piece {
                Piece::Bytes { start, len } => {
                    self.parser.push(&batch.bytes[start as usize..][..len as usize]);
                }
                Piece::Payload { slot, len, last, .. } => {
                    self.parser.push(&vec![0; len as usize]);
                    if last {
                        self.queue.payload_sent(slot);
                    }
                }
            }
        }
        while let Some(pdu) = self.parser.next() {
            if pdu.kind == PduType::CapsuleResp {
                let resp: CapsuleResp = pdu.view();
                assert!(Cqe::read(&resp.cqe).is_some());
                self.seen += 1;
            }
            self.seen += u64::from(pdu.kind == PduType::C2HData && pdu.flags & 8 != 0);
        }
        assert!(self.seen >= self.answered, "every answer is on the wire");
    }

    fn check(&self) {
        let Some(controller) = &self.controller else { return };
        assert!(controller.queues().all(|qid| (1..=MAX_QUEUES).contains(&qid)));
        let open = self.held.len() + self.aborts.len();
        assert!(self.queue.is_closed() || self.queue.open_commands() == open, "nothing is forgotten");
        if let Some(at) = controller.next_timeout() {
            assert!(controller.keep_alive_timeout() > Duration::ZERO || at >= self.now);
        }
    }
}

/// A command that is nearly one of those which hosts send.
fn command(input: &mut Input<'_>) -> Sqe {
    let value = input.u32();
    let (small, len) = (input.u8(), 4 * u32::from(input.u8()));
    let nsid = input.pick(&[0, 1, 3, 9, u32::MAX]);
    let sqe = match input.u8() % 12 {
        0 => Sqe::property_get(u32::from(small), value & 1 != 0),
        1 => Sqe::property_set(u32::from(small), value & 0x8000_0000 != 0, value.into()),
        2 => Sqe::identify(small, nsid, (value & 3) as u8),
        3 => Sqe::get_log_page(small, nsid, value.into(), len.max(4), value & 1 != 0),
        4 => Sqe::get_features(small, nsid, (value & 7) as u8),
        5 => Sqe::set_features(small, nsid, value, value & 1 != 0),
        6 => Sqe::async_event_request(),
        7 => Sqe::abort(small.into(), (value % 40) as u16),
        8 => Sqe::keep_alive(),
        9 => Sqe::disconnect(),
        10 => Sqe::property_set(0x14, false, u64::from(value & 0xFF_FFFF)),
        _ => Sqe::new(small).with_nsid(value),
    };
    let mut sqe = sqe.with_cid(u16::from(input.u8() % 32));
    // Some field is something else.
    match input.u8() {
        0xF0 => sqe = sqe.with_cdw(10 + input.index(6), input.u32()),
        0xF1 => sqe.flags = input.u8(),
        0xF2 => sqe = sqe.with_sgl(Sgl::transport(input.length())),
        0xF3 => sqe = sqe.with_sgl(Sgl::make(input.u32().into(), input.length(), input.u8())),
        _ => {}
    }
    sqe
}

/// A Connect that is nearly right.
fn connect(input: &mut Input<'_>, subnqn: &str, cntlid: u16) -> (Sqe, Vec<u8>) {
    let (qid, sqsize) = (u16::from(input.u8() % 10), u16::from(input.u8() % 80));
    let kato = u32::from(input.u16());
    let mut sqe = Sqe::connect(qid, sqsize, input.u8() & 0xF, kato).with_cid(40);
    let mut data = ConnectData::new(HOSTID, cntlid, subnqn, HOSTNQN).as_bytes().to_vec();
    match input.u8() {
        0xF0 => {
            let at = usize::from(input.u16()) % data.len();
            data[at] = input.u8();
            // Checked against the host of the admin queue.
            data[..16].copy_from_slice(HOSTID.as_bytes());
        }
        0xF1 => data.truncate(input.u16().into()),
        0xF2 => sqe = sqe.with_cdw(10 + input.index(3), input.u32()),
        0xF3 => data.extend([0; 16]),
        _ => {}
    }
    (sqe, data)
}
