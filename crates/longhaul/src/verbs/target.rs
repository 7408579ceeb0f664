//! `longhaul target`.

mod changes;
pub(crate) mod control;
mod exports;
mod listen;
mod reload;
mod serving;
mod standby;

use crate::arguments::{EngineArgs, Keys, check_congestion, check_tls, parse_bytes, parse_keys, resolve};
use crate::audit::{AuditArgs, AuditRecord};
use crate::central::CentralArgs;
use crate::config::VerbValues;
use crate::events::{
    AuditHostEnded, AuditStarted, AuditStopped, ExportFields, ExportResized, ServiceSummary, SpaceFields,
    Stopping, TargetReady,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::export::Export;
use crate::hosts::{HostNames, HostRate, host_rates, parse_host_rate};
use crate::mdns::Announcement;
use crate::metrics::MetricsArgs;
use crate::output::Output;
use crate::service::{self, Manager};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use control::{Control, Order};
use exports::{OpenExport, Taken, host_lists};
use listen::{At, Listen, listening};
use longhaul_device::{Opener, state};
use longhaul_engine::address;
use longhaul_initiator::Options;
use longhaul_metrics::{AuditSource, HostSource, Server, TargetSource};
use longhaul_pool::Volumes;
use longhaul_target::{
    ChangeError, Config, Error, Space, SpaceError, SpaceSpec, Target, TargetChanges, TargetState, TlsPolicy,
    is_loopback,
};
use reload::Reloader;
use serde_json::json;
use serving::{EndedExport, Serving};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Port of discovery controllers.
const DISCOVERY_PORT: u16 = 8009;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Back ends:
  file:PATH[,size=10GiB]   a file, made sparse if it does not exist
  block:/dev/…             a block device
  mem:SIZE                 memory
  null:SIZE                reads zeroes, forgets writes
  array:NAME               an array that is known on this host (longhaul array)
  volume:POOL/NAME         a volume of a pool (longhaul volume)
  nvme+tcp://HOST/SUBNQN   a namespace of another target, passed on
Options after a back end: ro, block=512|4096, delay=TIME, rate=RATE,
error=SHARE, uuid=UUID, nqn=NQN, allow-host=HOSTNQN, read-only-host=HOSTNQN,
create (serve the medium as a new disk, even if another namespace was served
from it before), standby (an array or volume that another host serves: take it
over when that ends).
A further export of the same NAME adds a namespace to the same subsystem.

A space is a directory, or a block device (block:PATH), in which the hosts of
--admin make namespaces while the target runs ('longhaul ns', or 'nvme
create-ns' of a Linux host). A host sees those that are attached to it.

Without --keys, hosts are known by a name that they send themselves. To listen
beyond loopback then takes --insecure, and a trusted network.

SIGHUP reads the configuration files again and applies them: exports that are
added or removed, their size=, allow-host=, read-only-host=, delay=, rate= and
error=, and --allow-host, --read-only-host, --host-rate and --max-connections.
It is refused if a host would lose an export that it uses, or the right to write
to it; SIGUSR1 does the same, and has hosts lose it. Both read the sizes
of the devices again, and open the file of --audit anew.
SIGTERM completes the I/O under way, flushes, and exits 0. 'longhaul ctl' does the
same, and shows the hosts that are connected.

Example:
  longhaul target --listen 0.0.0.0:4420 --keys /etc/longhaul/keys \\
      --export scratch=file:/srv/scratch,size=100GiB")]
pub(crate) struct TargetArgs {
    /// Address and port to listen on (:PORT for all IPv4 addresses; default port: 4420), or
    /// unix:PATH for a socket of this machine; may be repeated
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4420", value_parser = Listen::parse)]
    listen: Vec<Listen>,
    /// Device to serve, and its name; may be repeated
    #[arg(long, value_name = "NAME=BACKEND", required_unless_present_any = ["space", "registrar"])]
    export: Vec<Export>,
    /// Capacity in which administrators make namespaces (dir:PATH[,size=10TiB][,nqn=NQN]), and its
    /// name; may be repeated
    #[arg(long, value_name = "NAME=dir:PATH", requires = "admin")]
    space: Vec<SpaceSpec>,
    /// Host that may make, attach and remove namespaces; may be repeated
    #[arg(long, value_name = "HOSTNQN", requires = "space")]
    admin: Vec<String>,
    /// Directory of hosts' secrets: only these hosts may connect, once they have proved their identity
    /// ('longhaul key make')
    #[arg(long, value_name = "DIR", value_parser = parse_keys)]
    keys: Option<Keys>,
    /// TLS 1.3 with the hosts' keys in --keys: a host may use it (allowed); or has to, with a key for
    /// TLS or one made of its authentication, which alone it does without (concatenated); or has to,
    /// with a key for TLS, and gets no answer without (required) ('longhaul key make')
    #[arg(long, value_name = "POLICY", requires = "keys", value_parser = policies())]
    tls: Option<TlsPolicy>,
    /// Listen beyond loopback, though hosts are not authenticated
    #[arg(long)]
    insecure: bool,
    /// Further address of the discovery controller: ADDR:PORT, or none [default: port 8009 of the
    /// first --listen address, if it is free]
    #[arg(long, value_name = "ADDR:PORT")]
    discovery: Option<String>,
    /// Announce the discovery controller on the local network (mDNS, _nvme-disc._tcp)
    #[arg(long)]
    mdns: bool,
    #[command(flatten)]
    central: CentralArgs,
    /// Largest in-capsule data of a write, which saves a round trip
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_bytes)]
    in_capsule: u64,
    /// Upper bound of memory for I/O
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    memory: u64,
    /// Threads [default: one for each CPU, at most 8]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Allow this host to read and write, and no host that is not named, except for exports with
    /// lists of their own; may be repeated
    #[arg(long, value_name = "HOSTNQN")]
    allow_host: Vec<String>,
    /// Allow this host to read, and no host that is not named; '*' for every other host; may be
    /// repeated
    #[arg(long, value_name = "HOSTNQN")]
    read_only_host: Vec<String>,
    /// Most that a host may read and write together, in bits per second, or each host without a rate
    /// of its own; may be repeated
    #[arg(long, value_name = "[HOSTNQN=]RATE", value_parser = parse_host_rate)]
    host_rate: Vec<HostRate>,
    /// NQN of this host, as targets see it whose namespaces are exported again
    #[arg(long, value_name = "NQN")]
    hostnqn: Option<String>,
    /// Refuse header digests
    #[arg(long)]
    no_hdr_digest: bool,
    /// Refuse data digests
    #[arg(long)]
    no_data_digest: bool,
    /// Most I/O queues of a controller
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    max_queues: u16,
    /// Most entries of a queue
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(2..=4096))]
    max_queue_size: u16,
    /// Most connections; one address may use half of them, one host a quarter
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(8..))]
    max_connections: u32,
    /// TCP congestion control, by the kernel's name (bbr, cubic, …)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    audit: AuditArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

impl TargetArgs {
    /// How targets are reached whose namespaces are exported again.
    fn options(&self) -> Options {
        let defaults = Options::default();
        Options {
            engine: self.engine.config(),
            congestion: self.congestion.clone(),
            hostnqn: self.hostnqn.clone().unwrap_or(defaults.hostnqn),
            keys: self.keys.clone().map(|Keys(keys)| keys as _),
            ..defaults
        }
    }

    /// The hosts of the target's lists.
    ///
    /// # Errors
    /// These lists contradict each other, or those of an export do.
    fn hosts(&self) -> Result<HostNames, Failure> {
        if let Some(admin) = self.admin.iter().find(|admin| self.read_only_host.contains(admin)) {
            return Err(Failure::usage(format!(
                "host {admin} is named by --admin and by --read-only-host: an administrator may write"
            )));
        }
        let hosts = HostNames { writers: self.allow_host.clone(), readers: self.read_only_host.clone() };
        host_lists(&hosts, self.export.iter().map(|export| (export, export.subsystem()))).map(|_| hosts)
    }

    /// Warns of keys for exports that this target does not serve.
    fn warn_of_keys(&self, exports: &[ExportFields], spaces: &[SpaceFields]) {
        let Some(Keys(keys)) = &self.keys else { return };
        let nqns = exports.iter().map(|export| &export.nqn).chain(spaces.iter().map(|space| &space.nqn));
        match keys.without_export(&nqns.cloned().collect::<Vec<_>>()) {
            Ok(names) => names.iter().for_each(|name| {
                tracing::warn!(
                    "--keys has keys for '{name}' alone, and no export has that NQN, or that name behind the last \
                     colon of it: they are of no use here"
                );
            }),
            Err(e) => tracing::warn!("{e}"),
        }
    }

    fn config(&self, listen: &[SocketAddr]) -> Result<Config, Failure> {
        let number = |what: &str, value: u64| {
            usize::try_from(value)
                .map_err(|_| Failure::usage(format!("{what} of {value} bytes is too large")))
        };
        let discovery = match self.discovery.as_deref() {
            None => listen.first().map(|first| SocketAddr::new(first.ip(), DISCOVERY_PORT)),
            Some("none") => None,
            Some(text) => {
                let listen = address::listen::<DISCOVERY_PORT>(text).map_err(|why| {
                    Failure::usage(format!("--discovery '{text}' is neither ADDR:PORT nor none: {why}"))
                })?;
                Some(resolve(&listen)?)
            }
        };
        let defaults = Config::default();
        Ok(Config {
            listen: listen.to_vec(),
            transports: self.listen.iter().filter_map(Listen::unix).collect(),
            discovery,
            in_capsule: number("--in-capsule", self.in_capsule)?.try_into().unwrap_or(u32::MAX),
            memory: number("--memory", self.memory)?,
            threads: self.threads.unwrap_or(defaults.threads),
            engine: self.engine.config(),
            congestion: self.congestion.clone(),
            hdr_digest: !self.no_hdr_digest,
            data_digest: !self.no_data_digest,
            keys: self.keys.clone().map(|Keys(keys)| longhaul_target::Keys::new(keys)),
            tls: self.tls.unwrap_or_default(),
            registrars: self.central.registrars(self.keys.is_some())?,
            max_queues: self.max_queues,
            max_queue_size: self.max_queue_size,
            max_connections: self.max_connections as usize,
            statistics: self.metrics.is_on(),
            ..defaults
        })
    }
}

/// The policies of `--tls`.
fn policies() -> impl TypedValueParser<Value = TlsPolicy> {
    PossibleValuesParser::new(["allowed", "concatenated", "required"]).try_map(|policy| {
        match (check_tls(), policy.as_str()) {
            (Err(why), _) => Err(why),
            (_, "required") => Ok(TlsPolicy::Required),
            (_, "concatenated") => Ok(TlsPolicy::Concatenated),
            _ => Ok(TlsPolicy::Allowed),
        }
    })
}

impl From<ChangeError> for Failure {
    fn from(e: ChangeError) -> Failure {
        match e {
            ChangeError::Export(e) => e.into(),
            e @ ChangeError::InUse(_) => Failure::new(Exit::Refused, e),
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let exit = match e {
            Error::Config(_) => Exit::Usage,
            Error::OtherMedium(_) => Exit::Refused,
            _ => Exit::Failed,
        };
        Failure::new(exit, e)
    }
}

pub(crate) fn run(args: TargetArgs, values: VerbValues, output: Output) -> Outcome {
    // Registered before the devices are opened, so that no signal ends the process half-way.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).map_err(Failure::failed)?;
    let manager = Manager::of_this_process();
    check_congestion(args.congestion.as_deref())?;
    // Devices are opened before the target starts, so that no host finds it without its
    // exports, and arrays are stopped after it, when no host can reach them any more.
    let threads = args.threads.unwrap_or(Config::default().threads);
    // The connections to other targets, whose namespaces are re-exported, have these options too.
    let options = args.options();
    let opener = Opener::new(options.clone()).with_scheme(Arc::new(Volumes)).for_threads(threads);
    let given = service::listeners()?;
    let listen = match given.is_empty() {
        true => args.listen.iter().filter_map(Listen::ip).map(resolve).collect::<Result<Vec<_>, _>>()?,
        false => {
            given.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().map_err(Failure::failed)?
        }
    };
    if args.keys.is_none() && !args.insecure {
        check_loopback(&listen)?;
    }
    // Before anything is opened or made: what contradicts itself, and a port that is taken, change nothing.
    let hosts = args.hosts()?;
    let host_rates = host_rates(&args.host_rate).map_err(Failure::usage)?;
    let audit = args.audit.start(output)?;
    let metrics = args.metrics.start("the devices of the exports are being opened")?;
    if let Some(metrics) = &metrics {
        metrics.add(Arc::new(HostSource::new(opener.clone())));
        if let Some(audit) = &audit {
            metrics.add(Arc::new(AuditSource::new(audit.counts())));
        }
    }
    let state = TargetState::at(state::directory());
    let names: Vec<String> = args.export.iter().map(|export| export.name.clone()).collect();
    let mut exports = args.export.clone();
    exports::identify(&mut exports, &names, &opener)?;
    let opened = exports::open(exports, &opener, &state, Taken::default())?;
    let spaces = open_spaces(&args, &opened, &state)?;
    let mut config = args.config(&listen)?;
    config.host_rates = host_rates;
    config.hosts = host_lists(&hosts, opened.iter().map(|open| (&*open.export, &*open.nqn)))?;
    config.audit = audit.clone().map(|audit| Arc::new(audit) as _);
    let target = Target::start_on(config, given)?;
    if let Some(audit) = &audit {
        audit.record(started(&target, &args));
    }
    let added = opened.iter().map(|open| open.prepare(&target, &state)).collect::<Result<_, _>>()?;
    let nsids = target.change(TargetChanges { added, ..TargetChanges::default() })?.nsids;
    let alone = |nqn: &str| opened.iter().filter(|other| other.nqn == nqn).count() == 1;
    let shown = opened.iter().zip(&nsids).map(|(open, &nsid)| open.fields(&target, nsid, alone(&open.nqn)));
    let shown: Vec<ExportFields> = shown.collect();
    let ended = std::thread::scope(|scope| {
        let mut serving = Serving { scope, target: &target, opener: &opener, output, exports: Vec::new() };
        // Before hosts are let in by `ready`: an array that was taken over is not served.
        opened.into_iter().zip(nsids).for_each(|(open, nsid)| serving.add(open, nsid));
        let begun = add_spaces(&target, spaces, &args.admin, &state).and_then(|shown| {
            Ok((shown, announce(&args, &target)?, args.central.register(&target, &options)?))
        });
        let (shown_spaces, announcement, registrars) = match begun {
            Ok(begun) => begun,
            Err(failure) => {
                serving.end();
                return Err(failure);
            }
        };
        if let Some(metrics) = &metrics {
            metrics.add(Arc::new(TargetSource::new(target.observer())));
            metrics.set_ready();
        }
        let (orders, next) = channel();
        let listen = listening(&target);
        let control = Control::start(target.observer(), listen, orders.clone());
        ready(&target, metrics.as_ref(), &shown, &shown_spaces, output);
        args.warn_of_keys(&shown, &shown_spaces);
        for addr in target.addresses().iter().filter(|addr| !is_loopback(addr)) {
            match args.tls.unwrap_or_default() {
                TlsPolicy::Off => tracing::warn!(
                    "{addr} is reached from other machines, and nothing is encrypted: use a trusted network"
                ),
                TlsPolicy::Allowed => tracing::warn!(
                    "{addr} is reached from other machines, and nothing is encrypted of a host that connects \
                     without TLS: use --tls required or concatenated, or a trusted network"
                ),
                TlsPolicy::Concatenated | TlsPolicy::Required => {}
            }
        }
        let status = |serving: &Serving<'_, '_>| {
            let at = listening(&target);
            let spaces = match args.space.len() {
                0 => String::new(),
                count => format!(", {}", counted(count, "space")),
            };
            format!("Serving {}{spaces} at {}", counted(serving.exports.len(), "export"), at.join(", "))
        };
        manager.ready(&status(&serving));
        let watchdog = manager.watch(target.observer().threads());
        let audit = audit.clone();
        let mut reloader = Reloader { serving, values, hosts, state: &state, audit, output };
        let until_stop = signals.handle();
        scope.spawn(move || signals.forever().try_for_each(|signal| orders.send(Order::Signal(signal))));
        for order in next {
            let (force, reply) = match order {
                Order::Signal(signal) if signal == SIGHUP || signal == SIGUSR1 => (signal == SIGUSR1, None),
                Order::Reload { force, reply } => (force, Some(reply)),
                Order::Disconnect { hostnqn, reply } => {
                    let controllers = target.disconnect(&hostnqn);
                    if let Some(audit) = &reloader.audit {
                        let host = hostnqn.clone();
                        audit.record(AuditRecord::HostEnded(AuditHostEnded { host, controllers }));
                    }
                    let _ = reply.send(Ok(json!({ "host": hostnqn, "controllers": controllers })));
                    continue;
                }
                Order::Signal(_) | Order::Stop => break,
            };
            manager.reloading();
            if let Some(audit) = &reloader.audit {
                audit.reopen();
            }
            let result = reloader.reload(force);
            let applied = result.is_ok();
            for (name, nsid, info) in target.refresh() {
                output.note(format_args!("{name}: namespace {nsid} has {} bytes now", info.size));
                output.event(&ExportResized { name, nsid, size: info.size });
            }
            let status = status(&reloader.serving);
            match applied {
                true => manager.ready(&status),
                false => manager.ready(&format!("{status}; the configuration was not applied: see the log")),
            }
            // The client may have disconnected meanwhile.
            let _ = reply.map(|reply| reply.send(result));
        }
        until_stop.close();
        drop(control);
        if let Some(metrics) = &metrics {
            metrics.set_not_ready("the target is stopping");
        }
        drop((announcement, registrars));
        manager.stopping();
        output.event(&Stopping {});
        drop(watchdog);
        Ok(reloader.serving.end())
    })?;
    let clean = target.stop();
    ended.into_iter().for_each(EndedExport::close);
    if let Some(audit) = &audit {
        audit.end(AuditRecord::Stopped(AuditStopped { clean }));
    }
    output.event(&ServiceSummary { clean });
    if clean { Ok(()) } else { Err(Failure::failed("not everything could be made durable; see above")) }
}

/// Announces the discovery controller, if that is asked for.
fn announce(args: &TargetArgs, target: &Target) -> Result<Option<Announcement>, Failure> {
    if !args.mdns {
        return Ok(None);
    }
    let at = target.discovery_address().or(target.addresses().first().copied());
    let at = at.ok_or_else(|| Failure::usage("--mdns announces a port, and --listen has no ADDR:PORT"))?;
    Announcement::start(at).map(Some)
}

/// A number of things in words.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What the audit log says of the start.
fn started(target: &Target, args: &TargetArgs) -> AuditRecord {
    AuditRecord::Started(AuditStarted {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        listen: listening(target),
        keys: args.keys.is_some(),
        tls: match args.tls.unwrap_or_default() {
            TlsPolicy::Off => "off",
            TlsPolicy::Allowed => "allowed",
            TlsPolicy::Concatenated => "concatenated",
            TlsPolicy::Required => "required",
        },
    })
}

/// A space as it was given, its NQN, and the open one.
type OpenSpace<'a> = (&'a SpaceSpec, String, Arc<dyn Space>);

/// Opens the directories and devices of all spaces: each with its NQN.
fn open_spaces<'a>(
    args: &'a TargetArgs,
    exports: &[OpenExport],
    state: &TargetState,
) -> Result<Vec<OpenSpace<'a>>, Failure> {
    let mut opened: Vec<OpenSpace<'a>> = Vec::new();
    for spec in &args.space {
        let nqn = spec.nqn(state);
        let exports = exports.iter().map(|export| &export.nqn);
        if exports.chain(opened.iter().map(|(_, nqn, _)| nqn)).any(|taken| *taken == nqn) {
            return Err(Failure::usage(format!(
                "the name {} is used twice: give the space another",
                spec.name
            )));
        }
        let space = spec.open().map_err(|e| {
            let exit = if matches!(e, SpaceError::Invalid(_)) { Exit::Refused } else { Exit::Failed };
            Failure::new(exit, format_args!("space {}: {e}", spec.name))
        })?;
        opened.push((spec, nqn, space));
    }
    Ok(opened)
}

/// Serves spaces.
fn add_spaces(
    target: &Target,
    spaces: Vec<OpenSpace<'_>>,
    admins: &[String],
    state: &TargetState,
) -> Result<Vec<SpaceFields>, Failure> {
    let at = At::of(target);
    let add = |(spec, nqn, space): OpenSpace<'_>| {
        let capacity = space.capacity().map_err(Failure::failed)?;
        let fields = SpaceFields {
            name: spec.name.clone(),
            uri: at.uri(&nqn, None),
            short: at.short(&spec.name, &nqn, (0, true)),
            namespaces: space.namespaces().len(),
            total: capacity.total,
            unallocated: capacity.unallocated,
            nqn,
        };
        let admins = admins.iter().cloned().collect();
        target.add_space(&fields.nqn, &spec.name, space, admins, state.reservation_stores())?;
        Ok(fields)
    };
    spaces.into_iter().map(add).collect()
}

/// Refuses addresses beyond loopback, for a target that authenticates no hosts.
fn check_loopback(listen: &[SocketAddr]) -> Result<(), Failure> {
    match listen.iter().find(|addr| !is_loopback(addr)) {
        Some(addr) => Err(Failure::usage(format_args!(
            "{addr} can be reached from other machines, and without keys the target authenticates no host: give \
             --keys DIR ('longhaul key make HOSTNQN --keys DIR' makes keys), or --insecure if every machine that \
             reaches this address may read and write what is served"
        ))),
        None => Ok(()),
    }
}

fn ready(
    target: &Target,
    metrics: Option<&Server>,
    exports: &[ExportFields],
    spaces: &[SpaceFields],
    output: Output,
) {
    let listen = listening(target);
    let discovery = target.discovery_address().map(|addr| addr.to_string());
    let metrics = metrics.map(|server| server.address().to_string());
    output.event(&TargetReady { listen, discovery, metrics, exports, spaces });
    if !output.is_json() {
        let short = exports.iter().map(|export| &export.short);
        let short: Vec<&str> =
            short.chain(spaces.iter().map(|space| &space.short)).map(String::as_str).collect();
        output.line(format_args!("ready {}", short.join(" ")));
        for export in exports {
            output.line(format_args!("      {}", export.uri));
        }
        for space in spaces {
            output.line(format_args!("      {}", space.uri));
        }
    }
}
