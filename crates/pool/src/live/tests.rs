use super::*;
use longhaul_device::arrays::{PathReply, WayReply};
use serde_json::json;

fn reply(pid: u32, clock_ns: u64, read: WayReply) -> PathsReply {
    let path = PathReply {
        device: "nvme+tcp://h/x".into(),
        address: "h:4420".into(),
        state: "optimized".into(),
        why: None,
        round_trip_us: Some(200),
        disconnects: 0,
        read,
        write: WayReply::default(),
    };
    PathsReply { clock_ns, pid, paths: vec![path] }
}

fn way(commands: u64, bytes: u64, time_ns: u64) -> WayReply {
    WayReply { commands, bytes, time_ns, in_flight: 3 }
}

#[test]
fn rates_are_differences_over_the_time_of_the_process_that_counts() {
    let rates = |before: Option<&PathsReply>, after: &PathsReply| {
        rates::between(before, after, |device| (device == "nvme+tcp://h/x").then_some(4)).remove(0)
    };
    // A long time before the first look does not count.
    let first = reply(1, 1_000_000_000, way(1_000_000, 1 << 40, 1 << 50));
    let path = rates(None, &first);
    assert_eq!((path.member, path.read), (Some(4), WayNow { in_flight: 3, ..WayNow::default() }));
    let second = reply(1, 3_000_000_000, way(1_000_010, (1 << 40) + 4096 * 10, (1 << 50) + 50_000_000));
    let path = rates(Some(&first), &second);
    let expected = WayNow {
        bytes_per_second: Some(20_480.0),
        commands_per_second: Some(5.0),
        latency: Some(Duration::from_millis(5)),
        in_flight: 3,
    };
    assert_eq!(path.read, expected);
    assert_eq!((path.write.bytes_per_second, path.write.latency), (Some(0.0), None), "idle");
    // Another process, a clock that stands still, a device that was opened again.
    let fresh = WayNow { in_flight: 3, ..WayNow::default() };
    assert_eq!(rates(Some(&first), &reply(2, 5_000_000_000, way(5, 5, 5))).read, fresh);
    assert_eq!(rates(Some(&first), &first).read, fresh);
    assert_eq!(rates(Some(&first), &reply(1, 5_000_000_000, way(5, 5, 5))).read, fresh);
    let sum = WayNow::sum([expected, expected, WayNow::default()].into_iter());
    assert_eq!((sum.bytes_per_second, sum.latency, sum.in_flight), (Some(40_960.0), expected.latency, 6));
    assert_eq!(WayNow::sum(std::iter::empty()), WayNow::default());
}

#[test]
fn the_time_left_follows_the_progress_of_the_last_half_minute() {
    let mut before = ArrayBefore::default();
    let begun = Instant::now();
    let mut fill = |second: u64, member: u64, done: u64| {
        let filling = json!({ "member": member, "done_bytes": done, "total_bytes": 100_000 });
        before.filling(&filling, begun + Duration::from_secs(second)).expect("a rebuild")
    };
    // It began long ago, with a mean of its own, which does not count.
    assert_eq!(fill(0, 2, 50_000).left, None);
    let seen = fill(10, 2, 51_000);
    assert_eq!((seen.rate, seen.left), (Some(100.0), Some(Duration::from_secs(490))));
    // It becomes ten times as fast.
    for second in 11..=60 {
        fill(second, 2, 51_000 + (second - 10) * 400);
    }
    let seen = fill(61, 2, 71_400);
    assert_eq!(seen.rate.map(f64::round), Some(400.0));
    // It stands still, and another one begins.
    for second in 62..=100 {
        fill(second, 2, 71_400);
    }
    let seen = fill(101, 2, 71_400);
    assert_eq!((seen.rate, seen.left), (Some(0.0), None));
    assert_eq!(fill(102, 3, 0).rate, None);
    assert_eq!(before.filling(&Value::Null, begun), None);
}
