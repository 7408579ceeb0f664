//! `nvme+tcp://HOST[:PORT][,HOST[:PORT]…]/SUBNQN[?nsid=N&…]`: how a person names a remote
//! namespace, and the addresses at which it is. At a Unix socket it is `nvme+unix:///SUBNQN?socket=PATH`, and
//! over a transport of the program's own `nvme+NAME://ADDRESS/SUBNQN`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The scheme of NVMe over TCP.
pub const SCHEME: &str = "nvme+tcp";
/// What the schemes of all transports begin with.
pub const SCHEMES: &str = "nvme+";
/// The transport of [`SCHEME`].
pub(crate) const TCP: &str = "tcp";
/// The transport over Unix sockets.
pub(crate) const UNIX: &str = "unix";
/// Port of NVMe/TCP I/O controllers (IANA: `nvme`).
pub const IO_PORT: u16 = 4420;
/// Port of NVMe/TCP discovery controllers (IANA: `nvme-disc`).
pub const DISCOVERY_PORT: u16 = 8009;

/// A remote namespace, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// How it is reached: `tcp`, `unix`, or a name in [`Options::transports`](crate::Options::transports).
    pub transport: String,
    /// Host name or address (without the brackets of IPv6); of another transport than TCP its address, which for
    /// `unix` is the path of the socket.
    pub host: String,
    /// TCP port, 4420 if the URI has none; of another transport 0.
    pub port: u16,
    /// Further addresses of the same subsystem, as host and port.
    pub others: Vec<(String, u16)>,
    /// Further addresses are taken from the discovery log (`paths=discover`).
    pub discover_paths: bool,
    /// NQN of the subsystem, or the short name that ends it: an NQN that
    /// does not begin with `nqn.` is looked up by discovery.
    pub subnqn: String,
    /// The namespace; without it the subsystem's only one.
    pub nsid: Option<u32>,
    /// Options, each also settable in [`crate::Options`].
    pub options: UriOptions,
}

/// Options that a URI may carry. `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UriOptions {
    /// CRC32C over PDU headers.
    pub hdr_digest: Option<bool>,
    /// CRC32C over PDU data.
    pub data_digest: Option<bool>,
    /// Entries of each I/O queue.
    pub queue_size: Option<u16>,
    /// Keep-alive time-out in milliseconds; 0 switches it off.
    pub kato_ms: Option<u32>,
    /// TLS 1.3 with a pre-shared key.
    pub tls: Option<bool>,
    /// Use TLS with a PSK that an authentication has made.
    pub concat: Option<bool>,
    /// NQN that this host calls itself.
    pub hostnqn: Option<String>,
    /// How long I/O waits for a lost connection (`Some(None)`: for ever).
    pub ctrl_loss: Option<Option<Duration>>,
    /// Bytes to keep in flight; see [`PathOptions`](crate::path::PathOptions) for this and the
    /// following fields.
    pub in_flight: Option<u64>,
    /// Connections a thread.
    pub connections: Option<u16>,
    /// Bytes of one command.
    pub io_size: Option<u32>,
    /// Bytes to read ahead.
    pub read_ahead: Option<u64>,
}

/// Why a URI is invalid, in a sentence that names the part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad device URI '{uri}': {problem}; the form is nvme+tcp://HOST[:PORT][,HOST…]/SUBNQN[?nsid=N]")]
pub struct UriError {
    uri: String,
    problem: String,
}

impl UriError {
    pub(crate) fn new(uri: &str, problem: String) -> UriError {
        UriError { uri: uri.to_owned(), problem }
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(s: &str) -> Result<Uri, UriError> {
        parse(s).map_err(|problem| UriError { uri: s.to_owned(), problem })
    }
}

fn parse(s: &str) -> Result<Uri, String> {
    let (transport, rest) = s
        .strip_prefix(SCHEMES)
        .and_then(|rest| rest.split_once("://"))
        .ok_or_else(|| format!("it does not begin with {SCHEME}://"))?;
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if transport.is_empty() || !transport.chars().all(is_part) {
        return Err(format!("'{transport}' is not the name of a transport, such as {TCP} or {UNIX}"));
    }
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (authority, path) = rest.split_once('/').ok_or("there is no /SUBNQN after the host")?;
    let mut addresses = match transport {
        TCP => {
            authority.split(',').map(|one| parse_authority(one, IO_PORT)).collect::<Result<Vec<_>, _>>()?
        }
        UNIX if !authority.is_empty() => {
            return Err(format!("'{authority}' is not on this machine: the form is {UNIX_FORM}"));
        }
        UNIX => vec![(String::new(), 0)],
        _ if authority.is_empty() => {
            return Err(format!("there is no address of the transport '{transport}'"));
        }
        _ => vec![(decode(authority)?, 0)],
    };
    if let Some((host, port)) = repeated(&addresses) {
        return Err(format!("the address {host} with port {port} is there twice"));
    }
    if addresses.len() > PATHS_MAX {
        return Err(format!("it has {} addresses, at most {PATHS_MAX} are allowed", addresses.len()));
    }
    let (host, port) = addresses.remove(0);
    let subnqn = decode(path.trim_end_matches('/'))?;
    if subnqn.is_empty() {
        return Err("there is no SUBNQN after the host".into());
    }
    if subnqn.len() > NQN_MAX {
        return Err(format!("the SUBNQN has {} bytes, at most {NQN_MAX} are allowed", subnqn.len()));
    }
    let (transport, options) = (transport.to_owned(), UriOptions::default());
    let others = addresses;
    let mut uri = Uri { transport, host, port, others, discover_paths: false, subnqn, nsid: None, options };
    for pair in query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, "true"));
        uri.set(key, &decode(value)?)?;
    }
    if uri.host.is_empty() {
        return Err(format!("there is no socket: the form is {UNIX_FORM}"));
    }
    Ok(uri)
}

const UNIX_FORM: &str = "nvme+unix:///SUBNQN?socket=PATH";

/// Addresses of one subsystem at most: each is an association of its own with the target.
pub(crate) const PATHS_MAX: usize = 16;

/// An address that is there twice.
fn repeated(addresses: &[(String, u16)]) -> Option<&(String, u16)> {
    addresses
        .iter()
        .enumerate()
        .find(|(i, address)| addresses[..*i].contains(address))
        .map(|(_, found)| found)
}

/// NVMe Base 2.1, NVMe Qualified Names: at most 223 bytes.
const NQN_MAX: usize = 223;

/// `HOST[:PORT]`, with an IPv6 address in brackets, or alone without them; without a port that of `default`.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse_authority(s: &str, default: u16) -> Result<(String, u16), String> {
    let (host, port) = if let Some(rest) = s.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("the [ of the IPv6 address is not closed")?;
        match rest {
            "" => (host, None),
            _ => (host, Some(rest.strip_prefix(':').ok_or_else(|| format!("'{rest}' after the ]"))?)),
        }
    } else {
        match s.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (s, None),
        }
    };
    if host.is_empty() {
        return Err("there is no host".into());
    }
    let port = match port {
        None => default,
        Some(port) => match port.parse() {
            Ok(0) | Err(_) => return Err(format!("'{port}' is not a port (1 to 65535)")),
            Ok(port) => port,
        },
    };
    Ok((host.to_owned(), port))
}

impl Uri {
    /// All addresses, as host and port.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, u16)> {
        let first = (self.host.as_str(), self.port);
        std::iter::once(first).chain(self.others.iter().map(|(host, port)| (host.as_str(), *port)))
    }

    /// Whether the namespace is to be reached over several paths.
    pub fn is_multipath(&self) -> bool {
        !self.others.is_empty() || self.discover_paths
    }

    /// The same namespace at one of its addresses.
    pub(crate) fn at(&self, host: &str, port: u16) -> Uri {
        Uri { host: host.to_owned(), port, others: Vec::new(), discover_paths: false, ..self.clone() }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let options = &mut self.options;
        match key {
            "nsid" => {
                let nsid = number(key, value)?;
                if nsid == 0 || nsid == u32::MAX {
                    return Err(format!("nsid={value} is not a namespace"));
                }
                self.nsid = Some(nsid);
            }
            "hdr_digest" => options.hdr_digest = Some(boolean(key, value)?),
            "data_digest" => options.data_digest = Some(boolean(key, value)?),
            "tls" | "concat" => {
                let value = boolean(key, value)?;
                if value && !cfg!(feature = "tls") {
                    return Err(format!("option '{key}': {}", longhaul_conn::TLS_MISSING));
                }
                let option = if key == "tls" { &mut options.tls } else { &mut options.concat };
                *option = Some(value);
                if options.tls == Some(true) && options.concat == Some(true) {
                    return Err("tls=true and concat=true: name the one whose key is used".into());
                }
            }
            "queue_size" => options.queue_size = Some(number(key, value)?),
            "kato" => options.kato_ms = Some(number(key, value)?),
            "ctrl-loss-tmo" => options.ctrl_loss = Some(ctrl_loss(key, value)?),
            "hostnqn" => options.hostnqn = Some(value.to_owned()),
            "in_flight" => options.in_flight = Some(size(key, value)?),
            "connections" => {
                options.connections = Some(number(key, value)?);
                if options.connections == Some(0) {
                    return Err("connections=0: at least one is needed".into());
                }
            }
            "io_size" => {
                options.io_size = Some(u32::try_from(size(key, value)?).map_err(|_| too_much(key, value))?);
            }
            "socket" if self.transport == UNIX => value.clone_into(&mut self.host),
            "paths" => match value {
                "discover" if self.transport != TCP => {
                    return Err("paths=discover: only targets over TCP have several addresses".into());
                }
                "discover" => self.discover_paths = true,
                _ => return Err(format!("paths='{value}': only paths=discover is known")),
            },
            "read_ahead" => options.read_ahead = Some(size(key, value)?),
            _ => {
                return Err(format!(
                    "unknown option '{key}' (nsid, hdr_digest, data_digest, queue_size, kato, \
                     ctrl-loss-tmo, hostnqn, tls, concat, in_flight, connections, io_size, read_ahead, paths)"
                ));
            }
        }
        Ok(())
    }
}

fn number<T: FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key}='{value}' is not a number in range"))
}

/// Seconds, -1 for ever: as in `nvme-cli`.
fn ctrl_loss(key: &str, value: &str) -> Result<Option<Duration>, String> {
    match number::<i64>(key, value)? {
        -1 => Ok(None),
        seconds => u64::try_from(seconds)
            .map(|seconds| Some(Duration::from_secs(seconds)))
            .map_err(|_| format!("{key}='{value}' is neither a time in seconds nor -1")),
    }
}

fn size(key: &str, value: &str) -> Result<u64, String> {
    longhaul_block::units::parse_size(value).map_err(|e| format!("{key}: {e}"))
}

fn too_much(key: &str, value: &str) -> String {
    format!("{key}='{value}' is not a size of less than 4 GiB")
}

fn boolean(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("{key}='{value}' is neither true nor false")),
    }
}

/// Resolves percent-encoded bytes (`%XX`).
fn decode(s: &str) -> Result<String, String> {
    let bad = || format!("bad percent escape in '{s}'");
    let mut bytes = Vec::with_capacity(s.len());
    let mut rest = s.bytes();
    while let Some(b) = rest.next() {
        if b != b'%' {
            bytes.push(b);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16)).ok_or_else(bad);
        let value = digit(rest.next())? * 16 + digit(rest.next())?;
        bytes.push(u8::try_from(value).map_err(|_| bad())?);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

/// Escapes what ends a part of a URI.
fn encode(s: &str) -> String {
    ["%25", "%26", "%3F", "%23"]
        .iter()
        .zip(['%', '&', '?', '#'])
        .fold(s.to_owned(), |s, (to, c)| s.replace(c, to))
}

/// The URI of a subsystem, or namespace, at a Unix socket.
pub fn unix_uri(path: &str, subnqn: &str, nsid: Option<u32>) -> String {
    let nsid = nsid.map(|nsid| format!("&nsid={nsid}")).unwrap_or_default();
    format!("{SCHEMES}{UNIX}:///{subnqn}?socket={}{nsid}", encode(path))
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.transport == UNIX {
            return f.write_str(&unix_uri(&self.host, &self.subnqn, self.nsid));
        }
        write!(f, "{SCHEMES}{}://", self.transport)?;
        if self.transport != TCP {
            write!(f, "{}/{}", encode(&self.host).replace('/', "%2F"), self.subnqn)?;
            return self.nsid.map_or(Ok(()), |nsid| write!(f, "?nsid={nsid}"));
        }
        for (number, (host, port)) in self.addresses().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match host.contains(':') {
                true => write!(f, "{comma}[{host}]:{port}")?,
                false => write!(f, "{comma}{host}:{port}")?,
            }
        }
        write!(f, "/{}", self.subnqn)?;
        self.nsid.map_or(Ok(()), |nsid| write!(f, "?nsid={nsid}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:36ebf5a9-1df9-47b3-a6d0-e9ba32e428a2";

    #[test]
    fn full_form() {
        let text = format!("nvme+tcp://dtn1.example.org:4421/{NQN}?nsid=3&hdr_digest=1&data_digest=false");
        let uri: Uri = text.parse().expect("good");
        assert_eq!((uri.host.as_str(), uri.port, uri.nsid), ("dtn1.example.org", 4421, Some(3)));
        assert_eq!(uri.subnqn, NQN);
        assert_eq!((uri.options.hdr_digest, uri.options.data_digest), (Some(true), Some(false)));
        let again = format!("nvme+tcp://dtn1.example.org:4421/{NQN}?nsid=3");
        assert_eq!(uri.to_string(), again);
    }

    #[test]
    fn several_addresses_of_one_subsystem() {
        let text = format!("nvme+tcp://10.0.0.1,[fe80::1]:4421,dtn1b/{NQN}?nsid=2&paths=discover");
        let uri: Uri = text.parse().expect("good");
        let all: Vec<_> = uri.addresses().collect();
        assert_eq!(all, [("10.0.0.1", IO_PORT), ("fe80::1", 4421), ("dtn1b", IO_PORT)]);
        assert!(uri.is_multipath() && uri.discover_paths);
        let again = format!("nvme+tcp://10.0.0.1:4420,[fe80::1]:4421,dtn1b:4420/{NQN}?nsid=2");
        assert_eq!(uri.to_string(), again);
        let one = uri.at("dtn1b", IO_PORT);
        assert_eq!(
            (one.to_string(), one.is_multipath()),
            (format!("nvme+tcp://dtn1b:4420/{NQN}?nsid=2"), false)
        );
    }

    #[test]
    fn other_transports_have_one_address() {
        let uri: Uri = format!("nvme+unix:///{NQN}?socket=/run/a%26b.sock&nsid=2").parse().expect("good");
        assert_eq!((uri.transport.as_str(), uri.host.as_str(), uri.nsid), (UNIX, "/run/a&b.sock", Some(2)));
        assert!(!uri.is_multipath());
        assert_eq!(uri.to_string(), format!("nvme+unix:///{NQN}?socket=/run/a%26b.sock&nsid=2"));
        assert_eq!(uri.to_string().parse(), Ok(uri));
        let uri: Uri = format!("nvme+mine://a%2Fb,c?/{NQN}").replace('?', "%3F").parse().expect("good");
        assert_eq!((uri.transport.as_str(), uri.host.as_str(), uri.port), ("mine", "a/b,c?", 0));
        assert_eq!(uri.to_string().parse(), Ok(uri));
    }

    #[test]
    fn loss_is_waited_for_in_seconds_or_for_ever() {
        for (value, want) in
            [("30", Some(Duration::from_secs(30))), ("0", Some(Duration::ZERO)), ("-1", None)]
        {
            let uri: Uri = format!("nvme+tcp://h/{NQN}?ctrl-loss-tmo={value}").parse().expect("good");
            assert_eq!(uri.options.ctrl_loss, Some(want), "{value}");
        }
    }

    #[test]
    fn defaults_and_ipv6() {
        let uri: Uri = "nvme+tcp://[::1]/scratch".parse().expect("good");
        assert_eq!((uri.host.as_str(), uri.port, uri.nsid), ("::1", IO_PORT, None));
        assert_eq!(uri.to_string(), "nvme+tcp://[::1]:4420/scratch");
    }

    #[test]
    fn tuning_by_hand() {
        let text = "nvme+tcp://h/n?in_flight=64MiB&connections=4&io_size=256k&read_ahead=0";
        let options = text.parse::<Uri>().expect("good").options;
        assert_eq!((options.in_flight, options.connections), (Some(64 << 20), Some(4)));
        assert_eq!((options.io_size, options.read_ahead), (Some(256 << 10), Some(0)));
    }

    #[test]
    fn each_fault_is_named() {
        let faults = [
            ("http://host/nqn", "does not begin with nvme+tcp://"),
            ("nvme+tcp://host", "no /SUBNQN"),
            ("nvme+tcp://host/", "no SUBNQN"),
            ("nvme+tcp:///nqn", "no host"),
            ("nvme+tcp://host:0/nqn", "'0' is not a port"),
            ("nvme+tcp://host:99999/nqn", "'99999' is not a port"),
            ("nvme+tcp://[::1/nqn", "not closed"),
            ("nvme+tcp://host/nqn?nsid=0", "nsid=0 is not a namespace"),
            ("nvme+tcp://host/nqn?nsid=x", "nsid='x' is not a number"),
            ("nvme+tcp://host/nqn?colour=red", "unknown option 'colour'"),
            ("nvme+tcp://host/nqn?hdr_digest=perhaps", "neither true nor false"),
            ("nvme+tcp://host/nqn?ctrl-loss-tmo=-2", "neither a time in seconds nor -1"),
            ("nvme+tcp://host/nqn?in_flight=much", "in_flight: "),
            ("nvme+tcp://host/nqn?io_size=8GiB", "not a size of less than 4 GiB"),
            ("nvme+tcp://host/nqn?connections=0", "at least one is needed"),
            ("nvme+tcp://a,,b/nqn", "no host"),
            ("nvme+tcp://a,b:4420,b/nqn", "b with port 4420 is there twice"),
            ("nvme+tcp://a/nqn?paths=all", "only paths=discover"),
            ("nvme+tcp://host/%zz", "percent escape"),
            ("nvme+tcp://host/nqn?socket=/x", "unknown option 'socket'"),
            ("nvme+unix:///nqn", "there is no socket: the form is nvme+unix:///SUBNQN?socket=PATH"),
            ("nvme+unix://host/nqn?socket=/x", "'host' is not on this machine"),
            ("nvme+unix:///nqn?socket=/x&paths=discover", "only targets over TCP"),
            ("nvme+mine:///nqn", "no address of the transport 'mine'"),
            ("nvme+://x/nqn", "'' is not the name of a transport"),
            ("nvme+A_B://x/nqn", "'A_B' is not the name"),
        ];
        for (text, want) in faults {
            let e = text.parse::<Uri>().expect_err(text).to_string();
            assert!(e.contains(want) && e.contains(text), "{text}: {e}");
        }
        let long = format!("nvme+tcp://h/{}", "n".repeat(224));
        assert!(long.parse::<Uri>().expect_err("too long").to_string().contains("224 bytes"));
    }
}
