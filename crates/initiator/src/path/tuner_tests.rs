//! The tuner on paths in virtual time: a bottleneck with a queue that tuners
//! share, TCP that begins slowly, and sockets that hold only so much.

use super::sockets::{Limit, Sockets};
use super::{FLOOR, Limits, Sample, Tuner, WaySample};
use std::time::Duration;

/// One gigabit per second, in bytes.
const GBIT: f64 = 125e6;
/// What a connection has in flight at first.
const INITIAL_WINDOW: f64 = 90e3;

/// A path, and the users that read over it.
struct Path {
    rate: f64,
    rtt: f64,
    /// Bytes that the bottleneck queues; more stays in the hosts.
    queue: f64,
    /// Bytes in flight that the sockets of a connection hold.
    socket: f64,
    /// Most that the far side's storage gives, in all.
    storage: f64,
    /// The target requests data (R2T): half of the bytes in flight wait for that, and are not in
    /// the network.
    asks: bool,
    now: f64,
    seed: u64,
    users: Vec<User>,
}

struct User {
    tuner: Tuner,
    window: f64,
    next: f64,
    done: f64,
    /// Bytes in flight if the user does not follow the plan.
    fixed: Option<f64>,
    /// Rate and bytes in flight of each round.
    history: Vec<(f64, f64, f64)>,
    began: f64,
}

impl Path {
    fn new(gbit: f64, rtt_ms: f64) -> Path {
        let (rate, rtt) = (gbit * GBIT, rtt_ms / 1e3);
        let (queue, socket) = ((3.0 * rate * rtt).max(8e6), f64::MAX);
        Path {
            rate,
            rtt,
            queue,
            socket,
            storage: f64::MAX,
            asks: false,
            now: 0.0,
            seed: 1,
            users: Vec::new(),
        }
    }

    fn join(&mut self) -> usize {
        let limits = Limits { in_flight: 1 << 30, connections: 16 };
        let tuner = Tuner::new(limits, Duration::from_secs_f64(self.rtt), Duration::from_secs_f64(self.now));
        let next = self.now + tuner.round().as_secs_f64();
        let (window, began) = (INITIAL_WINDOW, self.now);
        self.users.push(User { tuner, window, next, done: 0.0, fixed: None, history: Vec::new(), began });
        self.users.len() - 1
    }

    /// A factor near 1.
    fn noise(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        1.0 + 0.04 * ((self.seed >> 33) as f64 / (1u64 << 31) as f64 - 0.5)
    }

    fn wants(&self, user: &User) -> f64 {
        let plan = user.tuner.plan();
        let wanted = user.fixed.unwrap_or(plan.in_flight[0] as f64);
        let wanted = if self.asks { wanted / 2.0 } else { wanted };
        wanted.min(user.window).min(self.socket * f64::from(plan.connections))
    }

    fn run(&mut self, seconds: f64) {
        let end = self.now + seconds;
        let step = (self.rtt / 8.0).max(0.002);
        while self.now < end {
            self.now += step;
            let in_network: Vec<f64> = self.users.iter().map(|user| self.wants(user)).collect();
            let total: f64 = in_network.iter().sum();
            // What a device is slow with is not in the network.
            let sent = if self.storage < self.rate { self.storage * self.rtt } else { total };
            let standing = (sent - self.rate * self.rtt).clamp(0.0, self.queue);
            let rtt = self.rtt + standing / self.rate;
            // Once TCP has slowed down it takes a while to overflow again.
            let full = sent - self.rate * self.rtt > 1.05 * self.queue;
            let lost = full && (self.now / step) as u64 % 400 < 9;
            let most = self.rate.min(self.storage).min(total / self.rtt);
            for (n, share) in in_network.iter().enumerate() {
                let rate = most * share / total;
                let noise = self.noise();
                let (now, asked) = (self.now, self.asks);
                let user = &mut self.users[n];
                user.window *= 1.0 + step / rtt;
                user.done += rate * step * noise;
                if now >= user.next {
                    user.round(now, rtt, rate, (lost, asked));
                }
            }
        }
    }
}

impl Path {
    /// The path carries nothing: first the users do not notice, then their
    /// connections are lost, and then they have new ones.
    fn outage(&mut self, seconds: f64) {
        let (begun, noticed) = (self.now, self.now + 3.0);
        for user in &mut self.users {
            let round = user.tuner.round().as_secs_f64();
            let mut now = begun;
            while now + round < begun + seconds {
                now += round;
                if now < noticed {
                    let in_flight = user.tuner.plan().in_flight[0];
                    let read = WaySample {
                        completed: 0,
                        in_flight,
                        lost: true,
                        begun: false,
                        ..WaySample::default()
                    };
                    let ways = [read, WaySample::default()];
                    let now = Duration::from_secs_f64(now);
                    user.tuner.handle_sample(&Sample { now, ways, ..Sample::default() });
                } else {
                    user.tuner.handle_outage(Duration::from_secs_f64(now));
                }
            }
            user.window = INITIAL_WINDOW;
            user.done = 0.0;
            user.next = begun + seconds + round;
        }
        self.now = begun + seconds;
    }
}

impl User {
    fn round(&mut self, now: f64, rtt: f64, rate: f64, (lost, asked): (bool, bool)) {
        let plan = self.tuner.plan();
        let in_flight = self.fixed.unwrap_or(plan.in_flight[0] as f64);
        // In the hosts or in the network: by Little's law.
        let latency = (in_flight / rate).max(rtt);
        let (completed, in_flight) = (self.done as u64, in_flight as u64);
        let read = WaySample { completed, in_flight, lost, asked, ..WaySample::default() };
        let sample = Sample {
            now: Duration::from_secs_f64(now),
            ways: [read, WaySample::default()],
            rtt: Some(Duration::from_secs_f64(rtt)),
            latency_min: Some(Duration::from_secs_f64(latency)),
            sockets: Sockets { receive_window: Some(1 << 30), ..Sockets::default() },
            connections: plan.connections,
        };
        let took = self.tuner.round().as_secs_f64();
        self.history.push((now, self.done / took, in_flight as f64));
        self.tuner.handle_sample(&sample);
        self.done = 0.0;
        self.next = now + self.tuner.round().as_secs_f64();
    }

    /// Average rate from this moment on.
    fn rate_since(&self, from: f64) -> f64 {
        let rates: Vec<f64> = self.history.iter().filter(|h| h.0 > from).map(|h| h.1).collect();
        rates.iter().sum::<f64>() / rates.len() as f64
    }

    /// The least and the most in flight from this moment on.
    fn in_flight_since(&self, from: f64) -> (f64, f64) {
        let all = self.history.iter().filter(|h| h.0 > from).map(|h| h.2);
        all.fold((f64::MAX, 0.0), |(low, high), x| (low.min(x), high.max(x)))
    }

    /// Seconds until nearly all of `rate` was there.
    fn time_to(&self, rate: f64) -> f64 {
        self.history.iter().find(|h| h.1 > 0.95 * rate).map_or(f64::MAX, |h| h.0 - self.began)
    }
}

#[test]
fn every_path_is_filled_soon_and_held_with_little_queue() {
    for gbit in [1.0, 2.0, 10.0] {
        for rtt_ms in [0.15, 15.0, 100.0] {
            let mut path = Path::new(gbit, rtt_ms);
            path.join();
            path.run(60.0);
            let (user, rate) = (&path.users[0], gbit * GBIT);
            let what = format!("{gbit} Gb/s at {rtt_ms} ms");
            assert!(user.time_to(rate) < 0.5 + 20.0 * path.rtt, "{what}: {} s", user.time_to(rate));
            assert!(user.rate_since(5.0) > 0.98 * rate, "{what}: {:e}", user.rate_since(5.0));
            let product = rate * path.rtt;
            let extra = (product * (4 << 20) as f64).sqrt().max(FLOOR as f64);
            let (low, high) = user.in_flight_since(30.0);
            assert!(low > product && high < 2.2 * product + 1.1 * extra, "{what}: {low:e} {high:e}");
            // No oscillation: once it holds, it holds.
            assert!(high < 1.15 * low, "{what}: between {low:e} and {high:e}");
            assert_eq!(user.tuner.plan().connections, 1, "{what}");
            let rtt = user.tuner.plan().rtt.as_secs_f64();
            assert!((0.99..1.05).contains(&(rtt / path.rtt)), "{what}: {rtt}");
        }
    }
}

/// Twice as much is in flight where each command takes two round trips.
#[test]
fn data_that_is_asked_for_fills_the_path_as_well() {
    for rtt_ms in [5.0, 15.0, 100.0] {
        let mut path = Path::new(2.0, rtt_ms);
        path.asks = true;
        path.join();
        path.run(60.0);
        let (user, rate) = (&path.users[0], 2.0 * GBIT);
        assert!(user.time_to(rate) < 0.5 + 40.0 * path.rtt, "{rtt_ms} ms: {} s", user.time_to(rate));
        assert!(user.rate_since(8.0) > 0.98 * rate, "{rtt_ms} ms: {:e}", user.rate_since(8.0));
        let (low, _) = user.in_flight_since(8.0);
        assert!(low > 2.0 * rate * path.rtt, "{rtt_ms} ms: {low:e}");
    }
}

#[test]
fn a_step_in_the_rate_is_followed() {
    for (from, to) in [(1.0, 2.0), (1.0, 10.0), (2.0, 0.5)] {
        let mut path = Path::new(from, 15.0);
        path.join();
        path.run(40.0);
        path.rate = to * GBIT;
        path.run(3.0);
        let settled = path.now;
        path.run(20.0);
        let user = &path.users[0];
        let plan = user.tuner.plan();
        assert!(user.rate_since(settled) > 0.97 * path.rate, "{from} to {to} Gb/s: {plan:?}");
        let (_, high) = user.in_flight_since(settled + 5.0);
        let product = path.rate * path.rtt;
        let extra = (product * (4 << 20) as f64).sqrt().max(FLOOR as f64);
        assert!(high < 2.2 * product + 1.1 * extra, "{from} to {to}: {high:e} of {product:e}, {plan:?}");
    }
}

#[test]
fn a_step_in_the_round_trip_is_followed() {
    for (from, to) in [(15.0, 100.0), (1.0, 15.0), (100.0, 15.0)] {
        let mut path = Path::new(2.0, from);
        path.queue = 8e6;
        path.join();
        path.run(40.0);
        path.rtt = to / 1e3;
        path.run(8.0);
        let settled = path.now;
        path.run(20.0);
        let user = &path.users[0];
        let plan = user.tuner.plan();
        assert!(user.rate_since(settled) > 0.97 * path.rate, "{from} to {to} ms: {plan:?}");
        let rtt = plan.rtt.as_secs_f64() / path.rtt;
        assert!((0.99..1.4).contains(&rtt), "{from} to {to} ms: {plan:?}");
    }
}

#[test]
fn users_of_one_path_converge_to_equal_shares() {
    for (gbit, rtt_ms, others) in [(2.0, 15.0, 1), (2.0, 100.0, 1), (10.0, 15.0, 3)] {
        let mut path = Path::new(gbit, rtt_ms);
        path.join();
        path.run(20.0);
        for _ in 0..others {
            path.join();
        }
        path.run(60.0);
        let settled = path.now;
        path.run(20.0);
        let rates: Vec<f64> = path.users.iter().map(|user| user.rate_since(settled)).collect();
        let total: f64 = rates.iter().sum();
        let (low, high) = rates.iter().fold((f64::MAX, 0.0f64), |(l, h), &r| (l.min(r), h.max(r)));
        assert!(total > 0.97 * path.rate, "{gbit} Gb/s at {rtt_ms} ms: {rates:?}");
        assert!(low > 0.75 * high, "{gbit} Gb/s at {rtt_ms} ms: {rates:?}");
    }
}

#[test]
fn small_socket_buffers_are_named_and_answered_by_connections() {
    let mut path = Path::new(10.0, 92.0);
    path.socket = 16e6;
    path.join();
    path.run(40.0);
    let plan = path.users[0].tuner.plan();
    assert_eq!(plan.connections, 8, "{plan:?}");
    assert!(path.users[0].rate_since(30.0) > 0.97 * path.rate);
    let Some(Limit::Socket(limit)) = plan.limit else { panic!("{plan:?}") };
    assert_eq!(limit.buffer, super::Buffer::FarSend);
    assert!((15e6..17e6).contains(&(limit.bytes as f64)), "{limit:?}");
}

#[test]
fn connections_that_are_of_no_use_are_given_up() {
    let mut path = Path::new(10.0, 15.0);
    path.storage = 3.0 * GBIT;
    path.join();
    path.run(30.0);
    let plan = path.users[0].tuner.plan();
    assert_eq!((plan.connections, plan.limit), (1, Some(Limit::Hosts)), "{plan:?}");
    assert!(path.users[0].rate_since(10.0) > 0.97 * path.storage);
}

#[test]
fn a_light_load_does_not_mislead_the_tuner() {
    let mut path = Path::new(2.0, 15.0);
    path.join();
    path.users[0].fixed = Some(128e3);
    path.run(20.0);
    let plan = path.users[0].tuner.plan();
    assert!(!plan.full[0] && plan.connections == 1, "{plan:?}");
    path.users[0].fixed = None;
    path.run(5.0);
    let settled = path.now;
    path.run(10.0);
    assert!(path.users[0].rate_since(settled) > 0.97 * path.rate);
}

#[test]
fn what_comes_at_once_after_a_loss_is_not_taken_for_the_rate() {
    let limits = Limits { in_flight: 1 << 30, connections: 1 };
    let mut tuner = Tuner::new(limits, Duration::from_millis(100), Duration::ZERO);
    for n in 1..400u64 {
        // Each round brings 25 MB; every twentieth, and the four after it,
        // wait for a hole to be filled.
        let completed = match n % 20 {
            0..4 => 0,
            4 => 125_000_000,
            _ => 25_000_000,
        };
        let in_flight = tuner.plan().in_flight[0];
        let read =
            WaySample { completed, in_flight, lost: n % 20 == 0, begun: false, ..WaySample::default() };
        let rtt = Some(Duration::from_millis(100));
        let ways = [read, WaySample::default()];
        tuner.handle_sample(&Sample { now: Duration::from_millis(100 * n), ways, rtt, ..Sample::default() });
    }
    let plan = tuner.plan();
    assert!((1.9e8..3.3e8).contains(&plan.rate[0]), "{plan:?}");
    assert!(plan.in_flight[0] < 130_000_000, "{plan:?}");
}

/// On a path of 1 Gb/s that loses at random, TCP is fast until it has met its
/// first losses, and then brings 120 Mb/s a connection.
#[test]
fn connections_that_were_compared_with_luck_are_missed_and_taken_back() {
    const YOUNG: u32 = 45;
    let limits = Limits { in_flight: 1 << 30, connections: 16 };
    let (mut tuner, mut ages) = (Tuner::new(limits, Duration::from_millis(15), Duration::ZERO), Vec::new());
    let mut poor = 0;
    for n in 1..600u64 {
        let plan = tuner.plan();
        ages.resize(ages.len().max(plan.connections.into()), 0);
        ages.iter_mut().for_each(|age| *age += 1);
        let used = ages.iter().take(plan.connections.into());
        let each = used.map(|age| if *age < YOUNG { 60e6 } else { 15e6 });
        let rate = each.sum::<f64>().min(GBIT);
        poor += u32::from(n > 100 && rate < 0.9 * GBIT);
        let (completed, in_flight) = ((rate / 20.0) as u64, plan.in_flight[0]);
        let read = WaySample { completed, in_flight, lost: n % 3 == 0, begun: false, ..WaySample::default() };
        let rtt = Some(Duration::from_millis(15));
        let (now, ways) = (Duration::from_millis(50 * n), [read, WaySample::default()]);
        let connections = plan.connections;
        tuner.handle_sample(&Sample { now, ways, rtt, connections, ..Sample::default() });
    }
    assert!(tuner.plan().connections >= 8, "{:?}", tuner.plan());
    assert!(poor < 25, "for {poor} of 500 rounds too little came");
}

#[test]
fn pauses_between_files_are_not_taken_for_the_rate() {
    let limits = Limits { in_flight: 1 << 30, connections: 1 };
    let mut tuner = Tuner::new(limits, Duration::from_millis(100), Duration::ZERO);
    for n in 1..400u64 {
        // Every tenth round a file ends; the first bytes of the next one come
        // a round trip after they were asked for.
        let pause = n > 100 && n % 10 == 0;
        let completed = match n % 10 {
            0 if pause => 2_000_000,
            1 if n > 100 => 3_000_000,
            _ => 25_000_000,
        };
        let read = WaySample {
            completed,
            in_flight: tuner.plan().in_flight[0],
            lost: false,
            begun: pause,
            ..WaySample::default()
        };
        let rtt = Some(Duration::from_millis(100));
        let ways = [read, WaySample::default()];
        tuner.handle_sample(&Sample { now: Duration::from_millis(100 * n), ways, rtt, ..Sample::default() });
    }
    let plan = tuner.plan();
    assert!((2.4e8..2.6e8).contains(&plan.rate[0]) && plan.full[0], "{plan:?}");
    assert!(plan.in_flight[0] > 30_000_000, "{plan:?}");
}

#[test]
fn an_outage_is_not_taken_for_the_rate() {
    for (gbit, rtt) in [(1.0, 15.0), (1.0, 100.0), (10.0, 100.0)] {
        let mut path = Path::new(gbit, rtt);
        path.join();
        path.run(30.0);
        let before = path.users[0].tuner.plan();
        for _ in 0..3 {
            path.outage(20.0);
            let back = path.now;
            let plan = path.users[0].tuner.plan();
            let kept = plan.in_flight[0] as f64 / before.in_flight[0] as f64;
            assert!((0.95..1.05).contains(&kept) && plan.connections == 1, "{gbit} {rtt}: {kept}");
            path.run(10.0);
            let user = &path.users[0];
            let full = user.history.iter().find(|h| h.0 > back && h.1 > 0.95 * path.rate).expect("full rate");
            // TCP doubles from its initial window; nothing else is waited for.
            let doublings = (path.rate * path.rtt / INITIAL_WINDOW).log2().max(0.0);
            assert!(
                full.0 - back < (doublings + 4.0) * path.rtt.max(0.05),
                "{gbit} {rtt}: {}",
                full.0 - back
            );
            let (low, high) = user.in_flight_since(back);
            let usual = before.in_flight[0] as f64;
            assert!(low > 0.9 * usual && high < 1.2 * usual, "{gbit} {rtt}: {low:e} {high:e} {usual:e}");
        }
    }
    // And a path that is another one when it is back is learned.
    let mut path = Path::new(1.0, 100.0);
    path.join();
    path.run(30.0);
    path.outage(20.0);
    path.rate /= 10.0;
    path.run(60.0);
    let plan = path.users[0].tuner.plan();
    assert!(plan.rate[0] < 1.2 * path.rate && plan.in_flight[0] < 8 << 20, "{plan:?}");
}

#[test]
fn what_overflows_gets_enough_to_repair() {
    let mut path = Path::new(2.0, 100.0);
    path.queue = 0.1 * path.rate * path.rtt;
    path.join();
    path.run(60.0);
    let user = &path.users[0];
    assert!(user.rate_since(10.0) > 0.97 * path.rate);
    let (low, high) = user.in_flight_since(20.0);
    let product = path.rate * path.rtt;
    assert!(low > 1.2 * product && (3.5 * product..6.0 * product).contains(&high), "{low:e} {high:e}");
}

#[test]
fn plans_keep_to_their_limits() {
    let limits = Limits { in_flight: 8 << 20, connections: 1 };
    let mut tuner = Tuner::new(limits, Duration::from_millis(100), Duration::ZERO);
    for n in 1..200u64 {
        let read = WaySample {
            completed: 100 << 20,
            in_flight: 8 << 20,
            lost: n % 7 == 0,
            begun: false,
            ..WaySample::default()
        };
        let now = Duration::from_millis(100 * n);
        let rtt = Some(Duration::from_millis(100 + n % 13));
        tuner.handle_sample(&Sample { now, ways: [read, read], rtt, ..Sample::default() });
        let plan = tuner.plan();
        assert!(plan.in_flight.iter().all(|&b| (FLOOR..=8 << 20).contains(&b)) && plan.connections == 1);
    }
}

/// A bottleneck with a queue that drops at its tail, and CUBIC on each connection.
struct Bottleneck {
    /// Bytes a second, seconds, bytes.
    rate: f64,
    rtt: f64,
    queue: f64,
    /// Share of the segments that is lost at random.
    loss: f64,
    /// Share of the rounds in which a burst raises the round trip by a tenth.
    bursts: f64,
    /// Share of the rounds in which a busy processor delays it by 2 ms.
    delays: f64,
    seed: u64,
}

/// One connection: its window, that of its last loss, and when that was.
#[derive(Clone, Copy)]
struct Cubic {
    window: f64,
    most: f64,
    since: f64,
    slow_start: bool,
}

const SEGMENT: f64 = 8948.0;

impl Cubic {
    const NEW: Cubic = Cubic { window: INITIAL_WINDOW, most: 0.0, since: 0.0, slow_start: true };

    /// A step of so many seconds.
    fn grow(&mut self, step: f64, rtt: f64) {
        self.since += step;
        if self.slow_start {
            self.window *= 2f64.powf(step / rtt);
            return;
        }
        // RFC 9438: C is 0.4 and beta 0.7; on short paths no less than Reno would have (section 4.3).
        let most = self.most / SEGMENT;
        let k = (most * 0.3 / 0.4).cbrt();
        let cubic = 0.4 * (self.since - k).powi(3) + most;
        let reno = 0.7 * most + 3.0 * 0.3 / 1.7 * self.since / rtt;
        self.window = self.window.max(SEGMENT * cubic.max(reno));
    }

    fn lose(&mut self, rtt: f64) {
        // Once in a round trip.
        if self.since > rtt || self.slow_start {
            (self.most, self.window) = (self.window, (0.7 * self.window).max(2.0 * SEGMENT));
            (self.since, self.slow_start) = (0.0, false);
        }
    }
}

/// What `info --path` would say, and what TCP brought on average while it was measured.
struct Measured {
    plan: super::PathPlan,
    mean: f64,
    seconds: f64,
    /// The most connections that were in use.
    most: u16,
}

impl Bottleneck {
    fn new(mbit: f64, rtt_ms: f64, bdp: f64) -> Bottleneck {
        let (rate, rtt) = (mbit * 125e3, rtt_ms / 1e3);
        Bottleneck {
            rate,
            rtt,
            queue: (bdp * rate * rtt).max(4.0 * SEGMENT),
            loss: 0.0,
            bursts: 0.0,
            delays: 0.0,
            seed: 7,
        }
    }

    fn chance(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Reads in commands of 1 MiB until the tuner is settled, for 3 s at least and 30 s at most.
    fn measure(&mut self) -> Measured {
        let limits = Limits { in_flight: 256 << 20, connections: 16 };
        let mut tuner = Tuner::new(limits, Duration::from_secs_f64(self.rtt), Duration::ZERO);
        let mut all = vec![Cubic::NEW];
        let (mut now, mut last, mut lost, mut worst) = (0.0, 0.0, false, 0.0f64);
        let (mut moved, mut completed, mut rates) = (0.0, 0u64, Vec::new());
        let (mut at, mut most) = (0.0, 1);
        let step = (self.rtt / 4.0).clamp(0.004, 0.02);
        loop {
            now += step;
            let plan = tuner.plan();
            all.resize(all.len().max(plan.connections.into()), Cubic::NEW);
            let used = usize::from(plan.connections);
            let wanted = plan.in_flight[0] as f64 / used as f64;
            let total: f64 = all[..used].iter().map(|one| one.window.min(wanted)).sum();
            let product = self.rate * self.rtt;
            let standing = (total - product).clamp(0.0, self.queue);
            let trip = self.rtt + standing / self.rate;
            let rate = (total / trip).min(self.rate);
            let overflow = total - product > self.queue;
            for one in &mut all[..used] {
                let segments = rate / used as f64 * step / SEGMENT;
                let random = self.loss > 0.0 && self.chance() < 1.0 - (1.0 - self.loss).powf(segments);
                if random || (overflow && self.chance() < 1.5 / used as f64) {
                    one.lose(trip);
                    lost = true;
                }
                // A window that is not used does not grow.
                if one.window <= 1.1 * wanted {
                    one.grow(step, trip);
                }
            }
            moved += rate * step;
            worst = worst.max(trip);
            if now < last + tuner.round().as_secs_f64() {
                continue;
            }
            if self.chance() < self.bursts {
                worst = worst.max(1.1 * self.rtt);
            }
            if self.delays > 0.0 && self.chance() < self.delays {
                worst += 0.002;
            }
            let took = now - last;
            last = now;
            rates.push((now, moved / took));
            at += moved;
            let done = (at / f64::from(1 << 20)) as u64 * (1 << 20);
            let read = WaySample {
                completed: done - completed,
                moved: Some(moved as u64),
                in_flight: plan.in_flight[0],
                lost,
                ..WaySample::default()
            };
            completed = done;
            tuner.handle_sample(&Sample {
                now: Duration::from_secs_f64(now),
                ways: [read, WaySample::default()],
                rtt: Some(Duration::from_secs_f64(worst)),
                sockets: Sockets { receive_window: Some(1 << 30), ..Sockets::default() },
                connections: plan.connections,
                ..Sample::default()
            });
            most = most.max(plan.connections);
            (moved, lost, worst) = (0.0, false, 0.0);
            let plan = tuner.settled();
            if (now >= 3.0 && plan.settled) || now >= 30.0 {
                let late: Vec<f64> = rates.iter().filter(|r| r.0 > now / 3.0).map(|r| r.1).collect();
                let mean = late.iter().sum::<f64>() / late.len() as f64;
                return Measured { plan, mean, seconds: now, most };
            }
        }
    }
}

/// The figure is what TCP carries, never more than the wire, and what the own queue drops is not
/// taken for loss on the way.
#[test]
fn what_is_said_of_a_path_is_true_whatever_its_rate_and_queue() {
    let mut wrong = Vec::new();
    for mbit in [50.0, 200.0, 1000.0, 5000.0] {
        for rtt_ms in [0.1, 1.0, 15.0, 45.0, 100.0, 300.0] {
            for bdp in [0.1, 1.0, 4.0] {
                let mut path = Bottleneck::new(mbit, rtt_ms, bdp);
                let got = path.measure();
                let share = got.plan.carried[0] / path.rate;
                let off = got.plan.carried[0] / got.mean - 1.0;
                let good = share <= 1.005 && off.abs() <= 0.05 && got.plan.limit.is_none();
                if !good || got.plan.connections != 1 {
                    wrong.push(format!(
                        "{mbit} Mb/s, {rtt_ms} ms, queue {bdp}: {share:.3} of the wire, {:+.1} % off, {} \
                         connections (most {}), {:?}, after {:.1} s\n",
                        100.0 * off,
                        got.plan.connections,
                        got.most,
                        got.plan.limit,
                        got.seconds
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of 72:\n{}", wrong.len(), wrong.concat());
}

/// Where segments are lost at random, it is said, and answered by connections.
#[test]
fn loss_at_random_is_told_from_the_own_queue() {
    for (mbit, rtt_ms, loss) in [(1000.0, 45.0, 0.001), (1000.0, 15.0, 0.01), (200.0, 100.0, 0.005)] {
        let mut path = Bottleneck { loss, bursts: 0.1, ..Bottleneck::new(mbit, rtt_ms, 1.0) };
        let got = path.measure();
        assert!(got.plan.connections >= 4, "{mbit} {rtt_ms} {loss}: {:?}", got.plan);
        assert_eq!(got.plan.limit, Some(Limit::Loss), "{mbit} {rtt_ms} {loss}");
        assert!(got.plan.carried[0] < 1.005 * path.rate);
    }
}

/// On a short path losses hold a connection back as well, and where more connections bring too
/// little to keep them, the loss is named all the same.
#[test]
fn loss_on_a_short_path_is_found() {
    for (mbit, rtt_ms, loss) in [(5000.0, 0.5, 0.01), (5000.0, 2.0, 0.001), (1000.0, 2.5, 0.005)] {
        let mut path = Bottleneck { loss, bursts: 0.1, ..Bottleneck::new(mbit, rtt_ms, 0.3) };
        let got = path.measure();
        let share = got.plan.carried[0] / path.rate;
        assert_eq!(
            got.plan.limit,
            Some(Limit::Loss),
            "{mbit} {rtt_ms} {loss}: {share:.3} after {:.1} s, {:?}",
            got.seconds,
            got.plan
        );
        assert!(share < 1.005, "{mbit} {rtt_ms} {loss}: {share:.3}");
    }
}

/// The delays of a busy processor are not taken for the path's own queue.
#[test]
fn loss_on_a_short_path_is_found_by_a_busy_host() {
    let mut wrong = Vec::new();
    for seed in 0..200 {
        for (mbit, rtt_ms, loss) in [(5000.0, 0.95, 0.003), (2000.0, 2.0, 0.003)] {
            let mut path = Bottleneck { loss, delays: 0.02, seed, ..Bottleneck::new(mbit, rtt_ms, 0.1) };
            let got = path.measure();
            if got.plan.limit != Some(Limit::Loss) {
                wrong.push(format!("{mbit} {rtt_ms} {loss} seed {seed}: {:?}\n", got.plan));
            }
        }
    }
    // Delays in two of four rounds with a loss are possible, and rare.
    assert!(wrong.len() <= 4, "{} of 400:\n{}", wrong.len(), wrong.concat());
}

/// A device that gives less than the path, near by.
#[test]
fn a_slow_device_is_not_taken_for_a_slow_path() {
    for (rtt_ms, storage) in [(0.05, 50e6), (0.2, 200e6), (15.0, 40e6)] {
        let mut path = Path::new(20.0, rtt_ms);
        path.storage = storage;
        path.join();
        path.run(20.0);
        let plan = path.users[0].tuner.settled();
        assert_eq!((plan.connections, plan.limit), (1, Some(Limit::Hosts)), "{rtt_ms} ms: {plan:?}");
        assert!((0.97..1.03).contains(&(plan.carried[0] / storage)), "{rtt_ms} ms: {plan:?}");
    }
    // A path that is full shows that it is.
    let mut path = Path::new(1.0, 45.0);
    path.join();
    path.run(20.0);
    assert_eq!(path.users[0].tuner.settled().limit, None);
}
