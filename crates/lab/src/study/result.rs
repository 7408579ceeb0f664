//! The result file of a study, and its progress.

use super::{Begin, Observer, Results, Settings, is_void_for};
use crate::{Error, Outcome};
use longhaul_results::Document;
use longhaul_results::host::Host;
use longhaul_results::record::{Cell, Code, LeftOut, Question, Record, Run, Validity};
use longhaul_results::schema;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The result of a study, in memory and in its file.
pub(super) struct StudyResult {
    path: PathBuf,
    record: Record,
    /// Names of the cells, in the order of the plan.
    order: Vec<String>,
}

impl StudyResult {
    /// Loads the result to resume, or creates a new one.
    pub(super) fn begin(
        name: &str,
        path: &Path,
        (order, questions): (Vec<String>, Vec<Question>),
        settings: &Settings,
        fresh: bool,
    ) -> Result<StudyResult, Error> {
        let mut record = Record { questions, ..Record::new("study", name) };
        record.conditions.0 = vec![
            (
                "links".into(),
                if settings.targets.is_empty() { "emulated".into() } else { settings.targets.join(" ") },
            ),
            ("scale".into(), settings.scale.to_string()),
            ("runs".into(), settings.runs.to_string()),
            ("window".into(), format!("{} s", settings.runtime.as_secs_f64())),
            // `--quick` changes the plan, sizes and counts beyond the settings above.
            ("quick".into(), if settings.quick { "yes" } else { "no" }.into()),
        ];
        if !fresh && path.exists() {
            resume(&mut record, path)?;
        }
        Ok(StudyResult { path: path.to_owned(), record, order })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.record.cells.iter().any(|cell| cell.name == name)
    }

    pub(super) fn cells(&self) -> &[Cell] {
        &self.record.cells
    }

    /// Adds cells and runs, in place of earlier ones of the same name, and writes the file.
    pub(super) fn add(&mut self, found: Results) -> Outcome {
        let Results { mut cells, runs } = found;
        let of = cells.first().map_or(String::new(), |cell| cell.name.clone());
        self.record.runs.retain(|run| run.of != of);
        self.record.runs.extend(runs.into_iter().map(|run| Run { of: of.clone(), ..run }));
        cells.iter_mut().for_each(Cell::judge);
        self.record.cells.retain(|old| !cells.iter().any(|new| new.name == old.name));
        self.record.cells.extend(cells);
        // A cell that failed in an earlier run is measured late: the order of the plan is restored.
        let place = |cell: &Cell| self.order.iter().position(|name| *name == cell.name);
        self.record.cells.sort_by_key(place);
        // The record is judged from its cells, which are judged above.
        self.record.judge();
        let document = schema::Output { longhaul: Some(self.record.clone()), ..schema::Output::now() };
        longhaul_results::record::save(&self.path, &document)
            .map_err(|e| Error::failed(format!("cannot write {}: {e}", self.path.display())))
    }
}

/// Copies the cells and runs of an interrupted study into `record`.
fn resume(record: &mut Record, path: &Path) -> Outcome {
    let before = Document::load(path)?.record;
    // A tool that rewrote the file may have sorted the names.
    let sorted = |record: &Record| {
        let mut conditions = record.conditions.0.clone();
        conditions.sort();
        conditions
    };
    if (&before.kind, &before.name) != (&record.kind, &record.name) || sorted(&before) != sorted(record) {
        let path = path.display();
        return Err(Error::usage(format!(
            "{path} has another study, or the same with other settings: choose another --output, or --fresh to start again"
        )));
    }
    let others = difference(&before, record);
    if !others.is_empty() {
        return Err(Error::usage(format!(
            "{} was begun with {}: numbers of two machines, programs or settings do not become one result. Go on \
             as it was begun, or choose another --output, or --fresh to start again",
            path.display(),
            others.join(", ")
        )));
    }
    // Failed cells are measured again; missing hardware or programs may be there now.
    let again = [Code::Failed, Code::NotAvailable];
    let stays = |cell: &Cell| !again.iter().any(|code| is_void_for(cell, *code));
    record.cells = before.cells.into_iter().filter(stays).collect();
    let is_there = |run: &Run| record.cells.iter().any(|cell| cell.name == run.of);
    record.runs = before.runs.into_iter().filter(is_there).collect();
    record.hosts = before.hosts;
    Ok(())
}

/// A property of a host that results depend on: its name, and its value.
type HostProperty = (&'static str, fn(&Host) -> String);

/// Properties of program and host that changed since the earlier run, in words.
fn difference(before: &Record, now: &Record) -> Vec<String> {
    let mut all = vec![("program", before.program.clone(), now.program.clone())];
    if let (Some(there), Some(here)) = (before.hosts.first(), now.hosts.first()) {
        let facts: [HostProperty; 8] = [
            ("host", |host| host.name.clone()),
            ("kernel", |host| host.kernel.clone()),
            ("processor", |host| host.processor.clone()),
            ("processors", |host| host.processors.to_string()),
            ("governor", |host| host.governor.clone().unwrap_or_default()),
            ("congestion control", |host| host.congestion.clone()),
            ("tcp_rmem", |host| format!("{:?}", host.tcp_rmem)),
            ("tcp_wmem", |host| format!("{:?}", host.tcp_wmem)),
        ];
        all.extend(facts.map(|(name, fact)| (name, fact(there), fact(here))));
    }
    all.retain(|(_, before, now)| before != now);
    let words = |(name, before, now): (&str, String, String)| format!("{name} {before} (now {now})");
    all.into_iter().map(words).collect()
}

/// Makes runs valid whose only flaw is retransmitted segments: more is offered than the link carries, and
/// TCP finds its share by what the link's queue drops.
pub(super) fn count_with_losses(cells: &mut [Cell]) {
    let is_loss = |run: &LeftOut| run.reasons.iter().all(|reason| reason.code == Code::Retransmitting);
    for cell in cells {
        let all = std::mem::take(&mut cell.left_out);
        let (counts, left_out): (Vec<_>, Vec<_>) = all.into_iter().partition(is_loss);
        if !counts.is_empty() {
            cell.samples.extend(counts.into_iter().map(|run| run.value));
            cell.validity = Validity::default();
        }
        cell.left_out = left_out;
    }
}

/// Progress of a study, with the remaining time.
pub(super) struct Progress {
    began: Instant,
    done: usize,
    left: usize,
    all: usize,
}

impl Progress {
    /// `left` of `all` measurements remain.
    pub(super) fn new(all: usize, left: usize) -> Progress {
        Progress { began: Instant::now(), done: 0, left, all }
    }

    /// Reports the measurement of `cells`, which begins.
    pub(super) fn begin(&mut self, study: &str, cells: &[Cell], observer: &dyn Observer) {
        let name = cells.first().map_or("", |cell| &cell.name);
        let number = self.all - self.left + self.done + 1;
        let each = self.began.elapsed().as_secs_f64() / self.done.max(1) as f64;
        let seconds_left = (self.done > 0).then(|| each * (self.left.saturating_sub(self.done)) as f64);
        observer.begins(&Begin { study, number, of: self.all, name, seconds_left });
        self.done += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_results::record::Better;

    #[test]
    fn losses_in_the_queue_of_a_full_link_are_no_flaw() {
        let mut cell = Cell::new("x", "B/s", Better::Higher);
        cell.push(1.0, &Validity::not(Code::Retransmitting, "0.5 %"));
        let mut late = Validity::not(Code::Retransmitting, "0.5 %");
        late.mark(Code::LateLink, "late");
        cell.push(2.0, &late);
        cell.judge();
        assert!(!cell.validity.valid);
        count_with_losses(std::slice::from_mut(&mut cell));
        cell.judge();
        assert!(cell.validity.valid && cell.samples == [1.0] && cell.left_out.len() == 1, "{cell:?}");
    }
}
