//! Our JSON beside fio's own (fio 3.33, `--output-format=json`).

use longhaul_block::MemDevice;
use longhaul_engine::Config;
use longhaul_load::{Job, Rw, Stop, Threads, run};
use longhaul_results::schema;
use serde_json::Value;
use std::sync::Arc;

const FIO: &str = include_str!("../../results/tests/data/fio-3.33.json");

fn ours() -> Value {
    let device = Arc::new(MemDevice::new(1 << 20, 4096).expect("mapped"));
    let job = Job { rw: Rw::RandRw, iodepth: 4, ..Job::default() };
    let results =
        run(&[device], &job, &Threads::Own(Config::default()), &Stop::new(), &mut |_| {}).expect("begun");
    serde_json::to_value(results.to_fio(true)).expect("JSON")
}

/// Every name of `fio` is in `ours`, the output of this program, with the same kind of value.
fn assert_covers(path: &str, fio: &Value, ours: &Value) {
    match (fio, ours) {
        (Value::Object(fio), Value::Object(ours)) => {
            for (name, value) in fio {
                let path = format!("{path}/{name}");
                // These hold what a run was asked to do, or the kernel's devices.
                if name == "job options" || name == "global options" {
                    assert!(ours.contains_key(name), "{path}");
                    continue;
                }
                let same = ours.get(name);
                assert_covers(&path, value, same.unwrap_or_else(|| panic!("{path} is missing")));
            }
        }
        (Value::Array(fio), Value::Array(ours)) => {
            for (a, b) in fio.iter().zip(ours) {
                assert_covers(path, a, b);
            }
        }
        (Value::Number(_), Value::Number(_)) | (Value::String(_), Value::String(_)) => {}
        _ => panic!("{path}: fio has {fio}, we have {ours}"),
    }
}

#[test]
fn every_name_of_fio_is_there() {
    let fio: Value = serde_json::from_str(FIO).expect("JSON");
    assert_covers("", &fio, &ours());
}

#[test]
fn the_order_is_fios() {
    let text =
        serde_json::to_string(&serde_json::from_str::<schema::Output>(FIO).expect("read")).expect("JSON");
    let at = |name: &str| text.find(&format!("\"{name}\"")).unwrap_or_else(|| panic!("{name} is missing"));
    let names = [
        "fio version",
        "timestamp",
        "jobs",
        "jobname",
        "error",
        "job options",
        "read",
        "write",
        "sync",
        "usr_cpu",
        "latency_ms",
        "disk_util",
    ];
    assert!(names.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{text}");
    assert!(text.find("\"2\":") < text.find("\"10\":"), "classes by size, not by letter");
}

#[test]
fn fios_own_results_are_read() {
    let fio: schema::Output = serde_json::from_str(FIO).expect("read");
    let raw: Value = serde_json::from_str(FIO).expect("JSON");
    let (job, raw) = (&fio.jobs[0], &raw["jobs"][0]);
    assert_eq!(fio.version, "fio-3.33");
    assert_eq!(Some(job.read.bw_bytes), raw["read"]["bw_bytes"].as_u64());
    assert_eq!(Some(job.write.iops), raw["write"]["iops"].as_f64());
    let p99 = &raw["write"]["clat_ns"]["percentile"]["99.000000"];
    assert_eq!(job.write.clat_ns.percentile.get("99.000000").copied(), p99.as_u64());
    assert!(job.read.total_ios > 0 && job.verify.is_none());
}

#[test]
fn written_results_are_read_back() {
    let ours = ours();
    let read: schema::Output = serde_json::from_value(ours.clone()).expect("read");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), ours);
    let job = &read.jobs[0];
    assert_eq!(job.read.total_ios + job.write.total_ios, 256);
    assert_eq!(job.read.io_bytes + job.write.io_bytes, 1 << 20);
    let depth: f64 = job.iodepth_level.0.iter().map(|(_, share)| share).sum();
    assert!((depth - 100.0).abs() < 1e-6);
    assert!(job.read.clat_ns.percentile.get("50.000000").is_some());
}
