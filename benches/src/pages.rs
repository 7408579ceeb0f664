//! Pages of results: tables are put between their markers, and the page above them
//! says how many floors each meets.

use crate::report::Section;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The pages of a directory, and the summary beside it (`results` and `results.md`).
#[derive(Debug)]
pub(crate) struct Pages {
    pages: Vec<Page>,
    summary: Page,
}

#[derive(Debug)]
struct Page {
    path: PathBuf,
    text: String,
}

impl Page {
    fn read(path: PathBuf) -> Result<Page> {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Page { path, text })
    }

    fn save(&self) -> Result<()> {
        fs::write(&self.path, &self.text).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn begin(name: &str) -> String {
    format!("<!-- results: {name} -->\n")
}

fn end(name: &str) -> String {
    format!("<!-- end of results: {name} -->")
}

/// The section of the summary page.
const FLOORS: &str = "floors";

fn replace(text: &str, name: &str, body: &str) -> Option<String> {
    let (before, rest) = text.split_once(&begin(name))?;
    let (_, after) = rest.split_once(&end(name))?;
    Some(format!("{before}{}{body}{}{after}", begin(name), end(name)))
}

impl Pages {
    /// Reads all pages, so that one without markers is found before anything is measured.
    pub(crate) fn read(directory: &Path) -> Result<Pages> {
        let entries =
            fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
        paths.sort();
        let pages = paths.into_iter().map(Page::read).collect::<Result<Vec<_>>>()?;
        for page in &pages {
            ensure!(
                page.text.contains("<!-- results: "),
                "{} has no markers for results",
                page.path.display()
            );
        }
        let summary = Page::read(directory.with_extension("md"))?;
        ensure!(
            summary.text.contains(&begin(FLOORS)),
            "{} has no markers for {FLOORS}",
            summary.path.display()
        );
        Ok(Pages { pages, summary })
    }

    /// Puts each section between its markers, and the floors that all pages meet into the summary.
    pub(crate) fn write(mut self, sections: &[Section]) -> Result<()> {
        for section in sections {
            let put = |page: &mut Page| {
                replace(&page.text, section.name, &section.markdown()).map(|text| page.text = text).is_some()
            };
            ensure!(self.pages.iter_mut().any(put), "no page has markers for {}", section.name);
        }
        let summary =
            replace(&self.summary.text, FLOORS, &self.floors()).context("the summary has markers")?;
        self.summary.text = summary;
        self.pages.iter().chain([&self.summary]).try_for_each(Page::save)
    }

    /// A row for each table that has floors.
    fn floors(&self) -> String {
        let directory = self.summary.path.file_stem().unwrap_or_default().to_string_lossy();
        let mut out = "| measured | floor, of the median | met |\n| --- | --- | --- |\n".to_owned();
        for page in &self.pages {
            let name = page.path.file_name().unwrap_or_default().to_string_lossy();
            let mut heading = "";
            let mut lines = page.text.lines();
            while let Some(line) = lines.next() {
                if let Some(title) = line.strip_prefix("## ") {
                    heading = title;
                }
                if line.starts_with("<!-- results: ") {
                    let table = lines.by_ref().take_while(|line| line.starts_with('|'));
                    let table: Vec<Vec<&str>> = table.map(cells).collect();
                    if let Some((floors, met, all)) = met(&table) {
                        let link = format!("{directory}/{name}#{}", anchor(heading));
                        let _ =
                            writeln!(out, "| [{heading}]({link}) | {} | {met} of {all} |", floors.join("; "));
                    }
                }
            }
        }
        out
    }
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// As links name it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The floors of a table, how many of its cells meet one, and how many have one.
fn met(table: &[Vec<&str>]) -> Option<(Vec<String>, usize, usize)> {
    let (header, rows) = (table.first()?, table.get(2..)?);
    let (mut floors, mut counts) = (Vec::new(), (0, 0));
    for column in 1..header.len() {
        let judged = || rows.iter().filter(|row| matches!(row.get(column), Some(&("yes" | "**no**"))));
        counts.0 += judged().filter(|row| row[column] == "yes").count();
        counts.1 += judged().count();
        let all: Vec<String> = match header[column] {
            _ if judged().next().is_none() => continue,
            "met" => judged().map(|row| row[column - 1].to_owned()).collect(),
            floor => vec![format!("{} {floor}", header[column - 1])],
        };
        for floor in all {
            if !floors.contains(&floor) {
                floors.push(floor);
            }
        }
    }
    (counts.1 > 0).then_some((floors, counts.0, counts.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_keeps_all_but_its_results() {
        let text = "a\n<!-- results: x -->\nold\n<!-- end of results: x -->\nb\n";
        let new = replace(text, "x", "new\n").expect("markers");
        assert_eq!(new, "a\n<!-- results: x -->\nnew\n<!-- end of results: x -->\nb\n");
        assert_eq!(replace(text, "y", "new\n"), None);
    }

    #[test]
    fn floors_are_counted_by_column() {
        let table = ["| load | a | of b | ≥ 0.9 | floor | met |", "| --- |"]
            .into_iter()
            .chain(["| x | 1 | 0.8 | **no** | ≥ 2 | yes |", "| y | 1 | 1.0 | yes | ≤ 3 | – |"]);
        let table: Vec<Vec<&str>> = table.map(cells).collect();
        assert_eq!(met(&table), Some((vec!["of b ≥ 0.9".to_owned(), "≥ 2".to_owned()], 2, 3)));
        assert_eq!(met(&table[..2]), None);
        assert_eq!(anchor("Loss, small queues"), "loss-small-queues");
    }

    #[test]
    fn the_summary_says_what_the_pages_say() {
        let pages =
            Pages::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance")).expect("pages");
        let text = replace(&pages.summary.text, FLOORS, &pages.floors()).expect("markers");
        assert!(text == pages.summary.text, "{}", pages.floors());
    }
}
