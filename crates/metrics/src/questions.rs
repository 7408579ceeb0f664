//! Asks engine threads whether they answer.
//!
//! Invariants:
//! - a thread is asked again only when it has answered, so that questions do not pile up.

use crate::server::lock;
use longhaul_engine::Handle;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Questions to threads that are the same from one time to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Questions {
    /// For each thread, whether it has been asked and has not answered.
    open: Arc<(Mutex<Vec<bool>>, Condvar)>,
}

impl Questions {
    /// The names of the threads that do not answer within `limit`, or did not answer an earlier question.
    pub(crate) fn unanswered(&self, threads: &[(String, Handle)], limit: Duration) -> Vec<String> {
        let (open, answered) = &*self.open;
        let mut asked = lock(open);
        asked.resize(threads.len(), false);
        for (i, (_, handle)) in threads.iter().enumerate() {
            if std::mem::replace(&mut asked[i], true) {
                continue;
            }
            let open = Arc::clone(&self.open);
            handle.spawn(move || async move {
                let (open, answered) = &*open;
                if let Some(open) = lock(open).get_mut(i) {
                    *open = false;
                }
                answered.notify_all();
            });
        }
        let is_waiting = |asked: &mut Vec<bool>| asked.contains(&true);
        let (asked, _) =
            answered.wait_timeout_while(asked, limit, is_waiting).unwrap_or_else(PoisonError::into_inner);
        let waiting = threads.iter().zip(&*asked).filter(|(_, asked)| **asked);
        waiting.map(|((name, _), _)| name.clone()).collect()
    }

    /// Whether all threads answer within `limit`.
    ///
    /// # Errors
    /// The threads that do not, in words.
    pub(crate) fn check(&self, threads: &[(String, Handle)], limit: Duration) -> Result<(), String> {
        let stalled = self.unanswered(threads, limit);
        if stalled.is_empty() {
            return Ok(());
        }
        Err(format!("no answer within {} s from the threads {}", limit.as_secs_f64(), stalled.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_engine::{Config, Thread};

    #[test]
    fn a_thread_that_does_not_answer_is_named_and_not_asked_again() {
        let thread = Thread::start("stuck", Config::default()).expect("a thread");
        let (questions, threads) = (Questions::default(), [("stuck".to_owned(), thread.handle())]);
        let unanswered = |limit| questions.unanswered(&threads, limit);
        assert!(unanswered(Duration::from_secs(60)).is_empty());
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (busy, is_busy) = std::sync::mpsc::channel::<()>();
        thread.handle().spawn(move || async move {
            let _ = busy.send(());
            // The whole thread stands still, as in a system call that hangs.
            let _ = wait.recv();
        });
        is_busy.recv().expect("it runs");
        for _ in 0..3 {
            assert_eq!(unanswered(Duration::from_millis(1)), ["stuck"]);
        }
        assert!(questions.check(&threads, Duration::ZERO).expect_err("it is stuck").contains("stuck"));
        drop(go);
        assert!(unanswered(Duration::from_secs(60)).is_empty());
    }
}
