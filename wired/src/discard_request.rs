//! A request to a pager to drop the contents of pages that its program discards by a system call of
//! its own (`madvise`): the pager has them in its store, where the kernel's call does not reach.
//!
//! The supervisor posts one request at a time, in words that both have mapped; the pager's evictor
//! carries it out. All zero at first, as if one were done.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words of one process's requests.
#[derive(Clone, Copy)]
pub struct DiscardRequest<'a> {
    start: &'a AtomicU64,
    len: &'a AtomicU64,
    posted: &'a AtomicU64,
    done: &'a AtomicU64,
}

impl<'a> DiscardRequest<'a> {
    /// In these words.
    pub fn new([start, len, posted, done]: &'a [AtomicU64; 4]) -> Self {
        Self {
            start,
            len,
            posted,
            done,
        }
    }

    /// Posts the addresses whose contents are to go. The request before it is done.
    pub fn post(&self, range: &Range<usize>) {
        self.start.store(range.start as u64, Ordering::Relaxed);
        self.len.store(range.len() as u64, Ordering::Relaxed);
        self.posted.fetch_add(1, Ordering::Release);
    }

    /// Returns true if the pager has carried out what was posted.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.posted.load(Ordering::Relaxed)
    }

    /// Carries out what was posted, if `discard` returns true. Returns true if nothing is left to do.
    pub fn serve(&self, discard: impl FnOnce(Range<usize>) -> bool) -> bool {
        let posted = self.posted.load(Ordering::Acquire);
        if posted == self.done.load(Ordering::Relaxed) {
            return true;
        }
        let start = self.start.load(Ordering::Relaxed) as usize;
        let len = self.len.load(Ordering::Relaxed) as usize;
        let is_done = discard(start..start.saturating_add(len));
        if is_done {
            self.done.store(posted, Ordering::Release);
        }
        is_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_carried_out_once() {
        let words = [const { AtomicU64::new(0) }; 4];
        let request = DiscardRequest::new(&words);
        assert!(request.is_done());
        request.serve(|range| panic!("nothing was posted: {range:?}"));
        for range in [0x1000..0x3000, 0x8000..0x9000] {
            request.post(&range);
            assert!(!request.is_done());
            assert!(!request.serve(|_| false));
            assert!(!request.is_done());
            let mut served = None;
            assert!(request.serve(|range| served.replace(range).is_none()));
            assert_eq!(served, Some(range));
            assert!(request.is_done());
            request.serve(|range| panic!("it was done: {range:?}"));
        }
    }
}
