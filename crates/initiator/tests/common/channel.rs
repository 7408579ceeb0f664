//! A host on a channel, with TLS or without, for things that the library never does.

use longhaul_conn::Channel;
use longhaul_wire::command::{Sgl, Sqe};
use longhaul_wire::fabrics::ConnectData;
use longhaul_wire::pdu::IcReq;
use uuid::Uuid;
use zerocopy::IntoBytes;

/// So many bytes.
pub async fn receive(channel: &Channel, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let some = channel.receive_bytes(len - all.len()).await.expect("received");
        assert!(!some.is_empty(), "the end after {} of {len} bytes", all.len());
        all.extend_from_slice(&some);
    }
    all
}

/// The status of a Connect of a queue in these names, the first thing on a channel.
pub async fn connect_on(channel: &Channel, qid: u16, cntlid: u16, hostnqn: &str, subnqn: &str) -> u16 {
    const CAPSULE: u8 = 72;
    channel.send_bytes(IcReq::new(0, 0, 0).as_bytes().to_vec()).await.expect("sent");
    receive(channel, 128).await;
    let data = ConnectData::new(Uuid::from_u128(7), cntlid, subnqn, hostnqn);
    let sqe = Sqe::connect(qid, 31, 0, 0).with_sgl(Sgl::in_capsule(0, ConnectData::LEN as u32));
    let mut bytes = vec![4, 0, CAPSULE, CAPSULE];
    bytes.extend_from_slice(&(u32::from(CAPSULE) + ConnectData::LEN as u32).to_le_bytes());
    bytes.extend_from_slice(sqe.as_bytes());
    bytes.extend_from_slice(data.as_bytes());
    channel.send_bytes(bytes).await.expect("sent");
    let answer = receive(channel, 24).await;
    u16::from_le_bytes([answer[22], answer[23]]) >> 1
}
