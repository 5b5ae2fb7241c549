//! The tree of regions: the only true description of a space (3.1).
//!
//! A balanced binary tree by address, as in the paper: a treap, whose priorities are a hash of the
//! address. The caller makes nodes before a mutation and drops them after it, so that a mutation
//! allocates nothing and the lock around it is held for less than a microsecond (3.2.2). Regions
//! never overlap.

use crate::region::Region;

/// A place in the tree, empty until it is inserted.
pub(crate) struct Node {
    region: Region,
    priority: u64,
    left: Link,
    right: Link,
}

type Link = Option<Box<Node>>;

/// Nodes for one [`RegionTree::replace`], of which the last is empty: it takes the node that is
/// replaced.
pub(crate) type Spare = [Option<Box<Node>>; 4];

impl Node {
    pub(crate) fn new(region: Region) -> Box<Self> {
        Box::new(Self {
            region,
            priority: 0,
            left: None,
            right: None,
        })
    }
}

/// Regions by their addresses.
#[derive(Default)]
pub(crate) struct RegionTree {
    root: Link,
}

impl RegionTree {
    /// The region that holds `addr`.
    pub(crate) fn find(&self, addr: usize) -> Option<Region> {
        self.floor(addr).filter(|region| addr < region.end)
    }

    /// The last region that begins at `addr` or before.
    fn floor(&self, addr: usize) -> Option<Region> {
        let (mut at, mut best) = (&self.root, None);
        while let Some(node) = at {
            at = match node.region.start <= addr {
                true => {
                    best = Some(node.region);
                    &node.right
                }
                false => &node.left,
            };
        }
        best
    }

    /// The first region that ends after `addr`.
    pub(crate) fn first_after(&self, addr: usize) -> Option<Region> {
        if let Some(region) = self.find(addr) {
            return Some(region);
        }
        let (mut at, mut best) = (&self.root, None);
        while let Some(node) = at {
            at = match node.region.start > addr {
                true => {
                    best = Some(node.region);
                    &node.left
                }
                false => &node.right,
            };
        }
        best
    }

    /// Inserts a region that overlaps none.
    pub(crate) fn insert(&mut self, mut node: Box<Node>) {
        node.priority = priority(node.region.start);
        let key = node.region.start;
        let (less, more) = split(self.root.take(), key);
        self.root = join(join(less, Some(node)), more);
    }

    /// Removes the region that begins at `start`; its node can be inserted again with another region.
    pub(crate) fn remove(&mut self, start: usize) -> Option<Box<Node>> {
        let (less, rest) = split(self.root.take(), start);
        let (removed, more) = split(rest, start + 1);
        self.root = join(less, more);
        removed
    }

    /// Replaces `part` of `old`, a region of the tree, by `new`, or removes it. Nodes that are left
    /// over remain in `spare`.
    pub(crate) fn replace(
        &mut self,
        old: &Region,
        part: &std::ops::Range<usize>,
        new: Option<Region>,
        spare: &mut Spare,
    ) {
        spare[3] = self.remove(old.start);
        let before = old.part(&(old.start..part.start));
        let after = old.part(&(part.end..old.end));
        let kept = [Some(before), new, Some(after)];
        for region in kept.into_iter().flatten().filter(|r| r.start < r.end) {
            if let Some(mut node) = spare.iter_mut().find_map(Option::take) {
                node.region = region;
                self.insert(node);
            }
        }
    }

    /// Makes one region of the two that meet at `addr`, where they are in the same state. Returns
    /// the node that is left over.
    pub(crate) fn merge(&mut self, addr: usize) -> Option<Box<Node>> {
        let before = self.find(addr.wrapping_sub(1))?;
        let after = self.find(addr)?;
        if !before.continues_in(&after) {
            return None;
        }
        let left_over = self.remove(after.start);
        let mut node = self.remove(before.start)?;
        node.region.end = after.end;
        self.insert(node);
        left_over
    }
}

/// A hash of the address: priorities are random enough for a balanced tree, and need no generator.
fn priority(start: usize) -> u64 {
    let mixed = (start as u64 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// Divides a tree into the regions that begin below `key` and the others.
fn split(tree: Link, key: usize) -> (Link, Link) {
    let Some(mut node) = tree else {
        return (None, None);
    };
    if node.region.start < key {
        let (less, more) = split(node.right.take(), key);
        node.right = less;
        (Some(node), more)
    } else {
        let (less, more) = split(node.left.take(), key);
        node.left = more;
        (less, Some(node))
    }
}

/// Joins two trees, the first wholly below the second.
fn join(less: Link, more: Link) -> Link {
    match (less, more) {
        (None, only) | (only, None) => only,
        (Some(mut low), Some(high)) if low.priority >= high.priority => {
            low.right = join(low.right.take(), Some(high));
            Some(low)
        }
        (Some(low), Some(mut high)) => {
            high.left = join(Some(low), high.left.take());
            Some(high)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Kind;
    use proptest::prelude::*;
    use selfpage::Rights;
    use std::collections::BTreeMap;

    fn region(start: usize, end: usize, rights: Rights) -> Region {
        Region {
            start,
            end,
            section: None,
            rights,
            kind: Kind::Reserved,
        }
    }

    fn spare() -> Spare {
        let node = || Some(Node::new(region(0, 0, Rights::NONE)));
        [node(), node(), node(), None]
    }

    proptest! {
        /// Against a map from each page to its rights.
        #[test]
        fn replaced_and_merged_parts_agree_with_a_map_of_pages(
            steps in proptest::collection::vec((0usize..64, 1usize..16, 0u8..4), 1..200)
        ) {
            let mut tree = RegionTree::default();
            let mut model: BTreeMap<usize, u8> = BTreeMap::new();
            let rights = [Rights::NONE, Rights::READ, Rights::WRITE];
            for (from, count, choice) in steps {
                let range = from..from + count;
                let mut at = range.start;
                while at < range.end {
                    let next = tree.first_after(at);
                    let free = next.map_or(range.end, |n| n.start.clamp(at, range.end));
                    if at < free {
                        if choice < 3 {
                            tree.insert(Node::new(region(at, free, rights[choice as usize])));
                        }
                        at = free;
                        continue;
                    }
                    let old = next.unwrap();
                    let part = old.part(&(at..range.end)).range();
                    let new = (choice < 3).then(|| region(part.start, part.end, rights[choice as usize]));
                    tree.replace(&old, &part, new, &mut spare());
                    at = part.end;
                }
                tree.merge(range.start);
                tree.merge(range.end);
                for page in range {
                    match choice {
                        3 => model.remove(&page),
                        _ => model.insert(page, choice),
                    };
                }
                for page in 0..80 {
                    let found = tree.find(page).map(|r| r.rights);
                    prop_assert_eq!(found, model.get(&page).map(|c| rights[*c as usize]));
                }
            }
        }
    }

    #[test]
    fn neighbours_in_one_state_become_one_region() {
        let mut tree = RegionTree::default();
        tree.insert(Node::new(region(0, 4, Rights::READ)));
        tree.insert(Node::new(region(4, 8, Rights::READ)));
        tree.insert(Node::new(region(8, 12, Rights::WRITE)));
        assert!(tree.merge(4).is_some());
        assert!(tree.merge(8).is_none());
        assert_eq!(tree.find(1), Some(region(0, 8, Rights::READ)));
    }
}
