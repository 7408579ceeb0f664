//! The tuners of a stage with simulated threads, files and time.

use super::gate::Gate;
use super::service::ServiceTimes;
use super::workers::Workers;
use super::*;
use crate::wire::Stage;
use futures_util::future::{Either, select};
use longhaul_engine::{Engine, now, sleep, spawn};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::Arc;

const MS: Duration = Duration::from_millis(1);

/// What a stage of simulated threads did.
#[derive(Debug)]
struct Copied {
    time: Duration,
    /// Numbers of threads, the first one included.
    numbers: Vec<usize>,
}

/// Threads that complete files, each of which takes `time` with so many at once.
struct Simulation {
    left: Cell<u32>,
    done: Cell<u64>,
    active: Cell<usize>,
    time: Box<dyn Fn(usize) -> Duration>,
    service: ServiceTimes,
    gate: Arc<Gate>,
}

impl Simulation {
    async fn thread(self: Rc<Self>, index: usize) {
        while self.left.get() > 0 {
            // The gate would block the engine's thread.
            if index >= self.gate.active() {
                sleep(MS).await;
                continue;
            }
            self.left.set(self.left.get() - 1);
            self.active.set(self.active.get() + 1);
            let service = self.service.begin();
            sleep((self.time)(self.active.get())).await;
            self.service.end(service, 1);
            self.active.set(self.active.get() - 1);
            self.done.set(self.done.get() + 1);
        }
    }
}

/// Reads so many files; each takes `time` with so many at once. `taken` says whether the next
/// stage can take more.
fn read(
    files: u32,
    concurrency: Concurrency,
    taken: bool,
    time: impl Fn(usize) -> Duration + 'static,
) -> Copied {
    let engine = Engine::simulated(1).expect("an engine");
    engine.block_on(async move {
        let simulation = Rc::new(Simulation {
            left: Cell::new(files),
            done: Cell::new(0),
            active: Cell::new(0),
            time: Box::new(time),
            service: ServiceTimes::default(),
            gate: Arc::new(Gate::new(concurrency.start())),
        });
        let shared = Rc::clone(&simulation);
        let start = move |index| {
            spawn(Rc::clone(&shared).thread(index)).detach();
            Ok(())
        };
        let workers = Workers::new(Arc::clone(&simulation.gate), start).expect("started");
        let (began, numbers) = (now(), RefCell::new(vec![concurrency.start()]));
        let stage = TunedStage {
            stage: Stage::Read,
            concurrency,
            start: concurrency.start(),
            most: concurrency.most(),
            look: Box::new(|| StageProgress {
                files: simulation.done.get(),
                bytes: 0,
                limits: taken && simulation.left.get() > 0,
            }),
            set: Box::new(|number| workers.set(number)),
            kept: None,
            files: Some(WaitingFiles {
                service: &simulation.service,
                waiting: Box::new(|| if taken { simulation.left.get() as usize } else { 0 }),
            }),
        };
        let path = Connections { streams: Vec::new(), sends: true };
        let (monitor, changed) = (Monitor::new(), |tuned: Tuned| numbers.borrow_mut().push(tuned.to.into()));
        let tuning = follow(path, vec![stage], &monitor, changed, || {});
        let complete = async {
            while simulation.done.get() < u64::from(files) {
                sleep(MS).await;
            }
            now().saturating_duration_since(began)
        };
        let time = match select(pin!(tuning), pin!(complete)).await {
            Either::Left(_) => unreachable!("tuning goes on"),
            Either::Right((time, _)) => time,
        };
        Copied { time, numbers: numbers.take() }
    })
}

/// The time with the number that the tuner finds, as a share of that with a fixed number.
fn share(files: u32, fixed: usize, time: fn(usize) -> Duration) -> (f64, Copied) {
    let reference = read(files, Concurrency::Fixed(fixed), true, time);
    let copied = read(files, Concurrency::Measured, true, time);
    (copied.time.as_secs_f64() / reference.time.as_secs_f64(), copied)
}

#[test]
fn the_latency_of_a_thousand_files_is_hidden_nearly_as_by_64_threads() {
    let (share, copied) = share(1000, 64, |_| 45 * MS);
    assert!(share <= 1.25, "{share:.2} of the time of 64: {copied:?}");
    assert_eq!(copied.numbers, [4, 16, 64]);
}

#[test]
fn latency_that_varies_is_hidden_as_well() {
    // 23 to 67 ms.
    fn varied() -> impl Fn(usize) -> Duration {
        let count = Cell::new(0_u32);
        move |_| {
            count.set(count.get() + 1);
            MS * (23 + count.get() * 7919 % 45)
        }
    }
    let reference = read(1000, Concurrency::Fixed(64), true, varied());
    let copied = read(1000, Concurrency::Measured, true, varied());
    let share = copied.time.as_secs_f64() / reference.time.as_secs_f64();
    assert!(share <= 1.35, "{share:.2} of the time of 64: {copied:?}");
}

#[test]
fn few_files_with_long_latency_are_not_slower_than_before() {
    // Eight with four threads, then the others.
    let (share, copied) = share(100, 16, |_| 45 * MS);
    assert!(share <= 1.5, "{share:.2} of the time of 16: {copied:?}");
}

#[test]
fn a_disk_that_seeks_keeps_few_threads() {
    // Each file more at a time delays all of them by a seek and more: 250 files a second with one
    // at a time, 111 with four, 29 with 16.
    let seeks: fn(usize) -> Duration = |at_once| (4 + 2 * (at_once * (at_once - 1)) as u32) * MS;
    let (share, copied) = share(1000, 4, seeks);
    assert!(share <= 1.15, "{share:.2} of the time of 4: {copied:?}");
    let above: Vec<usize> = copied.numbers.iter().copied().filter(|number| *number > 6).collect();
    assert_eq!(above, [16], "16 are tried once: {copied:?}");
    assert!(copied.numbers.last().is_some_and(|last| *last <= 4), "{copied:?}");
}

#[test]
fn a_disk_at_its_limit_gets_no_more_threads_than_reach_it() {
    // 100 files a second, however many at once.
    let (share, copied) = share(3000, 4, |at_once| 10 * at_once as u32 * MS);
    assert!(share <= 1.02, "{share:.2} of the time of 4: {copied:?}");
    assert!(copied.numbers.iter().all(|number| *number <= 16), "{copied:?}");
    assert!(copied.numbers.last().is_some_and(|last| *last <= 4), "{copied:?}");
}

#[test]
fn a_storage_that_hides_the_latency_of_twelve_gets_about_as_many() {
    let (share, copied) = share(4000, 12, |at_once| 30 * MS * at_once.max(12) as u32 / 12);
    assert!(share <= 1.1, "{share:.2} of the time of 12: {copied:?}");
    assert!(copied.numbers.last().is_some_and(|last| (9..=16).contains(last)), "{copied:?}");
}

#[test]
fn short_files_and_a_stage_that_others_hold_up_keep_their_number() {
    let short = read(20_000, Concurrency::Measured, true, |at_once| {
        Duration::from_micros(20) * (at_once.max(2) as u32) / 2
    });
    assert!(short.numbers.iter().all(|number| *number <= 6), "{short:?}");
    let held_up = read(1000, Concurrency::Measured, false, |_| 45 * MS);
    assert_eq!(held_up.numbers, [4]);
}
