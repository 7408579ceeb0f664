//! Comparisons of the study: one for each published statement about two values.

use super::{
    COMPLETION, DEVICES, FAR, IN_CAPSULE, NEAR, THROUGHPUT, Variant, WORKLOADS, distances, name_of, rw, said,
    variants,
};
use crate::study::Settings;
use longhaul_results::published::Statement;
use longhaul_results::record::Question;
use std::time::Duration;

/// Workloads by their index in [`WORKLOADS`].
const ONE: usize = 0;
const TEN: usize = 1;
const MANY: usize = 3;

/// Identifies the cell of a workload.
#[derive(Clone, Copy)]
struct WorkloadCell {
    rtt: Option<Duration>,
    variant: Variant,
    device: usize,
    workload: usize,
    write: bool,
    what: &'static str,
}

impl WorkloadCell {
    fn name(self) -> String {
        let device = DEVICES[self.device].1;
        name_of(self.rtt, self.variant, device, (self.workload, self.write), self.what)
    }

    /// Whether it is in the plan.
    fn is_wanted(self, quick: bool) -> bool {
        let how = (self.write, self.rtt == Some(FAR));
        self.variant.fits(DEVICES[self.device].0, self.workload, how, quick)
    }

    fn label(self) -> String {
        let files = WORKLOADS[self.workload].files;
        let of = if files == 1 { "1 file".into() } else { format!("{files} files") };
        format!("{of}, {}, {}", rw(self.write), DEVICES[self.device].1)
    }
}

/// A comparison of the pairs in `all` whose cells are both in the plan; `None` without any.
fn ask(
    title: &str,
    said: Option<&Statement>,
    quick: bool,
    all: impl IntoIterator<Item = (WorkloadCell, WorkloadCell)>,
) -> Option<Question> {
    let mut question = Question::new(title, said);
    for (of, to) in all.into_iter().filter(|(of, to)| of.is_wanted(quick) && to.is_wanted(quick)) {
        question = question.pair(of.label(), of.name(), to.name());
    }
    (!question.pairs.is_empty()).then_some(question)
}

/// The cells of all combinations of devices, workloads and directions.
fn over(
    rtt: Option<Duration>,
    devices: &[usize],
    workloads: &[usize],
    ways: &[bool],
    what: &'static str,
) -> Vec<WorkloadCell> {
    let mut all = Vec::new();
    for &write in ways {
        for &workload in workloads {
            for &device in devices {
                all.push(WorkloadCell { rtt, variant: Variant::USUAL, device, workload, write, what });
            }
        }
    }
    all
}

/// Titles of the questions whose answers belong to the summary: what distance changes.
const SUMMARY: [&str; 4] = [
    "One file 15 ms away, against 0.15 ms",
    "One file written, against read, 15 ms away",
    "1,000 files written, against 10, 15 ms away",
    "Several files read from six striped devices, against one, 15 ms away",
];

pub(super) fn questions(settings: &Settings) -> Vec<Question> {
    let quick = settings.quick;
    let (raw, ext4, xfs, striped) = (0, 1, 2, 3);
    let (every, single) = ([raw, ext4, xfs, striped], [raw, ext4, xfs]);
    let workloads = [0, 1, 2, 3];
    let both = [true, false];
    let has_links = settings.targets.is_empty();
    let mut all = Vec::new();
    for rtt in distances(settings) {
        let near = rtt == Some(NEAR);
        let of_near = |statement: &'static Statement| near.then_some(statement);
        let of_far = |statement: &'static Statement| (rtt == Some(FAR)).then_some(statement);
        let at = rtt.map_or(String::new(), |rtt| format!(", {} ms away", rtt.as_secs_f64() * 1e3));
        let title = |words: &str| format!("{words}{at}");
        let mut push = |words: &str, said: Option<&Statement>, numbers: Vec<(WorkloadCell, WorkloadCell)>| {
            all.extend(ask(&title(words), said, quick, numbers));
        };
        let with = |numbers: Vec<WorkloadCell>, change: &dyn Fn(WorkloadCell) -> WorkloadCell| {
            numbers.into_iter().map(|number| (number, change(number))).collect::<Vec<_>>()
        };
        let files = over(rtt, &[ext4, xfs], &workloads, &both, THROUGHPUT);
        push(
            "Files on ext4 and XFS, against the raw device",
            of_near(&said::NEAR_ALIKE),
            with(files, &|n| WorkloadCell { device: raw, ..n }),
        );
        let several = over(rtt, &[striped], &[1, 2, 3], &[false], THROUGHPUT);
        push(
            "Several files read from six striped devices, against one",
            of_near(&said::NEAR_STRIPE_READS),
            with(several, &|n| WorkloadCell { device: xfs, ..n }),
        );
        let one = over(rtt, &every, &[ONE], &[true], THROUGHPUT);
        push(
            "One file written, against read",
            of_near(&said::NEAR_FEW_WRITES),
            with(one, &|n| WorkloadCell { write: false, ..n }),
        );
        let latency = over(rtt, &every, &workloads, &[true], COMPLETION);
        push(
            "Completion latency written, against read",
            of_near(&said::NEAR_WRITE_LATENCY),
            with(latency, &|n| WorkloadCell { write: false, ..n }),
        );
        let many = over(rtt, &single, &[MANY], &[true], THROUGHPUT);
        let said = of_near(&said::NEAR_MANY_WRITES).or(of_far(&said::FAR_MANY_WRITES));
        push("1,000 files written, against 10", said, with(many, &|n| WorkloadCell { workload: TEN, ..n }));
        for (write, said) in [(false, &said::FAR_READS), (true, &said::FAR_WRITES)] {
            let several = over(rtt, &every, &[TEN], &[write], THROUGHPUT);
            let words = format!("10 files {}, against one", if write { "written" } else { "read" });
            push(&words, of_far(said), with(several, &|n| WorkloadCell { workload: ONE, ..n }));
        }
        let one = over(rtt, &[xfs], &[ONE], &[true], THROUGHPUT);
        push(
            "One file written to XFS, against ext4",
            of_far(&said::FAR_XFS),
            with(one, &|n| WorkloadCell { device: ext4, ..n }),
        );
        if !has_links {
            continue;
        }
        for (write, devices, said) in [
            (false, &every[..], &said::IN_CAPSULE_READS),
            (true, &[raw][..], if near { &said::IN_CAPSULE_NEAR_RAW } else { &said::IN_CAPSULE_FAR }),
            (
                true,
                &[ext4, xfs, striped][..],
                if near { &said::IN_CAPSULE_NEAR } else { &said::IN_CAPSULE_FAR },
            ),
        ] {
            for what in [THROUGHPUT, COMPLETION] {
                let numbers = over(rtt, devices, &workloads, &[write], what).into_iter();
                let numbers =
                    numbers.map(|n| WorkloadCell { variant: Variant::capsule(IN_CAPSULE[1]), ..n }).collect();
                let on = if devices == [raw] { " on the raw device" } else { "" };
                let words =
                    format!("16 KiB in the capsule, against 8: {} of {}{on}", what.to_lowercase(), rw(write));
                push(
                    &words,
                    Some(said),
                    with(numbers, &|n| WorkloadCell { variant: Variant::capsule(IN_CAPSULE[0]), ..n }),
                );
            }
        }
        for what in [THROUGHPUT, COMPLETION] {
            let logs = over(rtt, &[xfs, striped], &workloads, &[true], what);
            let words = format!("Log buffers of 256 KiB, against 32: {} of writes", what.to_lowercase());
            push(
                &words,
                of_far(&said::LOG_FAR),
                with(logs, &|n| WorkloadCell { variant: Variant::LOG, ..n }),
            );
        }
        if variants().contains(&Variant::OWN) {
            let own = over(rtt, &every, &workloads, &both, THROUGHPUT).into_iter();
            let own = own.map(|n| WorkloadCell { variant: Variant::OWN, ..n }).collect();
            push(
                "This machine's congestion control, against CUBIC",
                None,
                with(own, &|n| WorkloadCell { variant: Variant::USUAL, ..n }),
            );
        }
    }
    if has_links {
        let one = over(Some(FAR), &every, &[ONE], &both, THROUGHPUT).into_iter();
        let pairs = one.map(|n| (n, WorkloadCell { rtt: Some(NEAR), ..n }));
        all.extend(ask("One file 15 ms away, against 0.15 ms", Some(&said::FAR_ONE), quick, pairs));
    }
    for question in &mut all {
        question.in_summary = SUMMARY.contains(&question.title.as_str());
    }
    all
}
