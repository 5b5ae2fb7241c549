//! The allocator's state of one tenant: its contract, its frames, its pending revocations.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. Rule: by each deadline no more
//! is demanded from a tenant than its own disk slice can clean until then, earlier demands
//! included, so that an honest tenant is never late.

use super::AllocatorError;
use super::cleaning::CleaningRate;
use super::deadline::Deadline;
use crate::contract::Contract;
use std::collections::VecDeque;
use std::time::Duration;

/// The part of a round below which no more is demanded from a tenant with pending revocations:
/// revocations are fewer and larger that way.
const MIN_PART: u32 = 4;

/// What a tenant uses of its frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameUsage {
    /// Frames it owns, by its ledger: the others can be taken without its help.
    pub used: u32,
    /// Those of them that it undertakes to release without writing, such as clean ones on its
    /// standby list. A tenant that overstates this is asked for more than it can release.
    pub ready: u32,
    /// Those of its frames that it cannot release: guaranteed to its processes, or locked.
    pub fixed: u32,
}

pub(crate) struct Tenant {
    /// {g, x} in force.
    pub contract: Contract,
    /// The contract that will replace it, and when.
    pub later: Option<(Contract, Duration)>,
    /// Frames granted to its ledger.
    pub n: u32,
    /// Frames of its guarantee beside them, reserved for resident memory that is not paged.
    pub unpaged: u32,
    /// Frames that its ledger is to release for that.
    pub moving: u32,
    /// `unpaged`, as the tenant was last notified.
    pub notified: u32,
    /// Those of them beyond the managed memory, with which it reconnected. They are the first to
    /// be revoked, and no other tenant gets them.
    pub beyond: u32,
    /// Its use of them, as last reported.
    pub usage: FrameUsage,
    pub cleaning: CleaningRate,
    /// Frames that it gives back in time at that rate: as many may be above its guarantee.
    pub revocable: u32,
    /// Pending revocations, the earliest first.
    pub revocations: VecDeque<PendingRevocation>,
    /// Demanded frames that it reported as unused and that are still to be verified.
    pub claimed: u32,
    /// Reports since its last revocation began of which frames were missing.
    pub short_answers: u32,
    /// A [`super::Action::TakeUnused`] without its outcome yet.
    pub taking: Option<PendingTake>,
    /// When it will have cleaned all that is demanded from it; zero without any.
    busy_until: Duration,
    /// When it surely has the disk time that it cleans with: other disk time begins with the next
    /// period. Zero once it has.
    cleans_from: Duration,
    /// Reports of too many resident frames, less those of others since.
    pub over: u32,
    /// When that must have ended.
    pub over_by: Option<Deadline>,
    /// When the daemon was ordered to kill it.
    pub killed_at: Option<Duration>,
}

/// Frames demanded by a deadline.
#[derive(Clone, Copy)]
pub(crate) struct PendingRevocation {
    pub k: u32,
    /// Those of them that are for the tenant's own memory that is not paged.
    pub moving: u32,
    pub deadline: Deadline,
    /// True once the frames were searched after the deadline.
    pub verified: bool,
}

/// Unused frames to be taken.
#[derive(Clone, Copy)]
pub(crate) struct PendingTake {
    pub k: u32,
    /// True if the tenant reported them as unused.
    pub claimed: bool,
}

impl Tenant {
    pub(crate) fn new(
        contract: Contract,
        n: u32,
        cleaning: CleaningRate,
        deadline: Duration,
    ) -> Self {
        Self {
            contract,
            later: None,
            n,
            unpaged: 0,
            moving: 0,
            notified: 0,
            beyond: 0,
            usage: FrameUsage {
                used: n,
                ..FrameUsage::default()
            },
            cleaning,
            revocable: cleaning.revocable(deadline, Duration::ZERO),
            revocations: VecDeque::new(),
            claimed: 0,
            short_answers: 0,
            taking: None,
            busy_until: Duration::ZERO,
            cleans_from: Duration::ZERO,
            over: 0,
            over_by: None,
            killed_at: None,
        }
    }

    /// Frames demanded from it and not yet released.
    pub(crate) fn owed(&self) -> u32 {
        self.revocations.iter().map(|revocation| revocation.k).sum()
    }

    /// Frames that it has, in its ledger or reserved beside it.
    pub(crate) fn held(&self) -> u32 {
        self.n.saturating_add(self.unpaged)
    }

    /// Frames above its guarantee that are not demanded yet.
    pub(crate) fn surplus(&self) -> u32 {
        let above = self.held().saturating_sub(self.contract.g);
        match self.killed_at {
            None => self.undemanded(above),
            Some(_) => 0,
        }
    }

    /// What is left of `above` frames that others are to have after those demanded for them.
    fn undemanded(&self, above: u32) -> u32 {
        let (owed, moving) = (self.owed(), self.demanded_moving());
        let left = above.saturating_sub(owed - moving);
        left.min(self.n.saturating_sub(owed))
    }

    /// Demanded frames for its own memory that is not paged.
    fn demanded_moving(&self) -> u32 {
        self.revocations.iter().map(|one| one.moving).sum()
    }

    /// Its frames within the managed memory.
    pub(crate) fn managed(&self) -> u32 {
        self.held() - self.beyond
    }

    /// Frames beyond the managed memory that are not demanded yet.
    pub(crate) fn undemanded_beyond(&self) -> u32 {
        match self.killed_at {
            None => self.beyond.saturating_sub(self.owed()),
            Some(_) => 0,
        }
    }

    /// Changes its cleaning rate, where the least time of a revocation is `deadline`.
    pub(crate) fn set_cleaning(
        &mut self,
        cleaning: CleaningRate,
        deadline: Duration,
        now: Duration,
    ) {
        self.cleans_from = self.would_clean_from(cleaning, now);
        self.cleaning = cleaning;
        self.update_revocable(deadline, now);
    }

    /// When it surely has the disk time of `cleaning`.
    fn would_clean_from(&self, cleaning: CleaningRate, now: Duration) -> Duration {
        match cleaning == self.cleaning {
            true => self.cleans_from,
            false => self.cleans_from.max(now + self.cleaning.delay),
        }
    }

    /// Frames that it would give back in time with `cleaning` from now on.
    pub(super) fn would_revoke(
        &self,
        cleaning: CleaningRate,
        deadline: Duration,
        now: Duration,
    ) -> u32 {
        let wait = self.would_clean_from(cleaning, now).saturating_sub(now);
        cleaning.revocable(deadline, wait)
    }

    /// Counts the frames that it gives back in time: with other disk time more once it has that.
    pub(crate) fn update_revocable(&mut self, deadline: Duration, now: Duration) {
        if self.cleans_from <= now {
            self.cleans_from = Duration::ZERO;
        }
        self.revocable = self.would_revoke(self.cleaning, deadline, now);
    }

    /// When it has other disk time, if it has not yet.
    pub(crate) fn cleans_later_from(&self) -> Option<Duration> {
        Some(self.cleans_from).filter(|from| !from.is_zero())
    }

    /// How fast it cleans what is demanded now.
    pub(super) fn cleaning_now(&self, now: Duration) -> CleaningRate {
        let delay = self.cleaning.delay + self.cleans_from.saturating_sub(now);
        CleaningRate {
            delay,
            ..self.cleaning
        }
    }

    /// Its contract as it is granted: no more frames above the guarantee than it gives back in time.
    pub(crate) fn grantable(&self) -> Contract {
        let Contract { g, x } = self.contract;
        let x = x.min(g.saturating_add(self.revocable));
        Contract { g, x }
    }

    /// Why it is granted none of the `asked` frames, where `n` are granted or pending.
    pub(crate) fn refusal(&self, asked: u32, n: u32) -> AllocatorError {
        let (Contract { g, x }, most) = (self.contract, self.revocable);
        if n >= x {
            AllocatorError::Most { asked, n, x }
        } else if self.cleaning.frames_per_second == 0 {
            AllocatorError::Irrevocable { asked }
        } else {
            AllocatorError::Slow { asked, n, g, most }
        }
    }

    /// Frames that are not to be promised to others: its guarantee, and what it has beyond that and
    /// does not give back in time, since its guarantee was higher before.
    pub(crate) fn reserved(&self) -> u32 {
        let late = self.managed().saturating_sub(self.revocable);
        self.contract.g.max(late)
    }

    /// Frames above what its contract grants, or beyond the managed memory, that are not demanded yet.
    pub(crate) fn undemanded_above(&self) -> u32 {
        let most = match self.cleaning.frames_per_second {
            0 => self.contract.x,
            _ => self.grantable().x,
        };
        let kept = most.min(self.managed());
        self.undemanded(self.held() - kept)
    }

    /// The same, with frames for its own memory that is not paged.
    pub(crate) fn excess(&self) -> u32 {
        let moving = self.moving.saturating_sub(self.demanded_moving());
        let all = self.undemanded_above().saturating_add(moving);
        match self.killed_at {
            None => all.min(self.n.saturating_sub(self.owed())),
            Some(_) => 0,
        }
    }

    /// Frames that can probably be taken without its help. With pending revocations there are
    /// none but those being prepared for them.
    pub(crate) fn unused(&self) -> u32 {
        if self.revocations.is_empty() {
            let most = self.surplus().saturating_add(self.moving);
            self.n.saturating_sub(self.usage.used).min(most)
        } else {
            0
        }
    }

    /// When a lower `contract` is in force, `latest` at the latest: one that is set again keeps its time.
    pub fn lowered_from(&self, contract: Contract, latest: Duration) -> Duration {
        let pending = self.later.filter(|(later, _)| *later == contract);
        pending.map_or(latest, |(_, from)| from.min(latest))
    }

    /// How many of `most` frames can be demanded now, and by when: at `now` + `deadline`, or later
    /// if its slice comes only then. None where it is cleaning for others and can do no more
    /// than a small part in that time.
    pub(crate) fn cleanable(
        &self,
        most: u32,
        now: Duration,
        deadline: Duration,
    ) -> Option<(u32, Duration)> {
        let cleaning = self.cleaning_now(now);
        let Some(last) = self.revocations.back() else {
            let ready = self.usage.ready;
            let within = cleaning.round(most.saturating_sub(ready), deadline);
            let able = cleaning.cleaned_in(within).saturating_add(ready);
            return Some((most.min(able.max(1)), now + within));
        };
        let by = (now + deadline).max(last.deadline.by);
        let able = cleaning.frames_in(by.saturating_sub(self.next_start(now)));
        let little = cleaning.frames_in(deadline) / MIN_PART;
        (able > little).then_some((most.min(able), by))
    }

    /// When it begins at the latest with what is demanded now: after what was demanded before, or with its
    /// next slice, since it may have finished that without having reported yet.
    fn next_start(&self, now: Duration) -> Duration {
        self.busy_until.max(now + self.cleaning_now(now).delay)
    }

    /// Adds a revocation.
    pub(crate) fn add_revocation(&mut self, revocation: PendingRevocation, now: Duration) {
        // Frames that are ready are released first; the tenant reports itself what is left of them. Those of a
        // busy tenant may be the ones that it prepares for earlier demands.
        let ready = revocation.k.min(self.usage.ready);
        self.usage.ready -= ready;
        let clean = match self.revocations.is_empty() {
            true => revocation.k - ready,
            false => revocation.k,
        };
        if clean > 0 {
            self.busy_until = self.next_start(now) + self.cleaning.time_for(clean);
        }
        self.revocations.push_back(revocation);
    }

    /// Takes `k` frames from its ledger, which count for the earliest revocations first.
    pub(crate) fn take_frames(&mut self, k: u32) {
        let most = k.min(self.n).saturating_sub(self.beyond).min(self.moving);
        self.n = self.n.saturating_sub(k);
        self.beyond = self.beyond.saturating_sub(k);
        self.usage.used = self.usage.used.min(self.n);
        let (mut paid, mut moved) = (k, 0);
        while let Some(revocation) = self.revocations.front_mut() {
            let part = revocation.k.min(paid);
            (revocation.k, paid) = (revocation.k - part, paid - part);
            let left = revocation.moving.min(revocation.k);
            moved += revocation.moving - left;
            revocation.moving = left;
            if revocation.k > 0 {
                break;
            }
            self.revocations.pop_front();
        }
        // What was taken without its help is for its own memory first.
        let moved = moved.saturating_add(paid).min(most);
        (self.unpaged, self.moving) = (self.unpaged + moved, self.moving - moved);
        self.claimed = self.claimed.min(self.owed());
        if self.revocations.is_empty() {
            (self.busy_until, self.short_answers) = (Duration::ZERO, 0);
        }
    }
}
