//! What a peer owes, and how long it may take.
//!
//! Invariants:
//! - data that was begun to be received, or asked for by R2T, has a time at
//!   which it is due, whatever else the peer sends;
//! - that time counts in rounds of the connection's watch, so that the data
//!   path never asks for the time.

use crate::config::Patience;
use crate::connection::{Connection, Fetch, Role};
use crate::observer::count;
use longhaul_engine::sleep;
use longhaul_proto::transport::{Endpoint, Want};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Rounds of the watch in the time for any progress.
const ROUNDS: u32 = 4;

/// A round of the watch.
fn round(patience: &Patience) -> Duration {
    patience.stall / ROUNDS
}

/// Data that the peer of a connection is to send.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    /// Bytes in all.
    owed: Cell<u64>,
    /// Rounds of the watch so far.
    rounds: Cell<u64>,
}

impl Fetches {
    /// The peer is to send `len` bytes from now on.
    pub(crate) fn begin(&self, len: u64, patience: &Patience) -> Fetch {
        let owed = self.owed.get() + len;
        self.owed.set(owed);
        let allowed = patience.data + Duration::from_secs(owed / patience.data_rate.max(1));
        let rounds = allowed.as_nanos().div_ceil(round(patience).as_nanos().max(1));
        // The round that is under way has begun already.
        Fetch { len, due: self.rounds.get() + 1 + u64::try_from(rounds).unwrap_or(u64::MAX >> 1) }
    }

    /// The data has been received, or is not needed any more.
    pub(crate) fn end(&self, fetch: Option<Fetch>) {
        if let Some(fetch) = fetch {
            self.owed.set(self.owed.get() - fetch.len);
        }
    }
}

/// What the watch compares with the state a while later.
struct Mark {
    progress: u64,
    received: u64,
    headers: u64,
    /// Bytes outstanding at that time, limited to the least that has to arrive.
    least: u64,
    rounds: u32,
}

impl Mark {
    fn of(connection: &Connection, patience: &Patience) -> Mark {
        Mark {
            progress: connection.shared.progress.get(),
            received: connection.shared.received.get(),
            headers: connection.shared.queue.borrow().headers(),
            least: connection.fetches.owed.get().min(patience.stall_bytes),
            rounds: 0,
        }
    }
}

/// Disconnects a peer that does not come to the point, for which it has `left`, or stalls.
pub(crate) async fn watch(connection: Rc<Connection>, left: Duration) {
    let patience = connection.target.config.patience;
    sleep(left).await;
    if matches!(*connection.role.borrow(), Role::New) {
        let message =
            format_args!("{}: no Connect within {} s", connection.peer(), patience.connect.as_secs());
        count(&connection.target.incidents.late);
        connection.target.quiet.late.say(message, |line| tracing::info!("{line}"));
        connection.close();
    }
    let mut mark = Mark::of(&connection, &patience);
    loop {
        sleep(round(&patience)).await;
        let fetches = &connection.fetches;
        fetches.rounds.set(fetches.rounds.get() + 1);
        if let Some(what) = late(&connection, &patience, &mut mark) {
            let message = format_args!("{}: {what}; disconnected", connection.peer());
            count(&connection.target.incidents.late);
            connection.target.quiet.late.say(message, |line| tracing::warn!("{line}"));
            return connection.close();
        }
    }
}

/// Whether the peer is late, and with what.
fn late(connection: &Connection, patience: &Patience, mark: &mut Mark) -> Option<String> {
    let now = connection.fetches.rounds.get();
    let overdue = |fetch: Fetch| fetch.due < now;
    if connection.slots.borrow().iter().any(|slot| slot.fetch.is_some_and(overdue)) {
        return Some(format!(
            "the data of a command was not sent within {} s and a second for each {} bytes",
            patience.data.as_secs(),
            patience.data_rate
        ));
    }
    let (owes, within_header) = {
        let queue = connection.shared.queue.borrow();
        let want = queue.want();
        (connection.fetches.owed.get() > 0, want == Want::Bytes && queue.is_within_pdu())
    };
    let sending = connection.shared.sending.get();
    let before = &*mark;
    let silent = owes && connection.shared.received.get() - before.received < before.least;
    let stuck = within_header && connection.shared.queue.borrow().headers() == before.headers;
    let deaf = sending && connection.shared.progress.get() == before.progress;
    if !silent && !stuck && !deaf {
        *mark = Mark::of(connection, patience);
        return None;
    }
    mark.rounds += 1;
    if mark.rounds < ROUNDS {
        return None;
    }
    let what = match (silent, stuck) {
        (true, _) => "hardly any of the data that it has announced came",
        (_, true) => "the rest of a PDU did not come",
        _ => "it received none of the answers to its commands",
    };
    Some(format!("{what} within {} s", patience.stall.as_secs()))
}
