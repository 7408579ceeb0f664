//! What the tests of this module share.

use super::*;
use longhaul_wire::command::Sgl;
use longhaul_wire::fabrics::{ConnectData, offset};
use longhaul_wire::log::AnaState;
use longhaul_wire::nqn::DISCOVERY_NQN;
use zerocopy::IntoBytes;

pub(super) const SUBNQN: &str = "nqn.2014-08.org.example:disk";
pub(super) const HOSTNQN: &str = "nqn.2014-08.org.example:host";
pub(super) const HOSTID: Uuid = Uuid::from_u128(0x0102_0304);
pub(super) const CNTLID: u16 = 5;

/// What a Linux host writes to CC to enable a controller.
pub(super) const CC_ENABLE: u64 = 0x0046_0001;

/// A subsystem with namespaces 1 (4 KiB blocks), 3 (512-byte blocks, read
/// only) and 4 (as large as can be) of 8.
pub(super) fn subsystem() -> SubsystemView {
    SubsystemView {
        nqn: SUBNQN.to_owned(),
        serial: "LH0001".to_owned(),
        model: "Longhaul".to_owned(),
        firmware: "0.1.0".to_owned(),
        max_transfer: 1 << 20,
        in_capsule: 1 << 20,
        max_queues: 8,
        max_queue_size: 128,
        hosts: HostAccess::Any,
        content: Content::Nvm(NvmContent {
            max_nsid: 8,
            namespaces: vec![
                namespace(1, 1000, 12),
                NamespaceView { read_only: true, volatile_cache: false, ..namespace(3, 2048, 9) },
                namespace(4, u64::MAX >> 12, 12),
            ],
            ana: Some(7),
            space: None,
        }),
    }
}

pub(super) fn namespace(nsid: u32, blocks: u64, block_shift: u8) -> NamespaceView {
    NamespaceView {
        nsid,
        blocks,
        block_shift,
        granularity: 4096,
        optimal_io: 128 << 10,
        uuid: Some(Uuid::from_u128(nsid.into())),
        nguid: [nsid as u8; 16],
        read_only: false,
        volatile_cache: true,
        discard: true,
        discard_zeroes: true,
        shared: true,
        reader: false,
        persistent_reservations: nsid == 1,
        ana_group: 1,
        ana_state: AnaState::Optimized,
    }
}

/// A discovery subsystem that lists [`SUBNQN`] and one for another host.
pub(super) fn discovery_subsystem() -> SubsystemView {
    let entry = |nqn: &str| {
        let addr = "192.0.2.7:4420".parse().expect("an address");
        discovery_entry(nqn, DiscoveryTarget::Nvm, addr, 1, 128)
    };
    let other = HostAccess::Only(["nqn.2014-08.org.example:other".to_owned()].into());
    SubsystemView {
        nqn: DISCOVERY_NQN.to_owned(),
        content: Content::Discovery(DiscoveryContent {
            generation: 9,
            records: vec![
                DiscoveryRecord { entry: entry(SUBNQN), hosts: HostAccess::Any },
                DiscoveryRecord { entry: entry("nqn.2014-08.org.example:secret"), hosts: other },
            ],
            registrars: None,
        }),
        ..subsystem()
    }
}

pub(super) fn connect_data(cntlid: u16, subnqn: &str) -> Vec<u8> {
    ConnectData::new(HOSTID, cntlid, subnqn, HOSTNQN).as_bytes().to_vec()
}

/// A controller with its surroundings.
pub(super) struct Rig {
    pub(super) subsystem: SubsystemView,
    pub(super) health: HealthCounters,
    pub(super) now: Instant,
    pub(super) controller: Controller,
}

impl Rig {
    /// A controller that was connected and no more.
    pub(super) fn connected(subsystem: SubsystemView) -> Rig {
        let now = Instant::now();
        let data = connect_data(0xFFFF, &subsystem.nqn);
        let request = ConnectRequest::parse(&Sqe::connect(0, 31, 0, 5000), &data).expect("a sound request");
        let (controller, params) = Controller::connect(request, CNTLID, &subsystem, now).expect("connected");
        assert_eq!(params, QueueParams { cntlid: CNTLID, qid: 0, entries: 32, flow_control: true });
        Rig { subsystem, health: HealthCounters::default(), now, controller }
    }

    /// A controller that is ready.
    pub(super) fn ready() -> Rig {
        let mut rig = Rig::connected(subsystem());
        rig.controller.set_instance(Instance::new(0xA5 << 56 | 77));
        rig.enabled()
    }

    /// A discovery controller that is ready.
    pub(super) fn discovery() -> Rig {
        let mut rig = Rig::connected(discovery_subsystem());
        rig.controller.set_instance(Instance::new(78));
        rig.enabled()
    }

    fn enabled(mut self) -> Rig {
        assert_eq!(self.set_cc(CC_ENABLE), Action::Change(Change::Enabled));
        assert!(self.controller.is_ready());
        self
    }

    pub(super) fn set_cc(&mut self, cc: u64) -> Action {
        self.admin(Sqe::property_set(offset::CC, false, cc))
    }

    pub(super) fn csts(&mut self) -> Csts {
        Csts(self.result(Sqe::property_get(offset::CSTS, false)) as u32)
    }

    pub(super) fn admin(&mut self, sqe: Sqe) -> Action {
        let env = Env { now: self.now, subsystem: &self.subsystem, health: &self.health };
        self.controller.handle_admin(&sqe, env)
    }

    /// The result of a command that succeeds.
    pub(super) fn result(&mut self, sqe: Sqe) -> u64 {
        match self.admin(sqe) {
            Action::Complete(reply) if reply.status == Status::SUCCESS => reply.result,
            other => panic!("{sqe:?}: {other:?}"),
        }
    }

    /// The status of a command that fails, without its More bit (which must
    /// be there).
    pub(super) fn failure(&mut self, sqe: Sqe) -> Status {
        match self.admin(sqe) {
            Action::Complete(reply) if !reply.status.is_success() => {
                assert!(reply.status.is_more(), "{sqe:?}: in the error log");
                let plain = reply.status.code();
                if reply.status.is_dnr() { plain.dnr() } else { plain }
            }
            other => panic!("{sqe:?}: {other:?}"),
        }
    }

    /// The data of a command that succeeds.
    pub(super) fn data(&mut self, sqe: Sqe) -> Vec<u8> {
        match self.admin(sqe) {
            Action::Data(data) => {
                assert_eq!(data.len(), sqe.sgl.length() as usize);
                data
            }
            other => panic!("{sqe:?}: {other:?}"),
        }
    }

    pub(super) fn log(&mut self, lid: u8, len: u32) -> Vec<u8> {
        self.data(Sqe::get_log_page(lid, 0, 0, len, false))
    }

    pub(super) fn connect_io(&mut self, sqe: Sqe) -> Result<QueueParams, Reply> {
        let request = ConnectRequest::parse(&sqe, &connect_data(CNTLID, SUBNQN))?;
        self.controller.connect_io(&request, &self.subsystem)
    }
}

/// A Get Features for a feature with data.
pub(super) fn with_len(sqe: Sqe, len: u32) -> Sqe {
    sqe.with_sgl(Sgl::transport(len))
}
