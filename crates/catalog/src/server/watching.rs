//! Tells the thread of the sockets what has changed in the file, by whatever process.

use super::Served;
use super::work::{Answer, Answers};
use crate::error::Error;
use crate::types::Revision;
use crate::{Catalog, Watch};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it is looked whether the server ends.
const LOOK: Duration = Duration::from_millis(200);
/// Pause after an error of the file.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts the thread, and returns the revision that the first events follow.
pub(super) fn start(
    served: &Arc<Served>,
    answers: Answers,
    revision: &mut Revision,
) -> io::Result<JoinHandle<()>> {
    let served = Arc::clone(served);
    *revision = served.now().revision().map_err(io::Error::other)?;
    let mut from = *revision + 1;
    std::thread::Builder::new().name("catalog-watch".into()).spawn(move || {
        while !answers.has_ended() {
            let catalog = served.now();
            match catalog.watch(b"", from).and_then(|mut watch| follow(&mut *watch, &mut from, &answers)) {
                Ok(()) => return,
                Err(Error::Compacted { .. }) => {
                    if let Ok(newest) = catalog.revision() {
                        from = newest + 1;
                        answers.give(Answer::Gap(newest));
                    }
                }
                Err(e) => {
                    tracing::warn!("changes are not seen for now: {e}");
                    std::thread::sleep(PAUSE);
                    served.open_again(&catalog);
                }
            }
        }
    })
}

/// Passes events on until the server ends.
fn follow(watch: &mut dyn Watch, from: &mut Revision, answers: &Answers) -> crate::Result<()> {
    while !answers.has_ended() {
        let events = watch.next(LOOK)?;
        let Some(through) = events.last().map(|event| event.revision) else { continue };
        *from = through + 1;
        answers.give(Answer::Events(Arc::new(events), through));
    }
    Ok(())
}
