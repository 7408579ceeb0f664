//! Plain structs with a place for each field in a fixed-size structure.
//!
//! `layout!` keeps a field's name, type and byte offset on one line, as the
//! specification's figures do, and makes the encoder and the decoder from it.

/// A value with a fixed length on the wire.
pub(crate) trait Field: Sized {
    /// Length in bytes.
    const LEN: usize;
    /// Writes the value to exactly [`LEN`](Self::LEN) bytes.
    fn put(&self, out: &mut [u8]);
    /// Reads the value from exactly [`LEN`](Self::LEN) bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Field for $int {
            const LEN: usize = size_of::<$int>();
            fn put(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$int>()];
                raw.copy_from_slice(bytes);
                <$int>::from_le_bytes(raw)
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, u128);

impl<const N: usize> Field for [u8; N] {
    const LEN: usize = N;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
    fn get(bytes: &[u8]) -> Self {
        let mut raw = [0; N];
        raw.copy_from_slice(bytes);
        raw
    }
}

/// Defines a struct, `LEN`, `encode_into`, `encode`, `decode` and `Default`
/// (all zero) from lines `byte offset => name: type`.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $len:literal {
            $($(#[$field_meta:meta])* $at:literal => $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        impl $name {
            /// Length of the structure in bytes.
            pub const LEN: usize = $len;

            /// Name, offset and length of each field.
            #[cfg(test)]
            pub(crate) const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), $at, <$ty as $crate::layout::Field>::LEN)),*];

            /// Writes the structure to the first [`LEN`](Self::LEN) bytes of
            /// `out`, zeroes in every place that no field has.
            ///
            /// # Panics
            /// If `out` is shorter.
            pub fn encode_into(&self, out: &mut [u8]) {
                let out = &mut out[..$len];
                out.fill(0);
                $({
                    let end = $at + <$ty as $crate::layout::Field>::LEN;
                    $crate::layout::Field::put(&self.$field, &mut out[$at..end]);
                })*
            }

            /// The structure as bytes.
            pub fn encode(&self) -> Vec<u8> {
                let mut out = vec![0; $len];
                self.encode_into(&mut out);
                out
            }

            /// Reads the structure from the first [`LEN`](Self::LEN) bytes;
            /// `None` if there are fewer.
            pub fn decode(bytes: &[u8]) -> Option<$name> {
                let bytes = bytes.get(..$len)?;
                Some($name {
                    $($field: {
                        let end = $at + <$ty as $crate::layout::Field>::LEN;
                        <$ty as $crate::layout::Field>::get(&bytes[$at..end])
                    },)*
                })
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: <$ty as $crate::layout::Field>::get(
                    &[0; <$ty as $crate::layout::Field>::LEN]),)* }
            }
        }
    };
}
pub(crate) use layout;

/// Checks that the fields of a layout neither overlap nor leave it, that the
/// decoder is the encoder's inverse on arbitrary bytes, and that too few
/// bytes decode to nothing.
#[cfg(test)]
macro_rules! check_layout {
    ($($name:ident),* $(,)?) => {$(
        let mut owner = vec![None; $name::LEN];
        for &(field, at, len) in $name::FIELDS {
            for slot in &mut owner[at..at + len] {
                assert_eq!(*slot, None, "{field} overlaps in {}", stringify!($name));
                *slot = Some(field);
            }
        }
        let bytes: Vec<u8> = (0..$name::LEN).map(|i| (i * 7 + i / 251) as u8).collect();
        let decoded = $name::decode(&bytes).expect("long enough");
        for (i, byte) in decoded.encode().into_iter().enumerate() {
            assert_eq!(byte, if owner[i].is_some() { bytes[i] } else { 0 }, "{} byte {i}", stringify!($name));
        }
        assert_eq!($name::decode(&decoded.encode()), Some(decoded));
        assert_eq!($name::decode(&bytes[1..]), None);
    )*};
}
#[cfg(test)]
pub(crate) use check_layout;

/// The offset and length of a field, for tests that compare with the figures
/// of the specification.
#[cfg(test)]
pub(crate) fn place(fields: &[(&str, usize, usize)], name: &str) -> (usize, usize) {
    let found = fields.iter().find(|f| f.0 == name);
    let &(_, at, len) = found.unwrap_or_else(|| panic!("a field named {name}"));
    // Last and first byte, in the order of the specification.
    (at + len - 1, at)
}
