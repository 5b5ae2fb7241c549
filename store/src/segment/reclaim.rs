//! Reclaims segments: those of a dead holder, and the memory of empty ones.

use super::{BIRTH_SHIFT, CLAIMED, KIND, OPEN, OWNER, OWNER_SHIFT, SEALED, SegmentTable, owned};
use crate::HolderId;
use crate::location::Location;

impl SegmentTable {
    /// Seals the segments that the dead holder had open or claimed.
    pub fn abandon(&self, dead: HolderId, is_live: impl Fn(u32, Location) -> bool) {
        for (at, segment) in (0..).zip(self.table) {
            let state = segment.state();
            let mine = matches!(state & KIND, OPEN | CLAIMED)
                && state & OWNER == (u64::from(dead) + 1) << OWNER_SHIFT;
            // Claimed for the dead one first: the resizer may seize an open segment at any moment. A
            // caller that is killed here leaves a segment that the next call finds.
            let claimed = owned(CLAIMED, dead, state >> BIRTH_SHIFT);
            if mine && (state == claimed || segment.try_change(state, claimed)) {
                let live = self.live_in(at, &is_live);
                segment.set_live(live);
                segment.set_state(SEALED | state >> BIRTH_SHIFT << BIRTH_SHIFT);
            }
        }
    }

    /// Frees the sealed segments without live objects, to return their memory.
    pub fn sweep(&self, holder: HolderId, is_live: impl Fn(u32, Location) -> bool) {
        for (at, segment) in (0..).zip(self.table) {
            let empty = segment.state() & KIND == SEALED && segment.live() == 0;
            if empty && self.claim(at, holder) {
                let live = self.live_in(at, &is_live);
                if live == 0 {
                    self.punch_hole(at);
                }
                self.release(at, live);
            }
        }
    }

    fn punch_hole(&self, at: u32) {
        // SAFETY: the segment is claimed and nothing in it is alive; a late reader finds zeros and
        // that its page has moved.
        let _ = unsafe {
            rustix::mm::madvise(
                self.start(at).cast(),
                self.size,
                rustix::mm::Advice::LinuxRemove,
            )
        };
    }
}
