//! A domain's operations on the ledger: taking, marking, putting and releasing frames.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2, the client's half. Everything
//! here may run on the page path: a handful of compare-and-swaps on shared words, no allocation,
//! no lock, no system call but the futex ones for waiting and waking.
//!
//! **The frame stack.** The paper's stack orders a domain's frames by its willingness to lose
//! them. Here the order is the RamTab's states: unused on top, which an allocator may take without
//! help, then standby, mapped, and nailed at the bottom. The top is a set, so that taking and
//! putting are O(1) from many threads at once. Within a state there is no order: a frame is a
//! number without contents, and which *contents* are evicted next is up to the replacement
//! policy. [`DomainFrames::stack`] lists the stack.

use crate::acquire::{UpdateGuard, lower_to_zero};
use crate::contract::{AdmissionError, Contract};
use crate::domain::{DomainId, DomainWord};
use crate::frame_set::FrameSet;
use crate::layout::{CLOSED, DomainSlot};
use crate::ledger::Ledger;
use crate::millis::Millis;
use crate::ramtab::{Frame, FrameEntry, Owner, State};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// An operation on a frame whose state does not allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerMisuse {
    /// The number is out of range.
    #[error("no such frame: {0}; page state and RamTab disagree, which is a bug in the pager")]
    NoSuchFrame(u32),
    /// The frame is another domain's, or not in use.
    #[error(
        "frame {frame} is not in use by domain {domain} (it is {state:?}); page state and RamTab \
         disagree, which is a bug in the pager"
    )]
    NotInUse {
        /// The frame.
        frame: u32,
        /// The domain that operated on it.
        domain: DomainId,
        /// Its state.
        state: State,
    },
    /// A state that a resident page's frame cannot have.
    #[error("invalid mark: {0:?}; expected mapped, standby or nailed (see put and release)")]
    NotAMark(State),
}

/// Too few frames for a child's reserve; none were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{missing} of {asked} frames for the child are missing; evict or release that many and try again, \
         or give the contract more frames"
)]
pub struct InsufficientFrames {
    /// Frames asked for.
    pub asked: u32,
    /// Frames that are missing.
    pub missing: u32,
}

/// A domain's frames in the ledger, for the process that pages with them. Copies are the same
/// domain.
#[derive(Clone, Copy)]
pub struct DomainFrames<'a> {
    ledger: &'a Ledger,
    id: DomainId,
    slot: &'a DomainSlot,
    unused: FrameSet<'a>,
}

impl<'a> DomainFrames<'a> {
    pub(crate) fn new(ledger: &'a Ledger, id: DomainId) -> Self {
        let slot = ledger.memory.slot(id.slot);
        Self {
            ledger,
            id,
            slot,
            unused: ledger.memory.set(id.slot),
        }
    }

    /// The domain's id.
    pub fn id(&self) -> DomainId {
        self.id
    }

    /// The ledger it is in.
    pub fn ledger(&self) -> &'a Ledger {
        self.ledger
    }

    /// {g, x}.
    pub fn contract(&self) -> Contract {
        Contract {
            g: self.slot.g.load(Relaxed),
            x: self.slot.x.load(Relaxed),
        }
    }

    /// Takes a frame to map a page with, marked as mapped from here on: an unused one of the
    /// domain, else a free one, else an unused one of another domain above its guarantee. None
    /// when the contract or the others' guarantees do not allow it: evict, or call
    /// [`Ledger::demand`] and wait.
    pub fn take(&self) -> Option<Frame> {
        self.take_own()
            .or_else(|| self.acquire(self.id.slot, State::Mapped))
    }

    /// Takes a frame that the domain has unused: n does not change.
    pub fn take_own(&self) -> Option<Frame> {
        let mapped = self.entry(State::Mapped);
        while let Some(frame) = self.unused.pop() {
            let ramtab = self.ledger.memory.ramtab();
            if ramtab.change(frame, self.entry(State::Unused), mapped)
                || ramtab.change(frame, self.entry(State::Reserved), mapped)
            {
                return Some(frame);
            }
            // Another domain has taken it transparently: try the next.
        }
        None
    }

    /// Marks a frame in use as mapped, standby or nailed.
    pub fn mark(&self, frame: Frame, state: State) -> Result<(), LedgerMisuse> {
        if !matches!(state, State::Mapped | State::Standby | State::Nailed) {
            return Err(LedgerMisuse::NotAMark(state));
        }
        self.change_used(frame, self.entry(state))
    }

    /// The state of a frame; none when it is another domain's.
    pub fn state(&self, frame: Frame) -> Option<State> {
        let entry = self.ledger.memory.ramtab().get(frame)?;
        (entry.owner() == self.id.slot).then_some(entry.state())
    }

    /// Puts a frame without a resident page on top of the frame stack.
    pub fn put(&self, frame: Frame) -> Result<(), LedgerMisuse> {
        self.put_batch(&[frame])
    }

    /// Puts several frames; stops at the first that is not in use. Those of a domain whose pager has ended are not its any more.
    pub fn put_batch(&self, frames: &[Frame]) -> Result<(), LedgerMisuse> {
        for frame in frames {
            match self.change_used(*frame, self.entry(State::Unused)) {
                Ok(()) => self.unused.insert(*frame),
                Err(_) if self.slot.n.load(SeqCst) & CLOSED != 0 => return Ok(()),
                Err(misuse) => return Err(misuse),
            }
        }
        self.wake_waiters();
        Ok(())
    }

    /// Releases up to `k` unused frames. Returns how many.
    pub fn release(&self, k: u32) -> u32 {
        let memory = &self.ledger.memory;
        let _activity = UpdateGuard::begin(memory, self.id.slot);
        let mut given = 0;
        while given < k {
            let Some(frame) = self.unused.pop() else {
                break;
            };
            let released = memory.release(frame, self.entry(State::Unused));
            given += u32::from(released || memory.release(frame, self.entry(State::Reserved)));
        }
        memory.lower(self.id.slot, given);
        given
    }

    /// Frames the domain owns.
    pub fn n(&self) -> u32 {
        self.slot.n.load(Relaxed) & !CLOSED
    }

    /// Approximate number of them that are unused: others may take these at any moment.
    pub fn unused(&self) -> u32 {
        self.unused.len()
    }

    /// Frames that the domain could own now without another domain's help: n and what is neither
    /// owned nor promised, within x. It changes with the other domains: a bound for eviction,
    /// not for planning.
    pub fn resident_limit(&self) -> u32 {
        let header = self.ledger.memory.header();
        let Contract { g, x } = self.contract();
        let room = header
            .max_committed()
            .saturating_sub(header.committed.load(Relaxed));
        x.min(self.n().max(g).saturating_add(room))
    }

    /// Signals pressure where the limit is near. Returns true if the frames allocator owes the
    /// tenant frames of its guarantee, for lack of which the domain owns less than it may: a
    /// revocation from other tenants is under way, or the allocator is being restarted.
    pub fn request_guaranteed(&self) -> bool {
        self.ledger.bell.signal_pressure(&self.ledger.memory);
        let most = self.ledger.max_guaranteed().min(self.contract().x);
        self.ledger.memory.header().max_committed() < most
    }

    /// Frames that [`Ledger::demand`] demanded from the domain and that are not released.
    pub fn demanded(&self) -> u32 {
        self.ledger.memory.demanded(self.id.slot)
    }

    /// Answers a revocation: releases up to `k` unused frames, which the domain must have put
    /// before. Returns how many.
    pub fn release_demanded(&self, k: u32) -> u32 {
        let given = self.release(k);
        self.slot.released.fetch_add(u64::from(given), Relaxed);
        given
    }

    /// Records that a thread of the domain faults now: see [`Ledger::trim_idle`].
    pub fn note_use(&self, now: Millis) {
        // A store only when it changes: most faults come in the millisecond of another.
        if self.slot.used_at.load(Relaxed) != now.0 {
            self.slot.used_at.store(now.0, Relaxed);
        }
    }

    /// Frames that [`Ledger::trim_idle`] asked the domain for: to evict, then to release.
    pub fn trimmed(&self) -> u32 {
        self.slot.trim.load(SeqCst)
    }

    /// Answers a trim of `k` frames at the time `now`: releases as many of them as are unused. Returns
    /// how many.
    ///
    /// A domain that has fewer (its pages are locked) counts as used now, so that the next trim asks
    /// another one.
    pub fn release_trimmed(&self, k: u32, now: Millis) -> u32 {
        let given = self.release(k);
        self.slot.trim_at.store(now.0, Relaxed);
        lower_to_zero(&self.slot.trim, k);
        if given < k {
            self.note_use(now);
        }
        given
    }

    /// A value that changes when the domain is rung: read it, check [`DomainFrames::demanded`],
    /// then wait on it.
    pub fn bell_seq(&self) -> u32 {
        self.slot.bell.load(SeqCst)
    }

    /// Sleeps until the domain was rung since `seq` was read, or the limit. Returns early on a
    /// signal.
    pub fn wait_bell(&self, seq: u32, limit: Option<Duration>) {
        wired::futex::wait(&self.slot.bell, seq, limit);
    }

    /// Admits a domain for a child about to be forked. It is its creator's until [`DomainFrames::let_go_of_child`], or
    /// until the creator is retired. From then on the supervisor retires it once no process is left that can adopt it.
    pub fn admit_child(&self, contract: Contract) -> Result<DomainId, AdmissionError> {
        self.ledger.admit_by(self.id.slot, contract)
    }

    /// The child exists: its domain is its own, adopted or not.
    pub fn let_go_of_child(&self, child: DomainId) {
        let own = self.id.slot;
        let orphan = |word: DomainWord| match word.creator == own {
            true => DomainWord { creator: 0, ..word },
            false => word,
        };
        if let Some(slot) = self.ledger.find(child) {
            slot.change(child, orphan);
        }
    }

    /// Takes `k` frames for a child admitted by [`DomainFrames::admit_child`], all or none: one
    /// for every page that is resident here, since the child will have it resident too. No other
    /// domain can take them. The child renumbers: for each page that it finds resident it takes a
    /// frame ([`DomainFrames::take_own`]), marks it like the parent's, and writes its number into
    /// the page's word; then it calls [`DomainFrames::finish_renumbering`].
    pub fn reserve_for_child(&self, child: DomainId, k: u32) -> Result<(), InsufficientFrames> {
        let memory = &self.ledger.memory;
        let reserved = FrameEntry::new(child.slot, State::Reserved);
        let set = memory.set(child.slot);
        for got in 0..k {
            match self.acquire(child.slot, State::Reserved) {
                Some(frame) => set.insert(frame),
                None => {
                    let _activity = UpdateGuard::begin(memory, self.id.slot);
                    let mut back = 0;
                    while back < got {
                        let Some(frame) = set.pop() else { break };
                        back += u32::from(memory.release(frame, reserved));
                    }
                    memory.lower(child.slot, back);
                    return Err(InsufficientFrames {
                        asked: k,
                        missing: k - got,
                    });
                }
            }
        }
        Ok(())
    }

    /// Retires a child admitted here whose fork failed, with its reserve. Returns the number of
    /// frames reclaimed.
    pub fn dismiss_child(&self, child: DomainId) -> u32 {
        let _activity = UpdateGuard::begin(&self.ledger.memory, self.id.slot);
        self.ledger.dismiss(child).unwrap_or(0)
    }

    /// Ends a child's renumbering: reserved frames that it did not need become unused, on top of
    /// its stack. Returns how many.
    pub fn finish_renumbering(&self) -> u32 {
        let (reserved, unused) = (self.entry(State::Reserved), self.entry(State::Unused));
        let mut left = 0;
        self.unused.find(|frame| {
            left += u32::from(self.ledger.memory.ramtab().change(frame, reserved, unused));
            false
        });
        left
    }

    /// Calls `each` for every frame of the domain, from the one it loses first to the one it
    /// keeps: unused, standby, mapped, nailed. One pass over the RamTab for each state: for tools
    /// and tests.
    pub fn stack(&self, mut each: impl FnMut(Frame, State)) {
        let order = [
            State::Unused,
            State::Standby,
            State::Mapped,
            State::Nailed,
            State::Reserved,
            State::Revoking,
        ];
        for state in order {
            for (frame, entry) in self.ledger.memory.ramtab().entries() {
                if entry == self.entry(state) {
                    each(frame, state);
                }
            }
        }
    }

    /// Pages locked in this domain without a nailed frame for each.
    pub fn locked(&self) -> u32 {
        self.slot.locked.load(SeqCst)
    }

    /// Sets [`DomainFrames::locked`].
    pub fn note_locked(&self, pages: u32) {
        self.ledger.memory.note_locked(self.slot, pages);
    }

    /// Takes one more frame, for this domain or for its child.
    fn acquire(&self, owner: Owner, state: State) -> Option<Frame> {
        let frame = self.ledger.memory.acquire(self.id.slot, owner, state);
        self.ledger.bell.signal_pressure(&self.ledger.memory);
        frame
    }

    fn entry(&self, state: State) -> FrameEntry {
        FrameEntry::new(self.id.slot, state)
    }

    /// Changes the entry of a frame that a page of this domain holds.
    fn change_used(&self, frame: Frame, to: FrameEntry) -> Result<(), LedgerMisuse> {
        let ramtab = self.ledger.memory.ramtab();
        loop {
            let entry = ramtab
                .get(frame)
                .ok_or(LedgerMisuse::NoSuchFrame(frame.0))?;
            let used = matches!(
                entry.state(),
                State::Mapped | State::Standby | State::Nailed
            );
            if entry.owner() != self.id.slot || !used {
                let (frame, domain, state) = (frame.0, self.id, entry.state());
                return Err(LedgerMisuse::NotInUse {
                    frame,
                    domain,
                    state,
                });
            }
            if entry == to || self.ledger.memory.mark(frame, entry, to) {
                return Ok(());
            }
        }
    }

    /// Wakes waiters: unused frames above the guarantee are theirs to take.
    fn wake_waiters(&self) {
        let header = self.ledger.memory.header();
        if header.wants.load(Relaxed) != 0 {
            header.notify_freed();
        }
    }
}
