//! Sources and destinations as they are typed.

use crate::receive::null_sink::is_null_sink;
use crate::send::synthetic::is_synthetic;
use crate::wire::show;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// Default TCP port of an agent.
const PORT: u16 = 7400;
/// URL scheme of a running agent.
const SCHEME: &[u8] = b"lh://";
/// What the name of a file system in a pool begins with.
pub(crate) const MOUNTED: &[u8] = b"fs:";

/// Whether `typed` names a synthetic source or the null destination rather than a path.
pub(super) fn is_special(typed: &[u8]) -> bool {
    is_null_sink(typed) || is_synthetic(typed)
}

/// A source or destination of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A path on this machine. In any endpoint, `zero:SPEC` and `dataset:SPEC` in place of
    /// a path are synthetic sources, and `null:` verifies data and discards it.
    Local(Vec<u8>),
    /// A path on a machine that is reached over ssh.
    Ssh {
        /// As ssh takes it: `[USER@]HOST`, an IPv6 address without brackets.
        host: String,
        /// Path, relative to the home directory there.
        path: Vec<u8>,
    },
    /// A path below the root of a running agent.
    Agent {
        /// Host name or IP address.
        host: String,
        /// TCP port of the agent, 7400 if none is typed.
        port: u16,
        /// Path, relative to the agent's root.
        path: Vec<u8>,
    },
    /// A path in a file system that the caller has opened: one of [`Settings::file_systems`].
    ///
    /// [`Settings::file_systems`]: crate::Settings::file_systems
    Mounted {
        /// `POOL/NAME`.
        name: String,
        /// Path from its top directory; begins with a slash.
        path: Vec<u8>,
    },
}

impl Endpoint {
    /// Parses a path, `[USER@]HOST:PATH`, `lh://HOST[:PORT]/PATH`, with IPv6 addresses
    /// in brackets, or `fs:POOL/NAME[/PATH]`. `zero:`, `dataset:`, `null:` and `fs:` are not taken for
    /// hosts.
    ///
    /// # Errors
    /// The text is empty, or malformed.
    pub fn parse(text: &OsStr) -> Result<Endpoint, String> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err("the path is empty".into());
        }
        if is_special(bytes) {
            return Ok(Endpoint::Local(bytes.to_vec()));
        }
        if let Some(rest) = bytes.strip_prefix(MOUNTED) {
            return mounted(rest)
                .ok_or_else(|| format!("'{}' is not of the form fs:POOL/NAME/PATH", show(bytes)));
        }
        let Some(rest) = bytes.strip_prefix(SCHEME) else {
            let slash = bytes.iter().position(|b| *b == b'/').unwrap_or(bytes.len());
            let before = &bytes[..slash];
            let find =
                |what: u8, from: usize| before.iter().skip(from).position(|b| *b == what).map(|at| from + at);
            // Skips the colons of an IPv6 address in brackets.
            let colon = match (find(b':', 0), find(b'[', 0)) {
                (Some(colon), Some(open)) if open < colon => find(b':', find(b']', open).unwrap_or(open)),
                (colon, _) => colon,
            };
            return match colon {
                Some(at) => ssh(&bytes[..at], &bytes[at + 1..]),
                _ => Ok(Endpoint::Local(bytes.to_vec())),
            };
        };
        let wrong = || format!("'{}' is not of the form lh://HOST:PORT/PATH", show(bytes));
        let (authority, path) = match rest.iter().position(|b| *b == b'/') {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, &b""[..]),
        };
        let authority = std::str::from_utf8(authority).map_err(|_| wrong())?;
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() { Err(wrong()) } else { Ok(Endpoint::Agent { host, port, path: path.to_vec() }) }
    }

    pub(crate) fn path(&self) -> &[u8] {
        match self {
            Endpoint::Local(path)
            | Endpoint::Ssh { path, .. }
            | Endpoint::Agent { path, .. }
            | Endpoint::Mounted { path, .. } => path,
        }
    }

    pub(crate) fn server(&self) -> Option<Server> {
        match self {
            Endpoint::Local(_) | Endpoint::Mounted { .. } => None,
            Endpoint::Ssh { host, .. } => Some(Server::Ssh(host.clone())),
            Endpoint::Agent { host, port, .. } => Some(Server::Agent(host.clone(), *port)),
        }
    }
}

impl Endpoint {
    /// The name of the file system, `POOL/NAME`, of a path in one that the caller has opened.
    pub fn file_system(&self) -> Option<&str> {
        match self {
            Endpoint::Mounted { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Parses `POOL/NAME[/PATH]`.
fn mounted(text: &[u8]) -> Option<Endpoint> {
    let mut parts = text.splitn(3, |b| *b == b'/');
    let mut name = || parts.next().filter(|part| !part.is_empty()).and_then(|part| str::from_utf8(part).ok());
    let (pool, name) = (name()?, name()?);
    let path = [b"/", parts.next().unwrap_or_default()].concat();
    Some(Endpoint::Mounted { name: format!("{pool}/{name}"), path })
}

/// A remote end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Ssh(String),
    Agent(String, u16),
}

/// Parses `host:path`. A leading `~/` is dropped, since paths are relative to the home
/// directory.
fn ssh(host: &[u8], path: &[u8]) -> Result<Endpoint, String> {
    let wrong =
        || format!("'{}' is not a host name; write ./ before a file with a colon in its name", show(host));
    let host = std::str::from_utf8(host).map_err(|_| wrong())?;
    let (user, name) =
        host.rsplit_once('@').map_or(("", host), |(_, name)| host.split_at(host.len() - name.len()));
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let host = format!("{user}{name}");
    // A leading dash would make it an option of ssh.
    if name.is_empty()
        || host.starts_with('-')
        || host.contains(|c: char| c.is_whitespace() || "[]".contains(c))
    {
        return Err(wrong());
    }
    let path = path.strip_prefix(b"~/").unwrap_or(if path == b"~" { b"" } else { path });
    Ok(Endpoint::Ssh { host, path: path.to_vec() })
}

/// A host as it is typed: an IPv6 address gets brackets.
pub(crate) fn bracketed(host: &str) -> Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Local(path) => f.write_str(&show(path)),
            Endpoint::Ssh { host, path } => {
                let name = host.rsplit_once('@').map_or(&host[..], |(_, name)| name);
                write!(f, "{}{}:{}", &host[..host.len() - name.len()], bracketed(name), show(path))
            }
            Endpoint::Agent { host, port, path } => {
                write!(f, "lh://{}:{port}/{}", bracketed(host), show(path))
            }
            Endpoint::Mounted { name, path } => write!(f, "fs:{name}{}", show(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Endpoint, String> {
        Endpoint::parse(OsStr::new(text))
    }

    #[test]
    fn displayed_endpoints_parse_to_themselves() {
        for text in [
            "lh://[fe80::1]:7000/a/b",
            "lh://dtn:7000/x",
            "me@dtn:a/b",
            "me@[2001:db8::5]:a/b",
            "[::1]:a",
            "a/b",
            "fs:pool/home/a/b",
            "fs:pool/home/",
        ] {
            let endpoint = parse(text).expect(text);
            assert_eq!(endpoint.to_string(), text);
            assert_eq!(parse(&endpoint.to_string()), Ok(endpoint));
        }
    }

    #[test]
    fn endpoints_are_paths_or_agents() {
        let agent = |host: &str, port, path: &str| {
            Ok(Endpoint::Agent { host: host.into(), port, path: path.as_bytes().to_vec() })
        };
        assert_eq!(parse("lh://dtn:7000/a/b"), agent("dtn", 7000, "a/b"));
        assert_eq!(parse("lh://dtn"), agent("dtn", PORT, ""));
        assert_eq!(parse("lh://[::1]:7000/x"), agent("::1", 7000, "x"));
        assert_eq!(parse("lh://[::1]/x"), agent("::1", PORT, "x"));
        assert_eq!(parse("a/b:c"), Ok(Endpoint::Local(b"a/b:c".to_vec())));
        let mounted = |name: &str, path: &str| {
            Ok(Endpoint::Mounted { name: name.into(), path: path.as_bytes().to_vec() })
        };
        assert_eq!(parse("fs:pool/home"), mounted("pool/home", "/"));
        // A path is not a synthetic source, whatever its name is.
        assert_eq!(parse("fs:pool/home/zero:1k"), mounted("pool/home", "/zero:1k"));
        assert_eq!(parse("fs:pool/home/a/b/"), mounted("pool/home", "/a/b/"));
        let host =
            |host: &str, path: &str| Ok(Endpoint::Ssh { host: host.into(), path: path.as_bytes().to_vec() });
        assert_eq!(parse("me@dtn:a/b:c"), host("me@dtn", "a/b:c"));
        assert_eq!((parse("dtn:~/a"), parse("dtn:")), (host("dtn", "a"), host("dtn", "")));
        assert_eq!(parse("me@[2001:db8::5]:a:b"), host("me@2001:db8::5", "a:b"));
        assert_eq!((parse("[::1]:a[0]"), parse("dtn:a[0:1]")), (host("::1", "a[0]"), host("dtn", "a[0:1]")));
        assert_eq!(
            (parse("[dtn]:a"), parse("[::1]")),
            (host("dtn", "a"), Ok(Endpoint::Local(b"[::1]".to_vec())))
        );
        for bad in [
            "[::1:a",
            "me@[]:a",
            "[-oX]:a",
            "lh://",
            "lh://:1/x",
            "lh://h:port/x",
            "-oProxyCommand=x:y",
            ":x",
            "a b:c",
            "fs:",
            "fs:pool",
            "fs:pool/",
            "fs:/home/x",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
