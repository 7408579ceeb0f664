//! The null destination, which verifies data and discards it: without the stage that writes
//! files, the others can be measured alone.

use crate::session::{JobResult, WriteJob};
use crate::wire::{BatchReader, Content, Counts, EntryKind, Hash, Op, RelPath, Trouble, Want};

/// Whether `typed` names the null destination rather than a path.
pub(crate) fn is_null_sink(typed: &[u8]) -> bool {
    typed == b"null:"
}

/// The null destination: verifies checksums and discards the data.
#[derive(Debug)]
pub(crate) struct NullSink {
    pub(crate) hash: Hash,
}

impl NullSink {
    /// Carries out a job without writing.
    pub(crate) fn run(&self, job: WriteJob) -> JobResult {
        match job {
            WriteJob::Batch(body) => self.batch(&body),
            WriteJob::Query { number, batch } => {
                let entries = BatchReader::new(&batch).take_while(Result::is_ok).count() as u32;
                let wants = (0..entries).map(|index| Want { index, have: Box::default() }).collect();
                JobResult::Query { number, wants, counts: Counts::default(), troubles: Vec::new() }
            }
            WriteJob::Block { file, offset, digest, data } => {
                let good = self.hash.of_block(&data, offset, file.entry.size) == digest;
                let done = if good { Ok(data.len() as u64) } else { Err(mismatch(&file.entry.path)) };
                JobResult::Block(file.number, done)
            }
            WriteJob::Complete(file) => {
                JobResult::File(file.number, Counts { files: 1, ..Counts::default() }, Vec::new())
            }
            WriteJob::Abandon(file) => JobResult::Abandoned(file.number),
            WriteJob::Settle { .. } => JobResult::Settled(Counts::default(), Vec::new()),
        }
    }

    fn batch(&self, body: &[u8]) -> JobResult {
        let (mut counts, mut troubles) = (Counts::default(), Vec::new());
        for part in BatchReader::new(body) {
            match part {
                Ok((entry, Content::Inline { digest, .. }, data)) if self.hash.of(data) != digest => {
                    troubles.push(mismatch(&entry.path));
                }
                Ok((entry, _, data)) if entry.kind == EntryKind::File => {
                    counts.files += 1;
                    counts.bytes += data.len() as u64;
                }
                Ok(_) => counts.others += 1,
                Err(e) => {
                    troubles.push(Trouble { path: RelPath::root(), op: Op::Write, message: e.to_string() });
                }
            }
        }
        JobResult::Batch(counts, troubles)
    }
}

fn mismatch(path: &RelPath) -> Trouble {
    Trouble {
        path: path.clone(),
        op: Op::Verify,
        message: "the checksum of the content does not match what was sent".into(),
    }
}
