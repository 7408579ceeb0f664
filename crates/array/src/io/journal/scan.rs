//! Reads the journal after a crash.

use super::{DurableRecord, Journal, NO_ROW, RecordState, WindowEntry};
use crate::format::record::{HEAD, JournalRecord, RecordKind};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The records found on members, by epoch and sequence number.
#[derive(Default)]
pub(crate) struct ScannedRecords {
    by_place: BTreeMap<(u64, u64), JournalRecord>,
}

impl ScannedRecords {
    /// Adds the records of one member's journal.
    pub(crate) fn add(&mut self, ring: &[u8], array: Uuid) {
        for at in (0..ring.len() as u64).step_by(HEAD as usize) {
            if let Some(record) = JournalRecord::decode(ring, at, array) {
                self.by_place.entry((record.epoch, record.seq)).or_insert(record);
            }
        }
    }

    /// The records to replay, oldest first: from the tail of the newest on, and not superseded by a
    /// later epoch. A superseded record that only a returning member holds was never acknowledged.
    pub(crate) fn window(mut self) -> Vec<JournalRecord> {
        let Some(newest) = self.by_place.values().next_back() else { return Vec::new() };
        let tail = newest.tail;
        let mut starts: BTreeMap<u64, u64> = BTreeMap::new();
        for record in self.by_place.values() {
            starts.insert(record.epoch, record.epoch_start);
        }
        let counts = |record: &JournalRecord| {
            let mut later = starts.range(record.epoch + 1..);
            record.pos >= tail && later.all(|(_, start)| record.pos < *start)
        };
        self.by_place.retain(|_, record| counts(record));
        let mut records: Vec<JournalRecord> = self.by_place.into_values().collect();
        records.sort_by_key(|record| record.pos);
        records
    }
}

/// Bytes of the journal from the first of these records to the end of the last one.
pub(crate) fn span(records: &[JournalRecord]) -> u64 {
    let end = records.iter().map(|record| record.pos + record.len()).max();
    records.first().zip(end).map_or(0, |(first, end)| end - first.pos)
}

impl Journal {
    /// Continues after the records of the last epoch. Returns the data records without a commit.
    pub(crate) fn resume(&self, epoch: u64, records: &[JournalRecord]) -> Vec<DurableRecord> {
        let mut state = self.state.borrow_mut();
        let end = records.iter().map(|record| record.pos + record.len()).max();
        state.epoch = epoch;
        state.head = end.unwrap_or(0);
        state.epoch_start = state.head;
        state.next_seq = records.iter().map(|record| record.seq + 1).max().unwrap_or(1);
        state.durable_tail = records.first().map_or(state.head, |record| record.pos);
        for record in records {
            let row = if record.kind == RecordKind::Mark { NO_ROW } else { record.row };
            let step = if record.kind == RecordKind::Mark { RecordState::Done } else { RecordState::Open };
            state.entries.push_back(WindowEntry {
                pos: record.pos,
                len: record.len(),
                seq: record.seq,
                row,
                step,
            });
            *state.rows.entry(row).or_default() += 1;
        }
        let covered: Vec<u64> = records.iter().flat_map(|record| record.covers.iter().copied()).collect();
        let open =
            |record: &&JournalRecord| record.kind == RecordKind::Data && !covered.contains(&record.seq);
        let logged: Vec<DurableRecord> =
            records.iter().filter(open).map(|record| DurableRecord { seq: record.seq, room: 0 }).collect();
        logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(epoch: u64, epoch_start: u64, pos: u64, tail: u64) -> JournalRecord {
        let (seq, row) = (pos / HEAD, 0);
        let (covers, pieces) = (Vec::new(), Vec::new());
        JournalRecord { kind: RecordKind::Data, epoch, epoch_start, pos, seq, tail, row, covers, pieces }
    }

    /// Positions of the records that would be replayed.
    fn window(records: Vec<JournalRecord>) -> Vec<u64> {
        let by_place = records.into_iter().map(|record| ((record.epoch, record.seq), record)).collect();
        ScannedRecords { by_place }.window().into_iter().map(|record| record.pos).collect()
    }

    #[test]
    fn records_before_the_tail_of_the_newest_are_not_replayed() {
        let records = [(0, 0), (HEAD, 0), (2 * HEAD, HEAD)].map(|(pos, tail)| record(1, 0, pos, tail));
        assert_eq!(window(records.to_vec()), [HEAD, 2 * HEAD]);
    }

    #[test]
    fn the_span_of_records_reaches_from_the_first_to_the_end_of_the_last() {
        let records = [HEAD, 2 * HEAD, 70 * HEAD].map(|pos| record(1, 0, pos, HEAD));
        assert_eq!((span(&records), span(&records[..1]), span(&[])), (70 * HEAD, HEAD, 0));
    }

    #[test]
    fn records_superseded_by_a_later_epoch_are_not_replayed() {
        // The last record of the first epoch was on a member that was offline when the second
        // began.
        let first = [0, HEAD, 2 * HEAD].map(|pos| record(1, 0, pos, 0));
        let second = record(2, 2 * HEAD, 3 * HEAD, 0);
        assert_eq!(window([&first[..], &[second]].concat()), [0, HEAD, 3 * HEAD]);
    }
}
