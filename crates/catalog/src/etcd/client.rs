//! Requests to the members of etcd.
//!
//! A request is encoded, waited for and decoded in the thread that makes it; one thread of an asynchronous runtime
//! moves the bytes of all connections, and follows watches.

use super::link::{Call, Member, is_unsent};
use super::proto::{WATCH, WatchRequest, WatchResponse};
use crate::error::{Error, Result};
use hyper::Uri;
use hyper::http::uri::PathAndQuery;
use prost::Message;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// Longest time of a request: above etcd's own limit of about 7 s for a proposal.
const REQUEST: Duration = Duration::from_secs(10);
/// Time for which what can be repeated is repeated: above an election, which takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause after all members were tried.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest silence of a stream before it is opened again, at another member: a member that is cut
/// off from the others is silent, too.
const SILENCE: Duration = Duration::from_secs(10);
/// Most bytes of an error that are shown.
const MAX_WHY: usize = 300;

/// Replies of etcd that say that a proposal was not made.
const NOT_PROPOSED: [&str; 3] = ["no leader", "proposal dropped", "too many requests"];
/// Codes that are not about the request.
const TROUBLE: [Code; 7] = [
    Code::Cancelled,
    Code::Unknown,
    Code::DeadlineExceeded,
    Code::ResourceExhausted,
    Code::Aborted,
    Code::Internal,
    Code::Unavailable,
];
/// What texts of etcd begin with; others are of the library, which cannot read a reply.
const BY_ETCD: &str = "etcdserver:";

/// Why there is no reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The request has certainly had no effect.
    Unsent(String),
    /// It may have had one.
    Lost(String),
    /// etcd refuses it.
    Status { why: String },
}

/// The members of an etcd.
pub(super) struct Members {
    name: String,
    members: Vec<Member>,
    /// The member that answered last.
    at: AtomicUsize,
}

/// A client of an etcd, which callers wait for.
pub(super) struct Client {
    members: Arc<Members>,
    /// There until this is dropped.
    runtime: Option<Runtime>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // Without waiting for the name of a host that is looked up.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    pub(super) fn new<S: AsRef<str>>(endpoints: &[S]) -> Result<Client> {
        let members = Members::new(endpoints)?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("etcd").enable_io().enable_time().build();
        let runtime = runtime.map_err(|e| Error::Failed {
            catalog: members.name.clone(),
            attempted: "open",
            why: format!("no thread for its connections: {e}"),
        })?;
        Ok(Client { members: Arc::new(members), runtime: Some(runtime) })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the client is dropped")
    }

    pub(super) fn name(&self) -> &str {
        &self.members.name
    }

    pub(super) fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members)
    }

    /// Waits for something, in this thread.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime().block_on(future)
    }

    /// Begins something that goes on by itself, until it is aborted or the client is dropped.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.runtime().spawn(future).abort_handle()
    }

    /// A request that must not be made twice: again only if it certainly was not made.
    pub(super) fn once<Q, R>(&self, path: &'static str, request: &Q) -> std::result::Result<R, Fault>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.attempt(path, request, |fault| matches!(fault, Fault::Unsent(_)))
    }

    /// A request that may be made several times.
    pub(super) fn repeat<Q, R>(&self, path: &'static str, request: &Q) -> std::result::Result<R, Fault>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.attempt(path, request, |fault| !matches!(fault, Fault::Status { .. })).map_err(|fault| {
            match fault {
                // Nothing is unknown that could be asked again.
                Fault::Lost(why) => Fault::Unsent(why),
                fault => fault,
            }
        })
    }

    fn attempt<Q, R>(
        &self,
        path: &'static str,
        request: &Q,
        again: impl Fn(&Fault) -> bool,
    ) -> std::result::Result<R, Fault>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let members = &self.members;
        let start = Instant::now();
        loop {
            let mut last = None;
            for _ in &members.members {
                let at = members.at.load(Ordering::Relaxed);
                match self.wait(members.members[at].ask(path, request.clone())) {
                    Ok(reply) => return Ok(reply),
                    Err(fault) if again(&fault) => last = Some(fault),
                    Err(fault) => {
                        members.turn(at);
                        return Err(fault);
                    }
                }
                members.turn(at);
            }
            if let Some(fault) = last
                && start.elapsed() > PATIENCE
            {
                return Err(fault);
            }
            std::thread::sleep(PAUSE);
        }
    }

    pub(super) fn error(&self, fault: Fault) -> Error {
        let catalog = self.name().to_owned();
        match fault {
            Fault::Unsent(why) => Error::Unreachable { catalog, why },
            Fault::Lost(why) => Error::Unknown { catalog, why },
            Fault::Status { why } => Error::Failed { catalog, attempted: "use", why },
        }
    }

    /// A reply that cannot be read.
    pub(super) fn garbled(&self, what: &str) -> Error {
        self.members.garbled(what)
    }
}

impl Members {
    fn new<S: AsRef<str>>(endpoints: &[S]) -> Result<Members> {
        let members = endpoints.iter().map(|e| member(e.as_ref())).collect::<Result<Vec<_>>>()?;
        if members.is_empty() {
            return Err(Error::Invalid("no address of etcd".to_owned()));
        }
        let addresses: Vec<&str> = members.iter().map(|member| &*member.address).collect();
        let name = format!("etcd at {}", addresses.join(", "));
        Ok(Members { name, members, at: AtomicUsize::new(0) })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn garbled(&self, what: &str) -> Error {
        let why = format!("the reply has {what} that cannot be read; is this etcd 3.4 or later?");
        Error::Failed { catalog: self.name.clone(), attempted: "read", why }
    }

    /// Turns to the member after `at`, unless another thread has.
    fn turn(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        let _ = self.at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Opens a watch at the `attempt`th member, counted round and round.
    pub(super) async fn watch(
        &self,
        attempt: usize,
        request: WatchRequest,
    ) -> std::result::Result<WatchStream, Fault> {
        let member = &self.members[attempt % self.members.len()];
        let call = member.call().await?;
        // A watch lasts as long as its requests do.
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        let mut request = Request::new(requests);
        // A member that knows no leader ends the stream.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut grpc = call.grpc();
        let opened = grpc.streaming(request, PathAndQuery::from_static(WATCH), ProstCodec::default());
        match timeout(SILENCE, opened).await {
            Ok(Ok(reply)) => Ok(WatchStream { replies: reply.into_inner(), _call: call }),
            Ok(Err(status)) => Err(fault(&member.address, &status)),
            Err(_) => {
                call.doubt();
                Err(Fault::Lost(silent(&member.address, SILENCE)))
            }
        }
    }
}

/// The replies to a watch.
pub(super) struct WatchStream {
    replies: Streaming<WatchResponse>,
    _call: Call,
}

impl WatchStream {
    /// The next reply; `None` at the end, after an error, or after the silence after which another member is asked.
    pub(super) async fn next(&mut self) -> Option<WatchResponse> {
        timeout(SILENCE, self.replies.message()).await.ok()?.ok()?
    }
}

impl Member {
    /// Sends a request, and waits for its reply.
    pub(super) async fn ask<Q, R>(&self, path: &'static str, request: Q) -> std::result::Result<R, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.call().await?.ask(path, request).await
    }
}

impl Call {
    /// Sends a request, and waits for its reply.
    pub(super) async fn ask<Q, R>(&self, path: &'static str, request: Q) -> std::result::Result<R, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let reply = grpc.unary(Request::new(request), PathAndQuery::from_static(path), ProstCodec::default());
        match timeout(REQUEST, reply).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(fault(self.address(), &status)),
            Err(_) => {
                self.doubt();
                Err(Fault::Lost(silent(self.address(), REQUEST)))
            }
        }
    }
}

fn silent(address: &str, time: Duration) -> String {
    format!("{address}: no answer within {} s", time.as_secs())
}

/// What the status of a call says of its effect.
fn fault(address: &str, status: &Status) -> Fault {
    let text = if status.message().is_empty() { status.code().description() } else { status.message() };
    let why: String = text.chars().take(MAX_WHY).collect();
    let told = format!("{address}: {why}");
    if is_unsent(status) {
        return Fault::Unsent(told);
    }
    let by_etcd = text.starts_with(BY_ETCD);
    if by_etcd && NOT_PROPOSED.iter().any(|text| why.contains(text)) {
        Fault::Unsent(told)
    } else if by_etcd && !TROUBLE.contains(&status.code()) {
        Fault::Status { why }
    } else if status.code() == Code::Unimplemented && text.starts_with("unknown ") {
        Fault::Status { why: format!("{told}; is this etcd 3.4 or later?") }
    } else {
        Fault::Lost(told)
    }
}

/// The member at an endpoint.
fn member(endpoint: &str) -> Result<Member> {
    let address = endpoint.strip_prefix("http://").unwrap_or(endpoint).trim_end_matches('/');
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok() && !address.contains(['/', '@', '?', ' '])
    });
    match format!("http://{address}").parse::<Uri>() {
        Ok(origin) if has_port => Ok(Member::new(address.to_owned(), origin)),
        _ => {
            Err(Error::Invalid(format!("'{endpoint}' is not an address of etcd: use HOST:PORT, without TLS")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_addresses() {
        for (given, address, origin) in [
            ("a:1", "a:1", "http://a:1/"),
            ("http://10.0.0.1:2379/", "10.0.0.1:2379", "http://10.0.0.1:2379/"),
            ("[::1]:2379", "[::1]:2379", "http://[::1]:2379/"),
        ] {
            let found = member(given).expect("an address");
            assert_eq!((&*found.address, found.origin.to_string()), (address, origin.to_owned()));
        }
        for given in ["", "a", ":1", "https://a:1", "a:1/x", "a:99999", "u@a:1", "a b:1", "ä:1"] {
            let refused = member(given).err().expect("refused");
            assert!(refused.to_string().ends_with("use HOST:PORT, without TLS"), "{refused}");
        }
        assert!(Client::new::<&str>(&[]).is_err());
    }

    #[test]
    fn a_status_says_what_became_of_a_request() {
        let told = |code, text: &str| fault("a:1", &Status::new(code, text));
        // As etcd's `api/v3rpc/rpctypes/error.go` has them.
        for (code, text) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::Unknown, "etcdserver: raft proposal dropped"),
        ] {
            assert_eq!(told(code, text), Fault::Unsent(format!("a:1: {text}")));
        }
        for (code, text) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Cancelled, "etcdserver: request cancelled"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::Internal, "failed to decode Protobuf message"),
            // Of the library: the transaction may have been made.
            (Code::OutOfRange, "Error, decoded message length too large"),
            (Code::Unimplemented, "Content is compressed with `x` which isn't supported"),
            // Not of etcd, but of something on the way to it.
            (Code::Unavailable, "no leader"),
        ] {
            assert_eq!(told(code, text), Fault::Lost(format!("a:1: {text}")));
        }
        for (code, text) in [
            (Code::NotFound, "etcdserver: requested lease not found"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
            (Code::InvalidArgument, "etcdserver: request is too large"),
        ] {
            assert_eq!(told(code, text), Fault::Status { why: text.to_owned() });
        }
        let Fault::Status { why } = told(Code::Unimplemented, "unknown service etcdserverpb.KV") else {
            panic!("a member that has no such service")
        };
        assert_eq!(why, "a:1: unknown service etcdserverpb.KV; is this etcd 3.4 or later?");
        let Fault::Lost(why) = told(Code::Unknown, &"x".repeat(1000)) else { panic!("lost") };
        assert_eq!(why.len(), "a:1: ".len() + MAX_WHY);
        assert!(matches!(told(Code::Internal, ""), Fault::Lost(why) if why.len() > "a:1: ".len()));
    }
}
