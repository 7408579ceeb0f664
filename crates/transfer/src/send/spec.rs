//! What a session sends, and how: from a request, before any data is read.

use crate::tree::filter::Filter;
use crate::tree::root::{Root, last_name};
use crate::tree::scan::ScanStart;
use crate::tune::{Concurrency, KnownPaths, START_FAR};
use crate::wire::{Compare, Options, Placement, Refusal, RefusalKind, RelPath, Request};
use std::sync::Arc;

/// What a session sends, and how.
#[derive(Debug)]
pub(crate) struct SendSpec {
    pub(crate) starts: Vec<ScanStart>,
    pub(crate) filter: Filter,
    pub(crate) recursive: bool,
    /// Device and inode of the destination in a local copy: the scan skips it.
    pub(crate) into: Option<(u64, u64)>,
    pub(crate) options: Options,
    /// Send existence queries first, since files may be up to date at the destination.
    pub(crate) query: bool,
    pub(crate) readers: Concurrency,
    /// Rate limit in bytes a second; 0 for none.
    pub(crate) rate: u64,
    /// Bytes of read data that may wait to be sent [default: [`READ_AHEAD`](super::READ_AHEAD)].
    pub(crate) read_ahead: Option<usize>,
    /// Where numbers of connections are kept from one copy to the next.
    pub(crate) known_paths: Option<KnownPaths>,
}

impl SendSpec {
    /// What to send for a request. Missing sources are reported by the scan, if at
    /// least one exists.
    ///
    /// # Errors
    /// No source exists, or one cannot be accessed.
    pub(crate) fn new(root: &Root, request: &Request, readers: Concurrency) -> Result<SendSpec, Refusal> {
        let contents = request.place == Placement::Contents;
        let mut missing = Vec::new();
        let mut starts: Vec<ScanStart> = Vec::new();
        for typed in &request.sources {
            match root.start(typed, contents) {
                Ok(start) => starts.push(start),
                Err(refusal) if refusal.kind == RefusalKind::NoSuchPath => missing.push((typed, refusal)),
                Err(refusal) => return Err(refusal),
            }
        }
        if let Some((_, refusal)) = missing.first().filter(|_| starts.is_empty()) {
            return Err(refusal.clone());
        }
        if !request.files.is_empty() {
            starts = listed(&starts, &request.files)?;
        }
        starts.extend(missing.into_iter().map(|(typed, refusal)| {
            let path = RelPath::new(last_name(typed)).unwrap_or_else(|_| RelPath::root());
            ScanStart::Missing { path, why: refusal.message }
        }));
        Ok(SendSpec {
            starts,
            rate: request.rate,
            filter: Filter::new(&request.filters).map_err(failed)?,
            recursive: request.recursive,
            into: None,
            options: request.options,
            query: request.options.compare != Compare::Nothing,
            readers: match (root, readers) {
                (Root::Mounted(_), Concurrency::Measured) => Concurrency::MeasuredFrom(START_FAR),
                _ => readers,
            },
            read_ahead: None,
            known_paths: None,
        })
    }

    /// Resumes an interrupted run if `left`; compares content if the receiving machine
    /// rebooted since (`by_content`).
    pub(crate) fn resume(&mut self, left: bool, by_content: bool) {
        self.query |= left;
        if by_content {
            self.options.compare = Compare::Checksum;
        }
    }
}

fn failed(e: impl ToString) -> Refusal {
    Refusal::new(RefusalKind::Failed, e)
}

/// Restricts each of `starts` to the listed files. The list is shared, since a copy of it
/// for each source could exhaust memory.
fn listed(starts: &[ScanStart], files: &[Vec<u8>]) -> Result<Vec<ScanStart>, Refusal> {
    let refused = |e| Refusal::new(RefusalKind::NotAllowed, e);
    let files: Arc<[RelPath]> =
        files.iter().map(|file| RelPath::new(file)).collect::<Result<_, _>>().map_err(refused)?;
    let below = |start: &ScanStart| match start {
        ScanStart::Tree { tree, path } => {
            Ok(ScanStart::Listed { tree: tree.clone(), named: path.clone(), files: Arc::clone(&files) })
        }
        _ => Err(failed("a list of files needs directories as sources")),
    };
    starts.iter().map(below).collect()
}
