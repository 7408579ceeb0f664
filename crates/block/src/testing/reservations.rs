//! Reservations of a disk that several hosts of a test share.

use crate::{IoError, IoResult, ReservationState};

/// The reservation of a disk; hosts are numbers.
///
/// Invariants:
/// - a host is registered once at most, and the holder is registered;
/// - a host whose registration was ended by another one is in `preempted` until it registers again.
#[derive(Clone, Debug, Default)]
pub struct ReservationTable {
    /// Hosts and their keys.
    registered: Vec<(u64, u64)>,
    /// The holder; of a shared reservation, one of those that hold it.
    holder: Option<u64>,
    is_shared: bool,
    preempted: Vec<u64>,
}

impl ReservationTable {
    /// Whether a host may change the disk now; `None` is a host without a number, which cannot
    /// register.
    pub fn allows(&self, host: Option<u64>) -> bool {
        let is_out = host.is_some_and(|host| self.preempted.contains(&host));
        let may =
            self.holder == host || (self.is_shared && host.is_some_and(|host| self.is_registered(host)));
        !is_out && (self.holder.is_none() || may)
    }

    fn is_registered(&self, host: u64) -> bool {
        self.registered.iter().any(|(other, _)| *other == host)
    }

    /// What all registered hosts hold ends with the last of them.
    fn keep_holder(&mut self) {
        if self.is_shared && self.holder.is_some_and(|holder| !self.is_registered(holder)) {
            self.holder = self.registered.first().map(|(host, _)| *host);
        }
        self.is_shared &= self.holder.is_some();
    }

    /// As a device that has restarted, and keeps nothing: hosts that were registered are out as those that
    /// were preempted, until they register.
    pub fn forget(&mut self) {
        let all = std::mem::take(self);
        self.preempted = all.registered.into_iter().map(|(host, _)| host).chain(all.preempted).collect();
    }

    /// As [`Reservations::register`](crate::Reservations::register).
    pub fn register(&mut self, host: u64, key: u64) {
        self.preempted.retain(|other| *other != host);
        match self.registered.iter_mut().find(|(other, _)| *other == host) {
            Some((_, old)) => *old = key,
            None => self.registered.push((host, key)),
        }
    }

    /// As [`Reservations::unregister`](crate::Reservations::unregister).
    ///
    /// # Errors
    /// As there.
    pub fn unregister(&mut self, host: u64, key: u64) -> IoResult<()> {
        self.check(host, key)?;
        self.registered.retain(|(other, _)| *other != host);
        if !self.is_shared {
            self.holder = self.holder.filter(|holder| *holder != host);
        }
        self.keep_holder();
        Ok(())
    }

    /// As [`Reservations::acquire`](crate::Reservations::acquire).
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&mut self, host: u64, key: u64, is_shared: bool) -> IoResult<()> {
        self.check(host, key)?;
        match self.holder {
            Some(_) if is_shared != self.is_shared => Err(IoError::Reserved),
            Some(holder) if holder != host && !is_shared => Err(IoError::Reserved),
            Some(_) => Ok(()),
            None => {
                (self.holder, self.is_shared) = (Some(host), is_shared);
                Ok(())
            }
        }
    }

    /// As [`Reservations::preempt`](crate::Reservations::preempt). A disk that asks
    /// [`allows`](Self::allows) when an operation takes effect needs nothing else to keep the other
    /// host's operations out that are under way.
    ///
    /// # Errors
    /// As there.
    pub fn preempt(&mut self, host: u64, key: u64, other: u64) -> IoResult<()> {
        self.check(host, key)?;
        let gone = |(of, its): &(u64, u64)| *its == other && *of != host;
        let hosts: Vec<u64> = self.registered.iter().filter(|one| gone(one)).map(|(of, _)| *of).collect();
        if hosts.is_empty() {
            return Err(IoError::Reserved);
        }
        self.registered.retain(|one| !gone(one));
        if !self.is_shared && self.holder.is_some_and(|holder| hosts.contains(&holder)) {
            self.holder = Some(host);
        }
        self.keep_holder();
        self.preempted.extend(hosts);
        Ok(())
    }

    /// As [`Reservations::report`](crate::Reservations::report).
    pub fn state(&self) -> ReservationState {
        let key = |host| self.registered.iter().find(|(of, _)| *of == host).map(|(_, key)| *key);
        ReservationState {
            holder: self.holder.and_then(key),
            is_shared: self.is_shared,
            registered: self.registered.iter().map(|(_, key)| *key).collect(),
        }
    }

    fn check(&self, host: u64, key: u64) -> IoResult<()> {
        if self.registered.contains(&(host, key)) { Ok(()) } else { Err(IoError::Reserved) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preempted_host_stays_out_until_it_registers() {
        let mut table = ReservationTable::default();
        assert!(table.allows(None) && table.allows(Some(1)));
        assert_eq!(table.acquire(1, 10, false), Err(IoError::Reserved), "not registered");
        table.register(1, 10);
        table.acquire(1, 10, false).expect("free");
        table.register(2, 20);
        assert_eq!(table.acquire(2, 20, false), Err(IoError::Reserved), "held");
        assert!(table.allows(Some(1)) && !table.allows(Some(2)) && !table.allows(None));
        assert_eq!(table.preempt(2, 20, 11), Err(IoError::Reserved), "no host has this key");
        table.preempt(2, 20, 10).expect("taken over");
        assert_eq!(
            table.state(),
            ReservationState { holder: Some(20), is_shared: false, registered: vec![20] }
        );
        assert!(table.allows(Some(2)) && !table.allows(Some(1)));
        table.unregister(2, 20).expect("given back");
        assert!(table.allows(Some(3)) && !table.allows(Some(1)), "the one that was preempted stays out");
        table.register(1, 11);
        assert!(table.allows(Some(1)));
    }

    #[test]
    fn all_registered_hosts_hold_a_shared_reservation() {
        let mut table = ReservationTable::default();
        table.register(1, 10);
        table.register(2, 20);
        table.acquire(1, 10, true).expect("free");
        table.acquire(2, 20, true).expect("it holds it too");
        assert_eq!(table.acquire(2, 20, false), Err(IoError::Reserved), "of another kind");
        assert!(table.allows(Some(1)) && table.allows(Some(2)) && !table.allows(Some(3)));
        table.preempt(2, 20, 10).expect("kept out");
        assert!(table.allows(Some(2)) && !table.allows(Some(1)) && !table.allows(Some(3)));
        assert_eq!(
            table.state(),
            ReservationState { holder: Some(20), is_shared: true, registered: vec![20] }
        );
        table.register(1, 11);
        table.unregister(2, 20).expect("it leaves");
        assert!(table.allows(Some(1)) && !table.allows(Some(2)), "it stays with those that are left");
        table.unregister(1, 11).expect("it leaves");
        assert!(table.allows(Some(3)), "it ends with the last one");
        table.register(1, 12);
        table.forget();
        assert!(
            !table.allows(Some(1)) && table.allows(Some(3)),
            "a host learns that it is registered no more"
        );
        table.register(1, 12);
        assert!(table.allows(Some(1)));
    }
}
