//! Pinned pages: counting locks for memory that system calls and devices use
//! (Get/ReleasePhysicalAddress, 2.3).
//!
//! While a pin lives, its pages are resident and stay where they are: pages of a domain are nailed,
//! and entries of the VTLB are not recycled. The kernel's own pins (O_DIRECT, io_uring's registered
//! buffers) hold the page of an object; this one holds its mapping, without which a system call
//! fails with `EFAULT`.

use crate::address_space::AddressSpace;
use crate::client_view;
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
    parts: Vec<PinnedPart>,
}

/// What a pin has, or is about to have, in one region.
enum PinnedPart {
    Committed(StretchPin),
    Mapped { region: Region, is_entered: bool },
    Paged(Range<usize>, Arc<PagedObject>),
}

/// A pin of a stretch, which it borrows, and which is dropped after it.
struct StretchPin {
    pin: Option<selfpage::Pin<'static>>,
    stretch: Arc<Stretch>,
    /// Bytes of the stretch.
    bytes: Range<usize>,
}

impl StretchPin {
    fn take(&mut self) -> Result<(), SpaceError> {
        let pin = self.stretch.pin(self.bytes.clone())?;
        // SAFETY: the stretch is behind an Arc that is dropped after the pin, so it neither moves
        // nor ends before.
        let pin = unsafe { std::mem::transmute::<selfpage::Pin<'_>, selfpage::Pin<'static>>(pin) };
        self.pin = Some(pin);
        Ok(())
    }
}

impl PinnedPart {
    /// Brings the pages in and keeps them.
    fn take(&mut self, space: &AddressSpace) -> Result<(), SpaceError> {
        match self {
            Self::Committed(pin) => pin.take(),
            Self::Mapped { region, is_entered } => {
                enter(space, region)?;
                *is_entered = true;
                let (range, write) = (region.range(), region.rights.contains(Rights::WRITE));
                Ok(translation::populate(range.start, range.len(), write)?)
            }
            Self::Paged(range, paged) => paged.lock(range),
        }
    }
}

fn enter(space: &AddressSpace, region: &Region) -> Result<(), SpaceError> {
    let mut attempts = match space.revocation {
        Some(_) => ATTEMPTS,
        None => 1,
    };
    loop {
        attempts -= 1;
        match space.core.with_vtlb(|vtlb| vtlb.pin(region)) {
            Err(SpaceError::VtlbFull { .. }) if attempts > 0 => std::thread::sleep(PAUSE),
            entered => return entered,
        }
    }
}

/// What a pin of `part` of `region` is to have.
fn add_parts(
    state: &SpaceState,
    region: &Region,
    part: Range<usize>,
    parts: &mut Vec<PinnedPart>,
) -> Result<(), SpaceError> {
    match region.kind {
        Kind::Committed => return add_committed(state, part, parts),
        Kind::Mapped(mapping) if mapping.paged => {
            if !region.allows(false, false) {
                return Err(SpaceError::Paged("pinned without the right to read it"));
            }
            let mapped = state.mappings.get(&mapping.id);
            let Some(paged) = mapped.and_then(|mapped| mapped.object.paged()) else {
                return Err(SpaceError::NotReserved { addr: part.start });
            };
            parts.push(PinnedPart::Paged(part, paged.clone()));
        }
        Kind::Mapped(_) => parts.push(PinnedPart::Mapped {
            region: region.part(&part),
            is_entered: false,
        }),
        Kind::Reserved => {
            return Err(SpaceError::State {
                region: region.range(),
                found: region.state(),
                expected: "committed or mapped",
            });
        }
    }
    Ok(())
}

fn add_committed(
    state: &SpaceState,
    part: Range<usize>,
    parts: &mut Vec<PinnedPart>,
) -> Result<(), SpaceError> {
    let mut at = part.start;
    while at < part.end {
        let Some((_, run)) = state.runs.range(..=at).next_back() else {
            return Err(SpaceError::NotReserved { addr: at });
        };
        let end = run.range().end.min(part.end);
        let stretch = run.stretch.clone();
        let base = stretch.base();
        parts.push(PinnedPart::Committed(StretchPin {
            pin: None,
            stretch,
            bytes: at - base..end - base,
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
        let mut parts = Vec::new();
        space.for_each_region(&range, |region, part| {
            add_parts(&state, region, part, &mut parts)
        })?;
        // From here on no operation takes the pages away.
        state.pins.push(range.clone());
        drop(state);
        let mut pinned = PinnedRange {
            space,
            range,
            parts,
        };
        // Outside the mutex: it may wait for frames, which the end of another pin gives. Where it
        // fails, the drop of `pinned` releases what was done.
        let mut parts = pinned.parts.iter_mut();
        parts.try_for_each(|part| part.take(space))?;
        Ok(pinned)
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
            std::mem::forget(std::mem::take(&mut self.parts));
            return;
        };
        if let Some(index) = state.pins.iter().position(|pin| *pin == self.range) {
            state.pins.swap_remove(index);
        }
        for part in self.parts.drain(..) {
            match part {
                PinnedPart::Mapped { region, is_entered } => {
                    if is_entered {
                        let range = region.range();
                        self.space.core.with_vtlb(|vtlb| vtlb.unpin(&range));
                    }
                }
                PinnedPart::Paged(range, paged) => {
                    // The pager keeps one lock of a page, however many pins there are.
                    let unpinned = state.parts_without_pins(range);
                    unpinned.iter().for_each(|part| paged.unlock(part));
                }
                // Its drop releases the pages.
                PinnedPart::Committed(_) => {}
            }
        }
        client_view::release_ended(self.space, &mut state);
    }
}
