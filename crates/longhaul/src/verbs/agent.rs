//! `longhaul agent`.

use crate::addresses::{self, Listen, check_congestion, reachable};
use crate::exit::{Failure, Outcome};
use crate::names::{EngineArgs, parse_bytes};
use crate::output::Output;
use crate::user::User;
use longhaul_target::is_loopback;
use longhaul_transfer::{Agent, AgentConfig, Key, PATIENCE, carry};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Where it listens unless something else is said.
const PORT: u16 = 7400;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Serves the directory to `longhaul cp` and `longhaul sync`, as
lh://HOST:PORT/PATH with paths relative to it. Nothing outside the directory is
reached. With --key-file only who has the same key is served, and everything is
encrypted; the file is made if it does not exist, and is to be copied to the
other machine. Without a key, whoever reaches the port may read and write as
the user who runs this:
--insecure has to say that this is wanted, except on a loopback address.

Started by root, it wants a key on a loopback address too, since every user of
this machine can connect to it, and it becomes the user `nobody` (or --user
NAME) once the directory is open. The sender's owners, set-user-ID and
set-group-ID bits and access control lists are taken with --allow-owner only,
which keeps root and takes a key.

Example:
  longhaul agent --listen 192.0.2.7:7400 --root /srv/data \\
      --key-file ~/.config/longhaul/agent.key")]
pub(crate) struct Args {
    /// Address and port to serve on
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7400", value_parser = addresses::listen::<PORT>)]
    listen: Listen,
    /// The directory to serve
    #[arg(long, value_name = "DIR", required_unless_present = "one_time")]
    root: Option<PathBuf>,
    /// What `cp` starts over ssh: serve all that this user may reach, with the key that comes on
    /// standard input, until that ends
    #[arg(long, conflicts_with_all = ["root", "insecure", "key_file"])]
    one_time: bool,
    /// Ports to choose from, with --one-time [default: any]
    #[arg(long, value_name = "FROM-TO", requires = "one_time", value_parser = super::cp::port_range)]
    port_range: Option<(u16, u16)>,
    /// Serve only who has this key, and encrypt
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    key_file: Option<PathBuf>,
    /// Serve without keys and encryption
    #[arg(long)]
    insecure: bool,
    /// Send to other agents, wherever they are, for those who ask for it
    #[arg(long)]
    onward: bool,
    /// Run as this user (a name, UID or UID:GID) once the directory is open [default: nobody, if
    /// root starts this without --allow-owner]
    #[arg(long, value_name = "NAME", conflicts_with = "one_time")]
    user: Option<String>,
    /// Let those who have the key decide owners, set-user-ID and set-group-ID bits and access
    /// control lists (with `cp --owner` and -X)
    #[arg(long, conflicts_with_all = ["one_time", "insecure"])]
    allow_owner: bool,
    /// Let nobody write
    #[arg(long)]
    read_only: bool,
    /// Threads that read, for each copy [default: as many as help]
    #[arg(long, value_name = "N", value_parser = super::cp::threads())]
    readers: Option<u16>,
    /// Threads that write, for each copy [default: as many as help]
    #[arg(long, value_name = "N", value_parser = super::cp::threads())]
    writers: Option<u16>,
    /// Bound of the memory for data on its way to the disk
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    memory: u64,
    /// Congestion control, by the kernel's name (bbr, cubic, …)
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Where to listen: the first address that is free.
fn listen(args: &Args) -> Result<Vec<SocketAddr>, Failure> {
    if !args.one_time {
        return Ok(vec![args.listen.resolve()?]);
    }
    // Where ssh has come in, data can too.
    let here = std::env::var("SSH_CONNECTION").ok();
    let here = here.as_deref().and_then(|text| text.split(' ').nth(2)?.parse().ok());
    let ip: IpAddr = here.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let (from, to) = args.port_range.unwrap_or((0, 0));
    Ok((from..=to).map(|port| SocketAddr::new(ip, port)).collect())
}

/// The key that `cp` hands over on standard input.
fn one_time_key() -> Result<Key, Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::failed)?;
    Key::parse(&line).map_err(Failure::usage)
}

/// Refuses what would give strangers rights that nobody has meant to give.
fn check_access(args: &Args, is_root: bool) -> Result<(), Failure> {
    // Who starts this over ssh has shown who it is, and hands a key over.
    if args.one_time || args.key_file.is_some() {
        return Ok(());
    }
    let listen = args.listen.resolve()?;
    if args.allow_owner {
        return Err(Failure::usage(
            "--allow-owner lets who connects make programs that run as others: give a --key-file",
        ));
    }
    if args.insecure {
        return Ok(());
    }
    if !is_loopback(&listen) {
        return Err(Failure::usage(format_args!(
            "{listen} can be reached from other machines: give a --key-file, or say --insecure if the network \
             is trusted"
        )));
    }
    if is_root {
        return Err(Failure::usage(format_args!(
            "root starts this, and every user of this machine can connect to {listen}: give a --key-file, or \
             say --insecure if all of them may read and write what the user nobody (or --user NAME) may"
        )));
    }
    Ok(())
}

/// The user to run as.
fn user(args: &Args, own: User) -> Result<User, Failure> {
    match &args.user {
        Some(name) => User::named(name),
        None if own.is_root() && !args.one_time && !args.allow_owner => Ok(User::nobody()),
        None => Ok(own),
    }
}

pub(crate) fn run(args: Args, output: Output) -> Outcome {
    check_congestion(args.congestion.as_deref())?;
    let own = User::own();
    check_access(&args, own.is_root())?;
    let user = user(&args, own)?;
    // From here on a signal is an event, also before all is ready.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::failed)?;
    super::cp::raise_descriptors();
    let key = match args.one_time {
        true => Some(one_time_key()?),
        false => super::cp::key(args.key_file.as_deref(), Key::load_or_make)?,
    };
    let bound = Agent::bind(AgentConfig {
        listen: listen(&args)?,
        root: args.root.clone(),
        key,
        read_only: args.read_only,
        // Who comes over ssh has no more rights than ssh has given.
        allow_owner: args.allow_owner || args.one_time,
        // Who comes over ssh could run anything here.
        onward: args.onward || args.one_time,
        readers: super::cp::concurrency(args.readers),
        writers: super::cp::concurrency(args.writers),
        memory: usize::try_from(args.memory).map_err(Failure::usage)?,
        patience: PATIENCE,
        congestion: args.congestion,
        engine: args.engine.config(),
    })
    .map_err(Failure::failed)?;
    let named = |e| Failure::failed(format_args!("cannot become the user {}: {e}", user.name));
    user.become_it().map_err(named)?;
    let agent = bound.start().map_err(|e| {
        let hint = if args.user.is_none() { "; --user NAME runs this as another user" } else { "" };
        Failure::failed(format_args!("as the user {}: {e}{hint}", user.name))
    })?;
    let uri = format!("lh://{}/", reachable(agent.address()));
    output.event(
        "ready",
        json!({ "listen": agent.address().to_string(), "uri": uri, "root": args.root, "user": user.name }),
    );
    if !output.is_json() {
        output.line(format_args!("ready {uri}"));
    }
    if args.one_time {
        // It ends with who started it, or when it is told to.
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                std::process::exit(0);
            }
        });
        carry(std::io::stdin(), std::io::stdout(), agent.address()).map_err(Failure::failed)?;
    } else {
        signals.forever().next();
    }
    drop(agent);
    output.event("summary", json!({ "clean": true }));
    Ok(())
}
