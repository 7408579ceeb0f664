//! A catalog that another host serves (`longhaul fs serve`), by one connection for all threads.
//!
//! Invariants:
//! - a transaction that is sent again, as its answer was lost, carries the same token: the server makes it once;
//! - what is read stays of one revision also where it was continued on a new connection;
//! - a client that has seen one catalog takes no other one for it, whatever address answers.

mod link;
mod watch;

use crate::error::{Error, Result};
use crate::secure::Connector;
use crate::types::{Commit, Entry, LeaseId, MAX_TRANSACTION, Revision, Snapshot, Txn};
use crate::wire::{Change, KeyRange, Piece, Question, Reply, Request, Token};
use crate::{Catalog, Watch};
use link::{Link, LinkFault};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use watch::RemoteWatch;

/// Time for which a call goes on trying while the server does not answer: above its restart.
const PATIENCE: Duration = Duration::from_secs(20);
/// First and longest pause between two tries to connect.
const PAUSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];
/// Keys, and bytes of them, in one question.
const KEYS: usize = 8192;
const KEY_BYTES: usize = MAX_TRANSACTION / 2;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a client reaches servers.
#[derive(Clone, Default)]
pub struct Access {
    /// What this host calls itself.
    pub host: String,
    /// Encrypts connections, which without it are as they are.
    pub connector: Option<Arc<dyn Connector>>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let encrypts = self.connector.is_some();
        f.debug_struct("Access").field("host", &self.host).field("encrypts", &encrypts).finish()
    }
}

/// A catalog that a server has.
pub struct RemoteCatalog {
    client: Arc<RemoteClient>,
}

/// What a catalog and its watches share.
struct RemoteClient {
    name: String,
    addresses: Vec<String>,
    access: Access,
    connection: Mutex<Connected>,
    /// The number of this client in tokens.
    number: u64,
    next: AtomicU64,
    /// Transactions that have no answer yet.
    unanswered: Mutex<BTreeSet<u64>>,
}

#[derive(Default)]
struct Connected {
    link: Option<Arc<Link>>,
    /// The address that answered last.
    at: usize,
    /// The catalog that was seen.
    identity: Option<u64>,
}

/// A number that no other client has drawn.
fn draw() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u128(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_nanos()),
    );
    hasher.write_u32(std::process::id());
    hasher.finish()
}

impl RemoteCatalog {
    /// The catalog of the server at `addresses`, each `HOST:PORT`: several addresses of one server, or of hosts one
    /// of which serves the catalog at a time. Nothing is sent yet.
    ///
    /// # Errors
    /// There is no address.
    pub fn new<S: AsRef<str>>(addresses: &[S], access: Access) -> Result<RemoteCatalog> {
        let addresses: Vec<String> = addresses.iter().map(|address| address.as_ref().to_owned()).collect();
        if addresses.is_empty() {
            return Err(Error::Invalid("no address of a catalog server".to_owned()));
        }
        let client = RemoteClient {
            name: format!("server at {}", addresses.join(", ")),
            addresses,
            access,
            connection: Mutex::default(),
            number: draw(),
            next: AtomicU64::new(1),
            unanswered: Mutex::default(),
        };
        Ok(RemoteCatalog { client: Arc::new(client) })
    }
}

impl Drop for RemoteClient {
    fn drop(&mut self) {
        if let Some(link) = lock(&self.connection).link.take() {
            link.end("the catalog is closed");
        }
    }
}

impl RemoteClient {
    /// The connection that there is, or else a new one: each address is tried once.
    fn link(&self) -> std::result::Result<Arc<Link>, LinkFault> {
        // Others wait for the one that connects.
        let mut connection = lock(&self.connection);
        if let Some(link) = connection.link.as_ref().filter(|link| link.is_open()) {
            return Ok(Arc::clone(link));
        }
        connection.link = None;
        let mut last = LinkFault::Unsent("no address".to_owned());
        for _ in &self.addresses {
            let at = connection.at;
            let address = &self.addresses[at % self.addresses.len()];
            match Link::connect(address, &self.access) {
                Ok(link) => {
                    let seen = *connection.identity.get_or_insert(link.identity());
                    if seen == link.identity() {
                        connection.link = Some(Arc::clone(&link));
                        return Ok(link);
                    }
                    link.end("it is another catalog");
                    last = LinkFault::Refused(format!(
                        "{address}: the server has another catalog than the one that this client has used: \
                         look which one is to be used, and start again"
                    ));
                }
                Err(fault) => last = fault,
            }
            connection.at = at + 1;
        }
        Err(last)
    }

    fn error(&self, fault: LinkFault, was_sent: bool) -> Error {
        let catalog = self.name.clone();
        match fault {
            LinkFault::Refused(why) => Error::Refused { catalog, why },
            LinkFault::Unsent(why) | LinkFault::Lost(why) if was_sent => Error::Unknown { catalog, why },
            LinkFault::Unsent(why) | LinkFault::Lost(why) => Error::Unreachable { catalog, why },
        }
    }

    /// An error of the server, as one of this catalog.
    fn named(&self, error: Error) -> Error {
        let catalog = self.name.clone();
        match error {
            Error::Busy { seconds, .. } => Error::Busy { catalog, seconds },
            Error::Failed { attempted, why, .. } => Error::Failed { catalog, attempted, why },
            Error::Unknown { why, .. } => Error::Unknown { catalog, why },
            error => error,
        }
    }

    fn garbled(&self) -> Error {
        let why = "the server has answered something else than it was asked".to_owned();
        Error::Failed { catalog: self.name.clone(), attempted: "use", why }
    }

    /// Tries `attempt` on a connection until it is answered, or the server has not answered for long.
    fn patiently<T>(
        &self,
        mut attempt: impl FnMut(&Arc<Link>) -> std::result::Result<T, LinkFault>,
    ) -> std::result::Result<T, (LinkFault, bool)> {
        let (start, mut pause, mut was_sent) = (Instant::now(), PAUSE[0], false);
        loop {
            let fault = match self.link().and_then(|link| attempt(&link)) {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            was_sent |= matches!(fault, LinkFault::Lost(_));
            if matches!(fault, LinkFault::Refused(_)) || start.elapsed() > PATIENCE {
                return Err((fault, was_sent));
            }
            tracing::debug!("{}: {fault:?}", self.name);
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE[1]);
        }
    }

    /// Sends a request that may be made several times; its answer.
    fn ask(&self, request: &Request) -> Result<Reply> {
        let asked = self.patiently(|link| link.call(request)?.next());
        match asked.map_err(|(fault, _)| self.error(fault, false))? {
            Reply::Failed(e) => Err(self.named(e)),
            reply => Ok(reply),
        }
    }

    /// Reads the answer piece by piece. The first argument of `take` says that the answer begins: a second time if the
    /// connection was lost meanwhile.
    fn read(&self, question: &Question, take: &mut dyn FnMut(Piece, bool)) -> Result<()> {
        let mut asked = question.clone();
        let mut goes_on = false;
        let done = self.patiently(|link| {
            let answer = link.call(&Request::Read(asked.clone()))?;
            let mut begins = !goes_on;
            loop {
                match answer.next()? {
                    Reply::Entries(piece) => {
                        let more = piece.more;
                        // Another connection goes on behind it; keys alone are read again, as of one revision.
                        if let (Some(part), Some(last)) =
                            (&mut asked.part, piece.entries[piece.keys..].last())
                        {
                            let count = (piece.entries.len() - piece.keys) as u64;
                            part.after = Some(last.key.clone());
                            part.at = Some(piece.revision);
                            part.most = part.most.map(|most| most.saturating_sub(count));
                            asked.keys.clear();
                            goes_on = true;
                        }
                        take(piece, std::mem::take(&mut begins));
                        if !more {
                            return Ok(Ok(()));
                        }
                    }
                    Reply::Failed(e) => return Ok(Err(e)),
                    _ => return Ok(Err(self.garbled())),
                }
            }
        });
        done.map_err(|(fault, _)| self.error(fault, false))?.map_err(|e| self.named(e))
    }

    /// All of an answer: entries of keys, of the part, and their revision.
    fn read_all(&self, question: &Question) -> Result<(Vec<Entry>, Snapshot)> {
        let mut found = Vec::new();
        let mut part = Snapshot { revision: 0, entries: Vec::new() };
        self.read(question, &mut |mut piece, begins| {
            if begins {
                found.clear();
            }
            part.revision = piece.revision;
            let of_part = piece.entries.split_off(piece.keys);
            found.append(&mut piece.entries);
            part.entries.extend(of_part);
        })?;
        Ok((found, part))
    }
}

impl Catalog for RemoteCatalog {
    fn name(&self) -> String {
        self.client.name.clone()
    }

    fn commit(&self, txn: &Txn) -> Result<Commit> {
        txn.check()?;
        let client = &self.client;
        let number = client.next.fetch_add(1, Ordering::Relaxed);
        lock(&client.unanswered).insert(number);
        let answered = lock(&client.unanswered).first().copied().unwrap_or(number);
        let token = Token { client: client.number, number, answered };
        let request = Request::Change(Change::Commit(txn.clone(), Some(token)));
        let asked = client.patiently(|link| link.call(&request)?.next());
        lock(&client.unanswered).remove(&number);
        match asked.map_err(|(fault, was_sent)| client.error(fault, was_sent))? {
            Reply::Committed(commit) => Ok(commit),
            Reply::Failed(e) => Err(client.named(e)),
            _ => Err(client.garbled()),
        }
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        let part = KeyRange { prefix: prefix.to_vec(), after: None, most: None, at };
        Ok(self.client.read_all(&Question { part: Some(part), ..Question::default() })?.1)
    }

    fn visit(&self, prefix: &[u8], see: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let part = KeyRange { prefix: prefix.to_vec(), after: None, most: None, at: None };
        let question = Question { part: Some(part), bare: true, ..Question::default() };
        self.client.read(&question, &mut |piece, _| {
            piece.entries.iter().for_each(|entry| see(&entry.key, &entry.value));
        })
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        let question = Question { keys: vec![key.to_vec()], ..Question::default() };
        Ok(self.client.read_all(&question)?.0.pop())
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let mut found = Vec::new();
        let mut rest = &keys[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(KEYS).take_while(|key| {
                bytes += key.len();
                bytes <= KEY_BYTES
            });
            let (some, others) = rest.split_at(fits.count().max(1));
            found.extend(self.client.read_all(&Question { keys: some.to_vec(), ..Question::default() })?.0);
            rest = others;
        }
        Ok(found)
    }

    fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        Ok(self.page_with(&[], prefix, after, most)?.1)
    }

    fn page_with(
        &self,
        keys: &[Vec<u8>],
        prefix: &[u8],
        after: &[u8],
        most: usize,
    ) -> Result<(Vec<Entry>, Vec<Entry>)> {
        if keys.len() > KEYS || keys.iter().map(Vec::len).sum::<usize>() > KEY_BYTES {
            return Ok((self.get_all(keys)?, self.page(prefix, after, most)?));
        }
        let most = Some(most as u64);
        let part = KeyRange { prefix: prefix.to_vec(), after: Some(after.to_vec()), most, at: None };
        let question = Question { keys: keys.to_vec(), part: Some(part), bare: false };
        let (found, page) = self.client.read_all(&question)?;
        Ok((found, page.entries))
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> Result<Box<dyn Watch>> {
        Ok(Box::new(RemoteWatch::new(Arc::clone(&self.client), prefix.to_vec(), from)))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        // If the answer is lost, that lease is not used, and runs out.
        match self.client.ask(&Request::Change(Change::Grant(ttl)))? {
            Reply::Granted(lease) => Ok(lease),
            _ => Err(self.client.garbled()),
        }
    }

    fn keep(&self, lease: LeaseId) -> Result<Duration> {
        match self.client.ask(&Request::Change(Change::Keep(lease)))? {
            Reply::Kept(left) => Ok(left),
            _ => Err(self.client.garbled()),
        }
    }

    fn revoke(&self, lease: LeaseId) -> Result<()> {
        match self.client.ask(&Request::Change(Change::Revoke(lease)))? {
            Reply::Revoked => Ok(()),
            _ => Err(self.client.garbled()),
        }
    }
}
