//! A host that speaks in bytes, right or wrong: nothing here but sockets and
//! the structures of `wire`.

use longhaul_wire::command::{ReadWrite, Sgl, Sqe, io};
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::digest::{append_header_digest, check_header_digest, crc32c};
use longhaul_wire::fabrics::{ConnectData, offset};
use longhaul_wire::pdu::{
    CapsuleResp, CommonHeader, DataPdu, Fes, Format, IcReq, IcResp, PduType, TermReq, flags,
};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

/// Longer than any answer takes: a hang becomes a failure.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const NQN: &str = "nqn.2014-08.org.example:disk";
pub const HOSTNQN: &str = "nqn.2014-08.org.example:host";
pub const HOSTID: Uuid = Uuid::from_u128(0x0102_0304);
/// Where strangers are: another address of the loopback interface.
pub const STRANGER: [u8; 4] = [127, 0, 0, 9];
/// What a Linux host writes to CC.
pub const CC_ENABLE: u64 = 0x0046_0001;
pub const BLOCK: usize = 4096;

/// A PDU that came.
#[derive(Clone, Debug)]
pub struct Pdu {
    pub kind: PduType,
    pub flags: u8,
    header: Vec<u8>,
    pub data: Vec<u8>,
}

impl Pdu {
    pub fn view<T: FromBytes>(&self) -> T {
        T::read_from_prefix(&self.header).expect("as long as its type says").0
    }
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Done {
    pub status: Status,
    pub result: u64,
    /// Data of a read.
    pub data: Vec<u8>,
}

/// A connection that sends any bytes a test chooses.
pub struct Client {
    pub stream: TcpStream,
    /// What both agreed on; alignment is always 4.
    pub format: Format,
    cid: u16,
}

impl Client {
    /// A connection on which nothing was said yet.
    pub fn tcp(addr: SocketAddr) -> Client {
        Client::over(TcpStream::connect(addr).expect("connected"))
    }

    /// The same, from an address of this machine; more of one address than it may open are closed at once.
    pub fn tcp_from(source: [u8; 4], to: SocketAddr) -> std::io::Result<Client> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((source, 0)).into())?;
        socket.connect(&to.into())?;
        Ok(Client::over(socket.into()))
    }

    /// The same, on a connection that was made elsewhere.
    pub fn over(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).expect("time limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("time limit");
        stream.set_nodelay(true).expect("no delay");
        Client { stream, format: Format::default(), cid: 0 }
    }

    /// A connection behind ICReq and ICResp; `digests` as in DGST.
    pub fn open(addr: SocketAddr, digests: u8) -> Client {
        let mut client = Client::tcp(addr);
        client.send(IcReq::new(0, digests, 0).as_bytes());
        let resp = client.recv().expect("an ICResp");
        let resp: IcResp = resp.view();
        assert_eq!((resp.pfv.get(), resp.dgst, resp.cpda), (0, digests, 0));
        client.format =
            Format { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, ..Format::default() };
        client
    }

    /// The same connection, for another thread.
    pub fn again(&self) -> Client {
        Client { stream: self.stream.try_clone().expect("a second handle"), ..*self }
    }

    /// Sends bytes unchanged. A closed connection is no error: the test judges what the peer sent
    /// before.
    pub fn send(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            Err(e) if !matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                panic!("sending: {e}")
            }
            _ => {}
        }
    }

    /// Whether so many bytes came before the end of the stream.
    fn fill(&mut self, out: &mut [u8]) -> bool {
        match self.stream.read_exact(out) {
            Ok(()) => true,
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => false,
            Err(e) => panic!("receiving: {e}"),
        }
    }

    /// The next PDU, which must be flawless; `None` at the end.
    pub fn recv(&mut self) -> Option<Pdu> {
        let mut pdu = vec![0; 8];
        if !self.fill(&mut pdu) {
            return None;
        }
        let common = CommonHeader::read_from_bytes(&pdu).expect("8 bytes");
        let kind = PduType::from_code(common.pdu_type).expect("a known type");
        let layout = common.check(kind, self.format).expect("a sound header");
        pdu.resize(common.plen.get() as usize, 0);
        assert!(self.fill(&mut pdu[8..]), "a whole PDU");
        let header = usize::from(layout.header);
        if layout.header_digest > 0 {
            check_header_digest(&pdu[..header + 4]).expect("the right header digest");
        }
        let start = header + usize::from(layout.header_digest) + usize::from(layout.pad);
        let data = pdu[start..start + layout.data as usize].to_vec();
        if layout.data_digest > 0 {
            assert_eq!(pdu[start + data.len()..], crc32c(&data).to_le_bytes(), "the right data digest");
        }
        pdu.truncate(header);
        Some(Pdu { kind, flags: common.flags, header: pdu, data })
    }

    /// The target ends the connection and says why.
    pub fn expect_term(&mut self, what: &str, fes: Fes, fei: u32) {
        loop {
            let pdu = self.recv().unwrap_or_else(|| panic!("{what}: the end, and no TermReq"));
            if pdu.kind == PduType::C2HTermReq {
                let term: TermReq = pdu.view();
                assert_eq!((term.fes.get(), term.fei.get()), (fes as u16, fei), "{what}: FES and FEI");
                break;
            }
        }
        assert!(self.recv().is_none(), "{what}: a TermReq is the last");
    }

    /// The target ends the connection without a word.
    pub fn expect_end(&mut self, what: &str) {
        if let Some(pdu) = self.recv() {
            panic!("{what}: {:?} instead of the end", pdu.kind);
        }
    }

    /// A new command identifier.
    pub fn next_cid(&mut self) -> u16 {
        self.cid = (self.cid + 1) % 0xFFFE;
        self.cid
    }

    /// A command capsule.
    pub fn capsule(&self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        encode(PduType::CapsuleCmd, 0, &sqe.to_bytes(), data, self.format)
    }

    /// An H2CData PDU.
    pub fn h2c(&self, bits: u8, cid: u16, ttag: u16, offset: u32, data: &[u8]) -> Vec<u8> {
        let (common, _) = CommonHeader::build(PduType::H2CData, bits, data.len() as u32, self.format);
        let header = DataPdu::new(common, cid, ttag, offset, data.len() as u32);
        encode(PduType::H2CData, bits, &header.as_bytes()[8..], data, self.format)
    }

    /// Sends a command and waits for its end, with no other under way.
    pub fn call(&mut self, sqe: &Sqe, data: &[u8]) -> Done {
        let sqe = sqe.with_cid(self.next_cid());
        let capsule = self.capsule(&sqe, data);
        self.send(&capsule);
        self.finish(sqe.cid(), &[])
    }

    /// Sends a command whose data is asked for.
    pub fn call_r2t(&mut self, sqe: &Sqe, data: &[u8]) -> Done {
        let sqe = sqe.with_cid(self.next_cid()).with_sgl(Sgl::transport(data.len() as u32));
        let capsule = self.capsule(&sqe, &[]);
        self.send(&capsule);
        self.finish(sqe.cid(), data)
    }

    /// Waits for the end of a command, and gives its data when asked.
    pub fn finish(&mut self, cid: u16, data: &[u8]) -> Done {
        let mut read = Vec::new();
        loop {
            let pdu = self.recv().expect("an answer");
            match pdu.kind {
                PduType::R2T => {
                    let r2t: DataPdu = pdu.view();
                    let (at, len) = (r2t.offset.get(), r2t.length.get() as usize);
                    let part = &data[at as usize..][..len];
                    let pdu = self.h2c(flags::LAST_PDU, r2t.cccid.get(), r2t.ttag.get(), at, part);
                    self.send(&pdu);
                }
                PduType::C2HData => {
                    let header: DataPdu = pdu.view();
                    assert_eq!((header.cccid.get(), header.offset.get()), (cid, read.len() as u32));
                    read.extend(&pdu.data);
                    if pdu.flags & flags::SUCCESS != 0 {
                        return Done { status: Status::SUCCESS, result: 0, data: read };
                    }
                }
                PduType::CapsuleResp => {
                    let resp: CapsuleResp = pdu.view();
                    let cqe = Cqe::read(&resp.cqe).expect("16 bytes");
                    assert_eq!(cqe.cid(), cid);
                    return Done { status: cqe.status(), result: cqe.result(), data: read };
                }
                other => panic!("{other:?} while waiting for the end of command {cid}"),
            }
        }
    }

    /// Receives the R2T of a command.
    pub fn r2t(&mut self) -> DataPdu {
        let pdu = self.recv().expect("an R2T");
        assert_eq!(pdu.kind, PduType::R2T);
        pdu.view()
    }

    /// Connect, with data as given.
    pub fn connect(&mut self, sqe: &Sqe, data: &ConnectData) -> Done {
        self.call(&sqe.with_sgl(Sgl::in_capsule(0, ConnectData::LEN as u32)), data.as_bytes())
    }

    /// A command without data that succeeds; its result.
    pub fn result(&mut self, sqe: &Sqe) -> u64 {
        let done = self.call(sqe, &[]);
        assert_eq!(done.status, Status::SUCCESS, "{sqe:?}");
        done.result
    }
}

/// The bytes of a PDU: `rest` is the header behind the common header.
pub fn encode(kind: PduType, bits: u8, rest: &[u8], data: &[u8], format: Format) -> Vec<u8> {
    let (common, pad) = CommonHeader::build(kind, bits, data.len() as u32, format);
    let mut out = [common.as_bytes(), rest].concat();
    if format.header_digest {
        append_header_digest(&mut out, 0);
    }
    out.resize(out.len() + pad, 0);
    out.extend(data);
    if format.data_digest && !data.is_empty() {
        out.extend(crc32c(data).to_le_bytes());
    }
    out
}

/// Data for a Connect that is right.
pub fn connect_data(cntlid: u16) -> ConnectData {
    ConnectData::new(HOSTID, cntlid, NQN, HOSTNQN)
}

/// A Write of whole blocks.
pub fn write(nsid: u32, lba: u64, len: usize) -> Sqe {
    ReadWrite::new(lba, (len / BLOCK) as u32).to_sqe(io::WRITE, nsid).with_sgl(Sgl::in_capsule(0, len as u32))
}

/// A Read of whole blocks.
pub fn read(nsid: u32, lba: u64, len: usize) -> Sqe {
    ReadWrite::new(lba, (len / BLOCK) as u32).to_sqe(io::READ, nsid).with_sgl(Sgl::transport(len as u32))
}

/// What a host says of itself, and which subsystem it wants.
#[derive(Clone, Debug)]
pub struct Name {
    pub nqn: String,
    pub hostnqn: String,
    pub hostid: Uuid,
}

impl Name {
    /// A host that is not the one of every other test.
    pub fn other(n: u16) -> Name {
        let hostid = Uuid::from_u128(0x0505_0000 + u128::from(n));
        Name { nqn: NQN.into(), hostnqn: format!("{HOSTNQN}-{n}"), hostid }
    }

    pub fn connect_data(&self, cntlid: u16) -> ConnectData {
        ConnectData::new(self.hostid, cntlid, &self.nqn, &self.hostnqn)
    }
}

impl Default for Name {
    fn default() -> Name {
        Name { nqn: NQN.into(), hostnqn: HOSTNQN.into(), hostid: HOSTID }
    }
}

/// A controller with one I/O queue.
pub struct Host {
    pub admin: Client,
    pub io: Client,
    pub cntlid: u16,
    pub name: Name,
}

impl Host {
    /// With queues of `entries`, and digests as in DGST.
    pub fn new(addr: SocketAddr, entries: u16, digests: u8) -> Host {
        Host::named(addr, entries, digests, Name::default())
    }

    /// The same, of another host.
    pub fn named(addr: SocketAddr, entries: u16, digests: u8, name: Name) -> Host {
        let (mut admin, cntlid) = Host::admin_named(addr, 31, &name);
        admin.result(&Sqe::property_set(offset::CC, false, CC_ENABLE));
        assert_eq!(admin.result(&Sqe::property_get(offset::CSTS, false)) & 1, 1, "ready");
        let mut io = Client::open(addr, digests);
        let done = io.connect(&Sqe::connect(1, entries - 1, 0, 0), &name.connect_data(cntlid));
        assert_eq!(done.status, Status::SUCCESS);
        Host { admin, io, cntlid, name }
    }

    /// An admin queue, and the identifier of its controller, which is not
    /// enabled yet.
    pub fn admin(addr: SocketAddr) -> (Client, u16) {
        Host::admin_named(addr, 31, &Name::default())
    }

    /// The same, of another host, with this SQSIZE.
    pub fn admin_named(addr: SocketAddr, sqsize: u16, name: &Name) -> (Client, u16) {
        let mut admin = Client::open(addr, 0);
        let done = admin.connect(&Sqe::connect(0, sqsize, 0, 0), &name.connect_data(0xFFFF));
        assert_eq!(done.status, Status::SUCCESS);
        (admin, done.result as u16)
    }

    /// Queues beside the first, `n` of them.
    pub fn more_queues(&self, addr: SocketAddr, n: u16, entries: u16) -> Vec<Client> {
        let queue = |qid| {
            let mut client = Client::open(addr, 0);
            let connect = Sqe::connect(qid, entries - 1, 0, 0);
            let done = client.connect(&connect, &self.name.connect_data(self.cntlid));
            assert!(done.status.is_success(), "{}", done.status);
            client
        };
        (2..2 + n).map(queue).collect()
    }

    /// Writes, in the capsule and by R2T, and reads back.
    pub fn verify(&mut self, nsid: u32, lba: u64, seed: u64) {
        for (i, len) in [BLOCK, 8 * BLOCK].into_iter().enumerate() {
            let data = pattern(len, seed + i as u64);
            let done = match i {
                0 => self.io.call(&write(nsid, lba, len), &data),
                _ => self.io.call_r2t(&write(nsid, lba, len), &data),
            };
            assert_eq!(done.status, Status::SUCCESS);
            let done = self.io.call(&read(nsid, lba, len), &[]);
            assert_eq!(done.status, Status::SUCCESS);
            assert!(done.data == data, "what was written is read");
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}
