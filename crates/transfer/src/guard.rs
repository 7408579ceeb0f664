//! What becomes of a session when a thread of it panics.

/// Does something if the thread panics while this lives: nobody who waits for the thread
/// would ever hear of it.
pub(crate) struct OnPanic<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// What people hear of it.
pub(crate) const PANICKED: &str = "internal error (a panic, reported above)";
