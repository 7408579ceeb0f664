//! Errors that end a connection.

use longhaul_wire::pdu::{Fes, InvalidField};
use std::fmt;

/// The fatal error of the peer, as a TermReq reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Fatal error status.
    pub fes: Fes,
    /// Fatal error information: depends on `fes`.
    pub fei: u32,
    /// The same for people.
    pub what: &'static str,
}

impl Fault {
    /// A field of the header, by its byte offset.
    pub(crate) const fn field(offset: u32, what: &'static str) -> Fault {
        Fault { fes: Fes::InvalidHeaderField, fei: offset, what }
    }

    /// A PDU out of turn.
    pub(crate) const fn sequence(what: &'static str) -> Fault {
        Fault { fes: Fes::SequenceError, fei: 0, what }
    }

    /// Data that was not asked for.
    pub(crate) const fn range(what: &'static str) -> Fault {
        Fault { fes: Fes::DataOutOfRange, fei: 0, what }
    }

    /// Too much data in a PDU, or too many R2Ts.
    pub(crate) const fn limit(what: &'static str) -> Fault {
        Fault { fes: Fes::LimitExceeded, fei: 0, what }
    }
}

impl From<InvalidField> for Fault {
    fn from(field: InvalidField) -> Fault {
        Fault::field(field.offset, field.what)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fes, self.what)?;
        match self.fes {
            Fes::InvalidHeaderField | Fes::UnsupportedParameter => write!(f, " (byte {})", self.fei),
            Fes::HeaderDigestError => write!(f, " (received {:#010x})", self.fei),
            _ => Ok(()),
        }
    }
}

/// Why a queue is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer broke the protocol; the last PDU sent, a TermReq, reports it.
    #[error("the peer broke the protocol: {0}")]
    Fault(Fault),
    /// The peer says that this end broke the protocol.
    #[error("the peer ended the connection: {}", describe(*.fes, *.fei))]
    Terminated {
        /// FES as received.
        fes: u16,
        /// FEI as received.
        fei: u32,
    },
}

fn describe(fes: u16, fei: u32) -> String {
    match Fes::from_code(fes) {
        Some(known) => format!("{known} (information {fei:#x})"),
        None => format!("unknown fatal error status {fes:#x} (information {fei:#x})"),
    }
}
