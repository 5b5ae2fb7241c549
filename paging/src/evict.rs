//! Taking pages away: staging, writing out, emptying slots.
//!
//! The evictor's lock is held by whoever evicts: the background evictor, which keeps a
//! few frames unused, or the one who faults and finds none. Whoever faults pays.
//!
//! A unit's pages leave the program's reach in one `mremap`, which is atomic against its
//! writes; what was staged cannot change any more. Then each page is compared with its
//! stored copy by checksum (no write-protection: that costs a shootdown a page, and
//! `mremap` loses its marks), written if it differs, and the slot is discarded.

use crate::counters::Counter;
use crate::driver::Cleaned;
use crate::fill::Failure;
use crate::page::State;
use crate::pager::Pager;
use crate::replacement::{Key, Replacement, ScanResistant};
use crate::stretch::Inner;
use frames::{Frame, State as FrameState};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::{Channel, Checksum, Handle, Store, StoreError, Wait, WritePage};
use translation::{Access, StageError, Staged, UnmapMethod};
use wired::{PAGE, RANGE_PAGES};

/// Writes under way at once while a slot is emptied.
pub(crate) const WRITE_DEPTH: usize = 64;

/// Pages handed to the store at once.
const BATCH: usize = 64;

/// How long to wait for frames that others were asked for before looking again.
const PATIENCE: Duration = Duration::from_millis(2);

/// How often a faulting thread looks for a frame before it says there is none; each
/// round waits up to [`PATIENCE`] where nothing could be emptied.
const ROUNDS: u32 = 10_000;

/// What an eviction works with.
pub(crate) struct Evictor {
    channel: Option<Box<dyn Channel>>,
    replacement: ScanResistant,
    /// Frames whose pages are gone, to be put back at once.
    freed: Box<[Frame]>,
    /// For each page of the slot in hand, plus one: the handle its contents now have.
    written: Box<[Option<Handle>]>,
    /// Room for [`BATCH`].
    batch: Vec<WritePage>,
    /// Where the last search for units in no queue ended: stretch, unit.
    hand: (usize, usize),
}

impl Evictor {
    pub(crate) fn new(
        store: Option<&dyn Store>,
        frames: usize,
    ) -> Result<Self, crate::DomainError> {
        Ok(Self {
            channel: store.map(|s| s.channel(WRITE_DEPTH)).transpose()?,
            replacement: ScanResistant::new(frames),
            freed: vec![Frame(0); RANGE_PAGES].into_boxed_slice(),
            written: vec![None; RANGE_PAGES].into_boxed_slice(),
            batch: Vec::with_capacity(BATCH),
            hand: (0, 0),
        })
    }

    /// Another process now: its own channel.
    pub(crate) fn become_child(&mut self, channel: Option<Box<dyn Channel>>) {
        // A channel inherited by a fork knows it: dropping it closes nothing of this
        // process's.
        self.channel = channel;
    }
}

/// How long a page that a device held is left alone: a registered buffer is held for good,
/// and each look costs two mappings changed.
const HELD: Duration = Duration::from_secs(1);

/// Pages found held by a device, in the order they were found.
pub(crate) struct HeldByDevices {
    pages: Vec<usize>,
    since: Option<Instant>,
}

impl HeldByDevices {
    /// Room for `frames` pages: no more can be resident.
    pub(crate) fn new(frames: usize) -> Self {
        Self {
            pages: Vec::with_capacity(frames),
            since: None,
        }
    }

    /// Notes a page. False where there is no room.
    fn note(&mut self, page: usize) -> bool {
        let room = self.pages.len() < self.pages.capacity();
        if room {
            self.pages.push(page);
            self.since.get_or_insert_with(Instant::now);
        }
        room
    }

    /// One page whose time is over.
    fn due(&mut self) -> Option<usize> {
        if self.since?.elapsed() < HELD {
            return None;
        }
        let page = self.pages.pop();
        if page.is_none() {
            self.since = None;
        }
        page
    }
}

/// Why a worker got no frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoFrame {
    /// It must not wait, and would have to.
    Busy,
    /// None can be had.
    Never(Failure),
}

/// What a round of eviction brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Frames that became unused.
    Freed(u32),
    /// Nothing to take: nothing is resident that may go.
    Nothing,
    /// The store refused what had to be written.
    Refused(StoreError),
}

impl Pager {
    /// An unused frame for a page in this state, if there is one. The last few are for
    /// pages that are stored already: they can be dropped again without a write, so that
    /// what is in a store that is full can still be read.
    pub(crate) fn take_frame(&self, wanted_by: State) -> Option<Frame> {
        let client = self.frames();
        if wanted_by == State::Empty && self.reserve > 0 {
            let in_use = client.n().saturating_sub(client.unused());
            if client.resident_limit().saturating_sub(in_use) <= self.reserve {
                return None;
            }
        }
        client.take()
    }

    /// A frame for a worker, which may wait. `busy` says that the caller has reads under
    /// way, so that it must not wait for the evictor's lock.
    pub(crate) fn obtain_frame(&self, wanted_by: State, busy: bool) -> Result<Frame, NoFrame> {
        let mut demanded = false;
        let frame = self.search_frame(wanted_by, busy, &mut demanded);
        if demanded {
            // Others need hold nothing back for this domain any more.
            self.frames().ledger().demand(self.frames().id(), 0);
        }
        frame
    }

    fn search_frame(
        &self,
        wanted_by: State,
        busy: bool,
        demanded: &mut bool,
    ) -> Result<Frame, NoFrame> {
        let mut barren = 0;
        let mut refused = 0;
        loop {
            let freed = self.frames().ledger().freed_seq();
            if let Some(frame) = self.take_frame(wanted_by) {
                return Ok(frame);
            }
            let mut evictor = match busy {
                true => self.evictor.try_lock().ok_or(NoFrame::Busy)?,
                false => self.evictor.lock(),
            };
            // Another thread may have evicted while this one waited for the lock.
            if let Some(frame) = self.take_frame(wanted_by) {
                return Ok(frame);
            }
            self.counters().add(Counter::starved, 1);
            let round = self.evict(
                &mut evictor,
                (self.unit_pages as u32 / 8).max(self.reserve + 1),
            );
            let units = evictor.replacement.len() as u32;
            drop(evictor);
            match round {
                Round::Freed(_) => (barren, refused) = (0, 0),
                // Every unit has its turn: one may hold pages that need not be written.
                Round::Refused(_) if refused <= units => refused += 1,
                // Copies of pages that are resident are a convenience; room for pages that
                // must leave is not.
                Round::Refused(_) if self.release_copies() > 0 => refused = 0,
                Round::Refused(error) => return Err(NoFrame::Never(Failure::NoFrame(error))),
                Round::Nothing => {
                    // Others of the tree may hold more than their share; pages that a
                    // device holds come free when it is done.
                    *demanded = true;
                    self.frames().ledger().demand(self.frames().id(), 1);
                    if busy {
                        return Err(NoFrame::Busy);
                    }
                    self.frames().ledger().wait_freed(freed, Some(PATIENCE));
                    barren += 1;
                    if barren >= ROUNDS {
                        return Err(NoFrame::Never(match self.may_evict() {
                            true => Failure::AllNailed,
                            false => Failure::NoSoundEviction,
                        }));
                    }
                }
            }
        }
    }

    /// Gives up the stored copies of pages that are resident. How many.
    fn release_copies(&self) -> u32 {
        let _evictor = self.evictor.lock();
        let mut released = 0;
        for n in 0..self.directory.len() {
            let Some(table) = self.directory.nth(n).map(Inner::table) else {
                break;
            };
            for unit in (0..table.unit_count()).filter(|unit| table.touched(*unit)) {
                for handle in table
                    .unit_pages(unit)
                    .filter_map(|i| table.word(i).take_handle())
                {
                    self.forget(handle);
                    released += 1;
                }
            }
        }
        released
    }

    /// Tells the replacement what a fill means for its order.
    pub(crate) fn note_filled(&self, stretch: &Inner, unit: usize, first: bool, returned: bool) {
        // Never waited for on the fault path: a unit that is not queued now is queued by
        // its next fill, and a lost mark of heat is only a mark.
        match self.evictor.try_lock() {
            Some(mut evictor) => {
                let key = Key::new(stretch.id(), unit);
                if first && !evictor.replacement.filled(key) {
                    stretch.table().dequeued(unit);
                }
                if returned {
                    evictor.replacement.refaulted(key);
                }
            }
            None if first => stretch.table().dequeued(unit),
            None => {}
        }
    }

    /// Rings for the background evictor when unused frames run low.
    pub(crate) fn wake_evictor_below_spare(&self) {
        if self.spare > 0 && self.frames().unused() < self.spare / 2 {
            self.ring_evictor();
        }
    }

    /// Rings for the background evictor.
    pub(crate) fn ring_evictor(&self) {
        let frames = self.frames();
        frames.ledger().ring(frames.id());
    }

    /// Makes about `want` frames unused.
    pub(crate) fn evict(&self, evictor: &mut Evictor, want: u32) -> Round {
        let mut freed = 0;
        let mut refusal = None;
        while freed < want {
            let target = self.standby_target();
            if self.staging.standby() < target && self.stage_next(evictor) {
                continue;
            }
            match self.empty_oldest(evictor) {
                Some(Ok(count)) => freed += count,
                Some(Err((count, error))) => {
                    freed += count;
                    refusal = Some(error);
                    break;
                }
                None if self.stage_next(evictor) => {}
                None => break,
            }
        }
        match (freed, refusal) {
            (0, Some(error)) => Round::Refused(error),
            (0, None) => Round::Nothing,
            (count, _) => Round::Freed(count),
        }
    }

    /// How many frames stand by before the oldest are given up: what a sweep takes where
    /// frames are few, a sixteenth of them where they are many.
    fn standby_target(&self) -> u32 {
        (self.frames().contract().x / 16).max(1)
    }

    /// Stages the unit that the replacement would lose first. False where there is none.
    fn stage_next(&self, evictor: &mut Evictor) -> bool {
        if self.staging.free_slot().is_none() {
            return false;
        }
        // As many tries as there are units in the queues: a unit that turns out to hold
        // nothing that may go (all nailed, or pinned) is passed over.
        for _ in 0..evictor.replacement.len() {
            let Some(key) = evictor.replacement.victim_by(&mut |key| self.movable(key)) else {
                break;
            };
            let Some(stretch) = self.by_id(key.stretch()) else {
                continue;
            };
            if key.unit() >= stretch.table().unit_count() {
                continue;
            }
            stretch.table().dequeued(key.unit());
            let staged = self.stage_unit(stretch, key.unit());
            // Pages that a device holds came back; the unit stands in line again.
            let table = stretch.table();
            if table.movable(key.unit()) > 0 && table.touch(key.unit()) {
                evictor.replacement.filled(key);
            }
            if staged > 0 {
                return true;
            }
        }
        self.find_unqueued(evictor)
    }

    /// Pages of a unit that are resident and may go.
    fn movable(&self, key: Key) -> u32 {
        match self.by_id(key.stretch()) {
            Some(stretch) if key.unit() < stretch.table().unit_count() => {
                let count = stretch.table().movable(key.unit());
                if count == 0 {
                    // Forgotten by the replacement: its next fill puts it in again.
                    stretch.table().dequeued(key.unit());
                }
                count
            }
            _ => 0,
        }
    }

    /// Units whose fill found the evictor's lock taken stand in no queue until their next
    /// fill. When the queues are empty they are looked for.
    fn find_unqueued(&self, evictor: &mut Evictor) -> bool {
        // From where the last search ended, once around.
        let (mut n, mut unit) = evictor.hand;
        let mut wrapped = false;
        loop {
            let Some(stretch) = self.directory.nth(n) else {
                if wrapped {
                    return false;
                }
                (n, unit, wrapped) = (0, 0, true);
                continue;
            };
            let table = stretch.table();
            let units = if stretch.evictable() {
                table.unit_count()
            } else {
                0
            };
            while unit < units {
                unit += 1;
                if table.movable(unit - 1) > 0 && self.stage_unit(stretch, unit - 1) > 0 {
                    evictor.hand = (n, unit);
                    return true;
                }
            }
            (n, unit) = (n + 1, 0);
        }
    }

    fn by_id(&self, id: u32) -> Option<&Inner> {
        (0..self.directory.len())
            .filter_map(|n| self.directory.nth(n))
            .find(|s| s.id() == id)
    }

    /// Takes the resident pages of one unit out of the program's reach. Returns how many.
    /// The caller holds the evictor's lock.
    pub(crate) fn stage_unit(&self, stretch: &Inner, unit: usize) -> u32 {
        if !stretch.evictable() || !self.may_evict() {
            return 0;
        }
        self.stage_part(stretch, unit, stretch.table().unit_pages(unit))
    }

    /// Whether pages can be taken without losing what a device writes to them.
    fn may_evict(&self) -> bool {
        self.capabilities.may_evict(self.is_careful())
    }

    /// As [`Pager::stage_unit`], of some pages of the unit, whatever the driver says.
    fn stage_part(&self, stretch: &Inner, unit: usize, pages: std::ops::Range<usize>) -> u32 {
        let Some(slot) = self.staging.free_slot() else {
            return 0;
        };
        let table = stretch.table();
        let gate = table.gate(unit);
        gate.close();
        let frames = self.staging.frames(slot);
        let resident = |i: &usize| {
            let seen = table.word(*i).load();
            seen.may_stage() && seen.state() == State::Resident
        };
        let mut count = 0;
        let mut from = pages.start;
        // Spans between pages that must stay where they are.
        while let Some(start) = (from..pages.end).find(resident) {
            let end = (start..pages.end)
                .find(|i| !table.word(*i).load().may_stage())
                .unwrap_or(pages.end);
            let last = (start..end).rfind(resident).unwrap_or(start);
            count += self.stage_span(stretch, slot, frames, start..last + 1);
            from = end;
        }
        if count > 0 {
            table.went(unit, count);
            self.staging.count(count, 0);
            self.staging.push();
            self.counters().add(Counter::staged, u64::from(count));
        }
        gate.open();
        count
    }

    fn stage_span(
        &self,
        stretch: &Inner,
        slot: usize,
        frames: &[std::sync::atomic::AtomicU32],
        span: std::ops::Range<usize>,
    ) -> u32 {
        let table = stretch.table();
        let source = table.address(span.start);
        let length = span.len() * PAGE;
        let target = self.staging.address(slot) + table.offset_in_unit(span.start);
        let each = |offset: usize, bytes: usize| {
            // The slot has the stretch's protection; reading it needs at least that.
            if stretch.odd_access() {
                // SAFETY: the slot is the pager's.
                let _ =
                    unsafe { translation::set_access(target + offset, bytes, Access::READ_WRITE) };
            }
            let first = table.index(source + offset);
            for index in first..first + bytes / PAGE {
                let seen = table.word(index).load();
                if seen.state() != State::Resident || !seen.may_stage() {
                    continue;
                }
                let offset = table.offset_in_unit(index);
                self.places.set_home(seen.frame(), table.address(index));
                self.places
                    .set_staged(seen.frame(), self.staging.address(slot) + offset);
                frames[offset / PAGE].store(seen.frame() + 1, Ordering::Relaxed);
            }
        };
        match self.capabilities.unmap_method() {
            // SAFETY: the slot is the pager's and empty; the pages fault back in.
            UnmapMethod::Stage => unsafe {
                translation::stage_pieces(source, length, target, |piece| match piece.outcome {
                    Staged::Moved => each(piece.offset, piece.len),
                    Staged::NotMapped | Staged::Refused(StageError::NoMappings) => {}
                    Staged::Refused(error) => self.complain(format_args!(
                        "eviction could not take {} bytes at {:#x}: {error}",
                        piece.len,
                        source + piece.offset
                    )),
                });
            },
            _ => {
                let copied = match self.pagemap() {
                    // SAFETY: as above; the gate keeps fillers out.
                    Some(pagemap) => unsafe {
                        translation::stage_by_copy(
                            self.userfault(),
                            pagemap,
                            source,
                            length,
                            target,
                        )
                    },
                    None => Err(StageError::NotProtectable),
                };
                match copied {
                    Ok(_) => each(0, length),
                    Err(error) => self.complain(format_args!(
                        "eviction could not take {length} bytes at {source:#x}: {error}"
                    )),
                }
            }
        }
        if self.is_careful() {
            self.return_pinned(stretch, slot, frames, span.clone(), target);
        }
        // Last: as soon as a word says staged, a fault may copy from where its page is.
        let mut count = 0;
        for index in span {
            let word = frames[table.offset_in_unit(index) / PAGE].load(Ordering::Relaxed);
            if word != 0 && table.word(index).stage().is_some() {
                self.mark(word - 1, FrameState::Standby);
                count += 1;
            }
        }
        count
    }

    /// Careful mode: pages that a device holds go back to the program, the others to the
    /// sieve, where they are known not to be held (KERNEL: new pins cannot arise after
    /// staging). Under the unit's closed gate, while the words still say resident.
    fn return_pinned(
        &self,
        stretch: &Inner,
        slot: usize,
        frames: &[std::sync::atomic::AtomicU32],
        span: std::ops::Range<usize>,
        staged: usize,
    ) {
        let table = stretch.table();
        let Some(sieve) = self.sieve(slot) else {
            // Without one nothing is known of any page: all go back.
            return self.return_all(stretch, frames, span, staged);
        };
        let sieve = sieve + table.offset_in_unit(span.start);
        let mut at = 0;
        let mut failed = None;
        while at < span.len() {
            let mut refused = None;
            let (from, to) = (staged + at * PAGE, sieve + at * PAGE);
            let len = (span.len() - at) * PAGE;
            let note = |page| {
                refused.get_or_insert(page);
            };
            // SAFETY: both areas are the pager's.
            let outcome = unsafe {
                match self.pagemap() {
                    Some(pagemap) => translation::separate_pinned_sparse(
                        self.userfault(),
                        pagemap,
                        from,
                        to,
                        len,
                        note,
                    ),
                    None => translation::separate_pinned(self.userfault(), from, to, len, note),
                }
            };
            match outcome {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            let Some(page) = refused.map(|page| at + page) else {
                break;
            };
            // Refused as pinned, or as shared with a child since a fork. A write that
            // changes nothing gives this process a page of its own in the second case; a
            // pinned page is never shared.
            let word = (staged + page * PAGE) as *const std::sync::atomic::AtomicU64;
            // SAFETY: staged and mapped; one locked instruction, which a device's write to
            // the same bytes goes before or after.
            unsafe { &*word }.fetch_or(0, Ordering::SeqCst);
            // SAFETY: both areas are the pager's.
            let again = unsafe {
                self.userfault().move_present(
                    sieve + page * PAGE,
                    staged + page * PAGE,
                    PAGE,
                    translation::Wake::No,
                )
            };
            if again.is_err() {
                let index = span.start + page;
                let slot_word = &frames[table.offset_in_unit(index) / PAGE];
                self.put_back(stretch, index, slot_word, staged + page * PAGE);
                self.counters().add(Counter::pinned, 1);
                self.leave_to_device(stretch, index);
            }
            at = page + 1;
        }
        if let Some(error) = failed {
            self.complain(format_args!(
                "pinned pages could not be told apart: {error}"
            ));
            // What was moved on is known not to be pinned; the rest goes back.
            return self.return_all(
                stretch,
                frames,
                span.start + at..span.end,
                staged + at * PAGE,
            );
        }
        for index in span.clone() {
            let word = frames[table.offset_in_unit(index) / PAGE].load(Ordering::Relaxed);
            if word != 0 {
                self.places
                    .set_staged(word - 1, sieve + (index - span.start) * PAGE);
            }
        }
    }

    /// Nails a page that a device holds, until it is time to look again. Under the unit's
    /// closed gate.
    fn leave_to_device(&self, stretch: &Inner, index: usize) {
        let word = stretch.table().word(index);
        if self
            .held_by_devices
            .lock()
            .note(stretch.table().address(index))
            && word.nail()
        {
            self.mark(word.load().frame(), FrameState::Nailed);
        }
    }

    /// Lets pages go that were left to devices for long enough: the next eviction looks
    /// at them again.
    pub(crate) fn revisit_devices(&self) {
        let Some(evictor) = self.evictor.try_lock() else {
            return;
        };
        loop {
            let due = self.held_by_devices.lock().due();
            let Some(page) = due else { break };
            self.unnail_quietly(page);
        }
        drop(evictor);
    }

    fn return_all(
        &self,
        stretch: &Inner,
        frames: &[std::sync::atomic::AtomicU32],
        span: std::ops::Range<usize>,
        staged: usize,
    ) {
        let table = stretch.table();
        for index in span.clone() {
            let slot_word = &frames[table.offset_in_unit(index) / PAGE];
            self.put_back(
                stretch,
                index,
                slot_word,
                staged + (index - span.start) * PAGE,
            );
        }
    }

    /// Puts one page that was taken back where it was, the same page of memory, in its
    /// frame. Under the unit's closed gate; the word is the caller's business. False where
    /// there was none, or the kernel would not.
    fn put_back(
        &self,
        stretch: &Inner,
        index: usize,
        slot_word: &std::sync::atomic::AtomicU32,
        staged: usize,
    ) -> bool {
        let word = slot_word.load(Ordering::Relaxed);
        if word == 0 {
            return false;
        }
        let addr = stretch.table().address(index);
        // SAFETY: the page's own place, missing; the closed gate keeps fillers out.
        match unsafe { translation::restore_pinned(staged, addr, self.userfault(), false) } {
            Ok(()) => {
                slot_word.store(0, Ordering::Relaxed);
                self.mark(word - 1, FrameState::Mapped);
                true
            }
            Err(error) => {
                self.complain(format_args!(
                    "a page could not be put back at {addr:#x}: {error}"
                ));
                false
            }
        }
    }

    /// Puts a page of the standby list back where it was, unless a fault has it already.
    /// Under the unit's closed gate, by the evictor's lock holder.
    fn put_back_staged(&self, stretch: &Inner, index: usize, frame: u32) -> bool {
        let word = stretch.table().word(index);
        let seen = word.load();
        if seen.state() != State::Staged || seen.frame() != frame || !word.begin_fill(seen) {
            return false;
        }
        let staged = self.places.staged(frame);
        let back = self
            .slot_word(staged)
            .is_some_and(|slot_word| self.put_back(stretch, index, slot_word, staged));
        if back {
            word.finish_in_place();
            let table = stretch.table();
            table.came(table.unit_of(index));
        } else {
            word.abort_fill(seen);
        }
        back
    }

    /// The sieve for a slot, made when first needed: where staged pages are moved that no
    /// device holds. Registered, since `UFFDIO_MOVE` wants its destination so.
    fn sieve(&self, slot: usize) -> Option<usize> {
        if let Some(at) = self.staging.sieve(slot) {
            return Some(at);
        }
        if !self.capabilities.may_evict(true) {
            return None;
        }
        let area = translation::reserve_staging(self.staging.bytes()).ok()?;
        let base = area.addr;
        self.userfault()
            .register(base, self.staging.bytes(), true, false)
            .ok()?;
        self.staging.set_sieve(base);
        self.staging.sieve(slot)
    }

    /// A staged page comes back in the frame it has: when no other frame can be had.
    pub(crate) fn unstage(&self, stretch: &Inner, index: usize) -> bool {
        let Some(_evictor) = self.evictor.try_lock() else {
            return false;
        };
        let table = stretch.table();
        let unit = table.unit_of(index);
        table.gate(unit).close();
        let frame = table.word(index).load().frame();
        let back = self.put_back_staged(stretch, index, frame);
        if back {
            self.staging.count(0, 1);
            table.touch(unit);
        }
        table.gate(unit).open();
        back
    }

    /// The slot's word for a staged address.
    fn slot_word(&self, staged: usize) -> Option<&std::sync::atomic::AtomicU32> {
        let area = self.staging.bytes();
        let offset = [Some(self.staging.address(0)), self.staging.sieve(0)]
            .into_iter()
            .flatten()
            .find_map(|base| staged.checked_sub(base).filter(|o| *o < area))?;
        let slot = offset / self.staging.slot_bytes();
        Some(&self.staging.frames(slot)[offset % self.staging.slot_bytes() / PAGE])
    }

    /// Writes out and empties the slot staged first. None where no slot is in use;
    /// otherwise the frames that became unused, and the store's refusal if there was one.
    pub(crate) fn empty_oldest(
        &self,
        evictor: &mut Evictor,
    ) -> Option<Result<u32, (u32, StoreError)>> {
        let slot = self.staging.oldest()?;
        let frames = self.staging.frames(slot);
        evictor.written.fill(None);
        evictor.batch.clear();
        let mut refusal = None;
        for (offset, word) in frames.iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            if word == 0 {
                continue;
            }
            match self.judge(word - 1, offset) {
                Ok(None) => {}
                Ok(Some(write)) => evictor.batch.push(write),
                Err(error) => refusal = Some(error),
            }
            if evictor.batch.len() == BATCH {
                self.write_batch(evictor, &mut refusal);
            }
        }
        self.write_batch(evictor, &mut refusal);
        let (freed, kept) = self.settle(evictor, slot);
        if kept == 0 {
            self.staging.pop();
        }
        Some(match refusal {
            None => Ok(freed),
            Some(error) => Err((freed, error)),
        })
    }

    /// What becomes of one staged page: dropped if its stored copy is the same or it is
    /// all zeros, else to be written.
    fn judge(&self, frame: u32, offset: usize) -> Result<Option<WritePage>, StoreError> {
        let Some((stretch, index)) = self.home(frame) else {
            return Ok(None);
        };
        let word = stretch.table().word(index);
        let seen = word.load();
        if seen.state() != State::Staged || seen.frame() != frame {
            return Ok(None);
        }
        let at = self.places.staged(frame);
        // SAFETY: a staged page is mapped and readable until its slot is discarded, which
        // the evictor's lock holder alone does, and its contents do not change.
        let page = unsafe { &*(at as *const [u8; PAGE]) };
        let Some(driver) = stretch.driver() else {
            return Ok(None);
        };
        let kept = match driver.clean(index, page) {
            Cleaned::Kept => true,
            Cleaned::Refused(error) => return Err(error),
            Cleaned::ToStore => driver.zero_is_empty() && is_zero(page),
        };
        if kept {
            if let Some(dropped) = word.drop_zero(frame) {
                self.counters().add(Counter::dropped_zero, 1);
                if let Some(handle) = dropped {
                    self.forget(handle);
                }
            }
            return Ok(None);
        }
        let sum = Checksum::of(page);
        if let (Some(handle), Some(store)) = (seen.handle(), self.store)
            && store.checksum(handle) == sum
        {
            if word.clean_drop(frame) {
                self.counters().add(Counter::dropped_clean, 1);
            }
            return Ok(None);
        }
        Ok(Some(WritePage {
            from: at as *const u8,
            sum,
            token: offset as u64,
        }))
    }

    fn home(&self, frame: u32) -> Option<(&Inner, usize)> {
        let home = self.places.home(frame);
        let stretch = self.directory.find(home)?;
        Some((stretch, stretch.table().index(home)))
    }

    fn write_batch(&self, evictor: &mut Evictor, refusal: &mut Option<StoreError>) {
        let Evictor {
            channel: Some(channel),
            batch,
            written,
            ..
        } = evictor
        else {
            return;
        };
        if batch.is_empty() || refusal.is_some() {
            return;
        }
        if let Err(error) = channel.submit_write(batch) {
            *refusal = Some(error);
        }
        batch.clear();
        while channel.pending() > 0 {
            let Some(completion) = channel.complete(Wait::Yes) else {
                break;
            };
            match completion.result {
                Ok(handle) => {
                    written[completion.token as usize] = handle;
                    self.counters().add(Counter::written, 1);
                }
                Err(error) => {
                    self.counters().add(Counter::write_failures, 1);
                    *refusal = Some(error);
                }
            }
        }
    }

    /// Settles every page of a slot whose writes are done, discards its memory and puts
    /// the frames back. Pages that were refused go back to the program. Returns how many
    /// frames became unused and how many pages are still in the slot.
    fn settle(&self, evictor: &mut Evictor, slot: usize) -> (u32, u32) {
        let frames = self.staging.frames(slot);
        let mut count = 0;
        let mut kept = 0;
        let mut went = 0;
        for (offset, slot_word) in frames.iter().enumerate() {
            let word = slot_word.load(Ordering::Relaxed);
            if word == 0 {
                continue;
            }
            let frame = word - 1;
            let mut handle = evictor.written[offset].take();
            if let Some((stretch, index)) = self.home(frame) {
                let page = stretch.table().word(index);
                loop {
                    let seen = page.load();
                    if seen.frame() != frame
                        || !matches!(seen.state(), State::Staged | State::Filling)
                    {
                        break;
                    }
                    if seen.state() == State::Filling {
                        // A fault is copying it back this moment.
                        std::hint::spin_loop();
                        continue;
                    }
                    if let Some(new) = handle {
                        if let Some(old) = page.write_done(frame, new) {
                            handle = None;
                            if let Some(old) = old {
                                self.forget(old);
                            }
                        }
                        continue;
                    }
                    // Not written: refused, or in a fault's hands then and given back since. It
                    // returns to the program.
                    break;
                }
                if page.load().state() == State::Staged && page.load().frame() == frame {
                    let gate = stretch.table().gate(stretch.table().unit_of(index));
                    gate.close();
                    let back = self.put_back_staged(stretch, index, frame);
                    gate.open();
                    if back {
                        went += 1;
                        let unit = stretch.table().unit_of(index);
                        if stretch.table().touch(unit) {
                            evictor.replacement.filled(Key::new(stretch.id(), unit));
                        }
                        continue;
                    }
                    if page.load().state() == State::Staged && page.load().frame() == frame {
                        kept += 1;
                        continue;
                    }
                    // A fault was quicker: it has the contents, in another frame.
                }
            }
            if let Some(handle) = handle {
                self.forget(handle);
            }
            slot_word.store(0, Ordering::Relaxed);
            evictor.freed[count as usize] = Frame(frame);
            count += 1;
            went += 1;
        }
        if kept == 0 {
            // SAFETY: everything in the slot has gone elsewhere.
            unsafe {
                let _ = translation::discard(self.staging.address(slot), self.staging.slot_bytes());
                if let Some(sieve) = self.staging.sieve(slot) {
                    let _ = translation::discard(sieve, self.staging.slot_bytes());
                }
            }
        }
        self.put_all(&evictor.freed[..count as usize]);
        self.staging.count(0, went);
        (count, kept)
    }

    /// Writes to whoever watches. Formats into a buffer on the stack: the page path
    /// allocates nothing.
    pub(crate) fn complain(&self, text: std::fmt::Arguments<'_>) {
        let mut line = crate::message::Line::new();
        let _ = std::fmt::Write::write_fmt(&mut line, format_args!("selfpage: {text}\n"));
        self.hooks.notice(line.as_str());
    }
}

impl Pager {
    /// Takes a range of pages to the standby list, contents kept.
    pub(crate) fn stage_pages(&self, stretch: &Inner, pages: std::ops::Range<usize>) {
        let table = stretch.table();
        if pages.is_empty() {
            return;
        }
        for unit in table.unit_of(pages.start)..=table.unit_of(pages.end - 1) {
            let mut evictor = self.evictor.lock();
            while self.staging.free_slot().is_none() {
                if self.empty_oldest(&mut evictor).is_none() {
                    break;
                }
            }
            let of_unit = table.unit_pages(unit);
            let part = of_unit.start.max(pages.start)..of_unit.end.min(pages.end);
            self.stage_part(stretch, unit, part);
        }
    }

    /// Writes a unit of a mapped stretch back: its pages are staged, judged, and return
    /// when they are next used. The page of the first failure, and why.
    pub(crate) fn flush_unit(
        &self,
        stretch: &Inner,
        unit: usize,
        evictor: &mut Evictor,
    ) -> Option<StoreError> {
        self.drain_slots(evictor);
        if self.stage_unit(stretch, unit) == 0 {
            return None;
        }
        let mut failed = None;
        while let Some(emptied) = self.empty_oldest(evictor) {
            if let Err((freed, error)) = emptied {
                failed = Some(error);
                if freed == 0 {
                    break;
                }
            }
        }
        failed
    }
}

fn is_zero(page: &[u8; PAGE]) -> bool {
    // SAFETY: every byte pattern is a valid u64.
    let (head, words, tail) = unsafe { page.align_to::<u64>() };
    head.iter().chain(tail).all(|b| *b == 0) && words.iter().all(|w| *w == 0)
}
