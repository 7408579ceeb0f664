//! Threads of a stage, each started when its number is first used: a copy that needs few
//! starts few.
//!
//! Invariant: the gate admits no more threads than were started.

use super::gate::Gate;
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

/// The threads of a stage behind their concurrency gate.
pub(crate) struct Workers {
    gate: Arc<Gate>,
    started: Cell<usize>,
    /// Starts the thread with this index.
    start: RefCell<Box<dyn FnMut(usize) -> io::Result<()>>>,
}

impl Workers {
    /// Starts the threads that `gate` admits.
    ///
    /// # Errors
    /// A thread cannot be started. Those that were are blocked by nothing, so the caller
    /// ends them.
    pub(crate) fn new(
        gate: Arc<Gate>,
        start: impl FnMut(usize) -> io::Result<()> + 'static,
    ) -> io::Result<Workers> {
        let first = gate.active();
        let workers = Workers { gate, started: Cell::new(0), start: RefCell::new(Box::new(start)) };
        workers.start_up_to(first)?;
        Ok(workers)
    }

    fn start_up_to(&self, number: usize) -> io::Result<()> {
        while self.started.get() < number {
            (self.start.borrow_mut())(self.started.get())?;
            self.started.set(self.started.get() + 1);
        }
        Ok(())
    }

    /// Lets `number` threads work; returns how many do. These are fewer if the system starts
    /// no more (`RLIMIT_NPROC`, `pids.max`), with which a copy is slower and as correct.
    pub(crate) fn set(&self, number: usize) -> usize {
        if let Err(e) = self.start_up_to(number) {
            tracing::warn!("cannot start more than {} threads of a stage: {e}", self.started.get());
        }
        let number = number.min(self.started.get());
        self.gate.set(number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn threads_are_started_when_they_are_first_used() {
        let started = Rc::new(Cell::new(0));
        let (count, gate) = (Rc::clone(&started), Arc::new(Gate::new(2)));
        let start = move |index| {
            assert_eq!(index, count.get(), "each index is started once, in order");
            count.set(index + 1);
            Ok(())
        };
        let workers = Workers::new(Arc::clone(&gate), start).expect("started");
        assert_eq!(started.get(), 2);
        assert_eq!((workers.set(5), started.get(), gate.active()), (5, 5, 5));
        assert_eq!((workers.set(1), started.get(), gate.active()), (1, 5, 1));
        assert_eq!((workers.set(4), started.get()), (4, 5));
    }

    #[test]
    fn a_stage_goes_on_with_the_threads_that_the_system_starts() {
        let limit = |index| if index < 6 { Ok(()) } else { Err(io::Error::from_raw_os_error(11)) };
        let gate = Arc::new(Gate::new(4));
        let workers = Workers::new(Arc::clone(&gate), limit).expect("started");
        assert_eq!((workers.set(16), gate.active()), (6, 6));
        assert!(Workers::new(Arc::new(Gate::new(8)), limit).is_err());
    }
}
