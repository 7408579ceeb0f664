//! Measurements as a user runs them: result files, comparisons, studies and report pages.

mod common;

use common::{Running, agent, command, finish, follow, longhaul, text};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a load of a moment, several times, and writes the result.
fn bench(path: &Path, more: &[&str]) -> Value {
    let args = ["bench", "mem:1MiB", "--rw", "randread", "--bs", "4k", "--output", text(path)];
    let ran = longhaul(&[&args[..], more].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&fs::read_to_string(path).expect("written")).expect("JSON")
}

/// The result with other samples, as if it came from longer runs that agree.
fn altered(result: &Value, factor: f64) -> Value {
    let mut result = result.clone();
    for cell in result["longhaul"]["cells"].as_array_mut().expect("cells") {
        let samples = [1.0, 1.01, 0.99].map(|share| 1000.0 * share * factor);
        cell["samples"] = serde_json::json!(samples);
        cell["left_out"] = Value::Array(Vec::new());
        cell["validity"] = serde_json::json!({ "valid": true, "reasons": [] });
    }
    result
}

#[test]
fn results_are_written_with_all_that_they_depend_on() {
    let dir = tempfile::tempdir().expect("directory");
    let result = bench(&dir.path().join("a.json"), &["--runs", "3", "--seed", "9"]);
    let record = &result["longhaul"];
    assert_eq!(record["schema"], 1);
    assert_eq!(record["kind"], "bench");
    assert_eq!(record["seed"], 9);
    assert_eq!(record["runs"].as_array().map(Vec::len), Some(3));
    let host = &record["hosts"][0];
    assert!(host["kernel"].as_str().is_some_and(|kernel| kernel.starts_with("Linux ")), "{host}");
    assert!(host["tcp_rmem"][2].as_u64().is_some_and(|most| most > 0), "{host}");
    assert!(!host["congestion"].as_str().unwrap_or_default().is_empty(), "{host}");
    // Runs of milliseconds are no measurement, and it says so.
    let run = &record["runs"][0];
    assert_eq!(run["validity"]["valid"], false);
    assert_eq!(run["validity"]["reasons"][0]["code"], "too-short");
    let cell = &record["cells"][0];
    assert_eq!(cell["name"], "read bandwidth");
    assert_eq!(cell["unit"], "B/s");
    assert_eq!(
        (cell["samples"].as_array().map(Vec::len), cell["left_out"].as_array().map(Vec::len)),
        (Some(0), Some(3))
    );
    // And it is fio's layout still.
    assert!(result["jobs"][0]["read"]["bw_bytes"].as_u64().is_some_and(|rate| rate > 0));
    assert!(fs::read_dir(dir.path()).expect("read").count() == 1, "nothing is left beside");
}

#[test]
fn a_comparison_says_how_much_and_how_surely() {
    let dir = tempfile::tempdir().expect("directory");
    let [a, b, c] = ["a.json", "b.json", "c.json"].map(|name| dir.path().join(name));
    let short = bench(&a, &[]);
    // Too short to count: said, and a code of its own.
    let ran = longhaul(&["bench", "--compare", text(&a), text(&a)]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.contains("does not count: the first: the window had"), "{ran:?}");

    fs::write(&b, altered(&short, 1.0).to_string()).expect("written");
    fs::write(&c, altered(&short, 1.5).to_string()).expect("written");
    let ran = longhaul(&["bench", "--compare", text(&b), text(&c), "--json"]);
    // Whatever is worse is a failure, and is named.
    assert!(ran.code == Some(1) && ran.stderr.contains("numbers are worse: read latency"), "{ran:?}");
    let summary = ran.events().pop().expect("a summary");
    assert_eq!(summary["verdict"], "worse", "{summary}");
    let rate = &summary["numbers"][0];
    assert_eq!(rate["name"], "read bandwidth", "{summary}");
    assert_eq!(rate["verdict"], "better", "{summary}");
    let [ratio, low, high] = ["ratio", "low", "high"].map(|name| rate[name].as_f64().expect("a number"));
    assert!((ratio - 1.5).abs() < 0.01 && low > 1.45 && low < 1.5 && high > 1.5 && high < 1.55, "{summary}");
    let latency = summary["numbers"].as_array().and_then(|all| all.iter().find(|n| n["unit"] == "s"));
    assert_eq!(latency.expect("a latency")["verdict"], "worse", "a longer latency is worse");
    let ran = longhaul(&["bench", "--compare", text(&b), text(&c)]);
    assert!(ran.code == Some(1) && ran.stdout.contains("1.500") && ran.stdout.contains("better"), "{ran:?}");
    let ran = longhaul(&["bench", "--compare", text(&b), text(&b), "--json"]);
    assert_eq!((ran.code, &ran.events()[0]["verdict"]), (Some(0), &"same".into()), "{ran:?}");
    // Of one run each nothing can be said, and that is not called well.
    let mut single = altered(&short, 1.0);
    for cell in single["longhaul"]["cells"].as_array_mut().expect("cells") {
        cell["samples"] = serde_json::json!([1000.0]);
    }
    fs::write(&c, single.to_string()).expect("written");
    let ran = longhaul(&["bench", "--compare", text(&c), text(&c)]);
    assert!(ran.code == Some(3) && ran.stderr.contains("cannot be judged"), "{ran:?}");
}

#[test]
fn results_that_cannot_be_compared() {
    let dir = tempfile::tempdir().expect("directory");
    let [good, bad, missing] = ["good.json", "bad.json", "missing.json"].map(|name| dir.path().join(name));
    let result = bench(&good, &[]);
    let whole = fs::read_to_string(&good).expect("read");
    let mut later = result.clone();
    later["longhaul"]["schema"] = serde_json::json!(2);
    later["longhaul"]["program"] = serde_json::json!("longhaul 9.9.9");
    let mut other = result;
    other["longhaul"]["cells"] = Value::Array(Vec::new());
    let cases = [
        (later.to_string(), 2, "schema 2, and this program reads schema 1: use longhaul 9.9.9"),
        (whole[..whole.len() / 2].to_owned(), 2, "is cut off in line"),
        ("hello".to_owned(), 2, "is not JSON (line 1"),
        ("{}".to_owned(), 2, "has no results"),
        (other.to_string(), 1, "have no number of the same name"),
    ];
    for (content, code, needle) in cases {
        fs::write(&bad, content).expect("written");
        let ran = longhaul(&["bench", "--compare", text(&good), text(&bad)]);
        assert!(ran.code == Some(code) && ran.stderr.contains(needle), "{needle}: {ran:?}");
        assert!(ran.stderr.contains("bad.json") && ran.stderr.lines().count() == 1, "{ran:?}");
    }
    let ran = longhaul(&["bench", "--compare", text(&good), text(&missing)]);
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot read"), "{ran:?}");
    let ran = longhaul(&["bench", "--compare", text(&good)]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let ran = longhaul(&["bench", "mem:1MiB", "--output", "/nonexistent/a.json"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot write /nonexistent/a.json"), "{ran:?}");
    assert!(ran.stdout.contains("IOPS"), "the measurement is shown: {ran:?}");
}

#[test]
fn a_page_is_made_of_what_can_be_read() {
    let dir = tempfile::tempdir().expect("directory");
    let [good, bad, page] = ["good.json", "bad.json", "page.html"].map(|name| dir.path().join(name));
    bench(&good, &[]);
    fs::write(&bad, "{").expect("written");
    let ran = longhaul(&["report", text(&good), "--output", text(&page)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let html = fs::read_to_string(&page).expect("a page");
    assert!(html.starts_with("<!doctype html>") && html.contains("do not count") && html.contains("<svg"));
    let files = dir.path().join("page_files");
    assert!(files.join("results.csv").exists() && files.join("figure-1.svg").exists());
    // Pictures of the figures take a browser: without one the rest is there, and said.
    assert!(!files.join("figure-1.png").exists());
    let args = ["report", text(&good), "--output", text(&page), "--png"];
    let ran = finish(command(&args).env("PATH", "/nonexistent").spawn().expect("started"));
    assert!(ran.code == Some(3) && ran.stderr.contains("--png needs Chromium or Chrome"), "{ran:?}");
    let ran = longhaul(&args);
    if ran.code == Some(3) && ran.stderr.contains("--png needs Chromium or Chrome") {
        longhaul_skip::skip_part!("Chromium is not installed");
    } else {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for entry in fs::read_dir(&files).expect("read").flatten().map(|entry| entry.path()) {
            if entry.extension().is_some_and(|end| end == "svg") {
                let png = fs::read(entry.with_extension("png")).expect("a picture");
                assert!(png.starts_with(b"\x89PNG") && png.len() > 5_000, "{}", png.len());
            }
        }
    }
    let left = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().matches('.').count() > 1;
    assert_eq!(fs::read_dir(&files).expect("read").flatten().filter(left).count(), 0, "something is left");
    let ran = longhaul(&["report", text(&good), text(&bad), "--output", text(&page), "--json"]);
    assert!(ran.code == Some(3) && ran.stderr.contains("bad.json is cut off"), "{ran:?}");
    assert_eq!(ran.events().pop().expect("a summary")["unreadable"], 1);
    let ran = longhaul(&["report", text(&bad), "--output", text(&page)]);
    assert!(ran.code == Some(2) && ran.stderr.contains("no page was written"), "{ran:?}");
}

/// The files of a machine's settings, below a directory.
fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("directory");
    for (file, value) in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, format!("{value}\n")).expect("written");
    }
    dir
}

#[test]
fn settings_are_changed_when_asked_and_put_back() {
    const RMEM: &str = "proc/sys/net/ipv4/tcp_rmem";
    const PROBING: &str = "proc/sys/net/ipv4/tcp_mtu_probing";
    const GOVERNOR: &str = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    const SACK: &str = "proc/sys/net/ipv4/tcp_sack";
    let files = [(RMEM, "4096\t131072\t6291456"), (PROBING, "0"), (GOVERNOR, "powersave"), (SACK, "1")];
    let dir = machine(&files);
    let root = text(dir.path());
    let is = |file: &str| fs::read_to_string(dir.path().join(file)).expect("read").trim().to_owned();
    let tune = |verb: &str| longhaul(&["tune", verb, "--root", root]);

    for verb in ["show", "diff"] {
        let ran = tune(verb);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("4096 131072 250609664") && ran.stdout.contains("powersave"), "{ran:?}");
        assert_eq!(ran.stdout.contains("tcp_sack"), verb == "show", "{ran:?}");
    }
    assert_eq!(is(PROBING), "0", "nothing is changed unasked");
    let ran = tune("restore");
    assert!(ran.code == Some(0) && ran.stderr.contains("nothing to restore"), "{ran:?}");

    let ran = tune("apply");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!([is(RMEM), is(PROBING), is(GOVERNOR)], ["4096 131072 250609664", "1", "performance"]);
    for verb in ["apply", "diff"] {
        let ran = tune(verb);
        assert!(ran.code == Some(0) && ran.stderr.contains("as advised"), "{ran:?}");
        let asked = longhaul(&["tune", verb, "--root", root, "--exit-code"]);
        assert!(asked.code == Some(8) && asked.stderr.contains("as advised"), "{asked:?}");
    }
    // A second change of a setting: the first value is the one that is restored.
    let ran = longhaul(&["tune", "apply", "--root", root, "--rate", "100Gbit"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(is(RMEM), "4096 131072 2147479552");
    let ran = tune("restore");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!([is(RMEM), is(PROBING), is(GOVERNOR)], ["4096 131072 6291456", "0", "powersave"]);
    assert_eq!(longhaul(&["tune", "restore", "--root", root, "--exit-code"]).code, Some(8));
}

#[test]
fn settings_that_cannot_be_kept_are_not_changed() {
    const PROBING: &str = "proc/sys/net/ipv4/tcp_mtu_probing";
    let empty = tempfile::tempdir().expect("directory");
    let ran = longhaul(&["tune", "show", "--root", text(empty.path())]);
    assert!(ran.code == Some(1) && ran.stderr.contains("no setting can be read"), "{ran:?}");
    // A file in the place of the directory for saved settings.
    let dir = machine(&[(PROBING, "0"), ("var/lib", "in the way")]);
    let is = || fs::read_to_string(dir.path().join(PROBING)).expect("read").trim().to_owned();
    let ran = longhaul(&["tune", "apply", "--root", text(dir.path())]);
    assert!(ran.code == Some(1) && ran.stderr.contains("tune.json"), "{ran:?}");
    assert_eq!(is(), "0");
    // The saved settings are damaged, or name an unknown setting.
    for bad in
        ["{", "{}", r#"{"version":1,"settings":{"x":{"file":"proc/sys/../../etc/passwd","value":"1"}}}"#]
    {
        let dir = machine(&[(PROBING, "0"), ("var/lib/longhaul/tune.json", bad)]);
        for verb in ["apply", "restore"] {
            let ran = longhaul(&["tune", verb, "--root", text(dir.path())]);
            assert!(
                ran.code == Some(1) && ran.stderr.contains("it records the earlier settings"),
                "{bad}: {ran:?}"
            );
            assert_eq!(fs::read_to_string(dir.path().join(PROBING)).expect("read"), "0\n");
        }
    }
}

#[test]
fn a_copy_is_taken_apart_and_what_was_made_is_removed() {
    let dir = tempfile::tempdir().expect("directory");
    let [source, destination] = ["source", "destination"].map(|name| dir.path().join(name));
    for dir in [&source, &destination] {
        fs::create_dir(dir).expect("made");
    }
    let (from, to) = (text(&source).to_owned(), text(&destination).to_owned());
    let small = ["--bytes", "1MiB", "--files", "64", "--runs", "1", "--json"];
    let ran = longhaul(&[&["diagnose", &from, &to][..], &small].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let summary = ran.events().pop().expect("a summary");
    let copies: Vec<&str> =
        summary["fits"].as_array().expect("fits").iter().filter_map(|fit| fit["copy"].as_str()).collect();
    assert_eq!(copies, ["read", "write", "whole"], "there is no network within a machine");
    assert!(summary["findings"][0]["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{summary}");
    for dir in [&source, &destination] {
        assert_eq!(fs::read_dir(dir).expect("read").count(), 0, "something is left in {}", dir.display());
    }
    let (_agent, uri) = agent(Path::new(&to), &[]);
    let kept = dir.path().join("copy.json");
    let output = ["--try", "--output", text(&kept)];
    let ran = longhaul(&[&["diagnose", &from, &uri], &output[..], &small].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // The result has the model, and the times of each copy.
    let line = &cells(&kept, "whole: a file")[0];
    let samples = [&line["samples"], &line["left_out"]].map(|all| all.as_array().map_or(0, Vec::len));
    assert!(samples.iter().sum::<usize>() == 1 && line["unit"] == "s", "{line}");
    assert_eq!(cells(&kept, ": the bytes").len(), 4);
    let copies = runs(&kept, &cells(&kept, "whole, 64 files")[0]);
    assert!(copies.len() == 1 && copies[0]["tcp"][0]["cwnd"].as_u64() > Some(0), "{copies:?}");
    let conditions = &record(&kept)["conditions"];
    assert!(conditions["whole, all copies"].as_str().is_some_and(|line| line.contains("95 % between")));
    assert!(conditions["stages of a file"].as_str().is_some_and(|split| split.contains("longest ≤ whole")));
    let summary = ran.events().pop().expect("a summary");
    assert_eq!(summary["fits"].as_array().map(Vec::len), Some(4), "{summary}");
    let shares = summary["split"]["shares"].as_object().expect("shares");
    let sum: f64 = shares.values().filter_map(Value::as_f64).sum();
    // Of so little, on a busy machine, no stage need have a cost that shows.
    assert!(shares.len() == 3 && (sum.abs() < 1e-6 || (sum - 1.0).abs() < 1e-6), "{summary}");
    assert!(summary["tried"].is_object(), "{summary}");
    assert_eq!(fs::read_dir(&source).expect("read").count(), 0, "something is left at the source");
    let ran = longhaul(&["diagnose", &format!("{from}/nothing"), &to]);
    assert!(ran.code == Some(2) && ran.stderr.contains("run it where the source is"), "{ran:?}");
}

/// A study of a moment on memory, and the numbers that it measured.
fn study(path: &Path, more: &[&str]) -> (common::Ran, usize) {
    let devices = ["--target", "mem:16MiB", "--target", "mem:16MiB"];
    let args = ["study", "striping", "--runs", "1", "--runtime", "200ms", "--json", "--output", text(path)];
    let ran = longhaul(&[&args[..], &devices, more].concat());
    let measured = ran.stdout.matches(r#""event":"progress""#).count();
    (ran, measured)
}

#[test]
fn a_study_goes_on_where_it_was() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("study.json");
    let (ran, measured) = study(&path, &[]);
    // One and two devices, three sizes of blocks; throughput and processor time of each.
    assert!(ran.code == Some(0) && measured == 6, "{ran:?}");
    let summary = ran.events().pop().expect("a summary");
    assert_eq!(summary["numbers"], 12);
    assert_eq!(summary["wanted"], 12);
    // All is there: nothing is measured again.
    let (ran, measured) = study(&path, &[]);
    assert!(ran.code == Some(0) && measured == 0, "{ran:?}");
    // Missing and failed measurements are made again.
    let mut result: Value = serde_json::from_str(&fs::read_to_string(&path).expect("read")).expect("JSON");
    let cells = result["longhaul"]["cells"].as_array_mut().expect("cells");
    let kept = cells[2].clone();
    cells.truncate(4);
    cells[0]["validity"] =
        serde_json::json!({ "valid": false, "reasons": [{ "code": "failed", "detail": "x" }] });
    fs::write(&path, result.to_string()).expect("written");
    let (ran, measured) = study(&path, &[]);
    assert!(ran.code == Some(0) && measured == 5, "{ran:?}");
    let result: Value = serde_json::from_str(&fs::read_to_string(&path).expect("read")).expect("JSON");
    let cells = result["longhaul"]["cells"].as_array().expect("cells");
    assert!(cells.len() == 12 && cells[2]["name"] == kept["name"], "the order is the plan's: {cells:?}");
    // Each measurement has its run, with its validity and its times.
    for cell in cells.iter().step_by(2) {
        let runs = runs(&path, cell);
        assert!(runs.len() == 1 && runs[0]["seed"].is_u64() && runs[0]["started_ms"].is_u64(), "{runs:?}");
        assert!(runs[0]["cpu"]["user_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "{runs:?}");
    }
    // Other settings are another study.
    let (ran, _) = study(&path, &["--scale", "0.5", "--target", "mem:16MiB"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("with other settings"), "{ran:?}");
    let (ran, _) = study(&path, &["--quick"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("with other settings"), "{ran:?}");
    // So is another machine, kernel, setting or program.
    assert_eq!(result["fio version"], concat!("longhaul-", env!("CARGO_PKG_VERSION")));
    assert!(result["timestamp"].as_u64().is_some_and(|seconds| seconds > 0), "when it was made");
    for part in ["/hosts/0/name", "/hosts/0/kernel", "/hosts/0/congestion", "/program"] {
        let mut other = result.clone();
        *other["longhaul"].pointer_mut(part).expect(part) = serde_json::json!("another one");
        fs::write(&path, other.to_string()).expect("written");
        let (ran, _) = study(&path, &[]);
        assert!(ran.code == Some(2) && ran.stderr.contains("was begun with "), "{part}: {ran:?}");
        assert!(
            ran.stderr.contains("another one (now ") && ran.stderr.contains("--fresh"),
            "{part}: {ran:?}"
        );
    }
    fs::write(&path, &result.to_string()[..99]).expect("written");
    let (ran, _) = study(&path, &[]);
    assert!(ran.code == Some(2) && ran.stderr.contains("is cut off"), "{ran:?}");
    let (ran, measured) = study(&path, &["--fresh"]);
    assert!(ran.code == Some(0) && measured == 6, "{ran:?}");
    let page = dir.path().join("study.html");
    assert_eq!(longhaul(&["report", text(&path), "--output", text(&page)]).code, Some(0));
    assert!(fs::read_to_string(&page).expect("a page").contains("Reads striped over servers: these devices"));
}

/// The part of a result that is this program's own.
fn record(path: &Path) -> Value {
    let mut result: Value = serde_json::from_str(&fs::read_to_string(path).expect("read")).expect("JSON");
    result["longhaul"].take()
}

/// The cells of the result in `path` with `part` in their name.
fn cells(path: &Path, part: &str) -> Vec<Value> {
    let cells = record(path)["cells"].as_array().expect("cells").clone();
    cells.into_iter().filter(|cell| cell["name"].as_str().is_some_and(|name| name.contains(part))).collect()
}

/// The runs that a number of a study is of.
fn runs(path: &Path, cell: &Value) -> Vec<Value> {
    let runs = record(path)["runs"].as_array().expect("runs").clone();
    runs.into_iter().filter(|run| run["of"] == cell["name"]).collect()
}

/// Why a cell does not count.
fn why(cell: &Value) -> &str {
    cell["validity"]["reasons"][0]["detail"].as_str().unwrap_or_default()
}

#[test]
fn a_study_of_copies_ends_in_what_a_file_costs() {
    let dir = tempfile::tempdir().expect("directory");
    let [there, path, page] = ["there", "study.json", "study.html"].map(|name| dir.path().join(name));
    fs::create_dir(&there).expect("made");
    let (_agent, uri) = agent(&there, &[]);
    let small = ["--quick", "--runs", "1", "--scale", "0.0001"];
    let files = ["--output", text(&path), "--report", text(&page)];
    let ran = longhaul(&[&["study", "transfer", "--target", &uri][..], &small, &files].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // Times of a moment are noise, but each is there.
    for (part, count) in [(" files", 5 * 4), (": a file", 5), ("at once: time", 4)] {
        let is_planted = |cell: &Value| cell["name"].as_str().is_some_and(|name| name.starts_with("planted"));
        let cells: Vec<Value> = cells(&path, part).into_iter().filter(|cell| !is_planted(cell)).collect();
        assert_eq!(cells.len(), count, "{part}");
        for cell in cells {
            let samples = [&cell["samples"], &cell["left_out"]].map(|all| all.as_array().map_or(0, Vec::len));
            // On a busy machine TCP may send a few segments of few again.
            let void = part == ": a file" && why(&cell).contains("a line takes");
            assert!(samples.iter().sum::<usize>() == 1 || void, "{cell}");
        }
    }
    for cell in cells(&path, "at once: time") {
        let runs = runs(&path, &cell);
        let rtt = runs[0]["tcp"][0]["rtt_us"].as_f64();
        assert!(runs.len() == 1 && rtt.is_some_and(|rtt| rtt > 0.0), "{runs:?}");
    }
    let whole = &cells(&path, "whole: a file")[0];
    assert_eq!(whole["published"][0]["value"], 0.0665, "{whole}");
    // None of these copies was long enough for a rate, over whatever path.
    let sets: Vec<Value> = cells(&path, "data set")
        .into_iter()
        .filter(|cell| !cell["name"].as_str().unwrap_or_default().contains(':'))
        .collect();
    assert_eq!(sets.len(), 4);
    // Of some there is no file that is so small.
    let made = sets.iter().filter(|cell| !why(cell).contains("the scale leaves no file"));
    let whole = cells(&path, "whole: the bytes");
    for cell in made.chain(&cells(&path, "1 at once: time")).chain(&whole[..1]) {
        // On a busy machine a copy may take long enough, and not count for another reason.
        let long = cell["samples"][0].is_number();
        let code = cell["validity"]["reasons"][0]["code"].as_str();
        let busy = matches!(code, Some("retransmitting" | "clock-jumped" | "stolen"));
        assert!(long || busy || code == Some("too-short") || why(cell).contains("line"), "{cell}");
    }
    assert!(fs::read_to_string(&page).expect("a page").contains("What a file costs (t0)"));
    let left: Vec<_> = fs::read_dir(&there).expect("read").flatten().map(|entry| entry.path()).collect();
    // An empty directory, as is said.
    assert!(left.len() == 1 && fs::read_dir(&left[0]).expect("read").count() == 0, "{left:?}");
    let ran = longhaul(&["study", "transfer", "--target", "mem:1MiB"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("takes a directory of an agent"), "{ran:?}");
}

#[test]
fn a_study_of_copies_that_is_interrupted_leaves_nothing_at_the_destination() {
    let dir = tempfile::tempdir().expect("directory");
    let [there, path] = ["there", "study.json"].map(|name| dir.path().join(name));
    fs::create_dir(&there).expect("made");
    let (_agent, uri) = agent(&there, &[]);
    let args = ["study", "transfer", "--quick", "--runs", "1", "--scale", "0.02", "--json", "--target", &uri];
    let mut study = command(&[&args[..], &["--output", text(&path)]].concat());
    // A group of its own, as a terminal makes one: Ctrl-C ends its copy, too.
    study.process_group(0).stderr(Stdio::null()).env("TMPDIR", dir.path());
    let mut child = study.spawn().expect("started");
    let events = follow(child.stdout.take().expect("a pipe"));
    let mut study = Running(child);
    loop {
        let event = events.recv_timeout(common::PATIENCE).expect("an event");
        if event["name"] == "write, 1000 files" {
            break;
        }
    }
    let below = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let copied = || below(&there).iter().flat_map(|own| below(own)).flat_map(|copy| below(&copy)).count();
    common::until("files arrive", || copied() > 10);
    let group = format!("-{}", study.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().expect("kill").success());
    assert_eq!(study.wait().expect("ended").code(), Some(3), "partly");
    // `sync --delete` protects what a copy can be taken up from.
    let mut left: Vec<_> =
        below(&there).iter().flat_map(|own| below(own)).flat_map(|copy| below(&copy)).collect();
    left.retain(|path| {
        !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".longhaul-"))
    });
    assert!(left.is_empty(), "something is left: {left:?}");
}

#[test]
fn a_study_of_drives_says_what_is_not_here() {
    let dir = tempfile::tempdir().expect("directory");
    let [drive, path] = ["drive", "study.json"].map(|name| dir.path().join(name));
    let target = format!("file:{},size=64MiB", text(&drive));
    let study = |more: &[&str]| {
        let args = ["study", "fabrics", "--quick", "--runs", "1", "--runtime", "500ms", "--target", &target];
        longhaul(&[&args[..], &["--output", text(&path)], more].concat())
    };
    let ran = study(&[]);
    assert!(ran.code == Some(2) && ran.stderr.contains("say --overwrite"), "{ran:?}");
    assert!(!drive.exists() && !path.exists(), "nothing was begun");
    let ran = study(&["--overwrite"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let counts = |part: &str| {
        let cells = cells(&path, part);
        let measured = |cell: &&Value| !cell["left_out"].as_array().expect("a list").is_empty();
        (cells.len(), cells.iter().filter(measured).count())
    };
    assert_eq!(counts(", local, 1 drives"), (4, 4), "too short, but measured");
    assert_eq!(counts(", local, 6 drives"), (4, 0));
    for (part, reason) in [
        ("InfiniBand", "InfiniBand"),
        ("RoCE", "RoCE"),
        ("TCP, 1 drives", "1 drives of another machine, and --target names 0"),
        ("clients", "other clients"),
        ("network", "no drive of another machine"),
    ] {
        let cells = cells(&path, part);
        assert!(!cells.is_empty() && cells.iter().all(|cell| why(cell).contains(reason)), "{cells:?}");
        assert_eq!(cells[0]["validity"]["reasons"][0]["code"], "not-available");
    }
    let ext4 = &cells(&path, "local, ext4, 1 drives")[0];
    if why(ext4).contains("takes root") || why(ext4).contains("this machine has no") {
        longhaul_skip::skip_part!("file systems: {}", why(ext4));
        return;
    }
    assert_eq!(counts("local, ext4, 1 drives"), (4, 4), "{ext4}");
    assert!(!fs::read_to_string("/proc/mounts").expect("read").contains("longhaul-study-fabrics"));
}

#[test]
fn a_study_that_is_interrupted_leaves_nothing_mounted() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("study.json");
    let target = format!("file:{},size=512MiB", text(&dir.path().join("disk")));
    let temporary = dir.path().join("temporary");
    fs::create_dir(&temporary).expect("made");
    let args = ["study", "wan-filesystems", "--quick", "--runs", "1", "--runtime", "50ms", "--overwrite"];
    let mut study = command(&[&args[..], &["--json", "--target", &target, "--output", text(&path)]].concat());
    let mut child = study.env("TMPDIR", &temporary).stderr(Stdio::null()).spawn().expect("started");
    let events = follow(child.stdout.take().expect("a pipe"));
    let mut study = Running(child);
    // Until something is measured on the first file system.
    let mut measured = 0;
    while let Ok(event) = events.recv_timeout(common::PATIENCE) {
        let name = event["name"].as_str().unwrap_or_default();
        measured += usize::from(event["event"] == "progress");
        if name.contains("D writes, ext4") || event["event"] == "summary" {
            break;
        }
    }
    if measured == 0 {
        longhaul_skip::skip!("{}", why(&cells(&path, "raw")[0]));
        return;
    }
    if !cells(&path, "ext4").iter().any(|cell| cell["validity"]["reasons"][0]["code"] == "not-available") {
        common::signal(&study, "INT");
        assert_eq!(study.wait().expect("ended").code(), Some(3), "partly");
        assert!(cells(&path, "ext4").len() < 4 * 3, "it was interrupted");
    }
    assert_eq!(study.wait().expect("ended").code().map(|code| code == 0 || code == 3), Some(true));
    let raw = cells(&path, "raw: Throughput");
    assert_eq!(raw.len(), 6, "three workloads, written and read");
    let mounts = fs::read_to_string("/proc/mounts").expect("read");
    assert!(!mounts.contains(text(&temporary)), "{mounts}");
    assert_eq!(fs::read_dir(&temporary).expect("read").count(), 0, "something is left");
}
