//! Objects that the client knows, and the names that they were last found by.
//!
//! Invariants:
//! - a node is here while the client knows it, or a node below it;
//! - the directories of its names are here.

use super::stat::Identity;
use crate::call::Node;
use rustix::io::Errno;
use std::collections::HashMap;

/// Longest path in components: names that other programs rename meanwhile may lead in a circle.
const DEPTH_MAX: usize = 2048;
/// Most names that are kept of one object with several.
const NAMES_MAX: usize = 16;
/// Numbers from here on are of objects whose own number cannot be used.
const OTHERS: u64 = 1 << 63;

#[derive(Debug)]
struct Known {
    identity: Identity,
    /// Directories and names in them that it was found by, the newest first. Any may be out of date.
    names: Vec<(Node, Vec<u8>)>,
    /// Lookups that the client has not forgotten.
    lookups: u64,
    /// Names of other nodes in this directory.
    children: u64,
}

/// The nodes of one client.
#[derive(Debug)]
pub(super) struct Nodes {
    top: Identity,
    known: HashMap<Node, Known>,
    by_identity: HashMap<Identity, Node>,
    next: u64,
}

/// Where a node may be.
#[derive(Debug)]
pub(super) struct NodePlace {
    /// Path of the directory.
    pub(super) directory: Vec<u8>,
    /// Name in it.
    pub(super) name: Vec<u8>,
    /// What has to be found there.
    pub(super) identity: Identity,
}

impl Nodes {
    pub(super) fn new(top: Identity) -> Nodes {
        Nodes { top, known: HashMap::new(), by_identity: HashMap::new(), next: OTHERS }
    }

    /// The number of an object: its own where that says which one it is.
    fn number(&mut self, identity: &Identity) -> Node {
        let own = Node(identity.inode);
        let is_free =
            identity.inode > Node::ROOT.0 && identity.inode < OTHERS && !self.known.contains_key(&own);
        if is_free && identity.is_beside(&self.top) {
            return own;
        }
        self.next += 1;
        Node(self.next)
    }

    /// Counts a lookup of the object that was found as `name` in `parent`.
    pub(super) fn found(&mut self, parent: Node, name: &[u8], identity: Identity) -> Result<Node, Errno> {
        if identity == self.top {
            return Ok(Node::ROOT);
        }
        if parent != Node::ROOT && !self.known.contains_key(&parent) {
            return Err(Errno::STALE);
        }
        let node = match self.by_identity.get(&identity) {
            Some(node) => *node,
            None => {
                let node = self.number(&identity);
                self.known.insert(node, Known { identity, names: Vec::new(), lookups: 0, children: 0 });
                self.by_identity.insert(identity, node);
                node
            }
        };
        if let Some(known) = self.known.get_mut(&node) {
            known.lookups += 1;
        }
        self.name(node, parent, name);
        Ok(node)
    }

    /// An object that had the name `before` has another one now.
    pub(super) fn renamed(&mut self, before: (Node, &[u8]), parent: Node, name: &[u8], identity: Identity) {
        let Some(&node) = self.by_identity.get(&identity) else { return };
        self.name(node, parent, name);
        if before != (parent, name) {
            self.unname(node, |at, name| (at, name) == before);
        }
    }

    /// Notes a name of a node, as the newest one.
    fn name(&mut self, node: Node, parent: Node, name: &[u8]) {
        let Some(known) = self.known.get_mut(&node).filter(|_| parent != node) else { return };
        if known.names.first().is_some_and(|(at, first)| *at == parent && first == name) {
            return;
        }
        known.names.insert(0, (parent, name.to_vec()));
        let mut places = 0;
        self.adopt(parent);
        // The same name further behind, and the oldest of too many.
        self.unname(node, |at, other| {
            places += 1;
            places > 1 && (at, other) == (parent, name) || places > NAMES_MAX
        });
    }

    /// Forgets names of a node.
    fn unname(&mut self, node: Node, mut is_gone: impl FnMut(Node, &[u8]) -> bool) {
        let Some(known) = self.known.get_mut(&node) else { return };
        let gone: Vec<_> = known.names.extract_if(.., |(at, name)| is_gone(*at, name)).collect();
        for (parent, _) in gone {
            self.leave(parent);
        }
    }

    fn adopt(&mut self, parent: Node) {
        if let Some(known) = self.known.get_mut(&parent) {
            known.children += 1;
        }
    }

    /// A node's child is gone; the node too, if nothing else needs it.
    fn leave(&mut self, parent: Node) {
        if let Some(known) = self.known.get_mut(&parent) {
            known.children = known.children.saturating_sub(1);
            self.end(parent);
        }
    }

    fn end(&mut self, node: Node) {
        if self.known.get(&node).is_none_or(|known| known.lookups > 0 || known.children > 0) {
            return;
        }
        let Some(known) = self.known.remove(&node) else { return };
        self.by_identity.remove(&known.identity);
        for (parent, _) in known.names {
            self.leave(parent);
        }
    }

    pub(super) fn forget(&mut self, node: Node, lookups: u64) {
        if let Some(known) = self.known.get_mut(&node) {
            known.lookups = known.lookups.saturating_sub(lookups);
            self.end(node);
        }
    }

    /// Where a node may be; `None` for the top.
    pub(super) fn places(&self, node: Node) -> Result<Option<Vec<NodePlace>>, Errno> {
        if node == Node::ROOT {
            return Ok(None);
        }
        let known = self.known.get(&node).ok_or(Errno::STALE)?;
        let place = |(parent, name): &(Node, Vec<u8>)| {
            Ok(NodePlace { directory: self.path(*parent)?, name: name.clone(), identity: known.identity })
        };
        known.names.iter().map(place).collect::<Result<Vec<_>, Errno>>().map(Some)
    }

    /// The path of a directory, by its newest name.
    fn path(&self, directory: Node) -> Result<Vec<u8>, Errno> {
        let (mut names, mut at) = (Vec::new(), directory);
        while at != Node::ROOT {
            let known = self.known.get(&at).ok_or(Errno::STALE)?;
            let (parent, name) = known.names.first().ok_or(Errno::STALE)?;
            names.push(&name[..]);
            at = *parent;
            if names.len() > DEPTH_MAX {
                return Err(Errno::STALE);
            }
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
