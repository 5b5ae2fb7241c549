//! Statistics of all segments: which to open, which to empty.
//!
//! Linear in the segments that were ever opened, 16 bytes each; gathered when a segment is opened,
//! about once in a hundred pages.

use crate::segment::{SegmentState, SegmentTable};

/// Live part of the sealed segments, in 32nds, below which one is compacted rather than another
/// opened. A quarter may be dead: moving a page costs about as much as filling memory that was never
/// used, and with pages dying at random this moves about one and a quarter for each that is
/// written.
pub(crate) const SPARSE_THRESHOLD: u32 = 24;

/// The same where few segments are free and a disk is below: an eighth may be dead. The fullest
/// segment that this compacts costs seven moves for a page of room, about a microsecond each; the
/// disk costs a page its write and mostly a read later, a hundred.
pub(crate) const LOW_SPARSE_THRESHOLD: u32 = 28;

/// Statistics of the segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentStats {
    /// Free segments.
    pub free: u32,
    /// The first free one.
    pub first_free: Option<u32>,
    /// The sealed one that was opened first.
    pub oldest: Option<u32>,
    /// The sealed one with the fewest live bytes, and these.
    pub emptiest: Option<(u32, u32)>,
    /// The sealed one with most room left at its end, and that room.
    pub roomiest: Option<(u32, u32)>,
    /// Bytes of the sealed ones.
    pub sealed: u64,
    /// Live bytes in them.
    pub live: u64,
}

impl SegmentStats {
    /// Gathers those of the segments below the limit: what lies above is being emptied.
    pub fn of(segments: &SegmentTable) -> Self {
        Self::below(segments, segments.limit())
    }

    /// Gathers those of all.
    pub fn of_all(segments: &SegmentTable) -> Self {
        Self::below(segments, segments.count() as u32)
    }

    fn below(segments: &SegmentTable, limit: u32) -> Self {
        let mut stats = SegmentStats::default();
        let mut first_birth = u64::MAX;
        let high = segments.high().min(limit);
        for at in 0..high {
            match segments.state(at) {
                SegmentState::Free => {
                    stats.free += 1;
                    stats.first_free.get_or_insert(at);
                }
                SegmentState::Sealed { birth, live, room } => {
                    stats.sealed += segments.size() as u64;
                    stats.live += u64::from(live);
                    if birth < first_birth {
                        first_birth = birth;
                        stats.oldest = Some(at);
                    }
                    if stats.emptiest.is_none_or(|(_, least)| live < least) {
                        stats.emptiest = Some((at, live));
                    }
                    if stats.roomiest.is_none_or(|(_, most)| room > most) {
                        stats.roomiest = Some((at, room));
                    }
                }
                SegmentState::Busy => {}
            }
        }
        let untouched = limit - high;
        if untouched > 0 {
            stats.free += untouched;
            stats.first_free.get_or_insert(high);
        }
        stats
    }

    /// Returns true if less than `threshold` 32nds of the sealed segments are alive: then some are
    /// compacted before more memory is taken. With [`SPARSE_THRESHOLD`] at most a third more is in
    /// use than is alive, beside each channel's open segment and one.
    pub fn is_sparse(&self, threshold: u32) -> bool {
        self.live * 32 < self.sealed * u64::from(threshold)
    }
}
