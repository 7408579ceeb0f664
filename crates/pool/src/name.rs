//! Names of pools and volumes.

use crate::error::{Error, Result};

/// Longest name in bytes: that of an array.
pub const MAX_NAME: usize = longhaul_array::MAX_NAME;

/// Refuses a name that could not be written as `volume:POOL/NAME`, or that a terminal or a key of
/// the catalog would show as another one. Letters of any script are fine.
///
/// # Errors
/// [`Error::Name`] with the reason.
pub fn check_name(what: &'static str, name: &str) -> Result<()> {
    let refuse = |why: String| Err(Error::Name { what, name: name.to_owned(), why });
    if name.is_empty() {
        return refuse("it is empty".to_owned());
    }
    if name.len() > MAX_NAME {
        return refuse(format!("it has {} bytes, and at most {MAX_NAME} are allowed", name.len()));
    }
    if name.starts_with(['-', '.']) {
        return refuse("it begins with '-' or '.'".to_owned());
    }
    match name.chars().find(|c| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '+'))) {
        Some(c) => refuse(format!("it has {c:?}: letters, digits, '-', '_', '.' and '+' are allowed")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_without_quotes() {
        for name in ["a", "scratch-7", "Größe", "データ", "a.b_c+d", &"x".repeat(MAX_NAME)] {
            assert_eq!(check_name("volume", name), Ok(()), "{name}");
        }
        for (name, why) in [
            ("", "it is empty"),
            ("a/b", "it has '/'"),
            ("a b", "it has ' '"),
            ("a\nb", "it has '\\n'"),
            ("-a", "it begins with"),
            ("..", "it begins with"),
            ("a\u{202e}b", "it has '\\u{202e}'"),
            (&"x".repeat(255), "it has 255 bytes, and at most 64"),
        ] {
            let error = check_name("volume", name).expect_err(name).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
