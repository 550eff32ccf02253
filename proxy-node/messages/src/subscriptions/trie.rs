//! A radix trie per channel over one table of nodes.
//!
//! A node stores up to [`LABEL_LEN`] bytes, so that all nodes have one size; longer edges are chains of
//! nodes. Children are found by (parent, first byte) in a hash table with a secret key, in one step however
//! many there are. A node knows the number of its children and the exclusive or of their indices, which is
//! the child's index if there is one child.
//!
//! A node with neither entries nor children is removed, and one without entries is merged with its only child
//! if the labels fit one node. Node indices of prefixes never change.

use super::{SubscribeError, TOPIC_LEN_LIMIT};
use crate::list::NIL;
use crate::table::{HashKey, Table};

/// Bytes of a node's label.
const LABEL_LEN: usize = 15;

/// A free node has a `channel` of [`NO_CHANNEL`], and the next free one as `parent`.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    /// The first entry of subscribers to the prefix that ends here.
    first_entry: u32,
    /// Exclusive or of the children's indices.
    children_xor: u32,
    children: u16,
    channel: u16,
    len: u8,
    label: [u8; LABEL_LEN],
}

const NO_CHANNEL: u16 = u16::MAX;

const _: () = assert!(size_of::<Node>() == 32);

impl Node {
    fn new(channel: u16, parent: u32, bytes: &[u8]) -> Node {
        let mut label = [0; LABEL_LEN];
        label[..bytes.len()].copy_from_slice(bytes);
        let len = bytes.len() as u8;
        Node { parent, first_entry: NIL, children_xor: 0, children: 0, channel, len, label }
    }

    fn label(&self) -> &[u8] {
        &self.label[..usize::from(self.len)]
    }
}

#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    nodes_max: u32,
    channel_nodes_max: u32,
    free: u32,
    used: u32,
    /// Of these, roots of channels.
    roots: u32,
    /// Nodes by (parent, first byte of the label).
    table: Table,
    key: HashKey,
    /// By channel: root and number of nodes.
    channels: Vec<(u32, u32)>,
}

/// How far a walk along `bytes` went.
struct Position {
    node: u32,
    /// Bytes up to the end of the node.
    depth: usize,
    /// The child that begins like the rest, and how many bytes of its label equal it: fewer than the label
    /// has, or all of the rest.
    partial: Option<(u32, usize)>,
}

impl Trie {
    pub fn new(nodes_max: u32, channel_nodes_max: u32, channels: usize, key: HashKey) -> Self {
        let nodes = Vec::with_capacity(nodes_max as usize);
        let (table, channels) = (Table::new(nodes_max as usize), vec![(NIL, 0); channels]);
        Trie { nodes, nodes_max, channel_nodes_max, free: NIL, used: 0, roots: 0, table, key, channels }
    }

    /// Number of nodes.
    pub fn len(&self) -> u32 {
        self.used
    }

    /// Number of a channel's nodes.
    pub fn nodes_of(&self, channel: u16) -> u32 {
        self.channels.get(usize::from(channel)).map_or(0, |(_, nodes)| *nodes)
    }

    pub fn first_entry(&self, node: u32) -> u32 {
        self.nodes[node as usize].first_entry
    }

    pub fn set_first_entry(&mut self, node: u32, entry: u32) {
        self.nodes[node as usize].first_entry = entry;
    }

    pub fn add_root(&mut self, channel: u16) -> bool {
        if self.used >= self.nodes_max || self.root(channel) != NIL || channel == NO_CHANNEL {
            return false;
        }
        let Some(known) = self.channels.get_mut(usize::from(channel)) else { return false };
        *known = (NIL, 0);
        let root = self.allocate(Node::new(channel, NIL, &[]));
        self.roots += 1;
        self.channels[usize::from(channel)].0 = root;
        true
    }

    pub fn remove_root(&mut self, channel: u16) {
        let root = self.root(channel);
        if root != NIL {
            self.release(root);
            self.roots -= 1;
            self.channels[usize::from(channel)] = (NIL, 0);
        }
    }

    fn root(&self, channel: u16) -> u32 {
        self.channels.get(usize::from(channel)).map_or(NIL, |(root, _)| *root)
    }

    fn child(&self, parent: u32, byte: u8) -> Option<u32> {
        let is_it = |child: u32| {
            let child = &self.nodes[child as usize];
            child.parent == parent && child.label[0] == byte
        };
        self.table.find(self.key.pair(parent, u32::from(byte)), is_it)
    }

    /// Calls `visit` with the first entry and index of each node with entries whose prefix `topic` begins
    /// with.
    pub fn walk(&self, channel: u16, topic: &[u8], mut visit: impl FnMut(u32, u32)) {
        let (mut at, mut rest) = (self.root(channel), topic);
        while let Some(node) = self.nodes.get(at as usize) {
            if node.first_entry != NIL {
                visit(node.first_entry, at);
            }
            let Some(byte) = rest.first() else { return };
            if node.children == 0 {
                return;
            }
            let Some(child) = self.child(at, *byte) else { return };
            let Some(left) = rest.strip_prefix(self.nodes[child as usize].label()) else { return };
            (at, rest) = (child, left);
        }
    }

    fn position(&self, channel: u16, bytes: &[u8]) -> Position {
        let mut at = Position { node: self.root(channel), depth: 0, partial: None };
        while let Some(byte) = bytes.get(at.depth)
            && let Some(child) = self.child(at.node, *byte)
        {
            let (label, rest) = (self.nodes[child as usize].label(), &bytes[at.depth..]);
            let common = label.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if common < label.len() {
                at.partial = Some((child, common));
                break;
            }
            (at.node, at.depth) = (child, at.depth + common);
        }
        at
    }

    /// Returns the node at the end of `prefix`, with entries or without.
    pub fn find(&self, channel: u16, prefix: &[u8]) -> Option<u32> {
        let Position { node, depth, .. } = self.position(channel, prefix);
        (node != NIL && depth == prefix.len()).then_some(node)
    }

    /// Returns the node at the end of `prefix`, which is made if there is none. A node made here must get an
    /// entry.
    pub fn insert(&mut self, channel: u16, prefix: &[u8]) -> Result<u32, SubscribeError> {
        let Position { mut node, mut depth, partial } = self.position(channel, prefix);
        if node == NIL {
            return Err(SubscribeError::ChannelFull);
        }
        let common = partial.map_or(0, |(_, common)| common);
        let needed =
            u32::from(partial.is_some()) + (prefix.len() - depth - common).div_ceil(LABEL_LEN) as u32;
        if needed > self.channel_nodes_max.saturating_sub(self.nodes_of(channel)) {
            return Err(SubscribeError::ChannelFull);
        }
        // Each channel that may come needs one for its root.
        let roots = self.channels.len() as u32 - self.roots;
        if needed > self.nodes_max.saturating_sub(self.used).saturating_sub(roots) {
            return Err(SubscribeError::Full);
        }
        if let Some((child, common)) = partial {
            node = self.split(child, common);
            depth += common;
        }
        for label in prefix[depth..].chunks(LABEL_LEN) {
            node = self.add(channel, node, label);
        }
        Ok(node)
    }

    /// Makes a node of the first `len` bytes of a node's label, and puts it between the node and its parent.
    fn split(&mut self, lower: u32, len: usize) -> u32 {
        let Node { channel, parent, label, len: whole, .. } = self.nodes[lower as usize];
        self.unhook(lower);
        let upper = self.add(channel, parent, &label[..len]);
        self.relabel(lower, upper, &label[len..usize::from(whole)]);
        upper
    }

    /// Makes a child of `parent`.
    fn add(&mut self, channel: u16, parent: u32, label: &[u8]) -> u32 {
        let node = self.allocate(Node::new(channel, parent, label));
        self.hook(node);
        node
    }

    /// Gives a node, which is no node's child now, another parent and label.
    fn relabel(&mut self, node: u32, parent: u32, bytes: &[u8]) {
        let known = &mut self.nodes[node as usize];
        known.parent = parent;
        known.len = bytes.len() as u8;
        known.label[..bytes.len()].copy_from_slice(bytes);
        self.hook(node);
    }

    /// Makes the node known as a child of its parent.
    fn hook(&mut self, node: u32) {
        let Node { parent, label, .. } = self.nodes[node as usize];
        let above = &mut self.nodes[parent as usize];
        above.children += 1;
        above.children_xor ^= node;
        self.table.insert(self.key.pair(parent, u32::from(label[0])), node);
    }

    fn unhook(&mut self, node: u32) {
        let Node { parent, label, .. } = self.nodes[node as usize];
        let above = &mut self.nodes[parent as usize];
        above.children -= 1;
        above.children_xor ^= node;
        self.table.remove(self.key.pair(parent, u32::from(label[0])), node);
    }

    /// Removes nodes that nothing needs, from one without entries upwards.
    pub fn prune(&mut self, mut at: u32) {
        loop {
            let Node { parent, first_entry, children, children_xor, .. } = self.nodes[at as usize];
            if first_entry != NIL || parent == NIL || children > 1 {
                return;
            }
            if children == 1 {
                return self.merge(at, children_xor);
            }
            self.unhook(at);
            self.release(at);
            at = parent;
        }
    }

    /// Merges a node with its only child, if one node has room for both labels.
    fn merge(&mut self, upper: u32, lower: u32) {
        let (above, below) = (self.nodes[upper as usize], self.nodes[lower as usize]);
        let (first, len) = (usize::from(above.len), usize::from(above.len) + usize::from(below.len));
        if len > LABEL_LEN {
            return;
        }
        let mut label = above.label;
        label[first..len].copy_from_slice(below.label());
        self.unhook(lower);
        self.unhook(upper);
        self.release(upper);
        self.relabel(lower, above.parent, &label[..len]);
    }

    /// Takes a free node; the caller has checked that there is one.
    fn allocate(&mut self, node: Node) -> u32 {
        self.used += 1;
        self.channels[usize::from(node.channel)].1 += 1;
        match self.free {
            NIL => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
            at => {
                self.free = std::mem::replace(&mut self.nodes[at as usize], node).parent;
                at
            }
        }
    }

    fn release(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        self.channels[usize::from(node.channel)].1 -= 1;
        *node = Node::new(NO_CHANNEL, self.free, &[]);
        self.free = at;
        self.used -= 1;
    }

    /// Writes the prefix that ends at `node` into `space`, from its end backwards, and returns it.
    pub fn prefix<'a>(&self, mut at: u32, space: &'a mut [u8; TOPIC_LEN_LIMIT]) -> &'a [u8] {
        let mut start = TOPIC_LEN_LIMIT;
        while let Some(node) = self.nodes.get(at as usize) {
            let end = start;
            start -= usize::from(node.len);
            space[start..end].copy_from_slice(node.label());
            at = node.parent;
        }
        &space[start..]
    }

    pub fn prefixes(&self, channel: u16, from: u32, max: u32, mut each: impl FnMut(&[u8])) -> Option<u32> {
        let mut space = [0; TOPIC_LEN_LIMIT];
        let end = from.saturating_add(max).min(self.nodes.len() as u32);
        for at in from..end {
            let node = &self.nodes[at as usize];
            if node.channel == channel && node.first_entry != NIL {
                each(self.prefix(at, &mut space));
            }
        }
        ((end as usize) < self.nodes.len()).then_some(end)
    }
}
