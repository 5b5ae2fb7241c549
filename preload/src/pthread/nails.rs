//! The pages that are kept for threads until the kernel has forgotten these.
//!
//! Rule: the kernel is asked about a thread once it takes its last steps, and about all threads only when there are
//! twice as many nails as the last time: with thousands of threads, to ask about each at the start and the end of
//! each takes seconds. So a thread that ended by the system call alone may keep its nails for a while.

use super::is_gone;
use crate::vma_map::AddrRange;
use crate::{paged_memory, rseq};

/// The number of a thread that never is: beyond the kernel's largest.
const NO_THREAD: i32 = i32::MAX;

/// Nails among which threads that ended unnoticed are not looked for.
const MIN_SWEEP: usize = 64;

/// Pages kept for a thread.
struct NailedRange {
    tid: i32,
    span: AddrRange,
    /// True once the thread takes its last steps.
    is_ending: bool,
}

impl NailedRange {
    /// Takes the nail back.
    fn release(&self) {
        rseq::unregister(self.tid);
        paged_memory::unnail(&self.span);
    }
}

/// All of them.
pub struct NailedRanges {
    nails: Vec<NailedRange>,
    /// With so many nails the kernel is asked about every thread.
    sweep_at: usize,
}

impl NailedRanges {
    pub const fn new() -> Self {
        Self {
            nails: Vec::new(),
            sweep_at: MIN_SWEEP,
        }
    }

    pub fn len(&self) -> usize {
        self.nails.len()
    }

    /// `span` was nailed for a thread.
    pub fn push(&mut self, tid: i32, span: AddrRange) {
        self.nails.push(NailedRange {
            tid,
            span,
            is_ending: false,
        });
    }

    /// Returns true if `span` is nailed for `tid`. Takes the nails of threads back that had these pages before and
    /// are gone: a page counts few.
    pub fn is_nailed(&mut self, tid: i32, span: &AddrRange) -> bool {
        self.release_if_gone(|nail| nail.tid != tid && nail.span == *span);
        let is_own = |nail: &NailedRange| nail.tid == tid && nail.span == *span;
        self.nails.iter().any(is_own)
    }

    /// A thread takes its last steps.
    pub fn on_thread_exit(&mut self, tid: i32) {
        for nail in self.nails.iter_mut().filter(|nail| nail.tid == tid) {
            nail.is_ending = true;
        }
    }

    /// Takes back the nails of threads that are gone.
    pub fn release_dead(&mut self) {
        let is_sweep = self.nails.len() >= self.sweep_at;
        self.release_if_gone(|nail| is_sweep || nail.is_ending);
        if is_sweep {
            self.sweep_at = 2 * self.nails.len() + MIN_SWEEP;
        }
    }

    fn release_if_gone(&mut self, is_asked: impl Fn(&NailedRange) -> bool) {
        self.nails.retain(|nail| {
            let gone = is_asked(nail) && is_gone(nail.tid);
            if gone {
                nail.release();
            }
            !gone
        });
    }

    /// Takes back the nails in memory that is being unmapped.
    pub fn forget(&mut self, span: &AddrRange) {
        self.nails.retain(|nail| {
            let overlaps = nail.span.start < span.end && span.start < nail.span.end;
            if overlaps {
                // Of a thread that ended by the system call alone.
                nail.release();
            }
            !overlaps
        });
    }

    /// The child of a fork has one thread, `own`, which was the parent's thread `forked`.
    pub fn forget_others(&mut self, forked: i32, own: i32) {
        for nail in &mut self.nails {
            // Another namespace may use the parent's numbers again.
            (nail.tid, nail.is_ending) = match nail.tid == forked {
                true => (own, false),
                false => (NO_THREAD, true),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wired::PAGE;

    fn page(n: usize) -> AddrRange {
        n * PAGE..(n + 1) * PAGE
    }

    #[test]
    fn the_kernel_is_asked_about_threads_that_end_and_seldom_about_all() {
        let mut nails = NailedRanges::new();
        for n in 1..MIN_SWEEP {
            nails.push(NO_THREAD - n as i32, page(n));
            nails.release_dead();
            assert_eq!(nails.len(), n, "no thread was seen to end");
        }
        nails.on_thread_exit(NO_THREAD - 1);
        nails.release_dead();
        assert_eq!(nails.len(), MIN_SWEEP - 2);
        for n in 0..2 {
            nails.push(NO_THREAD, page(n));
        }
        nails.release_dead();
        assert_eq!(nails.len(), 0, "so many are looked through");
    }

    #[test]
    fn a_page_keeps_no_nails_of_threads_that_are_gone() {
        let mut nails = NailedRanges::new();
        nails.push(NO_THREAD, page(1));
        nails.push(NO_THREAD, page(2));
        assert!(!nails.is_nailed(1, &page(1)) && nails.is_nailed(NO_THREAD, &page(2)));
        assert_eq!(nails.len(), 1);
    }
}
