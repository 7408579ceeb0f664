//! A strict reader of pages of metrics: OpenMetrics 1.0, and the text format 0.0.4 of Prometheus. It refuses
//! what the formats forbid, and besides what conventions forbid.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

/// A family as read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    pub kind: String,
    pub unit: Option<String>,
    pub help: String,
    pub samples: Vec<Sample>,
}

/// A sample as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// A page as read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition(pub BTreeMap<String, Family>);

impl Exposition {
    /// The values of the samples of this name with these labels among theirs.
    pub fn all(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let has = |sample: &Sample| {
            let label = |(key, value): &(&str, &str)| sample.labels.get(*key).is_some_and(|v| v == value);
            sample.name == name && labels.iter().all(label)
        };
        self.0.values().flat_map(|family| &family.samples).filter(|s| has(s)).map(|s| s.value).collect()
    }

    /// The one value of that name with those labels.
    pub fn one(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let all = self.all(name, labels);
        assert_eq!(all.len(), 1, "{name} {labels:?}: {all:?}");
        all[0]
    }
}

/// Reads a page of OpenMetrics, or of the text format.
///
/// # Errors
/// The line that is wrong, and why.
pub fn read(text: &str, is_open: bool) -> Result<Exposition, String> {
    let body = match (is_open, text.strip_suffix("# EOF\n")) {
        (true, Some(body)) => body,
        (true, None) => return Err("it does not end with # EOF".into()),
        (false, Some(_)) => return Err("the text format has no # EOF".into()),
        (false, None) => text,
    };
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    let mut page = Exposition::default();
    let mut name = String::new();
    for line in body.lines() {
        read_line(&mut page, &mut name, line, is_open).map_err(|why| format!("{why}: {line}"))?;
    }
    for (name, family) in &page.0 {
        check(name, family, is_open).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(page)
}

fn read_line(page: &mut Exposition, current: &mut String, line: &str, is_open: bool) -> Result<(), String> {
    let Some(comment) = line.strip_prefix("# ") else {
        let sample = read_sample(line)?;
        let family = page.0.get_mut(current).ok_or("a sample without a family")?;
        family.samples.push(sample);
        return Ok(());
    };
    let mut words = comment.splitn(3, ' ');
    let (what, name, rest) =
        (words.next().unwrap_or_default(), words.next().ok_or("no name")?, words.next().ok_or("no value")?);
    if what == "TYPE" {
        if !is_name(name, true) {
            return Err("not a name".into());
        }
        let kinds: &[&str] = if is_open {
            &["counter", "gauge", "histogram", "info"]
        } else {
            &["counter", "gauge", "histogram"]
        };
        if !kinds.contains(&rest) {
            return Err("an unknown type".into());
        }
        let family = Family { kind: rest.into(), ..Family::default() };
        if page.0.insert(name.to_owned(), family).is_some() {
            return Err("the family is there twice".into());
        }
        *current = name.to_owned();
        return Ok(());
    }
    if name != current {
        return Err("it is not about the family at hand".into());
    }
    let family = page.0.get_mut(name).ok_or("TYPE has to be first")?;
    if !family.samples.is_empty() {
        return Err("it stands behind samples".into());
    }
    match what {
        "UNIT" if is_open && family.unit.is_none() => family.unit = Some(rest.to_owned()),
        "HELP" if family.help.is_empty() => family.help = unescape(rest, is_open)?,
        _ => return Err("an unexpected comment".into()),
    }
    Ok(())
}

fn is_name(name: &str, colons: bool) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || (colons && c == ':');
    name.starts_with(is_first) && name.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

fn unescape(text: &str, quotes: bool) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\\') => out.push('\\'),
                Some('n') => out.push('\n'),
                Some('"') if quotes => out.push('"'),
                other => return Err(format!("an unknown escape {other:?}")),
            },
            c => out.push(c),
        }
    }
    Ok(out)
}

fn read_sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let name = &line[..end];
    if !is_name(name, true) {
        return Err("not a name".into());
    }
    let mut labels = BTreeMap::new();
    let mut rest = &line[end..];
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (key, after) = inner.split_once("=\"").ok_or("a label without a value")?;
            if !is_name(key, false) || key.starts_with("__") {
                return Err(format!("'{key}' is no name of a label"));
            }
            let close = closing_quote(after).ok_or("a label without an end")?;
            let value = unescape(&after[..close], true)?;
            if labels.insert(key.to_owned(), value).is_some() {
                return Err(format!("the label {key} is there twice"));
            }
            inner = &after[close + 1..];
            if let Some(after) = inner.strip_prefix(',') {
                inner = after;
            } else {
                break;
            }
        }
        rest = inner.strip_prefix('}').ok_or("labels without an end")?;
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let is_number = value.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let value = value.parse::<f64>().ok().filter(|value| is_number && value.is_finite());
    Ok(Sample { name: name.to_owned(), labels, value: value.ok_or("not a number")? })
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let is_end = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end.then_some(at)
    })
}

const UNITS: [&str; 3] = ["bytes", "seconds", "ratio"];

fn check(name: &str, family: &Family, is_open: bool) -> Result<(), String> {
    if family.help.is_empty() || family.samples.is_empty() {
        return Err("no help or no samples".into());
    }
    let bare = if is_open { name } else { name.strip_suffix("_total").unwrap_or(name) };
    let named = UNITS.iter().find(|unit| bare.ends_with(&format!("_{unit}")));
    if is_open && family.unit.as_deref() != named.copied() {
        return Err(format!("the name says the unit {named:?}, and UNIT {:?}", family.unit));
    }
    let mut seen = BTreeSet::new();
    let mut label_names: Option<BTreeSet<&String>> = None;
    for sample in &family.samples {
        if !seen.insert((&sample.name, &sample.labels)) {
            return Err(format!("{sample:?} is there twice"));
        }
        let names: BTreeSet<_> = sample.labels.keys().filter(|key| *key != "le").collect();
        if *label_names.get_or_insert_with(|| names.clone()) != names {
            return Err(format!("{sample:?} has other labels than the one before"));
        }
        let end = sample.name.strip_prefix(name).ok_or("a sample of another family")?;
        let is_right = match (family.kind.as_str(), is_open) {
            ("counter", true) => end == "_total" && sample.value >= 0.0,
            ("counter", false) => end.is_empty() && name.ends_with("_total") && sample.value >= 0.0,
            ("info", _) => end == "_info" && sample.value == 1.0,
            ("histogram", _) => ["_bucket", "_sum", "_count"].contains(&end) && sample.value >= 0.0,
            _ => end.is_empty(),
        };
        if !is_right || sample.labels.contains_key("le") != (end == "_bucket") {
            return Err(format!("{sample:?} does not suit its type"));
        }
    }
    if family.kind == "histogram" { check_histogram(name, &family.samples) } else { Ok(()) }
}

fn check_histogram(name: &str, samples: &[Sample]) -> Result<(), String> {
    let mut at = 0;
    while at < samples.len() {
        let mut of = samples[at].labels.clone();
        of.remove("le");
        let (mut last, mut below) = (f64::NEG_INFINITY, 0.0);
        while let Some(sample) = samples.get(at).filter(|sample| sample.name.ends_with("_bucket")) {
            let mut labels = sample.labels.clone();
            let le = labels.remove("le").unwrap_or_default();
            let bound = if le == "+Inf" { f64::INFINITY } else { le.parse().map_err(|_| "not a bound")? };
            if labels != of || bound <= last || sample.value < below {
                return Err(format!("{sample:?} does not follow the bucket before it"));
            }
            (last, below) = (bound, sample.value);
            at += 1;
        }
        let rest: Vec<_> = samples.iter().skip(at).take(2).collect();
        let [sum, count] = *rest else { return Err("no sum or count".into()) };
        let is_right = sum.name == format!("{name}_sum") && count.name == format!("{name}_count");
        if last != f64::INFINITY
            || !is_right
            || sum.labels != of
            || count.labels != of
            || count.value != below
        {
            return Err(format!("{of:?}: the buckets, the sum and the count do not belong together"));
        }
        at += 2;
    }
    Ok(())
}
