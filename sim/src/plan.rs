//! The choices of a seed: the array, its disks, the load, and the faults.

use crate::disk::Make;
use crate::model::Fragile;
use crate::outcome::Replay;
use crate::random::Random;
use longhaul_array::{Layout, Mechanism};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What a plan has more of than others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Some of everything.
    Mixed,
    /// Long pauses, after which no region is marked; whole stripes that are
    /// zeroed and discarded; crashes in the middle of that, and after repairs.
    Quiet,
    /// More stripes than a rebuild fills in one batch, and more regions than
    /// one.
    Long,
    /// Members so many that a superblock is more than a disk writes as a whole;
    /// crashes while superblocks are written.
    Wide,
    /// Faults at rest are repaired, the repair is lost with the caches in a crash, and as many
    /// members as the array can do without leave after it.
    Repair,
    /// Several hosts that take the array over from each other; disks that do not
    /// fail. No seed has it by itself.
    Hosts,
}

impl Theme {
    /// All of them.
    pub const ALL: [Theme; 6] =
        [Theme::Mixed, Theme::Quiet, Theme::Long, Theme::Wide, Theme::Repair, Theme::Hosts];
}

impl FromStr for Theme {
    type Err = String;

    fn from_str(text: &str) -> Result<Theme, String> {
        let named = |theme: &Theme| format!("{theme:?}").eq_ignore_ascii_case(text);
        Theme::ALL.into_iter().find(named).ok_or_else(|| {
            let names = Theme::ALL.map(|theme| format!("{theme:?}").to_lowercase()).join(", ");
            format!("'{text}' is no theme: use one of {names}")
        })
    }
}

/// Everything about a simulation but the single choices in it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where all chance comes from.
    pub seed: u64,
    /// The layouts that the seed chooses from: of others it stands for
    /// something else.
    pub layouts: Vec<Layout>,
    /// How blocks are spread.
    pub layout: Layout,
    /// Number of members of the array.
    pub width: usize,
    /// Stripe unit in bytes.
    pub unit: u64,
    /// Number of stripes of the array.
    pub rows: u64,
    /// Bytes of a disk's logical block.
    pub block: u32,
    /// Whether disks have a cache that a power loss empties.
    pub volatile: bool,
    /// About how long an operation on a disk takes.
    pub latency: Duration,
    /// Whether whole stripes go through the journal, too.
    pub journal_all: bool,
    /// Whether more may break than redundancy covers: then errors are
    /// allowed, and wrong content is not.
    pub beyond: bool,
    /// Lives of the array, each but the last ended by a crash.
    pub lives: u32,
    /// Tasks that put load on it.
    pub clients: u32,
    /// Operations of each in a life.
    pub operations: u32,
    /// Stragglers, losses, returns and silent faults in a life.
    pub faults: u32,
    /// Bytes that a disk says are to be kept in flight, if it says so.
    pub window: Option<u64>,
    /// Whether disks say that they hang.
    pub knows: bool,
    /// The kind of fault that it has more of than other plans.
    pub theme: Theme,
    /// What keeps the array right and is left out, to see that it is missed.
    pub without: Option<Mechanism>,
}

/// Widths of most plans at most: more of the same takes more time.
const WIDTH_MAX: u64 = 7;
/// Widths of wide plans: the superblock of eight members is longer than 512
/// bytes.
const WIDE: [u64; 2] = [8, 12];
/// Stripes of long plans: the first batch of a rebuild has 64.
const LONG: [u64; 2] = [65, 320];
/// Plans in a hundred that are quiet, long, wide, and about repairs.
const SHARES: [u64; 4] = [12, 12, 8, 4];

impl Plan {
    /// The plan of a seed; of one of `layouts`.
    #[must_use]
    pub fn new(seed: u64, layouts: &[Layout]) -> Plan {
        let mut random = Random::new(seed);
        let layout = random.pick(layouts);
        let width = match layout {
            Layout::Stripe | Layout::Parity => random.between(2, WIDTH_MAX),
            Layout::Mirror => random.between(2, 4),
            Layout::StripeMirror => 2 * random.between(1, 3),
            Layout::DoubleParity => random.between(3, WIDTH_MAX),
        };
        let plan = Plan {
            seed,
            layouts: layouts.to_vec(),
            layout,
            width: width as usize,
            unit: random.pick(&[4096, 4096, 8192, 16 << 10, 64 << 10]),
            rows: random.between(1, 24),
            block: random.pick(&[512, 4096]),
            volatile: random.chance(80),
            latency: Duration::from_micros(random.pick(&[20, 100, 1000, 15_000])),
            journal_all: random.chance(30),
            beyond: random.chance(10),
            lives: random.between(1, 4) as u32,
            clients: random.between(1, 6) as u32,
            operations: random.between(5, 60) as u32,
            faults: random.below(6) as u32,
            window: random.pick(&[None, None, Some(4 << 10), Some(64 << 10), Some(1 << 20)]),
            knows: random.chance(50),
            theme: Theme::Mixed,
            without: None,
        };
        // A generator of its own: the other choices of a seed are unaffected.
        let mut random = Random::new(seed ^ 0x74_6865_6d65);
        match random.below(100) {
            n if n < SHARES[0] => plan.quiet(&mut random),
            n if n < SHARES[0] + SHARES[1] => plan.long(&mut random),
            n if n < SHARES[0] + SHARES[1] + SHARES[2] => plan.wide(&mut random),
            n if n < SHARES.iter().sum() => plan.repair(&mut random),
            _ => plan,
        }
    }

    /// The plan of a seed with this theme.
    #[must_use]
    pub fn themed(seed: u64, layouts: &[Layout], theme: Theme) -> Plan {
        let (plan, mut random) = (Plan::new(seed, layouts), Random::new(seed ^ 0x74_6865_6d65));
        match theme {
            _ if plan.theme == theme => plan,
            Theme::Mixed => Plan { theme, ..plan },
            Theme::Quiet => plan.quiet(&mut random),
            Theme::Long => plan.long(&mut random),
            Theme::Wide => plan.wide(&mut random),
            Theme::Repair => plan.repair(&mut random),
            Theme::Hosts => plan.hosts(&mut random),
        }
    }

    fn hosts(self, random: &mut Random) -> Plan {
        Plan {
            theme: Theme::Hosts,
            rows: random.between(1, 8),
            latency: Duration::from_micros(random.pick(&[20, 100, 1000])),
            lives: random.between(2, 5) as u32,
            clients: random.between(1, 3) as u32,
            operations: random.between(5, 20) as u32,
            beyond: false,
            ..self
        }
    }

    fn quiet(self, random: &mut Random) -> Plan {
        Plan {
            theme: Theme::Quiet,
            lives: random.between(2, 5) as u32,
            clients: random.between(1, 2) as u32,
            operations: random.between(5, 30) as u32,
            faults: random.between(1, 6) as u32,
            latency: Duration::from_micros(random.pick(&[100, 1000])),
            journal_all: false,
            ..self
        }
    }

    fn long(self, random: &mut Random) -> Plan {
        Plan {
            theme: Theme::Long,
            rows: random.between(LONG[0], LONG[1]),
            unit: random.pick(&[4096, 4096, 8192]),
            operations: random.between(5, 30) as u32,
            faults: random.between(2, 8) as u32,
            ..self
        }
    }

    fn repair(self, random: &mut Random) -> Plan {
        Plan {
            theme: Theme::Repair,
            rows: random.between(1, 4),
            unit: random.pick(&[4096, 8192]),
            volatile: true,
            latency: Duration::from_micros(random.pick(&[20, 100, 1000])),
            lives: random.between(3, 7) as u32,
            clients: random.between(1, 2) as u32,
            operations: random.between(2, 10) as u32,
            beyond: false,
            ..self
        }
    }

    fn wide(self, random: &mut Random) -> Plan {
        let width = random.between(WIDE[0], WIDE[1]);
        Plan {
            theme: Theme::Wide,
            width: (if self.layout == Layout::StripeMirror { width & !1 } else { width }) as usize,
            rows: random.between(1, 6),
            unit: random.pick(&[4096, 8192]),
            block: 512,
            lives: random.between(2, 5) as u32,
            operations: random.between(5, 30) as u32,
            faults: random.between(1, 6) as u32,
            ..self
        }
    }

    /// What a crash leaves undefined, in stripes of so many blocks, where the content of a member
    /// is wrong (`marred`) or one is missing or was not yet repaired (`hurt`).
    pub(crate) fn fragile(&self, stripe: usize, marred: bool, hurt: bool) -> Fragile {
        match self.layout {
            // A copy was wrong already when both were being written: neither
            // matches its checksum.
            Layout::Mirror | Layout::StripeMirror if marred => Fragile::Dirty,
            // Stripes that were being written as a whole, unless they go
            // through the journal.
            Layout::Parity | Layout::DoubleParity if hurt && !self.journal_all => Fragile::Whole(stripe),
            _ => Fragile::Nothing,
        }
    }

    /// What the disks are like, `size` bytes each.
    #[must_use]
    pub fn make(&self, size: u64) -> Make {
        let Plan { block, volatile, latency, window, knows, .. } = *self;
        Make { size, block, volatile, latency, window, knows }
    }
}

impl Replay for Plan {
    fn again(&self) -> String {
        let names: Vec<&str> = self.layouts.iter().map(|layout| layout.name()).collect();
        let only = if self.layouts == Layout::ALL { "" } else { " --layout " };
        let names = if only.is_empty() { String::new() } else { names.join(",") };
        let without = self.without.map(|what| format!(" --without {what:?}").to_lowercase());
        let without = without.unwrap_or_default();
        let usual = Plan::new(self.seed, &self.layouts).theme;
        let theme = (self.theme != usual).then(|| format!(" --theme {:?}", self.theme).to_lowercase());
        let theme = theme.unwrap_or_default();
        format!("cargo run --release -p longhaul-sim -- --seed {}{only}{names}{theme}{without}", self.seed)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: {} of {} with units of {} KiB, {} stripes{}{}; disks with blocks of {} bytes, {}, {:?}{}{}; {} lives of \
             {} × {} operations, {} faults each",
            self.theme,
            self.layout,
            self.width,
            self.unit >> 10,
            self.rows,
            if self.journal_all { ", all through the journal" } else { "" },
            if self.beyond { ", more broken than redundancy covers" } else { "" },
            self.block,
            if self.volatile { "volatile cache" } else { "no cache" },
            self.latency,
            self.window.map_or_else(String::new, |bytes| format!(", {bytes} bytes at a time")),
            if self.knows { ", which know when they hang" } else { "" },
            self.lives,
            self.clients,
            self.operations,
            self.faults
        )
    }
}
