//! Bytes on their way.

use super::content::{self, message, mix, receive_and_compare, receive_exactly, send, send_content};
use super::{Bench, Result, failed};
use crate::transport::Stream;
use futures_channel::oneshot;
use longhaul_engine::{BufMut, RecvMsg, SendMsg, sleep, spawn};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Bytes of one message: larger than the buffers of any transport that were made for a segment or a page.
const MESSAGE: usize = 4 << 20;
const SEEDS: [u64; 2] = [0x5eed, 0xfeed];

pub(super) async fn one_byte_at_a_time(bench: Bench) -> Result<()> {
    const LEN: u64 = 3000;
    let (near, far) = bench.pair().await?;
    let receiving = bench.far(far, async |far| receive_and_compare(&*far, SEEDS[0], LEN, 1).await);
    send_content(&*near, SEEDS[0], LEN, 7).await?;
    receiving.await
}

pub(super) async fn vectors(bench: Bench) -> Result<()> {
    const LEN: u64 = 12 << 20;
    for most in [MESSAGE, 64 << 10] {
        let (near, far) = bench.pair().await?;
        let receiving =
            bench.far(far, async move |far| receive_and_compare(&*far, SEEDS[0], LEN, most).await);
        send_content(&*near, SEEDS[0], LEN, MESSAGE).await?;
        receiving.await?;
    }
    Ok(())
}

/// Sends the first content, and receives the second at the same time.
async fn exchange(stream: Box<dyn Stream>, seeds: [u64; 2], len: u64) -> Result<()> {
    let stream: Rc<dyn Stream> = stream.into();
    let sender = Rc::clone(&stream);
    let sending = spawn(async move { send_content(&*sender, seeds[0], len, MESSAGE).await });
    receive_and_compare(&*stream, seeds[1], len, MESSAGE).await?;
    sending.await
}

pub(super) async fn both_directions(bench: Bench) -> Result<()> {
    const LEN: u64 = 12 << 20;
    let (near, far) = bench.pair().await?;
    let [there, back] = SEEDS;
    let exchanging = bench.far(far, move |far| exchange(far, [back, there], LEN));
    exchange(near, [there, back], LEN).await?;
    exchanging.await
}

/// What the peer has not received is bounded, and what is sent after it waits; the other direction does not.
pub(super) async fn back_pressure(bench: Bench) -> Result<()> {
    const LEN: u64 = 96 << 20;
    const BOUND: u64 = 32 << 20;
    const PART: usize = 1 << 20;
    /// Nothing has moved for so long: it waits. There is no event for that.
    const STILL: (Duration, u32) = (Duration::from_millis(50), 6);
    let (near, far) = bench.pair().await?;
    let near: Rc<dyn Stream> = near.into();
    let (go, gone) = oneshot::channel::<()>();
    let receiving = bench.far(far, async move |far| {
        // This direction is free.
        send(&*far, message(b"here")).await?;
        let _ = gone.await;
        receive_and_compare(&*far, SEEDS[0], LEN, PART).await
    });
    let (sender, sent) = (Rc::clone(&near), Rc::new(Cell::new(0)));
    let counter = Rc::clone(&sent);
    let sending = spawn(async move {
        while counter.get() < LEN {
            send(&*sender, content::pieces(counter.get(), &content::content(SEEDS[0], counter.get(), PART)))
                .await?;
            counter.set(counter.get() + PART as u64);
        }
        Ok::<_, String>(())
    });
    let (mut before, mut looks) = (0, 0);
    while looks < STILL.1 {
        sleep(STILL.0).await;
        looks = if sent.get() == before { looks + 1 } else { 0 };
        before = sent.get();
        if before > BOUND {
            return Err(format!(
                "{before} bytes were taken that the peer does not receive: its memory has no bound"
            ));
        }
    }
    if receive_exactly(&*near, 4).await? != b"here" {
        return Err("the other direction has other bytes".into());
    }
    let _ = go.send(());
    sending.await?;
    receiving.await
}

/// Short messages to and fro: each waits for the one before, and each call is polled more often than it is woken, with
/// other wakers too.
pub(super) async fn wake_ups(bench: Bench) -> Result<()> {
    const ROUNDS: u64 = 4000;
    let (near, far) = bench.pair().await?;
    let echoing = bench.far(far, async |far| {
        for round in 0..ROUNDS {
            let byte = restless_receive(&*far, round).await?;
            send(&*far, message(&[byte ^ 0xff])).await?;
        }
        Ok(())
    });
    for round in 0..ROUNDS {
        let byte = mix(round) as u8;
        send(&*near, message(&[byte])).await?;
        if restless_receive(&*near, round).await? != byte ^ 0xff {
            return Err(format!("round {round} has another answer"));
        }
    }
    echoing.await
}

/// One byte.
async fn restless_receive(stream: &dyn Stream, round: u64) -> Result<u8> {
    let mut receive = pin!(stream.recv(RecvMsg::new(1)));
    let mut again = round % 4;
    let (result, msg) = poll_fn(|cx| {
        if again > 0 {
            again -= 1;
            cx.waker().wake_by_ref();
            // A waker that wakes nothing: it is the last one that counts.
            if let Poll::Ready(done) = receive.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Poll::Ready(done);
            }
        }
        receive.as_mut().poll(cx)
    })
    .await;
    match (result.map_err(failed("a receive"))?, msg.staged()) {
        (1, [byte]) => Ok(*byte),
        (n, staged) => Err(format!("a receive of one byte says {n} and has {}", staged.len())),
    }
}

/// Memory that was registered is used, and is free once the registration is gone.
pub(super) async fn registered(bench: Bench) -> Result<()> {
    const LEN: usize = 1 << 20;
    let (near, far) = bench.pair().await?;
    let receiving = bench.far(far, async |far| {
        let bytes = receive_exactly(&*far, LEN).await?;
        content::compare(SEEDS[0], 0, &bytes)
    });
    let mut buf = BufMut::copy_of(&content::content(SEEDS[0], 0, LEN));
    let start = NonNull::new(buf.as_mut_ptr()).ok_or("memory at no address")?;
    let registration = bench.transport.register(NonNull::slice_from_raw_parts(start, LEN));
    let buf = buf.freeze();
    let mut msg = SendMsg::new();
    msg.push(buf.segment());
    send(&*near, msg).await?;
    receiving.await?;
    drop(registration);
    content::compare(SEEDS[0], 0, &buf)
}
