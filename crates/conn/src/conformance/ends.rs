//! How connections begin and end.

use super::content::{self, compare, content, message, receive, receive_exactly, send};
use super::{Bench, Result, failed};
use crate::transport::Stream;
use futures_channel::oneshot;
use longhaul_engine::{RecvMsg, spawn, yield_now};
use std::net::Shutdown;
use std::rc::Rc;

const SEED: u64 = 0xbead;
/// More than any buffers hold: a send of it waits for the peer.
const TOO_MUCH: u64 = 256 << 20;
const PART: usize = 1 << 20;

/// A listener is found, gone once it is dropped, and its address is free then.
pub(super) async fn connecting(bench: Bench) -> Result<()> {
    let listening = {
        let (transport, address) = (bench.transport.clone(), bench.address.clone());
        move || async move {
            let listener = transport.listen(&address).map_err(failed("listening"))?;
            Ok::<_, String>(listener.address().to_string())
        }
    };
    let at = super::gone(bench.far.spawn(listening).await)??;
    match bench.transport.connect(&at).await {
        // The kernel or a switch may accept it. It leads nowhere.
        Ok(stream) => {
            if receive(&*stream, 0, 1).await.is_ok_and(|bytes| !bytes.is_empty()) {
                return Err(format!("at {at}, where nothing listens, a connection has bytes"));
            }
        }
        Err(e) if e.to_string().is_empty() => return Err("an error that says nothing".into()),
        Err(_) => {}
    }
    for _ in 0..3 {
        let (near, far) = bench.pair().await?;
        let echoing = bench.far(far, async |far| {
            let bytes = receive_exactly(&*far, 100).await?;
            send(&*far, message(&bytes)).await
        });
        send(&*near, message(&content(SEED, 0, 100))).await?;
        compare(SEED, 0, &receive_exactly(&*near, 100).await?)?;
        echoing.await?;
    }
    Ok(())
}

/// What was sent before the sending side ended arrives, then the end; the other direction goes on.
pub(super) async fn half_close(bench: Bench) -> Result<()> {
    const LEN: usize = 3 << 20;
    let (near, far) = bench.pair().await?;
    let receiving = bench.far(far, async |far| {
        let bytes = receive_exactly(&*far, LEN).await?;
        compare(SEED, 0, &bytes)?;
        for _ in 0..2 {
            if !receive(&*far, 0, 10).await?.is_empty() {
                return Err("bytes after the end".into());
            }
        }
        send(&*far, content::pieces(SEED, &content(SEED, 0, LEN))).await?;
        // Dropping it after that loses nothing.
        far.shutdown(Shutdown::Write).map_err(failed("shutdown of the sending side"))?;
        let left = receive(&*far, 0, 10).await;
        if left.is_ok_and(|bytes| !bytes.is_empty()) {
            return Err("bytes after the end".into());
        }
        Ok(())
    });
    send(&*near, content::pieces(SEED, &content(SEED, 0, LEN))).await?;
    near.shutdown(Shutdown::Write).map_err(failed("shutdown of the sending side"))?;
    if send(&*near, message(b"more")).await.is_ok() {
        return Err("a send after the shutdown of the sending side has succeeded".into());
    }
    compare(SEED, 0, &receive_exactly(&*near, LEN).await?)?;
    if !receive(&*near, 0, 10).await?.is_empty() {
        return Err("bytes after the end".into());
    }
    receiving.await
}

/// Receives until the end, or an error: both are right.
async fn until_the_end(stream: &dyn Stream) {
    while receive(stream, 0, PART).await.is_ok_and(|bytes| !bytes.is_empty()) {}
}

/// Sends until an error.
async fn until_it_fails(stream: &dyn Stream) -> Result<()> {
    let part = content(SEED, 0, PART);
    for _ in 0..TOO_MUCH / PART as u64 {
        if send(stream, message(&part)).await.is_err() {
            return Ok(());
        }
    }
    Err(format!("{TOO_MUCH} bytes were sent to an end that is gone"))
}

/// An end that waits for bytes sees that the other one is gone, and cannot send to it.
pub(super) async fn dropped(bench: Bench) -> Result<()> {
    let (near, far) = bench.pair().await?;
    let (waits, waiting) = oneshot::channel();
    let receiving = bench.far(far, async |far| {
        let _ = waits.send(());
        until_the_end(&*far).await;
        until_it_fails(&*far).await
    });
    let _ = waiting.await;
    drop(near);
    receiving.await?;
    // A free stream that is dropped is gone, too.
    let (near, far) = bench.pair().await?;
    drop(far);
    until_the_end(&*near).await;
    until_it_fails(&*near).await
}

pub(super) async fn dropped_during_send(bench: Bench) -> Result<()> {
    let (near, far) = bench.pair().await?;
    let leaving = bench.far(far, async |far| {
        // So that a send is under way.
        receive_exactly(&*far, PART / 2).await?;
        drop(far);
        Ok(())
    });
    until_it_fails(&*near).await?;
    leaving.await
}

/// Calls that wait at an end when that shuts its sides down.
pub(super) async fn shutdown_of_waiting(bench: Bench) -> Result<()> {
    for how in [Shutdown::Read, Shutdown::Both] {
        let (near, far) = bench.pair().await?;
        let near: Rc<dyn Stream> = near.into();
        let (end, ended) = oneshot::channel::<()>();
        let staying = bench.far(far, async move |far| {
            let _ = ended.await;
            drop(far);
            Ok(())
        });
        let receiver = Rc::clone(&near);
        let receiving = spawn(async move { receiver.recv(RecvMsg::new(10)).await.0 });
        let sender = Rc::clone(&near);
        let sending = spawn(async move { until_it_fails(&*sender).await });
        for _ in 0..10 {
            yield_now().await;
        }
        near.shutdown(how).map_err(failed("shutdown"))?;
        if receiving.await.is_ok_and(|n| n > 0) {
            return Err("a receive has bytes that were not sent".into());
        }
        if how == Shutdown::Both {
            sending.await?;
        } else {
            drop(sending);
        }
        let _ = end.send(());
        staying.await?;
    }
    Ok(())
}

/// Calls that wait at both ends when one of them leaves.
pub(super) async fn abandon(bench: Bench) -> Result<()> {
    let (near, far) = bench.pair().await?;
    let near: Rc<dyn Stream> = near.into();
    let (begins, begun) = oneshot::channel();
    let leaving = bench.far(far, async |far| {
        receive_exactly(&*far, 1).await?;
        let _ = begins.send(());
        until_the_end(&*far).await;
        until_it_fails(&*far).await
    });
    let sender = Rc::clone(&near);
    send(&*near, message(b"x")).await?;
    // What is under way when an end leaves need not arrive.
    let _ = begun.await;
    let sending = spawn(async move { until_it_fails(&*sender).await });
    let receiver = Rc::clone(&near);
    let receiving = spawn(async move { until_the_end(&*receiver).await });
    for _ in 0..10 {
        yield_now().await;
    }
    near.abandon();
    sending.await?;
    receiving.await;
    // Twice is once.
    near.abandon();
    leaving.await
}

/// What has arrived, and what comes while it is on its way, moves along.
pub(super) async fn moved(bench: Bench) -> Result<()> {
    const LEN: u64 = 64 << 10;
    let (near, far) = bench.pair().await?;
    let mut far = Some(far);
    for round in 0..6 {
        send(&*near, message(&content(SEED, round * LEN, LEN as usize))).await?;
        let Some(free) = far.take() else { break };
        // At this thread and at the other one in turn.
        let some = async move |stream: Box<dyn Stream>| {
            let bytes = receive_exactly(&*stream, LEN as usize / 2).await?;
            compare(SEED, round * LEN, &bytes)?;
            stream.into_free().map_err(failed("moving"))
        };
        let free = match round % 2 {
            0 => bench.far(free, some).await?,
            _ => some(free.adopt().map_err(failed("adopting"))?).await?,
        };
        let stream = free.adopt().map_err(failed("adopting"))?;
        let bytes = receive_exactly(&*stream, LEN as usize / 2).await?;
        compare(SEED, round * LEN + LEN / 2, &bytes)?;
        far = Some(stream.into_free().map_err(failed("moving"))?);
    }
    drop(near);
    match far {
        Some(free) => {
            until_the_end(&*free.adopt().map_err(failed("adopting"))?).await;
            Ok(())
        }
        None => Err("the stream was lost".into()),
    }
}

/// A hundred at once, each with content of its own.
pub(super) async fn many(bench: Bench) -> Result<()> {
    const COUNT: usize = 100;
    const LEN: u64 = 100_000;
    let (near, far) = bench.connect(COUNT).await?;
    let mut echoing = Vec::new();
    for far in far {
        echoing.push(bench.far(far, async |far| {
            let bytes = receive_exactly(&*far, LEN as usize).await?;
            send(&*far, message(&bytes)).await
        }));
    }
    let exchange = |(number, stream): (usize, Box<dyn Stream>)| {
        spawn(async move {
            let seed = number as u64;
            content::send_content(&*stream, seed, LEN, 10_000).await?;
            content::receive_and_compare(&*stream, seed, LEN, 10_000).await
        })
    };
    for task in near.into_iter().enumerate().map(exchange).collect::<Vec<_>>() {
        task.await?;
    }
    for echo in echoing {
        echo.await?;
    }
    Ok(())
}
