//! The free addresses of an address space, found by address and by length.

use super::AddrRange;
use std::collections::{BTreeMap, BTreeSet};

/// Some tries are enough to find an aligned place; a list of thousands of small gaps is
/// not worth walking.
const PLACE_TRIES: usize = 64;

/// Gaps that do not overlap.
#[derive(Debug, Default)]
pub struct FreeGaps {
    /// By address: start and end.
    ends: BTreeMap<usize, usize>,
    /// The same by (length, address).
    sizes: BTreeSet<(usize, usize)>,
}

impl FreeGaps {
    /// No gaps.
    pub const fn new() -> Self {
        Self {
            ends: BTreeMap::new(),
            sizes: BTreeSet::new(),
        }
    }

    /// A free place for `len` bytes, aligned to `align` if that can be had, else to a
    /// page: the smallest gap that holds it.
    pub fn find(&self, len: usize, align: usize) -> Option<usize> {
        let aligned = |(gap, start): &(usize, usize)| {
            let at = start.checked_next_multiple_of(align)?;
            (at + len <= start + gap).then_some(at)
        };
        let mut gaps = self.sizes.range((len, 0)..);
        let first = gaps.clone().next().map(|(_, start)| *start);
        gaps.by_ref()
            .take(PLACE_TRIES)
            .find_map(aligned)
            .or_else(|| self.sizes.iter().next_back().and_then(aligned))
            .or(first)
    }

    /// Bytes of all gaps.
    pub fn total(&self) -> usize {
        self.sizes.iter().map(|(len, _)| len).sum()
    }

    /// Adds a gap, joined with its neighbours but across a `border`.
    pub fn add(&mut self, mut span: AddrRange, border: impl Fn(usize) -> bool) {
        let before = self.ends.range(..span.start).next_back();
        if let Some((start, end)) = before.map(|(s, e)| (*s, *e))
            && end == span.start
            && !border(span.start)
        {
            self.drop_gap(start, end);
            span.start = start;
        }
        if let Some(end) = self.ends.get(&span.end).copied()
            && !border(span.end)
        {
            self.drop_gap(span.end, end);
            span.end = end;
        }
        self.put_gap(span.start, span.end);
    }

    /// Removes the addresses of `span`.
    pub fn cut(&mut self, span: &AddrRange) {
        let cut: Vec<_> = self
            .ends
            .range(..span.end)
            .rev()
            .take_while(|(_, end)| **end > span.start)
            .map(|(start, end)| (*start, *end))
            .collect();
        for (start, end) in cut {
            self.drop_gap(start, end);
            if start < span.start {
                self.put_gap(start, span.start);
            }
            if end > span.end {
                self.put_gap(span.end, end);
            }
        }
    }

    fn put_gap(&mut self, start: usize, end: usize) {
        self.ends.insert(start, end);
        self.sizes.insert((end - start, start));
    }

    fn drop_gap(&mut self, start: usize, end: usize) {
        self.ends.remove(&start);
        self.sizes.remove(&(end - start, start));
    }
}
