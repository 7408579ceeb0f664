//! Both state machines of `proto` as a [`Queue`].

use crate::shared::Queue;
use longhaul_proto::host::HostQueue;
use longhaul_proto::target::TargetQueue;
use longhaul_proto::transport::{Batch, Want};

macro_rules! queue {
    ($name:ty) => {
        impl Queue for $name {
            fn want(&self) -> Want {
                <$name>::want(self)
            }

            fn handle(&mut self, bytes: &[u8]) -> usize {
                <$name>::handle(self, bytes)
            }

            fn handle_payload(&mut self, len: usize, bytes: Option<&[u8]>) {
                match bytes {
                    Some(bytes) => <$name>::handle_payload(self, bytes),
                    None => self.handle_payload_len(len),
                }
            }

            fn poll_transmit(&mut self, batch: &mut Batch) -> bool {
                <$name>::poll_transmit(self, batch)
            }

            fn payload_sent(&mut self, slot: u16) {
                <$name>::payload_sent(self, slot);
            }

            fn has_transmit(&self) -> bool {
                <$name>::has_transmit(self)
            }

            fn data_digest(&self) -> bool {
                self.params().data_digest
            }

            fn is_closed(&self) -> bool {
                <$name>::is_closed(self)
            }
        }
    };
}

queue!(HostQueue);
queue!(TargetQueue);
