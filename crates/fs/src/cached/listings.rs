//! Listings of directories that a walk through a tree will ask for next.
//!
//! `find`, `du` and `ls -R` list one directory after the other, each a round trip away. When a directory is
//! listed that an earlier listing has shown, the others that were shown and not listed yet are listed ahead, and so
//! are the directories in these, in the order in which a walk gets to them.
//!
//! How many are listed ahead at a time is learned: more with each that a reader asks for, and half as many when
//! something is changed and those that are there are dropped. `rm -r` changes something in each directory.
//!
//! Answers come in any order, so that what was requested first may be far from where the walk is by then. It takes no
//! place of what is nearer: as many as the window allows are listed ahead of each point of the walk.
//!
//! Invariants:
//! - a listing that is handed out is younger than [`NAMES_VALID`], and no change was made through the cache
//!   since it was requested;
//! - entries that are not handed out are forgotten, as listing them has counted as a lookup.

use super::{CacheState, CacheStep, Shared};
use crate::call::{Call, DirectoryEntry, Node, Reply, Stream};
use crate::{Done, FileKind, NAMES_VALID};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Directories that are listed ahead, requested and not handed out yet: at the beginning, and at most.
const WINDOW: usize = 64;
const WINDOW_MAX: usize = 128;
/// Most directories that are remembered to be listed.
const KNOWN_MAX: usize = 20_000;
/// Numbers of listings that this cache makes; those of its user are smaller.
const OWN: u64 = 1 << 63;

/// Place in the order of a walk: the number of a listing that was handed out, and the index of a directory in it, in
/// the listing of that directory, and so on. A walk goes down before it goes on: the newest listing is first, and a
/// directory is before the next one in the same listing with all that is below it.
type WalkOrder = (std::cmp::Reverse<u64>, Vec<u32>);

pub(super) struct WalkListings {
    ahead: HashMap<Node, ListedAhead>,
    /// How many there may be in `ahead`.
    window: usize,
    /// Directories that were shown and not listed, in the order in which a walk will get to them.
    order: BTreeMap<WalkOrder, Node>,
    places: HashMap<Node, WalkOrder>,
    /// Listings that were handed out.
    shown: u64,
    /// Rises with each change: what was requested before is not handed out.
    epoch: u64,
    requested: u64,
}

/// A listing that was requested ahead.
struct ListedAhead {
    place: WalkOrder,
    state: Listed,
}

enum Listed {
    UnderWay {
        /// Calls that wait for it.
        waiting: Vec<(Call, Done)>,
    },
    Here {
        entries: Vec<DirectoryEntry>,
        is_last: bool,
        since: Instant,
    },
}

impl Default for WalkListings {
    fn default() -> WalkListings {
        WalkListings {
            ahead: HashMap::new(),
            window: WINDOW,
            order: BTreeMap::new(),
            places: HashMap::new(),
            shown: 0,
            epoch: 0,
            requested: 0,
        }
    }
}

impl WalkListings {
    fn forget(&mut self, node: Node) -> bool {
        match self.places.remove(&node) {
            Some(place) => self.order.remove(&place).is_some(),
            None => false,
        }
    }

    /// Forgets what a listing has that is not handed out, and that it is to be listed.
    fn forget_all(&mut self, entries: Vec<DirectoryEntry>, steps: &mut Vec<CacheStep>) {
        for entry in &entries {
            self.forget(entry.attributes.node);
        }
        forget_entries(entries, steps);
    }

    /// Remembers the directories of a listing that is handed out.
    fn show(&mut self, entries: &[DirectoryEntry]) {
        self.shown += 1;
        self.place(&(std::cmp::Reverse(self.shown), Vec::new()), entries);
    }

    /// Remembers the directories of a listing at this place of a walk.
    fn place(&mut self, (walk, of): &WalkOrder, entries: &[DirectoryEntry]) {
        let is_directory = |entry: &&DirectoryEntry| entry.attributes.kind() == FileKind::Directory;
        for (index, entry) in (0..).zip(entries.iter().filter(is_directory)) {
            let node = entry.attributes.node;
            let place = (*walk, of.iter().copied().chain([index]).collect::<Vec<u32>>());
            if let Some(ahead) = self.ahead.get_mut(&node) {
                ahead.place = place;
                continue;
            }
            self.forget(node);
            self.places.insert(node, place.clone());
            self.order.insert(place, node);
        }
        while self.order.len() > KNOWN_MAX {
            let Some((_, node)) = self.order.pop_last() else { return };
            self.places.remove(&node);
        }
    }

    /// The directory that is to be listed ahead next: the first that the walk gets to, if fewer than the window has
    /// places come before it. Listings that are too old make room, and so do those that the walk gets to last.
    fn take_next(&mut self, steps: &mut Vec<CacheStep>) -> Option<(WalkOrder, Node)> {
        loop {
            let (next, _) = self.order.first_key_value()?;
            let is_near = self.ahead.values().filter(|other| other.place < *next).count() < self.window;
            if is_near && self.ahead.len() < 2 * self.window {
                return self.order.pop_first().inspect(|(_, node)| drop(self.places.remove(node)));
            }
            let here = |(node, ahead): (&Node, &ListedAhead)| match ahead.state {
                Listed::Here { since, .. } => Some((*node, ahead.place.clone(), since)),
                Listed::UnderWay { .. } => None,
            };
            let old = self.ahead.iter().filter_map(here).find(|(_, _, since)| since.elapsed() >= NAMES_VALID);
            let last = || self.ahead.iter().filter_map(here).max_by(|(_, a, _), (_, b, _)| a.cmp(b));
            let dropped = old.or_else(|| last().filter(|(_, place, _)| is_near && place > next));
            self.take_back(dropped?.0, steps);
        }
    }

    /// Drops a listing that is there. It is requested again when the walk is near.
    fn take_back(&mut self, node: Node, steps: &mut Vec<CacheStep>) {
        let Some(ListedAhead { place, state: Listed::Here { entries, .. } }) = self.ahead.remove(&node)
        else {
            return;
        };
        self.forget_all(entries, steps);
        self.places.insert(node, place.clone());
        self.order.insert(place, node);
    }

    /// A reader has asked for a listing that was requested ahead.
    fn was_wanted(&mut self) {
        self.window = (self.window + 1).min(WINDOW_MAX);
    }
}

fn forget_entries(entries: Vec<DirectoryEntry>, steps: &mut Vec<CacheStep>) {
    for entry in entries {
        let forget = Call::Forget { node: entry.attributes.node, lookups: 1 };
        steps.push(CacheStep::Start(forget, Box::new(|_| {})));
    }
}

impl Shared {
    /// Lists a directory.
    pub(super) fn list(
        self: &Arc<Self>,
        state: &mut CacheState,
        (node, stream, after): (Node, Stream, u64),
        done: Done,
        steps: &mut Vec<CacheStep>,
    ) {
        let call = Call::ReadDirectory { node, stream, after };
        if after > 0 {
            return steps.push(CacheStep::Start(call, self.sized(done)));
        }
        let listings = &mut state.listings;
        let was_shown = listings.forget(node);
        if let Some(ListedAhead { state: Listed::UnderWay { waiting }, .. }) = listings.ahead.get_mut(&node) {
            return waiting.push((call, done));
        }
        match listings.ahead.remove(&node).map(|ahead| ahead.state) {
            Some(Listed::Here { entries, is_last, since }) if since.elapsed() < NAMES_VALID => {
                listings.was_wanted();
                listings.show(&entries);
                steps.push(CacheStep::Finish(done, Ok(Reply::Listing(entries, is_last))));
                return self.list_ahead(state, steps);
            }
            Some(Listed::Here { entries, .. }) => forget_entries(entries, steps),
            _ => {}
        }
        let (shared, done) = (Arc::clone(self), self.sized(done));
        let shown: Done = Box::new(move |result| {
            let mut steps = Vec::new();
            if let Ok(Reply::Listing(entries, _)) = &result {
                let mut state = shared.lock();
                state.listings.show(entries);
                if was_shown {
                    shared.list_ahead(&mut state, &mut steps);
                }
            }
            done(result);
            shared.run(steps);
        });
        steps.push(CacheStep::Start(call, shown));
        if was_shown {
            self.list_ahead(state, steps);
        }
    }

    /// Requests listings of the directories that a walk will get to next.
    fn list_ahead(self: &Arc<Self>, state: &mut CacheState, steps: &mut Vec<CacheStep>) {
        let listings = &mut state.listings;
        while let Some((place, node)) = listings.take_next(steps) {
            let under_way = Listed::UnderWay { waiting: Vec::new() };
            listings.ahead.insert(node, ListedAhead { place, state: under_way });
            listings.requested += 1;
            let (stream, epoch) = (Stream(OWN + listings.requested), listings.epoch);
            let shared = Arc::clone(self);
            let listed: Done = Box::new(move |result| shared.listed(node, epoch, result));
            steps.push(CacheStep::Start(Call::ReadDirectory { node, stream, after: 0 }, self.sized(listed)));
            // Longer ones are continued in the listing of their reader.
            steps.push(CacheStep::Start(Call::CloseDirectory { stream }, Box::new(|_| {})));
        }
    }

    /// A listing that was requested ahead has come, or failed.
    fn listed(self: &Arc<Self>, node: Node, epoch: u64, result: Result<Reply, Errno>) {
        let mut steps = Vec::new();
        let mut state = self.lock();
        let listings = &mut state.listings;
        let is_current = listings.epoch == epoch;
        let (place, waiting) = match listings.ahead.remove(&node) {
            Some(ListedAhead { place, state: Listed::UnderWay { waiting } }) if is_current => {
                (Some(place), waiting)
            }
            // One of a later time.
            Some(other) => {
                listings.ahead.insert(node, other);
                (None, Vec::new())
            }
            None => (None, Vec::new()),
        };
        let mut again = waiting.into_iter();
        if let Ok(Reply::Listing(entries, is_last)) = result {
            match (again.next(), place) {
                (Some((_, done)), _) => {
                    listings.was_wanted();
                    listings.show(&entries);
                    steps.push(CacheStep::Finish(done, Ok(Reply::Listing(entries, is_last))));
                    self.list_ahead(&mut state, &mut steps);
                }
                (None, Some(place)) => {
                    listings.place(&place, &entries);
                    let since = Instant::now();
                    let here = Listed::Here { entries, is_last, since };
                    listings.ahead.insert(node, ListedAhead { place, state: here });
                    self.list_ahead(&mut state, &mut steps);
                }
                (None, None) => forget_entries(entries, &mut steps),
            }
        }
        // Other readers of the same directory, and all after an error, list it themselves.
        for (call, done) in again {
            steps.push(CacheStep::Start(call, self.sized(done)));
        }
        drop(state);
        self.run(steps);
    }
}

impl CacheState {
    /// Something is changed: listings from before are not handed out.
    pub(super) fn drop_listings(&mut self, steps: &mut Vec<CacheStep>) {
        self.listings.epoch += 1;
        if !self.listings.ahead.is_empty() {
            self.listings.window = (self.listings.window / 2).max(1);
        }
        for ahead in std::mem::take(&mut self.listings.ahead).into_values() {
            match ahead.state {
                Listed::Here { entries, .. } => self.listings.forget_all(entries, steps),
                Listed::UnderWay { waiting } => {
                    steps.extend(waiting.into_iter().map(|(call, done)| CacheStep::Start(call, done)));
                }
            }
        }
    }
}
