//! The parts that both ends of a connection share, and how a driver moves their bytes.
//!
//! Invariants:
//! - a closed connection takes no input: [`Endpoint::handle`] consumes nothing, and
//!   [`Endpoint::want`] is [`Want::Nothing`];
//! - the event that reports the end is the last one of the connection;
//! - after a fault the TermReq is the last thing queued.

use super::{Batch, CloseReason, Deframer, Fault, Params, Role, StreamStep, Tx, Want};
use longhaul_wire::pdu::{Format, PduType, TermReq};
use std::collections::VecDeque;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Before ICReq and ICResp.
    Connecting,
    Ready,
    Closed,
}

/// What either end keeps of a connection, with events of type `E`.
#[derive(Debug)]
pub(crate) struct Connection<E> {
    role: Role,
    pub(crate) state: ConnectionState,
    pub(crate) params: Params,
    pub(crate) rx: Deframer,
    pub(crate) tx: Tx,
    pub(crate) events: VecDeque<E>,
}

impl<E: From<CloseReason>> Connection<E> {
    /// A connection that waits for ICReq or ICResp.
    pub(crate) fn new(role: Role) -> Connection<E> {
        Connection {
            role,
            state: ConnectionState::Connecting,
            params: Params::default(),
            rx: Deframer::new(role),
            tx: Tx::default(),
            events: VecDeque::new(),
        }
    }

    /// ICReq and ICResp have settled `params`; the peer's PDUs look like `format` from now on.
    pub(crate) fn establish(&mut self, params: Params, format: Format) {
        self.params = params;
        self.rx.establish(format);
        self.state = ConnectionState::Ready;
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.state == ConnectionState::Closed
    }

    /// The peer has sent a TermReq.
    pub(crate) fn terminated(&mut self) -> Result<(), Fault> {
        let term: TermReq = self.rx.header()?;
        self.close(CloseReason::Terminated { fes: term.fes.get(), fei: term.fei.get() });
        Ok(())
    }

    fn fail(&mut self, fault: Fault) {
        let term = match self.role {
            Role::Host => PduType::H2CTermReq,
            Role::Controller => PduType::C2HTermReq,
        };
        self.tx.term_req(term, fault, self.rx.quoted());
        self.close(CloseReason::Fault(fault));
    }

    fn close(&mut self, reason: CloseReason) {
        self.state = ConnectionState::Closed;
        self.rx.stop();
        self.events.push_back(reason.into());
    }
}

/// What an end of a connection adds to it: its own PDUs, and its bounds.
pub(crate) trait EndpointSide {
    type Event: From<CloseReason>;

    fn connection(&self) -> &Connection<Self::Event>;

    fn connection_mut(&mut self) -> &mut Connection<Self::Event>;

    /// Whether no input is taken for now.
    fn is_full(&self) -> bool;

    /// Handles a header, or the end of its data.
    fn step(&mut self, step: StreamStep) -> Result<(), Fault>;

    /// The piece of the command's payload that is marked `last` was sent.
    fn payload_sent(&mut self, slot: u16);
}

/// Either end of a connection, as the driver that moves its bytes sees it:
/// [`HostQueue`](crate::host::HostQueue) and [`TargetQueue`](crate::target::TargetQueue).
pub trait Endpoint {
    /// What ICReq and ICResp have settled.
    fn params(&self) -> Params;

    /// Whether the connection has ended: the last event says why.
    fn is_closed(&self) -> bool;

    /// What to receive next.
    fn want(&self) -> Want;

    /// Takes input, and returns how many bytes of it were consumed: all, unless
    /// [`want`](Self::want) is something else than bytes now.
    fn handle(&mut self, input: &[u8]) -> usize;

    /// Payload was placed where [`Want::Payload`] said: these bytes.
    fn handle_payload(&mut self, bytes: &[u8]);

    /// As [`handle_payload`](Self::handle_payload), when data digests are not
    /// in use.
    fn handle_payload_len(&mut self, len: usize);

    /// Whether [`poll_transmit`](Self::poll_transmit) has something.
    fn has_transmit(&self) -> bool;

    /// Moves the queued output into `batch`, replacing its content; `false` if nothing is queued.
    fn poll_transmit(&mut self, batch: &mut Batch) -> bool;

    /// The piece of the command's payload that is marked `last` was sent: the
    /// connection does not need its memory any more.
    ///
    /// # Panics
    /// If the command has no payload under way.
    fn payload_sent(&mut self, slot: u16);
}

impl<S: EndpointSide> Endpoint for S {
    #[inline]
    fn params(&self) -> Params {
        self.connection().params
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.connection().is_closed()
    }

    #[inline]
    fn want(&self) -> Want {
        if blocked(self) { Want::Nothing } else { self.connection().rx.want() }
    }

    fn handle(&mut self, input: &[u8]) -> usize {
        let mut rest = input;
        while !blocked(self) {
            let result = match self.connection_mut().rx.advance(&mut rest) {
                Ok(None) => break,
                Ok(Some(step)) => self.step(step),
                Err(fault) => Err(fault),
            };
            if let Err(fault) = result {
                self.connection_mut().fail(fault);
            }
        }
        input.len() - rest.len()
    }

    fn handle_payload(&mut self, bytes: &[u8]) {
        placed(self, bytes.len(), Some(bytes));
    }

    fn handle_payload_len(&mut self, len: usize) {
        placed(self, len, None);
    }

    #[inline]
    fn has_transmit(&self) -> bool {
        self.connection().tx.pending()
    }

    fn poll_transmit(&mut self, batch: &mut Batch) -> bool {
        self.connection_mut().tx.take(batch)
    }

    #[inline]
    fn payload_sent(&mut self, slot: u16) {
        EndpointSide::payload_sent(self, slot);
    }
}

#[inline]
fn blocked(side: &impl EndpointSide) -> bool {
    side.is_full() || side.connection().is_closed()
}

fn placed(side: &mut impl EndpointSide, len: usize, bytes: Option<&[u8]>) {
    if side.connection().is_closed() {
        return;
    }
    if let Some(step) = side.connection_mut().rx.placed(len, bytes)
        && let Err(fault) = side.step(step)
    {
        side.connection_mut().fail(fault);
    }
}
