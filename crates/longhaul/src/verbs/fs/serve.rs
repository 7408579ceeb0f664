//! `longhaul fs serve`: a catalog for many hosts.

use crate::arguments::{Keys, parse_keys, resolve};
use crate::audit::{AuditArgs, AuditLog, AuditRecord};
use crate::events::{AuditStarted, AuditStopped, CatalogReady, ServiceSummary, Stopping};
use crate::exit::{Exit, Failure, Outcome};
use crate::metrics::MetricsArgs;
use crate::output::Output;
use crate::service::{self, Manager};
use longhaul_catalog::server::{CatalogServer, Limits, Observer, ServerOptions};
use longhaul_catalog::wire::PORT;
use longhaul_catalog::{CatalogSpec, Denial, Error, FileOptions, Peer};
use longhaul_engine::address::{self, ListenAddress, reachable};
use longhaul_metrics::{AuditSource, CatalogSource};
use longhaul_pool::{CATALOG_NQN, catalog_acceptor, default_catalog};
use longhaul_target::{Audit, AuditEvent, AuditHost, RefusalReason, is_loopback};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Serves the catalog of pools in a file to other hosts, which name it with
--catalog server:HOST[:PORT]: so they share these pools, and the file systems in
them, without etcd. The data of volumes and files does not pass this process.

With --keys, only hosts that have a key for TLS in the directory get in
('longhaul key make HOSTNQN --keys DIR --tls'), and everything is encrypted. Such
a host may read and change the whole catalog. To listen beyond loopback without
it takes --insecure, and a trusted network.

Processes of this host may use the same file meanwhile, by its path. After a
restart each lease has its whole time again: mounts go on. SIGTERM completes
what is under way, and exits 0; SIGHUP opens the file of --audit anew.

Example:
  longhaul fs serve --listen 192.0.2.7 --keys /etc/longhaul/keys
  longhaul pool status scratch --catalog server:192.0.2.7 --keys ~/keys   # there")]
pub(super) struct ServeArgs {
    /// Address and port to listen on (:PORT for all IPv4 addresses; default port:
    /// 7420); may be repeated
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7420", value_parser = address::listen::<PORT>)]
    listen: Vec<ListenAddress>,
    /// The catalog: file:PATH [default: that of this user]
    #[arg(long, value_name = "CATALOG")]
    catalog: Option<CatalogSpec>,
    /// Directory of hosts' keys for TLS: only these hosts may connect
    #[arg(long, value_name = "DIR", value_parser = parse_keys, conflicts_with = "insecure")]
    keys: Option<Keys>,
    /// Listen beyond loopback, though hosts are not authenticated
    #[arg(long)]
    insecure: bool,
    /// Most connections
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(8..))]
    max_connections: u32,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    audit: AuditArgs,
}

/// Tells the audit log and the log of connections.
struct Recorder {
    audit: Option<AuditLog>,
}

impl Recorder {
    fn host(address: SocketAddr, peer: &Peer) -> AuditHost {
        AuditHost {
            address: address.into(),
            hostnqn: peer.host.clone(),
            hostid: None,
            subsystem: CATALOG_NQN.to_owned(),
            is_authenticated: peer.generation.is_some(),
        }
    }

    fn tell(&self, event: AuditEvent) {
        if let Some(audit) = &self.audit {
            audit.tell(event, None);
        }
    }
}

impl Observer for Recorder {
    fn connected(&self, address: SocketAddr, peer: &Peer) {
        tracing::info!("{address}: host {} is connected", peer.host.escape_debug());
        let tls = peer.generation.is_some();
        let (host, generation) = (Recorder::host(address, peer), peer.generation);
        self.tell(AuditEvent::Connected { host, controller: 0, generation, tls, reader: false });
    }

    fn refused(&self, address: SocketAddr, host: &str, why: Denial, text: &str) {
        tracing::warn!("{address}: host '{}' is refused: {}", host.escape_debug(), text.escape_debug());
        let peer = Peer { host: host.to_owned(), generation: None };
        let why = match why {
            Denial::NoKey => RefusalReason::NoKey,
            Denial::KeyUnreadable => RefusalReason::KeyUnreadable,
            Denial::WrongKey => RefusalReason::WrongSecret,
            Denial::RetiredKey(generation) => RefusalReason::RetiredSecret(generation),
            Denial::NoTls => RefusalReason::NoTls,
            Denial::Handshake => RefusalReason::Tls,
            Denial::Late => RefusalReason::NotProvedInTime,
            Denial::Connections => RefusalReason::Connections,
            Denial::Protocol => RefusalReason::Connect,
        };
        self.tell(AuditEvent::Refused { host: Recorder::host(address, &peer), why });
    }

    fn disconnected(&self, address: SocketAddr, peer: &Peer, time: Duration, (read, written): (u64, u64)) {
        tracing::info!("{address}: host {} is gone", peer.host.escape_debug());
        let host = Recorder::host(address, peer);
        self.tell(AuditEvent::Disconnected {
            host,
            controller: 0,
            time,
            bytes_read: read,
            bytes_written: written,
        });
    }
}

/// The file that is served.
fn file_of(args: &ServeArgs) -> Result<PathBuf, Failure> {
    match args.catalog.clone().unwrap_or_else(default_catalog) {
        CatalogSpec::File(path) => {
            let failed = |e| Failure::failed(format_args!("{}: {e}", path.display()));
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory).map_err(failed)?;
            }
            std::path::absolute(&path).map_err(failed)
        }
        other => Err(Failure::usage(format_args!(
            "--catalog {other}: a catalog in a file can be served (file:PATH); hosts use etcd, or another server, \
             themselves"
        ))),
    }
}

fn bind(args: &ServeArgs) -> Result<Vec<TcpListener>, Failure> {
    let given = service::listeners()?;
    let (addresses, listeners) = match given.is_empty() {
        true => (args.listen.iter().map(resolve).collect::<Result<Vec<_>, _>>()?, None),
        false => {
            let addresses = given.iter().map(TcpListener::local_addr).collect::<Result<_, _>>();
            (addresses.map_err(Failure::failed)?, Some(given))
        }
    };
    if args.keys.is_none()
        && !args.insecure
        && let Some(address) = addresses.iter().find(|address| !is_loopback(address))
    {
        return Err(Failure::usage(format_args!(
            "{address} can be reached from other machines, and without keys the server authenticates no host: give \
             --keys DIR ('longhaul key make HOSTNQN --keys DIR --tls' makes keys), or --insecure if every machine \
             that reaches this address may change the catalog"
        )));
    }
    match listeners {
        Some(listeners) => Ok(listeners),
        None => addresses.into_iter().map(listen).collect(),
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|e| Failure::failed(format_args!("cannot listen on {address}: {e}")))
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        longhaul_pool::Error::from(e).into()
    }
}

pub(super) fn serve(args: &ServeArgs, output: Output) -> Outcome {
    // Registered before anything is opened, so that a signal always ends the server in order.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Failure::failed)?;
    let manager = Manager::of_this_process();
    crate::verbs::cp::raise_descriptors();
    let path = file_of(args)?;
    let acceptor = match &args.keys {
        None => None,
        Some(Keys(keys)) => Some(
            catalog_acceptor(Arc::clone(keys) as _)
                .map_err(|why| Failure::usage(format!("--keys: {why}")))?,
        ),
    };
    let listeners = bind(args)?;
    let audit = args.audit.start(output)?;
    let metrics = args.metrics.start("the catalog is being opened")?;
    let server = CatalogServer::start(
        &path,
        ServerOptions {
            listeners,
            acceptor,
            observer: Arc::new(Recorder { audit: audit.clone() }),
            limits: Limits { connections: args.max_connections as usize, ..Limits::default() },
            file: FileOptions::default(),
        },
    )?;
    if let Some(metrics) = &metrics {
        metrics.add(Arc::new(CatalogSource::new(server.counts())));
        metrics.set_ready();
        if let Some(audit) = &audit {
            metrics.add(Arc::new(AuditSource::new(audit.counts())));
        }
    }
    let listen: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    let tls = args.keys.is_some();
    if let Some(audit) = &audit {
        audit.record(AuditRecord::Started(AuditStarted {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            listen: listen.clone(),
            keys: tls,
            tls: if tls { "required" } else { "off" },
        }));
    }
    let Some(first) = server.addresses().first().copied() else {
        return Err(Failure::new(Exit::Usage, "there is no address to listen on"));
    };
    let name = format!("server:{}", reachable(first));
    output.event(&CatalogReady {
        catalog: name.clone(),
        listen: listen.clone(),
        file: path.display().to_string(),
        tls,
        metrics: metrics.as_ref().map(|server| server.address().to_string()),
    });
    if !output.is_json() {
        output.line(format_args!("ready {name}"));
    }
    for address in server.addresses().iter().filter(|address| !tls && !is_loopback(address)) {
        tracing::warn!(
            "{address} is reached from other machines: every one of them may change the catalog, and nothing is \
             encrypted"
        );
    }
    manager.ready(&format!("Serving the catalog {} at {}", path.display(), listen.join(", ")));
    for signal in signals.forever() {
        match (signal, &audit) {
            (SIGHUP, Some(audit)) => audit.reopen(),
            (SIGHUP, None) => {}
            _ => break,
        }
    }
    if let Some(metrics) = &metrics {
        metrics.set_not_ready("the server is stopping");
    }
    manager.stopping();
    output.event(&Stopping {});
    drop(server);
    if let Some(audit) = &audit {
        audit.end(AuditRecord::Stopped(AuditStopped { clean: true }));
    }
    output.event(&ServiceSummary { clean: true });
    Ok(())
}
