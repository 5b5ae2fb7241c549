//! Where shared memory of the tree is mapped, or was: a mapping that the program ends by a system call of its own stays noted.

use crate::vma_map::AddrRange;
use wired::PAGE;

/// The spans, none of which overlaps another.
#[derive(Debug, Default)]
pub struct SharedSpans(Vec<AddrRange>);

impl SharedSpans {
    /// None.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Shared memory is mapped there.
    pub fn insert(&mut self, span: AddrRange) {
        self.remove(&span);
        self.0.push(span);
    }

    /// Nothing is mapped there, or something else.
    pub fn remove(&mut self, gone: &AddrRange) {
        let touched = self.0.extract_if(.., |it| overlap(it, gone));
        let touched: Vec<_> = touched.collect();
        for it in touched {
            let parts = [it.start..gone.start, gone.end..it.end];
            self.0
                .extend(parts.into_iter().filter(|part| !part.is_empty()));
        }
    }

    /// The spans.
    pub fn iter(&self) -> impl Iterator<Item = &AddrRange> {
        self.0.iter()
    }

    /// The parts of a range, in order: those where shared memory may be mapped, and the others.
    pub fn parts(&self, range: &AddrRange) -> Vec<(AddrRange, bool)> {
        let within = |it: &AddrRange| it.start.max(range.start)..it.end.min(range.end);
        let mut shared: Vec<_> = self.0.iter().map(within).collect();
        shared.retain(|it| !it.is_empty());
        shared.sort_unstable_by_key(|it| it.start);
        let mut parts = Vec::new();
        let mut at = range.start;
        for it in shared {
            parts.push((at..it.start, false));
            at = it.end;
            parts.push((it, true));
        }
        parts.push((at..range.end, false));
        parts.retain(|(part, _)| !part.is_empty());
        parts
    }

    /// Returns true if shared memory may be mapped in a range.
    pub fn touches(&self, range: &AddrRange) -> bool {
        self.0.iter().any(|it| overlap(it, range))
    }
}

/// The parts of a span where nothing is mapped.
pub fn holes(
    span: &AddrRange,
    is_mapped: &impl Fn(&AddrRange) -> bool,
    is_free: &impl Fn(&AddrRange) -> bool,
) -> Vec<AddrRange> {
    if span.is_empty() || is_mapped(span) {
        return Vec::new();
    }
    if span.len() <= PAGE || is_free(span) {
        return vec![span.clone()];
    }
    let middle = span.start + (span.len() / PAGE / 2) * PAGE;
    let halves = [span.start..middle, middle..span.end];
    let found = halves.iter().map(|half| holes(half, is_mapped, is_free));
    let mut joined: Vec<AddrRange> = Vec::new();
    for hole in found.flatten() {
        match joined.last_mut().filter(|last| last.end == hole.start) {
            Some(last) => last.end = hole.end,
            None => joined.push(hole),
        }
    }
    joined
}

fn overlap(one: &AddrRange, other: &AddrRange) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_found_by_what_is_mapped_and_what_is_free() {
        let mapped = [0..3, 5..9, 9..10, 64..100].map(|it| it.start * PAGE..it.end * PAGE);
        let pages = |span: &AddrRange| (span.start / PAGE..span.end / PAGE).map(|it| it * PAGE);
        let has = |page: usize| mapped.iter().any(|it| it.contains(&page));
        let found = holes(&(0..100 * PAGE), &|span| pages(span).all(has), &|span| {
            !pages(span).any(has)
        });
        let found: Vec<_> = found.iter().flat_map(pages).collect();
        let expected = (0..100).map(|it| it * PAGE).filter(|page| !has(*page));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_part_that_is_gone_leaves_the_others() {
        let mut spans = SharedSpans::new();
        spans.insert(10..20);
        spans.insert(15..30);
        spans.remove(&(12..17));
        assert_eq!(spans.parts(&(0..11)), [(0..10, false), (10..11, true)]);
        let parts = [
            (11..12, true),
            (12..17, false),
            (17..30, true),
            (30..40, false),
        ];
        assert_eq!(spans.parts(&(11..40)), parts);
        let has = |at: usize| spans.touches(&(at..at + 1));
        let found: Vec<_> = (5..35).filter(|at| has(*at)).collect();
        assert_eq!(found, (10..12).chain(17..30).collect::<Vec<_>>());
        assert!(!spans.touches(&(12..17)));
    }
}
