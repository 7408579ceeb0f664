//! Requests and replies of one connection.
//!
//! Invariants:
//! - every request gets one reply, in the order of completion;
//! - unanswered requests and their bytes are bounded: from a client that does not receive its
//!   replies no more requests are read.

use super::REQUEST_MAX;
use super::handshake::Agreed;
use super::wire::{self, NbdRequest, REQUEST_LEN, allocation, chunk, cmd, error, error_of, flag};
use crate::served;
use longhaul_block::{IoError, IoResult, ZeroFlags};
use longhaul_cache::ErrorCursor;
use longhaul_engine::{Buf, BufMut};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Requests of one connection at a time.
const REQUESTS: usize = 256;
/// Bytes of their data.
const BYTES: u64 = 64 << 20;

/// Requests and bytes under way on a connection.
#[derive(Default)]
struct Load {
    now: Mutex<(usize, u64)>,
    less: Condvar,
}

impl Load {
    /// Waits until `bytes` more may be under way, and counts them until the share is dropped.
    fn take(self: &Arc<Self>, bytes: u64) -> Share {
        let full = |now: &mut (usize, u64)| now.0 > 0 && (now.0 >= REQUESTS || now.1 + bytes > BYTES);
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = self.less.wait_while(now, full).unwrap_or_else(PoisonError::into_inner);
        *now = (now.0 + 1, now.1 + bytes);
        drop(now);
        Share { load: Arc::clone(self), bytes }
    }
}

struct Share {
    load: Arc<Load>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut now = self.load.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0 - 1, now.1 - self.bytes);
        self.load.less.notify_one();
    }
}

struct Reply {
    header: Vec<u8>,
    data: Option<Buf>,
    _share: Share,
}

/// Serves a connection until its client ends it, and all its requests are answered.
///
/// # Errors
/// The client violates the protocol, or has disconnected.
pub(super) fn serve(mut socket: File, agreed: &Agreed) -> io::Result<()> {
    let (replies, outbox) = channel();
    let out = socket.try_clone()?;
    let writer =
        std::thread::Builder::new().name("longhaul-nbd-tx".into()).spawn(move || send(out, &outbox))?;
    let result = receive(&mut socket, agreed, &replies);
    drop(replies);
    // This ends when the last reply has been sent, or cannot be.
    let sent = writer.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
    result.and(sent)
}

fn send(mut socket: File, outbox: &Receiver<Reply>) -> io::Result<()> {
    let mut result = Ok(());
    for reply in outbox {
        // The requests of a client that has disconnected are still completed.
        if result.is_ok() {
            result = socket.write_all(&reply.header);
            if let (Ok(()), Some(data)) = (&result, &reply.data) {
                result = socket.write_all(data);
            }
        }
    }
    result
}

fn receive(socket: &mut File, agreed: &Agreed, replies: &Sender<Reply>) -> io::Result<()> {
    let load = Arc::new(Load::default());
    let told = agreed.export.requests.handle();
    loop {
        let mut header = [0; REQUEST_LEN];
        match socket.read_exact(&mut header) {
            // End of file without NBD_CMD_DISC, but between requests.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let request = NbdRequest::parse(&header).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the client's request does not begin with NBD_REQUEST_MAGIC",
            )
        })?;
        if request.kind == cmd::DISC {
            return Ok(());
        }
        let moves = matches!(request.kind, cmd::READ | cmd::WRITE);
        if request.kind == cmd::WRITE && request.len > REQUEST_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a write that is too long"));
        }
        let share = load.take(if moves { u64::from(request.len.min(REQUEST_MAX)) } else { 0 });
        let mut data = None;
        if request.kind == cmd::WRITE {
            let mut buf = BufMut::zeroed(request.len as usize);
            socket.read_exact(&mut buf)?;
            data = Some(buf.freeze());
        }
        start(agreed, request, data, &told, replies.clone(), share);
    }
}

/// Starts a request, or refuses it at once.
fn start(
    agreed: &Agreed,
    request: NbdRequest,
    data: Option<Buf>,
    told: &Arc<ErrorCursor>,
    replies: Sender<Reply>,
    share: Share,
) {
    let structured = agreed.structured && matches!(request.kind, cmd::READ | cmd::BLOCK_STATUS);
    let reply = move |result: Result<Buf, (u32, String)>| {
        let reply = match result {
            Ok(data) => good(&request, data, structured, share),
            Err((number, why)) => bad(&request, number, &why, structured, share),
        };
        // A client that has disconnected needs no reply.
        let _ = replies.send(reply);
    };
    let wanted = match check(agreed, &request) {
        Err(refused) => return reply(Err(refused)),
        // A remote device does not report holes, and reading all of it to find them would cost more
        // than the client saves.
        Ok(()) if request.kind == cmd::BLOCK_STATUS => return reply(Ok(Buf::copy_of(&[]))),
        Ok(()) => translate(&request, data, told),
    };
    let is_read = request.kind == cmd::READ;
    let done = move |result: IoResult<Buf>| {
        reply(result.map_err(|e| match &e {
            // The range was checked against the size before.
            IoError::OutOfRange { .. } if is_read => (error::EIO, e.to_string()),
            e => (error_of(e), e.to_string()),
        }));
    };
    // A trim becomes durable only by a flush after it.
    if request.kind == cmd::TRIM && request.flags & flag::FUA != 0 {
        let (export, told) = (Arc::clone(&agreed.export), Arc::clone(told));
        let then = move |result: IoResult<Buf>| match result {
            Ok(_) => export.requests.start(served::Request::Flush(told), Box::new(done)),
            Err(e) => done(Err(e)),
        };
        return agreed.export.requests.start(wanted, Box::new(then));
    }
    agreed.export.requests.start(wanted, Box::new(done));
}

/// Checks a request against the export's features and size.
fn check(agreed: &Agreed, request: &NbdRequest) -> Result<(), (u32, String)> {
    let info = agreed.export.requests.info();
    let (offset, len) = (request.offset, u64::from(request.len));
    let known = match request.kind {
        cmd::READ => flag::DF,
        cmd::WRITE | cmd::TRIM => flag::FUA,
        cmd::WRITE_ZEROES => flag::FUA | flag::NO_HOLE,
        cmd::FLUSH => 0,
        cmd::BLOCK_STATUS if agreed.allocation => flag::REQ_ONE,
        kind => return Err((error::EINVAL, format!("command {kind} is not known"))),
    };
    if request.flags & !known != 0 {
        return Err((error::EINVAL, format!("flags {:#x} are not known for this command", request.flags)));
    }
    if request.kind == cmd::FLUSH {
        let plain = offset == 0 && len == 0;
        return if plain { Ok(()) } else { Err((error::EINVAL, "a flush is of everything".into())) };
    }
    if request.kind == cmd::READ && request.len > REQUEST_MAX {
        return Err((error::EOVERFLOW, format!("at most {REQUEST_MAX} bytes at a time")));
    }
    if request.kind == cmd::BLOCK_STATUS && len == 0 {
        return Err((error::EINVAL, "the status of no bytes".into()));
    }
    let changes = !matches!(request.kind, cmd::READ | cmd::BLOCK_STATUS);
    if changes && info.read_only {
        return Err((error::EPERM, IoError::ReadOnly.to_string()));
    }
    if offset.checked_add(len).is_none_or(|end| end > info.size) {
        let past = IoError::OutOfRange { offset, len, size: info.size };
        let number = if changes { error::ENOSPC } else { error::EINVAL };
        return Err((number, past.to_string()));
    }
    Ok(())
}

fn translate(request: &NbdRequest, data: Option<Buf>, told: &Arc<ErrorCursor>) -> served::Request {
    let (offset, len) = (request.offset, u64::from(request.len));
    let fua = request.flags & flag::FUA != 0;
    match request.kind {
        cmd::WRITE => {
            let data = data.unwrap_or_else(|| Buf::copy_of(&[]));
            served::Request::Write { offset, data, fua }
        }
        cmd::TRIM => served::Request::Discard { offset, len },
        cmd::WRITE_ZEROES => {
            let may_deallocate = request.flags & flag::NO_HOLE == 0;
            served::Request::Zero { offset, len, flags: ZeroFlags { may_deallocate, fua } }
        }
        cmd::FLUSH => served::Request::Flush(Arc::clone(told)),
        _ => served::Request::Read { offset, len },
    }
}

fn good(request: &NbdRequest, data: Buf, structured: bool, share: Share) -> Reply {
    let header = if request.kind == cmd::BLOCK_STATUS {
        // One extent: the whole range of the request.
        let extent = [allocation::ID, request.len, allocation::DATA].map(u32::to_be_bytes);
        wire::structured(request.cookie, chunk::BLOCK_STATUS, extent.as_flattened(), 0)
    } else if structured {
        let offset = request.offset.to_be_bytes();
        wire::structured(request.cookie, chunk::OFFSET_DATA, &offset, data.len() as u32)
    } else {
        wire::simple(request.cookie, 0)
    };
    let data = (request.kind == cmd::READ).then_some(data);
    Reply { header, data, _share: share }
}

fn bad(request: &NbdRequest, number: u32, why: &str, structured: bool, share: Share) -> Reply {
    let header = if structured {
        // A string of the protocol has 4096 bytes at most.
        let why = &why.as_bytes()[..why.len().min(4096)];
        let mut data = number.to_be_bytes().to_vec();
        data.extend((why.len() as u16).to_be_bytes());
        data.extend(why);
        wire::structured(request.cookie, chunk::ERROR, &data, 0)
    } else {
        wire::simple(request.cookie, number)
    };
    Reply { header, data: None, _share: share }
}
