//! A catalog in etcd, by its JSON gateway.
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
mod watch;

use crate::error::{Error, Result};
use crate::types::{Commit, Entry, Expect, LeaseId, MAX_OPERATIONS, Op, Revision, Snapshot, Txn};
use crate::{Catalog, Watch};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Fault};
use serde_json::{Value, json};
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

    fn key(&self, key: &[u8]) -> String {
        STANDARD.encode([&self.prefix, key].concat())
    }

    /// An entry of a reply.
    fn entry(&self, kv: &Value) -> Result<Entry> {
        let lease = number(&kv["lease"]);
        Ok(Entry {
            key: self.own(kv)?,
            value: bytes(&kv["value"]).ok_or_else(|| self.client.garbled("a value"))?,
            created: number(&kv["create_revision"]),
            modified: number(&kv["mod_revision"]),
            lease: (lease > 0).then_some(LeaseId(lease)),
        })
    }

    /// The entries of a reply to a range.
    fn entries(&self, reply: &Value) -> Result<Vec<Entry>> {
        reply["kvs"].as_array().into_iter().flatten().map(|kv| self.entry(kv)).collect()
    }

    /// The operation that reads a key.
    fn ask(&self, key: &[u8]) -> Value {
        json!({ "request_range": { "key": self.key(key) } })
    }

    /// The range of a page that ends with the key `last`, if there is one; `None` if nothing can be in it.
    fn ask_page(&self, prefix: &[u8], after: &[u8], last: Option<&[u8]>, most: usize) -> Option<Value> {
        let is_behind = |last: &[u8]| last < prefix || last <= after;
        if most == 0 || !after.starts_with(prefix) && after > prefix || last.is_some_and(is_behind) {
            return None;
        }
        let whole = [&self.prefix, prefix].concat();
        let next = match after < prefix {
            true => whole.clone(),
            false => [&self.prefix, after, &[0]].concat(),
        };
        // etcd has no empty key: the first one is a zero byte.
        let next = if next.is_empty() { vec![0] } else { next };
        let end = match last.filter(|last| last.starts_with(prefix)) {
            Some(last) => [&self.prefix, last, &[0]].concat(),
            None => self::after(&whole),
        };
        Some(json!({
            "key": STANDARD.encode(&next), "range_end": STANDARD.encode(end), "limit": most.to_string(),
        }))
    }

    fn ask_for(&self, page: Option<Value>) -> Result<Vec<Entry>> {
        let Some(request) = page else { return Ok(Vec::new()) };
        let reply = self.client.repeat("kv/range", &request).map_err(|fault| self.client.error(fault))?;
        self.entries(&reply)
    }

    /// Reads by several operations as of one revision: the entries of each.
    fn read(&self, operations: &[Value]) -> Result<Vec<Vec<Entry>>> {
        let reply = self.client.repeat("kv/txn", &json!({ "success": operations }));
        let reply = reply.map_err(|fault| self.client.error(fault))?;
        let responses = reply["responses"].as_array().into_iter().flatten();
        let found: Vec<_> =
            responses.map(|response| self.entries(&response["response_range"])).collect::<Result<_>>()?;
        if found.len() == operations.len() { Ok(found) } else { Err(self.client.garbled("a transaction")) }
    }

    /// The key of a reply, without the prefix.
    fn own(&self, kv: &Value) -> Result<Vec<u8>> {
        let key = bytes(&kv["key"]).and_then(|key| Some(key.strip_prefix(&*self.prefix)?.to_vec()));
        key.ok_or_else(|| self.client.garbled("a key"))
    }
}

/// A number: etcd writes those of 64 bits as text, and leaves out zero.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// Bytes in base64; empty ones are left out.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => Some(Vec::new()),
        value => STANDARD.decode(value.as_str()?).ok(),
    }
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
fn nested(operations: Vec<Value>) -> Vec<Value> {
    if operations.len() <= MAX_OPERATIONS {
        return operations;
    }
    let parts = operations.chunks(NESTED);
    parts.map(|part| json!({ "request_txn": { "success": part } })).collect()
}

/// The entries in the order of their keys, each once: a key that was asked for twice is found twice.
fn once_each(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries.dedup_by(|a, b| a.key == b.key);
    entries
}

fn compare(key: String, expect: Expect) -> Value {
    match expect {
        Expect::Absent => {
            json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" })
        }
        Expect::Present => {
            json!({ "key": key, "target": "CREATE", "result": "GREATER", "create_revision": "0" })
        }
        Expect::Modified(revision) => {
            let revision = revision.to_string();
            json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision })
        }
    }
}

impl Catalog for EtcdCatalog {
    fn name(&self) -> String {
        self.client.name().to_owned()
    }

    fn commit(&self, txn: &Txn) -> Result<Commit> {
        txn.check()?;
        let compares: Vec<Value> =
            txn.expectations.iter().map(|(key, expect)| compare(self.key(key), *expect)).collect();
        let change = |(key, op): &(Vec<u8>, Op)| match op {
            Op::Delete => json!({ "request_delete_range": { "key": self.key(key) } }),
            Op::Put { value, lease } => {
                let lease = lease.map_or(0, |lease| lease.0).to_string();
                let value = STANDARD.encode(value);
                json!({ "request_put": { "key": self.key(key), "value": value, "lease": lease } })
            }
        };
        let changes = nested(txn.changes.iter().map(change).collect());
        let reply = self.client.once("kv/txn", &json!({ "compare": compares, "success": changes }));
        let reply = match reply {
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
        let revision = number(&reply["header"]["revision"]);
        let done = reply["succeeded"].as_bool().unwrap_or(false);
        Ok(if done { Commit::Done(revision) } else { Commit::Conflict(revision) })
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        let whole = [&self.prefix, prefix].concat();
        let end = STANDARD.encode(after(&whole));
        // etcd has no empty key: the first one is a zero byte.
        let mut next = if whole.is_empty() { vec![0] } else { whole };
        let (mut revision, mut entries, mut most) = (at, Vec::new(), PAGE);
        loop {
            let request = json!({
                "key": STANDARD.encode(&next), "range_end": end, "limit": most.to_string(),
                "revision": revision.unwrap_or(0).to_string(),
            });
            let reply = self.client.repeat("kv/range", &request).map_err(|fault| match fault {
                Fault::Status { why } if why.contains("has been compacted") => {
                    Error::Compacted { at: revision.unwrap_or(0) }
                }
                Fault::Status { why } if why.contains("future revision") => Error::Invalid(why),
                fault => self.client.error(fault),
            })?;
            // Later pages are of the same revision as the first.
            let revision = *revision.get_or_insert_with(|| number(&reply["header"]["revision"]));
            for kv in reply["kvs"].as_array().into_iter().flatten() {
                entries.push(self.entry(kv)?);
            }
            match entries.last() {
                Some(last) if reply["more"].as_bool().unwrap_or(false) => {
                    next = [&*self.prefix, &last.key, &[0]].concat();
                    most = (most * GROWTH).min(PAGE_MAX);
                }
                _ => return Ok(Snapshot { revision, entries }),
            }
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        let reply = self.client.repeat("kv/range", &json!({ "key": self.key(key) }));
        let reply = reply.map_err(|fault| self.client.error(fault))?;
        reply["kvs"].get(0).map(|kv| self.entry(kv)).transpose()
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_OPERATIONS) {
            let ask: Vec<Value> = keys.iter().map(|key| self.ask(key)).collect();
            for response in self.read(&ask)? {
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
        let ask: Vec<Value> =
            keys.iter().map(|key| self.ask(key)).chain([json!({ "request_range": page })]).collect();
        let mut found = self.read(&ask)?;
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
        let whole = [&self.prefix, prefix].concat();
        Ok(Box::new(watch::start(Arc::clone(&self.client), whole, self.prefix.len(), from.max(1))))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        // If the answer is lost, that lease is not used, and runs out.
        let reply = self.client.repeat("lease/grant", &json!({ "TTL": seconds.max(1).to_string() }));
        match number(&reply.map_err(|fault| self.client.error(fault))?["ID"]) {
            0 => Err(self.client.garbled("a lease")),
            id => Ok(LeaseId(id)),
        }
    }

    fn keep(&self, lease: LeaseId) -> Result<Duration> {
        let reply = self.client.repeat("lease/keepalive", &json!({ "ID": lease.0.to_string() }));
        match number(&reply.map_err(|fault| self.client.error(fault))?["result"]["TTL"]) {
            0 => Err(Error::LeaseExpired(lease)),
            seconds => Ok(Duration::from_secs(seconds)),
        }
    }

    fn revoke(&self, lease: LeaseId) -> Result<()> {
        match self.client.repeat("lease/revoke", &json!({ "ID": lease.0.to_string() })) {
            Ok(_) => Ok(()),
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
        let keys: Vec<&str> = page.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, ["key", "limit", "range_end"]);
        assert_eq!(page["limit"], "10");
    }

    /// etcd counts all keys of a range, whatever the limit.
    #[test]
    fn a_page_ends_where_nothing_more_is_wanted() {
        let catalog = EtcdCatalog::new(&["a:1"], "longhaul/").expect("an address");
        let end = |last| {
            let page = catalog.ask_page(b"fs/", b"fs/5", Some(last), 10)?;
            bytes(&page["range_end"])
        };
        assert_eq!(end(b"fs/7").as_deref(), Some(&b"longhaul/fs/7\0"[..]));
        assert_eq!(end(b"g").as_deref(), Some(&b"longhaul/fs0"[..]), "the end of the prefix is earlier");
        assert_eq!((end(b"fs/5"), end(b"fs/4"), end(b"f")), (None, None, None));
    }

    #[test]
    fn values_of_replies_are_read() {
        assert_eq!(number(&json!("12")), 12);
        assert_eq!(number(&json!(12)), 12);
        assert_eq!((number(&Value::Null), number(&json!("x"))), (0, 0));
        assert_eq!(bytes(&json!("AP8=")), Some(vec![0, 255]));
        assert_eq!((bytes(&Value::Null), bytes(&json!("?"))), (Some(Vec::new()), None));
    }
}
