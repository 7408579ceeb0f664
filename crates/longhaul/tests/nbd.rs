//! `longhaul nbd` with other clients. Clients that are not installed are skipped with a message.

mod common;

use common::{Target, command, text};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A server on a socket in a directory of its own.
struct Server {
    process: Target,
    dir: TempDir,
}

impl Server {
    fn start(exports: &[&str], more: &[&str]) -> Server {
        let dir = tempfile::tempdir().expect("directory");
        let socket = dir.path().join("socket");
        let mut args = vec!["nbd", "--json", "--unix", text(&socket)];
        args.extend(exports.iter().flat_map(|export| ["--export", export]));
        args.extend(more);
        let mut command = command(&args);
        command.env("XDG_RUNTIME_DIR", dir.path());
        Server { process: Target::spawn(command), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.path("socket").display())
    }

    fn connect(&self) -> UnixStream {
        let socket = UnixStream::connect(self.path("socket")).expect("connected");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        socket
    }

    fn stop(self) {
        let socket = self.path("socket");
        self.process.stop();
        assert!(!socket.exists());
    }
}

/// Runs a program; nothing, with a reason on standard error, if it is not
/// installed.
fn run(program: &str, args: &[&str]) -> Option<Result<String, String>> {
    let out = match Command::new(program).args(args).output() {
        Err(e) => {
            longhaul_skip::skip!("{program}: {e}");
            return None;
        }
        Ok(out) => out,
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) })
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i / 512 * 31 + i + seed) % 251) as u8).collect()
}

#[test]
fn nbdinfo_sees_what_the_device_is() {
    let server = Server::start(&["a=mem:64MiB", "b=mem:32MiB,ro"], &[]);
    let list = format!("nbd+unix:///?socket={}", server.path("socket").display());
    let Some(listed) = run("nbdinfo", &["--json", "--list", &list]) else { return };
    let listed: Value = serde_json::from_str(&listed.expect("listed")).expect("JSON");
    assert_eq!(listed["exports"].as_array().map(Vec::len), Some(2), "{listed}");
    let about = |export: &str| -> Value {
        let said = run("nbdinfo", &["--json", &server.uri(export)]).expect("installed").expect("answered");
        let all: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!((&all["protocol"], &all["structured"]), (&"newstyle-fixed".into(), &true.into()));
        all["exports"][0].clone()
    };
    let a = about("a");
    let expected = [
        ("export-size", Value::from(64 * MIB)),
        ("block_size_minimum", 4096.into()),
        ("block_size_maximum", (32 * MIB).into()),
        ("can_flush", true.into()),
        ("can_fua", true.into()),
        ("can_multi_conn", true.into()),
        ("can_trim", true.into()),
        ("can_zero", true.into()),
        ("can_df", true.into()),
        ("is_read_only", false.into()),
    ];
    for (name, value) in expected {
        assert_eq!(a[name], value, "{name} of {a}");
    }
    let b = about("b");
    assert_eq!((&b["is_read_only"], &b["can_zero"]), (&true.into(), &false.into()), "{b}");
    let missing = run("nbdinfo", &[&server.uri("c")]).expect("installed").expect_err("no such export");
    assert!(missing.contains("export: c"), "{missing}");
    server.stop();
}

#[test]
fn nbdcopy_moves_content_both_ways_and_qemu_compares_it() {
    let target = Target::start(&["d=mem:64MiB"], &[]);
    let server = Server::start(&[&format!("d={}", target.uri(0))], &[]);
    let (from, back) = (server.path("from"), server.path("back"));
    std::fs::write(&from, pattern(64 * MIB, 1)).expect("written");
    let Some(copied) = run("nbdcopy", &["--flush", text(&from), &server.uri("d")]) else { return };
    copied.expect("copied");
    run("nbdcopy", &[&server.uri("d"), text(&back)]).expect("installed").expect("copied");
    assert!(std::fs::read(&back).expect("read") == pattern(64 * MIB, 1));
    if let Some(compared) =
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&from), &server.uri("d")])
    {
        assert!(compared.expect("the same").contains("identical"));
    }
    server.stop();
    target.stop();
}

#[test]
fn qemu_io_writes_zeroes_discards_and_verifies() {
    let server = Server::start(&["d=mem:64MiB"], &[]);
    let steps = [
        "write -P 0x5a 1M 3M",
        "write -f -P 0xa5 5000 700",
        "read -P 0xa5 5000 700",
        "read -P 0 0 4096",
        "write -z 2M 1M",
        "write -z -u 3M 4096",
        "read -P 0 2M 1028k",
        "read -P 0x5a 1M 1M",
        "discard 8M 8M",
        "aio_write -P 1 16M 1M",
        "aio_write -P 2 20M 1M",
        "aio_flush",
        "flush",
        "read -P 1 16M 1M",
        "read -P 2 20M 1M",
    ];
    let uri = server.uri("d");
    let mut args = vec!["-f", "raw"];
    args.extend(steps.iter().flat_map(|step| ["-c", step]));
    args.push(&uri);
    let Some(done) = run("qemu-io", &args) else { return };
    let said = done.expect("done");
    assert!(!said.contains("Pattern verification failed") && !said.contains("error"), "{said}");
    server.stop();
}

#[test]
fn what_was_flushed_is_in_the_file_below() {
    let dir = tempfile::tempdir().expect("directory");
    let disk = dir.path().join("disk");
    let server = Server::start(&[&format!("d=file:{},size=16MiB", disk.display())], &[]);
    let uri = server.uri("d");
    let Some(done) = run("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 1M", "-c", "flush", &uri]) else {
        return;
    };
    done.expect("done");
    let content = std::fs::read(&disk).expect("read");
    assert!(content[MIB..2 * MIB].iter().all(|&b| b == 7));
    server.stop();
}

/// Greets, and chooses the only export.
fn enter(socket: &mut UnixStream) {
    let mut hello = [0; 18];
    socket.read_exact(&mut hello).expect("a greeting");
    assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
    socket.write_all(&3u32.to_be_bytes()).expect("sent");
    option(socket, 1, b"d");
    let mut export = [0; 10];
    socket.read_exact(&mut export).expect("an export");
    assert_eq!(export[..8], (MIB as u64).to_be_bytes());
}

fn option(socket: &mut UnixStream, number: u32, data: &[u8]) {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    socket.write_all(&out).expect("sent");
}

fn request(flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(77u64.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(len.to_be_bytes());
    out
}

/// The error of a simple reply.
fn error(socket: &mut UnixStream) -> u32 {
    let mut reply = [0; 16];
    socket.read_exact(&mut reply).expect("a reply");
    assert_eq!((&reply[..4], &reply[8..]), (&0x6744_6698u32.to_be_bytes()[..], &77u64.to_be_bytes()[..]));
    u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"))
}

fn is_hung_up(socket: &mut UnixStream) -> bool {
    match socket.read(&mut [0; 1]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn bad_requests_are_refused_one_by_one() {
    let server = Server::start(&["d=mem:1MiB"], &[]);
    let mut socket = server.connect();
    enter(&mut socket);
    const EINVAL: u32 = 22;
    for (bad, expected) in [
        (request(0, 0, MIB as u64, 1), EINVAL),
        (request(0, 0, u64::MAX, 2), EINVAL),
        (request(0, 0, 0, 33 << 20), 75),
        (request(0, 4, MIB as u64, 4096), 28),
        (request(0, 6, 0, 2 << 20), 28),
        (request(0, 99, 0, 0), EINVAL),
        (request(0x8000, 0, 0, 512), EINVAL),
        (request(0, 3, 4096, 0), EINVAL),
    ] {
        socket.write_all(&bad).expect("sent");
        assert_eq!(error(&mut socket), expected, "{bad:?}");
    }
    // The payload of a write that does not fit is still read.
    socket.write_all(&[request(0, 1, MIB as u64 - 1, 2), vec![1, 2]].concat()).expect("sent");
    assert_eq!(error(&mut socket), 28);
    socket.write_all(&[request(0, 1, 5, 2), vec![1, 2], request(0, 0, 4, 4)].concat()).expect("sent");
    assert_eq!(error(&mut socket), 0);
    assert_eq!(error(&mut socket), 0);
    let mut data = [0; 4];
    socket.read_exact(&mut data).expect("data");
    assert_eq!(data, [0, 1, 2, 0]);
    socket.write_all(&request(0, 2, 0, 0)).expect("sent");
    assert!(is_hung_up(&mut socket));
    server.stop();
}

#[test]
fn a_client_that_breaks_the_protocol_is_disconnected_and_others_are_served() {
    let server = Server::start(&["d=mem:1MiB"], &[]);
    let mut good = server.connect();
    enter(&mut good);
    let flags = |flags: u32| flags.to_be_bytes().to_vec();
    let opening = |data: &[u8]| [flags(3), data.to_vec()].concat();
    let huge = [&b"IHAVEOPT"[..], &7u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    let unknown = [&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &1u32.to_be_bytes(), b"x"].concat();
    for bad in
        [b"GET / HTTP/1.0\r\n\r\n".to_vec(), flags(4), opening(&[0; 16]), opening(&huge), opening(&unknown)]
    {
        let mut socket = server.connect();
        socket.read_exact(&mut [0; 18]).expect("a greeting");
        socket.write_all(&bad).expect("sent");
        assert!(is_hung_up(&mut socket), "{bad:?}");
    }
    for bad in [vec![0; 28], request(0, 1, 0, u32::MAX)] {
        let mut socket = server.connect();
        enter(&mut socket);
        socket.write_all(&bad).expect("sent");
        assert!(is_hung_up(&mut socket), "{bad:?}");
    }
    // A client that disconnects in the middle of a write.
    let mut socket = server.connect();
    enter(&mut socket);
    socket.write_all(&[request(0, 1, 0, 4096), vec![9; 100]].concat()).expect("sent");
    drop(socket);
    good.write_all(&request(0, 0, 0, 512)).expect("sent");
    assert_eq!(error(&mut good), 0);
    let mut data = [1; 512];
    good.read_exact(&mut data).expect("data");
    assert_eq!(data, [0; 512], "half a write is not done");
    drop(good);
    server.stop();
}

#[test]
fn options_that_make_no_sense_are_answered() {
    let server = Server::start(&["d=mem:1MiB"], &[]);
    let mut socket = server.connect();
    socket.read_exact(&mut [0; 18]).expect("a greeting");
    socket.write_all(&3u32.to_be_bytes()).expect("sent");
    let mut ask = |number: u32, data: &[u8]| -> u32 {
        option(&mut socket, number, data);
        let mut reply = [0; 20];
        socket.read_exact(&mut reply).expect("a reply");
        let len = u32::from_be_bytes(reply[16..].try_into().expect("four bytes"));
        let mut rest = vec![0; len as usize];
        socket.read_exact(&mut rest).expect("its data");
        u32::from_be_bytes(reply[12..16].try_into().expect("four bytes"))
    };
    const ERROR: u32 = 1 << 31;
    assert_eq!(ask(5, &[]), ERROR | 1, "no TLS");
    assert_eq!(ask(4711, b"what"), ERROR | 1);
    assert_eq!(ask(3, b"data"), ERROR | 3);
    assert_eq!(ask(7, &[0, 0, 0, 9, b'd']), ERROR | 3, "a name that is shorter than it says");
    assert_eq!(ask(7, &[0, 0, 0, 1, b'x', 0, 0]), ERROR | 6);
    assert_eq!(ask(2, &[]), 1);
    assert!(is_hung_up(&mut socket));
    server.stop();
}

#[test]
fn exports_and_addresses_that_cannot_be_are_named() {
    let wrong = |args: &[&str], code, words: &str| {
        let ran = common::longhaul(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
    };
    let unix = Path::new("/nonexistent/socket");
    wrong(&["nbd", "--export", "mem:1MiB", "--unix", text(unix)], 2, "NAME=DEVICE");
    wrong(&["nbd", "--export", "d=mem:1MiB", "--unix", text(unix)], 1, "/nonexistent/socket");
    wrong(
        &["nbd", "--export", "d=mem:1MiB", "--export", "d=mem:1MiB", "--unix", text(unix)],
        2,
        "two exports",
    );
}
