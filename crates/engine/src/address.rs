//! Addresses to listen on, as a user gives them, and as other machines reach them.

use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// A documentation address (RFC 5737), for the kernel to choose a source address for.
const FAR_V4: &str = "192.0.2.1:9";
/// A documentation address of IPv6 (RFC 3849).
const FAR_V6: &str = "[2001:db8::1]:9";

/// Where to listen, as given; names are not resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// An address or a name; empty for all IPv4 addresses.
    host: String,
    port: u16,
}

/// Parses where to listen: `ADDR:PORT`, `NAME:PORT`, `:PORT` for all IPv4 addresses, or one of
/// the first two without `:PORT` for the default one. Names are not resolved here: a
/// program that does not listen parses the addresses of its configuration, too.
///
/// # Errors
/// The text has none of these forms, or the port is out of range.
pub fn listen<const DEFAULT_PORT: u16>(text: &str) -> Result<ListenAddress, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(ListenAddress { host: address.ip().to_string(), port: address.port() });
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(ListenAddress { host: ip.to_string(), port: DEFAULT_PORT });
    }
    let form = || format!("the form is ADDR:PORT, NAME:PORT or :PORT, such as 0.0.0.0:{DEFAULT_PORT}");
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => {
            let why = |_| format!("'{port}' is not a port (0 to 65535); {}", form());
            (host, port.parse().map_err(why)?)
        }
        None if text.is_empty() => return Err(form()),
        None => (text, DEFAULT_PORT),
    };
    if host.contains([':', '/', '[', ']']) {
        return Err(format!("'{host}' is neither an address nor a name; {}", form()));
    }
    Ok(ListenAddress { host: host.to_owned(), port })
}

impl ListenAddress {
    /// Resolves the address. Of a name it is the first one, IPv4 before IPv6.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub fn resolve(&self) -> io::Result<SocketAddr> {
        let ListenAddress { host, port } = self;
        if host.is_empty() {
            return Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), *port));
        }
        let why = |why: &dyn std::fmt::Display| {
            io::Error::other(format!(
                "cannot listen on {host}:{port}: {why}; check the name, or use an address"
            ))
        };
        let mut all: Vec<SocketAddr> =
            (host.as_str(), *port).to_socket_addrs().map_err(|e| why(&e))?.collect();
        all.sort_by_key(SocketAddr::is_ipv6);
        all.first().copied().ok_or_else(|| why(&"it has no address"))
    }
}

/// The address at which other machines reach a listener on `address`: for the wildcard address,
/// the source address that the kernel chooses for the default route.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let (any, far) = if address.is_ipv4() { ("0.0.0.0:0", FAR_V4) } else { ("[::]:0", FAR_V6) };
    let from = |any: &str, far: &str| {
        // `connect` on a UDP socket sends nothing: it looks up the route.
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(far).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let loopback =
        if address.is_ipv4() { IpAddr::from([127, 0, 0, 1]) } else { IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]) };
    // A listener on all IPv6 addresses also accepts IPv4, unless `bindv6only` is set.
    let found = from(any, far).or_else(|| from("0.0.0.0:0", FAR_V4).filter(|_| address.is_ipv6()));
    SocketAddr::new(found.unwrap_or(loopback), address.port())
}

/// Checks that this process may use a congestion control, so that a program fails at its start and
/// not at its first connection. Without a name there is nothing to check.
///
/// # Errors
/// The kernel has no congestion control of that name, or only root may use it; the message lists
/// those that can be used.
pub fn check_congestion(name: Option<&str>) -> Result<(), String> {
    let Some(name) = name else { return Ok(()) };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    let tried = socket.and_then(|socket| socket.set_tcp_congestion(name.as_bytes()));
    let listed = |file: &str| {
        let names = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{file}_congestion_control"));
        names.map_or_else(
            |_| "unknown".into(),
            |names| names.split_whitespace().collect::<Vec<_>>().join(", "),
        )
    };
    let why = match tried.map_err(|e| e.raw_os_error()) {
        Err(Some(libc::ENOENT)) => {
            format!("the kernel has none of that name; it has {}", listed("available"))
        }
        Err(Some(libc::EPERM)) => format!("only root may use it; every user may use {}", listed("allowed")),
        // Other errors are reported by the first connection.
        _ => return Ok(()),
    };
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_names_and_ports_are_parsed() {
        let good = [
            ("10.0.0.5:4499", "10.0.0.5:4499"),
            ("10.0.0.5", "10.0.0.5:4420"),
            (":4499", "0.0.0.0:4499"),
            ("[::1]:4499", "[::1]:4499"),
            ("[::1]", "[::1]:4420"),
            ("::1", "[::1]:4420"),
            ("localhost:4499", "127.0.0.1:4499"),
            ("localhost", "127.0.0.1:4420"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ];
        for (text, address) in good {
            let resolved = listen::<4420>(text).expect(text).resolve().map_err(|e| e.to_string());
            assert_eq!(resolved.map(|address| address.to_string()), Ok(address.to_owned()), "{text}");
        }
        for (text, word) in [
            ("localhost:x", "'x' is not a port"),
            ("localhost:70000", "not a port"),
            ("a:b:1", "'a:b'"),
            ("", "ADDR"),
        ] {
            let why = listen::<4420>(text).expect_err(text);
            assert!(why.contains(word) && why.contains("0.0.0.0:4420"), "{text}: {why}");
        }
        let missing = listen::<4420>("name.invalid:1").expect("a name").resolve().expect_err("no address");
        assert!(missing.to_string().contains("name.invalid:1"), "{missing}");
    }

    #[test]
    fn a_wildcard_address_is_reached_by_a_specific_one() {
        for (all, one) in [("0.0.0.0:7", "127.0.0.1:7"), ("10.1.2.3:7", "10.1.2.3:7"), ("[::1]:7", "[::1]:7")]
        {
            let named = reachable(all.parse().expect("an address"));
            assert!(!named.ip().is_unspecified() && named.port() == 7);
            // With a network, it is not the loopback address.
            assert!(named.to_string() == one || all == "0.0.0.0:7", "{all}: {named}");
        }
        assert!(!reachable("[::]:7".parse().expect("an address")).ip().is_unspecified());
    }

    #[test]
    fn an_unknown_congestion_control_is_refused_with_a_list_of_known_ones() {
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").expect("a name");
        assert!(check_congestion(Some(known.trim())).is_ok() && check_congestion(None).is_ok());
        let why = check_congestion(Some("foo")).expect_err("none of that name");
        assert!(why.contains(known.trim()), "{why}");
    }
}
