//! Operations that run to their end, also if their future is dropped.

use crate::{IoFuture, IoResult};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

type Boxed<T> = Pin<Box<dyn Future<Output = IoResult<T>>>>;

/// Begins `future` now. If the result is dropped before it is done, `let_go` gets the rest of the
/// operation and runs it to its end.
pub(crate) fn begin<T: Unpin + 'static>(
    future: impl Future<Output = IoResult<T>> + 'static,
    let_go: impl FnOnce(Pin<Box<dyn Future<Output = ()>>>) + Unpin + 'static,
) -> IoFuture<T> {
    let mut future: Boxed<T> = Box::pin(future);
    // The first poll submits the operation; the caller's own poll registers a waker that matters.
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => IoFuture::ready(result),
        Poll::Pending => IoFuture::new(Going { rest: Some((future, let_go)) }),
    }
}

struct Going<T: 'static, F: FnOnce(Pin<Box<dyn Future<Output = ()>>>)> {
    rest: Option<(Boxed<T>, F)>,
}

impl<T, F: FnOnce(Pin<Box<dyn Future<Output = ()>>>) + Unpin> Future for Going<T, F> {
    type Output = IoResult<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<T>> {
        let Some((future, _)) = &mut self.rest else { unreachable!("polled after it was done") };
        let poll = future.as_mut().poll(cx);
        if poll.is_ready() {
            self.rest = None;
        }
        poll
    }
}

impl<T: 'static, F: FnOnce(Pin<Box<dyn Future<Output = ()>>>)> Drop for Going<T, F> {
    fn drop(&mut self) {
        if let Some((future, let_go)) = self.rest.take() {
            let_go(Box::pin(async move { drop(future.await) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    type Left = Rc<RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>>;

    /// A future that waits `waits` times and counts its polls.
    fn waiting(polls: &Rc<Cell<u32>>, waits: u32) -> impl Future<Output = IoResult<u32>> + use<> {
        let polls = Rc::clone(polls);
        std::future::poll_fn(move |_| {
            polls.set(polls.get() + 1);
            if polls.get() > waits { Poll::Ready(Ok(7)) } else { Poll::Pending }
        })
    }

    fn started(polls: &Rc<Cell<u32>>, waits: u32) -> (IoFuture<u32>, Left) {
        let left = Left::default();
        let slot = Rc::clone(&left);
        (begin(waiting(polls, waits), move |rest| *slot.borrow_mut() = Some(rest)), left)
    }

    #[test]
    fn it_begins_without_a_poll() {
        let polls = Rc::default();
        let (future, _) = started(&polls, 0);
        assert_eq!(polls.get(), 1);
        assert_eq!(future.try_ready().ok(), Some(Ok(7)));
    }

    #[test]
    fn dropped_it_goes_on_and_done_it_does_not() {
        let polls = Rc::default();
        let (future, left) = started(&polls, 1);
        drop(future);
        let rest = left.borrow_mut().take().expect("handed over");
        crate::testing::now(rest);
        assert_eq!(polls.get(), 2);

        let polls = Rc::default();
        let (future, left) = started(&polls, 1);
        assert_eq!(crate::testing::done(future), Ok(7));
        assert!(left.borrow().is_none());
    }
}
