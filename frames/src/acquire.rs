//! Acquiring and releasing frames: the admission arithmetic and the three sources of a frame.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. Rules, in the order of their
//! precedence:
//!
//! 1. A domain never owns more than x.
//! 2. All domains together never own more than the limit.
//! 3. Below g a request is granted. From g on it is optimistic: granted only while the sum of
//!    max(n, g) over all domains stays within the limit, so that no other domain's guarantee is
//!    lent out.
//! 4. A granted request is met from free frames. Where the limit leaves none it is met
//!    *transparently* from the unused frames of another domain that owns more than its g. That
//!    domain takes no part: its RamTab entry changes hands by compare-and-swap, and its own
//!    compare-and-swap fails later.
//! 5. A frame that leaves a domain in either way meets what was demanded of the domain: never more
//!    is demanded than it owns above g.
//! 6. Counts are raised before the RamTab changes and lowered after, so a process that dies in
//!    between leaves too high a count, never an uncounted frame.

use crate::contract::fair_share;
use crate::layout::{CLOSED, DomainSlot, Header, LedgerMemory};
use crate::ramtab::{Frame, FrameEntry, Owner, State};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// Passes over sets that other domains change before giving up on a frame that must be in one of
/// them.
const MAX_ATTEMPTS: u32 = 64;

/// Longest wait of a count change for a recount, and how many such waits: a stopped supervisor
/// must not stop a domain.
const PAUSE_LENGTH: Duration = Duration::from_millis(1);
const MAX_PAUSES: u32 = 20;

/// Marks count changes by `actor` as in progress until dropped.
pub(crate) struct UpdateGuard<'a>(&'a DomainSlot);

impl<'a> UpdateGuard<'a> {
    pub(crate) fn begin(memory: &'a LedgerMemory, actor: Owner) -> Self {
        let (slot, pause) = (memory.slot(actor), &memory.header().pause);
        for _ in 0..MAX_PAUSES {
            slot.activity.fetch_add(1 << 32 | 1, SeqCst);
            match pause.load(SeqCst) {
                0 => return Self(slot),
                word => {
                    slot.activity.fetch_sub(1, SeqCst);
                    wired::futex::wait(pause, word, Some(PAUSE_LENGTH));
                }
            }
        }
        slot.activity.fetch_add(1 << 32 | 1, SeqCst);
        Self(slot)
    }
}

impl Drop for UpdateGuard<'_> {
    fn drop(&mut self) {
        self.0.activity.fetch_sub(1, SeqCst);
    }
}

/// Adds `by` to `count` if the sum is at most `most`. Returns true if it did.
pub(crate) fn add_within(count: &AtomicU32, by: u32, most: u32) -> bool {
    let add = |now: u32| now.checked_add(by).filter(|sum| *sum <= most);
    count.fetch_update(SeqCst, SeqCst, add).is_ok()
}

/// Subtracts `by` from `count`, at least down to zero. Returns by how much.
pub(crate) fn lower_to_zero(count: &AtomicU32, by: u32) -> u32 {
    let lower = |now: u32| Some(now.saturating_sub(by));
    count
        .fetch_update(SeqCst, SeqCst, lower)
        .unwrap_or(0)
        .min(by)
}

/// The outcome of a request for one more frame of quota.
#[derive(PartialEq, Eq)]
enum GrantOutcome {
    Granted,
    /// Only in exchange for an unused frame of another domain.
    Full,
    /// Not under this contract, or not now.
    No,
}

/// The unit of the limit under which a frame will be owned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitSource {
    /// One more of what the limit leaves.
    New,
    /// The unit under which the frame is owned already.
    Same,
}

impl LedgerMemory {
    /// A frame for `owner` in `state`, acquired by `actor` (its parent, before a fork).
    pub(crate) fn acquire(&self, actor: Owner, owner: Owner, state: State) -> Option<Frame> {
        let _activity = UpdateGuard::begin(self, actor);
        let entry = FrameEntry::new(owner, state);
        let frame = match self.grant(owner, LimitSource::New) {
            GrantOutcome::Granted => self.find_granted(owner, entry),
            GrantOutcome::Full => self.exchange(owner, entry),
            GrantOutcome::No => None,
        };
        let slot = self.slot(owner);
        match frame {
            Some(_) if slot.wanted.load(Relaxed) != 0 => self.want_less(owner, 1),
            Some(_) => (),
            None => {
                slot.refused.fetch_add(1, Relaxed);
            }
        }
        frame
    }

    /// Frees `frame`, if it is `owner`'s in `state`, without lowering n. Returns true if it did.
    pub(crate) fn release(&self, frame: Frame, from: FrameEntry) -> bool {
        let changed = self.ramtab().change(frame, from, FrameEntry::FREE);
        if changed {
            if from.state() == State::Nailed {
                lower_to_zero(&self.header().nailed, 1);
            }
            self.set(0).insert(frame);
        }
        changed
    }

    /// Lowers n by `by` frames, after they were released.
    pub(crate) fn lower(&self, owner: Owner, by: u32) {
        if by == 0 {
            return;
        }
        let slot = self.slot(owner);
        let lower = |n: u32| (n & CLOSED == 0).then(|| n.saturating_sub(by));
        if let Ok(n) = slot.n.fetch_update(SeqCst, SeqCst, lower) {
            let g = slot.g.load(SeqCst);
            let before = n.max(g);
            let left = n.saturating_sub(by);
            let header = self.header();
            header.limit.release(n.min(by));
            lower_to_zero(&header.committed, before - left.max(g));
            let met = |demanded: u32| Some(demanded.saturating_sub(by).min(left.saturating_sub(g)));
            let _ = slot.demanded.fetch_update(SeqCst, SeqCst, met);
        }
        self.header().notify_freed();
    }

    /// Lowers the number of frames that `owner` waits for.
    pub(crate) fn want_less(&self, owner: Owner, by: u32) {
        lower_to_zero(&self.slot(owner).wanted, by);
        self.sum_wants();
    }

    /// Sums the frames that all domains wait for, after a change of one. The domain that stores the
    /// sum last has read it again, so it is right when no domain changes what it waits for, even
    /// where a domain was killed between its change and the sum.
    pub(crate) fn sum_wants(&self) -> u32 {
        let sum = || {
            let wanted = (1..self.reach()).map(|owner| self.slot(owner).wanted.load(SeqCst));
            wanted.fold(0, u32::saturating_add)
        };
        let mut wants = sum();
        for _ in 0..MAX_ATTEMPTS {
            self.header().wants.store(wants, SeqCst);
            let now = sum();
            if now == wants {
                break;
            }
            wants = now;
        }
        wants
    }

    /// Frames demanded from a domain and not yet released: no more than it owns above its
    /// guarantee, whatever a domain that was killed, or demanded while the frames left, has added.
    pub(crate) fn demanded(&self, owner: Owner) -> u32 {
        let demanded = self.slot(owner).demanded.load(SeqCst);
        demanded.min(self.surplus(owner))
    }

    /// The share of each domain when all want as many as possible.
    pub(crate) fn fair(&self) -> u32 {
        let header = self.header();
        fair_share(header.live.load(SeqCst), header.limit.limit())
    }

    /// Raises n by one, if the contract, the limit and the others' guarantees allow it.
    fn grant(&self, owner: Owner, unit: LimitSource) -> GrantOutcome {
        let (slot, header) = (self.slot(owner), self.header());
        let (g, x) = (slot.g.load(SeqCst), slot.x.load(SeqCst));
        loop {
            let n = slot.n.load(SeqCst);
            if n >= x || n & CLOSED != 0 {
                return GrantOutcome::No;
            }
            let optimistic = n >= g;
            if optimistic {
                if self.others_wait(owner, n) {
                    return GrantOutcome::No;
                }
                if !add_within(&header.committed, 1, header.max_committed()) {
                    return GrantOutcome::Full;
                }
            }
            let within = unit == LimitSource::Same || header.limit.try_take();
            if within && slot.n.compare_exchange(n, n + 1, SeqCst, SeqCst).is_ok() {
                header.update_peak();
                return GrantOutcome::Granted;
            }
            if within && unit == LimitSource::New {
                header.limit.release(1);
            }
            if optimistic {
                lower_to_zero(&header.committed, 1);
            }
            if !within {
                return GrantOutcome::Full;
            }
        }
    }

    /// Returns true if another domain waits for frames, which this one has its share of. Where both wait, the one with fewer goes
    /// first: each may have locked more than its share, and wait for the other.
    fn others_wait(&self, owner: Owner, n: u32) -> bool {
        let wanted = self.slot(owner).wanted.load(SeqCst);
        let is_short = self.header().wants.load(SeqCst) > wanted && n >= self.fair();
        let goes_first = |other: Owner| {
            let (slot, held) = (self.slot(other), self.slot(other).n.load(SeqCst) & !CLOSED);
            let may_take = slot.wanted.load(SeqCst) > 0 && held < slot.x.load(SeqCst);
            may_take && (wanted == 0 || (held, other) < (n, owner))
        };
        is_short && (1..self.reach()).any(|other| other != owner && goes_first(other))
    }

    /// Finds the frame of a granted request.
    fn find_granted(&self, owner: Owner, entry: FrameEntry) -> Option<Frame> {
        for _ in 0..MAX_ATTEMPTS {
            if let Some(frame) = self.pop_free(entry) {
                return Some(frame);
            }
            if let Some((frame, victim)) = self.lock_unused(owner) {
                if self.surrender(frame, victim, owner) {
                    self.header().limit.release(1);
                    self.ramtab()
                        .change(frame, FrameEntry::new(owner, State::Revoking), entry);
                    return Some(frame);
                }
            } else if self.set(0).len() == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        self.lower(owner, 1);
        None
    }

    /// A frame when all within the limit are owned or promised: an unused one of another domain.
    /// It stays under the unit of the limit that it was owned under.
    fn exchange(&self, owner: Owner, entry: FrameEntry) -> Option<Frame> {
        let (slot, header) = (self.slot(owner), self.header());
        let held = FrameEntry::new(owner, State::Revoking);
        for _ in 0..MAX_ATTEMPTS {
            // Past the limit, frames go to domains below their guarantee.
            let guaranteed = slot.n.load(SeqCst) < slot.g.load(SeqCst);
            if !guaranteed && header.committed.load(SeqCst) > header.max_committed() {
                return None;
            }
            let (frame, victim) = self.lock_unused(owner)?;
            if !self.surrender(frame, victim, owner) {
                continue;
            }
            match self.grant(owner, LimitSource::Same) {
                GrantOutcome::Granted => {
                    self.ramtab().change(frame, held, entry);
                    return Some(frame);
                }
                grant => {
                    self.release(frame, held);
                    header.limit.release(1);
                    header.notify_freed();
                    if grant == GrantOutcome::No {
                        return None;
                    }
                }
            }
        }
        None
    }

    fn pop_free(&self, entry: FrameEntry) -> Option<Frame> {
        let free = self.set(0);
        while let Some(frame) = free.pop() {
            if self.ramtab().change(frame, FrameEntry::FREE, entry) {
                return Some(frame);
            }
        }
        None
    }

    /// Locks an unused frame of the domain furthest above its guarantee.
    fn lock_unused(&self, owner: Owner) -> Option<(Frame, Owner)> {
        let held = FrameEntry::new(owner, State::Revoking);
        let mut above = u32::MAX;
        // From the largest surplus down, each surplus once.
        while let Some((surplus, victims)) = self.next_surplus(owner, above) {
            above = surplus;
            for victim in victims {
                let unused = FrameEntry::new(victim, State::Unused);
                let set = self.set(victim);
                if let Some(frame) = set.find(|frame| self.ramtab().change(frame, unused, held)) {
                    set.remove(frame);
                    return Some((frame, victim));
                }
            }
        }
        None
    }

    /// The largest surplus below `below` of a domain with unused frames, and the domains that have it: one walk where no frame
    /// is unused (1000 domains: 6 us; 4 ms by each surplus).
    fn next_surplus(&self, owner: Owner, below: u32) -> Option<(u32, impl Iterator<Item = Owner>)> {
        let surplus = |victim: &Owner| self.surplus(*victim);
        let has_unused = move |victim: &Owner| *victim != owner && self.set(*victim).len() > 0;
        let others = move || (1..self.reach()).filter(has_unused);
        let largest = others()
            .map(|v| surplus(&v))
            .filter(|s| (1..below).contains(s))
            .max()?;
        Some((largest, others().filter(move |v| surplus(v) == largest)))
    }

    /// n - g: how many frames may be taken from a domain.
    pub(crate) fn surplus(&self, victim: Owner) -> u32 {
        let slot = self.slot(victim);
        match slot.n.load(SeqCst) {
            n if n & CLOSED != 0 => 0,
            n => n.saturating_sub(slot.g.load(SeqCst)),
        }
    }

    /// Slots in use are 1 up to below this.
    pub(crate) fn reach(&self) -> Owner {
        self.header().reach.load(SeqCst).min(self.slot_count())
    }

    /// Moves a locked frame from the victim's count to no domain's, without changing the number
    /// of owned frames; returns it if the victim owns no more than its guarantee. True if moved.
    fn surrender(&self, frame: Frame, victim: Owner, taker: Owner) -> bool {
        let (slot, held) = (self.slot(victim), FrameEntry::new(taker, State::Revoking));
        let state = slot.state.load(SeqCst);
        let g = slot.g.load(SeqCst);
        let less = |n: u32| (n & CLOSED == 0 && n > g).then(|| n - 1);
        if slot.n.fetch_update(SeqCst, SeqCst, less).is_ok() {
            lower_to_zero(&self.header().committed, 1);
            // A demand that the victim cannot meet any more would count as outstanding for ever.
            lower_to_zero(&slot.demanded, 1);
            slot.lost.fetch_add(1, Relaxed);
            self.slot(taker).taken_over.fetch_add(1, Relaxed);
            return true;
        }
        let unused = FrameEntry::new(victim, State::Unused);
        self.ramtab().change(frame, held, unused);
        self.set(victim).insert(frame);
        // A domain retired meanwhile may have been swept before the frame was returned to it.
        let gone = slot.n.load(SeqCst) & CLOSED != 0 || slot.state.load(SeqCst) != state;
        if gone && self.release(frame, unused) {
            self.header().notify_freed();
        }
        false
    }
}

impl Header {
    const SLEEPS: u32 = 1;

    /// Wakes waiters: frames became free.
    pub(crate) fn notify_freed(&self) {
        let next = |word: u32| Some((word & !Self::SLEEPS).wrapping_add(2));
        let before = self.freed.fetch_update(SeqCst, SeqCst, next).unwrap_or(0);
        if before & Self::SLEEPS != 0 {
            wired::futex::wake_all(&self.freed);
        }
    }

    /// A value that changes when frames become free.
    pub(crate) fn freed_seq(&self) -> u32 {
        self.freed.load(SeqCst) & !Self::SLEEPS
    }

    /// Sleeps until frames became free since `seq`, or the limit.
    pub(crate) fn wait_freed(&self, seq: u32, limit: Option<Duration>) {
        let asleep = seq | Self::SLEEPS;
        let mark = self.freed.compare_exchange(seq, asleep, SeqCst, SeqCst);
        if mark.is_ok() || mark == Err(asleep) {
            wired::futex::wait(&self.freed, asleep, limit);
        }
    }
}
