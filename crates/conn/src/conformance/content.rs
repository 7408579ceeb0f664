//! Bytes that are different at each place, so that none is lost, repeated or exchanged unnoticed.

use super::{Result, failed};
use crate::transport::Stream;
use longhaul_engine::{BufMut, Memory, RecvMsg, SendMsg};

/// Pieces of one message at most: more than one system call takes (`IOV_MAX`).
const PIECES: usize = 3000;

/// A number that looks like chance (SplitMix64).
pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The bytes from `at` on of the stream with this seed.
pub(super) fn content(seed: u64, at: u64, len: usize) -> Vec<u8> {
    let words = at / 8..(at + len as u64).div_ceil(8);
    let bytes: Vec<u8> = words.flat_map(|word| mix(seed ^ mix(word)).to_le_bytes()).collect();
    let first = at as usize % 8;
    bytes[first..first + len].to_vec()
}

pub(super) fn message(bytes: &[u8]) -> SendMsg {
    let mut msg = SendMsg::new();
    msg.begin(bytes.to_vec());
    msg.push_bytes(0, bytes.len());
    msg
}

/// The bytes as one message of many pieces of all sizes, in the byte vector and in buffers, some of them empty.
pub(super) fn pieces(seed: u64, bytes: &[u8]) -> SendMsg {
    let mut msg = SendMsg::new();
    msg.begin(bytes.to_vec());
    let most = 2 * bytes.len() / PIECES + 2;
    let (mut at, mut number) = (0, seed);
    while at < bytes.len() {
        number = mix(number);
        let len = (number as usize % most).min(bytes.len() - at);
        match number >> 62 {
            0 => msg.push(BufMut::copy_of(&bytes[at..at + len]).freeze().segment()),
            _ => msg.push_bytes(at, len),
        }
        at += len;
    }
    msg
}

/// Sends a whole message.
pub(super) async fn send(stream: &dyn Stream, mut msg: SendMsg) -> Result<()> {
    while msg.remaining() > 0 {
        let before = msg.remaining();
        let (result, back) = stream.send(msg).await;
        result.map_err(failed("a send"))?;
        if back.remaining() >= before {
            return Err(format!("a send of {before} bytes has succeeded, and {} are left", back.remaining()));
        }
        msg = back;
    }
    Ok(())
}

/// Receives some bytes, at most `direct` into memory of their own and `staged` behind them. None at the end.
pub(super) async fn receive(stream: &dyn Stream, direct: usize, staged: usize) -> Result<Vec<u8>> {
    /// Bytes around the memory that must stay as they are.
    const MARGIN: usize = 16;
    let mut msg = RecvMsg::new(staged.max(1));
    msg.set_staging_limit(staged);
    if direct > 0 {
        msg.set_direct(Memory::Buf(BufMut::zeroed(direct + 2 * MARGIN)), MARGIN, direct);
    }
    let (result, mut msg) = stream.recv(msg).await;
    let received = result.map_err(failed("a receive"))?;
    if received != msg.received() || received > direct + staged {
        let has = msg.received();
        return Err(format!("a receive of {} bytes says {received}, and its message {has}", direct + staged));
    }
    let mut bytes = Vec::new();
    if let Some((Memory::Buf(memory), placed)) = msg.take_direct() {
        bytes.extend_from_slice(&memory[MARGIN..MARGIN + placed]);
        if memory[..MARGIN].iter().chain(&memory[MARGIN + direct..]).any(|byte| *byte != 0) {
            return Err("a receive has written outside its memory".into());
        }
        if placed < direct && !msg.staged().is_empty() {
            return Err("bytes were staged while the payload's memory had room".into());
        }
    }
    bytes.extend_from_slice(msg.staged());
    Ok(bytes)
}

pub(super) async fn receive_exactly(stream: &dyn Stream, len: usize) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < len {
        let some = receive(stream, 0, len - all.len()).await?;
        if some.is_empty() {
            return Err(format!("the end after {} of {len} bytes, and nothing was ended", all.len()));
        }
        all.extend_from_slice(&some);
    }
    Ok(all)
}

/// Compares what came with what was sent from `at` on.
pub(super) fn compare(seed: u64, at: u64, bytes: &[u8]) -> Result<()> {
    let expected = content(seed, at, bytes.len());
    match bytes.iter().zip(&expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(wrong) => {
            Err(format!("byte {} is not what was sent: lost, repeated or exchanged", at + wrong as u64))
        }
    }
}

/// Receives and compares `len` bytes of a stream, in messages of all sizes up to `most`.
pub(super) async fn receive_and_compare(stream: &dyn Stream, seed: u64, len: u64, most: usize) -> Result<()> {
    let (mut at, mut number) = (0, seed);
    while at < len {
        number = mix(number);
        let room = (len - at).min(1 + number % most as u64) as usize;
        let direct = room * (number >> 60) as usize / 16;
        let bytes = receive(stream, direct, room - direct).await?;
        if bytes.is_empty() {
            return Err(format!("the end after {at} of {len} bytes, and nothing was ended"));
        }
        compare(seed, at, &bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// Sends `len` bytes of a stream, in messages of many pieces, up to `most` bytes long.
pub(super) async fn send_content(stream: &dyn Stream, seed: u64, len: u64, most: usize) -> Result<()> {
    let mut at = 0;
    while at < len {
        let n = (len - at).min(1 + mix(seed ^ at) % most as u64) as usize;
        send(stream, pieces(seed ^ at, &content(seed, at, n))).await?;
        at += n as u64;
    }
    Ok(())
}
