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
    holder: Option<u64>,
    preempted: Vec<u64>,
}

impl ReservationTable {
    /// Whether a host may change the disk now; `None` is a host without a number, which cannot
    /// register.
    pub fn allows(&self, host: Option<u64>) -> bool {
        let is_out = host.is_some_and(|host| self.preempted.contains(&host));
        !is_out && (self.holder.is_none() || self.holder == host)
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
        self.holder = self.holder.filter(|holder| *holder != host);
        Ok(())
    }

    /// As [`Reservations::acquire`](crate::Reservations::acquire).
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&mut self, host: u64, key: u64) -> IoResult<()> {
        self.check(host, key)?;
        match self.holder {
            Some(holder) if holder != host => Err(IoError::Reserved),
            _ => {
                self.holder = Some(host);
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
        if self.holder.is_some_and(|holder| hosts.contains(&holder)) {
            self.holder = Some(host);
        }
        self.preempted.extend(hosts);
        Ok(())
    }

    /// As [`Reservations::report`](crate::Reservations::report).
    pub fn state(&self) -> ReservationState {
        let key = |host| self.registered.iter().find(|(of, _)| *of == host).map(|(_, key)| *key);
        ReservationState {
            holder: self.holder.and_then(key),
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
        assert_eq!(table.acquire(1, 10), Err(IoError::Reserved), "not registered");
        table.register(1, 10);
        table.acquire(1, 10).expect("free");
        table.register(2, 20);
        assert_eq!(table.acquire(2, 20), Err(IoError::Reserved), "held");
        assert!(table.allows(Some(1)) && !table.allows(Some(2)) && !table.allows(None));
        assert_eq!(table.preempt(2, 20, 11), Err(IoError::Reserved), "no host has this key");
        table.preempt(2, 20, 10).expect("taken over");
        assert_eq!(table.state(), ReservationState { holder: Some(20), registered: vec![20] });
        assert!(table.allows(Some(2)) && !table.allows(Some(1)));
        table.unregister(2, 20).expect("given back");
        assert!(table.allows(Some(3)) && !table.allows(Some(1)), "the one that was preempted stays out");
        table.register(1, 11);
        assert!(table.allows(Some(1)));
    }
}
