//! Cells of several results, put into figures.

use crate::figure::{Figure, Point, Series};
use longhaul_results::Document;
use longhaul_results::record::{Better, Cell, Place, Published};
use longhaul_results::stats::{Interval, Summary};

/// A figure, and the numbers behind it.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// The plot of the group.
    pub figure: Figure,
    /// The numbers, in the order of the figure.
    pub entries: Vec<Entry>,
}

/// A number of a figure.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The cell's name.
    pub name: String,
    /// Index of the document that it is from.
    pub document: usize,
    /// Whether higher or lower is better.
    pub better: Better,
    /// Its place on the axis.
    pub x: String,
    /// Name of its series.
    pub series: String,
    /// Samples that count.
    pub summary: Summary,
    /// Mean of those that do not, where none does.
    pub left_out: Option<f64>,
    /// Published numbers for it, with their sources.
    pub published: Vec<Published>,
    /// The same in words, where there is no number.
    pub found: String,
    /// Where that stands.
    pub found_source: String,
    /// Why it does not count; nothing if it does.
    pub words: String,
}

impl Entry {
    fn new(cell: &Cell, document: usize, place: &Place) -> Entry {
        let words = match cell.validity.words() {
            words if words.is_empty() && (!cell.validity.valid || cell.samples.is_empty()) => {
                "not measured".to_owned()
            }
            words => words,
        };
        let left_out: Vec<f64> = cell.left_out.iter().map(|run| run.value).collect();
        Entry {
            name: cell.name.clone(),
            document,
            better: cell.better,
            x: place.x.clone(),
            series: place.series.clone(),
            summary: Summary::of(&cell.samples),
            left_out: (!left_out.is_empty()).then(|| Summary::of(&left_out).mean),
            published: cell.published.clone(),
            found: cell.found.clone(),
            found_source: cell.found_source.clone(),
            words,
        }
    }

    /// The measured over the published value, with the ends of the interval of the measurement;
    /// only of values that count, and if the published value is not zero.
    pub fn ratio(&self) -> Option<Interval> {
        let published =
            self.published.first().map(|published| published.value).filter(|value| *value > 0.0)?;
        let mean = self.mean().filter(|_| self.words.is_empty())? / published;
        let ends = self.summary.interval().map(|i| (i.low / published, i.high / published));
        let (low, high) = ends.unwrap_or((mean, mean));
        Some(Interval { value: mean, low, high })
    }

    /// The mean, also of values that do not count.
    pub fn mean(&self) -> Option<f64> {
        if self.summary.n > 0 { Some(self.summary.mean) } else { self.left_out }
    }

    fn point(&self, x_number: Option<f64>) -> Point {
        Point {
            x: self.x.clone(),
            x_number,
            value: self.mean(),
            interval: self.summary.interval(),
            published: self.published.first().map(|published| published.value),
            void: !self.words.is_empty(),
        }
    }
}

/// Puts cells into the figures that they name, in their order. Those that name
/// none are put together by their unit.
pub fn gather(documents: &[Document]) -> Vec<Gathered> {
    let mut all: Vec<Gathered> = Vec::new();
    // Which result a line is of is said where there are several in a figure.
    let names = |document: &Document, figure: &str| {
        let mut places = document.record.cells.iter().filter_map(|cell| cell.place.as_ref());
        places.any(|place| place.figure == figure)
    };
    let is_shared = |place: &Place| documents.iter().filter(|d| names(d, &place.figure)).count() > 1;
    for (index, document) in documents.iter().enumerate() {
        for cell in &document.record.cells {
            let mut place = cell.place.clone().unwrap_or_else(|| by_unit(cell, document));
            if cell.place.is_some() && documents.len() > 1 && is_shared(&place) {
                place.series = format!("{} · {}", place.series, document.label());
            }
            add(&mut all, (cell, index), &place);
        }
    }
    all
}

fn by_unit(cell: &Cell, document: &Document) -> Place {
    let figure = match cell.unit.as_str() {
        "B/s" | "bit/s" => "Throughput",
        "IOPS" => "I/Os per second",
        "s" if cell.name.contains("latency") => "Latency",
        "s" => "Time",
        "s/GiB" => "Processor time for what was moved",
        unit => unit,
    };
    Place { figure: figure.into(), series: document.label(), x: cell.name.clone(), ..Place::default() }
}

fn add(all: &mut Vec<Gathered>, (cell, document): (&Cell, usize), place: &Place) {
    let fits = |one: &Gathered| one.figure.title == place.figure && one.figure.unit == cell.unit;
    let at = all.iter().position(fits).unwrap_or_else(|| {
        let figure = Figure {
            title: place.figure.clone(),
            x_label: place.x_label.clone(),
            unit: cell.unit.clone(),
            series: Vec::new(),
        };
        all.push(Gathered { figure, entries: Vec::new() });
        all.len() - 1
    });
    let one = &mut all[at];
    let entry = Entry::new(cell, document, place);
    let found = one.figure.series.iter().position(|series| series.name == place.series);
    let index = found.unwrap_or_else(|| {
        one.figure.series.push(Series { name: place.series.clone(), points: Vec::new() });
        one.figure.series.len() - 1
    });
    one.figure.series[index].points.push(entry.point(place.x_number));
    one.entries.push(entry);
}
