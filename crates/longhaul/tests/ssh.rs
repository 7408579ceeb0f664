//! Copies over an ssh that fails: its own errors, and those of the far machine.

mod common;

use common::ssh::sshd;
use common::{Ran, longhaul, text};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Copies a small file to `host` with this ssh program.
fn copy(dir: &Path, ssh: &str, host: &str, more: &[&str]) -> Ran {
    let file = dir.join("file");
    fs::write(&file, "content").expect("written");
    let to = format!("{host}:{}", text(&dir.join("copy")));
    longhaul(&[&["cp", "--json", "--ssh", ssh, text(&file), &to], more].concat())
}

/// The message of a run with this exit status, asserted to be one line.
fn message(ran: &Ran, code: i32) -> String {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    let events = ran.events();
    let end = events.last().expect("an event");
    assert_eq!((&end["event"], &end["exit"]), (&"error".into(), &code.into()), "{ran:?}");
    let message = end["message"].as_str().expect("words").to_owned();
    assert!(ran.stderr.ends_with(&format!("longhaul: {message}\n")), "{ran:?}");
    message
}

/// An ssh script that writes `said` to standard error and exits with a status.
fn failing(dir: &Path, said: &str, status: i32) -> String {
    let ssh = dir.join("ssh");
    fs::write(dir.join("said"), format!("{said}\n")).expect("written");
    let script =
        format!("#!/bin/sh\n[ \"$1\" = -G ] && exit 1\ncat {} >&2\nexit {status}\n", text(&dir.join("said")));
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("set");
    text(&ssh).to_owned()
}

#[test]
fn what_ssh_says_is_the_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = "Warning: remote host identification\nssh: connect to host far port 22: ";
    for (said, status, code, words) in [
        (
            "ssh: Could not resolve hostname far: Name or service not known",
            255,
            5,
            "ssh cannot reach far: Could not resolve hostname far: Name or service not known; check the name",
        ),
        (
            &format!("{said}Connection refused\r"),
            255,
            5,
            "ssh cannot reach far: connect to host far port 22: Connection refused; does sshd run",
        ),
        (
            &format!("{said}Connection timed out"),
            255,
            7,
            "ssh cannot reach far: connect to host far port 22: Connection timed out; does a firewall",
        ),
        (
            "me@far: Permission denied (publickey).",
            255,
            6,
            "ssh cannot log in at far: me@far: Permission denied",
        ),
        (
            "Host key verification failed.",
            255,
            6,
            "ssh cannot trust far: Host key verification failed.; log in",
        ),
        // A ProxyCommand has the last word.
        (
            "Host key verification failed.\nmm_log_handler: write: Broken pipe",
            255,
            6,
            "ssh cannot trust far: Host key verification failed.; log in",
        ),
        ("kex_exchange: lost\u{1b}[2J", 255, 5, "ssh cannot reach far: kex_exchange: lost\\x1b[2J; '"),
        ("", 255, 5, "ssh cannot reach far: it ended with exit status 255; '"),
        (
            "sh: 1: longhaul: not found",
            127,
            5,
            "cannot start 'longhaul agent' on far: its shell finds no such program (sh: 1: longhaul: not found)",
        ),
        (
            "longhaul: Command not found.",
            1,
            5,
            "its shell finds no such program (longhaul: Command not found.)",
        ),
        (
            "sh: 1: longhaul: Exec format error",
            126,
            5,
            "cannot be executed there (sh: 1: longhaul: Exec format",
        ),
        (
            "error: unexpected argument",
            2,
            5,
            "it ended with exit status 2 (error: unexpected argument); 'longhaul",
        ),
        ("", 0, 5, "cannot start 'longhaul agent' on far: it ended with exit status 0; 'longhaul --version'"),
    ] {
        let ssh = failing(dir.path(), said, status);
        let ran = copy(dir.path(), &ssh, "far", &[]);
        let message = message(&ran, code);
        assert!(message.contains(words), "{message}\n{words}");
        assert!(said.is_empty() || ran.stderr.contains(said.trim_end()), "ssh's own lines come too: {ran:?}");
    }
    // An ssh that is not there, and one that is killed.
    let absent = copy(dir.path(), "/no/such/ssh", "far", &[]);
    assert!(message(&absent, 5).contains("/no/such/ssh cannot be run"), "{absent:?}");
    failing(dir.path(), "", 0);
    let script = dir.path().join("ssh");
    fs::write(&script, "#!/bin/sh\n[ \"$1\" = -G ] && exit 1\nkill -KILL $$\n").expect("written");
    let killed = copy(dir.path(), text(&script), "far", &[]);
    assert!(message(&killed, 5).contains("ssh was ended (signal: 9"), "{killed:?}");
}

#[test]
fn a_real_ssh_that_fails_is_not_taken_for_a_missing_program() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let ssh = match sshd(dir) {
        Ok(ssh) => ssh,
        Err(why) => return longhaul_skip::skip!("ssh does not work here: {}", why.trim_end()),
    };
    let path = |name: &str| text(&dir.join(name)).to_owned();
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path("other")]).status();
    assert!(made.expect("ssh-keygen").success());
    // Nothing listens behind this port.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr());
    let closed = closed.expect("a port").port();
    let way = fs::read_to_string(dir.join("ssh_config")).expect("read");
    let way = way.lines().find(|line| line.starts_with("ProxyCommand")).expect("a way").to_owned();
    let common = format!(
        "BatchMode yes\nIdentitiesOnly yes\nLogLevel ERROR\nUserKnownHostsFile {}\nStrictHostKeyChecking accept-new\n",
        path("known")
    );
    let config = format!(
        "Host closed\nHostName 127.0.0.1\nPort {closed}\n{common}\
         Host nowhere\nHostName nowhere.invalid\n{common}\
         Host stranger\nHostName 127.0.0.1\n{way}\nIdentityFile {}\n{common}\
         Host untrusted\nHostName 127.0.0.1\n{way}\nIdentityFile {}\nBatchMode yes\nStrictHostKeyChecking yes\n\
         UserKnownHostsFile /dev/null\n",
        path("other"),
        path("user")
    );
    let all = fs::read_to_string(dir.join("ssh_config")).expect("read") + &config;
    fs::write(dir.join("ssh_config"), all).expect("written");
    for (host, code, words) in [
        ("closed", 5, "Connection refused; does sshd run there"),
        ("nowhere", 5, "ssh cannot reach nowhere: Could not resolve hostname nowhere.invalid: "),
        ("stranger", 6, "ssh cannot log in at stranger: "),
        ("untrusted", 6, "ssh cannot trust untrusted: Host key verification failed."),
    ] {
        let ran = copy(dir, &ssh, host, &[]);
        let message = message(&ran, code);
        assert!(message.contains(words) && !message.contains("'longhaul agent'"), "{message}");
    }
    let absent = copy(dir, &ssh, "far", &["--remote-program", "/no/such/longhaul"]);
    let message = message(&absent, 5);
    assert!(
        message.contains("cannot start '/no/such/longhaul agent' on far: its shell finds no such"),
        "{message}"
    );
}

/// Where a program of this version was placed below a cache, one of which there is.
fn placed(cache: &Path) -> std::path::PathBuf {
    let versions: Vec<_> = fs::read_dir(cache.join("longhaul")).expect("made").flatten().collect();
    assert_eq!(versions.len(), 1, "{versions:?}");
    let name = versions[0].file_name().into_string().expect("UTF-8");
    let hash = name.strip_prefix(concat!(env!("CARGO_PKG_VERSION"), "-")).expect("this version");
    assert!(hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{name}");
    let inside: Vec<_> = fs::read_dir(versions[0].path()).expect("a directory").flatten().collect();
    assert_eq!(inside.len(), 1, "nothing is left beside it: {inside:?}");
    versions[0].path().join("longhaul")
}

/// The words of the notes of a run.
fn notes(ran: &Ran) -> Vec<String> {
    let notes = ran.events().into_iter().filter(|event| event["event"] == "note");
    notes.map(|note| note["message"].as_str().expect("words").to_owned()).collect()
}

#[test]
fn a_program_is_placed_when_it_is_asked_for_and_checked_each_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let (dir, home) = (dir.path(), dir.path().join("far"));
    fs::create_dir(&home).expect("made");
    // The other machine: its home, with programs of its own before those of this one.
    let (cache, bin) = (home.join(".cache"), home.join("bin"));
    fs::create_dir(&bin).expect("made");
    let ssh = common::ssh::fake_ssh(dir, "127.0.0.1", "127.0.0.1");
    let script = fs::read_to_string(&ssh).expect("read");
    let there = format!(
        "unset XDG_CACHE_HOME\nexport HOME={} PATH={}:$PATH\necho hello; printf 'no end: '\ncd ",
        text(&home),
        text(&bin)
    );
    fs::write(&ssh, script.replace("cd ", &there)).expect("written");
    let ssh = text(&ssh);

    let unasked = copy(dir, ssh, "far", &[]);
    assert!(message(&unasked, 5).contains("in your cache there: --remote-install"), "{unasked:?}");
    assert!(!cache.exists(), "never unasked");

    let ran = copy(dir, ssh, "far", &["--remote-install"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(fs::read(dir.join("copy")).expect("copied"), b"content");
    let program = placed(&cache);
    let own = fs::read(env!("CARGO_BIN_EXE_longhaul")).expect("read");
    assert!(fs::read(&program).expect("read") == own, "the same program");
    assert_eq!(fs::metadata(&program).expect("there").permissions().mode() & 0o7777, 0o700);
    let said = notes(&ran);
    assert!(
        said.iter().any(|note| note.contains("placed longhaul") && note.contains(text(&program))),
        "{said:?}"
    );

    // It is used again as it is; one that has been changed is not run, but replaced.
    let first = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&program).expect("there"));
    let again = copy(dir, ssh, "far", &["--remote-install", "--via", "ssh"]);
    assert_eq!((again.code, notes(&again).len()), (Some(0), 0), "{again:?}");
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&fs::metadata(&program).expect("there")), first);
    fs::write(&program, format!("#!/bin/sh\ntouch {}\n", text(&dir.join("was run")))).expect("changed");
    let replaced = copy(dir, ssh, "far", &["--remote-install"]);
    assert_eq!((replaced.code, notes(&replaced).len()), (Some(0), 1), "{replaced:?}");
    assert!(fs::read(placed(&cache)).expect("read") == own && !dir.join("was run").exists());

    // One that does not run there, or is of another version, does not get the name.
    fs::remove_dir_all(&cache).expect("removed");
    let other = dir.join("other");
    let mut image = own.clone();
    // Its entry point is not valid.
    image[24..32].fill(0xff);
    fs::write(&other, &image).expect("written");
    let from = ["--remote-install", "--remote-install-from", text(&other)];
    let broken = copy(dir, ssh, "far", &from);
    assert!(
        message(&broken, 5).contains("cannot place the program on far: it does not run there"),
        "{broken:?}"
    );
    let left = fs::read_dir(cache.join("longhaul")).expect("made").flatten();
    for version in left {
        assert_eq!(fs::read_dir(version.path()).expect("a directory").count(), 0, "{version:?}");
    }

    // A machine that no program here runs on, and a cache that cannot be written to.
    let says = |name: &str, words: &str| {
        fs::write(bin.join(name), format!("#!/bin/sh\n{words}\n")).expect("written");
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).expect("set");
    };
    says("getconf", "echo glibc 2.3");
    let old = copy(dir, ssh, "far", &["--remote-install"]);
    let why = message(&old, 5);
    assert!(why.contains("glibc 2.3;") && why.contains("cargo xtask dist"), "{why}");
    says("uname", "[ $1 = -s ] && echo Darwin || echo arm64");
    assert!(message(&copy(dir, ssh, "far", &["--remote-install"]), 5).contains("(Darwin arm64 glibc 2.3;"));
    for name in ["getconf", "uname"] {
        fs::remove_file(bin.join(name)).expect("removed");
    }
    fs::remove_dir_all(&cache).expect("removed");
    fs::write(&cache, "no directory").expect("written");
    let full = copy(dir, ssh, "far", &["--remote-install"]);
    assert!(message(&full, 5).contains("cannot place the program on far: cannot write to "), "{full:?}");

    // The copies of `diagnose` are run with the same options.
    let (from, to) = (dir.join("source"), format!("far:{}", text(dir)));
    fs::create_dir(&from).expect("made");
    let diagnose =
        |how: &[&str]| longhaul(&[&["diagnose", "--json", "--ssh", ssh, text(&from), &to], how].concat());
    let ran = diagnose(&["--remote-program", "no-such-program"]);
    assert!(ran.stderr.contains("no-such-program"), "{ran:?}");
    let ran = diagnose(&["--remote-install"]);
    assert!(ran.stderr.contains("cannot place the program on far: cannot write to "), "{ran:?}");

    let both = copy(dir, ssh, "far", &["--remote-install", "--remote-program", "x"]);
    assert_eq!(both.code, Some(2), "{both:?}");
}

#[test]
fn a_program_is_placed_through_a_real_ssh() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let ssh = match sshd(dir) {
        Ok(ssh) => ssh,
        Err(why) => return longhaul_skip::skip!("ssh does not work here: {}", why.trim_end()),
    };
    let cache = dir.join("cache");
    let config = fs::read_to_string(dir.join("sshd_config")).expect("read");
    let config = format!("{config}SetEnv XDG_CACHE_HOME={}\n", text(&cache));
    fs::write(dir.join("sshd_config"), config).expect("written");
    for round in 0..2 {
        let ran = copy(dir, &ssh, "far", &["--remote-install"]);
        assert_eq!((ran.code, notes(&ran).len()), (Some(0), 1 - round), "{ran:?}");
        assert_eq!(fs::read(dir.join("copy")).expect("copied"), b"content");
        placed(&cache);
    }
    // A third-party copy between machines without the program.
    let (from, to) =
        (format!("far:{}", text(&dir.join("copy"))), format!("far:{}", text(&dir.join("third"))));
    let ran = longhaul(&["cp", "--json", "--ssh", &ssh, "--remote-install", &from, &to]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(fs::read(dir.join("third")).expect("copied"), b"content");
}
