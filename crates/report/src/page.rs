//! Results as one HTML page that needs nothing else, and as files of figures
//! and numbers.

mod csv;
mod finding;
mod gather;
mod timeline;

pub use csv::csv;
pub use finding::{Finding, Ratio, findings};
pub use gather::{Entry, Gathered, gather};
pub use timeline::{of_figure, timelines};

use crate::figure::{Figure, NARROW, Scale, WIDE, escape, style};
use longhaul_results::Document;
use longhaul_results::host::Host;
use longhaul_results::record::{Cell, Code};
use longhaul_results::stats::Interval;
use maud::{Markup, PreEscaped, Render, html};
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

/// Text that may stand in HTML as in XML, whatever characters it has.
struct Text<'a>(&'a str);

impl Render for Text<'_> {
    fn render_to(&self, page: &mut String) {
        page.push_str(&escape(self.0));
    }
}

/// Results up to this size stand in the page themselves, in bytes: larger ones
/// would make it slow to open, and are linked.
const RAW_MAX: usize = 2 << 20;

/// A page and its files.
#[derive(Clone, Debug)]
pub struct Report {
    /// The page, complete and without external files.
    pub html: String,
    /// Files beside it: names and contents.
    pub files: Vec<(String, String)>,
}

/// Makes a page of these results, which is to be the file `page`: results that are
/// too large to stand in it are linked from there.
pub fn report(title: &str, documents: &[Document], page: &Path) -> Report {
    let gathered = gather(documents);
    let table = csv(documents);
    let findings = findings(documents, &gathered);
    let timelines = timelines(documents);
    let body = html! {
        (head(title, documents))
        (told(&findings))
        @for (number, one) in (1..).zip(&gathered) {
            (section(number, one, &of_one(&findings, number - 1), documents))
        }
        @if !timelines.is_empty() {
            h2 { "Over time" }
            @for figure in &timelines {
                h3 { (Text(&figure.title)) }
                (picture(figure))
            }
        }
        @for document in documents {
            (conditions(document))
        }
        (downloads((documents, page), &table))
    };
    let figures = gathered.iter().map(|one| &one.figure).chain(&timelines);
    let mut files: Vec<(String, String)> =
        (1..).zip(figures).map(|(n, figure)| (format!("figure-{n}.svg"), figure.file())).collect();
    files.push(("results.csv".into(), table));
    Report { html: whole(title, &body), files }
}

/// The findings of the figure at an index.
fn of_one(findings: &[Finding], figure: usize) -> Vec<&Finding> {
    findings.iter().filter(|finding| finding.figure == Some(figure)).collect()
}

fn whole(title: &str, body: &Markup) -> String {
    let page = html! {
        (PreEscaped("<!doctype html>\n"))
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (Text(title)) }
                style { (PreEscaped(include_str!("page/page.css"))) (PreEscaped(style())) }
            }
            body { main { (body) } }
        }
    };
    page.into_string()
}

fn head(title: &str, documents: &[Document]) -> Markup {
    let cells: Vec<_> = documents.iter().flat_map(|document| &document.record.cells).collect();
    let is_unavailable =
        |cell: &&Cell| cell.validity.reasons.iter().any(|reason| reason.code == Code::NotAvailable);
    let unavailable = cells.iter().copied().filter(is_unavailable).count();
    let bad = cells.iter().filter(|cell| !cell.validity.valid).count().saturating_sub(unavailable);
    let measured_here = cells.len() - unavailable;
    html! {
        h1 { (Text(title)) }
        @for line in measured(documents) {
            p class="small" { (Text(&line)) }
        }
        @if bad > 0 {
            p class="note" {
                b { (bad) " of " (measured_here) " numbers do not count" }
                ": they are crossed in the figures, and the tables say why."
            }
        }
        @if unavailable > 0 {
            p class="small" { "Not measured, as this machine cannot: " (unavailable) " numbers." }
        }
    }
}

/// When, where and with what: a line for each machine and version.
fn measured(documents: &[Document]) -> Vec<String> {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for document in documents {
        let host = document.record.hosts.first();
        let host = host.map_or(String::new(), |host| format!(" on {}: {}", host.name, describe(host)));
        let program = match document.record.program.as_str() {
            "" => String::new(),
            program => format!("; {program}"),
        };
        let line = format!("{host}{program}");
        let time = if document.time.is_empty() { "at an unknown time" } else { &document.time };
        let what = format!("{} {time}", document.label());
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, all)) => all.push(what),
            None => lines.push((line, vec![what])),
        }
    }
    lines.into_iter().map(|(line, all)| format!("Measured: {}{line}.", all.join(", "))).collect()
}

/// The findings, before anything else: those of the summary, and the others to be opened.
fn told(findings: &[Finding]) -> Markup {
    let (first, others) = match findings.iter().any(|finding| finding.in_summary) {
        true => findings.iter().partition(|finding| finding.in_summary),
        false => (findings.iter().collect::<Vec<_>>(), Vec::new()),
    };
    html! {
        @if !findings.is_empty() {
            section class="findings" {
                h2 { "What was found" }
                (list(&first))
                @if !others.is_empty() {
                    details {
                        summary { (others.len()) " further comparisons" }
                        (list(&others))
                    }
                }
            }
        }
    }
}

fn list(findings: &[&Finding]) -> Markup {
    html! {
        ul {
            @for finding in findings {
                li {
                    (words(finding))
                    @if let Some(at) = finding.figure {
                        " "
                        a href={ "#figure-" (at + 1) } { "Figure " (at + 1) }
                    }
                }
            }
        }
    }
}

/// A finding, and the published statements about it.
fn words(finding: &Finding) -> Markup {
    html! {
        b { (Text(&finding.title)) } ": " (Text(&finding.words)) "."
        @if !finding.published.is_empty() {
            " "
            span class="small" { "Published: " (Text(&finding.published)) "." }
        }
    }
}

/// Ratios between results, with their intervals.
fn ratios(findings: &[&Finding]) -> Markup {
    html! {
        @for finding in findings.iter().filter(|finding| finding.ratios.len() > 1) {
            div class="scroll" {
                table {
                    thead {
                        tr { th { (Text(&finding.title)) } th class="n" { "Ratio (95 % between)" } }
                    }
                    tbody {
                        @for ratio in &finding.ratios {
                            tr { td { (Text(&ratio.label)) } td class="n" { (ratio.words()) } }
                        }
                    }
                }
            }
        }
    }
}

fn picture(figure: &Figure) -> Markup {
    html! {
        figure {
            figcaption { (Text(&figure.title)) }
            div class="wide" { (PreEscaped(figure.svg(WIDE))) }
            div class="narrow" { (PreEscaped(figure.svg(NARROW))) }
        }
    }
}

fn section(number: usize, one: &Gathered, findings: &[&Finding], documents: &[Document]) -> Markup {
    // Where nothing was measured, the published value is used.
    let value = |entry: &Entry| entry.mean().or(entry.published.first().map(|published| published.value));
    let most = one.entries.iter().filter_map(value).fold(0.0, f64::max);
    let scale = Scale::of(&one.figure.unit, most);
    let published = one.entries.iter().any(|entry| !entry.published.is_empty() || !entry.found.is_empty());
    let x = if one.figure.x_label.is_empty() { "What" } else { &one.figure.x_label };
    // Numbers that stand for themselves are in the table.
    let behind = findings.iter().filter(|one| !one.ratios.is_empty() || !one.published.is_empty());
    html! {
        section {
            h2 id={ "figure-" (number) } { "Figure " (number) ": " (Text(&one.figure.title)) }
            @for finding in behind {
                p { (words(finding)) }
            }
            (picture(&one.figure))
            (ratios(findings))
            div class="scroll" {
                table {
                    thead {
                        tr {
                            th { (Text(x)) }
                            th {}
                            th class="n" { (Text(scale.unit())) }
                            th class="n" { "95 % between" }
                            th class="n" { "Runs" }
                            @if published {
                                th { "Published" }
                                th class="n" { "Ours / published" }
                            }
                            th {}
                        }
                    }
                    tbody {
                        @for entry in &one.entries {
                            (row(entry, &scale, published))
                        }
                    }
                }
            }
            (sources(one))
            @if let Some(figure) = of_figure(one, documents) {
                h3 { (Text(&figure.title)) }
                (picture(&figure))
            }
        }
    }
}

fn row(entry: &Entry, scale: &Scale, published: bool) -> Markup {
    let mean = entry.mean().map_or("–".into(), |mean| scale.number(mean));
    let ends = entry.summary.interval().map_or("–".into(), |interval| {
        format!("{} – {}", scale.number(floor(interval)), scale.number(interval.high))
    });
    let number = entry.published.first().map(|published| scale.number(published.value));
    let ratio = entry.ratio().map_or(String::new(), |ratio| match ratio.low < ratio.high {
        true => format!("{:.2} ({:.2}–{:.2})", ratio.value, ratio.low, ratio.high),
        false => format!("{:.2}", ratio.value),
    });
    html! {
        tr class=[(!entry.words.is_empty()).then_some("void")] {
            td { (Text(&entry.x)) }
            td { (Text(&entry.series)) }
            td class="n" data-name=(Text(scale.unit())) { (mean) }
            td class="n" data-name="95 %" { (ends) }
            td class="n" data-name="runs" { (entry.summary.n) }
            @if published {
                td data-name="published" { (Text(&number.unwrap_or_else(|| entry.found.clone()))) }
                td class="n" data-name="ours / published" { (ratio) }
            }
            td { (Text(&entry.words)) }
        }
    }
}

/// The lower end: a rate or a time with a positive mean is never below zero.
fn floor(interval: Interval) -> f64 {
    if interval.value > 0.0 { interval.low.max(0.0) } else { interval.low }
}

fn sources(one: &Gathered) -> Markup {
    let mut sources: Vec<&str> =
        one.entries.iter().flat_map(|entry| &entry.published).map(|p| p.source.as_str()).collect();
    let words = one.entries.iter().flat_map(|entry| entry.found_source.split("; "));
    sources.extend(words.filter(|source| !source.is_empty()));
    sources.sort_unstable();
    sources.dedup();
    html! {
        @if !sources.is_empty() {
            p class="small" { "Published: " (Text(&sources.join("; "))) "." }
        }
    }
}

fn conditions(document: &Document) -> Markup {
    let record = &document.record;
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut line = |name: &str, value: &str| lines.push((name.to_owned(), value.to_owned()));
    line("Measured by", &record.program);
    line("Written", &document.time);
    line("Command", &record.command.join(" "));
    line("Seed", &record.seed.map_or(String::new(), |seed| seed.to_string()));
    for (name, value) in record.conditions.by_name() {
        line(name, value);
    }
    for host in &record.hosts {
        line(&format!("Host {}", host.name), &describe(host));
        line("Could not be read", &host.unread.join("; "));
    }
    let cpu: f64 = record.runs.iter().map(|run| run.cpu.user_s + run.cpu.system_s).sum();
    let seconds: f64 = record.runs.iter().map(|run| run.seconds).sum();
    if seconds > 0.0 {
        let runs = record.runs.len();
        line("Runs", &format!("{runs}, {seconds:.1} s in all, {cpu:.1} s of processor time"));
    }
    line("Does not count", &record.validity.words());
    html! {
        section {
            h2 { "Conditions of " (Text(&document.label())) }
            div class="scroll" {
                table {
                    tbody {
                        @for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
                            tr { th { (Text(name)) } td { (Text(value)) } }
                        }
                    }
                }
            }
        }
    }
}

fn describe(host: &Host) -> String {
    let mut words = vec![host.kernel.clone()];
    let guest = if host.virtual_machine { " (virtual)" } else { "" };
    if host.processors > 0 {
        words.push(format!("{} × {}{guest}", host.processors, host.processor));
    }
    if host.memory > 0 {
        words.push(format!("{} of memory", Scale::of("B", host.memory as f64).with_unit(host.memory as f64)));
    }
    words.extend(host.governor.as_ref().map(|governor| format!("governor {governor}")));
    if !host.congestion.is_empty() {
        words.push(format!("congestion control {}", host.congestion));
    }
    for (name, sizes) in [("tcp_rmem", &host.tcp_rmem), ("tcp_wmem", &host.tcp_wmem)] {
        if let [_, _, most] = sizes[..] {
            words.push(format!("{name} up to {}", Scale::of("B", most as f64).with_unit(most as f64)));
        }
    }
    words.retain(|word| !word.is_empty());
    words.join(", ")
}

/// The numbers and the results themselves, to be saved from the page.
fn downloads((documents, page): (&[Document], &Path), table: &str) -> Markup {
    let link = |name: &str, kind: &str, text: &str| {
        html! {
            li {
                a download=(Text(name)) href={ "data:" (PreEscaped(kind)) "," (PreEscaped(percent(text))) } {
                    (Text(name))
                }
            }
        }
    };
    html! {
        section {
            h2 { "Raw data" }
            ul {
                (link("results.csv", "text/csv;charset=utf-8", table))
                @for document in documents {
                    @let name = document.path.file_name().map(|name| name.to_string_lossy().into_owned());
                    @let name = name.unwrap_or_else(|| "result.json".into());
                    @if document.text.len() <= RAW_MAX {
                        (link(&name, "application/json", &document.text))
                    } @else {
                        @let bytes = document.text.len() as f64;
                        li {
                            a href=(PreEscaped(address(page, &document.path))) { (Text(&name)) }
                            " (" (Scale::of("B", bytes).with_unit(bytes)) ", beside this page)"
                        }
                    }
                }
            }
        }
    }
}

/// Where a file is, as seen from a page: so that both can go elsewhere together.
fn address(page: &Path, file: &Path) -> String {
    let (page, file) = (plain(page), plain(file));
    let from: Vec<_> = page.parent().unwrap_or(Path::new("/")).components().collect();
    let to: Vec<_> = file.components().collect();
    let same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[same..].iter().map(|_| "..".to_owned());
    let down = to[same..].iter().map(|part| percent(&part.as_os_str().to_string_lossy()));
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// A path from the root, without detours: as browsers see it.
fn plain(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.components().fold(PathBuf::new(), |mut plain, part| {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
        plain
    })
}

/// Text as part of an address.
fn percent(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => safe.push(byte.into()),
            _ => {
                put_byte(&mut safe, byte);
            }
        }
    }
    safe
}

fn put_byte(to: &mut String, byte: u8) {
    // A String takes everything.
    let _ = write!(to, "%{byte:02X}");
}

#[cfg(test)]
mod tests;
