//! A catalog in etcd, by its gRPC API.
//!
//! Reads are linearizable: each is answered with what a majority of the members has.
//!
//! Invariants:
//! - a transaction is sent once; it is sent again only if the first one certainly was not proposed;
//! - what can be repeated without harm (reads, leases) is repeated on the other members;
//! - no range asks for an order: etcd has keys in ascending order anyway, but where an order is asked for it
//!   reads all up to the end of the range, and applies the limit afterwards;
//! - ranges end where their reader knows that nothing more is wanted: whatever the limit, etcd counts all keys up to
//!   the end of the range.

mod client;
mod link;
mod proto;
mod watch;

#[cfg(test)]
mod trouble;

use crate::error::{Error, Result};
use crate::types::{Commit, Entry, Expect, LeaseId, MAX_OPERATIONS, Op, Revision, Snapshot, Txn};
use crate::{Catalog, Watch};
use client::{Client, Fault};
use proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, LEASE_GRANT, LEASE_KEEP_ALIVE,
    LEASE_REVOKE, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, Operation, PutRequest, RANGE, RangeRequest, RangeResponse,
    RequestOp, ResponseHeader, TXN, TargetUnion, TxnRequest, TxnResponse,
};
use std::sync::Arc;
use std::time::Duration;

/// Entries of the first request of a range: a page of small records is below a megabyte.
const PAGE: usize = 1000;
/// How many times as many entries the next request is for, up to [`PAGE_MAX`]: each costs etcd as much as all keys
/// behind it.
const GROWTH: usize = 4;
const PAGE_MAX: usize = 16_000;
/// Operations of a transaction within another one: both lists together are below etcd's limit.
const NESTED: usize = MAX_OPERATIONS / 2;

/// A catalog in etcd, which several hosts share.
pub struct EtcdCatalog {
    client: Arc<Client>,
    prefix: Vec<u8>,
}

impl EtcdCatalog {
    /// The catalog of the members `endpoints` (`HOST:PORT` or `http://HOST:PORT`). All keys get
    /// `prefix` in etcd, so that others can use the same etcd. Nothing is sent yet.
    ///
    /// # Errors
    /// There is no endpoint, or one is not an address or asks for TLS.
    pub fn new<S: AsRef<str>>(endpoints: &[S], prefix: &str) -> Result<EtcdCatalog> {
        let client = Arc::new(Client::new(endpoints)?);
        Ok(EtcdCatalog { client, prefix: prefix.as_bytes().to_vec() })
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    /// An entry of a reply.
    fn entry(&self, kv: KeyValue) -> Result<Entry> {
        let (created, modified, lease) =
            (number(kv.create_revision), number(kv.mod_revision), number(kv.lease));
        let mut key = kv.key;
        if !key.starts_with(&self.prefix) {
            return Err(self.client.garbled("a key"));
        }
        key.drain(..self.prefix.len());
        Ok(Entry { key, value: kv.value, created, modified, lease: (lease > 0).then_some(LeaseId(lease)) })
    }

    /// The entries of a reply to a range.
    fn entries(&self, reply: RangeResponse) -> Result<Vec<Entry>> {
        reply.kvs.into_iter().map(|kv| self.entry(kv)).collect()
    }

    /// The operation that reads a key.
    fn ask(&self, key: &[u8]) -> RequestOp {
        Operation::Range(RangeRequest { key: self.key(key), ..RangeRequest::default() }).into()
    }

    /// The range of a page that ends with the key `last`, if there is one; `None` if nothing can be in it.
    fn ask_page(
        &self,
        prefix: &[u8],
        after: &[u8],
        last: Option<&[u8]>,
        most: usize,
    ) -> Option<RangeRequest> {
        let is_behind = |last: &[u8]| last < prefix || last <= after;
        if most == 0 || !after.starts_with(prefix) && after > prefix || last.is_some_and(is_behind) {
            return None;
        }
        let whole = self.key(prefix);
        let next = match after < prefix {
            true => whole.clone(),
            false => [&self.prefix, after, &[0]].concat(),
        };
        let range_end = match last.filter(|last| last.starts_with(prefix)) {
            Some(last) => [&self.prefix, last, &[0]].concat(),
            None => self::after(&whole),
        };
        Some(RangeRequest { key: first(next), range_end, limit: limit(most), revision: 0 })
    }

    fn ask_for(&self, page: Option<RangeRequest>) -> Result<Vec<Entry>> {
        let Some(request) = page else { return Ok(Vec::new()) };
        let reply = self.client.repeat(RANGE, &request).map_err(|fault| self.client.error(fault))?;
        self.entries(reply)
    }

    /// Reads by several operations as of one revision: the entries of each.
    fn read(&self, operations: Vec<RequestOp>) -> Result<Vec<Vec<Entry>>> {
        let count = operations.len();
        let request = TxnRequest { compare: Vec::new(), success: operations };
        let reply: TxnResponse =
            self.client.repeat(TXN, &request).map_err(|fault| self.client.error(fault))?;
        let ranges = reply.responses.into_iter().filter_map(|response| response.response_range);
        let found: Vec<_> = ranges.map(|range| self.entries(range)).collect::<Result<_>>()?;
        if found.len() == count { Ok(found) } else { Err(self.client.garbled("a transaction")) }
    }
}

/// A number of a reply: those that Longhaul knows are not negative.
fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// A number of a request.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn limit(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

fn revision(header: Option<ResponseHeader>) -> Revision {
    header.map_or(0, |header| number(header.revision))
}

/// Where a range begins: etcd has no empty key, and the first one is a zero byte.
fn first(key: Vec<u8>) -> Vec<u8> {
    if key.is_empty() { vec![0] } else { key }
}

/// The first key after all those that begin with `prefix`: etcd's end of a range.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // To the end of all keys.
    vec![0]
}

/// Operations as few: those above etcd's limit in transactions within the transaction.
fn nested(mut operations: Vec<RequestOp>) -> Vec<RequestOp> {
    if operations.len() <= MAX_OPERATIONS {
        return operations;
    }
    let mut parts = Vec::with_capacity(operations.len().div_ceil(NESTED));
    while !operations.is_empty() {
        let rest = operations.split_off(operations.len().min(NESTED));
        let success = std::mem::replace(&mut operations, rest);
        parts.push(Operation::Txn(TxnRequest { compare: Vec::new(), success }).into());
    }
    parts
}

/// The entries in the order of their keys, each once: a key that was asked for twice is found twice.
fn once_each(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries.dedup_by(|a, b| a.key == b.key);
    entries
}

fn compare(key: Vec<u8>, expect: Expect) -> Compare {
    let (result, target, value) = match expect {
        Expect::Absent => (CompareResult::Equal, CompareTarget::Create, TargetUnion::CreateRevision(0)),
        Expect::Present => (CompareResult::Greater, CompareTarget::Create, TargetUnion::CreateRevision(0)),
        Expect::Modified(revision) => {
            (CompareResult::Equal, CompareTarget::Mod, TargetUnion::ModRevision(signed(revision)))
        }
    };
    Compare { result: result as i32, target: target as i32, key, target_union: Some(value) }
}

impl Catalog for EtcdCatalog {
    fn name(&self) -> String {
        self.client.name().to_owned()
    }

    fn commit(&self, txn: &Txn) -> Result<Commit> {
        txn.check()?;
        let compare = txn.expectations.iter().map(|(key, expect)| compare(self.key(key), *expect)).collect();
        let change = |(key, op): &(Vec<u8>, Op)| -> RequestOp {
            let key = self.key(key);
            match op {
                Op::Delete => Operation::DeleteRange(DeleteRangeRequest { key }).into(),
                Op::Put { value, lease } => {
                    let lease = lease.map_or(0, |lease| signed(lease.0));
                    Operation::Put(PutRequest { key, value: value.clone(), lease }).into()
                }
            }
        };
        let success = nested(txn.changes.iter().map(change).collect());
        let reply = self.client.once(TXN, &TxnRequest { compare, success });
        let reply: TxnResponse = match reply {
            Ok(reply) => reply,
            Err(Fault::Status { why }) if why.contains("lease not found") => {
                let lease = txn.changes.iter().find_map(|(_, op)| match op {
                    Op::Put { lease, .. } => *lease,
                    Op::Delete => None,
                });
                return Err(Error::LeaseExpired(lease.unwrap_or(LeaseId(0))));
            }
            Err(fault) => return Err(self.client.error(fault)),
        };
        let revision = revision(reply.header);
        Ok(if reply.succeeded { Commit::Done(revision) } else { Commit::Conflict(revision) })
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        let whole = self.key(prefix);
        let range_end = after(&whole);
        let mut next = first(whole);
        let (mut revision, mut entries, mut most) = (at, Vec::new(), PAGE);
        loop {
            let request = RangeRequest {
                key: next,
                range_end: range_end.clone(),
                limit: limit(most),
                revision: signed(revision.unwrap_or(0)),
            };
            let reply: RangeResponse = self.client.repeat(RANGE, &request).map_err(|fault| match fault {
                Fault::Status { why } if why.contains("has been compacted") => {
                    Error::Compacted { at: revision.unwrap_or(0) }
                }
                Fault::Status { why } if why.contains("future revision") => Error::Invalid(why),
                fault => self.client.error(fault),
            })?;
            // Later pages are of the same revision as the first.
            let revision = *revision.get_or_insert_with(|| self::revision(reply.header));
            let more = reply.more;
            entries.extend(self.entries(reply)?);
            match entries.last() {
                Some(last) if more => {
                    next = [&*self.prefix, &last.key, &[0]].concat();
                    most = (most * GROWTH).min(PAGE_MAX);
                }
                _ => return Ok(Snapshot { revision, entries }),
            }
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        let request = RangeRequest { key: self.key(key), ..RangeRequest::default() };
        let reply: RangeResponse =
            self.client.repeat(RANGE, &request).map_err(|fault| self.client.error(fault))?;
        reply.kvs.into_iter().next().map(|kv| self.entry(kv)).transpose()
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_OPERATIONS) {
            for response in self.read(keys.iter().map(|key| self.ask(key)).collect())? {
                found.extend(response);
            }
        }
        Ok(once_each(found))
    }

    fn page_with(
        &self,
        keys: &[Vec<u8>],
        prefix: &[u8],
        after: &[u8],
        most: usize,
    ) -> Result<(Vec<Entry>, Vec<Entry>)> {
        let Some(page) = self.ask_page(prefix, after, None, most).filter(|_| keys.len() < MAX_OPERATIONS)
        else {
            return Ok((self.get_all(keys)?, self.page(prefix, after, most)?));
        };
        let page = Operation::Range(page).into();
        let mut found = self.read(keys.iter().map(|key| self.ask(key)).chain([page]).collect())?;
        let page = found.pop().unwrap_or_default();
        Ok((once_each(found.into_iter().flatten().collect()), page))
    }

    fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.ask_for(self.ask_page(prefix, after, None, most))
    }

    fn page_until(&self, prefix: &[u8], after: &[u8], last: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.ask_for(self.ask_page(prefix, after, Some(last), most))
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> Result<Box<dyn Watch>> {
        let whole = self.key(prefix);
        Ok(Box::new(watch::start(Arc::clone(&self.client), whole, self.prefix.len(), from.max(1))))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        // If the answer is lost, that lease is not used, and runs out.
        let reply = self.client.repeat(LEASE_GRANT, &LeaseGrantRequest { ttl: signed(seconds.max(1)) });
        let reply: LeaseGrantResponse = reply.map_err(|fault| self.client.error(fault))?;
        match number(reply.id) {
            0 => Err(self.client.garbled("a lease")),
            id => Ok(LeaseId(id)),
        }
    }

    fn keep(&self, lease: LeaseId) -> Result<Duration> {
        let reply = self.client.repeat(LEASE_KEEP_ALIVE, &LeaseKeepAliveRequest { id: signed(lease.0) });
        let reply: LeaseKeepAliveResponse = reply.map_err(|fault| self.client.error(fault))?;
        match number(reply.ttl) {
            0 => Err(Error::LeaseExpired(lease)),
            seconds => Ok(Duration::from_secs(seconds)),
        }
    }

    fn revoke(&self, lease: LeaseId) -> Result<()> {
        let reply = self.client.repeat(LEASE_REVOKE, &LeaseRevokeRequest { id: signed(lease.0) });
        match reply {
            Ok(LeaseRevokeResponse {}) => Ok(()),
            Err(Fault::Status { why }) if why.contains("lease not found") => Ok(()),
            Err(fault) => Err(self.client.error(fault)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_its_prefix() {
        for (prefix, end) in [(&b"a"[..], &b"b"[..]), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")] {
            assert_eq!(after(prefix), end);
        }
    }

    /// With an order, a page of ten would cost as much as all keys behind it.
    #[test]
    fn a_page_is_limited_before_it_is_sorted() {
        let catalog = EtcdCatalog::new(&["a:1"], "longhaul/").expect("an address");
        let page = catalog.ask_page(b"fs/", b"fs/5", None, 10).expect("a range");
        let expected = RangeRequest {
            key: b"longhaul/fs/5\0".to_vec(),
            range_end: b"longhaul/fs0".to_vec(),
            limit: 10,
            revision: 0,
        };
        assert_eq!(page, expected);
    }

    /// etcd counts all keys of a range, whatever the limit.
    #[test]
    fn a_page_ends_where_nothing_more_is_wanted() {
        let catalog = EtcdCatalog::new(&["a:1"], "longhaul/").expect("an address");
        let end = |last| {
            let page = catalog.ask_page(b"fs/", b"fs/5", Some(last), 10)?;
            Some(page.range_end)
        };
        assert_eq!(end(b"fs/7").as_deref(), Some(&b"longhaul/fs/7\0"[..]));
        assert_eq!(end(b"g").as_deref(), Some(&b"longhaul/fs0"[..]), "the end of the prefix is earlier");
        assert_eq!((end(b"fs/5"), end(b"fs/4"), end(b"f")), (None, None, None));
    }

    #[test]
    fn many_changes_are_nested_in_their_order() {
        let put = |i: usize| -> RequestOp {
            Operation::Put(PutRequest { key: i.to_string().into_bytes(), ..PutRequest::default() }).into()
        };
        let all = |n: usize| (0..n).map(put).collect::<Vec<_>>();
        assert_eq!(nested(all(MAX_OPERATIONS)), all(MAX_OPERATIONS));
        let parts = nested(all(MAX_OPERATIONS + 1));
        let inner = |part: RequestOp| match part.request {
            Some(Operation::Txn(txn)) => txn.success,
            other => panic!("{other:?}"),
        };
        let parts: Vec<Vec<RequestOp>> = parts.into_iter().map(inner).collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [NESTED, NESTED, 1]);
        assert_eq!(parts.concat(), all(MAX_OPERATIONS + 1));
    }

    #[test]
    fn numbers_out_of_range_are_not_wrapped() {
        assert_eq!((number(12), number(-1), number(i64::MAX)), (12, 0, i64::MAX as u64));
        assert_eq!((signed(12), signed(u64::MAX)), (12, i64::MAX));
    }
}
