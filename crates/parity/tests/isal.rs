//! The same bytes as Intel's ISA-L, where it is installed (Debian:
//! `libisal-dev`).

mod oracle;

use fastrand::Rng;
use longhaul_parity::Kernels;
use std::ffi::{c_int, c_void};

/// `xor_gen` and `pq_gen` of `isa-l/raid.h`: units, their length in bytes and
/// their addresses, results last, all at multiples of 32; 0 if done.
type Generate = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;

/// The alignment that ISA-L requires of addresses, and of lengths.
const ALIGN: usize = 64;

fn load(name: &std::ffi::CStr) -> Option<Generate> {
    // SAFETY: a name with its end; loading runs no code but the library's
    // own, which has none to run.
    let library = unsafe { libc::dlopen(c"libisal.so.2".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library stays loaded, and a name with its end.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?} is not in the library");
    // SAFETY: both functions asked for have this type in `isa-l/raid.h`.
    Some(unsafe { std::mem::transmute::<*mut c_void, Generate>(symbol) })
}

/// Memory at a multiple of [`ALIGN`].
fn aligned(memory: &mut [u8], len: usize) -> &mut [u8] {
    let skip = memory.as_ptr().align_offset(ALIGN);
    &mut memory[skip..skip + len]
}

fn generate(function: Generate, data: &[Vec<u8>], results: usize) -> Vec<Vec<u8>> {
    let len = data[0].len();
    let mut memory = vec![vec![0; len + ALIGN]; data.len() + results];
    let mut units: Vec<&mut [u8]> = memory.iter_mut().map(|m| aligned(m, len)).collect();
    units.iter_mut().zip(data).for_each(|(unit, data)| unit.copy_from_slice(data));
    let mut pointers: Vec<*mut c_void> = units.iter_mut().map(|u| u.as_mut_ptr().cast()).collect();
    // SAFETY: as many units of this length and alignment as said.
    let failed = unsafe { function(pointers.len() as c_int, len as c_int, pointers.as_mut_ptr()) };
    assert_eq!(failed, 0, "ISA-L refused");
    units[data.len()..].iter().map(|unit| unit.to_vec()).collect()
}

#[test]
fn xor_p_and_q_are_those_of_isa_l() {
    let (Some(xor), Some(pq)) = (load(c"xor_gen"), load(c"pq_gen")) else {
        longhaul_skip::skip!("libisal is not installed");
        return;
    };
    let mut random = Rng::with_seed(1);
    for count in 2..=62 {
        let len = ALIGN * (1 + count % 40);
        let mut data = vec![vec![0; len]; count];
        data.iter_mut().for_each(|unit| random.fill(unit));
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let theirs = [generate(xor, &data, 1), generate(pq, &data, 2)];
        for kernels in Kernels::all() {
            let (mut sum, mut p, mut q) = (vec![1; len], vec![1; len], vec![1; len]);
            kernels.xor(&mut sum, &slices);
            kernels.pq(&slices, &mut p, &mut q);
            assert_eq!(theirs, [vec![sum], vec![p, q]], "{kernels:?}, {count} units");
        }
    }
}
