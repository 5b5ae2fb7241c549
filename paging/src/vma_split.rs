//! One stretch, several mappings of the kernel's.
//!
//! Staging locks the mapping that it takes pages from; faults on the same mapping wait,
//! those on others do not. So a large stretch is made of several: neighbours differ in an
//! advice that means nothing for anonymous memory, which keeps the kernel from merging
//! them. Their borders are those of 2 MiB ranges, which staging never crosses.

use rustix::mm::{Advice, madvise};
use std::ops::Range;
use wired::HUGE_RANGE;

/// Mappings a stretch is made of at most. `vm.max_map_count` is 65,530.
const MOST: usize = 16;

/// What a mapping covers at least: more than the few ranges that are evicted together.
const LEAST: usize = 4 * HUGE_RANGE;

/// Divides the memory at `base` into several mappings, where it is large. A kernel that
/// will not leaves it as it is, which is only slower.
pub(crate) fn divide(base: usize, len: usize) {
    for part in odd_parts(base, len) {
        let at = std::ptr::with_exposed_provenance_mut(part.start);
        // SAFETY: read-ahead means nothing for anonymous memory.
        let _ = unsafe { madvise(at, part.len(), Advice::Random) };
    }
}

/// Every other part.
fn odd_parts(base: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
    let size = len.div_ceil(MOST).next_multiple_of(HUGE_RANGE).max(LEAST);
    let end = base + len;
    let first = (base + size).next_multiple_of(HUGE_RANGE);
    (first..end)
        .step_by(2 * size)
        .map(move |start| start..(start + size).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_lie_between_ranges_and_are_few() {
        for (base, len) in [
            (4096, 1 << 20),
            (HUGE_RANGE, 256 << 20),
            (12 * 4096, 1 << 34),
        ] {
            let parts: Vec<_> = odd_parts(base, len).collect();
            assert!(2 * parts.len() <= MOST + 1, "{} parts", parts.len());
            for part in &parts {
                assert!(part.start.is_multiple_of(HUGE_RANGE) && part.end <= base + len);
                assert!(part.end.is_multiple_of(HUGE_RANGE) || part.end == base + len);
            }
        }
        assert_eq!(
            odd_parts(HUGE_RANGE, LEAST).count(),
            0,
            "small ones are one"
        );
    }
}
