//! Where shared memory of the tree is mapped, or was: a mapping that the program ends by a system call of its own stays noted.

use crate::vma_map::AddrRange;

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

    /// Returns true if shared memory may be mapped in a range.
    pub fn touches(&self, range: &AddrRange) -> bool {
        self.0.iter().any(|it| overlap(it, range))
    }
}

fn overlap(one: &AddrRange, other: &AddrRange) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_gone_leaves_the_others() {
        let mut spans = SharedSpans::new();
        spans.insert(10..20);
        spans.insert(15..30);
        spans.remove(&(12..17));
        let has = |at: usize| spans.touches(&(at..at + 1));
        let found: Vec<_> = (5..35).filter(|at| has(*at)).collect();
        assert_eq!(found, (10..12).chain(17..30).collect::<Vec<_>>());
        assert!(!spans.touches(&(12..17)));
    }
}
