//! The transmit loop.

use crate::shared::{Driver, Shared};
use longhaul_engine::SendMsg;
use longhaul_proto::transport::{Batch, Endpoint, Piece};
use std::io;
use std::net::Shutdown;

/// Bytes given to one send: enough to fill a socket buffer, little enough
/// that the memory of sent commands is free for others soon.
const SEND_MAX: usize = 1 << 20;
/// Pieces given to one send (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// Sends what the queue has until the connection ends, then closes the
/// sending side.
///
/// # Errors
/// The socket failed; the receive loop will see the same.
pub async fn transmit<D: Driver>(shared: &Shared<D::Queue>, driver: &D) -> io::Result<()> {
    let mut batch = Batch::default();
    let mut msg = SendMsg::new();
    let result = loop {
        let ending = shared.is_ending();
        if !shared.queue.borrow_mut().poll_transmit(&mut batch) {
            if ending {
                break Ok(());
            }
            shared.output.notified().await;
            continue;
        }
        match send_batch(shared, driver, &mut batch, msg).await {
            Ok(back) => msg = back,
            Err(e) => break Err(e),
        }
    };
    shared.end();
    #[cfg(feature = "tls")]
    if result.is_ok()
        && let Some(secure) = shared.stream.session()
    {
        secure.borrow_mut().end();
        // The end of the connection says the same to a peer that does not get it.
        let _ = send_sealed(shared, secure).await;
    }
    let _ = shared.stream.socket().shutdown(if result.is_ok() { Shutdown::Write } else { Shutdown::Both });
    result
}

async fn send_batch<D: Driver>(
    shared: &Shared<D::Queue>,
    driver: &D,
    batch: &mut Batch,
    mut msg: SendMsg,
) -> io::Result<SendMsg> {
    #[cfg(feature = "tls")]
    if let Some(secure) = shared.stream.session() {
        send_batch_sealed(shared, secure, driver, batch).await?;
        return Ok(msg);
    }
    batch.fill_digests(|slot, offset, len| driver.digest(slot, offset as usize, len as usize));
    let mut bytes = std::mem::take(&mut batch.bytes);
    let mut pieces = batch.pieces.as_slice();
    while !pieces.is_empty() {
        msg.begin(bytes);
        let mut len = 0;
        let mut n = 0;
        for piece in pieces.iter().take(PIECES_MAX) {
            match *piece {
                Piece::Bytes { start, len: l } => {
                    msg.push_bytes(start as usize, l as usize);
                    len += l as usize;
                }
                Piece::Payload { slot, offset, len: l, .. } if l > 0 => {
                    msg.push(driver.source(slot, offset as usize, l as usize));
                    len += l as usize;
                }
                Piece::Payload { .. } => {}
            }
            n += 1;
            if len >= SEND_MAX {
                break;
            }
        }
        shared.sending.set(true);
        let (result, back) = shared.stream.send(msg).await;
        shared.sending.set(false);
        shared.progress.set(shared.progress.get() + 1);
        msg = back;
        bytes = msg.take_bytes();
        let (sent, rest) = pieces.split_at(n);
        pieces = rest;
        for piece in sent {
            if let Piece::Payload { slot, last: true, .. } = *piece {
                driver.release(slot);
                shared.queue.borrow_mut().payload_sent(slot);
            }
        }
        result?;
        // Completions and input that waited for memory to be sent may continue.
        driver.events();
        shared.resume.notify();
    }
    batch.bytes = bytes;
    Ok(msg)
}

/// As [`send_batch`], encrypted: small pieces that follow each other share records, and payload is encrypted from
/// its own memory.
#[cfg(feature = "tls")]
async fn send_batch_sealed<D: Driver>(
    shared: &Shared<D::Queue>,
    secure: &std::cell::RefCell<crate::secure::Secure>,
    driver: &D,
    batch: &mut Batch,
) -> io::Result<()> {
    batch.fill_digests(|slot, offset, len| driver.digest(slot, offset as usize, len as usize));
    let mut pieces = batch.pieces.as_slice();
    let mut small = Vec::new();
    while !pieces.is_empty() {
        let (mut len, mut n) = (0, 0);
        for piece in pieces {
            match *piece {
                Piece::Bytes { start, len: l } => {
                    small.extend_from_slice(&batch.bytes[start as usize..(start + l) as usize]);
                    len += l as usize;
                }
                Piece::Payload { slot, offset, len: l, .. } if l > 0 => {
                    let mut secure = secure.borrow_mut();
                    secure.seal(&small)?;
                    small.clear();
                    secure.seal_segment(&driver.source(slot, offset as usize, l as usize))?;
                    len += l as usize;
                }
                Piece::Payload { .. } => {}
            }
            n += 1;
            if len >= SEND_MAX {
                break;
            }
        }
        secure.borrow_mut().seal(&small)?;
        small.clear();
        let result = send_sealed(shared, secure).await;
        let (sent, rest) = pieces.split_at(n);
        pieces = rest;
        for piece in sent {
            if let Piece::Payload { slot, last: true, .. } = *piece {
                driver.release(slot);
                shared.queue.borrow_mut().payload_sent(slot);
            }
        }
        result?;
        driver.events();
        shared.resume.notify();
    }
    batch.bytes.clear();
    Ok(())
}

#[cfg(feature = "tls")]
async fn send_sealed<Q>(
    shared: &Shared<Q>,
    secure: &std::cell::RefCell<crate::secure::Secure>,
) -> io::Result<()> {
    let sealed = secure.borrow_mut().take_sealed();
    let (mut msg, len) = (SendMsg::new(), sealed.len());
    msg.begin(sealed);
    msg.push_bytes(0, len);
    shared.sending.set(true);
    let (result, mut msg) = shared.stream.send(msg).await;
    shared.sending.set(false);
    shared.progress.set(shared.progress.get() + 1);
    secure.borrow_mut().give_back(msg.take_bytes());
    result
}
