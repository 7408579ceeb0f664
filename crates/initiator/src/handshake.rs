//! ICReq and ICResp: what two ends agree on before anything else.

use longhaul_block::IoError;
use longhaul_conn::Channel;
use longhaul_proto::host::{HostConfig, HostEvent, HostQueue};
use longhaul_proto::transport::{Batch, Endpoint};

/// Length of an ICResp in bytes (NVMe-TCP 1.1, ICResp PDU).
const IC_LEN: usize = 128;

/// Sends ICReq and waits for ICResp: what [`Queue::serve`](crate::queue::Queue::serve) takes, possibly on
/// another thread.
pub(crate) async fn handshake(channel: &Channel, config: HostConfig) -> Result<HostQueue, IoError> {
    let fail = |e: String| IoError::Unreachable(e);
    let mut queue = HostQueue::new(config);
    let mut batch = Batch::default();
    if queue.poll_transmit(&mut batch) {
        let bytes = std::mem::take(&mut batch.bytes);
        channel.send_bytes(bytes).await.map_err(|e| fail(e.to_string()))?;
    }
    // Exactly an ICResp and not a byte more, so that none is left over.
    let mut missing = IC_LEN;
    loop {
        let bytes = channel.receive_bytes(missing).await.map_err(|e| fail(e.to_string()))?;
        if bytes.is_empty() {
            let hint = if channel.is_secure() { "" } else { "; it may take TLS alone (--tls, or tls=true)" };
            return Err(fail(format!("the peer closed the connection{hint}")));
        }
        missing -= bytes.len();
        queue.handle(&bytes);
        match queue.poll_event() {
            Some(HostEvent::Ready(_)) => return Ok(queue),
            Some(HostEvent::Closed(reason)) => return Err(fail(reason.to_string())),
            _ if missing == 0 => return Err(fail("its answer to ICReq is no ICResp".into())),
            _ => {}
        }
    }
}
