//! The choice of paths in virtual time: pipes with a rate and a delay, and a load that keeps a number
//! of requests under way.

use super::*;
use std::collections::VecDeque;

const MIB: u64 = 1 << 20;

/// A path that delivers in the order of sending.
struct Pipe {
    /// Bytes per second.
    rate: f64,
    /// Seconds.
    round_trip: f64,
    /// When the last byte sent leaves the pipe, without the delay.
    free: f64,
    /// Completion and size of what is in flight.
    in_flight: VecDeque<(f64, u64)>,
    delivered: u64,
    requests: u64,
    /// Completion of the last one.
    heard: f64,
}

impl Pipe {
    fn new(megabits: f64, milliseconds: f64) -> Pipe {
        Pipe {
            rate: megabits * 1e6 / 8.0,
            round_trip: milliseconds / 1e3,
            free: 0.0,
            in_flight: VecDeque::new(),
            delivered: 0,
            requests: 0,
            heard: 0.0,
        }
    }

    fn send(&mut self, now: f64, bytes: u64) {
        if self.in_flight.is_empty() {
            self.heard = now;
        }
        self.free = self.free.max(now) + bytes as f64 / self.rate;
        self.in_flight.push_back((self.free + self.round_trip, bytes));
    }

    fn next(&self) -> f64 {
        self.in_flight.front().map_or(f64::INFINITY, |(at, _)| *at)
    }

    /// What a tuner has found once something was delivered: the window is twice what fills the path.
    fn load(&self, now: f64) -> PathLoad {
        let known = self.requests > 0;
        let in_flight = self.in_flight.iter().map(|(_, bytes)| bytes).sum();
        let silent = if self.in_flight.is_empty() { 0.0 } else { now - self.heard };
        PathLoad {
            state: PathState::Optimized,
            in_flight,
            ahead: 0,
            window: ((2.0 * self.rate * self.round_trip) as u64).max(2 * MIB),
            rate: if known { self.rate } else { 0.0 },
            full: known,
            round_trip: Duration::from_secs_f64(self.round_trip),
            silent: Duration::from_secs_f64(silent),
        }
    }
}

/// Keeps `depth` requests of `bytes` under way for so many seconds; a request's longest time to
/// complete in seconds.
fn run(pipes: &mut [Pipe], depth: usize, bytes: u64, seconds: f64) -> f64 {
    let mut waiting: VecDeque<f64> = (0..depth).map(|_| 0.0).collect();
    let mut begun: Vec<VecDeque<f64>> = pipes.iter().map(|_| VecDeque::new()).collect();
    let (mut now, mut longest) = (0.0, 0.0f64);
    while now < seconds {
        let mut loads: Vec<PathLoad> = pipes.iter().map(|pipe| pipe.load(now)).collect();
        let mut place = 0;
        while place < waiting.len() && loads.iter().any(|load| load.has_room()) {
            match choose(&loads, bytes) {
                Choice::Send(path) => {
                    loads[path].in_flight += bytes;
                    pipes[path].send(now, bytes);
                    begun[path].extend(waiting.remove(place));
                }
                Choice::Wait(path) => {
                    loads[path].ahead += bytes;
                    place += 1;
                }
                Choice::None => break,
            }
        }
        let next = pipes.iter().map(Pipe::next).fold(f64::INFINITY, f64::min);
        // Nothing completes: it is looked at again nevertheless.
        now = next.min(now + 0.02);
        for (pipe, begun) in pipes.iter_mut().zip(&mut begun) {
            while pipe.next() <= now {
                let Some((at, bytes)) = pipe.in_flight.pop_front() else { break };
                pipe.delivered += bytes;
                pipe.requests += 1;
                pipe.heard = at;
                longest = longest.max(at - begun.pop_front().unwrap_or(at));
                waiting.push_back(now);
            }
        }
    }
    longest
}

fn share_of_sum(pipes: &[Pipe], seconds: f64) -> f64 {
    let delivered: u64 = pipes.iter().map(|pipe| pipe.delivered).sum();
    delivered as f64 / seconds / pipes.iter().map(|pipe| pipe.rate).sum::<f64>()
}

#[test]
fn unequal_paths_carry_their_sum() {
    for (a, b) in
        [((300.0, 5.0), (700.0, 40.0)), ((700.0, 5.0), (300.0, 40.0)), ((1000.0, 1.0), (1000.0, 1.0))]
    {
        let mut pipes = [Pipe::new(a.0, a.1), Pipe::new(b.0, b.1)];
        run(&mut pipes, 32, MIB, 20.0);
        let share = share_of_sum(&pipes, 20.0);
        assert!(share > 0.97, "{a:?} and {b:?}: {share}");
    }
}

#[test]
fn small_requests_take_the_short_path_while_it_has_room() {
    let mut pipes = [Pipe::new(300.0, 5.0), Pipe::new(700.0, 40.0)];
    let longest = run(&mut pipes, 32, 4096, 5.0);
    assert!(pipes[0].requests > 100 * pipes[1].requests, "{} and {}", pipes[0].requests, pipes[1].requests);
    assert!(longest < 0.041, "{longest}");
}

#[test]
fn a_slow_path_does_not_delay() {
    let mut pipes = [Pipe::new(1.0, 5.0), Pipe::new(1000.0, 5.0)];
    run(&mut pipes, 32, MIB, 20.0);
    assert!(share_of_sum(&pipes, 20.0) > 0.95);
    // What was sent to find its rate, and no more.
    assert!(pipes[0].in_flight.len() + pipes[0].requests as usize <= 3);
}

#[test]
fn a_silent_path_gets_no_more() {
    let ms = Duration::from_millis;
    let near = PathLoad { in_flight: 16_384, ..Pipe::new(500.0, 5.0).load(0.0) };
    let far = Pipe::new(500.0, 50.0).load(0.0);
    assert_eq!(choose(&[PathLoad { silent: ms(20), ..near }, far], 4096), Choice::Send(0));
    assert_eq!(choose(&[PathLoad { silent: ms(200), ..near }, far], 4096), Choice::Send(1));
}

#[test]
fn states_go_before_rates() {
    let load = Pipe::new(100.0, 10.0).load(0.0);
    let fast = PathLoad { rate: 1e9, full: true, state: PathState::NonOptimized, ..load };
    assert_eq!(choose(&[load, fast], 4096), Choice::Send(0));
    let away = PathLoad { state: PathState::Lost, ..load };
    assert_eq!(choose(&[away, fast], 4096), Choice::Send(1));
    let inaccessible = PathLoad { state: PathState::Inaccessible, ..fast };
    assert_eq!(choose(&[away, inaccessible], 4096), Choice::None);
}

//= test: NVMe Base 2.1, Asymmetric Namespace Access
#[test]
fn no_request_is_sent_without_access() {
    use AnaState::{Change, Inaccessible, NonOptimized, Optimized, PersistentLoss, Reserved};
    let load = |access| PathLoad { state: PathState::of(access), ..Pipe::new(100.0, 10.0).load(0.0) };
    for without in [Inaccessible, Change, PersistentLoss, Reserved(9)] {
        assert_eq!(choose(&[load(without), load(without)], 4096), Choice::None, "{without:?}");
        assert_eq!(choose(&[load(without), load(NonOptimized)], 4096), Choice::Send(1), "{without:?}");
        assert_eq!(choose(&[load(Optimized), load(without)], 4096), Choice::Send(0), "{without:?}");
    }
    // However slow the optimized one is, and also if it has no room.
    let full = PathLoad { rate: 1e3, full: true, in_flight: 2 * MIB, ..load(Optimized) };
    assert_eq!(choose(&[load(NonOptimized), full], 4096), Choice::Wait(1));
}

#[test]
fn what_a_path_has_refused_goes_to_another_one_if_it_can() {
    use PathState::{Inaccessible, Lost, NonOptimized, Optimized};
    assert_eq!(choose_again(&[Optimized, Optimized], 0), Some(1));
    assert_eq!(choose_again(&[Optimized, NonOptimized], 0), Some(1), "the first one has refused it");
    assert_eq!(choose_again(&[NonOptimized, Inaccessible, Optimized], 1), Some(2));
    assert_eq!(choose_again(&[Optimized, Lost], 0), Some(0));
    assert_eq!(choose_again(&[Inaccessible, Lost], 0), None);
}

#[test]
fn a_request_waits_for_the_path_on_which_it_completes_first() {
    let ms = Duration::from_millis;
    let near = PathLoad { rate: 100e6, full: true, in_flight: 2 * MIB, ..Pipe::new(800.0, 1.0).load(0.0) };
    let far = PathLoad { round_trip: ms(100), in_flight: 0, ..near };
    assert_eq!(choose(&[near, far], MIB), Choice::Wait(0));
    let queued = PathLoad { ahead: 16 * MIB, ..near };
    assert_eq!(choose(&[queued, far], MIB), Choice::Send(1));
}
