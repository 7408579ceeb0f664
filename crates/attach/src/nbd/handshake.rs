//! Negotiation: the export, and the options of the connection.

use super::wire::{self, Fields, allocation, can, info, opt, rep};
use super::{Export, REQUEST_MAX};
use longhaul_block::DeviceInfo;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Longest data of an option in bytes: a name and a list of requests.
const OPTION_MAX: u32 = 16 << 10;
/// Options that a client may send before it chooses an export.
const OPTIONS_MAX: usize = 256;

/// The result of the negotiation.
pub(super) struct Agreed {
    pub(super) export: Arc<Export>,
    pub(super) structured: bool,
    /// The client may query allocation.
    pub(super) allocation: bool,
}

/// What the client has chosen so far.
#[derive(Default)]
struct Chosen {
    structured: bool,
    /// The export whose allocation the client may query.
    allocation: Option<Arc<Export>>,
}

/// How the negotiation continues after an option.
enum Next {
    Option,
    Transmission(Arc<Export>),
    End,
}

/// Negotiates until the client has chosen an export; `None` if it leaves in order.
///
/// # Errors
/// The client violates the protocol, or has disconnected.
pub(super) fn negotiate(
    socket: &mut (impl Read + Write),
    exports: &[Arc<Export>],
) -> io::Result<Option<Agreed>> {
    let mut hello = wire::INIT.to_be_bytes().to_vec();
    hello.extend(wire::OPTION.to_be_bytes());
    hello.extend((wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes());
    socket.write_all(&hello)?;
    let flags = u32::from_be_bytes(array(socket)?);
    let known = u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
    if flags & !known != 0 {
        return Err(wrong("flags that are not known"));
    }
    let zeroes = flags & u32::from(wire::NO_ZEROES) == 0;
    let mut chosen = Chosen::default();
    for _ in 0..OPTIONS_MAX {
        if u64::from_be_bytes(array(socket)?) != wire::OPTION {
            return Err(wrong("the client's option does not begin with IHAVEOPT"));
        }
        let option = u32::from_be_bytes(array(socket)?);
        let len = u32::from_be_bytes(array(socket)?);
        if len > OPTION_MAX {
            return Err(wrong("an option that is too long"));
        }
        let mut data = vec![0; len as usize];
        socket.read_exact(&mut data)?;
        match answer(socket, exports, option, &data, &mut chosen, zeroes)? {
            Next::Option => {}
            Next::Transmission(export) => {
                // The context was chosen for one export, which must be this one.
                let same = |of: &Arc<Export>| Arc::ptr_eq(of, &export);
                let allocation = chosen.structured && chosen.allocation.as_ref().is_some_and(same);
                return Ok(Some(Agreed { structured: chosen.structured, allocation, export }));
            }
            Next::End => return Ok(None),
        }
    }
    Err(wrong("too many options"))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn array<const N: usize>(socket: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn answer(
    socket: &mut impl Write,
    exports: &[Arc<Export>],
    option: u32,
    data: &[u8],
    chosen: &mut Chosen,
    zeroes: bool,
) -> io::Result<Next> {
    let mut reply = |kind, data: &[u8]| socket.write_all(&wire::option_reply(option, kind, data));
    match option {
        opt::EXPORT_NAME => {
            // This option has no error reply; the connection is closed instead.
            let export = find(exports, data).ok_or_else(|| wrong("an export that is not there"))?;
            let mut out = export.requests.info().size.to_be_bytes().to_vec();
            out.extend(flags(&export, chosen.structured).to_be_bytes());
            out.resize(out.len() + if zeroes { 124 } else { 0 }, 0);
            socket.write_all(&out)?;
            return Ok(Next::Transmission(export));
        }
        opt::ABORT => {
            // A client that has closed the connection needs no answer.
            let _ = reply(rep::ACK, &[]);
            return Ok(Next::End);
        }
        opt::LIST if data.is_empty() => {
            for export in exports {
                let mut out = (export.name.len() as u32).to_be_bytes().to_vec();
                out.extend(export.name.as_bytes());
                reply(rep::SERVER, &out)?;
            }
            reply(rep::ACK, &[])?;
        }
        opt::STRUCTURED_REPLY if data.is_empty() => {
            chosen.structured = true;
            reply(rep::ACK, &[])?;
        }
        opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT if !chosen.structured => {
            reply(rep::ERR_INVALID, b"structured replies come first")?;
        }
        opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
            let set = option == opt::SET_META_CONTEXT;
            if set {
                // The last choice counts, even if it fails.
                chosen.allocation = None;
            }
            let Some((name, queries)) = queries(data) else {
                reply(rep::ERR_INVALID, b"not an export and a list of contexts")?;
                return Ok(Next::Option);
            };
            let Some(export) = find(exports, name) else {
                reply(rep::ERR_UNKNOWN, b"there is no such export")?;
                return Ok(Next::Option);
            };
            let all = |query: &&[u8]| !set && *query == allocation::NAMESPACE;
            let asked = queries.iter().any(|query| *query == allocation::NAME || all(query));
            if asked || !set && queries.is_empty() {
                let id = if set { allocation::ID } else { 0 };
                reply(rep::META_CONTEXT, &[&id.to_be_bytes(), allocation::NAME].concat())?;
                if set {
                    chosen.allocation = Some(export);
                }
            }
            reply(rep::ACK, &[])?;
        }
        opt::INFO | opt::GO => {
            let Some((name, wishes)) = wanted(data) else {
                reply(rep::ERR_INVALID, b"not an export and a list of wishes")?;
                return Ok(Next::Option);
            };
            let Some(export) = find(exports, name) else {
                reply(rep::ERR_UNKNOWN, b"there is no such export")?;
                return Ok(Next::Option);
            };
            for information in about(&export, chosen.structured, &wishes) {
                reply(rep::INFO, &information)?;
            }
            reply(rep::ACK, &[])?;
            if option == opt::GO {
                return Ok(Next::Transmission(export));
            }
        }
        opt::LIST | opt::STRUCTURED_REPLY => reply(rep::ERR_INVALID, b"this option has no data")?,
        _ => reply(rep::ERR_UNSUP, &[])?,
    }
    Ok(Next::Option)
}

/// Export name and the kinds of information requested.
fn wanted(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut fields = Fields(data);
    let len = fields.u32()?;
    let name = fields.bytes(usize::try_from(len).ok()?)?;
    let count = fields.u16()?;
    let wishes = (0..count).map(|_| fields.u16()).collect::<Option<Vec<u16>>>()?;
    fields.0.is_empty().then_some((name, wishes))
}

/// Export name, and names of metadata contexts.
fn queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut fields = Fields(data);
    let len = fields.u32()?;
    let name = fields.bytes(usize::try_from(len).ok()?)?;
    let count = fields.u32()?;
    let mut queries = Vec::new();
    // Bounded by the length of the data: each takes at least four bytes.
    for _ in 0..count {
        let len = fields.u32()?;
        queries.push(fields.bytes(usize::try_from(len).ok()?)?);
    }
    fields.0.is_empty().then_some((name, queries))
}

/// The export of this name; for an empty name the only or first one.
fn find(exports: &[Arc<Export>], name: &[u8]) -> Option<Arc<Export>> {
    let named = exports.iter().find(|export| export.name.as_bytes() == name);
    named.or_else(|| exports.first().filter(|_| name.is_empty())).cloned()
}

fn about(export: &Export, structured: bool, wishes: &[u16]) -> Vec<Vec<u8>> {
    let device = export.requests.info();
    let mut all = Vec::new();
    let mut first = info::EXPORT.to_be_bytes().to_vec();
    first.extend(device.size.to_be_bytes());
    first.extend(flags(export, structured).to_be_bytes());
    all.push(first);
    if wishes.contains(&info::NAME) {
        let mut name = info::NAME.to_be_bytes().to_vec();
        name.extend(export.name.as_bytes());
        all.push(name);
    }
    // Sent to every client: other block sizes are accepted too, at the cost of a read.
    let mut sizes = info::BLOCK_SIZE.to_be_bytes().to_vec();
    let preferred = device.optimal_io.max(device.block_size).max(4096).next_power_of_two();
    for size in [device.block_size.min(64 << 10), preferred.min(REQUEST_MAX), REQUEST_MAX] {
        sizes.extend(size.to_be_bytes());
    }
    all.push(sizes);
    all
}

/// The features of the export. A flush of one connection covers the writes of all, so clients may
/// use several connections.
fn flags(export: &Export, structured: bool) -> u16 {
    // Every read is answered in one chunk, so DF is always met.
    flags_of(&export.requests.info()) | if structured { can::DF } else { 0 }
}

/// The same for clients that receive simple replies.
pub(super) fn flags_of(device: &DeviceInfo) -> u16 {
    let mut flags = can::HAS_FLAGS | can::FLUSH | can::FUA | can::MULTI_CONN;
    if device.read_only {
        flags |= can::READ_ONLY;
    } else {
        flags |= can::WRITE_ZEROES;
        flags |= if device.discard { can::TRIM } else { 0 };
    }
    flags
}
