//! The page: samples by their families, and how they are written.
//!
//! Invariants:
//! - a family is written once, with all its samples together, in the order of [`FAMILIES`];
//! - a sample has exactly the labels of its family.

use crate::families::{FAMILIES, Family, FamilyKind};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, 0.0.4.
    Text,
}

impl Format {
    /// What a client accepts: OpenMetrics if it says so.
    pub(crate) fn accepted(accept: &str) -> Format {
        let is_open = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let is_type =
                parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            // Quality 0 is "not acceptable".
            let refused = parts.any(|part| {
                part.strip_prefix("q=").and_then(|q| q.parse::<f64>().ok()).is_some_and(|q| q <= 0.0)
            });
            is_type && !refused
        };
        if accept.split(',').any(is_open) { Format::OpenMetrics } else { Format::Text }
    }

    /// The media type of the page.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Commands by their times: what a histogram shows.
#[derive(Clone, Debug)]
struct Histogram {
    bounds: &'static [Duration],
    /// Not cumulative; one more than there are bounds.
    buckets: Vec<u64>,
    sum: Duration,
}

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Count(u64),
    Histogram(Histogram),
}

type Sample = (Vec<String>, Value);

/// What a scrape returns.
#[derive(Debug, Default)]
pub struct Page(BTreeMap<&'static str, Vec<Sample>>);

impl Page {
    fn put(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        debug_assert_eq!(labels.len(), family.labels.len(), "{}", family.name);
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.0.entry(family.name).or_default().push((labels, value));
    }

    /// Adds a count: of a counter, or of things at this moment. `labels` are the values of those of the
    /// family, in its order.
    pub fn count(&mut self, family: &'static Family, labels: &[&str], value: u64) {
        self.put(family, labels, Value::Count(value));
    }

    /// Adds a number, such as seconds.
    pub fn number(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        self.put(family, labels, Value::Number(value));
    }

    /// Adds a histogram: how many took up to each of `bounds` and longer than the bound before, and longer
    /// than the last; and the sum of all.
    pub fn histogram(
        &mut self,
        family: &'static Family,
        labels: &[&str],
        bounds: &'static [Duration],
        buckets: &[u64],
        sum: Duration,
    ) {
        debug_assert_eq!(buckets.len(), bounds.len() + 1, "{}", family.name);
        let buckets = buckets.to_vec();
        self.put(family, labels, Value::Histogram(Histogram { bounds, buckets, sum }));
    }

    /// The page as text.
    pub fn write(&self, format: Format) -> String {
        let mut out = String::new();
        for family in FAMILIES {
            if let Some(samples) = self.0.get(family.name) {
                write_family(&mut out, family, samples, format);
            }
        }
        if format == Format::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }
}

/// The suffix that names of samples have and that of the family has not.
fn suffix(kind: FamilyKind) -> &'static str {
    match kind {
        FamilyKind::Counter => "_total",
        FamilyKind::Info => "_info",
        FamilyKind::Gauge | FamilyKind::Histogram => "",
    }
}

fn write_family(out: &mut String, family: &Family, samples: &[Sample], format: Format) {
    let end = suffix(family.kind);
    let (name, kind) = match format {
        Format::OpenMetrics => (family.name.to_owned(), family.kind.name()),
        // It has no type for information, and names families as their samples.
        Format::Text if family.kind == FamilyKind::Info => {
            (format!("{}{end}", family.name), FamilyKind::Gauge.name())
        }
        Format::Text => (format!("{}{end}", family.name), family.kind.name()),
    };
    // Writing to a string does not fail.
    let _ = writeln!(out, "# TYPE {name} {kind}");
    if let (Format::OpenMetrics, Some(unit)) = (format, family.unit.name()) {
        let _ = writeln!(out, "# UNIT {name} {unit}");
    }
    let _ = writeln!(out, "# HELP {name} {}", escaped(family.help, format == Format::OpenMetrics));
    for (values, value) in samples {
        let labels: Vec<_> =
            family.labels.iter().zip(values).map(|(name, value)| pair(name, value)).collect();
        match value {
            Value::Count(n) => line(out, family.name, end, &labels, &n.to_string()),
            Value::Number(n) => line(out, family.name, end, &labels, &number(*n)),
            Value::Histogram(histogram) => write_histogram(out, family.name, &labels, histogram),
        }
    }
}

fn write_histogram(out: &mut String, name: &str, labels: &[String], histogram: &Histogram) {
    let bounds = histogram.bounds.iter().map(|bound| number(bound.as_secs_f64()));
    let mut below = 0;
    for (bound, n) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.buckets) {
        below += n;
        let mut labels = labels.to_vec();
        labels.push(pair("le", &bound));
        line(out, name, "_bucket", &labels, &below.to_string());
    }
    line(out, name, "_sum", labels, &number(histogram.sum.as_secs_f64()));
    line(out, name, "_count", labels, &below.to_string());
}

fn line(out: &mut String, name: &str, end: &str, labels: &[String], value: &str) {
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(out, "{name}{end}{labels} {value}");
}

fn pair(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", escaped(value, true))
}

/// A label's value or a help text on one line.
fn escaped(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out
}

/// A number, with a point in OpenMetrics' canonical form: `1.0` and not `1`.
fn number(value: f64) -> String {
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_sent_to_those_that_ask() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("Application/OpenMetrics-Text"), Format::OpenMetrics);
        for other in
            ["", "*/*", "text/plain", "application/openmetrics-text; q=0", "application/openmetrics-textual"]
        {
            assert_eq!(Format::accepted(other), Format::Text, "{other}");
        }
    }

    #[test]
    fn numbers_and_labels_are_written_as_the_formats_have_them() {
        assert_eq!([number(1.0), number(0.00001), number(f64::INFINITY)], ["1.0", "1e-5", "inf"]);
        assert_eq!(pair("a", "b\"c\\d\ne"), r#"a="b\"c\\d\ne""#);
    }
}
