//! What a state machine makes of a byte stream must not depend on how the
//! stream is cut up.

use longhaul_proto::transport::{Batch, Endpoint, Want};

/// Either end, with a driver that decides nothing by time: see the codec
/// targets.
pub(crate) trait Machine {
    type Queue: Endpoint;

    fn queue(&mut self) -> &mut Self::Queue;
    /// The length of the data of the command in this slot.
    fn data_len(&self, slot: u16) -> u32;
    /// Handles events, and adds them to the transcript.
    fn events(&mut self, transcript: &mut Vec<String>);
}

/// Everything there is to send.
fn output(machine: &mut impl Machine) -> Vec<u8> {
    let mut batch = Batch::default();
    machine.queue().poll_transmit(&mut batch);
    batch.bytes
}

/// Feeds `stream` in pieces of at most `piece` bytes; gives the events, and
/// the output last.
pub(crate) fn transcript(machine: &mut impl Machine, stream: &[u8], piece: usize) -> Vec<String> {
    let mut events = Vec::new();
    let mut rest = stream;
    loop {
        machine.events(&mut events);
        let window = &rest[..rest.len().min(piece)];
        let taken = match machine.queue().want() {
            _ if window.is_empty() => break,
            Want::Nothing => break,
            Want::Bytes => {
                let taken = machine.queue().handle(window);
                assert!(taken <= window.len());
                assert!(
                    taken == window.len() || machine.queue().want() != Want::Bytes,
                    "stopped for no reason"
                );
                taken
            }
            Want::Payload { slot, offset, len } => {
                let end = offset.checked_add(len).expect("payload ends within 4 GiB");
                assert!(len > 0 && end <= machine.data_len(slot), "payload is within its command");
                let n = window.len().min(len as usize);
                machine.queue().handle_payload(&window[..n]);
                n
            }
        };
        rest = &rest[taken..];
    }
    machine.events(&mut events);
    if machine.queue().is_closed() {
        assert_eq!(
            (machine.queue().handle(b"more"), machine.queue().want()),
            (0, Want::Nothing),
            "closed is closed"
        );
    }
    events.push(format!("{} bytes not taken", rest.len()));
    events.push(format!("{:02x?}", output(machine)));
    events.push(format!("{:02x?}", output(machine)));
    events
}

/// Compares three ways of cutting.
pub(crate) fn compare<M: Machine>(new: impl Fn() -> M, stream: &[u8], piece: usize) {
    let whole = transcript(&mut new(), stream, usize::MAX);
    for piece in [1, piece.max(2)] {
        assert_eq!(transcript(&mut new(), stream, piece), whole, "pieces of {piece}");
    }
}
