//! A target that lies, stalls and forgets as a test requests: one subsystem with one namespace,
//! whose writes come in capsules. It is written without the library, so that no bug can be on both
//! ends.

use longhaul_wire::command::{CrossControllerReset, Identify, ReadWrite, SQE_LEN, Sqe, admin, fctype, io};
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::fabrics::{Connect, ConnectData, Property, offset};
use longhaul_wire::identify::{IdentifyController, IdentifyNamespace, LbaFormat, cns, sgls};
use longhaul_wire::pdu::IcResp;
use std::io::{Read, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;
use zerocopy::IntoBytes;

/// Bytes of a block of its namespace.
pub const BLOCK: usize = 4096;

/// CAP: 128 entries, contiguous queues, the NVM command set, ready in 1 s.
const CAP: u64 = 127 | 1 << 16 | 2 << 24 | 1 << 37;
/// Data in a capsule, in units of 16 bytes.
const IN_CAPSULE: u32 = (1 << 20) / 16;
/// A queue that no controller has: a host asks for it to learn whether the
/// controller exists.
const NO_QUEUE: u16 = 0xFFFF;

/// How it behaves; may be changed at any time.
#[derive(Clone)]
pub struct Manner {
    /// The identity of the namespace.
    pub nguid: u128,
    /// Its size in blocks.
    pub blocks: u64,
    /// Controller Instance Uniquifier; 0: it cannot reset other controllers.
    pub ciu: u8,
    /// Command Quiesce Time in milliseconds.
    pub cqt: u16,
    /// How often Cross-Controller Reset is answered with "in progress".
    pub resets_in_progress: u32,
    /// Writes that it never answers.
    pub swallow: u32,
    /// I/O queues answer commands that the host has not sent.
    pub wrong_identifiers: bool,
    /// I/O queues take no more bytes.
    pub deaf: bool,
}

impl Default for Manner {
    fn default() -> Manner {
        Manner {
            nguid: 7,
            blocks: 1024,
            ciu: 1,
            cqt: 0,
            resets_in_progress: 0,
            swallow: 0,
            wrong_identifiers: false,
            deaf: false,
        }
    }
}

#[derive(Default)]
struct State {
    manner: Manner,
    memory: Vec<u8>,
    /// When a write was done, by which controller.
    writes: Vec<(Instant, u16)>,
    /// When a reset was done.
    reset: Option<Instant>,
    controllers: u16,
    connections: Vec<TcpStream>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }
}

/// See the module.
pub struct Fake {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Fake {
    /// Listens on a free port, in the caller's namespace.
    pub fn start(ip: IpAddr, manner: Manner) -> Fake {
        let listener = TcpListener::bind((ip, 0)).expect("bound");
        let addr = listener.local_addr().expect("address");
        let shared = Arc::new(Shared::default());
        shared.lock().memory = vec![0; manner.blocks as usize * BLOCK];
        shared.lock().manner = manner;
        let fake = Fake { addr, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("accepted");
                stream.set_nodelay(true).expect("set");
                let shared = Arc::clone(&shared);
                shared.lock().connections.push(stream.try_clone().expect("cloned"));
                thread::spawn(move || Connection { stream, shared, qid: 0, cntlid: 0 }.serve());
            }
        });
        fake
    }

    /// How to reach it.
    pub fn uri(&self) -> String {
        format!("nvme+tcp://{}/{}?nsid=1", self.addr, super::NQN)
    }

    /// Behaves otherwise from now on.
    pub fn change(&self, change: impl FnOnce(&mut Manner)) {
        change(&mut self.shared.lock().manner);
        self.shared.changed.notify_all();
    }

    /// Ends every connection.
    pub fn drop_connections(&self) {
        for stream in self.shared.lock().connections.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Writes so far: when, and on which controller.
    pub fn writes(&self) -> Vec<(Instant, u16)> {
        self.shared.lock().writes.clone()
    }

    /// When another controller was reset.
    pub fn reset(&self) -> Option<Instant> {
        self.shared.lock().reset
    }

    /// A range of the namespace.
    pub fn content(&self, at: usize, len: usize) -> Vec<u8> {
        self.shared.lock().memory[at..at + len].to_vec()
    }
}

/// One queue of the fake controller.
struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    qid: u16,
    cntlid: u16,
}

/// What a command is answered with; nothing if it is not.
type Answer = Option<(Status, u64, Vec<u8>)>;

fn ok(result: u64) -> Answer {
    Some((Status::SUCCESS, result, Vec::new()))
}

fn fails(status: Status) -> Answer {
    Some((status.dnr(), 0, Vec::new()))
}

impl Connection {
    fn serve(mut self) {
        let mut request = [0; 128];
        if self.stream.read_exact(&mut request).is_err() {
            return;
        }
        let _ = self.stream.write_all(IcResp::new(0, 0, 1 << 17).as_bytes());
        while let Some((sqe, data)) = self.command() {
            let answer = match self.qid {
                0 => self.admin(&sqe, &data),
                _ => self.io(&sqe, &data),
            };
            if let Some(answer) = answer {
                self.answer(sqe.cid(), answer);
            }
        }
    }

    /// The next capsule; none at the end.
    fn command(&mut self) -> Option<(Sqe, Vec<u8>)> {
        let mut header = [0; 8];
        let mut state = self.shared.lock();
        while state.manner.deaf && self.qid > 0 {
            state = self.shared.changed.wait(state).expect("no panic");
        }
        drop(state);
        self.stream.read_exact(&mut header).ok()?;
        // A host that gives up sends the reason (H2CTermReq, 2) before it disconnects.
        if header[0] != 4 {
            return None;
        }
        let len = u32::from_le_bytes(header[4..].try_into().ok()?) as usize;
        let mut rest = vec![0; len - header.len()];
        self.stream.read_exact(&mut rest).ok()?;
        let at = usize::from(header[3]).max(8 + SQE_LEN) - 8;
        Some((Sqe::read(&rest[..SQE_LEN])?, rest.split_off(at.min(rest.len()))))
    }

    fn answer(&mut self, cid: u16, (status, result, data): (Status, u64, Vec<u8>)) {
        let lies = self.qid > 0 && self.shared.lock().manner.wrong_identifiers;
        let cid = if lies { cid ^ 0x55 } else { cid };
        let mut out = Vec::new();
        if !data.is_empty() {
            // C2HData, its last PDU; a completion follows.
            out.extend_from_slice(&[7, 0x04, 24, 24]);
            out.extend_from_slice(&(24 + data.len() as u32).to_le_bytes());
            out.extend_from_slice(&cid.to_le_bytes());
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&(data.len() as u32).to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&data);
        }
        out.extend_from_slice(&[5, 0, 24, 0, 24, 0, 0, 0]);
        out.extend_from_slice(&Cqe::new(cid, status).with_result(result).with_sqhd(0xFFFF).to_bytes());
        let _ = self.stream.write_all(&out);
    }

    fn admin(&mut self, sqe: &Sqe, data: &[u8]) -> Answer {
        match sqe.opcode {
            admin::FABRICS => self.fabrics(sqe, data),
            admin::IDENTIFY => self.identify(sqe),
            admin::SET_FEATURES => ok(7 | 7 << 16),
            admin::KEEP_ALIVE => ok(0),
            // Bit 0: not aborted.
            admin::ABORT => ok(1),
            admin::CROSS_CONTROLLER_RESET => {
                let mut state = self.shared.lock();
                if state.manner.resets_in_progress > 0 {
                    state.manner.resets_in_progress -= 1;
                    return Some((Status::RESET_IN_PROGRESS, 0, Vec::new()));
                }
                state.reset = Some(Instant::now());
                ok(CrossControllerReset::DONE.into())
            }
            _ => fails(Status::INVALID_OPCODE),
        }
    }

    fn fabrics(&mut self, sqe: &Sqe, data: &[u8]) -> Answer {
        match sqe.fctype() {
            fctype::CONNECT => {
                let connect = Connect::of(sqe);
                if connect.qid == NO_QUEUE {
                    // Its controllers never end.
                    return fails(Status::INVALID_FIELD);
                }
                self.qid = connect.qid;
                let asked = ConnectData::view(data).expect("whole").cntlid();
                let mut state = self.shared.lock();
                state.controllers += u16::from(connect.qid == 0);
                self.cntlid = if connect.qid == 0 { state.controllers } else { asked };
                ok(self.cntlid.into())
            }
            fctype::PROPERTY_GET => match Property::of(sqe).offset {
                offset::CAP => ok(CAP),
                offset::CSTS => ok(1),
                _ => ok(0),
            },
            _ => ok(0),
        }
    }

    fn identify(&self, sqe: &Sqe) -> Answer {
        let manner = self.shared.lock().manner.clone();
        let bytes = match Identify::of(sqe).cns {
            cns::CONTROLLER => {
                let id = IdentifyController {
                    cntlid: self.cntlid,
                    kas: 10,
                    mdts: 8,
                    sqes: 0x66,
                    cqes: 0x44,
                    nn: 1,
                    sgls: sgls::SUPPORTED | sgls::OFFSET | sgls::TRANSPORT,
                    ioccsz: (SQE_LEN / 16) as u32 + IN_CAPSULE,
                    iorcsz: 1,
                    cqt: manner.cqt,
                    ciu: manner.ciu,
                    cirn: 9,
                    ccrl: manner.ciu,
                    ..Default::default()
                };
                id.encode().to_vec()
            }
            cns::NAMESPACE => {
                let mut ns = IdentifyNamespace {
                    nsze: manner.blocks,
                    ncap: manner.blocks,
                    nuse: manner.blocks,
                    nguid: manner.nguid.to_be_bytes(),
                    ..Default::default()
                };
                ns.lbaf[0] = LbaFormat { lbads: BLOCK.ilog2() as u8, ..LbaFormat::default() };
                ns.encode().to_vec()
            }
            _ => return fails(Status::INVALID_FIELD),
        };
        Some((Status::SUCCESS, 0, bytes))
    }

    fn io(&mut self, sqe: &Sqe, data: &[u8]) -> Answer {
        let at = ReadWrite::of(sqe).slba as usize * BLOCK;
        let mut state = self.shared.lock();
        match sqe.opcode {
            io::WRITE => {
                state.memory[at..at + data.len()].copy_from_slice(data);
                state.writes.push((Instant::now(), self.cntlid));
                let swallowed = state.manner.swallow > 0;
                state.manner.swallow = state.manner.swallow.saturating_sub(1);
                if swallowed { None } else { ok(0) }
            }
            io::READ => {
                let len = ReadWrite::of(sqe).blocks as usize * BLOCK;
                Some((Status::SUCCESS, 0, state.memory[at..at + len].to_vec()))
            }
            io::FLUSH => ok(0),
            _ => fails(Status::INVALID_OPCODE),
        }
    }
}
