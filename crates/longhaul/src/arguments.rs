//! Arguments that verbs share: of devices and of the engine, and parsers of values.

use crate::exit::Failure;
use crate::words::engines;
use clap::builder::{BoolValueParser, TypedValueParser};
use longhaul_block::units::parse_duration;
use longhaul_device::keys::KeyDirectory;
use longhaul_device::{Device, Opener};
use longhaul_engine::address::{self, ListenAddress};
use longhaul_initiator::{Options, PathOptions};
use longhaul_pool::Volumes;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The names by which targets know this host.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// NQN of this host
    #[arg(long, value_name = "NQN")]
    hostnqn: Option<String>,
    /// Directory with this host's secret and key for TLS, for targets that
    /// require authentication ('longhaul key make')
    #[arg(long, value_name = "DIR", value_parser = parse_keys)]
    keys: Option<Keys>,
    /// Use TLS 1.3, with this host's key in --keys ('longhaul key make --tls')
    #[arg(long, value_parser = tls())]
    tls: bool,
}

impl HostArgs {
    /// Connections of this host, otherwise with the defaults.
    fn options(&self) -> Options {
        let defaults = Options::default();
        Options {
            hostnqn: self.hostnqn.clone().unwrap_or(defaults.hostnqn),
            keys: self.keys.clone().map(|Keys(keys)| keys as _),
            tls: self.tls,
            ..defaults
        }
    }

    /// An opener of devices for this host, with the defaults but for the engine and the congestion control.
    pub(crate) fn opener(&self, engine: longhaul_engine::Config, congestion: Option<String>) -> Opener {
        opener(Options { engine, congestion, ..self.options() })
    }
}

/// An opener of all kinds of devices.
fn opener(options: Options) -> Opener {
    Opener::new(options).with_scheme(Arc::new(Volumes))
}

/// Options of all verbs that connect to remote devices.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InitiatorArgs {
    /// Protect PDU headers with CRC32C
    #[arg(long)]
    hdr_digest: bool,
    /// Protect PDU data with CRC32C
    #[arg(long)]
    data_digest: bool,
    /// Entries of each I/O queue
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=4096))]
    queue_size: Option<u16>,
    /// Keep-alive timeout (0 disables it)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    keep_alive: Option<Duration>,
    /// Timeout of each step of connection setup [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    connect_timeout: Option<Duration>,
    /// How long I/O waits for a lost connection before it fails (0: fails at
    /// once, -1: waits for ever) [default: 600s]
    #[arg(long, alias = "ctrl-loss-tmo", value_name = "TIME", value_parser = parse_loss, allow_negative_numbers = true)]
    ctrl_loss_timeout: Option<LossTimeout>,
    /// How long a command may take after those before it completed, until it is
    /// aborted and retried (0: no limit) [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    io_timeout: Option<Duration>,
    #[command(flatten)]
    host: HostArgs,
    /// Use TLS 1.3 with a key that is made anew of each authentication, by this
    /// host's secret in --keys (secure channel concatenation)
    #[arg(long, conflicts_with = "tls", value_parser = tls())]
    concat: bool,
    /// TCP congestion control, by the kernel's name (bbr, cubic, …)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Bytes to keep in flight on a path [default: measured]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    in_flight: Option<u64>,
    /// Upper bound of the measured --in-flight [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    in_flight_max: Option<u64>,
    /// Connections of each thread that uses a path [default: measured]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    connections: Option<u16>,
    /// Size of the commands that a larger I/O is split into [default: measured]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    io_size: Option<u64>,
    /// Bytes to read ahead of a sequential reader [default: measured]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    read_ahead: Option<u64>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// The keys of a directory, read when a connection needs them.
#[derive(Clone, Debug)]
pub(crate) struct Keys(pub(crate) Arc<KeyDirectory>);

/// Opens a directory of keys: of a file system, or an archive that systemd or the kernel has.
pub(crate) fn parse_keys(text: &str) -> Result<Keys, String> {
    let opened = match text.split_once(':') {
        Some(("credential", name)) => KeyDirectory::of_credential(name),
        Some(("keyring", name)) => KeyDirectory::of_keyring(name),
        _ => KeyDirectory::open(Path::new(text)),
    };
    opened.map(|keys| Keys(Arc::new(keys))).map_err(|e| e.to_string())
}

/// Whether this program has TLS.
pub(crate) fn check_tls() -> Result<(), &'static str> {
    match cfg!(feature = "tls") {
        true => Ok(()),
        false => Err(longhaul_initiator::TLS_MISSING),
    }
}

fn tls() -> impl TypedValueParser<Value = bool> {
    BoolValueParser::new().try_map(|tls| if tls { check_tls().map(|()| tls) } else { Ok(tls) })
}

/// Options of the engine.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EngineArgs {
    /// I/O engine: uring, epoll or auto
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = engines(), hide_possible_values = true)]
    engine: longhaul_engine::EngineKind,
}

impl EngineArgs {
    pub(crate) fn config(&self) -> longhaul_engine::Config {
        longhaul_engine::Config { kind: self.engine, ..longhaul_engine::Config::default() }
    }
}

/// How long I/O waits for a lost connection; `None`: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossTimeout(Option<Duration>);

/// Parses a time, a number of seconds, or -1 for ever, as `nvme-cli` does.
fn parse_loss(text: &str) -> Result<LossTimeout, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(LossTimeout(None)),
        Ok(seconds) => {
            let seconds = u64::try_from(seconds).map_err(|_| "it is a time, or -1 for ever".to_owned())?;
            Ok(LossTimeout(Some(Duration::from_secs(seconds))))
        }
        Err(_) => parse_time(text).map(|time| LossTimeout(Some(time))),
    }
}

pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|e| e.to_string())
}

pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    longhaul_block::units::parse_size(text).map_err(|e| e.to_string())
}

/// Permissions, as `chmod` takes them in octal digits.
pub(crate) fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("it is given in octal digits, 7777 at most, such as 755".to_owned()),
    }
}

pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    longhaul_block::units::parse_rate(text).map_err(|e| e.to_string())
}

/// Resolves where to listen.
pub(crate) fn resolve(listen: &ListenAddress) -> Result<SocketAddr, Failure> {
    listen.resolve().map_err(Failure::failed)
}

/// Checks that this process may use the congestion control of `--congestion`.
pub(crate) fn check_congestion(name: Option<&str>) -> Result<(), Failure> {
    address::check_congestion(name)
        .map_err(|why| Failure::usage(format_args!("--congestion {}: {why}", name.unwrap_or_default())))
}

impl InitiatorArgs {
    pub(crate) fn options(&self) -> Options {
        let defaults = self.host.options();
        Options {
            hdr_digest: self.hdr_digest,
            data_digest: self.data_digest,
            queue_size: self.queue_size.unwrap_or(defaults.queue_size),
            kato: self.keep_alive.unwrap_or(defaults.kato),
            connect_timeout: self.connect_timeout.unwrap_or(defaults.connect_timeout),
            ctrl_loss: self.ctrl_loss_timeout.map_or(defaults.ctrl_loss, |LossTimeout(limit)| limit),
            io_timeout: self.io_timeout.unwrap_or(defaults.io_timeout),
            concat: self.concat,
            congestion: self.congestion.clone(),
            path: self.path(),
            engine: self.engine.config(),
            ..defaults
        }
    }

    /// How long I/O waits for a lost connection; `None`: for ever.
    pub(crate) fn ctrl_loss(&self) -> Option<Duration> {
        self.options().ctrl_loss
    }

    /// The settings of a path that the user fixed; the tuner chooses the others.
    fn path(&self) -> PathOptions {
        let defaults = PathOptions::default();
        let most = u64::from(u32::MAX);
        PathOptions {
            in_flight: self.in_flight,
            in_flight_max: self.in_flight_max.unwrap_or(defaults.in_flight_max),
            connections: self.connections,
            io_size: self.io_size.map(|size| size.min(most) as u32),
            read_ahead: self.read_ahead,
            ..defaults
        }
    }

    /// An opener of devices with these options.
    pub(crate) fn opener(&self) -> Opener {
        opener(self.options())
    }

    /// Opens the device `name`, for use by `threads` at a time.
    pub(crate) fn open(&self, name: &str, threads: u16) -> Result<Device, Failure> {
        Ok(self.opener().for_threads(threads.into()).open_blocking(name)?)
    }
}
