//! Pins of entries, which are not recycled while they have one.

use super::{PIECES_PER_PAGE, Vtlb};
use crate::error::SpaceError;
use crate::region::Region;
use crate::vtlb_budget::GUARANTEED;
use std::ops::Range;

impl Vtlb {
    /// Enters the pieces of `region` and pins them. Six pages stay free for misses. Pages that the
    /// budget's pool does not have are requested of another space; a later attempt may find them.
    pub(crate) fn pin(&mut self, region: &Region) -> Result<(), SpaceError> {
        let (pinned, needed) = self.entries.pinned_tables(&region.range());
        let pages = pinned + needed + GUARANTEED;
        if !self.limit.allows(pages) {
            let bound = self.limit.bound();
            self.limit.request(pages - bound, None);
            self.settle();
            return Err(SpaceError::VtlbFull {
                needed,
                pinned,
                bound,
            });
        }
        let mut at = region.start;
        let mut entered = Ok(());
        while at < region.end && entered.is_ok() {
            entered = self.enter_pinned(region, at).map(|end| at = end);
        }
        if entered.is_err() && region.start < at {
            self.entries.unpin(&(region.start..at));
        }
        self.age_published = false;
        self.settle();
        entered
    }

    /// Enters the piece of `addr` and pins its part in `region`. Returns the end of that.
    fn enter_pinned(&mut self, region: &Region, addr: usize) -> Result<usize, SpaceError> {
        let (pinned, places) = self.entries.pinned();
        // A piece that is pinned already may become three.
        let most = places - PIECES_PER_PAGE - 2;
        if pinned >= most {
            return Err(SpaceError::PinsFull { pinned, most });
        }
        self.make_room(3)?;
        let index = self.enter(region, addr)?;
        Ok(self.entries.pin_part(index, &region.range()))
    }

    /// Undoes [`Vtlb::pin`].
    pub(crate) fn unpin(&mut self, range: &Range<usize>) {
        self.entries.unpin(range);
        self.age_published = false;
        self.settle();
    }
}
