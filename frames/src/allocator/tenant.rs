//! One tenant in the allocator's books: its contract, its frames, what it was asked for.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. Rule: a tenant is asked for
//! no more by a deadline than its own disk slice can clean until then, all it was asked for
//! before included, so that an honest one is never late.

use super::deadline::Deadline;
use super::{CleaningRate, Usage};
use crate::contract::Contract;
use std::collections::VecDeque;
use std::time::Duration;

/// A part of a round too small to ask a tenant again for while it owes some: fewer, larger
/// revocations.
const MIN_PART: u32 = 4;

const NANOS: u64 = 1_000_000_000;

pub(crate) struct Tenant {
    /// {g, x} in force.
    pub contract: Contract,
    /// What they will be, and from when on.
    pub later: Option<(Contract, Duration)>,
    /// Frames granted.
    pub n: u32,
    /// Those of them that are not of the memory managed: it came back with them. They are
    /// the first that it loses, and nobody else's then.
    pub beyond: u32,
    /// What it was last seen to use of them.
    pub usage: Usage,
    pub cleaning: CleaningRate,
    /// Revocations it has not paid, the earliest first.
    pub revocations: VecDeque<PendingRevocation>,
    /// Frames it says are unused, of those it owes, that are still to be verified for.
    pub claimed: u32,
    /// A [`super::Action::TakeUnused`] whose outcome is not known.
    pub taking: Option<PendingTake>,
    /// Since it owed nothing last.
    busy: Option<CleaningInterval>,
    /// Reports in a row by which it had too much resident; when that must have ended.
    pub over: u32,
    pub over_by: Option<Deadline>,
    /// When it was ordered to be killed.
    pub condemned: Option<Duration>,
}

/// Frames asked for by a deadline.
#[derive(Clone, Copy)]
pub(crate) struct PendingRevocation {
    pub k: u32,
    pub deadline: Deadline,
    /// Whether they were verified for when that was over.
    pub verified: bool,
}

/// Unused frames on their way.
#[derive(Clone, Copy)]
pub(crate) struct PendingTake {
    pub k: u32,
    /// Whether the tenant said that they are there.
    pub claimed: bool,
}

/// The time since which a tenant has been cleaning for others without a pause.
#[derive(Clone, Copy)]
struct CleaningInterval {
    since: Duration,
    /// Frames it was asked for meanwhile.
    asked: u32,
    /// Frames it had undertaken, at the start, to give up without writing them.
    ready: u32,
}

impl Tenant {
    pub(crate) fn new(contract: Contract, n: u32, cleaning: CleaningRate) -> Self {
        Self {
            contract,
            later: None,
            n,
            beyond: 0,
            usage: Usage { used: n, ready: 0 },
            cleaning,
            revocations: VecDeque::new(),
            claimed: 0,
            taking: None,
            busy: None,
            over: 0,
            over_by: None,
            condemned: None,
        }
    }

    /// Frames it was asked for and has not given.
    pub(crate) fn owed(&self) -> u32 {
        self.revocations.iter().map(|revocation| revocation.k).sum()
    }

    /// Frames above its guarantee that it was not asked for yet.
    pub(crate) fn surplus(&self) -> u32 {
        let kept = self.contract.g.saturating_add(self.owed());
        match self.condemned {
            None => self.n.saturating_sub(kept),
            Some(_) => 0,
        }
    }

    /// Frames of the memory managed that it has.
    pub(crate) fn managed(&self) -> u32 {
        self.n - self.beyond
    }

    /// Frames beyond what is managed that it was not asked for yet.
    pub(crate) fn undemanded_beyond(&self) -> u32 {
        match self.condemned {
            None => self.beyond.saturating_sub(self.owed()),
            Some(_) => 0,
        }
    }

    /// Frames above its contract, or beyond what is managed, that it was not asked for yet.
    pub(crate) fn excess(&self) -> u32 {
        let kept = self.contract.x.min(self.managed());
        let kept = kept.saturating_add(self.owed());
        match self.condemned {
            None => self.n.saturating_sub(kept),
            Some(_) => 0,
        }
    }

    /// Frames that can probably be taken without its help. While it prepares frames that it
    /// owes there are none but those.
    pub(crate) fn unused(&self) -> u32 {
        match self.revocations.is_empty() {
            true => self.n.saturating_sub(self.usage.used).min(self.surplus()),
            false => 0,
        }
    }

    /// What it can be asked for now, and by when: at least by `now` + `deadline`, later if
    /// its slice may not come before. None where it is at work for others and can do no more
    /// than a little in that time.
    pub(crate) fn cleanable(&self, now: Duration, deadline: Duration) -> Option<(u32, Duration)> {
        let CleaningRate { delay, .. } = self.cleaning;
        let busy = self.busy.unwrap_or(CleaningInterval {
            since: now,
            asked: 0,
            ready: self.usage.ready,
        });
        let by = (now + deadline).max(
            self.revocations
                .back()
                .map_or(Duration::ZERO, |revocation| revocation.deadline.by),
        );
        let worked = self
            .cleaning
            .frames_in(by.saturating_sub(busy.since + delay));
        let able = worked.saturating_add(busy.ready).saturating_sub(busy.asked);
        if self.revocations.is_empty() {
            if able > 0 {
                return Some((able, by));
            }
            // A frame at a time if it must be: this round ends later.
            let window = deadline.max(self.cleaning.time_for(1));
            let able = self.cleaning.frames_in(window).max(1);
            return Some((able, now + delay + window));
        }
        // It may be done already and about to say so: then its slice has to come again.
        let able = able.min(self.cleaning.frames_in(by.saturating_sub(now + delay)));
        let little = self.cleaning.frames_in(deadline) / MIN_PART;
        (able > little).then_some((able, by))
    }

    /// Notes that it was asked for frames.
    pub(crate) fn add_revocation(&mut self, revocation: PendingRevocation, now: Duration) {
        let ready = self.usage.ready;
        let busy = self.busy.get_or_insert(CleaningInterval {
            since: now,
            asked: 0,
            ready,
        });
        busy.asked = busy.asked.saturating_add(revocation.k);
        // It gives up those first; what is left of them it says itself.
        self.usage.ready -= revocation.k.min(ready);
        self.revocations.push_back(revocation);
    }

    /// Takes `k` frames from it, which pay what it owes first.
    pub(crate) fn take_frames(&mut self, k: u32) {
        self.n = self.n.saturating_sub(k);
        self.beyond = self.beyond.saturating_sub(k);
        self.usage.used = self.usage.used.min(self.n);
        let mut paid = k;
        while let Some(revocation) = self.revocations.front_mut() {
            let part = revocation.k.min(paid);
            (revocation.k, paid) = (revocation.k - part, paid - part);
            if revocation.k > 0 {
                break;
            }
            self.revocations.pop_front();
        }
        self.claimed = self.claimed.min(self.owed());
        if self.revocations.is_empty() {
            self.busy = None;
        }
    }
}

impl CleaningRate {
    /// Frames cleaned in this time.
    pub(crate) fn frames_in(&self, time: Duration) -> u32 {
        let frames = u128::from(self.frames_per_second) * time.as_nanos() / u128::from(NANOS);
        u32::try_from(frames).unwrap_or(u32::MAX)
    }

    /// How long it takes to clean frames; not at all where there is nothing to clean with.
    pub(crate) fn time_for(&self, frames: u32) -> Duration {
        match u64::from(self.frames_per_second) {
            0 => Duration::ZERO,
            rate => Duration::from_nanos((u64::from(frames) * NANOS).div_ceil(rate)),
        }
    }
}
