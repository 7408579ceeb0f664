//! Every kind of device is opened by its name, through the public function.

use longhaul_array::{Layout, Shape};
use longhaul_block::{BlockDevice, MemDevice, WriteFlags};
use longhaul_device::arrays::{ArrayRecord, ArraySettings, Registry};
use longhaul_device::{Device, ErrorKind};
use longhaul_engine::{Buf, BufMut, Config, Engine};
use longhaul_target::Target;
use std::process::Command;
use std::sync::Arc;
use uuid::Uuid;

const BLOCK: usize = 4096;
const MEMBER: u64 = 64 << 20;

fn run<F: Future>(test: F) -> F::Output {
    Engine::new(&Config::default()).expect("an engine").block_on(test)
}

async fn write(device: &Device, byte: u8) {
    let io = device.block().open().await.expect("opened");
    io.write(0, Buf::copy_of(&[byte; BLOCK]), WriteFlags::default()).await.expect("written");
    io.flush().await.expect("flushed");
}

/// The first byte of the first block, all of which is the same.
async fn read(device: &Device) -> u8 {
    let io = device.block().open().await.expect("opened");
    let block = io.read(0, BufMut::zeroed(BLOCK)).await.expect("read");
    assert!(block.iter().all(|byte| *byte == block[0]));
    block[0]
}

#[test]
fn memory_files_and_null_are_opened_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a,b").display().to_string();
    let escaped = path.replace(',', ",,");
    run(async {
        let memory = longhaul_device::open("mem:1MiB").await.expect("memory");
        write(&memory, 3).await;
        assert_eq!((read(&memory).await, memory.block().info().size), (3, 1 << 20));
        let null = longhaul_device::open("null:1GiB").await.expect("null");
        write(&null, 3).await;
        assert_eq!((read(&null).await, null.block().info().size), (0, 1 << 30));
        let file = longhaul_device::open(&format!("file:{escaped},size=1MiB")).await.expect("a file");
        write(&file, 5).await;
        file.close().await.expect("closed");
        // The same file by its path, in which a comma needs no escape.
        let file = longhaul_device::open(&path).await.expect("a path");
        assert_eq!(read(&file).await, 5);
        file.close().await.expect("closed");
        let read_only = longhaul_device::open(&format!("file:{escaped},ro")).await.expect("an option");
        assert!(read_only.block().info().read_only);
        assert_eq!(read_only.trouble(), None);
    });
}

#[test]
fn a_namespace_of_a_target_is_opened_by_its_uri() {
    let config = longhaul_target::Config {
        listen: vec!["127.0.0.1:0".parse().expect("an address")],
        ..longhaul_target::Config::default()
    };
    let target = Target::start(config).expect("a target");
    let nqn = "nqn.2026-11.io.longhaul:test:device";
    let memory: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1 << 20, 4096).expect("memory"));
    target.export(nqn, "memory", memory, Uuid::new_v4()).expect("exported");
    let at = target.addresses()[0];
    run(async {
        let device = longhaul_device::open(&format!("nvme+tcp://{at}/{nqn}")).await.expect("a device");
        write(&device, 7).await;
        assert_eq!(read(&device).await, 7);
        assert!(matches!(device, Device::Remote(_)));
    });
}

#[test]
fn what_is_not_a_device_is_an_error_of_its_kind() {
    run(async {
        for (name, kind, word) in [
            ("http://example.org/x", ErrorKind::Invalid, "'http://' is not a device"),
            ("mem:many", ErrorKind::Invalid, "many"),
            ("/nonexistent/disk", ErrorKind::Failed, "cannot open '/nonexistent/disk'"),
            ("nvme+tcp://127.0.0.1:1/x", ErrorKind::Unreachable, "nothing listens there"),
        ] {
            let e = longhaul_device::open(name).await.expect_err(name);
            assert_eq!(e.kind(), kind, "{name}: {e}");
            assert!(e.to_string().contains(word), "{name}: {e}");
        }
    });
}

/// Set in a child process that has a state and a runtime directory of its own.
const CHILD: &str = "LONGHAUL_DEVICE_TEST_CHILD";

#[test]
fn an_array_is_opened_by_its_name() {
    let name = "an_array_is_opened_by_its_name";
    if std::env::var_os(CHILD).is_some() {
        return run(open_an_array());
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = std::env::current_exe().expect("this program");
    let ran = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .env("XDG_RUNTIME_DIR", dir.path())
        .current_dir(dir.path())
        .output()
        .expect("run");
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && output.contains("1 passed"),
        "{output}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

async fn open_an_array() {
    let names: Vec<String> = (0..3).map(|n| format!("file:member{n},size={MEMBER}")).collect();
    let mut members = Vec::new();
    for name in &names {
        members.push(longhaul_device::open(name).await.expect("a member").block());
    }
    let shape = Shape { name: "scratch".into(), layout: Layout::Parity, unit: 64 << 10, force: false };
    let uuid = longhaul_array::create(&members, &[], &shape).await.expect("created");
    drop(members);
    let (settings, registry) = (ArraySettings::default(), Registry::own());
    let record = ArrayRecord {
        uuid,
        name: shape.name,
        devices: names,
        members: Default::default(),
        settings,
        registry,
    };
    record.save().expect("recorded");
    assert_eq!(ArrayRecord::all().expect("a registry"), [record]);

    let array = longhaul_device::open("array:scratch").await.expect("an array");
    assert!(matches!(array, Device::Array(_)));
    write(&array, 9).await;
    let e = longhaul_device::open(&format!("array:{uuid}")).await.expect_err("it runs already");
    assert_eq!(e.kind(), ErrorKind::Refused, "{e}");
    array.close().await.expect("stopped");

    // One of three members is lost: the data is still there.
    std::fs::remove_file("member1").expect("removed");
    let array = longhaul_device::open(&format!("array:{uuid}")).await.expect("a degraded array");
    assert_eq!(read(&array).await, 9);
    let trouble = array.trouble().expect("degraded");
    assert!(trouble.starts_with("degraded: "), "{trouble}");
    array.close().await.expect("stopped");

    let e = longhaul_device::open("array:other").await.expect_err("no such array");
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(e.to_string().contains("known: scratch"), "{e}");
}
