//! Operations on several members combined into one.
//!
//! Invariants:
//! - the combined operation ends when every part has ended, also if one fails: a retry never races
//!   with the rest of the first attempt;
//! - of several errors the one of the first part is returned.

use futures_util::future::join_all;
use longhaul_block::{IoError, IoFuture, IoResult};
use longhaul_engine::BufMut;

/// Part of an operation.
enum PartState<T> {
    Done(IoResult<T>),
    UnderWay(IoFuture<T>),
}

/// Combines the results of all parts, in their order.
fn gather<T: Unpin + 'static, U: 'static>(
    parts: Vec<IoFuture<T>>,
    end: impl FnOnce(Vec<IoResult<T>>) -> IoResult<U> + 'static,
) -> IoFuture<U> {
    let mut waits = false;
    let parts: Vec<PartState<T>> = parts
        .into_iter()
        .map(|part| match part.try_ready() {
            Ok(result) => PartState::Done(result),
            Err(under_way) => {
                waits = true;
                PartState::UnderWay(under_way)
            }
        })
        .collect();
    if !waits {
        let done = |part| match part {
            PartState::Done(result) => result,
            PartState::UnderWay(_) => Err(IoError::Aborted),
        };
        return IoFuture::ready(end(parts.into_iter().map(done).collect()));
    }
    let wait = |part| async {
        match part {
            PartState::Done(result) => result,
            PartState::UnderWay(under_way) => under_way.await,
        }
    };
    let all = join_all(parts.into_iter().map(wait));
    IoFuture::new(async move { end(all.await) })
}

/// Ends when all parts have; the first error, if any.
pub(crate) fn all(mut parts: Vec<IoFuture<()>>) -> IoFuture<()> {
    match parts.len() {
        1 => parts.remove(0),
        _ => gather(parts, |results| results.into_iter().collect()),
    }
}

/// Combines reads into consecutive parts of one buffer.
pub(crate) fn buffer(mut parts: Vec<IoFuture<BufMut>>) -> IoFuture<BufMut> {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    gather(parts, |results| {
        let mut parts = results.into_iter();
        let mut whole = parts.next().unwrap_or_else(|| Ok(BufMut::zeroed(0)));
        for part in parts {
            whole = match (whole, part) {
                (Ok(mut whole), Ok(part)) => match whole.unsplit(part) {
                    Ok(()) => Ok(whole),
                    Err(_) => Err(IoError::Integrity("a member returned a different buffer".into())),
                },
                (Err(e), _) | (_, Err(e)) => Err(e),
            };
        }
        whole
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;
    use longhaul_engine::sleep;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    #[test]
    fn parts_that_are_ready_give_a_result_at_once() {
        let parts = (0..3).map(|_| IoFuture::ready(Ok(()))).collect();
        assert_eq!(all(parts).try_ready().ok(), Some(Ok(())));
        let mut head = BufMut::copy_of(b"abcdef");
        let tail = head.split_off(2);
        let whole = buffer(vec![IoFuture::ready(Ok(head)), IoFuture::ready(Ok(tail))]);
        assert_eq!(whole.try_ready().expect("done").expect("joined")[..], b"abcdef"[..]);
    }

    #[test]
    fn an_error_waits_for_the_rest() {
        let ended = Rc::new(Cell::new(false));
        let slow = Rc::clone(&ended);
        let result = run(async move {
            let late = IoFuture::new(async move {
                sleep(Duration::from_millis(2)).await;
                slow.set(true);
                Err(IoError::NoSpace)
            });
            all(vec![IoFuture::ready(Ok(())), IoFuture::ready(Err(IoError::Aborted)), late]).await
        });
        assert_eq!(result, Err(IoError::Aborted));
        assert!(ended.get());
    }

    #[test]
    fn a_foreign_buffer_is_refused() {
        let parts = [BufMut::zeroed(512), BufMut::zeroed(512)].map(|part| IoFuture::ready(Ok(part)));
        let whole = buffer(parts.into()).try_ready().expect("done");
        assert!(matches!(whole, Err(IoError::Integrity(_))));
    }
}
