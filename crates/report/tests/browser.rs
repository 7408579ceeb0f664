//! The page as a browser shows it, at 1200 and at 400 pixels: axes and legends
//! are there, no text covers another one, nothing is wider than the page. It
//! needs Chromium, and says so where it skips. With `REPORT_PICTURES=DIR` it
//! leaves pictures there for people to look at.

use longhaul_report::Document;
use longhaul_report::page::report;
use std::path::Path;
use std::process::{Command, Stdio};

/// What looks at a page from within: texts of each figure that is shown.
const LOOK: &str = r#"
const frame = document.getElementById('page'), found = [];
frame.onload = () => {
  const doc = frame.contentDocument, win = frame.contentWindow;
  if (doc.documentElement.scrollWidth > win.innerWidth) found.push('the page is ' + doc.documentElement.scrollWidth + ' wide');
  let shown = 0;
  for (const svg of doc.querySelectorAll('svg')) {
    const room = svg.getBoundingClientRect();
    if (room.width === 0) continue;
    shown += 1;
    const texts = [...svg.querySelectorAll('text:not([transform])')].map(t => [t.textContent, t.getBoundingClientRect()]);
    if (texts.length < 4) found.push('a figure has ' + texts.length + ' texts');
    if (svg.querySelectorAll('line.axis').length < 2) found.push('a figure has no axes');
    for (const [text, a] of texts)
      if (a.left < room.left - 1 || a.right > room.right + 1 || a.top < room.top - 1 || a.bottom > room.bottom + 1)
        found.push('"' + text + '" is outside its figure');
    texts.forEach(([text, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)
        found.push('"' + text + '" covers "' + other + '"');
    }));
  }
  document.getElementById('verdict').textContent = 'shown ' + shown + ' figures; ' + (found.length ? found.join('; ') : 'all well');
};
frame.srcdoc = PAGE;
"#;

/// A browser that has no window.
fn chromium() -> Option<Command> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let runs = |name: &&str| {
        let status = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let mut command = Command::new(names.into_iter().find(|name| runs(name))?);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]);
    command.args(["--virtual-time-budget=5000", "--timeout=30000"]);
    command.stdin(Stdio::null());
    Some(command)
}

/// A result with everything that a figure can have.
fn sample() -> Document {
    let mut cells = Vec::new();
    let mut cell = |figure: &str, label: &str, series: &str, x: &str, value: f64, more: &str| {
        cells.push(format!(
            r#"{{"name": "{figure} {series} {x}", "unit": "bit/s", "samples": [{value}, {}, {}],
                "place": {{"figure": "{figure}", "series": "{series}", "x": "{x}", "x_number": {}, "x_label": "{label}"}}{more}}}"#,
            value * 1.05,
            value * 0.97,
            x.parse::<f64>().map_or("null".into(), |number| number.to_string()),
        ));
    };
    for (at, x) in ["1", "10", "100", "1000"].into_iter().enumerate() {
        let published =
            format!(r#", "published": [{{"value": {}, "source": "A study, 2021"}}]"#, 8e9 / (at + 1) as f64);
        cell(
            "Files at the same time",
            "Files read at the same time",
            "raw device at 15 ms",
            x,
            9e9,
            &published,
        );
        cell(
            "Files at the same time",
            "Files read at the same time",
            "XFS on RAID0 at 15 ms",
            x,
            5e9 - at as f64 * 1e9,
            "",
        );
    }
    let void = r#", "validity": {"valid": false, "reasons": [{"code": "retransmitting", "detail": "1.2 % of the segments were sent again"}]}"#;
    for (at, x) in
        ["local block device", "local ext4", "remote block device over TCP", "remote ext4", "InfiniBand"]
            .into_iter()
            .enumerate()
    {
        for drives in 1..=6 {
            let more = if at == 4 { void } else { "" };
            cell("Drives", "", &format!("{drives} drives"), x, f64::from(drives) * 1.5e9, more);
        }
    }
    let tcp = (1..=60).map(|at| {
        format!(r#"{{"at_s": {at}, "stream": "1", "bytes": {}, "rtt_us": 15123.5}}"#, 125_000_000 + at * 1000)
    });
    let text = format!(
        r#"{{"longhaul": {{"schema": 1, "name": "Sample", "cells": [{}], "runs": [{{"seconds": 60, "tcp": [{}]}}]}}}}"#,
        cells.join(","),
        tcp.collect::<Vec<_>>().join(",")
    );
    Document::parse(Path::new("sample.json"), text).expect("a result")
}

#[test]
fn nothing_covers_anything_at_any_width() {
    if chromium().is_none() {
        eprintln!("skipped: Chromium is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let page = report("A sample of everything", &[sample()]).html;
    for width in [1200, 400] {
        let file = dir.path().join(format!("look-{width}.html"));
        let quoted = serde_json::to_string(&page).expect("JSON").replace("</", "<\\/");
        // Windows cannot be as narrow as frames.
        let host = format!(
            "<!doctype html><body style=\"margin:0\"><iframe id=\"page\" style=\"border:0;width:{width}px;height:2600px\"></iframe>\
             <pre id=\"verdict\">nothing</pre><script>{}</script>",
            LOOK.replace("PAGE", &quoted)
        );
        std::fs::write(&file, host).expect("written");
        let mut command = chromium().expect("as before");
        command.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
        command.arg(format!("--window-size={width},2600"));
        let url = format!("file://{}", file.display());
        let seen = command.args(["--dump-dom", &url]).output().expect("started");
        let dom = String::from_utf8_lossy(&seen.stdout);
        let verdict = dom.split("id=\"verdict\">").nth(1).and_then(|rest| rest.split("</pre>").next());
        // Two figures, throughput and round trip as time went on.
        assert_eq!(verdict, Some("shown 4 figures; all well"), "at {width}");
        if let Some(pictures) = std::env::var_os("REPORT_PICTURES") {
            let mut command = chromium().expect("as before");
            command.arg(format!("--user-data-dir={}", dir.path().join("profile").display()));
            command.arg(format!("--window-size={},2600", width.max(500)));
            let picture = Path::new(&pictures).join(format!("report-{width}.png"));
            let status = command.arg(format!("--screenshot={}", picture.display())).arg(&url).output();
            assert!(status.expect("started").status.success());
        }
    }
}
