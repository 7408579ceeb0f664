//! s2n-tls, through its C interface: the only unsafe code of this crate. Its Rust crate takes slices, and a
//! device may change its memory while a slice of it exists.
//!
//! Invariants:
//! - a connection is used by one thread at a time (`&mut self`), from any;
//! - what its callbacks read and write is set for the time of one call, and out of reach after it;
//! - `Io` outlives the connection that has its address.

#![allow(unsafe_code)]

use longhaul_auth::{HashFunction, TlsPsk};
use longhaul_engine::{Memory, Segment};
use s2n_tls_sys::*;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

/// Cipher suites and groups: of TLS 1.3 alone, without certificates that could be of use.
const POLICY: &CStr = c"AWS-CRT-SDK-TLSv1.3-2023";

/// What a call of the library gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// It needs more input.
    Blocked,
    /// The peer has sent this alert.
    Alert(u8),
    /// The peer has ended its side without saying so.
    Closed,
    /// The library's name of the error.
    Other(&'static str),
}

/// Where decrypted bytes go.
#[derive(Debug)]
pub enum Destination<'a> {
    /// Bytes.
    Bytes(&'a mut [u8]),
    /// So many bytes at an offset of the memory of a payload.
    Memory(&'a mut Memory, usize, usize),
}

struct Config(NonNull<s2n_config>);

// SAFETY: a configuration is only read once it is built; it counts its connections with atomics.
unsafe impl Send for Config {}
// SAFETY: as above.
unsafe impl Sync for Config {}

/// The configuration of all connections. It lives as long as the process.
fn config() -> Result<NonNull<s2n_config>, Failed> {
    static CONFIG: OnceLock<Result<Config, Failed>> = OnceLock::new();
    CONFIG
        .get_or_init(|| {
            // SAFETY: the first calls of the library, once, with callbacks that live for ever; pointers are those
            // that it has returned.
            unsafe {
                // Its own functions lock memory page by page, of which a process may have little.
                check(s2n_mem_set_callbacks(Some(nothing), Some(nothing), Some(allocate), Some(free)))?;
                check(s2n_init())?;
                let config = NonNull::new(s2n_config_new_minimal()).ok_or_else(failed)?;
                check(s2n_config_set_cipher_preferences(config.as_ptr(), POLICY.as_ptr()))?;
                check(s2n_config_set_psk_mode(config.as_ptr(), s2n_psk_mode::EXTERNAL))?;
                Ok(Config(config))
            }
        })
        .as_ref()
        .map(|config| config.0)
        .map_err(|e| *e)
}

unsafe extern "C" fn nothing() -> c_int {
    s2n_status_code::SUCCESS
}

unsafe extern "C" fn allocate(out: *mut *mut c_void, len: u32, allocated: *mut u32) -> c_int {
    // SAFETY: the library gives two valid addresses.
    unsafe {
        *out = libc::malloc(len as usize);
        if (*out).is_null() {
            return s2n_status_code::FAILURE;
        }
        *allocated = len;
    }
    s2n_status_code::SUCCESS
}

unsafe extern "C" fn free(memory: *mut c_void, _len: u32) -> c_int {
    // SAFETY: `allocate` has returned it. The library has wiped it.
    unsafe { libc::free(memory) };
    s2n_status_code::SUCCESS
}

fn check(result: c_int) -> Result<(), Failed> {
    if result == s2n_status_code::SUCCESS { Ok(()) } else { Err(failed()) }
}

/// The error of the last call on this thread.
fn failed() -> Failed {
    // SAFETY: the address of a variable of this thread; texts live as long as the process.
    unsafe {
        let error = *s2n_errno_location();
        match s2n_error_get_type(error) as s2n_error_type::Type {
            s2n_error_type::BLOCKED => Failed::Blocked,
            s2n_error_type::CLOSED => Failed::Closed,
            _ => {
                let name = s2n_strerror_name(error);
                let name = if name.is_null() { c"unknown" } else { CStr::from_ptr(name) };
                Failed::Other(name.to_str().unwrap_or("unknown"))
            }
        }
    }
}

/// What the callbacks of one call read and write.
struct Io {
    input: *const u8,
    left: usize,
    output: *mut Vec<u8>,
}

unsafe extern "C" fn receive(io: *mut c_void, to: *mut u8, len: u32) -> c_int {
    // SAFETY: the `Io` of the connection, whose input is valid during the call that has led here.
    unsafe {
        let io = &mut *io.cast::<Io>();
        let n = io.left.min(len as usize);
        if n == 0 {
            *libc::__errno_location() = libc::EWOULDBLOCK;
            return -1;
        }
        ptr::copy_nonoverlapping(io.input, to, n);
        (io.input, io.left) = (io.input.add(n), io.left - n);
        n as c_int
    }
}

unsafe extern "C" fn send(io: *mut c_void, from: *const u8, len: u32) -> c_int {
    // SAFETY: as above, of its output; the library gives `len` readable bytes.
    unsafe {
        let io = &mut *io.cast::<Io>();
        match io.output.as_mut() {
            Some(output) => output.extend_from_slice(std::slice::from_raw_parts(from, len as usize)),
            None => return -1,
        }
    }
    len as c_int
}

/// A connection of the library.
pub(crate) struct Connection {
    raw: NonNull<s2n_connection>,
    io: NonNull<Io>,
}

// SAFETY: the library keeps no state of a thread in a connection, and `&mut self` keeps others away.
unsafe impl Send for Connection {}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: both are valid, and nothing refers to them any more.
        unsafe {
            s2n_connection_free(self.raw.as_ptr());
            drop(Box::from_raw(self.io.as_ptr()));
        }
    }
}

impl Connection {
    pub(crate) fn new(is_host: bool) -> Result<Connection, Failed> {
        let config = config()?;
        let mode = if is_host { s2n_mode::CLIENT } else { s2n_mode::SERVER };
        // SAFETY: pointers are those that the library has returned; the `Io` is freed after the connection.
        unsafe {
            let raw = NonNull::new(s2n_connection_new(mode)).ok_or_else(failed)?;
            let io = Io { input: ptr::null(), left: 0, output: ptr::null_mut() };
            let io = NonNull::from(Box::leak(Box::new(io)));
            let this = Connection { raw, io };
            let raw = raw.as_ptr();
            check(s2n_connection_set_config(raw, config.as_ptr()))?;
            // A connection ends at its first error: there is nothing to measure by a second.
            check(s2n_connection_set_blinding(raw, s2n_blinding::SELF_SERVICE_BLINDING))?;
            check(s2n_connection_set_recv_cb(raw, Some(receive)))?;
            check(s2n_connection_set_recv_ctx(raw, io.as_ptr().cast()))?;
            check(s2n_connection_set_send_cb(raw, Some(send)))?;
            check(s2n_connection_set_send_ctx(raw, io.as_ptr().cast()))?;
            // Records of 16 KiB.
            check(s2n_connection_prefer_throughput(raw))?;
            Ok(this)
        }
    }

    /// Adds a key that may be used. It is of no use for early data: a peer could send that again.
    pub(crate) fn add(&mut self, psk: &TlsPsk) -> Result<(), Failed> {
        self.add_changed(psk, |_| Ok(()))
    }

    /// The same, after `change`.
    fn add_changed(
        &mut self,
        psk: &TlsPsk,
        change: impl FnOnce(*mut s2n_psk) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let hash = match psk.hash {
            HashFunction::Sha256 => s2n_psk_hmac::SHA256,
            _ => s2n_psk_hmac::SHA384,
        };
        let (identity, secret) = (psk.identity.as_bytes(), &psk.secret);
        let lengths = (u16::try_from(identity.len()), u16::try_from(secret.len()));
        let (Ok(identity_len), Ok(secret_len)) = lengths else { return Err(Failed::Other("too long")) };
        // SAFETY: pointers are valid for the lengths beside them; the library copies what they point to.
        unsafe {
            let mut made = s2n_external_psk_new();
            if made.is_null() {
                return Err(failed());
            }
            let result = check(s2n_psk_set_identity(made, identity.as_ptr(), identity_len))
                .and_then(|()| check(s2n_psk_set_secret(made, secret.as_ptr(), secret_len)))
                .and_then(|()| check(s2n_psk_set_hmac(made, hash)))
                .and_then(|()| change(made))
                .and_then(|()| check(s2n_connection_append_psk(self.raw.as_ptr(), made)));
            s2n_psk_free(&raw mut made);
            result
        }
    }

    /// Calls the library with input and output for the time of the call.
    fn with<T>(
        &mut self,
        input: &mut &[u8],
        output: &mut Vec<u8>,
        call: impl FnOnce(*mut s2n_connection) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        // SAFETY: the `Io` is valid, and only the callbacks of `call` use it meanwhile.
        unsafe {
            *self.io.as_ptr() = Io { input: input.as_ptr(), left: input.len(), output };
        }
        let mut result = call(self.raw.as_ptr());
        // SAFETY: as above; `call` is over.
        unsafe {
            let io = &mut *self.io.as_ptr();
            *input = &input[input.len() - io.left..];
            (io.input, io.left, io.output) = (ptr::null(), 0, ptr::null_mut());
            if matches!(result, Err(Failed::Other("S2N_ERR_ALERT"))) {
                let alert = s2n_connection_get_alert(self.raw.as_ptr());
                result = Err(u8::try_from(alert).map_or(Failed::Other("S2N_ERR_ALERT"), Failed::Alert));
            }
        }
        result
    }

    pub(crate) fn negotiate(&mut self, input: &mut &[u8], output: &mut Vec<u8>) -> Result<(), Failed> {
        let mut blocked = 0;
        // SAFETY: a valid connection.
        self.with(input, output, |raw| check(unsafe { s2n_negotiate(raw, &raw mut blocked) }))
    }

    /// Gives the memory of the handshake back once it is done.
    pub(crate) fn end_handshake(&mut self) -> Result<(), Failed> {
        // SAFETY: a valid connection.
        check(unsafe { s2n_connection_free_handshake(self.raw.as_ptr()) })
    }

    /// Encrypts bytes.
    pub(crate) fn send_bytes(&mut self, plain: &[u8], output: &mut Vec<u8>) -> Result<(), Failed> {
        // SAFETY: the bytes are borrowed.
        unsafe { self.send(plain.as_ptr(), plain.len(), output) }
    }

    /// Encrypts the memory of a payload.
    pub(crate) fn send_segment(&mut self, plain: &Segment, output: &mut Vec<u8>) -> Result<(), Failed> {
        // SAFETY: a segment keeps its memory valid. That of a device may change, as `send` allows.
        unsafe { self.send(plain.as_ptr(), plain.len(), output) }
    }

    /// Encrypts `len` bytes at `from`.
    ///
    /// # Safety
    /// They are readable until this returns. They may change meanwhile: the library copies them first.
    unsafe fn send(&mut self, from: *const u8, len: usize, output: &mut Vec<u8>) -> Result<(), Failed> {
        let mut done = 0;
        while done < len {
            let mut blocked = 0;
            done += self.with(&mut &[][..], output, |raw| {
                // SAFETY: as the caller says; a valid connection.
                let n =
                    unsafe { s2n_send(raw, from.add(done).cast(), (len - done) as isize, &raw mut blocked) };
                usize::try_from(n).map_err(|_| failed())
            })?;
        }
        Ok(())
    }

    /// Decrypts as much as there is and fits: how many bytes, and whether the peer has ended its side.
    ///
    /// # Panics
    /// If the range is not within the memory, or the memory is read-only.
    pub(crate) fn receive(
        &mut self,
        input: &mut &[u8],
        output: &mut Vec<u8>,
        to: Destination<'_>,
    ) -> Result<(usize, bool), Failed> {
        let (base, len) = match to {
            Destination::Bytes(bytes) => (bytes.as_mut_ptr(), bytes.len()),
            Destination::Memory(memory, offset, len) => {
                assert!(offset <= memory.len() && len <= memory.len() - offset, "outside the memory");
                let base = match memory {
                    Memory::Buf(buf) => buf.as_mut_ptr(),
                    Memory::Device(segment) => segment.as_ptr(),
                    Memory::Shared(_) => panic!("read-only memory as a destination"),
                };
                (base.wrapping_add(offset), len)
            }
        };
        let mut done = 0;
        while done < len {
            let mut blocked = 0;
            let result = self.with(input, output, |raw| {
                // SAFETY: a valid connection; bytes that are borrowed for this call, or within memory, as checked,
                // to which no other reference exists.
                let n = unsafe {
                    s2n_recv(raw, base.wrapping_add(done).cast(), (len - done) as isize, &raw mut blocked)
                };
                usize::try_from(n).map_err(|_| failed())
            });
            match result {
                Ok(0) => return Ok((done, true)),
                Ok(n) => done += n,
                Err(Failed::Blocked) => break,
                Err(e) => return Err(e),
            }
        }
        Ok((done, false))
    }

    /// Says that nothing more is sent.
    pub(crate) fn end(&mut self, output: &mut Vec<u8>) -> Result<(), Failed> {
        let mut blocked = 0;
        // SAFETY: a valid connection.
        self.with(&mut &[][..], output, |raw| check(unsafe { s2n_shutdown_send(raw, &raw mut blocked) }))
    }

    /// The identity of the key in use; none if no key is.
    pub(crate) fn identity(&mut self) -> Option<Vec<u8>> {
        let (raw, mut len) = (self.raw.as_ptr(), 0u16);
        // SAFETY: a valid connection; `len` is the number of writable bytes at `identity`.
        unsafe {
            check(s2n_connection_get_negotiated_psk_identity_length(raw, &raw mut len)).ok()?;
            let mut identity = vec![0; usize::from(len)];
            check(s2n_connection_get_negotiated_psk_identity(raw, identity.as_mut_ptr(), len)).ok()?;
            (len > 0).then_some(identity)
        }
    }

    /// The cipher suite, by its number, if the protocol is TLS 1.3.
    pub(crate) fn suite(&mut self) -> Option<u16> {
        let (raw, mut number) = (self.raw.as_ptr(), [0u8; 2]);
        // SAFETY: a valid connection and two valid addresses.
        unsafe {
            let [first, second] = &mut number;
            check(s2n_connection_get_cipher_iana_value(raw, first, second)).ok()?;
            let is_new = s2n_connection_get_actual_protocol_version(raw) == s2n_tls_version::TLS13;
            is_new.then_some(u16::from_be_bytes(number))
        }
    }
}

#[cfg(test)]
#[path = "library_tests.rs"]
mod tests;
