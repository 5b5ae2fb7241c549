//! Pages that a device may hold are detected before they are evicted.
//!
//! If a page that a device holds were copied out and discarded, what the device writes later
//! would be lost. So in careful mode staged pages are moved on to a *sieve*, which the kernel
//! refuses for pinned pages. Those go back to the program, the same pages of memory, and stay
//! nailed until the next check.

use crate::counters::Counter;
use crate::page::State;
use crate::pager::Pager;
use crate::stretch::Inner;
use frames::State as FrameState;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use translation::{MapError, TranslationError};
use wired::PAGE;

/// How long to leave a page alone that a device held: a registered buffer is held for good,
/// and each check changes two mappings.
const HELD: Duration = Duration::from_secs(1);

/// How often to retry a copy that meets a change of the address space.
const TRIES: usize = 1000;

/// Why a page did not go back to its place.
#[derive(Debug, thiserror::Error)]
enum NotBack {
    #[error("the address space is changing")]
    Later,
    #[error(transparent)]
    NotMoved(#[from] TranslationError),
    #[error(transparent)]
    NotCopied(#[from] MapError),
}

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

    /// Records a page. Returns false if there is no room.
    fn note(&mut self, page: usize) -> bool {
        let room = self.pages.len() < self.pages.capacity();
        if room {
            self.pages.push(page);
            self.since.get_or_insert_with(Instant::now);
        }
        room
    }

    /// One page that is due for a check.
    fn due(&mut self) -> Option<usize> {
        if self.since?.elapsed() < HELD {
            return None;
        }
        let page = self.pages.last().copied();
        if page.is_none() {
            self.since = None;
        }
        page
    }

    /// Removes a page from the list. Returns false if it is not on it.
    fn strike(&mut self, page: usize) -> bool {
        let at = self.pages.iter().rposition(|noted| *noted == page);
        at.map(|at| self.pages.swap_remove(at)).is_some()
    }

    /// Removes all pages of a range of addresses.
    fn strike_all(&mut self, range: &Range<usize>) {
        self.pages.retain(|page| !range.contains(page));
    }
}

impl Pager {
    /// Careful mode: pages that a device holds go back to the program, the others to the
    /// sieve, where they are known not to be held (new pins cannot arise after staging). Under
    /// the unit's closed gate, while the words are still `Resident`.
    pub(super) fn return_pinned(
        &self,
        stretch: &Inner,
        slot: usize,
        frames: &[AtomicU32],
        span: Range<usize>,
        staged: usize,
    ) {
        let table = stretch.table();
        let Some(sieve) = self.sieve(slot) else {
            // Without a sieve no page is known to be free of pins: all go back.
            return self.return_all(stretch, frames, span, staged);
        };
        let sieve = sieve + table.offset_in_unit(span.start);
        // Record the new location immediately, so that a later failure leaves each page where
        // its place says.
        let moved = |pages: Range<usize>| {
            for page in pages {
                let slot_word = &frames[table.offset_in_unit(span.start + page) / PAGE];
                let word = slot_word.load(Ordering::Relaxed);
                if word != 0 {
                    self.places.set_staged(word - 1, sieve + page * PAGE);
                }
            }
        };
        let mut at = 0;
        while at < span.len() {
            let mut refused = None;
            let (from, to) = (staged + at * PAGE, sieve + at * PAGE);
            let len = (span.len() - at) * PAGE;
            let note = |page| {
                refused.get_or_insert(page);
            };
            // SAFETY: both areas are the pager's.
            let outcome = unsafe {
                match self.mm.pagemap() {
                    Some(pagemap) => translation::separate_pinned_sparse(
                        self.mm.userfault(),
                        pagemap,
                        from,
                        to,
                        len,
                        note,
                    ),
                    None => translation::separate_pinned(self.mm.userfault(), from, to, len, note),
                }
            };
            let Some(page) = refused.map(|page| at + page) else {
                let Err(stop) = outcome else {
                    return moved(at..span.len());
                };
                self.log
                    .write(format_args!("pinned pages could not be told apart: {stop}"));
                // The pages moved on are known not to be pinned; the rest goes back.
                let rest = at + stop.done / PAGE;
                moved(at..rest);
                let left = span.start + rest..span.end;
                return self.return_all(stretch, frames, left, staged + rest * PAGE);
            };
            // The remainder, an error included, is retried.
            moved(at..page);
            self.try_again(
                stretch,
                slot,
                frames,
                span.start + page,
                staged + page * PAGE,
            );
            at = page + 1;
        }
    }

    /// Retries a page that would not move to the sieve: the kernel refused it as pinned, or as
    /// shared with a child since a fork. In the second case a write that changes nothing gives
    /// this process a page of its own; a pinned page is never shared.
    fn try_again(
        &self,
        stretch: &Inner,
        slot: usize,
        frames: &[AtomicU32],
        index: usize,
        staged: usize,
    ) {
        let offset = stretch.table().offset_in_unit(index);
        let slot_word = &frames[offset / PAGE];
        let Some(to) = self.staging.sieve(slot).map(|sieve| sieve + offset) else {
            return;
        };
        if slot_word.load(Ordering::Relaxed) == 0 {
            // Not a page of the pager's: a mark, which no access may meet, and which goes with
            // the slot.
            return;
        }
        // SAFETY: staged and mapped.
        unsafe { wired::rewrite(staged as *mut u64) };
        // SAFETY: both areas are the pager's.
        let again = unsafe {
            let wake = translation::Wake::No;
            self.mm.userfault().move_present(to, staged, PAGE, wake)
        };
        let frame = slot_word.load(Ordering::Relaxed);
        match again {
            Ok(()) if frame != 0 => self.places.set_staged(frame - 1, to),
            Ok(()) => {}
            Err(_) => {
                let back = self.put_back(stretch, index, slot_word, staged, true);
                self.log.counters().add(Counter::pinned, 1);
                if back {
                    self.leave_to_device(stretch, index);
                }
            }
        }
    }

    /// Nails a page that a device holds, until the next check. Under the unit's closed gate. A
    /// page is on the list as long as one of its nails is the list's.
    fn leave_to_device(&self, stretch: &Inner, index: usize) {
        let word = stretch.table().word(index);
        if self
            .held_by_devices
            .lock()
            .note(stretch.table().address(index))
            && word.nail()
        {
            self.frames.mark(word.load().frame(), FrameState::Nailed);
        }
    }

    /// Unnails pages that were left to devices for long enough: the next eviction checks them
    /// again.
    pub(crate) fn revisit_devices(&self) {
        // Keeps the stretches in place, and stagers from recording pages.
        let Some(_stager) = self.stager.try_lock() else {
            return;
        };
        loop {
            let due = self.held_by_devices.lock().due();
            let Some(page) = due else { break };
            let Some(stretch) = self.mm.index.find(page) else {
                self.held_by_devices.lock().strike(page);
                continue;
            };
            let table = stretch.table();
            let gate = table.gate(table.unit_of(table.index(page)));
            gate.close();
            if self.held_by_devices.lock().strike(page) {
                // The search for unqueued units finds the unit.
                self.unnail_page(stretch, table.index(page));
            }
            gate.open();
        }
    }

    /// Drops the records of pages whose contents were discarded, nails included. Under the
    /// unit's closed gate.
    pub(crate) fn forget_held(&self, range: &Range<usize>) {
        self.held_by_devices.lock().strike_all(range);
    }

    /// Moves the record of a page, and its nails, to another address. Returns true if a device
    /// holds it. Under both units' closed gates.
    pub(crate) fn move_held(&self, from: usize, to: usize) -> bool {
        let mut held = self.held_by_devices.lock();
        held.strike(from) && held.note(to)
    }

    fn return_all(&self, stretch: &Inner, frames: &[AtomicU32], span: Range<usize>, staged: usize) {
        let table = stretch.table();
        for index in span.clone() {
            let slot_word = &frames[table.offset_in_unit(index) / PAGE];
            let staged = staged + (index - span.start) * PAGE;
            // Each may be held; without a pause the next fault would take and return them
            // again.
            if self.put_back(stretch, index, slot_word, staged, true) {
                self.leave_to_device(stretch, index);
            }
        }
    }

    /// Puts one staged page back at its address, in its frame. A page that a device may hold
    /// goes back as the same page of memory, with the slot's rights; a copy of any other comes
    /// under the rights and the key of its address. Under the unit's closed gate; the caller
    /// updates the word. Returns false if there was no page, or the kernel refused.
    fn put_back(
        &self,
        stretch: &Inner,
        index: usize,
        slot_word: &AtomicU32,
        staged: usize,
        held: bool,
    ) -> bool {
        let word = slot_word.load(Ordering::Relaxed);
        if word == 0 {
            return false;
        }
        let addr = stretch.table().address(index);
        let put = match held {
            true => self.move_back(addr, staged),
            false => self.copy_back(addr, staged),
        };
        match put {
            Ok(()) => {
                slot_word.store(0, Ordering::Relaxed);
                self.frames.mark(word - 1, FrameState::Mapped);
                true
            }
            // The address space is changing: the page keeps its place until the next turn.
            Err(NotBack::Later) => false,
            Err(error) => {
                self.log.write(format_args!(
                    "a page could not be put back at {addr:#x}: {error}"
                ));
                false
            }
        }
    }

    /// A page that a device holds is lost if it stays, so this waits for a mapping as long as
    /// it takes.
    fn move_back(&self, addr: usize, staged: usize) -> Result<(), NotBack> {
        loop {
            // SAFETY: the page's own place, missing; the closed gate keeps fillers out.
            let put =
                unsafe { translation::restore_pinned(staged, addr, self.mm.userfault(), false) };
            match put {
                Err(error) if error.errno == Errno::NOMEM => self.await_room(),
                put => return Ok(put?),
            }
        }
    }

    fn copy_back(&self, addr: usize, staged: usize) -> Result<(), NotBack> {
        let from = std::ptr::with_exposed_provenance(staged);
        let wake = translation::Wake::Yes;
        for _ in 0..TRIES {
            match self.mm.userfault().copy(addr, from, PAGE, wake) {
                Err(MapError::Again { .. }) => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    // SAFETY: its contents are in their place.
                    let _ = unsafe { translation::discard(staged, PAGE) };
                    return Ok(());
                }
            }
        }
        Err(NotBack::Later)
    }

    /// Puts a page of the standby list back at its address, unless a fault is filling it
    /// already. Under the unit's closed gate, by the thread that has claimed its piece.
    pub(super) fn put_back_staged(&self, stretch: &Inner, index: usize, frame: u32) -> bool {
        let word = stretch.table().word(index);
        let seen = word.load();
        if seen.state() != State::Staged || seen.frame() != frame || !word.begin_fill(seen) {
            return false;
        }
        let staged = self.places.staged(frame);
        let back = self.staging.page_at(staged).is_some_and(|(slot, page)| {
            let slot_word = &self.staging.frames(slot)[page];
            // On the sieve are pages that no device holds.
            let held = self.mm.is_careful() && staged == self.staging.address(slot) + page * PAGE;
            self.put_back(stretch, index, slot_word, staged, held)
        });
        if back {
            word.finish_in_place();
            let table = stretch.table();
            table.came(table.unit_of(index));
        } else {
            word.abort_fill(seen);
        }
        back
    }

    /// The sieve for a slot, made when first needed: the destination of staged pages that no
    /// device holds. Registered, since `UFFDIO_MOVE` requires that of its destination.
    fn sieve(&self, slot: usize) -> Option<usize> {
        if let Some(at) = self.staging.sieve(slot) {
            return Some(at);
        }
        if !self.mm.capabilities.may_evict(true) {
            return None;
        }
        #[cfg(test)]
        if tests::NO_SIEVE.load(Ordering::Relaxed) == std::ptr::from_ref(self) as usize {
            return None;
        }
        let base = self.reserve_sieve().or_else(|| {
            let released = self.spare_mappings.release();
            released.then(|| self.reserve_sieve()).flatten()
        })?;
        self.staging.set_sieve(base);
        self.staging.sieve(slot)
    }

    fn reserve_sieve(&self) -> Option<usize> {
        let area = translation::reserve_staging(self.staging.bytes()).ok()?;
        let registered = self
            .mm
            .userfault()
            .register(area.addr, area.len, true, false);
        if registered.is_err() {
            // SAFETY: just reserved; nothing is there.
            let _ = unsafe { translation::unmap_staging(area) };
        }
        registered.ok().map(|()| area.addr)
    }
}

#[cfg(test)]
impl Pager {
    /// As if a device held the page when it was to leave.
    pub(crate) fn hold_for_device(&self, page: usize) {
        let stretch = self.mm.index.find(page).unwrap();
        let table = stretch.table();
        let gate = table.gate(table.unit_of(table.index(page)));
        gate.close();
        self.leave_to_device(stretch, table.index(page));
        gate.open();
    }

    /// As if it were time to look again.
    pub(crate) fn release_all_held(&self) {
        self.held_by_devices.lock().since = Some(Instant::now() - 2 * HELD);
        self.revisit_devices();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contract, Domain, Feature, Paged};
    use std::sync::atomic::AtomicUsize;

    /// The pager that has no sieve.
    pub(super) static NO_SIEVE: AtomicUsize = AtomicUsize::new(0);

    fn small_domain() -> Domain {
        Domain::builder()
            .frames(Contract { g: 32, x: 32 })
            .store("ram:4M".parse().unwrap())
            .build()
            .unwrap()
    }

    /// Else each fault that finds no frame would take and return every page, for as long as it
    /// looks for one.
    #[test]
    fn pages_that_cannot_be_told_apart_are_left_alone_for_a_while() {
        let domain = small_domain();
        let pager = domain.pager();
        if !pager.mm.capabilities.has(Feature::Move) {
            println!("SKIPPED: this kernel has no UFFDIO_MOVE");
            return;
        }
        NO_SIEVE.store(
            std::ptr::from_ref::<Pager>(pager) as usize,
            Ordering::Relaxed,
        );
        let stretch = domain.allocate(16 * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        stretch.populate(0..16 * PAGE).unwrap();
        pager.evict(&mut pager.cleaners[0].lock(), 16);
        let nailed = || {
            let table = pager.mm.index.find(stretch.base()).unwrap().table();
            let nailed = |page: &usize| table.word(*page).load().nails() == 1;
            (0..16).filter(nailed).count()
        };
        assert_eq!(nailed(), 16);
        pager.release_all_held();
        assert_eq!(nailed(), 0);
    }

    /// The device's nail went with the contents: the one that the list would take away later
    /// is the program's own.
    #[test]
    fn a_page_that_is_given_up_and_pinned_anew_stays_pinned() {
        let domain = small_domain();
        let pager = domain.pager();
        let stretch = domain.allocate(4 * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        let word = || pager.mm.index.find(stretch.base()).unwrap().table().word(1);
        let hold = || {
            stretch.populate(PAGE..2 * PAGE).unwrap();
            pager.hold_for_device(stretch.base() + PAGE);
        };
        hold();
        assert_eq!(word().load().nails(), 1);
        pager.release_all_held();
        assert_eq!(word().load().nails(), 0, "let go when its time is over");
        hold();
        stretch.discard(1..2).unwrap();
        let pin = stretch.pin(PAGE..2 * PAGE).unwrap();
        pager.release_all_held();
        assert_eq!(word().load().nails(), 1, "the pin's");
        drop(pin);
        assert_eq!(word().load().nails(), 0);
    }
}
