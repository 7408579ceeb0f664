//! Forwards the entries of the scan to the readers, or to the existence queries.

use super::SendQueues;
use super::existence_query::QueryBatcher;
use super::read::ReadWork;
use super::spec::SendSpec;
use crate::monitor::Monitor;
use crate::session::SenderItem;
use crate::tree::scan::{FoundEntry, Scan, Visitor};
use crate::wire::{Content, EntryKind, Trouble};
use std::sync::Arc;

/// Feeds entries of the scan to the readers or the existence queries.
pub(super) struct ScanForwarder {
    pub(super) queues: Arc<SendQueues>,
    pub(super) monitor: Arc<Monitor>,
    /// Present if files are queried first.
    pub(super) queries: Option<Arc<QueryBatcher>>,
    /// A query needs a checksum or attributes, which reader threads provide.
    pub(super) read_first: bool,
}

impl ScanForwarder {
    /// Runs the scan; returns at its end, or when the session has ended.
    pub(super) fn run(mut self, spec: &SendSpec) {
        let (filter, recursive) = (&spec.filter, spec.recursive);
        let mut scan = Scan::new(&mut self, filter, recursive).once(&spec.starts).without(spec.into);
        for start in &spec.starts {
            if !scan.run(start) {
                break;
            }
        }
        self.monitor.scan.end();
        self.queues.items.force(SenderItem::Scanned(self.monitor.scan.now()), 1);
        match &self.queries {
            // The work queue closes when all queries are answered.
            Some(queries) => queries.end(),
            None => self.queues.work.close(),
        }
    }
}

impl Visitor for ScanForwarder {
    fn found(&mut self, found: FoundEntry) -> bool {
        if found.entry.kind == EntryKind::File {
            self.monitor.scan.add(found.entry.size);
        }
        let queries = self.queries.as_ref().filter(|_| found.entry.kind == EntryKind::File);
        let Some(queries) = queries else {
            return self.queues.work.push(ReadWork::Found(found, Box::default()), 1).is_ok();
        };
        if self.read_first {
            queries.begin();
            return self.queues.work.push(ReadWork::Query(found), 1).is_ok();
        }
        queries.add(found, Content::Query(None)).is_ok()
    }

    fn trouble(&mut self, trouble: Trouble) {
        // The queue is closed only if the session has failed already.
        let _ = self.queues.items.push(SenderItem::Trouble(trouble), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Panicked;
    use crate::queue::Queue;
    use crate::send::{FOUND, QUERY_QUEUE, READ_AHEAD};
    use crate::tree::Tree;
    use crate::tree::filter::Filter;
    use crate::tree::scan::ScanStart;
    use crate::tune::Concurrency;
    use crate::wire::{Compare, Options, RelPath};

    #[test]
    fn checksums_for_queries_are_computed_by_reader_threads() {
        let dir = tempfile::tempdir().expect("a directory");
        for i in 0..5 {
            std::fs::write(dir.path().join(i.to_string()), "content").expect("written");
        }
        let queues = Arc::new(SendQueues {
            queries: Arc::new(Queue::new(QUERY_QUEUE)),
            work: Arc::new(Queue::new(FOUND)),
            items: Arc::new(Queue::new(READ_AHEAD)),
            panicked: Panicked::default(),
        });
        let options = Options { compare: Compare::Checksum, ..Options::default() };
        let queries = Arc::new(QueryBatcher::new(Arc::clone(&queues.queries), Some(options.hash)));
        let forwarder = ScanForwarder {
            queues: Arc::clone(&queues),
            monitor: Arc::new(Monitor::new()),
            queries: Some(Arc::clone(&queries)),
            read_first: true,
        };
        let tree = Tree::open(dir.path()).expect("open");
        let spec = SendSpec {
            starts: vec![ScanStart::Tree { tree, path: RelPath::root() }],
            filter: Filter::default(),
            recursive: true,
            options,
            query: true,
            readers: Concurrency::Fixed(1),
            rate: 0,
            read_ahead: None,
            known_paths: None,
            into: None,
        };
        // The scan ends without any reader.
        forwarder.run(&spec);
        let is_question = |work: &ReadWork| matches!(work, ReadWork::Query(_));
        assert!(matches!(queues.work.pop(), Some(ReadWork::Found(..))), "the directory itself");
        let files: Vec<_> = std::iter::from_fn(|| queues.work.try_pop_if(is_question)).collect();
        assert_eq!((files.len(), queues.queries.is_empty()), (5, true));
        // The query is complete when the last file was read.
        for (i, work) in files.into_iter().enumerate() {
            let ReadWork::Query(found) = work else { panic!("{work:?}") };
            assert!(queues.queries.is_empty());
            let read = (i > 0).then_some((found, Content::Query(None)));
            queries.read(read).expect("the query queue is open");
        }
        assert_eq!(queues.queries.pop().map(|about| about.len()), Some(4), "one could not be read");
        assert!(queues.queries.pop().is_none(), "that was the last");
    }
}
