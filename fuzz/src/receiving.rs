//! How both ends of a connection are given what their peer sends, in pieces of any size.

use longhaul_proto::transport::{Endpoint, Want};

/// An end of a connection under test, with its driver.
pub(crate) trait Receiving {
    /// The state machine under test.
    type Queue: Endpoint;

    /// The state machine.
    fn queue(&mut self) -> &mut Self::Queue;

    /// Bytes that the peer sent, and that the state machine has not taken yet.
    fn inbox(&mut self) -> &mut Vec<u8>;

    /// Whether the state machine reported the end of the connection.
    fn is_closed(&self) -> bool;

    /// Handles the events that the state machine has.
    fn events(&mut self);

    /// Places `len` bytes of payload at `offset` into the memory of `slot`, as far as they are in
    /// `window`, and returns how many they were.
    fn payload(&mut self, window: &[u8], slot: u16, offset: u32, len: u32) -> usize;

    /// Hands over what waits in the inbox, at most `piece` bytes at a time.
    fn feed(&mut self, piece: usize) {
        let inbox = std::mem::take(self.inbox());
        let mut rest = inbox.as_slice();
        loop {
            self.events();
            let window = &rest[..rest.len().min(piece)];
            if window.is_empty() {
                break;
            }
            let taken = match self.queue().want() {
                Want::Nothing => break,
                Want::Bytes => {
                    assert!(!self.is_closed(), "nothing is wanted behind the end");
                    let taken = self.queue().handle(window);
                    assert!(
                        taken == window.len() || self.queue().want() != Want::Bytes,
                        "stopped for no reason"
                    );
                    taken
                }
                Want::Payload { slot, offset, len } => self.payload(window, slot, offset, len),
            };
            rest = &rest[taken..];
        }
        *self.inbox() = rest.to_vec();
        if self.is_closed() {
            assert_eq!(self.queue().handle(rest), 0, "nothing is taken behind the end");
            self.inbox().clear();
        }
    }
}
