//! Relative paths of a copy, as bytes, checked not to lead upwards.
//!
//! Invariants of a [`RelPath`], from any peer: components are joined by
//! single slashes; none is empty, `.` or `..`, has a zero byte, or is longer
//! than [`COMPONENT_MAX`]; the whole is at most [`PATH_LEN_MAX`] bytes. The
//! empty path is the root itself.

use std::borrow::Cow;
use std::fmt;

/// The longest component in bytes: `NAME_MAX` of Linux.
pub const COMPONENT_MAX: usize = 255;
/// The longest path in bytes: `PATH_MAX` of Linux.
pub const PATH_LEN_MAX: usize = 4096;
/// Prefix of the names of unfinished files and journals. No sender may use it.
pub const RESERVED: &[u8] = b".longhaul-";

/// Why a name is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It begins with a slash, or has an empty component.
    #[error("the name {0} is not relative")]
    NotRelative(String),
    /// A component is `.` or `..`.
    #[error("the name {0} leads out of its directory")]
    Traversal(String),
    /// Too long, or with a zero byte.
    #[error("the name {0} cannot exist")]
    Impossible(String),
    /// A component begins with [`RESERVED`].
    #[error("the name {0} is reserved for files under way")]
    Reserved(String),
}

/// A checked path below some root. Bytes, since names need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RelPath(Box<[u8]>);

impl RelPath {
    /// The root itself.
    pub fn root() -> RelPath {
        RelPath::default()
    }

    /// Checks a path from a peer or the command line.
    ///
    /// # Errors
    /// The path violates an invariant of this module.
    pub fn new(bytes: &[u8]) -> Result<RelPath, NameError> {
        let shown = || show(bytes).into_owned();
        if bytes.len() > PATH_LEN_MAX || bytes.contains(&0) {
            return Err(NameError::Impossible(shown()));
        }
        for component in bytes.split(|b| *b == b'/').filter(|_| !bytes.is_empty()) {
            match component {
                b"" => return Err(NameError::NotRelative(shown())),
                b"." | b".." => return Err(NameError::Traversal(shown())),
                long if long.len() > COMPONENT_MAX => return Err(NameError::Impossible(shown())),
                own if own.starts_with(RESERVED) => return Err(NameError::Reserved(shown())),
                _ => {}
            }
        }
        Ok(RelPath(bytes.into()))
    }

    /// The path as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// `name` below this path; `name` is one component, as read from a directory.
    ///
    /// # Errors
    /// The result is too long, or the name is reserved.
    pub fn join(&self, name: &[u8]) -> Result<RelPath, NameError> {
        if self.is_root() {
            return RelPath::new(name);
        }
        RelPath::new(&[&*self.0, b"/", name].concat())
    }

    /// The parent path, and the last component.
    pub fn split(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|b| *b == b'/') {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (b"", &self.0),
        }
    }

    /// The first component, and the path below it.
    pub fn split_first(&self) -> (&[u8], &[u8]) {
        match self.0.iter().position(|b| *b == b'/') {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (&self.0, b""),
        }
    }
}

/// A name for display: unprintable bytes are escaped, so that a name cannot forge lines
/// of output; backslashes too, so that different names print differently.
pub fn show(bytes: &[u8]) -> Cow<'_, str> {
    let is_plain = |b: &u8| (b' '..=b'~').contains(b) && *b != b'\\';
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.iter().all(is_plain) => Cow::Borrowed(text),
        _ => Cow::Owned(escape(bytes, true)),
    }
}

/// Text of a peer for display: control characters and invalid UTF-8 are escaped. Names in
/// it are escaped already, so backslashes are kept.
pub fn printable(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => Cow::Borrowed(text),
        _ => Cow::Owned(escape(bytes, false)),
    }
}

fn escape(bytes: &[u8], backslash: bool) -> String {
    let mut shown = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' if backslash => shown.push_str("\\\\"),
                '\\' | '\'' | '"' => shown.push(c),
                c if c.is_ascii() => shown.extend((c as u8).escape_ascii().map(char::from)),
                // A combining accent counts as printable only behind a letter.
                c => shown.extend(['a', c].iter().collect::<String>().escape_debug().skip(1)),
            }
        }
        shown.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    shown
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { ".".into() } else { show(&self.0) }.as_ref())
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_their_root() {
        for bad in
            ["/etc", "a//b", "a/", "..", "a/../b", ".", "a/.", "a\0b", ".longhaul-x", "a/.longhaul-1/b"]
        {
            assert!(RelPath::new(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(RelPath::new(&[b'x'; 256]).is_err());
        assert!(RelPath::new(&[b"x/".repeat(2048), b"x".to_vec()].concat()).is_err());
        for good in [&b""[..], b"a", b"a/b", b"...", b"a\nb", b"\xff\xfe", b" ", b".hidden/..x"] {
            assert!(RelPath::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn names_are_split_and_joined() {
        let path = RelPath::new(b"a/b/c").expect("good");
        assert_eq!((path.split(), path.split_first()), ((&b"a/b"[..], &b"c"[..]), (&b"a"[..], &b"b/c"[..])));
        assert_eq!(RelPath::root().join(b"a").expect("good").as_bytes(), b"a");
        assert_eq!(show(b"a\nb\xff"), "a\\nb\\xff");
        assert_eq!(show(b"it's \"a\" b"), "it's \"a\" b");
        assert_eq!(
            (show("sp\u{e4}ter".as_bytes()), show("e\u{301}".as_bytes())),
            ("sp\u{e4}ter".into(), "e\u{301}".into())
        );
        let alike: [&[u8]; 6] = [b"a\nb", b"a\\nb", b"a\\\nb", b"\xff", b"\\xff", "a\u{200b}nb".as_bytes()];
        let shown: std::collections::HashSet<_> = alike.iter().map(|name| show(name)).collect();
        assert_eq!(shown.len(), alike.len(), "names that differ print differently: {shown:?}");
        assert_eq!(printable(b"a\\nb\x1b[2J"), "a\\nb\\x1b[2J", "a name in it was escaped before");
    }
}
