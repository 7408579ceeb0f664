//! Causes and remedies, for people.

use super::{Cause, Change, End, Finding, GAIN_MIN, Remedy};
use std::fmt;

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fixed = match self {
            Cause::SlowMetadata(end) => {
                return write!(
                    f,
                    "metadata operations on the {end}'s files are slow (its metadata server, if it has one)"
                );
            }
            Cause::Processor(end) => return write!(f, "a processor of the {end} has no time left"),
            Cause::Others(end) => return write!(f, "other programs take the {end}'s processors"),
            Cause::PowerSaving(end) => return write!(f, "the {end}'s processors save power"),
            Cause::Interrupts(end) => {
                return write!(f, "one processor of the {end} serves all interrupts of the network");
            }
            Cause::SlowOpen => "the source is slow to open files",
            Cause::SlowRead => "the source's storage is read as fast as it goes",
            Cause::SlowCreate => "the destination is slow to create files",
            Cause::SlowWrite => "the destination's storage is written as fast as it goes",
            Cause::LinkFull => "the network carries no more",
            Cause::NetworkPerFile => "each file costs time on the network",
            Cause::ReceiveBuffer => "TCP's receive buffer at the destination is too small for the path",
            Cause::SendBuffer => "TCP's send buffer at the source is too small for the path",
            Cause::Loss => "packets are lost on the way, and TCP slows down for each of them",
            Cause::SmallQueue => "a queue on the way is too small for what TCP sends at once",
            Cause::Reordering => "packets overtake each other on the way, and TCP takes them for lost",
            Cause::Congestion => "TCP's congestion control does not fit the path",
            Cause::BlackHole => "large packets vanish on the way (an MTU black hole)",
            Cause::Checksum => "the checksum takes a processor, all of it",
            Cause::Encryption => "encryption takes a processor, all of it",
            Cause::TooFewFiles => "too few files are under way at the same time",
            Cause::TooManyFiles => "too many files are under way at the same time",
            Cause::TooFewReaders => "too few files are read at the same time",
            Cause::TooFewWriters => "too few files are written at the same time",
            Cause::TooFewStreams => "too few connections share the path",
            Cause::TooManyStreams => "too many connections share the path",
        };
        f.write_str(fixed)
    }
}

impl Cause {
    /// A word for programs, which stays.
    pub fn code(&self) -> &'static str {
        match self {
            Cause::SlowOpen => "slow-open",
            Cause::SlowRead => "slow-read",
            Cause::SlowCreate => "slow-create",
            Cause::SlowWrite => "slow-write",
            Cause::SlowMetadata(End::Source) => "slow-metadata-source",
            Cause::SlowMetadata(End::Destination) => "slow-metadata-destination",
            Cause::LinkFull => "link-full",
            Cause::NetworkPerFile => "network-per-file",
            Cause::ReceiveBuffer => "receive-buffer",
            Cause::SendBuffer => "send-buffer",
            Cause::Loss => "loss",
            Cause::SmallQueue => "small-queue",
            Cause::Reordering => "reordering",
            Cause::Congestion => "congestion-control",
            Cause::BlackHole => "black-hole",
            Cause::Checksum => "checksum",
            Cause::Encryption => "encryption",
            Cause::Processor(End::Source) => "processor-source",
            Cause::Processor(End::Destination) => "processor-destination",
            Cause::Others(End::Source) => "others-source",
            Cause::Others(End::Destination) => "others-destination",
            Cause::PowerSaving(End::Source) => "power-saving-source",
            Cause::PowerSaving(End::Destination) => "power-saving-destination",
            Cause::Interrupts(End::Source) => "interrupts-source",
            Cause::Interrupts(End::Destination) => "interrupts-destination",
            Cause::TooFewFiles => "too-few-files",
            Cause::TooManyFiles => "too-many-files",
            Cause::TooFewReaders => "too-few-readers",
            Cause::TooFewWriters => "too-few-writers",
            Cause::TooFewStreams => "too-few-streams",
            Cause::TooManyStreams => "too-many-streams",
        }
    }

    /// What people can do about it, besides or in place of a setting.
    pub fn advice(&self) -> String {
        match self {
            Cause::SlowOpen | Cause::SlowCreate | Cause::SlowMetadata(_) => {
                "bring metadata nearer, or keep more in fewer files".into()
            }
            Cause::SlowRead | Cause::SlowWrite => {
                "use faster storage there, or stripe it over more devices".into()
            }
            Cause::LinkFull => "nothing but a faster network, or less data (sync in place of cp)".into(),
            Cause::NetworkPerFile => {
                "use an agent of this version at the other end: it waits for no file".into()
            }
            Cause::ReceiveBuffer => "let tcp_rmem grow at the destination".into(),
            Cause::SendBuffer => "let tcp_wmem grow at the source".into(),
            Cause::Loss => "find what loses them".into(),
            Cause::SmallQueue => {
                "pace the sender's packets (fq), or give the router on the path a larger queue".into()
            }
            Cause::Reordering => "let each connection take one of the parallel ways (hash by port)".into(),
            Cause::Congestion => "use another one".into(),
            Cause::BlackHole => {
                "let TCP probe for the size that gets through (net.ipv4.tcp_mtu_probing=1)".into()
            }
            Cause::Checksum => "use the quick checksum".into(),
            Cause::Encryption => {
                "leave encryption out where the network is trusted (an agent without a key)".into()
            }
            Cause::Processor(_) => {
                "spread it over more connections and threads, or use a faster processor".into()
            }
            Cause::Others(end) => format!("move the other programs off the {end}"),
            Cause::PowerSaving(_) => "use the governor 'performance'".into(),
            Cause::Interrupts(end) => {
                format!("spread the interrupts of the network over the {end}'s processors (irqbalance, RPS)")
            }
            Cause::TooFewFiles | Cause::TooFewReaders | Cause::TooFewWriters => "use more".into(),
            Cause::TooManyFiles | Cause::TooManyStreams => "use fewer".into(),
            Cause::TooFewStreams => "use more".into(),
        }
    }
}

impl Change {
    /// The options of `longhaul cp` for it.
    pub fn options(&self) -> Vec<String> {
        let option = |name: &str, value: &dyn ToString| vec![name.to_owned(), value.to_string()];
        match self {
            Change::Threads(n) => [option("--readers", n), option("--writers", n)].concat(),
            Change::Readers(n) => option("--readers", n),
            Change::Writers(n) => option("--writers", n),
            Change::Streams(n) => option("--streams", n),
            Change::Congestion(name) => option("--congestion", name),
            Change::QuickChecksum => option("--checksum", &"xxh3"),
        }
    }
}

impl Finding {
    /// Whether [`Finding::gain`] is a lower bound: settings of a machine are not tried, and their
    /// gain is inferred.
    pub fn is_bound(&self) -> bool {
        matches!(self.remedy, Remedy::Tune(_))
    }

    /// What to do, in words.
    pub fn remedy(&self) -> String {
        match &self.remedy {
            Remedy::Copy(change) => format!("use {}", change.options().join(" ")),
            Remedy::Tune(end) => format!("{}: longhaul tune apply at the {end}", self.cause.advice()),
            Remedy::AgentWriters(n) => {
                format!("start the agent there with --writers {n}, or {}", self.cause.advice())
            }
            Remedy::People => self.cause.advice(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.cause, self.evidence, self.remedy())?;
        match self.gain {
            Some(gain) if gain >= GAIN_MIN && self.is_bound() => {
                write!(f, "; at least {gain:.1} times as fast is to be expected")
            }
            Some(gain) if gain >= GAIN_MIN => write!(f, "; {gain:.1} times as fast is to be expected"),
            Some(_) => f.write_str("; nothing else would make it faster"),
            None => f.write_str("; its gain cannot be predicted"),
        }
    }
}
