//! Pinned pages: counting locks for memory that system calls and devices use
//! (Get/ReleasePhysicalAddress, 2.3).
//!
//! While a pin lives, its pages are resident and stay where they are: pages of a domain are nailed,
//! and entries of the VTLB are not recycled. The kernel's own pins (O_DIRECT, io_uring's registered
//! buffers) hold the page of an object; this one holds its mapping, without which a system call
//! fails with `EFAULT`.

use crate::address_space::AddressSpace;
use crate::error::SpaceError;
use crate::paged_memory::PagedObject;
use crate::region::{Kind, Region};
use crate::state::SpaceState;
use selfpage::{Rights, Stretch};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A pin of a space with a shared VTLB budget waits for other spaces to give pages back: they answer
/// in less than a millisecond, unless they are stopped.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Pages that are resident until this is dropped. Pins of the same pages count.
pub struct PinnedRange<'a> {
    space: &'a AddressSpace,
    range: Range<usize>,
    held: Vec<Held>,
}

enum Held {
    Committed(#[allow(dead_code, reason = "dropping it releases the pages")] StretchPin),
    Mapped(Range<usize>),
    Paged(Range<usize>, Arc<PagedObject>),
}

/// A pin, and the stretch that it borrows, which is dropped after it.
struct StretchPin {
    _pin: selfpage::Pin<'static>,
    _stretch: Arc<Stretch>,
}

fn pin_mapped(space: &AddressSpace, part: &Region, held: &mut Vec<Held>) -> Result<(), SpaceError> {
    let range = part.range();
    let mut attempts = match space.revocation {
        Some(_) => ATTEMPTS,
        None => 1,
    };
    loop {
        attempts -= 1;
        match space.core.with_vtlb(|vtlb| vtlb.pin(part)) {
            Err(SpaceError::VtlbFull { .. }) if attempts > 0 => std::thread::sleep(PAUSE),
            pinned => break pinned?,
        }
    }
    held.push(Held::Mapped(range.clone()));
    Ok(translation::populate(
        range.start,
        range.len(),
        part.rights.contains(Rights::WRITE),
    )?)
}

fn pin_paged(
    state: &SpaceState,
    part: Range<usize>,
    mapping: u64,
    held: &mut Vec<Held>,
) -> Result<(), SpaceError> {
    let mapped = state.mappings.get(&mapping);
    let Some(paged) = mapped.and_then(|mapped| mapped.object.paged()) else {
        return Err(SpaceError::NotReserved { addr: part.start });
    };
    paged.lock(&part)?;
    held.push(Held::Paged(part, paged.clone()));
    Ok(())
}

fn pin_committed(
    state: &SpaceState,
    part: Range<usize>,
    held: &mut Vec<Held>,
) -> Result<(), SpaceError> {
    let mut at = part.start;
    while at < part.end {
        let Some((_, run)) = state.runs.range(..=at).next_back() else {
            return Err(SpaceError::NotReserved { addr: at });
        };
        let end = run.range().end.min(part.end);
        let stretch = run.stretch.clone();
        let base = stretch.base();
        let pin = stretch.pin(at - base..end - base)?;
        // SAFETY: the stretch is behind an Arc that is dropped after the pin, so it neither moves
        // nor ends before.
        let pin = unsafe { std::mem::transmute::<selfpage::Pin<'_>, selfpage::Pin<'static>>(pin) };
        held.push(Held::Committed(StretchPin {
            _pin: pin,
            _stretch: stretch,
        }));
        at = end;
    }
    Ok(())
}

impl<'a> PinnedRange<'a> {
    pub(crate) fn new(
        space: &'a AddressSpace,
        addr: usize,
        size: usize,
    ) -> Result<Self, SpaceError> {
        let mut state = space.state()?;
        let range = space.range(addr, size)?;
        let mut pinned = PinnedRange {
            space,
            range: range.clone(),
            held: Vec::new(),
        };
        let result = space.for_each_region(&range, |region, part| match region.kind {
            Kind::Committed => pin_committed(&state, part, &mut pinned.held),
            Kind::Mapped(mapping) if mapping.paged && !region.allows(false, false) => {
                Err(SpaceError::Paged("pinned without the right to read it"))
            }
            Kind::Mapped(mapping) if mapping.paged => {
                pin_paged(&state, part, mapping.id, &mut pinned.held)
            }
            Kind::Mapped(_) => pin_mapped(space, &region.part(&part), &mut pinned.held),
            Kind::Reserved => Err(SpaceError::State {
                region: region.range(),
                found: region.state(),
                expected: "committed or mapped",
            }),
        });
        state.pins.push(range);
        // Where it failed, the drop of `pinned` releases what was done.
        drop(state);
        result.map(|()| pinned)
    }

    /// The addresses.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Drop for PinnedRange<'_> {
    fn drop(&mut self) {
        let Ok(mut state) = self.space.state() else {
            // A child's copy: the pins are the parent's.
            std::mem::forget(std::mem::take(&mut self.held));
            return;
        };
        for held in self.held.drain(..) {
            match held {
                Held::Mapped(range) => self.space.core.with_vtlb(|vtlb| vtlb.unpin(&range)),
                Held::Paged(range, paged) => paged.unlock(&range),
                // Its drop releases the pages.
                Held::Committed(_) => {}
            }
        }
        if let Some(index) = state.pins.iter().position(|pin| *pin == self.range) {
            state.pins.swap_remove(index);
        }
    }
}
