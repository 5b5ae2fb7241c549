//! How fast a tenant gives frames back, and what it may have for that.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: optimistic frames are granted
//! because they can be revoked, and a guarantee is met by revocation. Rule: all frames that a tenant
//! has above its guarantee can be revoked within [`MAX_REVOCATION`], at the rate at which its own disk
//! slice surely cleans them. So the guarantees of others are met by then, however slowly it
//! answers, and it is killed where it does not.

use std::time::Duration;

const NANOS: u64 = 1_000_000_000;

/// The longest time in which a tenant may give back all that it has above its guarantee. A sixteenth of
/// a disk's speed is all that a slice is trusted with, so that an honest tenant is never late: then
/// two fifths of an SSD (14 us a page) are 2 GiB in ten minutes, and a tenth is 500 MiB. An honest
/// tenant is several times as fast.
pub const MAX_REVOCATION: Duration = Duration::from_secs(600);

/// How fast a tenant can clean frames with its own disk slice, or by compressing them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleaningRate {
    /// Frames per second, sustained.
    pub frames_per_second: u32,
    /// Longest wait before it begins: the rest of a period when its slice has just ended. Zero
    /// where the slice comes at once.
    pub delay: Duration,
}

impl CleaningRate {
    /// Frames cleaned in a length of time.
    pub(crate) fn frames_in(&self, time: Duration) -> u32 {
        let frames = u128::from(self.frames_per_second) * time.as_nanos() / u128::from(NANOS);
        u32::try_from(frames).unwrap_or(u32::MAX)
    }

    /// Time to clean frames; zero where the tenant cannot clean.
    pub(crate) fn time_for(&self, frames: u32) -> Duration {
        match u64::from(self.frames_per_second) {
            0 => Duration::ZERO,
            rate => Duration::from_nanos((u64::from(frames) * NANOS).div_ceil(rate)),
        }
    }

    /// Frames cleaned until `time` after a demand that finds the tenant idle.
    pub(crate) fn cleaned_in(&self, time: Duration) -> u32 {
        self.frames_in(time.saturating_sub(self.delay))
    }

    /// How long a tenant that is idle has for up to `frames`, of which a part may be left for the next
    /// demand: `deadline` at least. More than that only while it waits for its slice no longer than it
    /// cleans, so that a demand of many frames is met at half its rate or faster.
    pub(crate) fn round(&self, frames: u32, deadline: Duration) -> Duration {
        match (frames, self.frames_per_second) {
            (0, _) => return deadline,
            (_, 0) => return self.delay + deadline,
            _ => (),
        }
        let needed = self.time_for(frames).min(self.delay);
        deadline.max(self.delay + needed.max(self.time_for(1)))
    }

    /// Frames that a tenant surely gives back within [`MAX_REVOCATION`], if each demand is answered at
    /// its deadline. It may be busy with another demand at first, and its slice may come only after
    /// `wait`: a round that begins before that is longer by twice that time.
    pub(crate) fn revocable(&self, deadline: Duration, wait: Duration) -> u32 {
        let round = self.round(u32::MAX, deadline);
        let time = MAX_REVOCATION.saturating_sub(2 * wait);
        let rounds = time.as_nanos() / round.as_nanos().max(1);
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX).saturating_sub(1);
        rounds.saturating_mul(self.cleaned_in(round))
    }
}
