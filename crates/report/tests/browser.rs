//! Pages as a browser shows them, at 1200 and at 390 pixels, in light and dark and on paper: axes
//! and legends are there, no text covers another one (slanted ones neither), nothing is wider than
//! the page. It needs Chromium, and is skipped with that reason otherwise. With
//! `REPORT_PICTURES=DIR` it saves its pictures in that directory.

use longhaul_report::page::report;
use longhaul_results::Document;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What looks at a page from within: texts of each figure that is shown, each with
/// its four corners, as it may be turned.
const LOOK: &str = r#"
const frame = document.getElementById('page'), found = [];
const corners = text => {
  // Letters do not fill the room of their line.
  const box = text.getBBox(), m = text.getScreenCTM(), inset = [0.5, 1.25];
  const [left, right] = [box.x + inset[0], box.x + box.width - inset[0]];
  const [top, bottom] = [box.y + inset[1], box.y + box.height - inset[1]];
  return [[left, top], [right, top], [right, bottom], [left, bottom]]
    .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]);
};
// Two convex shapes are apart if they are so along the normal of one of their sides.
const apart = (a, b) => [a, b].some(shape => shape.some((point, i) => {
  const next = shape[(i + 1) % shape.length], normal = [point[1] - next[1], next[0] - point[0]];
  const along = shape => shape.map(([x, y]) => x * normal[0] + y * normal[1]);
  const [one, other] = [along(a), along(b)];
  return Math.max(...one) <= Math.min(...other) || Math.max(...other) <= Math.min(...one);
}));
frame.onload = () => {
  const doc = frame.contentDocument, win = frame.contentWindow;
  if (doc.documentElement.scrollWidth > win.innerWidth) found.push('the page is ' + doc.documentElement.scrollWidth + ' wide');
  // An element that must be scrolled sideways counts as too wide.
  if (win.innerWidth < 500)
    for (const box of doc.querySelectorAll('.scroll, .narrow, p, li, h1, h2'))
      if (box.scrollWidth > box.clientWidth + 1) found.push((box.className || box.tagName) + ' is ' + box.scrollWidth + ' wide: ' + box.textContent.trim().slice(0, 60));
  let shown = 0;
  for (const svg of doc.querySelectorAll('svg')) {
    const room = svg.getBoundingClientRect(), name = svg.getAttribute('aria-label');
    if (room.width === 0) continue;
    shown += 1;
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent).map(t => [t.textContent, corners(t)]);
    const legend = [...svg.querySelectorAll('.legend text')].filter(t => t.textContent);
    if (texts.length < 4) found.push(name + ' has ' + texts.length + ' texts');
    if (svg.querySelectorAll('line.axis').length < 2) found.push(name + ' has no axes');
    if (legend.length < 1) found.push(name + ' has no legend');
    for (const [text, shape] of texts)
      if (shape.some(([x, y]) => x < room.left - 1 || x > room.right + 1 || y < room.top - 1 || y > room.bottom + 1))
        found.push('"' + text + '" is outside of ' + name);
    texts.forEach(([text, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
      if (!apart(a, b)) found.push('"' + text + '" covers "' + other + '" in ' + name);
    }));
  }
  const paper = win.getComputedStyle(doc.body).backgroundColor, ink = win.getComputedStyle(doc.querySelector('text.t')).fill;
  document.getElementById('verdict').textContent =
    'shown ' + shown + ' figures, ' + ink + ' on ' + paper + ': ' + (found.length ? found.join('; ') : 'all well');
};
frame.srcdoc = PAGE;
"#;

/// Colours of letters and their background.
const LIGHT: &str = "rgb(28, 33, 38) on rgb(255, 255, 255)";
const DARK: &str = "rgb(230, 233, 236) on rgb(20, 24, 28)";
/// Browsers that need no window.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Windows cannot be narrower; frames can.
const WINDOW_MIN: u32 = 500;
const HEIGHT: u32 = 2600;
/// A picture of a page with figures is larger than one of nothing, in bytes.
const PICTURE_MIN: usize = 20_000;

/// A browser, with a directory of its own.
fn browser(profile: &Path) -> Option<Command> {
    let runs = |name: &&str| {
        let status = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let Some(name) = BROWSERS.into_iter().find(runs) else {
        longhaul_skip::skip!("Chromium is not installed");
        return None;
    };
    let mut command = Command::new(name);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--hide-scrollbars", "--virtual-time-budget=5000", "--timeout=30000"]);
    command.arg(format!("--user-data-dir={}", profile.display())).stdin(Stdio::null());
    // It keeps things beside its profile, too.
    command.env("XDG_CONFIG_HOME", profile).env("XDG_CACHE_HOME", profile);
    Some(command)
}

/// Width and height of a PNG, in pixels (PNG, 11.2.2: the header comes first).
fn size(png: &[u8]) -> (u32, u32) {
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "no picture");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes"));
    (number(16), number(20))
}

/// What the browser makes of a page. On a busy machine it may give up before it has.
fn shown(command: &mut Command, is_done: impl Fn(&Output) -> bool) -> Output {
    let mut seen = command.output().expect("started");
    for _ in 0..2 {
        if seen.status.success() && is_done(&seen) {
            break;
        }
        seen = command.output().expect("started");
    }
    assert!(seen.status.success(), "{}", String::from_utf8_lossy(&seen.stderr));
    seen
}

/// Looks at a page at a width, and takes a picture of it.
fn look(name: &str, page: &str, width: u32, dark: bool) {
    let dir = tempfile::tempdir().expect("directory");
    let Some(mut command) = browser(&dir.path().join("profile")) else { return };
    let scheme = if dark { "dark" } else { "light" };
    let picture = dir.path().join(format!("{name}-{width}-{scheme}.png"));
    let file = dir.path().join("look.html");
    let quoted = serde_json::to_string(page).expect("JSON").replace("</", "<\\/");
    let host = format!(
        "<!doctype html><meta name=\"color-scheme\" content=\"light dark\"><body style=\"margin:0\">\
         <iframe id=\"page\" style=\"border:0;width:{width}px;height:{HEIGHT}px\"></iframe>\
         <pre id=\"verdict\">nothing</pre><script>{}</script>",
        LOOK.replace("PAGE", &quoted)
    );
    std::fs::write(&file, host).expect("written");
    let window = width.max(WINDOW_MIN);
    command.args([format!("--window-size={window},{HEIGHT}"), "--dump-dom".into()]);
    command.arg(format!("--screenshot={}", picture.display()));
    command.arg(format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 }));
    command.arg(format!("file://{}", file.display()));
    let seen = shown(&mut command, |seen| !String::from_utf8_lossy(&seen.stdout).contains(">nothing</pre>"));
    let dom = String::from_utf8_lossy(&seen.stdout);
    let verdict = dom.split("id=\"verdict\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    // Each is there twice, for either width.
    let figures = page.matches("<svg").count() / 2;
    let colours = if dark { DARK } else { LIGHT };
    let well = format!("shown {figures} figures, {colours}: all well");
    let bytes = std::fs::read(&picture).expect("a picture");
    if let Some(pictures) = std::env::var_os("REPORT_PICTURES") {
        std::fs::copy(&picture, Path::new(&pictures).join(picture.file_name().expect("a name")))
            .expect("kept");
    }
    assert_eq!(verdict, Some(well.as_str()), "{name} at {width}");
    assert_eq!(size(&bytes), (window, HEIGHT));
    assert!(bytes.len() > PICTURE_MIN, "{name} at {width}: {} bytes show nothing", bytes.len());
}

/// Prints a page.
fn print(name: &str, page: &str) {
    let dir = tempfile::tempdir().expect("directory");
    let Some(mut command) = browser(&dir.path().join("profile")) else { return };
    let [file, paper] = ["page.html", "page.pdf"].map(|name| dir.path().join(name));
    std::fs::write(&file, page).expect("written");
    command.arg(format!("--print-to-pdf={}", paper.display()));
    command.arg(format!("file://{}", file.display()));
    shown(&mut command, |_| paper.exists());
    let pdf = std::fs::read(&paper).expect("a PDF");
    assert!(pdf.starts_with(b"%PDF-") && pdf.len() > PICTURE_MIN, "{name}: {} bytes", pdf.len());
    if let Some(pictures) = std::env::var_os("REPORT_PICTURES") {
        std::fs::copy(&paper, Path::new(&pictures).join(format!("{name}.pdf"))).expect("kept");
    }
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
    let void = r#", "validity": {"valid": false, "reasons": [{"code": "retransmitting", "detail": "1.2 % of the segments were retransmitted"}]}"#;
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

/// A page of a real study, with values that do not count and names that have no room: `longhaul
/// study fabrics --quick --runs 2 --runtime 1s --overwrite` on one drive.
fn study() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/study-fabrics.json");
    let document = Document::load(&path).expect("a result");
    report("A study", &[document], Path::new("report.html")).html
}

#[test]
fn nothing_covers_anything_at_any_width() {
    let page = report("A sample of everything", &[sample()], Path::new("report.html")).html;
    // Two figures, throughput and round trip over time.
    assert_eq!(page.matches("<svg").count(), 2 * 4);
    for width in [1200, 390] {
        look("sample", &page, width, false);
    }
    look("sample", &page, 390, true);
}

#[test]
fn the_page_of_a_study_is_shown_whole() {
    let page = study();
    assert!(page.matches("<svg").count() >= 2 * 5, "a study has several figures");
    for width in [1200, 390] {
        look("study", &page, width, false);
    }
    look("study", &page, 1200, true);
    print("study", &page);
}
