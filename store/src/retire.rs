//! A holder is gone, perhaps killed at any instruction: what it held comes back.
//!
//! Its notes say what it was in the middle of: each is finished or undone. Its bitmap says
//! what it held: each hold is dropped as it would have done. Bloks it was writing are
//! reused only when no I/O on the file is in flight any more, because the kernel may
//! finish a dead process's writes after it is gone.

use crate::Handle;
use crate::Holder;
use crate::catalogue::NotDropped;
use crate::holdings::ones;
use crate::intent::{Intent, NOTES_IN_LINE};
use crate::parts::Parts;
use crate::place::Spot;
use std::cell::Cell;

impl Parts {
    /// A thread's place among the notes: its stack tells threads apart, without asking the
    /// system.
    fn near() -> usize {
        let here = 0u8;
        // Stacks lie at large powers of two from each other: mixed, to reach all lines.
        let mixed = ((&raw const here).addr() as u64 >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize * NOTES_IN_LINE
    }

    /// `holder` drops these.
    pub fn discard(&self, holder: Holder, handles: &[Handle]) {
        let note = self.catalogue.intents.begin(holder, Self::near());
        let tiers = (&self.segments, self.bloks.as_ref());
        for handle in handles {
            let _ = self
                .catalogue
                .drop_hold(holder, handle.get(), tiers, &note, || false);
        }
    }

    /// `child` holds what `parent` holds.
    pub fn adopt_fork(&self, parent: Holder, child: Holder) {
        if self.catalogue.holdings.is_used(child) {
            self.retire(child);
        }
        let note = self.catalogue.intents.begin(child, 0);
        self.catalogue.adopt(parent, child, &note);
    }

    /// Everything `dead` held comes back; false if something is in another's hands.
    pub fn retire(&self, dead: Holder) -> bool {
        let in_flight = InFlight {
            parts: self,
            waited: Cell::new(false),
        };
        for intent in self.catalogue.intents.left_by(dead) {
            self.settle(dead, intent, &in_flight);
        }
        self.catalogue.intents.clear(dead);
        self.catalogue.heal_hint();
        if let Some(bloks) = &self.bloks {
            bloks.heal_hint();
        }
        let all = self.drop_all(dead, &in_flight);
        self.segments.abandon(dead, self.is_live());
        self.segments.sweep(dead, self.is_live());
        if all {
            self.catalogue.holdings.reset(dead);
            self.set_active(dead, false);
        }
        all
    }

    fn settle(&self, dead: Holder, intent: Intent, in_flight: &InFlight<'_>) {
        match (intent, &self.bloks) {
            (Intent::Bloks(first, count), Some(bloks)) => {
                bloks.heal(crate::blok::Run { first, count });
            }
            (Intent::Demote(handle, blok), Some(bloks)) => {
                let spot = Spot::Disk { blok };
                let mut others = self.active().filter(|&holder| holder != dead);
                // Moved, or never begun, or begun anew by another since.
                let over = self.catalogue.is_at(handle, spot)
                    || !bloks.is_owned(blok, handle)
                    || self
                        .catalogue
                        .intents
                        .any_demotes(&mut others, handle, blok)
                    || self.catalogue.is_at(handle, spot);
                if !over {
                    in_flight.wait();
                    bloks.free(blok, handle);
                }
            }
            _ => self
                .catalogue
                .settle(dead, intent, &self.segments, self.bloks.as_ref()),
        }
    }

    fn drop_all(&self, dead: Holder, in_flight: &InFlight<'_>) -> bool {
        let note = self.catalogue.intents.begin(dead, 0);
        let tiers = (&self.segments, self.bloks.as_ref());
        let mut all = true;
        for (group, mask) in self.catalogue.holdings.each(dead) {
            for handle in ones(mask).map(|bit| group as u32 * 64 + bit) {
                if let Some(spot) = self.catalogue.claimed_spot(dead, handle) {
                    if let (Spot::Disk { blok }, Some(bloks)) = (spot, &self.bloks)
                        && bloks.is_owned(blok, handle)
                    {
                        in_flight.wait();
                        bloks.free(blok, handle);
                    }
                    self.catalogue.release_claimed(dead, 0, handle);
                } else if let Err(NotDropped::InOthersHands) =
                    self.catalogue
                        .drop_hold(dead, handle, tiers, &note, || true)
                {
                    all = false;
                }
            }
        }
        all
    }
}

/// Waits once, before the first blok that was being written is reused.
struct InFlight<'a> {
    parts: &'a Parts,
    waited: Cell<bool>,
}

impl InFlight<'_> {
    fn wait(&self) {
        if self.waited.replace(true) {
            return;
        }
        self.parts.backing.wait_for_io();
    }
}
