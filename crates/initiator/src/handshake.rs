//! ICReq and ICResp: what two ends agree on before anything else.

use longhaul_block::IoError;
use longhaul_engine::net::TcpStream;
use longhaul_engine::{RecvMsg, SendMsg};
use longhaul_proto::host::{HostConfig, HostEvent, HostQueue};
use longhaul_proto::transport::{Batch, Endpoint};

/// Length of an ICResp in bytes (NVMe-TCP 1.1, ICResp PDU).
const IC_LEN: usize = 128;

/// Sends ICReq and waits for ICResp: what [`Queue::serve`](crate::queue::Queue::serve) takes, possibly on
/// another thread.
pub(crate) async fn handshake(stream: &TcpStream, config: HostConfig) -> Result<HostQueue, IoError> {
    let fail = |e: String| IoError::Unreachable(e);
    let mut queue = HostQueue::new(config);
    let mut batch = Batch::default();
    if queue.poll_transmit(&mut batch) {
        let mut msg = SendMsg::new();
        let len = batch.bytes.len();
        msg.begin(std::mem::take(&mut batch.bytes));
        msg.push_bytes(0, len);
        stream.send(msg).await.0.map_err(|e| fail(e.to_string()))?;
    }
    // Exactly an ICResp and not a byte more, so that none is left over.
    let mut msg = RecvMsg::new(IC_LEN);
    let mut missing = IC_LEN;
    loop {
        msg.set_staging_limit(missing);
        let (result, back) = stream.recv(msg).await;
        msg = back;
        match result {
            Ok(0) => return Err(fail("the peer closed the connection".into())),
            Ok(n) => missing -= n,
            Err(e) => return Err(fail(e.to_string())),
        }
        queue.handle(msg.staged());
        match queue.poll_event() {
            Some(HostEvent::Ready(_)) => return Ok(queue),
            Some(HostEvent::Closed(reason)) => return Err(fail(reason.to_string())),
            _ if missing == 0 => return Err(fail("its answer to ICReq is no ICResp".into())),
            _ => {}
        }
    }
}
