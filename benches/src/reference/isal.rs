//! Intel's ISA-L, as the distribution has it (Debian: `libisal-dev`), loaded
//! when the program runs: nothing of it is needed to build.

use anyhow::{Context, Result, ensure};
use std::ffi::{CStr, c_int, c_void};

/// `xor_gen` and `pq_gen` of `isa-l/raid.h`: number of units, their length in
/// bytes, and their addresses at multiples of 32, results last; 0 if done.
type Generate = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;

/// What ISA-L asks of addresses and lengths.
const ALIGN: usize = 32;

/// The library's parity functions.
#[derive(Debug)]
pub(crate) struct Isal {
    path: String,
    xor: Generate,
    pq: Generate,
}

impl Isal {
    pub(crate) fn load() -> Result<Isal> {
        // SAFETY: a name with its end; the library runs nothing when loaded.
        let library = unsafe { libc::dlopen(c"libisal.so.2".as_ptr(), libc::RTLD_NOW) };
        ensure!(!library.is_null(), "libisal.so.2 is not installed: on Debian, apt install libisal-dev");
        let (xor, path) = symbol(library, c"xor_gen")?;
        let (pq, _) = symbol(library, c"pq_gen")?;
        Ok(Isal { path, xor, pq })
    }

    /// The library's file, whose name has its version.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The last unit becomes the sum of the others.
    pub(crate) fn xor(&self, units: &mut [&mut [u8]]) -> Result<()> {
        call(self.xor, units)
    }

    /// The last two units become P and Q of the others.
    pub(crate) fn pq(&self, units: &mut [&mut [u8]]) -> Result<()> {
        call(self.pq, units)
    }
}

/// A function, and the real name of the file that it is in.
fn symbol(library: *mut c_void, name: &CStr) -> Result<(Generate, String)> {
    // SAFETY: a library that stays loaded, and a name with its end.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    ensure!(!address.is_null(), "{name:?} is not in libisal");
    // SAFETY: plain numbers and pointers, for which zero is a valid value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address in a loaded library, and room for the result.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    ensure!(found != 0 && !info.dli_fname.is_null(), "{name:?} is in no file");
    // SAFETY: a string with its end, which lives as long as the library.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
    let path = std::fs::canonicalize(&path)
        .map_or(path, |real| real.file_name().unwrap_or_default().to_string_lossy().into_owned());
    // SAFETY: both functions asked for have this type in `isa-l/raid.h`.
    Ok((unsafe { std::mem::transmute::<*mut c_void, Generate>(address) }, path))
}

fn call(function: Generate, units: &mut [&mut [u8]]) -> Result<()> {
    let len = units.first().context("no units")?.len();
    let fits = |unit: &&mut [u8]| unit.len() == len && unit.as_ptr().addr().is_multiple_of(ALIGN);
    ensure!(units.iter().all(fits) && len.is_multiple_of(ALIGN), "not as ISA-L asks");
    let mut pointers: Vec<*mut c_void> = units.iter_mut().map(|unit| unit.as_mut_ptr().cast()).collect();
    // SAFETY: as many units as said, of this length and alignment, all of
    // them borrowed for writing.
    let failed = unsafe { function(pointers.len() as c_int, len as c_int, pointers.as_mut_ptr()) };
    ensure!(failed == 0, "ISA-L refused");
    Ok(())
}
