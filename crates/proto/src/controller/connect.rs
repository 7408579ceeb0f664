//! Connect: is the request sound, and may this host have this queue?

use super::action::{QueueParams, Reply};
use super::subsystem::SubsystemView;
use crate::target::ENTRIES_BEFORE_CONNECT;
use longhaul_wire::command::{Sqe, admin, fctype};
use longhaul_wire::completion::Status;
use longhaul_wire::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, InvalidParameter, RECFMT};
use longhaul_wire::nqn::{self, NqnError};
use uuid::Uuid;

/// Byte offsets that IPO names.
mod at {
    use super::InvalidParameter;
    pub(super) const QID: InvalidParameter = InvalidParameter::command(42);
    pub(super) const SQSIZE: InvalidParameter = InvalidParameter::command(44);
    pub(super) const HOSTID: InvalidParameter = InvalidParameter::data(0);
    pub(super) const CNTLID: InvalidParameter = InvalidParameter::data(16);
    pub(super) const SUBNQN: InvalidParameter = InvalidParameter::data(256);
    pub(super) const HOSTNQN: InvalidParameter = InvalidParameter::data(512);
}

/// The field of Connect that a refusal is for, if it names one.
pub fn wrong_field(reply: &Reply) -> Option<&'static str> {
    let fields = [
        (at::QID, "QID"),
        (at::SQSIZE, "SQSIZE"),
        (at::HOSTID, "HOSTID"),
        (at::CNTLID, "CNTLID"),
        (at::SUBNQN, "SUBNQN"),
        (at::HOSTNQN, "HOSTNQN"),
    ];
    let named =
        reply.status.is(Status::CONNECT_INVALID_PARAMETERS) || reply.status.is(Status::CONNECT_INVALID_HOST);
    let found = fields.into_iter().find(|(at, _)| named && u64::from(at.to_dw0()) == reply.result);
    found.map(|(_, name)| name)
}

fn invalid(parameter: InvalidParameter) -> Reply {
    let status = Status::CONNECT_INVALID_PARAMETERS.dnr();
    Reply { status, result: parameter.to_dw0().into() }
}

/// A Connect whose fields make sense on their own. The driver finds the
/// subsystem (and, for an I/O queue, the controller) that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Queue identifier; 0 asks for a new controller.
    pub qid: u16,
    /// Controller identifier (of an I/O queue's Connect).
    pub cntlid: u16,
    /// NQN of the subsystem.
    pub subnqn: String,
    /// NQN of the host; empty if it has none.
    pub hostnqn: String,
    /// Host identifier (HOSTID) that the host sent.
    pub hostid: Uuid,
    /// Keep Alive Timeout in milliseconds, 0 for none (admin queue).
    pub kato_ms: u32,
    sqsize: u16,
    no_flow_control: bool,
}

impl ConnectRequest {
    /// Reads a Connect and its data. The first command on a connection must
    /// be one; an error completes the command, and the connection is closed.
    pub fn parse(sqe: &Sqe, data: &[u8]) -> Result<ConnectRequest, Reply> {
        //= NVMe Base 2.1, Connect command: the first command on a queue is Connect
        if sqe.opcode != admin::FABRICS || sqe.fctype() != fctype::CONNECT {
            return Err(Status::SEQUENCE_ERROR.dnr().into());
        }
        let command = Connect::of(sqe);
        //= NVMe Base 2.1, Connect command: an unknown record format is refused with Incompatible Format
        if command.recfmt != RECFMT {
            return Err(Status::INCOMPATIBLE_FORMAT.dnr().into());
        }
        //= NVMe Base 2.1, Connect command: the data is 1,024 bytes long
        let data = ConnectData::view(data).ok_or(Status::DATA_SGL_LENGTH.dnr())?;
        //= NVMe Base 2.1, Connect command data: a host identifier of 0 is invalid
        if data.hostid == [0; 16] {
            return Err(invalid(at::HOSTID));
        }
        //= NVMe Base 2.1, NVMe Qualified Names: names are NUL-terminated UTF-8 of at most 223 bytes
        let subnqn = nqn::from_field(&data.subnqn).map_err(|_| invalid(at::SUBNQN))?;
        // Some hosts (SPDK's tools) have no name, and other targets serve them.
        // Such a host is on no list of those that are allowed.
        let hostnqn = match nqn::from_field(&data.hostnqn) {
            Err(NqnError::Empty) => "",
            other => other.map_err(|_| invalid(at::HOSTNQN))?,
        };
        //= NVMe Base 2.1, Connect command: a submission queue has two entries at least
        if command.sqsize == 0 {
            return Err(invalid(at::SQSIZE));
        }
        Ok(ConnectRequest {
            qid: command.qid,
            cntlid: data.cntlid(),
            subnqn: subnqn.to_owned(),
            hostnqn: hostnqn.to_owned(),
            hostid: Uuid::from_bytes(data.hostid),
            kato_ms: command.kato_ms,
            sqsize: command.sqsize,
            no_flow_control: command.no_flow_control(),
        })
    }

    /// The answer if there is no subsystem of that name here.
    pub fn unknown_subsystem(&self) -> Reply {
        //= NVMe Base 2.1, Connect command: an unknown subsystem is an invalid SUBNQN
        invalid(at::SUBNQN)
    }

    /// The answer if the subsystem has no controller of that identifier (an
    /// I/O queue's Connect).
    pub fn unknown_controller(&self) -> Reply {
        //= NVMe Base 2.1, Connect command: an I/O queue names the controller that the admin queue's Connect made
        invalid(at::CNTLID)
    }

    /// The answer if this host is not allowed here.
    pub fn refused_host(&self) -> Reply {
        let result = at::HOSTNQN.to_dw0().into();
        Reply { status: Status::CONNECT_INVALID_HOST.dnr(), result }
    }

    /// The answer if there is no room for another controller or queue; the
    /// host may try again later.
    pub fn busy(&self) -> Reply {
        Reply::error(Status::CONTROLLER_BUSY)
    }

    /// Checks an admin queue's Connect against its subsystem.
    pub(super) fn check_admin(&self, subsystem: &SubsystemView) -> Result<(), Reply> {
        if self.subnqn != subsystem.nqn {
            return Err(self.unknown_subsystem());
        }
        //= NVMe Base 2.1, Connect command: queue 0 makes a controller, any other belongs to one
        if self.qid != 0 {
            return Err(invalid(at::QID));
        }
        //= NVMe Base 2.1, Dynamic controller model: the host asks for any controller with CNTLID FFFFh
        if self.cntlid != CNTLID_DYNAMIC {
            return Err(invalid(at::CNTLID));
        }
        self.check_host_and_size(subsystem)
    }

    pub(super) fn check_host_and_size(&self, subsystem: &SubsystemView) -> Result<(), Reply> {
        //= NVMe Base 2.1, Connect command: a host that is not allowed gets Connect Invalid Host
        if !subsystem.hosts.allows(&self.hostnqn) {
            return Err(self.refused_host());
        }
        //= NVMe Base 2.1, Connect command: a queue is no larger than CAP.MQES says
        //= NVMe Base 2.1, Discovery Log Page Entry: an Admin queue may have 32 entries at least (ASQSZ)
        let least = if self.qid == 0 { ENTRIES_BEFORE_CONNECT } else { 0 };
        if self.sqsize >= subsystem.max_queue_size.max(least) {
            return Err(invalid(at::SQSIZE));
        }
        Ok(())
    }

    /// Checks that an I/O queue's Connect comes from the host that made the
    /// controller.
    pub(super) fn check_same_host(&self, admin: &ConnectRequest) -> Result<(), Reply> {
        //= NVMe Base 2.1, Connect command: I/O queues belong to the subsystem and host of the admin queue
        if self.subnqn != admin.subnqn {
            return Err(invalid(at::SUBNQN));
        }
        if self.hostnqn != admin.hostnqn {
            return Err(invalid(at::HOSTNQN));
        }
        if self.hostid != admin.hostid {
            return Err(invalid(at::HOSTID));
        }
        Ok(())
    }

    /// The answer to a queue identifier out of range.
    pub(super) fn invalid_qid(&self) -> Reply {
        invalid(at::QID)
    }

    pub(super) fn params(&self, cntlid: u16) -> QueueParams {
        // `sqsize` was checked against a size, so it does not wrap.
        QueueParams { cntlid, qid: self.qid, entries: self.sqsize + 1, flow_control: !self.no_flow_control }
    }
}
