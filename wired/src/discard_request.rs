//! A request to a pager to drop the contents of pages that its program discards by a system call of
//! its own (`madvise`): the pager has them in its store, which the kernel's call does not clear.
//!
//! The supervisor posts one request at a time, in words that both have mapped; the pager's evictor
//! serves it. Words that are all zero mean that no request is pending.

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
    /// The requests in these words.
    pub fn new([start, len, posted, done]: &'a [AtomicU64; 4]) -> Self {
        Self {
            start,
            len,
            posted,
            done,
        }
    }

    /// Posts a range whose contents are to be dropped. The caller knows that the request before is done.
    pub fn post(&self, range: &Range<usize>) {
        self.start.store(range.start as u64, Ordering::Relaxed);
        self.len.store(range.len() as u64, Ordering::Relaxed);
        self.posted.fetch_add(1, Ordering::Release);
    }

    /// Returns true if the pager has served the posted request.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.posted.load(Ordering::Relaxed)
    }

    /// Serves the posted request: it is done if `discard` returns true. Returns true if no request is pending then.
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
    fn a_request_is_served_once() {
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
