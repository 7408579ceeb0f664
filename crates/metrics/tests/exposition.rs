//! The page of metrics, by a strict reader.

mod reader;

use longhaul_metrics::{FAMILIES, Family, FamilyKind, Format, Page};
use reader::read;
use std::time::Duration;

/// All families, with labels that need escapes.
fn full() -> Page {
    const BOUNDS: [Duration; 2] = [Duration::from_micros(10), Duration::from_secs(1)];
    let mut page = Page::default();
    for &family in FAMILIES {
        for name in ["plain", "a \"b\" \\ c\nd,e=\"f\"}", "größer"] {
            let labels: Vec<&str> = family.labels.iter().map(|_| name).collect();
            match family.kind {
                FamilyKind::Histogram => {
                    page.histogram(family, &labels, &BOUNDS, &[3, 0, 4], Duration::from_millis(2500));
                }
                FamilyKind::Gauge => page.number(family, &labels, 0.25),
                FamilyKind::Counter => page.count(family, &labels, u64::MAX),
                FamilyKind::Info => page.count(family, &labels, 1),
            }
            if family.labels.is_empty() {
                break;
            }
        }
    }
    page
}

#[test]
fn every_family_is_written_as_both_formats_ask() {
    for (format, is_open) in [(Format::OpenMetrics, true), (Format::Text, false)] {
        let text = full().write(format);
        let page = read(&text, is_open).unwrap_or_else(|why| panic!("{why}\n{text}"));
        assert_eq!(page.0.len(), FAMILIES.len());
        let labels = [("operation", "a \"b\" \\ c\nd,e=\"f\"}")];
        let name = "longhaul_target_command_duration_seconds";
        assert_eq!(page.one(&format!("{name}_count"), &labels), 7.0);
        assert_eq!(page.one(&format!("{name}_sum"), &labels), 2.5);
        assert_eq!(page.one(&format!("{name}_bucket"), &[labels[0], ("le", "1.0")]), 3.0);
    }
    assert_eq!(read(&Page::default().write(Format::OpenMetrics), true), Ok(Default::default()));
}

#[test]
fn the_reader_refuses_what_the_formats_forbid() {
    let good = "# TYPE a_seconds counter\n# UNIT a_seconds seconds\n# HELP a_seconds x\na_seconds_total{b=\"c\"} 1\n# EOF\n";
    read(good, true).expect("a page");
    let bad = [
        ("# EOF\n", ""),
        ("counter", "count"),
        ("# UNIT a_seconds seconds\n", ""),
        ("# HELP a_seconds x\n", ""),
        ("a_seconds_total{", "a_seconds{"),
        ("b=\"c\"", "b=\"c\",b=\"c\""),
        ("b=\"c\"", "b=\"\\x\""),
        ("} 1", "} -1"),
        ("} 1", "} NaN"),
        ("} 1", "}  1"),
        ("# EOF", "a_seconds_total{b=\"c\"} 1\n# EOF"),
        ("# EOF", "a_seconds_total{d=\"c\"} 1\n# EOF"),
        ("# EOF", "# TYPE a_seconds counter\n# EOF"),
        ("# EOF", "\n# EOF"),
    ];
    for (from, to) in bad {
        let text = good.replacen(from, to, 1);
        assert!(read(&text, true).is_err(), "{text}");
    }
    let good = "# TYPE h histogram\n# HELP h x\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3.0\nh_count 2\n";
    read(good, false).expect("a page");
    for (from, to) in [("+Inf", "0.5"), ("} 2", "} 0"), ("h_count 2", "h_count 1"), ("h_sum 3.0\n", "")] {
        let text = good.replacen(from, to, 1);
        assert!(read(&text, false).is_err(), "{text}");
    }
}

#[test]
fn names_end_with_their_units_and_not_with_words_of_the_formats() {
    for family in FAMILIES {
        let Family { name, unit, help, .. } = family;
        assert!(unit.name().is_none_or(|unit| name.ends_with(&format!("_{unit}"))), "{name}");
        assert!(
            ["_total", "_info", "_count", "_sum", "_bucket", "_created"]
                .iter()
                .all(|end| !name.ends_with(end))
        );
        assert!(name.starts_with("longhaul_") || name.starts_with("process_"), "{name}");
        assert!(help.ends_with('.') && !help.contains('|'), "{name}: {help}");
    }
}

/// The rows of the page's table.
fn table() -> String {
    let row = |family: &&Family| {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".into() } else { labels.join(", ") };
        let unit = family.unit.name().unwrap_or("–");
        format!("| `{}` | {} | {unit} | {labels} | {} |\n", family.sample(), family.kind.name(), family.help)
    };
    let head = "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
    head.to_owned() + &FAMILIES.iter().map(row).collect::<String>()
}

/// `LONGHAUL_WRITE_DOCS=1` writes the table instead.
#[test]
fn the_page_lists_all_metrics() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let text = std::fs::read_to_string(path).expect(path);
    let at = text.find("| name | type |").expect("a table");
    let end = text[at..].find("\n\n").map_or(text.len(), |len| at + len + 1);
    if std::env::var_os("LONGHAUL_WRITE_DOCS").is_some() {
        let new = format!("{}{}{}", &text[..at], table(), &text[end..]);
        return std::fs::write(path, new).expect("written");
    }
    let hint = "the table of docs/metrics.md is not that of FAMILIES: LONGHAUL_WRITE_DOCS=1 writes it";
    assert!(text[at..end] == table(), "{hint}");
}
