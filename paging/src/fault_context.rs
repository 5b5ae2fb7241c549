//! The preallocated resources of one fault in progress.
//!
//! A fault is resolved in a signal handler or on a handler thread, where nothing may be
//! allocated. A context is a set of page buffers and a channel to the store; an upcall borrows
//! one for the time of its fault, a handler thread owns one.

use crate::counters::{Counter, Counters};
use crate::deferred_wake::DeferredWake;
use crate::fault_around::WindowPage;
use crate::fault_outcome::{FillOutcome, FillPhase};
use crate::huge::HUGE;
use crate::page_in::Activation;
use crate::pager::Pager;
use crate::resolve::PageFault;
use crate::stream_detector::WIDEST;
use crate::throttle::FaultSample;
use frames::Frame;
use rate::FaultClass;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use store::{Channel, Completion, PageHandle, Store, StoreError, Wait};
use wired::{PAGE, Stage, WiredMemory, clock, futex};

/// Pages one handler thread has on their way from the store at once, at most. Each faulting
/// thread has one; further faults wait in the kernel's queue.
pub(crate) const DEPTH: usize = 32;

/// A fill that waits for the store.
#[derive(Clone, Copy, Default)]
pub(crate) struct InFlight {
    /// The page's address.
    pub(crate) addr: usize,
    /// The frame it will occupy.
    pub(crate) frame: u32,
    /// When its read was submitted, of [`wired::clock`].
    pub(crate) submitted: u64,
    /// When its fault began.
    pub(crate) began: u64,
    /// Processor time that its fault has used so far; zero if that is not measured.
    pub(crate) used: u64,
}

/// Buffers and a channel.
pub(crate) struct FaultContext {
    pub(crate) channel: Option<Box<dyn Channel>>,
    buffers: WiredMemory,
    pub(crate) flights: [InFlight; DEPTH],
    free: u64,
    depth: usize,
    /// The current window: room for the widest.
    pub(crate) window: Vec<WindowPage>,
    /// The read that the last fault left under way.
    pub(crate) pending: usize,
    pub(crate) wakes: DeferredWake,
    /// Completions of other faults' reads, reaped while a huge frame's reads were awaited.
    ended: Vec<Completion>,
}

impl FaultContext {
    /// A context with `depth` buffers.
    pub(crate) fn new(store: Option<&dyn Store>, depth: usize) -> Result<Self, StoreError> {
        let depth = depth.min(DEPTH);
        let no_memory = |errno: rustix::io::Errno| StoreError::Channel {
            what: "buffers",
            errno: errno.raw_os_error(),
        };
        Ok(Self {
            channel: store.map(|s| s.channel(depth)).transpose()?,
            buffers: WiredMemory::wiped_in_children(depth * PAGE).map_err(no_memory)?,
            flights: [InFlight::default(); DEPTH],
            free: u64::MAX >> (64 - depth),
            depth,
            window: Vec::with_capacity(WIDEST as usize),
            pending: 0,
            wakes: DeferredWake::default(),
            ended: Vec::with_capacity(DEPTH),
        })
    }

    /// Gives back the channel and the buffers, which the next fault has again. No read is under
    /// way.
    pub(crate) fn release_idle(&mut self) {
        if let Some(channel) = &mut self.channel {
            channel.close_idle();
        }
        self.buffers.discard();
    }

    /// Reaps the completion of the next read for a fault.
    pub(crate) fn complete(&mut self, wait: Wait) -> Option<Completion> {
        self.ended
            .pop()
            .or_else(|| self.channel.as_mut()?.complete(wait))
    }

    /// Waits for a read that was submitted just now. None if the store has no read under way.
    pub(crate) fn await_read(&mut self, counters: Counters) -> Option<Result<(), StoreError>> {
        let submitted = clock::now();
        let completion = self.complete(Wait::Yes);
        counters.add(Counter::DiskReads, 1);
        let end = counters.end_stage(Stage::Read, submitted);
        counters.add(Counter::DiskWaitUs, (end - submitted) / 1000);
        completion.map(|completion| completion.result.map(|_| ()))
    }

    /// Waits for the next page of a huge frame. Returns true if it was read.
    pub(crate) fn complete_huge(&mut self) -> bool {
        let Some(channel) = self.channel.as_mut() else {
            return false;
        };
        while let Some(completion) = channel.complete(Wait::Yes) {
            if completion.token & HUGE != 0 {
                return completion.result.is_ok();
            }
            self.ended.push(completion);
        }
        false
    }

    /// The buffer of a flight.
    pub(crate) fn buffer(&self, flight: usize) -> *mut u8 {
        assert!(flight < self.depth, "a flight has a buffer");
        self.buffers.as_ptr().wrapping_add(flight * PAGE)
    }

    /// Takes a flight that is not in use.
    pub(crate) fn take_flight(&mut self) -> Option<usize> {
        let flight = self.free.trailing_zeros() as usize;
        (flight < 64).then(|| {
            self.free &= !(1 << flight);
            flight
        })
    }

    /// Returns true if a further read may be under way.
    pub(crate) fn has_flight(&self) -> bool {
        self.free != 0
    }

    /// Releases the flight.
    pub(crate) fn end_flight(&mut self, flight: usize) {
        self.free |= 1 << flight;
    }

    /// Flights under way.
    pub(crate) fn flights(&self) -> usize {
        self.depth - self.free.count_ones() as usize
    }

    /// Completes a read that was left under way.
    pub(crate) fn complete_read(
        &mut self,
        pager: &Pager,
        flight: usize,
        result: Result<Option<PageHandle>, StoreError>,
    ) -> (usize, FillOutcome) {
        let InFlight {
            addr,
            frame,
            submitted,
            began,
            used,
        } = self.flights[flight];
        let throttle = &pager.faults.throttle;
        let begin = (used != 0).then(|| throttle.used_since(0));
        pager.log.add(Counter::DiskReads, 1);
        let counters = pager.log.counters();
        let end = counters.end_stage(Stage::Read, submitted);
        counters.add(Counter::DiskWaitUs, (end - submitted) / 1000);
        let Some(stretch) = pager.mm.index.find(addr) else {
            // A stretch is removed only after its pages in transit have settled.
            unreachable!("a stretch with a page in transit stays");
        };
        let index = stretch.table().index(addr);
        let seen = stretch.table().word(index).load().before_fill();
        let mut activation = Activation {
            pager,
            stretch,
            index,
            write: true,
            phase: FillPhase::Activation,
            fault: &mut PageFault::default(),
            context: self,
        };
        let outcome = activation.finish_read(seen, Frame(frame), flight, &mut result.map(|_| ()));
        self.end_flight(flight);
        if matches!(outcome, FillOutcome::Success) {
            counters.end_fault(began);
        }
        if let Some(begin) = begin {
            let handled = FaultSample {
                class: FaultClass::Disk,
                pages: 1,
            };
            throttle.sample(handled, used + throttle.used_since(begin));
        }
        (addr, outcome)
    }
}

/// The contexts that upcalls borrow.
pub(crate) struct ContextPool {
    slots: Box<[PooledContext]>,
    /// Counts returns: the futex word that waiters sleep on.
    returned: AtomicU32,
    waiting: AtomicU32,
}

struct PooledContext {
    busy: AtomicU32,
    context: UnsafeCell<FaultContext>,
}

// SAFETY: only the thread that set a slot's busy word reaches its context.
unsafe impl Sync for ContextPool {}
// SAFETY: contexts own what they hold.
unsafe impl Send for ContextPool {}

/// A borrowed context.
pub(crate) struct ContextGuard<'a> {
    pool: &'a ContextPool,
    slot: &'a PooledContext,
}

impl ContextPool {
    /// `count` contexts for one fault each.
    pub(crate) fn new(store: Option<&dyn Store>, count: usize) -> Result<Self, StoreError> {
        let slots = (0..count)
            .map(|_| {
                Ok(PooledContext {
                    busy: AtomicU32::new(0),
                    context: UnsafeCell::new(FaultContext::new(store, 1)?),
                })
            })
            .collect::<Result<_, StoreError>>()?;
        Ok(Self {
            slots,
            returned: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        })
    }

    /// Borrows a context; waits for one if all are in use. `hint` spreads callers.
    pub(crate) fn borrow(&self, hint: usize) -> ContextGuard<'_> {
        if let Some(borrowed) = self.try_borrow(hint) {
            return borrowed;
        }
        // Announced before the next scan, so that the thread that returns a context afterwards
        // wakes this one.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let borrowed = loop {
            let seen = self.returned.load(Ordering::SeqCst);
            if let Some(borrowed) = self.try_borrow(hint) {
                break borrowed;
            }
            futex::wait(&self.returned, seen, None);
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        borrowed
    }

    fn try_borrow(&self, hint: usize) -> Option<ContextGuard<'_>> {
        let count = self.slots.len();
        (0..count)
            .map(|i| &self.slots[(hint + i) % count])
            .find(|slot| {
                slot.busy
                    .compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            })
            .map(|slot| ContextGuard { pool: self, slot })
    }
}

impl std::ops::Deref for ContextGuard<'_> {
    type Target = FaultContext;
    fn deref(&self) -> &FaultContext {
        // SAFETY: the busy word makes this the only reference.
        unsafe { &*self.slot.context.get() }
    }
}

impl std::ops::DerefMut for ContextGuard<'_> {
    fn deref_mut(&mut self) -> &mut FaultContext {
        // SAFETY: the busy word makes this the only reference.
        unsafe { &mut *self.slot.context.get() }
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        self.slot.busy.store(0, Ordering::SeqCst);
        self.pool.returned.fetch_add(1, Ordering::SeqCst);
        if self.pool.waiting.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.pool.returned);
        }
    }
}
