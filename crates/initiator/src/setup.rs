//! From a name to a controller that is ready, in as few round trips as the
//! protocol allows:
//!
//! 1. TCP, for the admin queue and the I/O queues at the same time;
//! 2. ICReq and ICResp, likewise;
//! 3. Connect of the admin queue;
//! 4. capabilities, enable, status, identity, number of queues, the namespace,
//!    in one go;
//! 5. Connect of the I/O queues, all at the same time.
//!
//! Each step needs the answer to the one before: nothing may be sent before
//! ICResp, nothing but Connect before Connect is completed, and no I/O queue
//! may exist when the number of queues is set. What a controller cannot answer
//! together with step 4 (it takes its time to become ready, or the namespace
//! is not the one that most have) costs a round trip of its own.

use crate::auth::{authenticate, make_psk};
use crate::black_hole;
use crate::call::{Data, Done};
use crate::error::{Error, Result, reason};
use crate::info::ControllerInfo;
use crate::options::{Options, SILENCE};
use crate::prepared::Prepared;
use crate::queue::{Queue, Signs};
use crate::uri::{TCP, UNIX, UriError};
use longhaul_auth::TlsPsk;
use longhaul_block::IoError;
use longhaul_conn::transport::{Transport, Unix};
use longhaul_engine::{BufMut, Memory, now, sleep, timeout};
use longhaul_proto::host::{HostConfig, IN_CAPSULE_ADMIN};
use longhaul_wire::command::Sqe;
use longhaul_wire::completion::{Cqe, Status};
use longhaul_wire::fabrics::{
    CNTLID_DYNAMIC, Cap, Cc, ConnectData, ConnectResponse, Csts, InvalidParameter, cattr, offset,
};
use longhaul_wire::identify::{IDENTIFY_LEN, IdentifyController, cns};
use longhaul_wire::nqn::DISCOVERY_NQN;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Entries of the admin queue: the smallest size that every controller has.
const ADMIN_ENTRIES: u16 = 32;
/// A queue identifier that no controller grants.
const NO_QUEUE: u16 = 0xFFFF;
/// First wait before the status is read again; doubles up to the last.
const READY_POLL: Duration = Duration::from_millis(1);
const READY_POLL_MAX: Duration = Duration::from_millis(200);

/// Where a target listens, and how to say so.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) addrs: Vec<SocketAddr>,
    /// Another transport than TCP, and the address there; there are no [`addrs`](Self::addrs) then.
    pub(crate) own: Option<(Arc<dyn Transport>, String)>,
    /// As a person named it.
    pub(crate) name: String,
    /// The target was reachable before, and may be cut off for a moment: lost packets are not
    /// waited for.
    pub(crate) again: bool,
    /// How long a step may take, if less than the options say.
    pub(crate) patience: Duration,
    /// It has lost a connection on which something was asked before the
    /// controller was known to be ready: nothing is any more.
    pub(crate) careful: bool,
    /// The PSK of the session, made by an authentication. Clones share it.
    pub(crate) generated: Option<Arc<TlsPsk>>,
    /// Which of the offers of a key for TLS the target took last. Clones share it.
    #[cfg(feature = "tls")]
    pub(crate) offer: Arc<crate::tls::LastOffer>,
}

impl Endpoint {
    fn new(addrs: Vec<SocketAddr>, name: String) -> Endpoint {
        Endpoint {
            addrs,
            own: None,
            name,
            again: false,
            patience: Duration::MAX,
            careful: false,
            generated: None,
            #[cfg(feature = "tls")]
            offer: Default::default(),
        }
    }

    /// Where a target is that is reached by this transport, at an address that has a port if the transport is TCP.
    pub(crate) async fn find(transport: &str, host: &str, port: u16, options: &Options) -> Result<Endpoint> {
        if transport == TCP {
            return Endpoint::resolve(host, port).await;
        }
        let own = match (options.transports.get(transport), transport) {
            (Some(own), _) => Arc::clone(own),
            (None, UNIX) => Arc::new(Unix),
            (None, _) => {
                let known = options.transports.keys().map(String::as_str);
                let known: Vec<_> = [TCP, UNIX].into_iter().chain(known).collect();
                let problem =
                    format!("this program has no transport '{transport}': it has {}", known.join(", "));
                return Err(UriError::new(&format!("nvme+{transport}://{host}/…"), problem).into());
            }
        };
        let own = Some((own, host.to_owned()));
        Ok(Endpoint { own, ..Endpoint::new(Vec::new(), place_name(transport, host, port)) })
    }

    /// Resolves a host name; nothing else on the thread waits for it.
    pub(crate) async fn resolve(host: &str, port: u16) -> Result<Endpoint> {
        let name = place_name(TCP, host, port);
        let fail = |reason: String| Error::Resolve { host: host.to_owned(), reason };
        // An address needs no name resolution, nor a thread for it.
        if let Ok(ip) = host.parse::<IpAddr>() {
            let addrs = vec![SocketAddr::new(ip, port)];
            return Ok(Endpoint::new(addrs, name));
        }
        let query = (host.to_owned(), port);
        let addrs: Vec<_> = longhaul_engine::blocking(move || query.to_socket_addrs().map(Iterator::collect))
            .await
            .map_err(|e: std::io::Error| fail(e.to_string()))?;
        if addrs.is_empty() {
            return Err(fail("it has no address".into()));
        }
        Ok(Endpoint::new(addrs, name))
    }

    pub(crate) fn refused(&self, what: impl Into<String>, reason: impl ToString) -> Error {
        Error::Refused { addr: self.name.clone(), what: what.into(), reason: reason.to_string() }
    }

    pub(crate) fn incompatible(&self, reason: impl ToString) -> Error {
        Error::Incompatible { addr: self.name.clone(), reason: reason.to_string() }
    }

    pub(crate) fn unreachable(&self, reason: impl ToString) -> Error {
        Error::Unreachable { addr: self.name.clone(), reason: reason.to_string(), connect: None }
    }

    /// The error for a connect(2) that has failed with `e`.
    pub(crate) fn not_connected(&self, e: &std::io::Error) -> Error {
        Error::Unreachable { addr: self.name.clone(), reason: e.to_string(), connect: Some(e.kind()) }
    }

    /// `future`, or a timeout error that names the step.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        what: &'static str,
        future: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timeout(limit, future).await.unwrap_or_else(|_| {
            let (addr, seconds, hint) = (self.name.clone(), limit.as_secs_f64(), String::new());
            Err(Error::TimedOut { addr, what, seconds, hint })
        })
    }
}

/// A place as people name it.
pub(crate) fn place_name(transport: &str, host: &str, port: u16) -> String {
    match transport {
        TCP if host.contains(':') => format!("[{host}]:{port}"),
        TCP => format!("{host}:{port}"),
        _ => format!("{transport}:{host}"),
    }
}

/// How an I/O or admin connection of these options is set up.
pub(crate) fn host_config(options: &Options, entries: u16, in_capsule: Option<u32>) -> HostConfig {
    let mut config = HostConfig {
        header_digest: options.hdr_digest,
        data_digest: options.data_digest,
        entries,
        maxr2t: options.max_r2t.max(1),
        ..HostConfig::default()
    };
    if let Some(in_capsule) = in_capsule {
        config.in_capsule = in_capsule;
    }
    config
}

/// Sends Connect of an I/O queue, and authenticates it where that is wanted: the round trips of the latter.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    options: &Options,
    queue: &Queue,
    subnqn: &str,
    qid: u16,
    sqsize: u16,
    cntlid: Option<u16>,
) -> Result<u32> {
    let cqe = send_connect(endpoint, options, queue, subnqn, qid, sqsize, cntlid).await?;
    if let Some(reason) = cntlid.and_then(|_| another_controller(&cqe)) {
        return Err(endpoint.unreachable(reason));
    }
    let response = connected(endpoint, options, subnqn, cqe)?;
    authenticate(endpoint, options, queue, subnqn, response).await
}

/// The endpoint of a session. With secure channel concatenation that has a PSK, which an authentication on a connection
/// without TLS has made before; and the round trips that this took.
///
/// # Errors
/// The target refuses this host, does not prove what it is, or does not make a PSK: nothing is sent without TLS then.
pub(crate) async fn concatenate(
    endpoint: Endpoint,
    options: &Options,
    subnqn: &str,
) -> Result<(Endpoint, u32)> {
    if !options.concat || subnqn == DISCOVERY_NQN {
        return Ok((endpoint, 0));
    }
    let endpoint = Endpoint { generated: None, ..endpoint };
    // The connection takes nothing but the exchange, and ends with it: it needs no keep-alive.
    let plain = Options { kato: Duration::ZERO, ..options.clone() };
    const STEPS: u32 = 3;
    let mut steps = STEPS;
    let connect = async |in_capsule| {
        let config = host_config(&plain, ADMIN_ENTRIES, Some(in_capsule));
        let prepared = Prepared::open_plain(&endpoint, &plain, config).await?;
        let queue = prepared.serve(&Signs::default(), &Rc::default())?;
        queue.set_fabrics_in_capsule(in_capsule);
        let cqe = send_connect(&endpoint, &plain, &queue, subnqn, 0, ADMIN_ENTRIES - 1, None).await?;
        Ok::<_, Error>((queue, cqe))
    };
    let (mut queue, mut cqe) = connect(IN_CAPSULE_ADMIN).await?;
    // As in `Admin::open`.
    if same_code(cqe.status(), Status::SGL_OFFSET) {
        (queue, cqe) = connect(0).await?;
        steps += STEPS + 1;
    }
    let made = async {
        let response = connected(&endpoint, &plain, subnqn, cqe)?;
        make_psk(&endpoint, options, &queue, subnqn, response).await
    };
    let made = made.await;
    //= NVMe Base 2.1, Secure Channel Concatenation: the host ends the connection on which it has authenticated
    queue.close();
    let (psk, round_trips) = made?;
    Ok((Endpoint { generated: Some(Arc::new(psk)), ..endpoint }, round_trips + steps))
}

/// What a status of Connect for an I/O queue says that is no refusal of this
/// host: the controller is not the one that was set up, or not as it was. Another
/// attempt, or the next controller, gives the queue.
fn another_controller(cqe: &Cqe) -> Option<&'static str> {
    let is = |s| same_code(cqe.status(), s);
    // The target was restarted, or has ended it.
    if names_no_controller_of_ours(cqe) {
        return Some("the controller does not exist any more");
    }
    //= NVMe Base 2.1, Connect command: I/O queues are made only while the controller is ready
    if is(Status::SEQUENCE_ERROR) {
        // It was enabled: the target was restarted, and has given its
        // identifier away again.
        return Some("the controller is not enabled any more");
    }
    // It is being ended, or the target has no room for another queue at this moment.
    if is(Status::CONTROLLER_BUSY) && !cqe.status().is_dnr() {
        return Some("the controller is busy");
    }
    //= NVMe Base 2.1, Connect command: a queue identifier is used once at a time
    // This host uses each once at a time: the target does not know yet that
    // the connection before is lost, or the identifier of the controller is
    // that of its successor.
    is(Status::INVALID_QID).then_some("the target still has an earlier connection for the queue")
}

/// Sends Connect: its completion, good or bad.
async fn send_connect(
    endpoint: &Endpoint,
    options: &Options,
    queue: &Queue,
    subnqn: &str,
    qid: u16,
    sqsize: u16,
    cntlid: Option<u16>,
) -> Result<Cqe> {
    let kato = if qid == 0 { u32::try_from(options.kato.as_millis()).unwrap_or(u32::MAX) } else { 0 };
    let sqe = Sqe::connect(qid, sqsize, cattr::NO_FLOW_CONTROL, kato);
    let data = ConnectData::new(options.hostid, cntlid.unwrap_or(CNTLID_DYNAMIC), subnqn, &options.hostnqn);
    let data = Data::Write(Memory::Shared(longhaul_engine::Buf::copy_of(data.as_bytes())));
    let limit = options.connect_timeout.min(endpoint.patience);
    let answer = endpoint.within(limit, "Connect", async {
        queue.submit(sqe, data).await.map_err(|e| endpoint.unreachable(reason(&e)))
    });
    answer.await.map(|done| done.cqe)
}

/// What a completed Connect gives.
fn connected(endpoint: &Endpoint, options: &Options, subnqn: &str, cqe: Cqe) -> Result<ConnectResponse> {
    if !cqe.status().is_success() {
        return Err(connect_error(endpoint, options, subnqn, cqe));
    }
    Ok(ConnectResponse::from_dw0(cqe.dw0()))
}

/// Whether the controller still exists. Connect names a queue that no controller has, so it is
/// always refused: for the controller identifier if the controller has ended, for the queue
/// identifier if it exists.
pub(crate) async fn still_exists(endpoint: &Endpoint, options: &Options, info: &ControllerInfo) -> bool {
    let config = host_config(options, ADMIN_ENTRIES, None);
    let Ok(prepared) = Prepared::open(endpoint, options, &info.subnqn, config).await else { return true };
    let Ok(queue) = prepared.serve(&Signs::default(), &Rc::default()) else { return true };
    let (nqn, sqsize, cntlid) = (&info.subnqn, ADMIN_ENTRIES - 1, Some(info.cntlid));
    let answer = send_connect(endpoint, options, &queue, nqn, NO_QUEUE, sqsize, cntlid).await;
    queue.close();
    !answer.is_ok_and(|cqe| names_no_controller_of_ours(&cqe))
}

/// Whether a Connect to a controller was refused since that identifier is no
/// controller's, or is one's that belongs to another host: a target that was
/// restarted gives the same identifiers again.
//= NVMe Base 2.1, Connect command: a controller that does not exist is an invalid CNTLID
fn names_no_controller_of_ours(cqe: &Cqe) -> bool {
    let at = InvalidParameter::from_dw0(cqe.dw0());
    let is_identity = at.in_data && [HOSTID_AT, CNTLID_AT, HOSTNQN_AT].contains(&at.offset);
    is_identity && same_code(cqe.status(), Status::CONNECT_INVALID_PARAMETERS)
}

/// Fields of the data of a Connect command, in bytes.
const HOSTID_AT: u16 = 0;
const CNTLID_AT: u16 = 16;
const SUBNQN_AT: u16 = 256;
const HOSTNQN_AT: u16 = 512;

/// Whether two statuses differ in nothing but hints such as Do Not Retry.
fn same_code(a: Status, b: Status) -> bool {
    (a.sct(), a.sc()) == (b.sct(), b.sc())
}

/// What a refused Connect means to a person.
fn connect_error(endpoint: &Endpoint, options: &Options, subnqn: &str, cqe: Cqe) -> Error {
    let status = cqe.status();
    let is = |s| same_code(status, s);
    if is(Status::CONNECT_INVALID_PARAMETERS) {
        let at = InvalidParameter::from_dw0(cqe.dw0());
        return match (at.in_data, at.offset) {
            (true, SUBNQN_AT) => Error::NotFound(format!(
                "{} has no subsystem '{subnqn}': see 'longhaul discover {}'",
                endpoint.name, endpoint.name
            )),
            (true, HOSTNQN_AT) => endpoint.refused("Connect", format!("host NQN '{}'", options.hostnqn)),
            (in_data, at) => {
                let part = if in_data { "data" } else { "command" };
                endpoint.refused("Connect", format!("invalid parameter at byte {at} of the {part}"))
            }
        };
    }
    if is(Status::CONNECT_INVALID_HOST) {
        return endpoint.refused("Connect", format!("host '{}' is not allowed", options.hostnqn));
    }
    endpoint.refused("Connect", status)
}

/// An admin queue with the commands of set-up.
pub(crate) struct Admin {
    pub(crate) queue: Queue,
    pub(crate) endpoint: Endpoint,
    pub(crate) timeout: Duration,
    /// Data that admin and Fabrics commands may have in their capsules, in
    /// bytes, on every queue of the controller.
    pub(crate) in_capsule: u32,
    /// Round trips so far, one after another.
    pub(crate) round_trips: Cell<u32>,
    /// The controller is known to be ready.
    ready: Cell<bool>,
    /// It has refused something because it was not ready.
    too_early: Cell<bool>,
}

impl Admin {
    /// Connects to a subsystem: its admin queue, and the controller's
    /// identifier. The controller is not enabled yet.
    pub(crate) async fn open(
        endpoint: Endpoint,
        options: &Options,
        subnqn: &str,
        signs: &Signs,
    ) -> Result<(Admin, u16)> {
        let steps = Prepared::round_trips(&endpoint, options) + 1;
        let (mut in_capsule, mut round_trips) = (IN_CAPSULE_ADMIN, steps);
        let (mut queue, mut cqe) = Admin::connect(&endpoint, options, subnqn, signs, in_capsule).await?;
        // Every controller takes 8 KiB in the capsule of a Fabrics command,
        // but for the Linux target that is set to an inline size of 0: it
        // refuses Connect and loses its place in the stream. It gets its data
        // when it asks.
        if same_code(cqe.status(), Status::SGL_OFFSET) {
            (in_capsule, round_trips) = (0, round_trips + steps + 1);
            (queue, cqe) = Admin::connect(&endpoint, options, subnqn, signs, in_capsule).await?;
        }
        let response = connected(&endpoint, options, subnqn, cqe)?;
        round_trips += authenticate(&endpoint, options, &queue, subnqn, response).await?;
        let admin = Admin {
            queue,
            timeout: options.connect_timeout.min(endpoint.patience),
            endpoint,
            in_capsule,
            round_trips: Cell::new(round_trips),
            ready: Cell::new(false),
            too_early: Cell::new(false),
        };
        Ok((admin, response.cntlid))
    }

    /// Enables the controller, and asks `questions` in the same go: its
    /// capabilities, and the answers.
    pub(crate) async fn enable_and<T>(&self, questions: impl AsyncFn() -> Result<T>) -> Result<(Cap, T)> {
        if !self.endpoint.careful {
            //= NVMe Base 2.1, CC.EN: what comes before the controller is ready is refused, not lost
            let (cap, answers) = futures_util::join!(self.enable(), questions());
            let cap = match (cap, &answers) {
                (Ok(cap), _) => cap,
                // They came, or not, in the same segments: the larger answers
                // know better what that means.
                (Err(Error::TimedOut { .. }), Err(e @ Error::TimedOut { .. })) => return Err(e.clone()),
                (Err(e), _) => return Err(e),
            };
            // Also if there is an answer: it may lack the refused part.
            if !self.too_early.replace(false) {
                return Ok((cap, answers?));
            }
            self.round_trip();
            return Ok((cap, questions().await?));
        }
        let cap = self.enable().await?;
        self.round_trip();
        Ok((cap, questions().await?))
    }

    /// Counts one more round trip of the set-up.
    pub(crate) fn round_trip(&self) {
        self.round_trips.set(self.round_trips.get() + 1);
    }

    /// A fresh admin queue, and how its Connect was completed.
    async fn connect(
        endpoint: &Endpoint,
        options: &Options,
        subnqn: &str,
        signs: &Signs,
        in_capsule: u32,
    ) -> Result<(Queue, Cqe)> {
        let config = host_config(options, ADMIN_ENTRIES, Some(in_capsule));
        let queue = Prepared::open(endpoint, options, subnqn, config).await?.serve(signs, &Rc::default())?;
        queue.set_fabrics_in_capsule(in_capsule);
        let cqe = send_connect(endpoint, options, &queue, subnqn, 0, ADMIN_ENTRIES - 1, None).await?;
        Ok((queue, cqe))
    }

    /// One command without data, or that gives `len` bytes.
    pub(crate) async fn command(&self, what: &'static str, sqe: Sqe, len: usize) -> Result<Done> {
        let data = if len == 0 { Data::None } else { Data::Read(Memory::Buf(BufMut::zeroed(len))) };
        let early = !self.ready.get();
        let done = self.submit(what, sqe, data, self.timeout).await.map_err(|e| self.explain(e, len))?;
        let status = done.cqe.status();
        if !status.is_success() {
            //= NVMe Base 2.1, Command Sequence Error: it was not its turn, as before the controller is ready
            let early = early && same_code(status, Status::SEQUENCE_ERROR);
            self.too_early.set(self.too_early.get() | early);
            return Err(self.endpoint.refused(what, status));
        }
        if (done.received as usize) < len {
            return Err(self.endpoint.incompatible(format!("{what} gave {} of {len} bytes", done.received)));
        }
        Ok(done)
    }

    /// One command with any data, whatever its status, within `limit`.
    pub(crate) async fn submit(
        &self,
        what: &'static str,
        sqe: Sqe,
        data: Data,
        limit: Duration,
    ) -> Result<Done> {
        let pending = self.queue.submit(sqe, data);
        let answer = async { pending.await.map_err(|e: IoError| self.endpoint.unreachable(reason(&e))) };
        self.endpoint.within(limit, what, answer).await
    }

    /// Why an answer of `len` bytes does not come from a controller that has
    /// answered before, if that is known.
    fn explain(&self, mut e: Error, len: usize) -> Error {
        // Whatever hurries may have been too early.
        let waited = self.timeout >= SILENCE && len >= IDENTIFY_LEN;
        let asked = self.queue.life().is_some_and(|life| life.unacked == 0);
        if let Error::TimedOut { hint, .. } = &mut e
            && waited
            && asked
        {
            *hint = format!(": {}", black_hole::back(len, self.timeout));
        }
        e
    }

    async fn property(&self, what: &'static str, offset: u32, wide: bool) -> Result<u64> {
        self.command(what, Sqe::property_get(offset, wide), 0).await.map(|done| done.cqe.result())
    }

    /// Capabilities, enable and status: all asked in one round trip, since
    /// every controller takes this configuration (4 KiB pages are always
    /// within MPSMIN for a fabrics controller, as is the NVM command set).
    async fn enable(&self) -> Result<Cap> {
        let cc = Cc(0).with_en(1).with_iosqes(6).with_iocqes(4);
        self.round_trip();
        let (cap, set, csts) = futures_util::join!(
            self.property("Property Get (CAP)", offset::CAP, true),
            self.command("Property Set (CC)", Sqe::property_set(offset::CC, false, cc.0.into()), 0),
            self.property("Property Get (CSTS)", offset::CSTS, false),
        );
        let cap = Cap(cap?);
        set?;
        let limit = Duration::from_millis(500) * (cap.timeout() as u32).max(1);
        let end = now() + limit.max(self.timeout);
        let mut csts = Csts(csts? as u32);
        let mut wait = READY_POLL;
        while csts.rdy() == 0 {
            if csts.cfs() != 0 {
                return Err(self.endpoint.incompatible("the controller reports a fatal status"));
            }
            if now() > end {
                return Err(self.endpoint.incompatible("the controller does not become ready"));
            }
            sleep(wait).await;
            wait = (wait * 2).min(READY_POLL_MAX);
            self.round_trip();
            csts = Csts(self.property("Property Get (CSTS)", offset::CSTS, false).await? as u32);
        }
        self.ready.set(true);
        Ok(cap)
    }

    /// Says goodbye: the controller begins to shut down.
    pub(crate) async fn shut_down(&self) {
        let cc = Cc(0).with_en(1).with_iosqes(6).with_iocqes(4).with_shn(1);
        let bye = self.command("shutdown", Sqe::property_set(offset::CC, false, cc.0.into()), 0);
        if let Err(e) = bye.await {
            tracing::debug!("shutdown: {e}");
        }
    }

    /// Waits until the controller has shut down.
    pub(crate) async fn wait_until_down(&self) {
        let mut wait = READY_POLL;
        while let Ok(csts) = self.property("Property Get (CSTS)", offset::CSTS, false).await {
            //= NVMe Base 2.1, Controller Status property: SHST is 10b once shutdown processing is complete
            if Csts(csts as u32).shst() == 2 {
                return;
            }
            sleep(wait).await;
            wait = (wait * 2).min(READY_POLL_MAX);
        }
    }

    /// One Identify data structure.
    pub(crate) async fn identify(&self, what: &'static str, cns: u8, nsid: u32) -> Result<Vec<u8>> {
        let done = self.command(what, Sqe::identify(cns, nsid, 0), IDENTIFY_LEN).await?;
        Ok(bytes_of(&done))
    }

    /// Sends Identify Controller (CNS 01h) and parses the answer.
    pub(crate) async fn identify_controller(&self) -> Result<IdentifyController> {
        let bytes = self.identify("Identify Controller", cns::CONTROLLER, 0).await?;
        IdentifyController::decode(&bytes)
            .ok_or_else(|| self.endpoint.incompatible("Identify Controller is cut"))
    }

    /// `len` bytes of a log page.
    pub(crate) async fn log_page(
        &self,
        what: &'static str,
        lid: u8,
        nsid: u32,
        at: u64,
        len: usize,
    ) -> Result<Vec<u8>> {
        let sqe = Sqe::get_log_page(lid, nsid, at, len as u32, false);
        Ok(bytes_of(&self.command(what, sqe, len).await?))
    }
}

impl Drop for Admin {
    /// Event requests are under way as long as the connection is: it would
    /// not end by itself.
    fn drop(&mut self) {
        self.queue.close();
    }
}

pub(crate) fn bytes_of(done: &Done) -> Vec<u8> {
    done.memory.as_ref().and_then(Memory::bytes).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    //= test: NVMe Base 2.1, Connect command
    #[test]
    fn a_controller_that_is_gone_when_a_queue_is_opened_is_lost_and_not_a_refusal() {
        let endpoint = Endpoint::new(Vec::new(), "dtn1:4420".into());
        let refused = |at: InvalidParameter| {
            Cqe::new(0, Status::CONNECT_INVALID_PARAMETERS.dnr()).with_result(at.to_dw0().into())
        };
        // A restarted target may have given the identifier to another host.
        for offset in [CNTLID_AT, HOSTNQN_AT, HOSTID_AT] {
            assert!(another_controller(&refused(InvalidParameter::data(offset))).is_some(), "{offset}");
        }
        for at in [InvalidParameter::data(SUBNQN_AT), InvalidParameter::command(16)] {
            assert_eq!(another_controller(&refused(at)), None, "{at:?}");
        }
        // Where a new controller is asked for, it is this host that is refused.
        let subnqn = "nqn.2014-08.org.nvmexpress:test";
        let error = |at| connect_error(&endpoint, &Options::default(), subnqn, refused(at));
        assert!(matches!(error(InvalidParameter::data(HOSTNQN_AT)), Error::Refused { .. }));
        assert!(matches!(error(InvalidParameter::command(16)), Error::Refused { .. }));
    }

    //= test: NVMe Base 2.1, Connect command
    #[test]
    fn a_queue_of_a_successor_or_of_a_connection_that_is_not_given_up_is_no_refusal() {
        for status in [Status::SEQUENCE_ERROR, Status::INVALID_QID] {
            assert!(another_controller(&Cqe::new(0, status)).is_some());
            assert!(another_controller(&Cqe::new(0, status.dnr())).is_some());
        }
        assert!(another_controller(&Cqe::new(0, Status::CONTROLLER_BUSY)).is_some());
        let busy = Status::CONTROLLER_BUSY;
        for status in
            [busy, Status::CONNECT_INVALID_HOST, Status::CONNECT_INVALID_PARAMETERS, Status::SUCCESS]
        {
            assert_eq!(another_controller(&Cqe::new(0, status.dnr())), None, "{status}");
        }
    }
}
