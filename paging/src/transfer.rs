//! Moving contents to other addresses, as `mremap` does.

use crate::page::{Busy, State};
use crate::pager::Pager;
use crate::stretch::StretchState;
use frames::Frame;
use std::ops::Range;
use translation::{RelocateError, StageError, TranslationError};
use wired::PAGE;

/// Why a transfer stops before its end.
enum Stop {
    /// The page at this address is being filled.
    InTransit(usize),
    /// No slot is free, or the kernel has no mapping.
    NoRoom,
}

impl Pager {
    /// Moves the contents of `from` to `to`, a range of the same length that the program does
    /// not use yet. Nothing is copied: of pages that can be staged the words move; of those
    /// that cannot (a device holds them, or they are nailed) the memory moves. Nails stay
    /// behind, except those of devices.
    pub(crate) fn transfer(&self, from: Range<usize>, to: usize) {
        let distance = to.wrapping_sub(from.start);
        self.mm.for_each_unit(from, &mut |stretch, unit, pages| {
            let table = stretch.table();
            if !table.touched(unit) {
                return;
            }
            let mut at = pages.start;
            while at < pages.end {
                let mut quiesced = self.evictor.quiesce();
                if self.evictor.make_room(&mut quiesced) {
                    quiesced.stager().stage_unit(stretch, unit);
                }
                // Pages that staging left in place move through a slot.
                let slot = match self.evictor.make_room(&mut quiesced) {
                    true => self.standby.slots.ring.free_slot(),
                    false => None,
                };
                let gate = table.gate(unit);
                gate.close();
                let (moved, stop) = self.move_pages(stretch, at..pages.end, distance, slot);
                gate.open();
                drop(quiesced);
                at = moved;
                match stop {
                    None => return,
                    Some(Stop::InTransit(page)) => {
                        if let Some(stretch) = self.mm.index.find(page) {
                            let table = stretch.table();
                            table.word(table.index(page)).wait_settled();
                        }
                    }
                    // Nothing may be lost: until the store takes a page, or the kernel grants
                    // a mapping, the program's call does not return.
                    Some(Stop::NoRoom) => self.standby.await_room(),
                }
            }
        });
    }

    /// Moves pages until one cannot be moved now. Returns how far it came, and why it stopped.
    /// No other thread evicts, and the gate of the pages' unit is closed.
    fn move_pages(
        &self,
        stretch: &StretchState,
        pages: Range<usize>,
        distance: usize,
        slot: Option<usize>,
    ) -> (usize, Option<Stop>) {
        let table = stretch.table();
        let mut at = pages.start;
        while at < pages.end {
            let seen = table.word(at).load();
            match seen.state() {
                State::Empty | State::Foreign => {
                    at += 1;
                    continue;
                }
                State::Filling => return (at, Some(Stop::InTransit(table.address(at)))),
                State::Resident | State::Staged | State::Stored | State::Poisoned => {}
            }
            let target = table.address(at).wrapping_add(distance);
            let Some(other) = self.mm.index.find(target) else {
                at += 1;
                continue;
            };
            let there = other.table().index(target);
            let run = match seen.state() {
                State::Resident => self.resident_run(stretch, at..pages.end, other, there),
                _ => 1,
            };
            let unit = other.table().unit_of(there);
            let gate = other.table().gate(unit);
            let same = std::ptr::eq(gate, table.gate(table.unit_of(at)));
            if !same {
                gate.close();
            }
            let moved = self.move_run(stretch, at, other, there, run, slot);
            if !same {
                gate.open();
            }
            match moved {
                Ok(count) => {
                    if other.table().touch(unit) {
                        self.standby.queues.note_filled(other, unit, true, false);
                    }
                    at += count;
                }
                Err(stop) => return (at, Some(stop)),
            }
        }
        (at, None)
    }

    /// How many resident pages from the first on move into one unit.
    fn resident_run(
        &self,
        stretch: &StretchState,
        pages: Range<usize>,
        other: &StretchState,
        there: usize,
    ) -> usize {
        let room = other.table().unit_pages(other.table().unit_of(there)).end - there;
        let resident = |at: &usize| stretch.table().word(*at).load().state() == State::Resident;
        pages.take(room).take_while(resident).count()
    }

    /// Moves a run of resident pages, or one page of any other kind. Behind the closed gates
    /// of both units.
    fn move_run(
        &self,
        stretch: &StretchState,
        at: usize,
        other: &StretchState,
        there: usize,
        run: usize,
        slot: Option<usize>,
    ) -> Result<usize, Stop> {
        let (table, to) = (stretch.table(), other.table());
        for page in there..there + run {
            self.clear(other, page)
                .map_err(|Busy| Stop::InTransit(to.address(page)))?;
        }
        let resident = table.word(at).load().state() == State::Resident;
        let run = match resident {
            true => self.carry(table.address(at), to.address(there), run, slot)?,
            false => 1,
        };
        for page in 0..run {
            let (word, seen) = (table.word(at + page), table.word(at + page).load());
            let target = to.address(there + page);
            if !word.take(seen) {
                // A fault is filling it, and its page is not resident.
                return Err(Stop::InTransit(table.address(at + page)));
            }
            if matches!(seen.state(), State::Resident | State::Staged) {
                self.standby.places.set_home(seen.frame(), target);
            }
            let held =
                seen.nails() > 0 && self.standby.pins.move_to(table.address(at + page), target);
            if seen.nails() > 0 && !held {
                self.frames.mark(seen.frame(), frames::State::Mapped);
            }
            let put = to.word(there + page).put(seen, held);
            debug_assert!(put, "cleared, and behind a closed gate");
            if seen.state() == State::Poisoned {
                // SAFETY: nothing but its mark is there.
                let _ = unsafe { translation::discard(table.address(at + page), PAGE) };
            }
        }
        to.touch_only(to.unit_of(there));
        if resident {
            table.sub_resident(table.unit_of(at), run as u32);
            to.add_resident(to.unit_of(there), run as u32);
        }
        Ok(run)
    }

    /// Moves the memory of resident pages. Returns how many: fewer if the kernel has several
    /// mappings for them.
    fn carry(
        &self,
        from: usize,
        to: usize,
        run: usize,
        slot: Option<usize>,
    ) -> Result<usize, Stop> {
        let slot = slot.map(|slot| self.standby.slots.address(slot));
        let slot = slot.ok_or(Stop::NoRoom)?;
        let write_protect = self.mm.tracks_dirty();
        let mut run = run;
        loop {
            // SAFETY: the slot is empty and belongs to the stager, which is the caller; the
            // gates keep the pager's other threads from both places.
            let carried = unsafe {
                let userfault = self.mm.userfault();
                translation::relocate(from, slot, to, run * PAGE, userfault, write_protect)
            };
            match carried {
                Ok(()) => return Ok(run),
                Err(RelocateError::NotTaken(StageError::CrossesMappings)) if run > 1 => run /= 2,
                Err(RelocateError::NotTaken(_) | RelocateError::Refused(_)) => {
                    return Err(Stop::NoRoom);
                }
                Err(RelocateError::Stuck(error)) => {
                    self.unstick(from, slot, to, run, &error);
                    return Ok(run);
                }
            }
        }
    }

    /// The pages are in a slot and at no address: they are the program's data, so nothing
    /// continues until the kernel grants a mapping for them.
    fn unstick(&self, from: usize, slot: usize, to: usize, run: usize, why: &TranslationError) {
        self.log.write(format_args!(
            "memory at {from:#x} cannot be moved yet: {why}"
        ));
        let write_protect = self.mm.tracks_dirty();
        for page in (0..run).map(|page| page * PAGE) {
            loop {
                // SAFETY: as in `carry`.
                let put = unsafe {
                    let (slot, to) = (slot + page, to + page);
                    translation::restore_pinned(slot, to, self.mm.userfault(), write_protect)
                };
                match put {
                    Ok(()) => break,
                    Err(_) => self.standby.await_room(),
                }
            }
        }
    }

    /// Empties a page that the program does not use yet: a window may have brought it in
    /// beside a fault. Behind its unit's closed gate.
    fn clear(&self, stretch: &StretchState, index: usize) -> Result<(), Busy> {
        let table = stretch.table();
        let word = table.word(index);
        if word.load().state() == State::Empty {
            return Ok(());
        }
        let dropped = word.discard()?;
        // SAFETY: the program has nothing there yet.
        let _ = unsafe { translation::discard(table.address(index), PAGE) };
        if let Some(handle) = dropped.handle {
            self.store.release(handle);
        }
        if let Some(frame) = dropped.frame {
            table.sub_resident(table.unit_of(index), 1);
            self.frames.put(Frame(frame));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capabilities, DirectIo, Domain, Feature, Paged, Stretch};
    use std::sync::mpsc;
    use std::time::Duration;

    const PAGES: usize = 96;

    fn domain(capabilities: Capabilities, direct_io: DirectIo) -> Domain {
        Domain::builder()
            .frames(256)
            .store("ram:4M".parse().unwrap())
            .capabilities(capabilities)
            .direct_io(direct_io)
            .build()
            .unwrap()
    }

    fn all() -> Capabilities {
        Capabilities::probe_fast()
    }

    fn stretch(domain: &Domain) -> Stretch {
        let stretch = domain.allocate(PAGES * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        stretch
    }

    fn byte(stretch: &Stretch, page: usize) -> *mut u8 {
        stretch.as_ptr().wrapping_add(page * PAGE)
    }

    fn write_all(stretch: &Stretch) {
        for page in 0..PAGES {
            // SAFETY: the test's own stretch.
            unsafe { byte(stretch, page).write_volatile(page as u8 + 1) };
        }
    }

    fn read_all(stretch: &Stretch, what: impl Fn(usize) -> u8) {
        for page in 0..PAGES {
            // SAFETY: the test's own stretch.
            let found = unsafe { byte(stretch, page).read_volatile() };
            assert_eq!(found, what(page), "page {page}");
        }
    }

    /// Transfers all of a stretch to another, with a watchdog.
    fn transfer(domain: Domain, from: Stretch, to: Stretch) -> (Domain, Stretch, Stretch) {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let pager = domain.pager();
            let inside = pager.mm.gate.enter(0);
            pager.transfer(from.base()..from.base() + PAGES * PAGE, to.base());
            drop(inside);
            let _ = tell.send((domain, from, to));
        });
        told.recv_timeout(Duration::from_secs(30)).expect("it ends")
    }

    #[test]
    fn pages_that_may_not_leave_move_with_their_contents() {
        for (capabilities, direct_io) in [
            // Nothing may be staged at all.
            (all().without(Feature::Move), DirectIo::Anytime),
            (all(), DirectIo::PinnedOnly),
            (all(), DirectIo::Anytime),
        ] {
            let domain = domain(capabilities, direct_io);
            let (from, to) = (stretch(&domain), stretch(&domain));
            write_all(&from);
            let nailed = from.base() + 3 * PAGE..from.base() + 70 * PAGE;
            assert!(domain.pager().nail(nailed));
            // Others had come to the new place already, by a window or by mistake.
            // SAFETY: the test's own stretch.
            unsafe { byte(&to, 5).write_volatile(99) };
            // SAFETY: as above.
            assert_eq!(unsafe { byte(&to, 90).read_volatile() }, 0);
            let (domain, from, to) = transfer(domain, from, to);
            read_all(&to, |page| page as u8 + 1);
            read_all(&from, |_| 0);
            // They are pages like any: they leave, and come back.
            write_all(&from);
            domain.relinquish(256);
            let stay = |page: &usize| to.trans(*page).unwrap().frame.is_some();
            let expected = if domain.pager().mm.may_evict() {
                0
            } else {
                PAGES
            };
            assert_eq!((0..PAGES).filter(stay).count(), expected);
            read_all(&to, |page| page as u8 + 1);
            read_all(&from, |page| page as u8 + 1);
            drop((from, to));
            assert_eq!(domain.in_use(), 0);
        }
    }

    #[test]
    fn a_page_that_a_device_holds_is_held_at_its_new_place() {
        let domain = domain(all(), DirectIo::Anytime);
        let (from, to) = (stretch(&domain), stretch(&domain));
        write_all(&from);
        let pager = domain.pager();
        crate::evict::hold_for_device(pager, from.base() + 7 * PAGE);
        let (domain, from, to) = transfer(domain, from, to);
        let pager = domain.pager();
        let nails = |stretch: &Stretch| {
            let table = pager.mm.index.find(stretch.base()).unwrap().table();
            (0..PAGES)
                .map(|page| table.word(page).load().nails())
                .sum::<u32>()
        };
        assert_eq!((nails(&from), nails(&to)), (0, 1));
        pager.standby.pins.release_all(&pager.mm);
        assert_eq!((nails(&from), nails(&to)), (0, 0));
        read_all(&to, |page| page as u8 + 1);
    }
}
