//! Three queues over one set of nodes, found by key: the tables of S3-FIFO.
//!
//! Nodes are in an array, linked both ways, and found by a hash table with open
//! addressing. Everything is sized once; a ghost gives up its node when a range needs it.

use super::Key;

/// Where a range stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueId {
    /// New, and not wanted again yet.
    Small,
    /// Wanted again.
    Main,
    /// Gone, but not long ago.
    Ghost,
}

/// A node's number plus one; 0 is none.
type Links = u32;

#[derive(Clone, Copy, Default)]
struct Node {
    key: Key,
    newer: Links,
    older: Links,
    queue: u8,
    warmth: u8,
}

#[derive(Clone, Copy, Default)]
struct ListHead {
    newest: Links,
    oldest: Links,
    count: usize,
}

pub(super) struct Queues {
    /// Ranges in the small and main queues, at most.
    ranges: usize,
    /// Nodes that were ever used, in room for all: what is not used of a large contract's takes
    /// no memory.
    nodes: Vec<Node>,
    /// Nodes that were used and are not, linked by `newer`.
    spare: Links,
    queues: [ListHead; 3],
    /// Nodes by their keys' hashes; a power of two of them.
    index: Box<[Links]>,
}

impl Queues {
    /// For at most `ranges` ranges, and as many ghosts.
    pub(super) fn new(ranges: usize) -> Self {
        let nodes = 2 * ranges;
        Self {
            ranges,
            nodes: Vec::with_capacity(nodes),
            spare: 0,
            queues: [ListHead::default(); 3],
            index: vec![0; (2 * nodes).next_power_of_two()].into_boxed_slice(),
        }
    }

    pub(super) fn len(&self, queue: QueueId) -> usize {
        self.queues[queue as usize].count
    }

    /// Where a range stands, if anywhere.
    pub(super) fn queue(&self, key: Key) -> Option<QueueId> {
        let node = self.node(self.find(key)?);
        Some([QueueId::Small, QueueId::Main, QueueId::Ghost][usize::from(node.queue)])
    }

    pub(super) fn oldest(&self, queue: QueueId) -> Option<Key> {
        match self.queues[queue as usize].oldest {
            0 => None,
            link => Some(self.node(link).key),
        }
    }

    /// The ranges of a queue, oldest first.
    pub(super) fn since_oldest(&self, queue: QueueId) -> impl Iterator<Item = Key> {
        let mut link = self.queues[queue as usize].oldest;
        std::iter::from_fn(move || {
            let node = (link != 0).then(|| self.node(link))?;
            link = node.newer;
            Some(node.key)
        })
    }

    /// Makes a range the newest of a queue, wherever it stood; whether there was room.
    /// Ghosts make room by forgetting the oldest.
    pub(super) fn append(&mut self, queue: QueueId, key: Key) -> bool {
        let link = match self.find(key) {
            Some(link) => {
                let ghost = self.node(link).queue == QueueId::Ghost as u8;
                if ghost && queue != QueueId::Ghost && self.is_full() {
                    return false;
                }
                self.unlink(link);
                link
            }
            None => {
                if queue != QueueId::Ghost && self.is_full() {
                    return false;
                }
                let Some(link) = self.obtain() else {
                    return false;
                };
                *self.node_mut(link) = Node {
                    key,
                    ..Node::default()
                };
                self.enter(link);
                link
            }
        };
        let newest = self.queues[queue as usize].newest;
        let node = self.node_mut(link);
        (node.queue, node.older, node.newer) = (queue as u8, newest, 0);
        match newest {
            0 => self.queues[queue as usize].oldest = link,
            newest => self.node_mut(newest).newer = link,
        }
        let ends = &mut self.queues[queue as usize];
        ends.newest = link;
        ends.count += 1;
        // As many ghosts as ranges, as in the paper: more would remember whole scans.
        if queue == QueueId::Ghost
            && ends.count > self.len(QueueId::Small) + self.len(QueueId::Main)
        {
            self.forget_ghost();
        }
        true
    }

    /// Forgets a range.
    pub(super) fn remove(&mut self, key: Key) {
        if let Some(link) = self.find(key) {
            self.unlink(link);
            self.withdraw(link);
            self.node_mut(link).newer = self.spare;
            self.spare = link;
        }
    }

    /// How warm a range is.
    pub(super) fn warmth(&self, key: Key) -> u8 {
        self.find(key).map_or(0, |link| self.node(link).warmth)
    }

    /// Makes a range warmer, up to a limit.
    pub(super) fn warm(&mut self, key: Key, most: u8) {
        if let Some(link) = self.find(key) {
            let node = self.node_mut(link);
            node.warmth = (node.warmth + 1).min(most);
        }
    }

    /// Makes a range cooler by one; how warm it was.
    pub(super) fn cool(&mut self, key: Key) -> u8 {
        self.find(key).map_or(0, |link| {
            let node = self.node_mut(link);
            let was = node.warmth;
            node.warmth = was.saturating_sub(1);
            was
        })
    }

    fn is_full(&self) -> bool {
        self.len(QueueId::Small) + self.len(QueueId::Main) >= self.ranges
    }

    fn node(&self, link: Links) -> &Node {
        &self.nodes[link as usize - 1]
    }

    fn node_mut(&mut self, link: Links) -> &mut Node {
        &mut self.nodes[link as usize - 1]
    }

    fn obtain(&mut self) -> Option<Links> {
        if self.spare == 0 && self.nodes.len() == self.nodes.capacity() {
            self.forget_ghost();
        }
        if self.spare != 0 {
            let link = self.spare;
            self.spare = self.node(link).newer;
            return Some(link);
        }
        (self.nodes.len() < self.nodes.capacity()).then(|| {
            self.nodes.push(Node::default());
            self.nodes.len() as Links
        })
    }

    fn forget_ghost(&mut self) {
        if let Some(key) = self.oldest(QueueId::Ghost) {
            self.remove(key);
        }
    }

    fn unlink(&mut self, link: Links) {
        let Node {
            newer,
            older,
            queue,
            ..
        } = *self.node(link);
        match newer {
            0 => self.queues[usize::from(queue)].newest = older,
            newer => self.node_mut(newer).older = older,
        }
        match older {
            0 => self.queues[usize::from(queue)].oldest = newer,
            older => self.node_mut(older).newer = newer,
        }
        self.queues[usize::from(queue)].count -= 1;
    }

    fn home(&self, key: Key) -> usize {
        // Fibonacci hashing: the high bits of the product are well mixed.
        let mixed = key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - self.index.len().trailing_zeros())) as usize
    }

    /// Where in the index a key is, or would be.
    fn place(&self, key: Key) -> usize {
        let mask = self.index.len() - 1;
        let mut at = self.home(key);
        while self.index[at] != 0 && self.node(self.index[at]).key != key {
            at = (at + 1) & mask;
        }
        at
    }

    fn find(&self, key: Key) -> Option<Links> {
        match self.index[self.place(key)] {
            0 => None,
            link => Some(link),
        }
    }

    fn enter(&mut self, link: Links) {
        let at = self.place(self.node(link).key);
        self.index[at] = link;
    }

    /// Takes a node out of the index and closes the gap it leaves.
    fn withdraw(&mut self, link: Links) {
        let mask = self.index.len() - 1;
        let mut gap = self.place(self.node(link).key);
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let next = self.index[at];
            if next == 0 {
                break;
            }
            let home = self.home(self.node(next).key);
            // Whether its home lies outside the span after the gap: then it may move up.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.index[gap] = next;
                gap = at;
            }
        }
        self.index[gap] = 0;
    }
}
