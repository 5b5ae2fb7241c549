//! Eviction: pages are taken away so that frames become unused.
//!
//! Three steps, each with a lock of its own, so that a thread waits only for the step it
//! needs:
//!
//! | step | what it takes | held for |
//! |---|---|---|
//! | [`select`] chooses a unit | [`VictimQueues`]: the replacement's queues | microseconds, no call |
//! | [`stage`] moves its pages to a slot | `stager`: the thread that fills slots | one `mremap` |
//! | [`writeback`] checks, writes, discards | a cleaner, and a claim on pieces of a slot | 64 pages |
//!
//! The background evictor does all three in batches, from when half of the spare frames are
//! used until all are unused again, and then sleeps: a fault is rarely the one that its waking
//! interrupts. A fault that finds no free frame reclaims directly, with a cleaner of its own,
//! beside the others: the faulting thread pays. A thread that finds no cleaner free waits for
//! the next batch of frames.
//!
//! An operation that must not overlap an eviction (a fork, the end of a stretch) quiesces
//! evictions ([`quiesce`]).
//!
//! Rule: the locks are taken in this order: cleaners, the stager, a gate, the victim queues. A
//! thread that has a page in `Filling` takes none of the first three. (A cleaner's holder has one while the driver saves its
//! contents, and takes no lock then.)

mod complete;
mod dma_pins;
mod frame_search;
pub(crate) mod quiesce;
mod select;
mod sieve;
mod spare_mappings;
mod stage;
mod writeback;

pub(crate) use dma_pins::DmaPins;
#[cfg(test)]
pub(crate) use dma_pins::tests::hold_for_device;
pub(crate) use frame_search::NoFrame;
pub(crate) use select::VictimQueues;
pub(crate) use spare_mappings::SpareMappings;
pub(crate) use stage::Stager;

use crate::counters::Counter;
use crate::entry::idle::HandlerSet;
use crate::frame_source::FrameSource;
use crate::huge::HugeBuffers;
use crate::standby::StandbyList;
use crate::standby::ring::ClaimPass;
use frames::Millis;
use std::sync::Arc;
use std::time::Duration;
use store::StoreError;
use wired::clock::thread_time;
use wired::sched_class::SHORT_SLICE;
use wired::{PiGuard, PiLock};
use writeback::{Cleaner, MOST_CLEANERS, WritebackProgress};

/// How long to wait for frames that other domains were asked for before the next check.
pub(crate) const PATIENCE: Duration = Duration::from_millis(2);

/// Result of a round of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReclaimOutcome {
    /// Frames that became unused.
    Freed(u32),
    /// Nothing to take: no resident page may be evicted.
    Nothing,
    /// Other threads have claimed everything there is to take.
    Others,
    /// The store refused what had to be written.
    Refused(StoreError),
}

/// The stager, the cleaners, and the threads that wait for them.
pub(crate) struct Evictor {
    pub(crate) standby: Arc<StandbyList>,
    frames: Arc<FrameSource>,
    pub(crate) stager: PiLock<Stager>,
    /// The cleaners; the first is the background evictor's.
    cleaners: Box<[PiLock<Cleaner>]>,
    /// The handler threads: all are woken when one may not be back soon.
    handlers: Arc<HandlerSet>,
}

impl Evictor {
    pub(crate) fn new(
        standby: Arc<StandbyList>,
        huge: &Arc<HugeBuffers>,
        handlers: Arc<HandlerSet>,
    ) -> Result<Self, StoreError> {
        let cleaner = |_| Cleaner::new(standby.clone(), huge.clone()).map(PiLock::new);
        Ok(Self {
            stager: PiLock::new(Stager::new(standby.clone())),
            cleaners: (0..cleaner_count())
                .map(cleaner)
                .collect::<Result<_, _>>()?,
            frames: standby.frames.clone(),
            standby,
            handlers,
        })
    }

    /// A cleaner that no thread uses, other than the background evictor's.
    fn free_cleaner(&self) -> Option<PiGuard<'_, Cleaner>> {
        self.cleaners[1..]
            .iter()
            .find_map(|cleaner| cleaner.try_lock())
    }

    /// A cleaner, waiting for one.
    pub(crate) fn some_cleaner(&self) -> PiGuard<'_, Cleaner> {
        self.free_cleaner()
            .unwrap_or_else(|| self.cleaners[0].lock())
    }

    /// The swapper of RAPHA's figure 7, called past the system's fault limit: empties about
    /// `want` frames before the next period's faults, so that these find them, and returns the
    /// optimistic frames beyond that to other threads' faults.
    fn reclaim_ahead(&self, want: u32) {
        self.standby.log.add(Counter::SwapperCalls, 1);
        let client = self.frames.client();
        let most = (client.resident_limit() / 8).max(self.frames.spare());
        let want = want.min(most);
        if self.frames.room() < want
            && let Some(mut cleaner) = self.cleaners[0].try_lock()
        {
            self.reclaim(&mut cleaner, want - self.frames.room());
        }
        let optimistic = client.n().saturating_sub(client.contract().g);
        let beyond = client.unused().saturating_sub(want);
        self.frames.relinquish(optimistic.min(beyond));
    }

    /// Evicts until about `want` frames are unused, if the background evictor's cleaner is free.
    fn make_unused(&self, want: u32) {
        let unused = self.frames.client().unused();
        if unused < want
            && let Some(mut cleaner) = self.cleaners[0].try_lock()
        {
            self.reclaim(&mut cleaner, want - unused);
        }
    }

    /// The background evictor's work: returns revoked frames, and keeps the spare frames
    /// unused. `swapper_wants` is the number of frames that the fault limits call for, if they do.
    pub(crate) fn maintain_watermark(&self, swapper_wants: Option<u32>) {
        self.frames.set_evictor_up(true);
        if let Some(_stager) = self.stager.try_lock() {
            self.standby.pins.release_due(&self.standby.mm);
        }
        let client = self.frames.client();
        let asked = client.demanded();
        if asked > 0 {
            self.make_unused(asked);
            let given = u64::from(client.release_demanded(asked));
            self.standby.log.add(Counter::FramesReleased, given);
        }
        let trimmed = client.trimmed();
        if trimmed > 0 {
            self.make_unused(trimmed);
            let given = u64::from(client.release_trimmed(trimmed, Millis::now()));
            self.standby.log.add(Counter::FramesReleased, given);
        }
        if let Some(want) = swapper_wants {
            self.reclaim_ahead(want);
        }
        let mut helped = false;
        if self.frames.is_below_spare()
            && let Some(mut cleaner) = self.cleaners[0].try_lock()
        {
            self.frames.trim_idle();
            let want = self.frames.spare().saturating_sub(self.frames.room());
            helped = matches!(self.reclaim(&mut cleaner, want), ReclaimOutcome::Freed(_));
        }
        self.release_idle();
        self.frames.set_evictor_up(false);
        // Faults that came meanwhile did not ring.
        if helped && self.frames.is_below_spare() {
            self.frames.wake_evictor();
        }
    }

    /// Has the cleaners that were idle for a while give back what they hold of the store's.
    fn release_idle(&self) {
        let (own, others) = self.cleaners.split_at(1);
        let Some(mut own) = own[0].try_lock().filter(|own| own.is_release_due()) else {
            return;
        };
        own.release_idle();
        for mut cleaner in others.iter().filter_map(PiLock::try_lock) {
            cleaner.release_idle();
        }
    }

    /// Makes about `want` frames unused.
    pub(crate) fn reclaim(&self, cleaner: &mut Cleaner, want: u32) -> ReclaimOutcome {
        self.reclaim_by(cleaner, want, false)
    }

    /// As [`Evictor::reclaim`]; `busy` as for [`Evictor::obtain_frame`].
    fn reclaim_by(&self, cleaner: &mut Cleaner, want: u32, busy: bool) -> ReclaimOutcome {
        let mut done = WritebackProgress::default();
        // A program's own thread, which reclaims where no handler does, has longer slices: a yield loses the rest of one.
        let has_handlers = !self.handlers.is_empty();
        let mut turn_began = has_handlers.then(thread_time).flatten();
        while done.freed + cleaner.in_hand() < want && done.refusal.is_none() {
            if !self.reclaim_next(cleaner, busy) {
                break;
            }
            done = done.and(cleaner.end_some());
            self.yield_after_slice(&mut turn_began);
        }
        done = done.and(cleaner.end_all());
        // Kept pieces get their turn when there is nothing else.
        if done.freed == 0 && done.refusal.is_none() && cleaner.take_up(ClaimPass::Retry) {
            done = cleaner.end_all();
        }
        match (done.freed, done.refusal) {
            (0, Some(error)) => ReclaimOutcome::Refused(error),
            (0, None) if self.standby.slots.ring.is_empty() => ReclaimOutcome::Nothing,
            (0, None) => ReclaimOutcome::Others,
            (count, _) => ReclaimOutcome::Freed(count),
        }
    }

    /// Yields the processor between batches once the calling thread has used it for as long as a slice, `turn_began` being
    /// its processor time at the last yield. A thread that wakes does not preempt one with slices of the same length: it
    /// waits until that one sleeps, or for a tick (4 ms) of each thread before it. redis-server's p99.9 beside
    /// stress-ng with compressed RAM was 9.3 ms without yields, 7 with one after each batch (medians as for
    /// [`wired::sched_class::PROGRAM_SLICE`]).
    ///
    /// A revocation has a deadline, and yields to no thread.
    fn yield_after_slice(&self, turn_began: &mut Option<u64>) {
        let Some(began) = *turn_began else { return };
        if self.frames.client().demanded() > 0 {
            return;
        }
        let now = thread_time();
        if now.is_some_and(|now| now - began > SHORT_SLICE) {
            rustix::thread::sched_yield();
            *turn_began = now;
        }
    }

    /// Takes up the pieces staged first, once the standby list has reached its target; stages
    /// units until it has. Returns false if there is nothing to take up.
    fn reclaim_next(&self, cleaner: &mut Cleaner, busy: bool) -> bool {
        loop {
            let enough = self.standby.slots.standby() >= self.standby_target();
            if enough && cleaner.take_up(ClaimPass::First) {
                return true;
            }
            let stager = match busy {
                true => self.stager.try_lock(),
                false => Some(self.stager.lock()),
            };
            let staged = stager.is_some_and(|mut stager| stager.stage_next());
            if !staged {
                return cleaner.take_up(ClaimPass::First);
            }
        }
    }

    /// The target length of the standby list: what a sweep takes if frames are few, a
    /// sixteenth of the frames if they are many.
    fn standby_target(&self) -> u32 {
        (self.frames.client().resident_limit() / 16).max(1)
    }
}

/// Sleeps.
pub(crate) fn nap(time: Duration) {
    let idle = std::sync::atomic::AtomicU32::new(0);
    wired::futex::wait(&idle, 0, Some(time));
}

/// A cleaner for the background evictor, and one for each processor that could help.
fn cleaner_count() -> usize {
    // The library's own count reads the quota of the control group, too: that takes files.
    let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
    (1 + processors).min(MOST_CLEANERS)
}
