//! Reservations of a simulated disk: commands that take their time, as others do.

use super::{Disk, State};
use crate::world::{Deed, Event};
use longhaul_block::testing::ReservationTable;
use longhaul_block::{IoFuture, IoResult, ReservationState, Reservations};

/// The reservation commands of a disk, for one host.
pub(super) struct DiskReservations {
    pub(super) disk: Disk,
    pub(super) host: u64,
}

impl DiskReservations {
    fn run<T: Unpin + 'static>(
        &self,
        what: String,
        command: impl FnOnce(&mut ReservationTable) -> IoResult<T> + 'static,
    ) -> IoFuture<T> {
        let effect = move |_: &Disk, state: &mut State| command(state.reservations.get_or_insert_default());
        let event = Event { deed: Deed::Reserve, offset: 0, len: 0 };
        self.disk.operation(self.disk.begin(), 0, effect, format!("{what} of host {:x}", self.host), event)
    }
}

impl Reservations for DiskReservations {
    fn register(&self, key: u64) -> IoFuture<()> {
        let host = self.host;
        let register = move |table: &mut ReservationTable| {
            table.register(host, key);
            Ok(())
        };
        self.run(format!("registers key {key:x}"), register)
    }

    fn unregister(&self, key: u64) -> IoFuture<()> {
        let host = self.host;
        self.run(format!("ends the registration of key {key:x}"), move |table| table.unregister(host, key))
    }

    fn acquire(&self, key: u64) -> IoFuture<()> {
        let host = self.host;
        self.run(format!("takes the reservation for key {key:x}"), move |table| {
            table.acquire(host, key, false)
        })
    }

    fn preempt(&self, key: u64, other: u64) -> IoFuture<()> {
        let host = self.host;
        let what = format!("preempts key {other:x} for key {key:x}");
        self.run(what, move |table| table.preempt(host, key, other))
    }

    fn report(&self) -> IoFuture<ReservationState> {
        self.run("reports the reservation".into(), |table| Ok(table.state()))
    }
}
