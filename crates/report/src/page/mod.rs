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
use longhaul_results::stats::Interval;
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

/// Appends to a text, which takes everything.
macro_rules! put {
    ($to:expr, $($arg:tt)*) => { let _ = writeln!($to, $($arg)*); };
}

/// Results up to this size stand in the page themselves, in bytes: larger ones
/// would make it slow to open, and are linked.
const RAW_MAX: usize = 2 << 20;

/// A page and what belongs to it.
#[derive(Clone, Debug)]
pub struct Report {
    /// The page.
    pub html: String,
    /// Files beside it: names and contents.
    pub files: Vec<(String, String)>,
}

/// Makes a page of these results, which is to be the file `page`: results that are
/// too large to stand in it are linked from there.
pub fn report(title: &str, documents: &[Document], page: &Path) -> Report {
    let gathered = gather(documents);
    let table = csv(documents);
    let mut body = String::new();
    head(&mut body, title, documents);
    let findings = findings(documents, &gathered);
    told(&mut body, &findings);
    for (number, one) in (1..).zip(&gathered) {
        let mine: Vec<&Finding> =
            findings.iter().filter(|finding| finding.figure == Some(number - 1)).collect();
        section(&mut body, number, one, &mine, documents);
    }
    let timelines = timelines(documents);
    if !timelines.is_empty() {
        body.push_str("<h2>As time went on</h2>\n");
        for figure in &timelines {
            put!(body, "<h3>{}</h3>", escape(&figure.title));
            picture(&mut body, figure);
        }
    }
    for document in documents {
        conditions(&mut body, document);
    }
    downloads(&mut body, (documents, page), &table);
    let figures = gathered.iter().map(|one| &one.figure).chain(&timelines);
    let mut files: Vec<(String, String)> =
        (1..).zip(figures).map(|(n, figure)| (format!("figure-{n}.svg"), figure.file())).collect();
    files.push(("results.csv".into(), table));
    Report { html: whole(title, &body), files }
}

fn whole(title: &str, body: &str) -> String {
    let title = escape(title);
    let css = include_str!("page.css");
    let style = style();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{css}{style}\n</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn head(body: &mut String, title: &str, documents: &[Document]) {
    put!(body, "<h1>{}</h1>", escape(title));
    let cells: Vec<_> = documents.iter().flat_map(|document| &document.record.cells).collect();
    let bad = cells.iter().filter(|cell| !cell.validity.valid).count();
    for line in measured(documents) {
        put!(body, "<p class=\"small\">{}</p>", escape(&line));
    }
    if bad > 0 {
        put!(
            body,
            "<p class=\"note\"><b>{bad} of {} numbers do not count</b>: they are crossed in the figures, and the \
             tables say why.</p>",
            cells.len()
        );
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

/// The findings, before anything else.
fn told(body: &mut String, findings: &[Finding]) {
    if findings.is_empty() {
        return;
    }
    put!(body, "<section class=\"findings\">\n<h2>What was found</h2>\n<ul>");
    for finding in findings {
        let link = finding.figure.map_or(String::new(), |at| {
            let number = at + 1;
            format!(" <a href=\"#figure-{number}\">Figure {number}</a>")
        });
        put!(
            body,
            "<li><b>{}</b>: {}.{}{link}</li>",
            escape(&finding.title),
            escape(&finding.words),
            published_words(finding)
        );
    }
    put!(body, "</ul>\n</section>");
}

fn published_words(finding: &Finding) -> String {
    match finding.published.as_str() {
        "" => String::new(),
        published => format!(" <span class=\"small\">Published: {}.</span>", escape(published)),
    }
}

/// The findings of one figure, and the ratios behind them.
fn behind(body: &mut String, findings: &[&Finding]) {
    // Numbers that stand for themselves are in the table.
    for finding in findings.iter().filter(|one| !one.ratios.is_empty() || !one.published.is_empty()) {
        put!(
            body,
            "<p><b>{}</b>: {}.{}</p>",
            escape(&finding.title),
            escape(&finding.words),
            published_words(finding)
        );
    }
}

/// Ratios between results, with their intervals.
fn ratios(body: &mut String, findings: &[&Finding]) {
    for finding in findings.iter().filter(|finding| finding.ratios.len() > 1) {
        put!(body, "<div class=\"scroll\"><table>\n<thead><tr><th>{}</th>", escape(&finding.title));
        put!(body, "<th class=\"n\">Ratio (95 % between)</th></tr></thead>\n<tbody>");
        for ratio in &finding.ratios {
            put!(body, "<tr><td>{}</td><td class=\"n\">{}</td></tr>", escape(&ratio.label), ratio.words());
        }
        put!(body, "</tbody></table></div>");
    }
}

fn picture(body: &mut String, figure: &Figure) {
    put!(body, "<figure><figcaption>{}</figcaption>", escape(&figure.title));
    put!(body, "<div class=\"wide\">{}</div>", figure.svg(WIDE));
    put!(body, "<div class=\"narrow\">{}</div></figure>", figure.svg(NARROW));
}

fn section(body: &mut String, number: usize, one: &Gathered, findings: &[&Finding], documents: &[Document]) {
    put!(body, "<section>\n<h2 id=\"figure-{number}\">Figure {number}: {}</h2>", escape(&one.figure.title));
    behind(body, findings);
    picture(body, &one.figure);
    ratios(body, findings);
    // What was published stands for what is not measured here.
    let value = |entry: &Entry| entry.mean().or(entry.published.first().map(|published| published.value));
    let most = one.entries.iter().filter_map(value).fold(0.0, f64::max);
    let scale = Scale::of(&one.figure.unit, most);
    let published = one.entries.iter().any(|entry| !entry.published.is_empty() || !entry.found.is_empty());
    let x = if one.figure.x_label.is_empty() { "What" } else { &one.figure.x_label };
    put!(body, "<div class=\"scroll\"><table>\n<thead><tr><th>{}</th><th></th>", escape(x));
    put!(
        body,
        "<th class=\"n\">{}</th><th class=\"n\">95 % between</th><th class=\"n\">Runs</th>",
        escape(scale.unit())
    );
    if published {
        put!(body, "<th>Published</th><th class=\"n\">Ours / published</th>");
    }
    put!(body, "<th></th></tr></thead>\n<tbody>");
    for entry in &one.entries {
        row(body, entry, &scale, published);
    }
    put!(body, "</tbody></table></div>");
    sources(body, one);
    if let Some(figure) = of_figure(one, documents) {
        put!(body, "<h3>{}</h3>", escape(&figure.title));
        picture(body, &figure);
    }
    put!(body, "</section>");
}

fn row(body: &mut String, entry: &Entry, scale: &Scale, published: bool) {
    let void = !entry.words.is_empty();
    put!(
        body,
        "<tr{}><td>{}</td><td>{}</td>",
        if void { " class=\"void\"" } else { "" },
        escape(&entry.x),
        escape(&entry.series)
    );
    let mean = entry.mean().map_or("–".into(), |mean| scale.number(mean));
    let ends = entry.summary.interval().map_or("–".into(), |interval| {
        format!("{} – {}", scale.number(floor(interval)), scale.number(interval.high))
    });
    put!(
        body,
        "<td class=\"n\" data-name=\"{}\">{mean}</td><td class=\"n\" data-name=\"95 %\">{ends}</td>\
         <td class=\"n\" data-name=\"runs\">{}</td>",
        escape(scale.unit()),
        entry.summary.n
    );
    if published {
        let number = entry.published.first().map(|published| scale.number(published.value));
        let ratio = entry.ratio().map_or(String::new(), |ratio| match ratio.low < ratio.high {
            true => format!("{:.2} ({:.2}–{:.2})", ratio.value, ratio.low, ratio.high),
            false => format!("{:.2}", ratio.value),
        });
        let words = number.unwrap_or_else(|| escape(&entry.found));
        put!(
            body,
            "<td data-name=\"published\">{words}</td><td class=\"n\" data-name=\"ours / published\">{ratio}</td>"
        );
    }
    put!(body, "<td>{}</td></tr>", escape(&entry.words));
}

/// The lower end: what is above zero in the mean is a rate or a time, and never below it.
fn floor(interval: Interval) -> f64 {
    if interval.value > 0.0 { interval.low.max(0.0) } else { interval.low }
}

fn sources(body: &mut String, one: &Gathered) {
    let mut sources: Vec<&str> =
        one.entries.iter().flat_map(|entry| &entry.published).map(|p| p.source.as_str()).collect();
    let words = one.entries.iter().flat_map(|entry| entry.found_source.split("; "));
    sources.extend(words.filter(|source| !source.is_empty()));
    sources.sort_unstable();
    sources.dedup();
    if !sources.is_empty() {
        put!(body, "<p class=\"small\">Published: {}.</p>", escape(&sources.join("; ")));
    }
}

fn conditions(body: &mut String, document: &Document) {
    let record = &document.record;
    put!(
        body,
        "<section>\n<h2>Conditions of {}</h2>\n<div class=\"scroll\"><table><tbody>",
        escape(&document.label())
    );
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            put!(body, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
        }
    };
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
    put!(body, "</tbody></table></div>\n</section>");
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
fn downloads(body: &mut String, (documents, page): (&[Document], &Path), table: &str) {
    put!(body, "<section>\n<h2>Raw data</h2>\n<ul>");
    let link = |name: &str, kind: &str, text: &str| {
        format!("<li><a download=\"{0}\" href=\"data:{kind},{1}\">{0}</a></li>", escape(name), percent(text))
    };
    put!(body, "{}", link("results.csv", "text/csv;charset=utf-8", table));
    for document in documents {
        let name = document.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "result.json".into());
        match document.text.len() {
            0..=RAW_MAX => {
                put!(body, "{}", link(&name, "application/json", &document.text));
            }
            bytes => {
                let size = Scale::of("B", bytes as f64).with_unit(bytes as f64);
                let (address, name) = (address(page, &document.path), escape(&name));
                put!(body, "<li><a href=\"{address}\">{name}</a> ({size}, beside this page)</li>");
            }
        }
    }
    put!(body, "</ul>\n</section>");
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
