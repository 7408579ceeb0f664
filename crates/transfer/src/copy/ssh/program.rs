//! Requirements of a program file, from its ELF headers.

use std::fmt;

/// The architecture of a program, as `uname -m` prints it.
const MACHINES: [(u64, &str); 2] = [(62, "x86_64"), (183, "aarch64")];
const PT_INTERP: u64 = 3;

/// What a program needs besides the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: a static program.
    Nothing,
    /// glibc of this version or later.
    Glibc(u32, u32),
    /// Another dynamic linker.
    Other(String),
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Needs::Nothing => f.write_str("static"),
            Needs::Glibc(major, minor) => write!(f, "for glibc {major}.{minor} or later"),
            Needs::Other(linker) => write!(f, "for {linker}"),
        }
    }
}

impl Needs {
    /// Whether a machine with this version of glibc, if any, meets the requirement.
    pub(super) fn are_met(&self, glibc: Option<(u32, u32)>) -> bool {
        match self {
            Needs::Nothing => true,
            Needs::Glibc(major, minor) => glibc.is_some_and(|there| there >= (*major, *minor)),
            Needs::Other(_) => false,
        }
    }
}

/// Architecture and requirements of a Linux program; `None` if `image` is not one.
pub(super) fn look(image: &[u8]) -> Option<(&'static str, Needs)> {
    let number = |at: usize, len: usize| {
        let bytes = image.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    // 64 bits, little-endian. Then e_machine, e_phoff, e_phentsize and e_phnum.
    if !image.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let machine = number(18, 2)?;
    let (_, machine) = *MACHINES.iter().find(|(known, _)| *known == machine)?;
    let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    for header in (0..count).map(|header| table.saturating_add(header * size)) {
        // p_type, p_offset, p_filesz.
        if number(header, 4)? == PT_INTERP {
            let (at, len) = (number(header + 8, 8)? as usize, number(header + 32, 8)? as usize);
            let linker = image.get(at..at.checked_add(len)?)?;
            let linker = String::from_utf8_lossy(linker).trim_end_matches('\0').to_owned();
            let glibc = glibc(image).filter(|_| linker.contains("/ld-linux"));
            return Some((machine, glibc.map_or(Needs::Other(linker), |(a, b)| Needs::Glibc(a, b))));
        }
    }
    Some((machine, Needs::Nothing))
}

/// The newest version of glibc whose symbols a program uses: its string table has them as
/// `GLIBC_2.34`.
fn glibc(image: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let found = image.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    found.filter_map(|(at, _)| version(image.get(at + MARK.len()..)?)).max()
}

/// Parses a version such as `2.34` at the beginning of `text`.
pub(super) fn version(text: &[u8]) -> Option<(u32, u32)> {
    let end = text.iter().position(|b| !b.is_ascii_digit() && *b != b'.').unwrap_or(text.len());
    let text = std::str::from_utf8(&text[..end.min(16)]).ok()?;
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read_from_the_headers_of_a_program() {
        let own = std::fs::read(std::env::current_exe().expect("this test")).expect("readable");
        let (machine, needs) = look(&own).expect("a program");
        assert_eq!(machine, std::env::consts::ARCH);
        let glibc = cfg!(all(target_env = "gnu", not(target_feature = "crt-static")));
        assert_eq!(matches!(needs, Needs::Glibc(2, 17..)), glibc, "{needs:?}");
        // The same without its headers of the program is static.
        let mut other = own.clone();
        other[56..58].fill(0);
        assert_eq!(look(&other), Some((machine, Needs::Nothing)));
        other[18] = 0xff;
        assert_eq!(look(&other), None, "an architecture of its own");
        for len in [0, 5, 20, 60, 200] {
            let cut = look(&own[..len]);
            assert!(cut.is_none() || len == 200, "cut off at {len}: {cut:?}");
        }
        assert_eq!(look(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn requirements_are_compared_with_the_machine() {
        assert!(Needs::Nothing.are_met(None) && !Needs::Glibc(2, 34).are_met(None));
        assert!(Needs::Glibc(2, 34).are_met(Some((2, 34))) && !Needs::Glibc(2, 34).are_met(Some((2, 9))));
        assert!(!Needs::Other("/lib/ld-musl-x86_64.so.1".into()).are_met(Some((2, 40))));
        assert_eq!(version(b"2.34\0rest"), Some((2, 34)));
        assert_eq!((version(b"2"), version(b""), version(b"PRIVATE")), (None, None, None));
    }
}
