//! What happened to one client's memory, counted by its handler thread and read by others.

use crate::client_record::ClientRecord;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wired::Plain;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Figures of one client.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// Names and values.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get())),*].into_iter()
            }
        }
    };
}

counters! {
    /// Faults that were answered.
    faults,
    /// Pages that a fault brought in from the snapshot.
    demand_pages,
    /// Pages that the replay of the working set brought in.
    replayed_pages,
    /// Pages that a fault brought in from the store.
    stored_pages,
    /// Pages that came back from the standby slots.
    standby_pages,
    /// Pages of zeros.
    zero_pages,
    /// Pages that left their frames.
    evicted_pages,
    /// Pages that were written to the store.
    written_pages,
    /// Pages that the client discarded.
    removed_pages,
    /// Stores to write-protected pages.
    protect_faults,
    /// Faults that waited for an event or a frame.
    deferred_faults,
    /// Pages whose contents are lost.
    lost_pages,
    /// Pages that have a frame now.
    resident_pages,
    /// Frames of the contract; 0 where there is no limit.
    frames,
    /// Managers that were killed while they served the client, each followed by another.
    restarts,
}

// SAFETY: atomics alone.
unsafe impl Plain for Counters {}

/// The counters of a client, in its record.
#[derive(Clone)]
pub struct RecordedCounters(Arc<ClientRecord>);

impl RecordedCounters {
    /// Those in the record.
    pub fn of(record: &Arc<ClientRecord>) -> Self {
        Self(Arc::clone(record))
    }
}

impl std::ops::Deref for RecordedCounters {
    type Target = Counters;
    fn deref(&self) -> &Counters {
        self.0.counters()
    }
}

/// One figure.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Replaces.
    pub fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
