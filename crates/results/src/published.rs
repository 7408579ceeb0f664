//! What a publication says, as cells and questions cite it.

use crate::record::Published;

/// A publication that results and documents cite.
#[derive(Debug, PartialEq, Eq)]
pub struct Publication {
    /// As citations have it.
    pub short: &'static str,
    /// Authors, title, where and when.
    pub full: &'static str,
}

/// A number or a finding, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statement {
    /// The finding, or the quantity of a number.
    pub what: &'static str,
    /// The number and its unit (`B/s`, `bit/s`, `s`, `s/file`, `files`, …); nothing
    /// for a finding in words.
    pub number: Option<(f64, &'static str)>,
    /// The publication that it is from.
    pub document: &'static Publication,
    /// The section, figure or table in it.
    pub at: &'static str,
}

impl Statement {
    /// A statement with a number of this unit.
    pub const fn number(
        document: &'static Publication,
        at: &'static str,
        value: f64,
        unit: &'static str,
        what: &'static str,
    ) -> Statement {
        Statement { what, number: Some((value, unit)), document, at }
    }

    /// A statement in words.
    pub const fn words(document: &'static Publication, at: &'static str, what: &'static str) -> Statement {
        Statement { what, number: None, document, at }
    }

    /// The number.
    ///
    /// # Panics
    /// The statement is in words: in a constant this fails the build.
    pub const fn value(&self) -> f64 {
        match self.number {
            Some((value, _)) => value,
            None => panic!("this statement has no number"),
        }
    }

    /// The document and the place in it: `Transfer study, Fig. 5`.
    pub fn source(&self) -> String {
        format!("{}, {}", self.document.short, self.at)
    }

    /// The statement as part of a cell: the number times `factor`, and why that is not 1 (empty if
    /// it is).
    pub fn scaled(&self, factor: f64, why: &str) -> Published {
        let why = if why.is_empty() { String::new() } else { format!("; {why}") };
        Published { value: self.value() * factor, source: self.source() + &why }
    }
}
