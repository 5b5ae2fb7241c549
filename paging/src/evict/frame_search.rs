//! The search for a frame by a fault that found none: it reclaims directly, or waits.

use super::{Evictor, PATIENCE, ReclaimOutcome, nap};
use crate::counters::Counter;
use crate::fault_outcome::FaultError;
use crate::page::State;
use crate::standby::ring::{CLAIM, PIECE};
use frames::Frame;
use std::time::{Duration, Instant};
use store::StoreError;
use wired::{Stage, clock};

/// Back-off while another thread reclaims.
const SHORT: Duration = Duration::from_micros(50);

/// How long the store must have refused everything before a fault fails for it.
const REFUSED: Duration = Duration::from_millis(200);

/// How many parts of units the store refuses before a search releases stored copies of resident pages.
const FEW_REFUSALS: usize = 4;

/// How many copies a search releases first, and twice as many each further time: those that it leaves save writes.
const FIRST_COPIES: u32 = CLAIM as u32;

/// How long a fault searches for a frame before it fails.
const STARVED: Duration = Duration::from_secs(20);

/// How long a request to bring a page in searches where only the domain itself could free a frame, and no thread of it is
/// evicting: the program gets an error, where its access would end it.
const REQUEST_STARVED: Duration = Duration::from_secs(1);

/// Why a fault got no frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoFrame {
    /// The handler thread must not wait, and would have to.
    Busy,
    /// No frame can be found.
    Never(FaultError),
}

/// What a search did about a store that refuses pages, since it last freed a frame.
struct Refusals {
    /// Parts of units refused in a row.
    count: usize,
    /// Copies to release next; zero once all are released.
    copies: u32,
    /// Since when nothing else could be done.
    since: Option<Instant>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            count: 0,
            copies: FIRST_COPIES,
            since: None,
        }
    }
}

impl Evictor {
    /// A frame for a fault's retry, which may wait. `busy` is true if other threads wait for the
    /// caller, so that it must not wait for other evicting threads.
    /// `requested` is true if the page has had no access yet.
    pub(crate) fn obtain_frame(
        &self,
        wanted_by: State,
        busy: bool,
        requested: bool,
    ) -> Result<Frame, NoFrame> {
        let mut demanded = false;
        let begin = clock::now();
        let frame = self.search_frame(wanted_by, busy, requested, &mut demanded);
        let counters = self.standby.log.counters();
        let end = counters.end_stage(Stage::FrameWait, begin);
        counters.add(Counter::FrameWaitUs, (end - begin) / 1000);
        if demanded {
            // Other domains need not reserve frames for this one any more.
            self.frames.demand(0);
        }
        frame
    }

    fn search_frame(
        &self,
        wanted_by: State,
        busy: bool,
        requested: bool,
        demanded: &mut bool,
    ) -> Result<Frame, NoFrame> {
        // Since when no frame came free (by the clock: in a busy tree one may come free for another thread at any moment), and
        // since when nothing could be evicted, nor was being evicted by others.
        let (mut barren, mut nothing) = (None, None);
        let mut refusals = Refusals::default();
        loop {
            let freed = self.frames.client().ledger().freed_seq();
            if let Some(frame) = self.frames.take(wanted_by) {
                return Ok(frame);
            }
            self.standby.log.add(Counter::FrameWaits, 1);
            self.handlers.wake();
            let outcome = self.direct_reclaim(busy);
            if outcome != ReclaimOutcome::Nothing {
                nothing = None;
            }
            match outcome {
                ReclaimOutcome::Freed(_) => (barren, refusals) = (None, Refusals::default()),
                ReclaimOutcome::Refused(error) => {
                    self.on_refused(&mut refusals, error, busy, freed)?;
                }
                ReclaimOutcome::Others if busy => return Err(NoFrame::Busy),
                ReclaimOutcome::Others => match self.frames.wait(wanted_by, PATIENCE) {
                    Ok(frame) => return Ok(frame),
                    Err(true) => barren = None,
                    Err(false) => _ = barren.get_or_insert_with(Instant::now),
                },
                ReclaimOutcome::Nothing => {
                    *demanded = true;
                    self.demand_frame();
                    if busy {
                        return Err(NoFrame::Busy);
                    }
                    let since = *barren.get_or_insert_with(Instant::now);
                    nothing.get_or_insert_with(Instant::now);
                    self.wait_for_held(since.elapsed(), freed);
                }
            }
            let lasts = |since: Option<Instant>, most| since.is_some_and(|it| it.elapsed() > most);
            let is_refused = requested && lasts(nothing, REQUEST_STARVED) && self.is_alone();
            let is_starved = is_refused || lasts(barren, STARVED);
            if is_starved && !self.frames.client().request_guaranteed() {
                return Err(NoFrame::Never(match self.standby.mm.may_evict() {
                    true => FaultError::AllNailed,
                    false => FaultError::NoSoundEviction,
                }));
            }
        }
    }

    /// Makes room in a store that refused what had to be written, or waits for frames that need none.
    fn on_refused(
        &self,
        refusals: &mut Refusals,
        error: StoreError,
        busy: bool,
        freed: u32,
    ) -> Result<(), NoFrame> {
        refusals.count += 1;
        if refusals.count >= FEW_REFUSALS && refusals.copies > 0 {
            // Copies of resident pages are only a saving; pages that must be evicted need the room.
            let Some(released) = self.release_copies(refusals.copies, busy) else {
                return Err(NoFrame::Busy);
            };
            if released > 0 {
                refusals.count = 0;
                refusals.copies = refusals.copies.saturating_mul(2);
                return Ok(());
            }
            refusals.copies = 0;
        }
        // Every unit gets its turn: one may hold pages that need no write.
        if refusals.count <= self.turns() {
            return Ok(());
        }
        if busy {
            return Err(NoFrame::Busy);
        }
        // A full store is no failure while guaranteed frames are on their way.
        if self.frames.wait_for_guaranteed(freed) {
            return Ok(());
        }
        // Other evicting threads may have claimed pages that need no write, and other faults may have left copies.
        if refusals.since.get_or_insert_with(Instant::now).elapsed() < REFUSED {
            nap(PATIENCE);
            refusals.copies = FIRST_COPIES;
            return Ok(());
        }
        Err(NoFrame::Never(FaultError::NoFrame(error)))
    }

    /// Returns true if neither another domain nor a device has a frame that the domain could get.
    fn is_alone(&self) -> bool {
        let client = self.frames.client();
        client.n() >= client.contract().x && !self.standby.pins.any()
    }

    /// Has another domain of the tree give back a frame, which may hold more than its share.
    fn demand_frame(&self) {
        self.frames.demand(1);
        self.frames.trim_others();
    }

    /// Waits for a frame to come free where nothing could be evicted for `barren`: a device may have finished with pages that
    /// it held.
    fn wait_for_held(&self, barren: Duration, freed: u32) {
        if let Some(_stager) = self.stager.try_lock() {
            let pins = &self.standby.pins;
            pins.release_for_fault(&self.standby.mm, barren);
        }
        let ledger = self.frames.client().ledger();
        ledger.wait_freed(freed, Some(PATIENCE));
    }

    /// Evicts for a thread that found no frame: enough for several faults, so that the next
    /// ones find frames.
    fn direct_reclaim(&self, busy: bool) -> ReclaimOutcome {
        self.frames.trim_idle();
        let want = (self.frames.sweep() as u32 / 8).max(self.frames.reserve + 1);
        match self.free_cleaner() {
            Some(mut cleaner) => self.reclaim_by(&mut cleaner, want, busy),
            None => ReclaimOutcome::Others,
        }
    }

    /// Evicts until a fault finds so many frames, or as many as possible without waiting for
    /// other threads: best effort for a fault that wants many frames and can proceed with one.
    pub(crate) fn reserve_frames(&self, wanted: u32) {
        let wanted = wanted + self.frames.reserve;
        for _ in 0..wanted {
            let room = self.frames.room();
            if room >= wanted {
                return;
            }
            let round = match self.free_cleaner() {
                Some(mut cleaner) => self.reclaim(&mut cleaner, wanted - room),
                None => ReclaimOutcome::Others,
            };
            match round {
                ReclaimOutcome::Freed(_) => {}
                ReclaimOutcome::Others => nap(SHORT),
                ReclaimOutcome::Nothing | ReclaimOutcome::Refused(_) => return,
            }
        }
    }

    /// The number of pieces in all units that could be a victim.
    fn turns(&self) -> usize {
        let pieces = self.standby.mm.unit_pages.div_ceil(PIECE);
        self.standby.queues.len() * pieces
    }

    /// Releases the stored copies of about `most` resident pages. Returns how many; None if a `busy` caller would have to
    /// wait: a thread with reads under way waits for no stager, which may wait for these reads at a gate.
    fn release_copies(&self, most: u32, busy: bool) -> Option<u32> {
        // Keeps the stretches in place. A page that is being checked meanwhile is written:
        // without its copy it is not clean.
        let mut stager = match busy {
            true => self.stager.try_lock()?,
            false => self.stager.lock(),
        };
        Some(stager.release_copies(most))
    }
}
