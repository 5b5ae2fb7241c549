//! Emptying slots, piece by piece: judging, writing, giving frames back.
//!
//! Each staged page is compared with its stored copy by checksum (no write-protection: that
//! costs a shootdown a page, and `mremap` loses its marks), written if it differs, and its
//! memory discarded. The thread that does so has a *cleaner*: a channel to the store and room
//! for the pages in hand. There is one for the background evictor, and some for faulting
//! threads that find no frame: a thread that waits for frames helps to empty pieces instead.
//!
//! Frames come free with every batch of at most [`CLAIM`] pages. If the store is a disk, a
//! second batch is checked while the first is being written.
//!
//! Rule: a cleaner's holder has nothing in hand when it releases the cleaner. It waits for the
//! device, for the stager and for a gate, and never for the first two with a gate closed;
//! never for another cleaner or a piece, and not for long for a page that a fault is filling:
//! that page keeps its place until the next turn.

use crate::counters::Counter;
use crate::driver::{CleanOutcome, call_driver};
use crate::huge::HugeBuffers;
use crate::page::State;
use crate::standby::StandbyList;
use crate::standby::ring::{CLAIM, Claim, ClaimPass};
use frames::Frame;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::{Channel, Checksum, PageHandle, Store, StoreError, Wait, WritePage};
use wired::PAGE;

/// Writes of a cleaner under way at once.
const WRITE_DEPTH: usize = 64;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Cleaners at most, with the background evictor's.
pub(crate) const MOST_CLEANERS: usize = 5;

/// How long a cleaner's channel keeps what it does not use, at least.
const RELEASE_INTERVAL: Duration = Duration::from_millis(500);

/// What emptying pieces needs.
pub(crate) struct Cleaner {
    pub(super) standby: Arc<StandbyList>,
    pub(super) huge: Arc<HugeBuffers>,
    channel: Option<Box<dyn Channel>>,
    /// When the channel last gave back what it does not use.
    released: Instant,
    /// Pieces were taken up since then.
    was_used: bool,
    /// Room for [`CLAIM`] pages.
    writes: Vec<WritePage>,
    /// Frames whose pages are gone, to be released together.
    pub(super) freed: [Frame; CLAIM],
    /// Batches under way: the one begun first, and the next.
    pub(super) batches: [WritebackBatch; 2],
    /// How many batches are under way.
    under_way: usize,
    /// Index of the batch begun first.
    first: usize,
}

// SAFETY: the pointers in the writes are into staged pages, and are followed only by the thread
// that has the cleaner.
unsafe impl Send for Cleaner {}

/// A claim, and the state of its pages.
pub(super) struct WritebackBatch {
    pub(super) claim: Option<Claim>,
    pub(super) pages: [BatchPage; CLAIM],
    pub(super) count: usize,
    /// Pages whose writes have not ended.
    unwritten: usize,
    pub(super) refusal: Option<StoreError>,
}

/// One page of a claim.
#[derive(Clone, Copy)]
pub(super) struct BatchPage {
    /// Its number in the slot.
    pub(super) at: usize,
    pub(super) frame: u32,
    /// The copy just written.
    pub(super) copy: Option<PageHandle>,
}

/// Result of cleaning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WritebackProgress {
    /// Frames that became unused.
    pub(super) freed: u32,
    /// Why a page could not be written.
    pub(super) refusal: Option<StoreError>,
}

impl WritebackProgress {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            freed: self.freed + other.freed,
            refusal: self.refusal.or(other.refusal),
        }
    }
}

impl Cleaner {
    pub(super) fn new(
        standby: Arc<StandbyList>,
        huge: Arc<HugeBuffers>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            channel: channel(standby.store.get())?,
            released: Instant::now(),
            was_used: false,
            standby,
            huge,
            writes: Vec::with_capacity(CLAIM),
            freed: [Frame(0); CLAIM],
            batches: [WritebackBatch::NONE; 2],
            under_way: 0,
            first: 0,
        })
    }

    /// Switches to the child process: its own channel.
    pub(crate) fn become_child(&mut self, store: Option<&dyn Store>) -> Result<(), StoreError> {
        if !self.channel.as_ref().is_some_and(|it| it.is_unopened()) {
            // A channel that a fork inherited detects the fork: dropping it closes no descriptor
            // of this process.
            self.channel = channel(store)?;
        }
        Ok(())
    }

    /// Returns true if the last [`Cleaner::release_idle`] was a while ago.
    pub(super) fn is_release_due(&self) -> bool {
        self.released.elapsed() >= RELEASE_INTERVAL
    }

    /// Gives back what the channel holds of the store's, and its memory, where it was not used
    /// since the last call.
    pub(super) fn release_idle(&mut self) {
        self.released = Instant::now();
        let was_used = std::mem::take(&mut self.was_used);
        if let Some(channel) = &mut self.channel {
            channel.release_idle();
            if !was_used {
                channel.close_idle();
            }
        }
    }

    /// Pages in hand.
    pub(super) fn in_hand(&self) -> u32 {
        let batches = self.batches.iter().filter(|batch| batch.claim.is_some());
        batches.map(|batch| batch.count as u32).sum()
    }

    fn has_room(&self) -> bool {
        self.under_way < self.batches.len()
    }

    /// Reaps completions until the batch begun first has all of its own, or none comes.
    fn collect(&mut self, wait: Wait) {
        let Self {
            standby,
            channel,
            batches,
            ..
        } = self;
        let Some(channel) = channel else { return };
        while batches[self.first].unwritten > 0 {
            let Some(completion) = channel.complete(wait) else {
                break;
            };
            let token = completion.token as usize;
            let batch = &mut batches[token / CLAIM];
            batch.unwritten -= 1;
            match completion.result {
                Ok(handle) => {
                    batch.pages[token % CLAIM].copy = handle;
                    standby.log.add(Counter::Written, 1);
                }
                Err(error) => {
                    standby.log.add(Counter::WriteFailures, 1);
                    batch.refusal = Some(error);
                }
            }
        }
    }

    /// Begins to empty pieces. Returns false if there is no piece to claim. The cleaner must
    /// have room.
    pub(super) fn take_up(&mut self, pass: ClaimPass) -> bool {
        let Some(claim) = self.standby.slots.ring.claim_oldest(pass) else {
            return false;
        };
        let which = (self.first + self.under_way) % self.batches.len();
        self.under_way += 1;
        self.was_used = true;
        let Self {
            standby,
            channel,
            writes,
            batches,
            ..
        } = self;
        let batch = &mut batches[which];
        (batch.count, batch.unwritten, batch.refusal) = (0, 0, None);
        writes.clear();
        let piece_pages = standby.slots.piece_pages();
        let span = claim.span();
        let first = span.start * piece_pages;
        let words = &standby.slots.frames(claim.slot)[first..span.end * piece_pages];
        let taken = words.iter().map(|word| word.load(Ordering::Relaxed));
        let mut ahead = taken.filter(|word| *word != 0).skip(1);
        for (at, word) in words.iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            if word == 0 {
                continue;
            }
            if let Some(next) = ahead.next() {
                prefetch(standby.places.staged(next - 1));
            }
            let number = batch.count;
            batch.pages[number] = BatchPage {
                at: first + at,
                frame: word - 1,
                copy: None,
            };
            batch.count += 1;
            let token = (which * CLAIM + number) as u64;
            match classify(standby, word - 1, token, channel.as_deref_mut()) {
                Ok(None) => {}
                Ok(Some(write)) => writes.push(write),
                Err(error) => batch.refusal = Some(error),
            }
        }
        if let (Some(channel), false) = (channel, writes.is_empty()) {
            let mut submitted = channel.submit_write(writes);
            if standby.is_without_mappings(&submitted) {
                submitted = channel.submit_write(writes);
            }
            match submitted {
                Ok(()) => batch.unwritten = writes.len(),
                Err(error) => batch.refusal = Some(error),
            }
        }
        batch.claim = Some(claim);
        self.collect(Wait::No);
        true
    }

    /// Completes the batch begun first, waiting for its writes.
    fn end_first(&mut self) -> WritebackProgress {
        self.collect(Wait::Yes);
        let first = self.first;
        self.first = (first + 1) % self.batches.len();
        self.under_way -= 1;
        self.complete_batch(first)
    }

    /// Completes batches whose writes have ended, and the first of the others if the cleaner has
    /// no room.
    pub(super) fn end_some(&mut self) -> WritebackProgress {
        let mut done = WritebackProgress::default();
        while self.under_way > 0 && (!self.has_room() || self.batches[self.first].unwritten == 0) {
            done = done.and(self.end_first());
        }
        done
    }

    /// Completes all batches.
    pub(super) fn end_all(&mut self) -> WritebackProgress {
        let mut done = WritebackProgress::default();
        while self.under_way > 0 {
            done = done.and(self.end_first());
        }
        done
    }
}

/// Decides about one staged page: it is dropped if its stored copy is the same or it is
/// all zeros, otherwise it is to be written; also where the channel promotes the same copy.
fn classify(
    standby: &StandbyList,
    frame: u32,
    token: u64,
    channel: Option<&mut (dyn Channel + 'static)>,
) -> Result<Option<WritePage>, StoreError> {
    let Some((stretch, index)) = standby.home(frame) else {
        return Ok(None);
    };
    let word = stretch.table().word(index);
    let seen = word.load();
    if seen.state() != State::Staged || seen.frame() != frame {
        return Ok(None);
    }
    let at = standby.places.staged(frame);
    // SAFETY: a staged page is mapped and readable until the claimer of its piece, which
    // is the caller, discards it, and its contents do not change.
    let page = unsafe { &*(at as *const [u8; PAGE]) };
    let Some(driver) = stretch.driver() else {
        return Ok(None);
    };
    // A driver with no store saves the page itself. Its write may be held up while a fault takes the page back and
    // another cleaner saves newer contents: the page is claimed, so that the older write cannot land last.
    let claims = !driver.needs_store();
    if claims && !word.begin_fill(seen) {
        return Ok(None);
    }
    let outcome = call_driver(|| driver.clean(index, page));
    if claims {
        word.abort_fill(seen);
    }
    let kept = match outcome {
        CleanOutcome::Kept => true,
        CleanOutcome::Refused(error) => return Err(error),
        CleanOutcome::ToStore => driver.zero_is_empty() && is_zero(page),
    };
    if kept {
        if let Some(dropped) = word.drop_zero(frame) {
            standby.log.add(Counter::DroppedZero, 1);
            if let Some(handle) = dropped {
                standby.store.release(handle);
            }
        }
        return Ok(None);
    }
    let sum = Checksum::of(page);
    if let (Some(handle), Some(store)) = (seen.handle(), standby.store.get())
        && store.checksum(handle) == sum
        && !channel.is_some_and(|channel| channel.should_promote(handle, page))
    {
        if word.clean_drop(frame) {
            standby.log.add(Counter::DroppedClean, 1);
        }
        return Ok(None);
    }
    Ok(Some(WritePage {
        from: at as *const u8,
        sum,
        token,
    }))
}

fn channel(store: Option<&dyn Store>) -> Result<Option<Box<dyn Channel>>, StoreError> {
    store.map(|store| store.channel(WRITE_DEPTH)).transpose()
}

impl WritebackBatch {
    const NONE: Self = Self {
        claim: None,
        pages: [BatchPage {
            at: 0,
            frame: 0,
            copy: None,
        }; CLAIM],
        count: 0,
        unwritten: 0,
        refusal: None,
    };
}

/// Prefetches a page into the cache while another is checked: 0.4 us instead of 0.57 for a
/// page that has left the caches, if other processes use the memory, too.
fn prefetch(page: usize) {
    for line in (page..page + PAGE).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which touches nothing, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line as *const i8) };
    }
}

fn is_zero(page: &[u8; PAGE]) -> bool {
    // SAFETY: every byte pattern is a valid u64.
    let (head, words, tail) = unsafe { page.align_to::<u64>() };
    head.iter().chain(tail).all(|b| *b == 0) && words.iter().all(|w| *w == 0)
}
