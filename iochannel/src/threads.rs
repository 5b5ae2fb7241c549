//! The threads that wait for a channel's requests, so that the server can have them run.
//!
//! A promise of disk time is worth little to a thread that waits for a processor after each
//! completion. Only the client knows which threads these are: the one that submits, and behind a
//! handler thread the program's thread that faulted. One word holds both, written with each batch
//! of requests; the server reads it with each request that it takes. Where several threads fault at
//! once the server misses some, and sees them with their next fault.
//!
//! Rule: what a client writes here is a claim. A server verifies that a thread is the client's.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The word in a channel's memory.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct ChannelThreads(AtomicU64);

// SAFETY: an atomic, of which any bits decode to two numbers.
unsafe impl wired::Plain for ChannelThreads {}

/// Numbers of threads, as the client's process identifies them; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClaimedThreads {
    /// The thread that submitted.
    pub submitter: u32,
    /// The thread that faulted, if that is another one.
    pub waiter: u32,
}

impl ChannelThreads {
    /// Publishes the calling thread as submitter, and the thread `waiter` that waits behind it.
    pub fn publish(&self, waiter: u32) {
        let submitter = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let word = u64::from(submitter) | u64::from(waiter) << 32;
        self.0.store(word, Relaxed);
    }

    /// The threads last written.
    pub fn read(&self) -> ClaimedThreads {
        let word = self.0.load(Relaxed);
        ClaimedThreads {
            submitter: word as u32,
            waiter: (word >> 32) as u32,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_calling_thread_and_the_thread_behind_it_are_read_back() {
        let threads = ChannelThreads::default();
        assert_eq!(threads.read(), ClaimedThreads::default());
        threads.publish(77);
        let submitter = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let waiter = 77;
        assert_eq!(threads.read(), ClaimedThreads { submitter, waiter });
    }
}
