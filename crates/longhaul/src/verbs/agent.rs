//! `longhaul agent`.

use crate::arguments::{EngineArgs, check_congestion, parse_bytes, resolve};
use crate::events::{AgentReady, ServiceSummary};
use crate::exit::{Failure, Outcome};
use crate::metrics::{self, MetricsArgs};
use crate::output::Output;
use crate::service::Manager;
use longhaul_device::User;
use longhaul_engine::address::{self, ListenAddress, reachable};
use longhaul_metrics::AgentSource;
use longhaul_target::is_loopback;
use longhaul_transfer::{Agent, AgentConfig, Key, PATIENCE, carry};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// TCP port unless `--listen` names another one.
const PORT: u16 = 7400;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Serves a directory to `longhaul cp` and `longhaul sync`, which address its files
as lh://HOST:PORT/PATH with PATH relative to the directory. Files outside the
directory cannot be accessed. With --key-file, the agent accepts only clients
with the same key, and encrypts all data; it creates the file if it does not
exist, and you copy it to the other machine. Without a key, every client that
can connect to the port may read and write with the rights of this process: this
takes --insecure, except on a loopback address.

Started by root, the agent requires a key (or --insecure) on a loopback address
too, since every user of this machine can connect to it, and it switches to the
user `nobody` (or --user NAME) once the directory is open. It applies the
sender's owners, set-user-ID and set-group-ID bits and access control lists only
with --allow-owner, which keeps root and requires a key.

Example:
  longhaul agent --listen 192.0.2.7:7400 --root /srv/data \\
      --key-file ~/.config/longhaul/agent.key")]
pub(crate) struct AgentArgs {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7400", value_parser = address::listen::<PORT>)]
    listen: ListenAddress,
    /// Directory to serve
    #[arg(long, value_name = "DIR", required_unless_present = "one_time")]
    root: Option<PathBuf>,
    /// Mode that `cp` uses over ssh: serve all files of this user, with the key read from standard
    /// input, until standard input ends
    #[arg(long, conflicts_with_all = ["root", "insecure", "key_file"])]
    one_time: bool,
    /// Range of ports to listen on, with --one-time [default: any]
    #[arg(long, value_name = "FROM-TO", requires = "one_time", value_parser = super::cp::far::port_range)]
    port_range: Option<(u16, u16)>,
    /// Require this key of clients, and encrypt
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    key_file: Option<PathBuf>,
    /// Serve without a key and without encryption
    #[arg(long)]
    insecure: bool,
    /// Allow third-party copies: send to any other agent that a client names
    #[arg(long)]
    onward: bool,
    /// Run as this user (a name, UID or UID:GID) once the directory is open [default: `nobody`, if
    /// started by root without --allow-owner]
    #[arg(long, value_name = "NAME", conflicts_with = "one_time")]
    user: Option<String>,
    /// Let clients with the key set owners, set-user-ID and set-group-ID bits and access control
    /// lists (with `cp --owner` and -X)
    #[arg(long, conflicts_with_all = ["one_time", "insecure"])]
    allow_owner: bool,
    /// Refuse all writes
    #[arg(long)]
    read_only: bool,
    /// Threads that read, for each copy [default: measured]
    #[arg(long, value_name = "N", value_parser = super::cp::threads())]
    readers: Option<u16>,
    /// Threads that write, for each copy [default: measured]
    #[arg(long, value_name = "N", value_parser = super::cp::threads())]
    writers: Option<u16>,
    /// Upper bound of memory for data that is not yet written to disk
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    memory: u64,
    /// TCP congestion control, by the kernel's name (bbr, cubic, …)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Candidate addresses to listen on: the agent takes the first free one.
fn listen(args: &AgentArgs) -> Result<Vec<SocketAddr>, Failure> {
    if !args.one_time {
        return Ok(vec![resolve(&args.listen)?]);
    }
    // Firewalls that let ssh in on an address are likely to let data connections in, too.
    let here = std::env::var("SSH_CONNECTION").ok();
    let here = here.as_deref().and_then(|text| text.split(' ').nth(2)?.parse().ok());
    let ip: IpAddr = here.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let (from, to) = args.port_range.unwrap_or((0, 0));
    Ok((from..=to).map(|port| SocketAddr::new(ip, port)).collect())
}

/// Reads the session key, which `cp` writes to standard input.
fn one_time_key() -> Result<Key, Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::failed)?;
    Key::parse(&line).map_err(Failure::usage)
}

/// Refuses arguments that would give unauthenticated clients more rights than was asked for.
fn check_access(args: &AgentArgs, is_root: bool) -> Result<(), Failure> {
    // A client that starts this over ssh is authenticated by ssh, and sends a key.
    if args.one_time || args.key_file.is_some() {
        return Ok(());
    }
    let listen = resolve(&args.listen)?;
    if args.allow_owner {
        return Err(Failure::usage(
            "--allow-owner lets clients create set-user-ID programs of other users: give a --key-file",
        ));
    }
    if args.insecure {
        return Ok(());
    }
    if !is_loopback(&listen) {
        return Err(Failure::usage(format_args!(
            "{listen} can be reached from other machines: give a --key-file, or --insecure if the network is \
             trusted"
        )));
    }
    if is_root {
        return Err(Failure::usage(format_args!(
            "root starts this, and every user of this machine can connect to {listen}: give a --key-file, or \
             --insecure to let all of them access the files with the rights of the user 'nobody' (or --user NAME)"
        )));
    }
    Ok(())
}

/// The user with this name, `UID` or `UID:GID`.
fn named(name: &str) -> Result<User, Failure> {
    let found = User::named(name).map_err(|e| Failure::failed(format_args!("/etc/passwd: {e}")))?;
    found.ok_or_else(|| Failure::usage(format_args!("--user {name}: there is no user of that name")))
}

/// The user to switch to.
fn user_of(args: &AgentArgs, own: User) -> Result<User, Failure> {
    match &args.user {
        Some(name) => named(name),
        None if own.is_root() && !args.one_time && !args.allow_owner => Ok(User::unprivileged()),
        None => Ok(own),
    }
}

pub(crate) fn run(args: AgentArgs, output: Output) -> Outcome {
    check_congestion(args.congestion.as_deref())?;
    let own = User::own();
    check_access(&args, own.is_root())?;
    let user = user_of(&args, own)?;
    // Registered before anything is opened, so that a signal always ends the agent in order.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::failed)?;
    super::cp::raise_descriptors();
    let key = match args.one_time {
        true => Some(one_time_key()?),
        false => super::cp::key(args.key_file.as_deref(), Key::load_or_make)?,
    };
    // Below port 1024 with the rights that it has now; threads are started as the user that it becomes.
    let metrics = args.metrics.bind()?;
    let bound = Agent::bind(AgentConfig {
        listen: listen(&args)?,
        root: args.root.clone(),
        key,
        read_only: args.read_only,
        // An ssh login already allows its client to set owners, within the rights of the user,
        // and to connect to other machines.
        allow_owner: args.allow_owner || args.one_time,
        onward: args.onward || args.one_time,
        readers: super::cp::concurrency(args.readers),
        writers: super::cp::concurrency(args.writers),
        memory: usize::try_from(args.memory).map_err(Failure::usage)?,
        patience: PATIENCE,
        congestion: args.congestion,
        engine: args.engine.config(),
    })
    .map_err(Failure::failed)?;
    // A manager of a user is reached by root's rights alone.
    let manager = Manager::of_this_process();
    let refused = |e| Failure::failed(format_args!("cannot become the user {}: {e}", user.name));
    user.switch_to().map_err(refused)?;
    let metrics = metrics::start(metrics, "the agent is starting")?;
    let agent = bound.start().map_err(|e| {
        let hint = if args.user.is_none() { "; --user NAME runs this as another user" } else { "" };
        Failure::failed(format_args!("as the user {}: {e}{hint}", user.name))
    })?;
    if let Some(metrics) = &metrics {
        metrics.add(Arc::new(AgentSource::new(agent.observer())));
        metrics.set_ready();
    }
    let uri = format!("lh://{}/", reachable(agent.address()));
    let listen = agent.address().to_string();
    let root = args.root.as_ref().map(|root| root.display().to_string());
    let metrics_at = metrics.as_ref().map(|server| server.address().to_string());
    output.event(&AgentReady { listen, uri: uri.clone(), root, user: user.name, metrics: metrics_at });
    if !output.is_json() {
        output.line(format_args!("ready {uri}"));
    }
    manager.ready(&format!("Serving {uri}"));
    if args.one_time {
        // The agent ends when its standard input ends, or on a signal.
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                std::process::exit(0);
            }
        });
        carry(std::io::stdin(), std::io::stdout(), agent.address()).map_err(Failure::failed)?;
    } else {
        signals.forever().next();
    }
    manager.stopping();
    drop(agent);
    output.event(&ServiceSummary { clean: true });
    Ok(())
}
