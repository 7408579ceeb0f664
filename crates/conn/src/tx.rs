//! The transmit loop.

use crate::shared::{Driver, Shared};
use longhaul_engine::SendMsg;
use longhaul_proto::transport::{Batch, Endpoint, Piece};
use std::io;
use std::net::Shutdown;

#[cfg(feature = "tls")]
use crate::{channel::message, secure::Secure};
#[cfg(feature = "tls")]
use std::cell::RefCell;

/// Bytes given to one send: enough to fill a socket buffer, little enough
/// that the memory of sent commands is free for others soon.
const SEND_MAX: usize = 1 << 20;
/// Pieces given to one send (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;
/// Encrypted bytes given to one send: four records. So the peer decrypts while this end encrypts, and a peer that
/// does not receive occupies little memory.
#[cfg(feature = "tls")]
const SEALED_MAX: usize = 64 << 10;

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
        let _ = Box::pin(send_sealed(shared, secure)).await;
    }
    let _ = shared.stream.shutdown(if result.is_ok() { Shutdown::Write } else { Shutdown::Both });
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
        // In memory of its own: each plain connection would keep room for it.
        Box::pin(send_batch_sealed(shared, secure, driver, batch)).await?;
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
/// its own memory, some records at a time.
#[cfg(feature = "tls")]
async fn send_batch_sealed<D: Driver>(
    shared: &Shared<D::Queue>,
    secure: &RefCell<Secure>,
    driver: &D,
    batch: &mut Batch,
) -> io::Result<()> {
    batch.fill_digests(|slot, offset, len| driver.digest(slot, offset as usize, len as usize));
    let (mut small, mut ended) = (Vec::new(), Vec::new());
    for piece in &batch.pieces {
        match *piece {
            Piece::Bytes { start, len } => {
                small.extend_from_slice(&batch.bytes[start as usize..(start + len) as usize]);
            }
            Piece::Payload { slot, offset, len, last } => {
                let (mut at, end) = (offset as usize, (offset + len) as usize);
                while at < end {
                    let n = (end - at).min(SEALED_MAX);
                    {
                        let mut secure = secure.borrow_mut();
                        secure.seal(&small)?;
                        secure.seal_segment(&driver.source(slot, at, n))?;
                    }
                    small.clear();
                    at += n;
                    if at < end && secure.borrow().sealed_len() >= SEALED_MAX {
                        send_sealed(shared, secure).await?;
                    }
                }
                ended.extend(last.then_some(slot));
            }
        }
        if small.len() + secure.borrow().sealed_len() >= SEALED_MAX {
            secure.borrow_mut().seal(&small)?;
            small.clear();
            send_and_release(shared, secure, driver, &mut ended).await?;
        }
    }
    secure.borrow_mut().seal(&small)?;
    send_and_release(shared, secure, driver, &mut ended).await?;
    secure.borrow_mut().rest();
    batch.bytes.clear();
    Ok(())
}

/// Sends what is encrypted. The payload of these slots is on its way then.
#[cfg(feature = "tls")]
async fn send_and_release<D: Driver>(
    shared: &Shared<D::Queue>,
    secure: &RefCell<Secure>,
    driver: &D,
    ended: &mut Vec<u16>,
) -> io::Result<()> {
    let result = send_sealed(shared, secure).await;
    for slot in ended.drain(..) {
        driver.release(slot);
        shared.queue.borrow_mut().payload_sent(slot);
    }
    result?;
    driver.events();
    shared.resume.notify();
    Ok(())
}

#[cfg(feature = "tls")]
async fn send_sealed<Q>(shared: &Shared<Q>, secure: &RefCell<Secure>) -> io::Result<()> {
    let sealed = secure.borrow_mut().take_sealed();
    if sealed.is_empty() {
        return Ok(());
    }
    shared.sending.set(true);
    let (result, mut msg) = shared.stream.send(message(sealed)).await;
    shared.sending.set(false);
    shared.progress.set(shared.progress.get() + 1);
    secure.borrow_mut().give_back(msg.take_bytes());
    result
}
