//! Pages that a device held when they were selected for eviction.
//!
//! They stay nailed until the next check ([`super::sieve`]). A fault that finds nothing else to
//! evict checks them sooner: what one transfer held is free within milliseconds.

use crate::frame_source::FrameSource;
use crate::mm::Mm;
use crate::stretch::StretchState;
use frames::State as FrameState;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wired::PiLock;

/// How long to leave a page alone that a device held: a registered buffer is held for good,
/// and each check changes two mappings.
const HELD: Duration = Duration::from_secs(1);

/// Pages found held by a device, in the order they were found.
struct HeldPages {
    pages: Vec<usize>,
    since: Option<Instant>,
}

impl HeldPages {
    /// Room for `frames` pages: no more can be resident.
    fn new(frames: usize) -> Self {
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

    /// One page that is due for a check, `pause` after the first was found.
    fn due(&mut self, pause: Duration) -> Option<usize> {
        if self.since?.elapsed() < pause {
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

/// The pages that devices hold. Changed under the closed gates of their units.
pub(crate) struct DmaPins {
    frames: Arc<FrameSource>,
    held: PiLock<HeldPages>,
}

impl DmaPins {
    /// Room for `total` pages: no more can be resident.
    pub(crate) fn new(frames: Arc<FrameSource>, total: usize) -> Self {
        Self {
            frames,
            held: PiLock::new(HeldPages::new(total)),
        }
    }

    /// Nails a page that a device holds, until the next check. Under the unit's closed gate. A
    /// page is on the list as long as one of its nails is the list's.
    pub(super) fn hold(&self, stretch: &StretchState, index: usize) {
        let word = stretch.table().word(index);
        let page = stretch.table().address(index);
        if self.held.lock().note(page) && word.nail() {
            self.frames.mark(word.load().frame(), FrameState::Nailed);
        }
    }

    /// Unnails pages that were left to devices for long enough: the next eviction checks them
    /// again. The caller has the stager, which keeps the stretches in place and other threads
    /// from recording pages.
    pub(super) fn release_due(&self, mm: &Mm) {
        self.release_after(mm, HELD);
    }

    /// As [`DmaPins::release_due`], for a fault that has found nothing to evict for `barren`. The
    /// pause grows with that: the pages of registered buffers do not come free.
    pub(super) fn release_for_fault(&self, mm: &Mm, barren: Duration) {
        self.release_after(mm, (barren / 4).clamp(super::PATIENCE, HELD));
    }

    fn release_after(&self, mm: &Mm, pause: Duration) {
        loop {
            let due = self.held.lock().due(pause);
            let Some(page) = due else { break };
            let Some(stretch) = mm.index.find(page) else {
                self.held.lock().strike(page);
                continue;
            };
            let table = stretch.table();
            let gate = table.gate(table.unit_of(table.index(page)));
            gate.close();
            if self.held.lock().strike(page) {
                // The search for unqueued units finds the unit.
                self.frames.unnail(stretch, table.index(page));
            }
            gate.open();
        }
    }

    /// Returns true if a device holds any page.
    pub(crate) fn any(&self) -> bool {
        !self.held.lock().pages.is_empty()
    }

    /// Returns true if one of the page's nails is the list's. Under the unit's closed gate.
    pub(crate) fn is_held(&self, page: usize) -> bool {
        self.held.lock().pages.contains(&page)
    }

    /// Drops the records of pages whose contents were discarded, nails included. Under the
    /// unit's closed gate.
    pub(crate) fn forget(&self, range: &Range<usize>) {
        self.held.lock().strike_all(range);
    }

    /// Moves the record of a page, and its nails, to another address. Returns true if a device
    /// holds it. Under both units' closed gates.
    pub(crate) fn move_to(&self, from: usize, to: usize) -> bool {
        let mut held = self.held.lock();
        held.strike(from) && held.note(to)
    }

    /// As if it were time for a check.
    #[cfg(test)]
    pub(crate) fn release_all(&self, mm: &Mm) {
        self.held.lock().since = Some(Instant::now() - 2 * HELD);
        self.release_due(mm);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::counters::Counter;
    use crate::pager::Pager;
    use crate::{Domain, Feature, Paged};
    use std::sync::atomic::Ordering;
    use wired::PAGE;

    /// As if a device held the page when it was to leave.
    pub(crate) fn hold_for_device(pager: &Pager, page: usize) {
        let stretch = pager.mm.index.find(page).unwrap();
        let table = stretch.table();
        let gate = table.gate(table.unit_of(table.index(page)));
        gate.close();
        pager.standby.pins.hold(stretch, table.index(page));
        gate.open();
    }

    fn small_domain() -> Domain {
        Domain::builder()
            .frames(32)
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
        pager.standby.slots.no_sieve.store(true, Ordering::Relaxed);
        let stretch = domain.allocate(16 * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        stretch.populate(0..16 * PAGE).unwrap();
        pager.evictor.reclaim(&mut pager.evictor.some_cleaner(), 16);
        let nailed = || {
            let table = pager.mm.index.find(stretch.base()).unwrap().table();
            let nailed = |page: &usize| table.word(*page).load().nails() == 1;
            (0..16).filter(nailed).count()
        };
        assert_eq!(nailed(), 16);
        pager.standby.pins.release_all(&pager.mm);
        assert_eq!(nailed(), 0);
    }

    /// A transfer ends within milliseconds: a fault that needs the frames that it held waits for
    /// some of its rounds, and not for the background's check, which is hundreds of them away.
    #[test]
    fn a_fault_that_finds_nothing_else_checks_held_pages_at_once() {
        let domain = small_domain();
        let pager = domain.pager();
        let stretch = domain.allocate(64 * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        stretch.populate(0..16 * PAGE).unwrap();
        pager.evictor.reclaim(&mut pager.evictor.some_cleaner(), 32);
        stretch.populate(0..32 * PAGE).unwrap();
        for page in 0..32 {
            hold_for_device(pager, stretch.base() + page * PAGE);
        }
        let waits = || pager.log.counters().get(Counter::FrameWaits);
        let before = waits();
        stretch.populate(32 * PAGE..33 * PAGE).unwrap();
        let waited = waits() - before;
        assert!((1..64).contains(&waited), "{waited} rounds");
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
            hold_for_device(pager, stretch.base() + PAGE);
        };
        hold();
        assert_eq!(word().load().nails(), 1);
        pager.standby.pins.release_all(&pager.mm);
        assert_eq!(word().load().nails(), 0, "let go when its time is over");
        hold();
        stretch.discard(1..2).unwrap();
        let pin = stretch.pin(PAGE..2 * PAGE).unwrap();
        pager.standby.pins.release_all(&pager.mm);
        assert_eq!(word().load().nails(), 1, "the pin's");
        drop(pin);
        assert_eq!(word().load().nails(), 0);
    }
}
