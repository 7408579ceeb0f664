//! NVMe Qualified Names: what subsystems and hosts are called.

use std::fmt;

/// The longest NQN in bytes (NVMe Base 2.1, "NVMe Qualified Names").
pub const NQN_MAX: usize = 223;

/// Length of a field that holds an NQN, padded with NULs.
pub const NQN_FIELD_LEN: usize = 256;

/// The well-known name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// How an NQN made from a UUID begins.
pub const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A field that holds an NQN, padded with NULs.
pub type NqnField = [u8; NQN_FIELD_LEN];

/// Why a text is no NQN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// It has no characters.
    #[error("the NQN is empty")]
    Empty,
    /// Longer than [`NQN_MAX`].
    #[error("the NQN has {0} bytes; at most {NQN_MAX} are allowed")]
    TooLong(usize),
    /// The field has no terminating NUL.
    #[error("the NQN is not terminated")]
    Unterminated,
    /// It is not valid UTF-8.
    #[error("the NQN is not UTF-8")]
    NotUtf8,
    /// Neither of the two forms.
    #[error(
        "`{0}` is not an NQN: expected `nqn.YYYY-MM.REVERSED.DOMAIN:NAME` or `{UUID_PREFIX}UUID`, \
         for example `nqn.2014-08.org.example:disk1`"
    )]
    Form(String),
}

/// A valid NVMe Qualified Name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(String);

impl Nqn {
    /// Checks a name: length, and one of the two forms, `nqn.` with a date
    /// and a reversed domain name, or `nqn.` with a UUID.
    pub fn new(name: impl Into<String>) -> Result<Nqn, NqnError> {
        let name = name.into();
        check_length(&name)?;
        if !has_form(&name) {
            return Err(NqnError::Form(name));
        }
        Ok(Nqn(name))
    }

    /// The name that is made from a UUID.
    pub fn from_uuid(uuid: uuid::Uuid) -> Nqn {
        Nqn(format!("{UUID_PREFIX}{}", uuid.hyphenated()))
    }

    /// The well-known discovery name.
    pub fn discovery() -> Nqn {
        Nqn(DISCOVERY_NQN.to_owned())
    }

    /// The name, at most 223 bytes of UTF-8.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a field.
    pub fn to_field(&self) -> NqnField {
        to_field(&self.0)
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_length(name: &str) -> Result<(), NqnError> {
    match name.len() {
        0 => Err(NqnError::Empty),
        1..=NQN_MAX => Ok(()),
        n => Err(NqnError::TooLong(n)),
    }
}

fn has_form(name: &str) -> bool {
    if let Some(uuid) = name.strip_prefix(UUID_PREFIX) {
        return uuid.len() == 36 && uuid::Uuid::try_parse(uuid).is_ok();
    }
    let Some(rest) = name.strip_prefix("nqn.") else { return false };
    let Some((date, rest)) = rest.split_once('.') else { return false };
    let date = date.as_bytes();
    let digits = |range: std::ops::Range<usize>| date[range].iter().all(u8::is_ascii_digit);
    if date.len() != 7 || date[4] != b'-' || !digits(0..4) || !digits(5..7) {
        return false;
    }
    // The discovery name has no `:NAME`; the month is not checked further,
    // since names with odd dates are in use.
    let domain = rest.split(':').next().unwrap_or_default();
    !domain.is_empty() && !name.chars().any(char::is_control)
}

/// Puts a name into a field, cut to [`NQN_MAX`] bytes.
pub fn to_field(name: &str) -> NqnField {
    let mut field = [0; NQN_FIELD_LEN];
    let len = name.len().min(NQN_MAX);
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
    field
}

/// The name in a field: NUL-terminated UTF-8 of 1 to [`NQN_MAX`] bytes.
/// Its form is not judged, since hosts with odd names are in use.
pub fn from_field(field: &NqnField) -> Result<&str, NqnError> {
    let end = field.iter().position(|&b| b == 0).ok_or(NqnError::Unterminated)?;
    let name = std::str::from_utf8(&field[..end]).map_err(|_| NqnError::NotUtf8)?;
    check_length(name)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        for good in [
            DISCOVERY_NQN,
            "nqn.2014-08.org.example:disk1",
            "nqn.2014-08.com.example.sub:a:b c",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        ] {
            assert_eq!(Nqn::new(good).expect(good).as_str(), good);
        }
        for bad in [
            "nqn",
            "nqn.2014-08",
            "nqn.2014-08.",
            "nqn.201-08.org.example:x",
            "nqn.2014_08.org.example:x",
            "iqn.2014-08.org.example:x",
            "nqn.2014-08.org.example:\n",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae",
        ] {
            assert_eq!(Nqn::new(bad), Err(NqnError::Form(bad.to_owned())));
        }
        assert_eq!(Nqn::new(""), Err(NqnError::Empty));
    }

    #[test]
    fn the_longest_name_has_223_bytes() {
        let name = |len: usize| format!("{:x<len$}", "nqn.2014-08.org.example:");
        assert!(Nqn::new(name(223)).is_ok());
        assert_eq!(Nqn::new(name(224)), Err(NqnError::TooLong(224)));
    }

    #[test]
    fn fields() {
        let nqn = Nqn::from_uuid(uuid::Uuid::from_u128(1));
        assert_eq!(from_field(&nqn.to_field()), Ok(nqn.as_str()));
        assert_eq!(from_field(&[b'a'; 256]), Err(NqnError::Unterminated));
        assert_eq!(from_field(&[0; 256]), Err(NqnError::Empty));
        let mut field = [0; 256];
        field[0] = 0xFF;
        assert_eq!(from_field(&field), Err(NqnError::NotUtf8));
        field[..230].fill(b'a');
        assert_eq!(from_field(&field), Err(NqnError::TooLong(230)));
    }

    proptest! {
        #[test]
        fn nothing_panics(name in ".{0,300}", tail in any::<[u8; 32]>()) {
            let _ = Nqn::new(name.clone());
            let mut field = to_field(name.get(..name.len().min(200)).unwrap_or("x"));
            field[224..].copy_from_slice(&tail);
            let _ = from_field(&field);
        }
    }
}
