//! Output on a terminal, and to a file.

mod common;

use common::{command, longhaul, text};
use longhaul_skip::skip;
use std::process::{Command, Stdio};

/// Runs the program on a terminal of 80 columns; all that it wrote there. Nothing, if
/// there is no `script`.
fn on_terminal(args: &[&str], env: &[(&str, &str)]) -> Option<String> {
    let plain = command(args);
    let mut words = vec!["stty cols 80 rows 24;".to_owned()];
    words.extend(std::iter::once(plain.get_program()).chain(plain.get_args()).map(|word| {
        let word = word.to_str().expect("UTF-8");
        format!("'{word}'")
    }));
    let mut script = Command::new("script");
    script.args(["-qec", &words.join(" "), "/dev/null"]).stdin(Stdio::null());
    script.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    script.env("TERM", "xterm").env_remove("NO_COLOR").envs(env.iter().copied());
    let ran = script.output().ok()?;
    assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stdout));
    Some(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// The text between one start of a line and the next, without colours and other escape sequences.
fn lines(written: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut chars = written.chars();
    while let Some(c) = chars.next() {
        match c {
            // A sequence ends with a letter (ECMA-48, control sequences).
            '\x1b' => drop(chars.by_ref().skip(1).find(char::is_ascii_alphabetic)),
            '\r' => plain.push('\n'),
            c => plain.push(c),
        }
    }
    plain.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn a_load_shows_a_bar_and_then_its_result() {
    let load = ["bench", "mem:64MiB", "--rw", "randrw", "--bs", "4k", "--runtime", "3s"];
    let log = [("LONGHAUL_LOG", "debug")];
    let Some(written) = on_terminal(&load, &log) else { return skip!("script is not installed") };
    let seen = lines(&written);
    let live: Vec<_> = seen.iter().filter(|line| line.contains("% run")).collect();
    assert!(live.iter().any(|line| line.contains('█')), "no bar in {seen:?}");
    assert!(live.iter().all(|line| line.chars().count() <= 80), "{live:?}");
    // Later output begins a line of its own.
    for begin in ["read: ", "write: ", "cpu: "] {
        assert!(seen.iter().any(|line| line.starts_with(begin)), "no line with '{begin}' in {seen:?}");
    }
}

#[test]
fn a_copy_shows_a_bar_where_it_knows_how_much_there_is() {
    let dir = tempfile::tempdir().expect("directory");
    let to = dir.path().join("x");
    let copy = ["cp", "zero:64MiB", text(&to), "--bwlimit", "200Mbit"];
    let Some(written) = on_terminal(&copy, &[]) else { return skip!("script is not installed") };
    let seen = lines(&written);
    let live: Vec<_> = seen.iter().filter(|line| line.contains("limit: --bwlimit")).collect();
    assert!(live.iter().any(|line| line.contains('█') && line.contains(" % ")), "no bar in {seen:?}");
    assert!(live.iter().all(|line| line.chars().count() <= 80), "{live:?}");
    assert!(seen.iter().any(|line| line.starts_with("1 files, 64 MiB")), "{seen:?}");
}

#[test]
fn a_file_gets_no_colours_and_no_times() {
    // A mistake in a load that is logged: nothing listens there.
    let run = |more: &[&str]| longhaul(&[&["bench", "mem:1MiB", "-vvv"], more].concat());
    let ran = run(&[]);
    assert!(ran.code == Some(0) && !ran.stderr.is_empty(), "{ran:?}");
    assert!(!ran.stderr.contains('\x1b') && !ran.stdout.contains('\x1b'), "{ran:?}");
    for line in ran.stderr.lines() {
        assert!(!line.starts_with("20") && !line.contains("Z  "), "a time in '{line}'");
    }
}

/// Also if the output is a pipe, as into a pager.
#[test]
fn help_fits_a_terminal() {
    let widest = |args: &[&str]| {
        let mut command = command(args);
        let ran = command.env_remove("COLUMNS").output().expect("ran");
        assert!(ran.status.success(), "{args:?}");
        let help = String::from_utf8(ran.stdout).expect("UTF-8");
        let wide: Vec<_> = help.lines().filter(|line| line.chars().count() > 80).map(str::to_owned).collect();
        assert!(wide.is_empty(), "{args:?}: {wide:#?}");
        help
    };
    let mut open = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(verb) = open.pop() {
        for flag in ["--help", "-h"] {
            let args: Vec<&str> = verb.iter().map(String::as_str).chain([flag]).collect();
            let help = widest(&args);
            seen += 1;
            let below = help.lines().skip_while(|line| *line != "Commands:").skip(1);
            let names = below.take_while(|line| !line.is_empty()).filter_map(|line| {
                let name = line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty())?;
                (name != "help" && flag == "-h").then(|| name.to_owned())
            });
            open.extend(names.map(|name| [&verb[..], &[name]].concat()));
        }
    }
    assert!(seen > 60, "{seen} pages of help");
}
