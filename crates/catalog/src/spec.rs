//! How people name catalogs.

use crate::error::Result;
use crate::wire::PORT;
use crate::{Access, Catalog, EtcdCatalog, FileCatalog, RemoteCatalog};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Keys in etcd begin with this, unless another prefix is named.
const PREFIX: &str = "longhaul";

/// A catalog by its name: `file:PATH`, `server:HOST[:PORT][,HOST[:PORT]…]`, or
/// `etcd:HOST:PORT[,HOST:PORT…][/PREFIX]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CatalogSpec {
    /// A file of this host.
    File(PathBuf),
    /// A catalog that another host serves (`longhaul fs serve`), which several hosts share.
    Server {
        /// Its addresses, each `HOST:PORT`.
        addresses: Vec<String>,
    },
    /// An etcd, which several hosts share.
    Etcd {
        /// Its members, each `HOST:PORT`.
        endpoints: Vec<String>,
        /// What all keys begin with, without the slash that follows it.
        prefix: String,
    },
}

impl CatalogSpec {
    /// Opens the catalog. A file that does not exist is made; nothing is sent to a server or an etcd yet. `access`
    /// is how a server is reached.
    ///
    /// # Errors
    /// The file cannot be opened or is no catalog, or an endpoint is no address.
    pub fn open(&self, access: Access) -> Result<Arc<dyn Catalog>> {
        match self {
            CatalogSpec::File(path) => Ok(Arc::new(FileCatalog::open(path)?)),
            CatalogSpec::Server { addresses } => Ok(Arc::new(RemoteCatalog::new(addresses, access)?)),
            CatalogSpec::Etcd { endpoints, prefix } => {
                Ok(Arc::new(EtcdCatalog::new(endpoints, &format!("{prefix}/"))?))
            }
        }
    }
}

impl FromStr for CatalogSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<CatalogSpec, String> {
        let wrong = |why: &str| {
            let form = "the form is file:PATH, server:HOST[:PORT] or etcd:HOST:PORT[,HOST:PORT…][/PREFIX]";
            format!("'{text}' is no catalog: {why}; {form}")
        };
        if let Some(path) = text.strip_prefix("file:") {
            return match path {
                "" => Err(wrong("there is no path")),
                path => Ok(CatalogSpec::File(path.into())),
            };
        }
        if let Some(rest) = text.strip_prefix("server:") {
            let addresses = rest.split(',').map(|part| server_address(part).map_err(|why| wrong(&why)));
            return Ok(CatalogSpec::Server { addresses: addresses.collect::<std::result::Result<_, _>>()? });
        }
        let Some(rest) = text.strip_prefix("etcd:") else { return Err(wrong("it is of no known kind")) };
        let (mut endpoints, mut prefix) = (Vec::new(), PREFIX.to_owned());
        let mut parts = rest.split(',').peekable();
        while let Some(part) = parts.next() {
            let part = part.strip_prefix("http://").unwrap_or(part);
            let (endpoint, path) = part.split_once('/').unwrap_or((part, ""));
            if endpoint.is_empty() || endpoint == "https:" {
                return Err(wrong("a member is HOST:PORT, without TLS"));
            }
            let path = path.trim_matches('/');
            if !path.is_empty() {
                if parts.peek().is_some() {
                    return Err(wrong("the prefix stands after the last member"));
                }
                prefix = path.to_owned();
            }
            endpoints.push(endpoint.to_owned());
        }
        Ok(CatalogSpec::Etcd { endpoints, prefix })
    }
}

/// `HOST:PORT` of an address of a server, which may be without its port.
fn server_address(text: &str) -> std::result::Result<String, String> {
    let (host, port) = match text.rsplit_once(':') {
        // An address of IPv6 has colons of its own.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port.map(str::parse::<u16>) {
        None => PORT,
        Some(Ok(port)) if port > 0 => port,
        Some(_) => return Err(format!("'{text}' has no port of 1 to 65535")),
    };
    if host.is_empty() || host.contains(['/', '@', ' ']) {
        return Err(format!("'{text}' is no HOST[:PORT]"));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Ok(if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") })
}

impl fmt::Display for CatalogSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CatalogSpec::File(path) => write!(f, "file:{}", path.display()),
            CatalogSpec::Server { addresses } => write!(f, "server:{}", addresses.join(",")),
            CatalogSpec::Etcd { endpoints, prefix } if prefix == PREFIX => {
                write!(f, "etcd:{}", endpoints.join(","))
            }
            CatalogSpec::Etcd { endpoints, prefix } => write!(f, "etcd:{}/{prefix}", endpoints.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let etcd = |endpoints: &[&str], prefix: &str| CatalogSpec::Etcd {
            endpoints: endpoints.iter().map(|&at| at.to_owned()).collect(),
            prefix: prefix.to_owned(),
        };
        let server = |addresses: &[&str]| CatalogSpec::Server {
            addresses: addresses.iter().map(|&at| at.to_owned()).collect(),
        };
        for (text, spec, written) in [
            ("server:mgmt1", server(&["mgmt1:7420"]), "server:mgmt1:7420"),
            (
                "server:a:1,[::1],::2",
                server(&["a:1", "[::1]:7420", "[::2]:7420"]),
                "server:a:1,[::1]:7420,[::2]:7420",
            ),
            ("file:/var/x", CatalogSpec::File("/var/x".into()), "file:/var/x"),
            ("etcd:h:2379", etcd(&["h:2379"], "longhaul"), "etcd:h:2379"),
            ("etcd:http://a:1,http://b:2/", etcd(&["a:1", "b:2"], "longhaul"), "etcd:a:1,b:2"),
            ("etcd:a:1,[::1]:2/site/one", etcd(&["a:1", "[::1]:2"], "site/one"), "etcd:a:1,[::1]:2/site/one"),
        ] {
            assert_eq!(text.parse(), Ok(spec.clone()), "{text}");
            assert_eq!(spec.to_string(), written);
            assert_eq!(written.parse(), Ok(spec));
        }
        for text in [
            "",
            "x",
            "file:",
            "etcd:",
            "etcd:https://a:1",
            "etcd:a:1/x,b:2",
            "redis:a:1",
            "server:",
            "server:a:0",
            "server:a/x",
        ] {
            let error = text.parse::<CatalogSpec>().expect_err(text);
            assert!(error.contains("the form is file:PATH, server:HOST[:PORT] or etcd:"), "{error}");
        }
    }
}
