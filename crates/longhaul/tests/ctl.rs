//! `longhaul ctl`: targets of one host, seen and controlled by their sockets.

mod common;

use common::{PATIENCE, Ran, Target, command, finish, text, until};
use longhaul_block::Blocking;
use longhaul_initiator::{Options, RemoteDevice};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const WRITER: &str = "nqn.2014-08.org.example:writer";
const READER: &str = "nqn.2014-08.org.example:reader";

/// A directory with the configuration, the state and the sockets of targets.
struct Site(tempfile::TempDir);

impl Site {
    fn new(config: &str) -> Site {
        let site = Site(tempfile::tempdir().expect("a directory"));
        fs::create_dir(site.path("longhaul")).expect("made");
        site.configure(config);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn configure(&self, config: &str) {
        fs::write(self.path("longhaul/config.toml"), config).expect("written");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("XDG_CONFIG_HOME", self.0.path()).env("XDG_STATE_HOME", self.path("state"));
        command.env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    fn target(&self) -> Target {
        self.target_with(&[])
    }

    fn target_with(&self, more: &[&str]) -> Target {
        let args = ["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json", "--threads", "1"];
        let mut command = self.command(&[&args[..], more].concat());
        command.stderr(Stdio::null());
        Target::spawn(command)
    }

    fn ctl(&self, args: &[&str]) -> Ran {
        finish(self.command(&[&["ctl"], args].concat()).spawn().expect("started"))
    }

    /// The event of a command that succeeds.
    fn event(&self, args: &[&str]) -> Value {
        let ran = self.ctl(&[args, &["--json"]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        ran.events().pop().expect("an event")
    }

    fn fails(&self, args: &[&str], code: i32, why: &str) {
        let ran = self.ctl(args);
        assert!(ran.code == Some(code) && ran.stderr.contains(why), "{args:?}: {ran:?}");
    }

    fn socket(&self, target: &Target) -> PathBuf {
        self.path(&format!("run/longhaul/target-{}.sock", target.child.id()))
    }
}

fn open(target: &Target, hostnqn: &str) -> Result<Blocking, longhaul_initiator::Error> {
    let options =
        Options { hostnqn: hostnqn.to_owned(), ctrl_loss: Some(Duration::ZERO), ..Options::default() };
    let device = RemoteDevice::connect_blocking(&target.uri(0).parse().expect("a URI"), options)?;
    Ok(Blocking::open(device).expect("opened"))
}

#[test]
fn a_target_shows_who_uses_it_and_obeys_its_user() {
    let with = |more: &str| {
        format!("[target]\nexport = [\"a=mem:8MiB,allow-host={WRITER},read-only-host={READER}\"{more}]\n")
    };
    let site = Site::new(&with(""));
    site.fails(&["status"], 5, "this user runs no target");
    let target = site.target();
    let pid = target.child.id();
    let (writer, reader) = (open(&target, WRITER).expect("allowed"), open(&target, READER).expect("allowed"));
    writer.write_at(&[7; 8192], 0).expect("written");
    reader.read_at(&mut [0; 4096], 0).expect("read");
    until("the counts of both", || {
        let status = site.event(&["status"]);
        assert_eq!((status["event"].as_str(), status["pid"].as_u64()), (Some("target"), Some(pid.into())));
        assert_eq!(
            (&status["exports"][0]["name"], &status["exports"][0]["size"]),
            (&"a".into(), &json!(8 << 20))
        );
        let hosts = status["hosts"].as_array().expect("a list");
        let of = |name: &str| hosts.iter().find(|host| host["host"] == name).expect("it is connected");
        assert_eq!((&of(WRITER)["read_only"], &of(READER)["read_only"]), (&false.into(), &true.into()));
        of(WRITER)["bytes_written"] == 8192 && of(READER)["bytes_read"] == 4096
    });
    let shown = site.ctl(&["status"]).stdout;
    let expected =
        [format!("target {pid}: {}", target.addr()), "  a namespace 1: 8 MiB".into(), "may only read".into()];
    assert!(expected.iter().all(|text| shown.contains(text)), "{shown}");

    site.configure(&with(", \"b=mem:4MiB\""));
    assert_eq!(site.event(&["reload"])["added"][0]["name"], "b");
    assert_eq!(site.event(&["status"])["exports"].as_array().map(Vec::len), Some(2));
    site.configure("[target]\nexport = [\"b=mem:4MiB\"]\n");
    site.fails(&["reload"], 6, "longhaul ctl reload --force");
    reader.read_at(&mut [0; 4096], 0).expect("nothing has changed");
    let forced = site.ctl(&["reload", "--force"]);
    assert!(forced.code == Some(0) && forced.stdout.contains("removed a"), "{forced:?}");
    site.configure("[target]\nexport = [\"b=what:4MiB\"]\n");
    site.fails(&["reload"], 2, "not applied");

    assert_eq!(site.event(&["stop"])["pid"], pid);
    assert!(!site.socket(&target).exists());
    site.fails(&["reload"], 5, "this user runs no target");
}

/// What an administrator does after a key was retired.
#[test]
fn a_host_is_disconnected_and_may_come_back_if_it_is_allowed() {
    let site = Site::new("[target]\nexport = [\"a=mem:8MiB\"]\n");
    let record = site.path("audit");
    let target = site.target_with(&["--audit", text(&record)]);
    let (one, other) = (open(&target, WRITER).expect("allowed"), open(&target, READER).expect("allowed"));
    assert_eq!(site.event(&["disconnect", WRITER])["controllers"], 1);
    one.write_at(&[7; 4096], 0).expect_err("its controller has ended");
    other.write_at(&[7; 4096], 0).expect("the others go on");
    open(&target, WRITER).expect("it may connect again").write_at(&[8; 4096], 0).expect("written");
    site.fails(&["disconnect", "nqn.2014-08.org.example:stranger"], 1, "is not connected");
    target.stop();
    let lines = fs::read_to_string(record).expect("an audit log");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let ended: Vec<_> = lines.filter(|line| line["event"] == "host_ended").collect();
    assert_eq!((&ended[0]["host"], &ended[0]["controllers"]), (&WRITER.into(), &json!(1)), "{ended:?}");
}

#[test]
fn one_of_several_targets_is_named() {
    let site = Site::new("[target]\nexport = [\"a=mem:8MiB\"]\n");
    let (one, two) = (site.target(), site.target());
    let shown = site.ctl(&["status", "--json"]).events();
    assert_eq!(shown.len(), 2);
    site.fails(&["stop"], 2, "name one with --pid");
    let pid = one.child.id().to_string();
    assert_eq!(site.event(&["--pid", &pid, "status"])["pid"], one.child.id());
    assert_eq!(site.event(&["--pid", &pid, "stop"])["pid"], one.child.id());
    site.fails(&["--pid", &pid, "reload"], 5, &pid);
    assert_eq!(site.event(&["reload"])["event"], "reloaded", "one is left");
    // A target that was killed has left its socket: it is no target any more.
    let left = site.socket(&two);
    let mut two = two;
    two.child.kill().expect("killed");
    two.child.wait().expect("waited");
    assert!(left.exists());
    site.fails(&["status"], 5, "this user runs no target");
    let three = site.target();
    assert!(!left.exists());
    drop(one);
    three.stop();
}

#[test]
fn other_users_do_not_reach_the_socket() {
    let site = Site::new("[target]\nexport = [\"a=mem:8MiB\"]\n");
    fs::create_dir_all(site.path("run/longhaul")).expect("made");
    fs::set_permissions(site.path("run/longhaul"), Permissions::from_mode(0o755)).expect("set");
    let target = site.target();
    let directory = site.socket(&target).parent().expect("a directory").to_owned();
    assert_eq!(fs::metadata(directory).expect("it is there").mode() & 0o777, 0o700);
    target.stop();
}

/// Programs of others speak to it, too.
#[test]
fn the_socket_speaks_json_rpc() {
    let site = Site::new("[target]\nexport = [\"a=mem:8MiB\"]\n");
    let target = site.target();
    let stream = UnixStream::connect(site.socket(&target)).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut lines = BufReader::new(&stream);
    let mut ask = |line: &str| {
        writeln!(&mut &stream, "{line}").expect("written");
        let mut answer = String::new();
        lines.read_line(&mut answer).expect("answered");
        serde_json::from_str::<Value>(&answer).expect("JSON")
    };
    let status = ask(r#"{"jsonrpc":"2.0","id":1,"method":"status"}"#);
    assert_eq!((&status["id"], &status["result"]["exports"][0]["name"]), (&json!(1), &"a".into()));
    assert_eq!(ask(r#"{"jsonrpc":"2.0","id":2,"method":"fly"}"#)["error"]["code"], -32_601);
    assert_eq!(ask(r#"{"jsonrpc":"2.0","id":3,"method":"disconnect"}"#)["error"]["code"], -32_602);
    assert_eq!(ask("reload")["error"]["code"], -32_700);
    site.configure("[target]\nexport = \"a\"\n");
    let refused = ask(r#"{"jsonrpc":"2.0","id":4,"method":"reload"}"#);
    assert_eq!(refused["error"]["code"], 2, "{refused}");
    assert!(
        refused["error"]["message"].as_str().is_some_and(|text| text.contains("config.toml")),
        "{refused}"
    );
    target.event("not_reloaded");
    target.stop();
}
