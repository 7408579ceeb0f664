//! `longhaul nbd`.

use super::open::UseArgs;
use super::{observe, ready_at, watched};
use crate::arguments::resolve;
use crate::events::{NbdReady, ServiceSummary, Stopping};
use crate::exit::{Failure, Outcome};
use crate::metrics::MetricsArgs;
use crate::output::Output;
use longhaul_attach::OpenDevice;
use longhaul_attach::nbd::{Address, Export, Nbd};
use longhaul_engine::address::{self, ListenAddress, reachable};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port that IANA assigned to NBD.
const PORT: u16 = 10809;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Works with any NBD client: qemu, qemu-img, nbdinfo, nbdcopy, nbd-client. There
is neither encryption nor authentication: use loopback, a Unix socket or a
trusted network.

Examples:
  longhaul nbd --export scratch=nvme+tcp://dtn1/scratch --unix /tmp/scratch.sock
  nbdinfo 'nbd+unix:///scratch?socket=/tmp/scratch.sock'
  longhaul nbd --export scratch=array:scratch --listen 127.0.0.1:10809")]
pub(crate) struct NbdArgs {
    /// Device to serve, and its name; may be repeated
    #[arg(long, value_name = "NAME=DEVICE", required = true)]
    export: Vec<NamedExport>,
    /// Address and port to listen on [default: 127.0.0.1:10809, unless --unix]
    #[arg(long, value_name = "ADDR:PORT", value_parser = address::listen::<PORT>)]
    listen: Vec<ListenAddress>,
    /// Unix socket to listen on
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    using: UseArgs,
}

/// The value of `--export`, `NAME=DEVICE`.
#[derive(Clone, Debug)]
struct NamedExport {
    name: String,
    device: String,
}

impl FromStr for NamedExport {
    type Err = String;

    fn from_str(s: &str) -> Result<NamedExport, String> {
        match s.split_once('=') {
            // The protocol limits a name to 4096 bytes.
            Some((name, device)) if !device.is_empty() && name.len() <= 4096 => {
                Ok(NamedExport { name: name.to_owned(), device: device.to_owned() })
            }
            _ => Err("the form is NAME=DEVICE, such as scratch=nvme+tcp://dtn1/scratch".into()),
        }
    }
}

pub(crate) fn run(args: &NbdArgs, output: Output) -> Outcome {
    // From here on a signal is an event, also while the devices are being opened.
    let (_event_sender, events) = observe::events()?;
    let (opener, metrics) = watched(&args.using, &args.metrics)?;
    let mut opened: Vec<OpenDevice> = Vec::new();
    let mut exports: Vec<Export> = Vec::new();
    for named in &args.export {
        if exports.iter().any(|export| export.name == named.name) {
            return Err(Failure::usage(format!("two exports are called '{}'", named.name)));
        }
        let device = args.using.open_by(&opener, &named.device, Path::new(&format!("nbd:{}", named.name)))?;
        exports.push(Export { name: named.name.clone(), requests: device.requests.clone() });
        opened.push(device);
    }
    let mut addresses: Vec<Address> =
        args.listen.iter().map(|listen| resolve(listen).map(Address::Tcp)).collect::<Result<_, _>>()?;
    addresses.extend(args.unix.clone().map(Address::Unix));
    if addresses.is_empty() {
        addresses.push(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], PORT))));
    }
    let nbd = Nbd::start(exports, &addresses)?;
    for address in nbd.addresses() {
        if let Address::Tcp(addr) = address
            && !addr.ip().is_loopback()
        {
            tracing::warn!(
                "{addr} is reached from other machines, and nothing is encrypted: use a trusted network"
            );
        }
    }
    print_ready(&nbd, args, ready_at(metrics.as_ref()), output);
    // A detach request does not come without an attachment: it is a signal.
    let _ = events.recv();
    output.event(&Stopping {});
    let cut = nbd.cut();
    // A second signal disconnects the clients instead of waiting for them.
    std::thread::spawn(move || {
        if events.recv().is_ok() {
            cut();
        }
    });
    nbd.stop()?;
    output.event(&ServiceSummary { clean: true });
    Ok(())
}

fn print_ready(nbd: &Nbd, args: &NbdArgs, metrics: Option<String>, output: Output) {
    let mut uris = Vec::new();
    for named in &args.export {
        uris.extend(nbd.addresses().iter().map(|address| match address {
            Address::Tcp(addr) => format!("nbd://{}/{}", reachable(*addr), named.name),
            Address::Unix(path) => format!("nbd+unix:///{}?socket={}", named.name, path.display()),
        }));
    }
    if !output.is_json() {
        output.line(format_args!("ready {}", uris.join(" ")));
    }
    output.event(&NbdReady { uris, metrics });
}
