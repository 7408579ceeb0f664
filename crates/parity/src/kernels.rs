//! Which kernels the processor gets, and the checks of shapes in front of them.

use crate::check::{self, Verdict};
use crate::field::{self, ORDER};
use crate::portable;
use crate::recover::{self, Unit, Unrecoverable};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::simd;
use std::fmt;
use std::sync::OnceLock;

/// The most data units that P+Q can protect: the powers of the generator.
pub const MAX_DATA: usize = ORDER;

/// A set of kernels for one instruction set. All sets give the same bytes.
///
/// The functions of this crate use [`Kernels::best`]; tests and benchmarks
/// take one of [`Kernels::all`].
///
/// Invariants:
/// - A value exists only for what the processor can do: that makes calling
///   the kernels sound.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Kernels(Path);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// Runs a kernel of the path that was chosen.
macro_rules! on_path {
    ($path:expr, $kernel:ident($($argument:expr),*)) => {
        match $path {
            Path::Portable => portable::$kernel($($argument),*),
            // SAFETY: the value exists, so the processor can; the public
            // function has compared the lengths.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe { simd::avx2::$kernel($($argument),*) },
            // SAFETY: likewise.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe { simd::avx512::$kernel($($argument),*) },
            // SAFETY: likewise.
            #[cfg(target_arch = "aarch64")]
            Path::Neon => unsafe { simd::neon::$kernel($($argument),*) },
        }
    };
}

impl Kernels {
    /// The fastest that this processor can run; looked up once.
    #[must_use]
    pub fn best() -> Kernels {
        static BEST: OnceLock<Kernels> = OnceLock::new();
        *BEST.get_or_init(|| Kernels::all().pop().unwrap_or(Kernels(Path::Portable)))
    }

    /// All that this processor can run, from the slowest to the fastest.
    #[must_use]
    pub fn all() -> Vec<Kernels> {
        #[allow(unused_mut, reason = "some instruction sets have no vector kernels here")]
        let mut all = vec![Path::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                all.push(Path::Avx2);
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("gfni")
            {
                all.push(Path::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            all.push(Path::Neon);
        }
        all.into_iter().map(Kernels).collect()
    }

    /// For people: `portable`, `avx2`, `avx512+gfni` or `neon`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Path::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => "avx512+gfni",
            #[cfg(target_arch = "aarch64")]
            Path::Neon => "neon",
        }
    }

    /// See [`crate::xor`].
    pub fn xor(self, dst: &mut [u8], sources: &[&[u8]]) {
        alike(dst.len(), sources);
        on_path!(self.0, xor(dst, sources, false));
    }

    /// See [`crate::xor_into`].
    pub fn xor_into(self, dst: &mut [u8], sources: &[&[u8]]) {
        alike(dst.len(), sources);
        on_path!(self.0, xor(dst, sources, true));
    }

    /// See [`crate::pq`].
    pub fn pq(self, data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        assert!(data.len() <= MAX_DATA, "{} data units: Q covers {MAX_DATA} at most", data.len());
        assert_eq!(p.len(), q.len(), "P and Q have the same length");
        alike(p.len(), data);
        on_path!(self.0, pq(data, p, q));
    }

    /// See [`crate::update`].
    pub fn update(self, index: usize, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        self.add_changes(index, &[old, new], p, q);
    }

    /// See [`crate::update_by`].
    pub fn update_by(self, index: usize, delta: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        self.add_changes(index, &[delta], p, q);
    }

    /// Adds what sums up to the change of data unit `index`.
    fn add_changes(self, index: usize, changes: &[&[u8]], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        assert!(index < MAX_DATA, "data unit {index}: Q covers {MAX_DATA} at most");
        if let Some(p) = p {
            self.xor_into(p, changes);
        }
        if let Some(q) = q {
            let factors = [field::power(index); 2];
            self.combine(q, changes, &factors[..changes.len()], true);
        }
    }

    /// See [`crate::recover`].
    pub fn recover(
        self,
        data: &[Option<&[u8]>],
        p: Option<&[u8]>,
        q: Option<&[u8]>,
        wanted: &mut [(Unit, &mut [u8])],
    ) -> Result<(), Unrecoverable> {
        recover::recover(self, data, p, q, wanted)
    }

    /// See [`crate::check`].
    #[must_use]
    pub fn check(self, data: &[&[u8]], p: &[u8], q: Option<&[u8]>) -> Verdict {
        check::check(self, data, p, q)
    }

    /// `dst = sum of factors[i] * sources[i]`, plus what `dst` was if `keep`.
    pub(crate) fn combine(self, dst: &mut [u8], sources: &[&[u8]], factors: &[u8], keep: bool) {
        assert_eq!(sources.len(), factors.len(), "every source has a factor");
        alike(dst.len(), sources);
        if factors.iter().all(|factor| *factor == 1) {
            on_path!(self.0, xor(dst, sources, keep));
        } else {
            on_path!(self.0, combine(dst, sources, factors, keep));
        }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({})", self.name())
    }
}

/// Holds the caller to units of one length.
fn alike(len: usize, units: &[&[u8]]) {
    for (i, unit) in units.iter().enumerate() {
        assert_eq!(unit.len(), len, "unit {i} is of another length");
    }
}
