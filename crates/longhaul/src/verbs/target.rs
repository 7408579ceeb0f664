//! `longhaul target`.

mod standby;

use crate::arguments::{EngineArgs, Keys, check_congestion, check_tls, parse_bytes, parse_keys, resolve};
use crate::audit::{AuditArgs, AuditRecord};
use crate::events::{
    AuditStarted, AuditStopped, ExportFields, ExportResized, ServiceSummary, SpaceFields, Stopping,
    TargetReady,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::export::Export;
use crate::metrics::MetricsArgs;
use crate::output::Output;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use longhaul_block::DeviceInfo;
use longhaul_device::{Device, Opener, state};
use longhaul_engine::address::{self, ListenAddress, reachable};
use longhaul_initiator::{IO_PORT, Options};
use longhaul_metrics::{AuditSource, HostSource, Server, TargetSource};
use longhaul_pool::Volumes;
use longhaul_target::{
    Config, Error, HostAccess, MediumSpec, ServedMedium, Space, SpaceError, SpaceSpec, Target, TargetState,
    TlsPolicy, is_loopback,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use standby::{Standby, StandbyExport};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uuid::Uuid;

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
error=SHARE, uuid=UUID, nqn=NQN, allow-host=HOSTNQN, create (serve the medium
as a new disk, even if another namespace was served from it before), standby
(an array or volume that another host serves: take it over when that ends).
A further export of the same NAME adds a namespace to the same subsystem.

A space is a directory, or a block device (block:PATH), in which the hosts of
--admin make namespaces while the
target runs ('longhaul ns', or 'nvme create-ns' of a Linux host). A host sees
those that are attached to it. Without --keys, hosts are known by a name that they send
themselves: beyond loopback a space then takes --insecure, and a trusted network.

SIGHUP reads the sizes of the devices again and notifies hosts of changes, and
opens the file of --audit anew;
SIGTERM completes the I/O under way, flushes, and exits 0.

Example:
  longhaul target --listen 0.0.0.0:4420 \\
      --export scratch=file:/srv/scratch,size=100GiB")]
pub(crate) struct TargetArgs {
    /// Address and port to listen on (:PORT for all IPv4 addresses; default port: 4420); may be
    /// repeated
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4420", value_parser = address::listen::<IO_PORT>)]
    listen: Vec<ListenAddress>,
    /// Device to serve, and its name; may be repeated
    #[arg(long, value_name = "NAME=BACKEND", required_unless_present = "space")]
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
    /// TLS 1.3 with the hosts' keys in --keys: a host may use it (allowed), or has to (required)
    /// ('longhaul key make --tls')
    #[arg(long, value_name = "POLICY", requires = "keys", value_parser = policies())]
    tls: Option<TlsPolicy>,
    /// Serve spaces beyond loopback, though hosts are not authenticated
    #[arg(long)]
    insecure: bool,
    /// Further address of the discovery controller: ADDR:PORT, or none [default: port 8009 of the
    /// first --listen address, if it is free]
    #[arg(long, value_name = "ADDR:PORT")]
    discovery: Option<String>,
    /// Largest in-capsule data of a write, which saves a round trip
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_bytes)]
    in_capsule: u64,
    /// Upper bound of memory for I/O
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    memory: u64,
    /// Threads [default: one for each CPU, at most 8]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Allow only this host, except for exports with their own allow-host=; may be repeated
    #[arg(long, value_name = "HOSTNQN")]
    allow_host: Vec<String>,
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

    fn config(&self) -> Result<Config, Failure> {
        let number = |what: &str, value: u64| {
            usize::try_from(value)
                .map_err(|_| Failure::usage(format!("{what} of {value} bytes is too large")))
        };
        let listen = self.listen.iter().map(resolve).collect::<Result<Vec<_>, _>>()?;
        let discovery = match self.discovery.as_deref() {
            None => Some(SocketAddr::new(listen[0].ip(), DISCOVERY_PORT)),
            Some("none") => None,
            Some(text) => {
                let listen = address::listen::<DISCOVERY_PORT>(text).map_err(|why| {
                    Failure::usage(format!("--discovery '{text}' is neither ADDR:PORT nor none: {why}"))
                })?;
                Some(resolve(&listen)?)
            }
        };
        let defaults = Config::default();
        let hosts = match &self.allow_host[..] {
            [] => HostAccess::Any,
            hosts => HostAccess::Only(hosts.iter().cloned().collect()),
        };
        Ok(Config {
            listen,
            discovery,
            in_capsule: number("--in-capsule", self.in_capsule)?.try_into().unwrap_or(u32::MAX),
            memory: number("--memory", self.memory)?,
            threads: self.threads.unwrap_or(defaults.threads),
            engine: self.engine.config(),
            congestion: self.congestion.clone(),
            hdr_digest: !self.no_hdr_digest,
            data_digest: !self.no_data_digest,
            hosts,
            keys: self.keys.clone().map(|Keys(keys)| longhaul_target::Keys::new(keys)),
            tls: self.tls.unwrap_or_default(),
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
    PossibleValuesParser::new(["allowed", "required"]).try_map(|policy| {
        match (check_tls(), policy.as_str()) {
            (Err(why), _) => Err(why),
            (_, "required") => Ok(TlsPolicy::Required),
            _ => Ok(TlsPolicy::Allowed),
        }
    })
}

/// Adds hosts to the allow-list of the subsystem `nqn`.
fn allow(access: &mut BTreeMap<String, HostAccess>, nqn: &str, hosts: &[String]) {
    if hosts.is_empty() {
        return;
    }
    let all = access.entry(nqn.to_owned()).or_insert_with(|| HostAccess::Only(BTreeSet::new()));
    if let HostAccess::Only(all) = all {
        all.extend(hosts.iter().cloned());
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

pub(crate) fn run(mut args: TargetArgs, output: Output) -> Outcome {
    // Registered before the devices are opened, so that no signal ends the process half-way.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Failure::failed)?;
    check_congestion(args.congestion.as_deref())?;
    // Devices are opened before the target starts, so that no host finds it without its
    // exports, and arrays are stopped after it, when no host can reach them any more.
    let threads = args.threads.unwrap_or(Config::default().threads);
    // The connections to other targets, whose namespaces are re-exported, have these options too.
    let options = args.options();
    let opener = Opener::new(options).with_scheme(Arc::new(Volumes)).for_threads(threads);
    let listen = args.listen.iter().map(resolve).collect::<Result<Vec<_>, _>>()?;
    check_access(&args.space, &listen, args.insecure || args.keys.is_some())?;
    // Before anything is opened or made: a port that is taken changes nothing.
    let audit = args.audit.start(output)?;
    let metrics = args.metrics.start("the devices of the exports are being opened")?;
    if let Some(metrics) = &metrics {
        metrics.add(Arc::new(HostSource::new(opener.clone())));
        if let Some(audit) = &audit {
            metrics.add(Arc::new(AuditSource::new(audit.counts())));
        }
    }
    identify(&mut args.export, &opener)?;
    let state = TargetState::at(state::directory());
    let exports = open(&args.export, &opener, &state)?;
    let spaces = open_spaces(&args, &state)?;
    let (target, nsids) = {
        let mut config = args.config()?;
        for (export, OpenExport { nqn, .. }) in args.export.iter().zip(&exports) {
            allow(&mut config.hosts_of, nqn, &export.allow_hosts);
        }
        config.audit = audit.clone().map(|audit| Arc::new(audit) as _);
        let target = Target::start(config)?;
        if let Some(audit) = &audit {
            audit.record(started(&target, &args));
        }
        let mut shown = Vec::new();
        for OpenExport { name, nqn, uuid, source, persistent, .. } in &exports {
            let info = source.info();
            let (nsid, access) = match source {
                ExportSource::Here(device) if *persistent => {
                    let store = Arc::new(state.reservations_of(*uuid));
                    (target.export_persistent(nqn, name, device.block(), *uuid, store)?, "optimized")
                }
                ExportSource::Here(device) => (target.export(nqn, name, device.block(), *uuid)?, "optimized"),
                ExportSource::Elsewhere(standby) => {
                    (target.export_standby(nqn, name, standby.device.clone(), *uuid)?, "inaccessible")
                }
            };
            let alone = exports.iter().filter(|other| other.nqn == *nqn).count() == 1;
            let at = reachable(target.addresses()[0]);
            let uri = format!("nvme+tcp://{at}/{nqn}?nsid={nsid}");
            shown.push(ExportFields {
                name: name.clone(),
                nqn: nqn.clone(),
                nsid,
                uri,
                short: short(at, name, nqn, (nsid, alone)),
                uuid: uuid.to_string(),
                size: info.size,
                block_size: info.block_size,
                access,
            });
        }
        let moving = args.export.iter().zip(&exports).filter(|(export, _)| export.may_move());
        moving.for_each(|(_, OpenExport { nqn, .. })| target.share(nqn));
        let at = reachable(target.addresses()[0]);
        let mut shown_spaces = Vec::new();
        for (spec, nqn, space) in spaces {
            let capacity = space.capacity().map_err(Failure::failed)?;
            let fields = SpaceFields {
                name: spec.name.clone(),
                uri: format!("nvme+tcp://{at}/{nqn}"),
                short: short(at, &spec.name, &nqn, (0, true)),
                namespaces: space.namespaces().len(),
                total: capacity.total,
                unallocated: capacity.unallocated,
                nqn,
            };
            let admins = args.admin.iter().cloned().collect();
            target.add_space(&fields.nqn, &spec.name, space, admins, state.reservation_stores())?;
            shown_spaces.push(fields);
        }
        if let Some(metrics) = &metrics {
            metrics.add(Arc::new(TargetSource::new(target.observer())));
            metrics.set_ready();
        }
        ready(&target, metrics.as_ref(), &shown, &shown_spaces, output);
        (target, shown.iter().map(|export| export.nsid).collect::<Vec<u32>>())
    };
    for addr in target.addresses().iter().filter(|addr| !is_loopback(addr)) {
        tracing::warn!(
            "{addr} is reached from other machines, and nothing is encrypted: use a trusted network"
        );
    }
    let mut local = Vec::new();
    let ending = Arc::new(AtomicBool::new(false));
    let taken = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((export, OpenExport { nqn, source, place, .. }), nsid) in
            args.export.iter().zip(exports).zip(nsids)
        {
            let (target, opener, ending) = (&target, &opener, &ending);
            match source {
                ExportSource::Here(device) => {
                    let device = Arc::new(device);
                    local.push((Arc::clone(&device), place));
                    if matches!(&*device, Device::Array(_)) {
                        threads.push(scope.spawn(move || {
                            let seen =
                                StandbyExport { export, nqn: &nqn, nsid, target, opener, ending, output };
                            if let Device::Array(array) = &*device {
                                seen.watch(array);
                            }
                            None
                        }));
                    }
                }
                ExportSource::Elsewhere(standby) => {
                    threads.push(scope.spawn(move || {
                        StandbyExport { export, nqn: &nqn, nsid, target, opener, ending, output }
                            .run(*standby)
                    }));
                }
            }
        }
        for signal in signals.forever() {
            if signal != SIGHUP {
                break;
            }
            if let Some(audit) = &audit {
                audit.reopen();
            }
            for (name, nsid, info) in target.refresh() {
                output.note(format_args!("{name}: namespace {nsid} has {} bytes now", info.size));
                output.event(&ExportResized { name, nsid, size: info.size });
            }
        }
        if let Some(metrics) = &metrics {
            metrics.set_not_ready("the target is stopping");
        }
        output.event(&Stopping {});
        ending.store(true, Ordering::SeqCst);
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect::<Vec<_>>()
    });
    let clean = target.stop();
    for (device, place) in &local {
        if let Some(place) = place {
            place.end(&*device.block());
        }
    }
    drop((local, taken));
    if let Some(audit) = &audit {
        audit.end(AuditRecord::Stopped(AuditStopped { clean }));
    }
    output.event(&ServiceSummary { clean });
    if clean { Ok(()) } else { Err(Failure::failed("not everything could be made durable; see above")) }
}

/// What the audit log says of the start.
fn started(target: &Target, args: &TargetArgs) -> AuditRecord {
    AuditRecord::Started(AuditStarted {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        listen: target.addresses().iter().map(ToString::to_string).collect(),
        keys: args.keys.is_some(),
        tls: match args.tls.unwrap_or_default() {
            TlsPolicy::Off => "off",
            TlsPolicy::Allowed => "allowed",
            TlsPolicy::Required => "required",
        },
    })
}

/// Finds out the identity of volumes that are alone in their subsystem.
fn identify(exports: &mut [Export], opener: &Opener) -> Result<(), Failure> {
    let names: Vec<String> = exports.iter().map(|export| export.name.clone()).collect();
    let alone = |name: &str| names.iter().filter(|other| *other == name).count() == 1;
    exports.iter_mut().filter(|export| alone(&export.name)).try_for_each(|export| export.identify(opener))
}

/// Where the device of an export is.
enum ExportSource {
    /// It is open in this process.
    Here(Device),
    /// It is an array that another host may run.
    Elsewhere(Box<Standby>),
}

impl ExportSource {
    fn info(&self) -> DeviceInfo {
        match self {
            ExportSource::Here(device) => device.block().info(),
            ExportSource::Elsewhere(standby) => standby.device.info.clone(),
        }
    }
}

/// An export whose device is open, or watched.
struct OpenExport {
    name: String,
    nqn: String,
    uuid: Uuid,
    source: ExportSource,
    /// The medium, for a file or block device.
    place: Option<ServedMedium>,
    /// Its content outlives the target, and so do reservations that hosts make persistent.
    persistent: bool,
}

/// Opens the devices of all exports and determines their UUIDs. All exports are checked before
/// any medium is created or changed.
fn open(exports: &[Export], opener: &Opener, state: &TargetState) -> Result<Vec<OpenExport>, Failure> {
    let mut subsystems: BTreeMap<String, u32> = BTreeMap::new();
    let mut checked = Vec::new();
    for export in exports {
        let nqn = export.nqn(state);
        // Namespaces of a subsystem are numbered in the order of its exports.
        let nsid = subsystems.entry(nqn.clone()).and_modify(|nsid| *nsid += 1).or_insert(1);
        let medium = export.path().map(|path| MediumSpec {
            name: &export.name,
            nqn: &nqn,
            nsid: *nsid,
            path,
            uuid: export.uuid,
            create: export.create,
            read_only: export.is_read_only(),
        });
        // Memory has no medium on this host, and superblocks identify an array.
        let place = medium.map(|medium| state.check_medium(&medium)).transpose()?;
        checked.push((export, nqn, place));
    }
    let mut opened: Vec<OpenExport> = Vec::new();
    for (export, nqn, mut place) in checked {
        let source = if export.standby {
            ExportSource::Elsewhere(Box::new(Standby::open(export, opener)?))
        } else {
            ExportSource::Here(export.open(opener)?)
        };
        let uuid = match (&mut place, &source) {
            (Some(place), ExportSource::Here(device)) => place.identify(&*device.block())?,
            // Memory gets a new UUID in each run, since its content does not survive.
            _ => export.uuid.or(source.info().uuid).unwrap_or_else(Uuid::new_v4),
        };
        let persistent = place.is_some() || source.info().uuid.is_some();
        let is_same = |other: &OpenExport| {
            place.as_ref().zip(other.place.as_ref()).is_some_and(|(one, two)| one.is_same(two))
        };
        if let Some(other) = opened.iter().find(|other| other.uuid == uuid && !is_same(other)) {
            return Err(Failure::usage(format!(
                "exports {} and {} have the same UUID {uuid} but different media, which hosts would take for \
                 two paths to one disk: give one of them another uuid=, or leave it out",
                other.name, export.name
            )));
        }
        opened.push(OpenExport { name: export.name.clone(), nqn, uuid, source, place, persistent });
    }
    Ok(opened)
}

/// A space as it was given, its NQN, and the open one.
type OpenSpace<'a> = (&'a SpaceSpec, String, Arc<dyn Space>);

/// Opens the directories and devices of all spaces: each with its NQN.
fn open_spaces<'a>(args: &'a TargetArgs, state: &TargetState) -> Result<Vec<OpenSpace<'a>>, Failure> {
    let mut opened: Vec<OpenSpace<'a>> = Vec::new();
    for spec in &args.space {
        let nqn = spec.nqn(state);
        let taken = args
            .export
            .iter()
            .map(|export| export.nqn(state))
            .chain(opened.iter().map(|(_, nqn, _)| nqn.clone()));
        if taken.into_iter().any(|taken| taken == nqn) {
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

/// Refuses spaces that any machine of the network could manage, unless that is asked for.
fn check_access(spaces: &[SpaceSpec], listen: &[SocketAddr], insecure: bool) -> Result<(), Failure> {
    match listen.iter().find(|addr| !is_loopback(addr)) {
        Some(addr) if !spaces.is_empty() && !insecure => Err(Failure::usage(format_args!(
            "{addr} can be reached from other machines, and administrators of a space are known by a name that \
             they send themselves: give --keys, so that they prove it, or --insecure if the network is trusted"
        ))),
        _ => Ok(()),
    }
}

fn ready(
    target: &Target,
    metrics: Option<&Server>,
    exports: &[ExportFields],
    spaces: &[SpaceFields],
    output: Output,
) {
    let listen: Vec<_> = target.addresses().iter().map(ToString::to_string).collect();
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

/// The shortest URI of an export: discovery resolves its name to an NQN, and a subsystem with
/// one namespace needs no `nsid`.
fn short(at: SocketAddr, name: &str, nqn: &str, (nsid, alone): (u32, bool)) -> String {
    let host = match at.port() {
        IO_PORT if at.is_ipv4() => at.ip().to_string(),
        IO_PORT => format!("[{}]", at.ip()),
        _ => at.to_string(),
    };
    let subsystem = if nqn.ends_with(&format!(":{name}")) { name } else { nqn };
    let nsid = if alone { String::new() } else { format!("?nsid={nsid}") };
    format!("nvme+tcp://{host}/{subsystem}{nsid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_uris_name_one_namespace() {
        let of = |at: &str, nqn: &str, nsid, alone| {
            short(at.parse().expect("an address"), "x", nqn, (nsid, alone))
        };
        assert_eq!(of("10.0.0.5:4420", "nqn.2026-11.io.longhaul:1:x", 1, true), "nvme+tcp://10.0.0.5/x");
        assert_eq!(
            of("10.0.0.5:4499", "nqn.2026-11.io.longhaul:1:x", 1, false),
            "nvme+tcp://10.0.0.5:4499/x?nsid=1"
        );
        assert_eq!(
            of("[::1]:4420", "nqn.2014-08.org.example:disk", 1, true),
            "nvme+tcp://[::1]/nqn.2014-08.org.example:disk"
        );
    }
}
