//! Sequential reads and writes of a stripe over servers behind a link each,
//! against one plain stream over each link at the same time: the experiment
//! of the Network Storage Manager.

use super::super::block_size;
use super::{MB, Star};
use crate::link;
use crate::process::together;
use crate::program::Load;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_lab::published::striping as said;
use longhaul_lab::striping::{FAST_ETHERNET, GIGABIT_ETHERNET, Transport};
use longhaul_results::published::Statement;
use longhaul_wan::Conditions;
use std::time::Duration;

/// The least share of all links together that is good enough, and of the
/// plain streams where the machine does not carry all links at once.
const FLOOR: f64 = 0.95;

const RATES: [u64; 2] = [FAST_ETHERNET, GIGABIT_ETHERNET];
const ROUND_TRIPS: [Duration; 2] = [Duration::from_micros(150), Duration::from_millis(15)];
const SERVERS: [usize; 5] = [1, 2, 3, 4, 6];
const SIZES: [u64; 3] = [64 << 10, 128 << 10, 1 << 20];

/// Up to this rate all round trips are measured at the same time, each on a
/// star of its own, and for longer: a window has to hold many I/Os.
const SLOW: u64 = FAST_ETHERNET;
const WINDOW: Duration = Duration::from_secs(1);
const WINDOW_SLOW: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
enum Subject {
    /// iperf3, one stream a link.
    Plain,
    /// The stripe, in I/Os of this size.
    Stripe(u64),
}

const SUBJECTS: [Subject; 4] =
    [Subject::Plain, Subject::Stripe(SIZES[0]), Subject::Stripe(SIZES[1]), Subject::Stripe(SIZES[2])];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "star",
        &[
            "links",
            "servers",
            "load",
            "iperf3, Mb/s",
            "of all links",
            "64 KiB, Mb/s",
            "of all links",
            "128 KiB, Mb/s",
            "of all links",
            "1 MiB, Mb/s",
            "of all links",
            "of iperf3",
            "≥ 0.95",
            "published",
        ],
    );
    let mut rows = Vec::new();
    for &rate in setup.rates(&RATES) {
        for &servers in setup.servers(&SERVERS) {
            let trips = setup.round_trips(&ROUND_TRIPS);
            let measure = |rtt: &Duration| measure(setup, rate, *rtt, servers);
            if rate > SLOW {
                trips.iter().try_for_each(|rtt| measure(rtt).map(|found| rows.extend(found)))?;
                continue;
            }
            together(trips, measure)?.into_iter().for_each(|found| rows.extend(found));
        }
    }
    rows.sort_by_key(|row| (row.rate, row.rtt));
    rows.iter().for_each(|row| add_row(&mut section, row));
    notes(&mut section, setup, rows.iter().map(|row| row.late).sum());
    Ok(section)
}

/// What reads or writes brought in one place of the grid.
struct Row {
    rate: u64,
    rtt: Duration,
    servers: usize,
    rw: &'static str,
    /// In the order of [`SUBJECTS`].
    samples: Vec<Samples>,
    /// Measurements that count though the emulator was late.
    late: u32,
}

impl Row {
    fn name(&self) -> String {
        let link = format!("{}, {}", link::rate(self.rate), link::round_trip(self.rtt));
        format!("{link}, {} servers, {}", self.servers, self.rw)
    }
}

fn measure(setup: &Setup, rate: u64, rtt: Duration, servers: usize) -> Result<Vec<Row>> {
    let runtime = if rate > SLOW { WINDOW } else { WINDOW_SLOW };
    let conditions = Conditions::new(rtt, Some(rate));
    let star = Star::start(&Setup { runtime, ..setup.clone() }, conditions, servers, 1)?;
    let device = match &star.uris(0)[..] {
        [one] => (*one).to_owned(),
        many => star.create("bench", "stripe", many, &[])?,
    };
    let link = star.link.as_ref().context("a star has links")?;
    let iperf = star.iperf()?;
    let mut rows = Vec::new();
    for rw in ["read", "write"] {
        let mut row = Row { rate, rtt, servers, rw, samples: Vec::new(), late: 0 };
        let name = row.name();
        let measured = star.setup().interleave_kept(&format!("star: {name}"), &SUBJECTS, |subject| {
            let (measured, late) = link.mostly_on_time(|| match *subject {
                Subject::Plain => star.plain(&iperf, rw == "write"),
                Subject::Stripe(bs) => star.rate(&device, &Load::tuned(rw, bs)),
            })?;
            let remark = if late { " (emulator late)" } else { "" };
            eprintln!("  {name}: {subject:?}: {:.0} Mb/s{remark}", measured / MB);
            row.late += u32::from(late);
            Ok(measured)
        })?;
        row.samples = measured.into_iter().map(Samples).collect();
        rows.push(row);
    }
    Ok(rows)
}

fn add_row(section: &mut Section, row: &Row) {
    let Row { rate, rtt, servers, rw, ref samples, .. } = *row;
    for (subject, samples) in SUBJECTS.iter().zip(samples) {
        section.keep(&row.name(), &format!("{subject:?}"), "bytes/s", samples);
    }
    let [plain, stripes @ ..] = &samples[..] else { return };
    let links = rate as f64 / 8.0 * servers as f64;
    let of_links = |samples: &Samples| samples.median() / links;
    let worst = |ratio: &dyn Fn(&Samples) -> f64| stripes.iter().map(ratio).fold(f64::INFINITY, f64::min);
    let of_plain = worst(&|samples| samples.ratio(plain).median());
    let met = match (worst(&of_links) >= FLOOR, of_links(plain) >= FLOOR, of_plain >= FLOOR) {
        (true, ..) => "yes",
        (false, false, true) => "of iperf3",
        _ => "**no**",
    };
    let mut cells =
        vec![format!("{}, {}", link::rate(rate), link::round_trip(rtt)), servers.to_string(), rw.into()];
    for samples in std::iter::once(plain).chain(stripes) {
        cells.extend([samples.show(MB, 0), format!("{:.2}", of_links(samples))]);
    }
    cells.extend([format!("{of_plain:.2}"), met.into(), published(rate, rtt, servers, rw)]);
    section.row(cells);
}

/// What the Network Storage Manager reached in the same place, as a share of the links of
/// all servers and of one link: how many ports its client had is not said.
fn published(rate: u64, rtt: Duration, servers: usize, rw: &str) -> String {
    let found = Transport::of_rate(rate).and_then(|transport| transport.published.get(servers - 1));
    let Some(found) = found.filter(|_| rtt == ROUND_TRIPS[0] && rw == "read") else { return "–".into() };
    let of_links = |statement: &Statement| {
        let one = statement.value() * 8.0 / rate as f64;
        match servers {
            1 => format!("{one:.2}"),
            _ => format!("{:.2} of all, {one:.2} of one", one / servers as f64),
        }
    };
    match rate == RATES[1] {
        true => format!("{}; offload {}", of_links(found), of_links(&said::OFFLOAD[servers - 1])),
        false => of_links(found),
    }
}

fn notes(section: &mut Section, setup: &Setup, late: u32) {
    let sizes = SIZES.map(block_size).join(", ");
    section.notes.push(format!(
        "Windows of 1 s (at 100 Mb/s 2 s, both round trips at the same time on a star each) after 0.4 s and 30 \
         round trips of load. A new process assembles the array each time. \
         Stripe units are the default (256 KiB); I/Os of {sizes}; depth is left to the program. One server: its \
         device without an array"
    ));
    section.notes.push(
        "iperf3: a client and a server a link, all at the same time; their sum. `of iperf3` is the least of the \
         three sizes. Where iperf3 does not reach 0.95 of all links either, the two processors are what \
         limits, and the floor is 0.95 of iperf3 (`of iperf3` in the column of the floor)"
            .into(),
    );
    section.notes.push(format!(
        "{late} measurements count though 1 % of the emulator's packets were late twice in a row, because the \
         processors were busy"
    ));
    section.notes.push(format!(
        "Published: {}: 250 MB read over Fast Ethernet and Gigabit Ethernet in blocks of 1 MB, the latter also with \
         a card that does TCP itself, as a share of the links of all servers and of one link. How many ports the \
         client had is not said there; with one, the links of all servers could not be filled",
        said::FAST_ETHERNET[0].source()
    ));
    section.commands = super::commands(setup, RATES[0], ROUND_TRIPS[1], 4, "stripe");
    let congestion = &setup.congestion;
    section.commands.push(super::client(&format!(
        "longhaul bench array:scratch --rw read --bs 64KiB --runtime 1s --ramp 850ms --congestion {congestion}"
    )));
}
