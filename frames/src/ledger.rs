//! The ledger: the frames allocator's state, in memory that all its domains share.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: admission, {n, g, x},
//! revocation. There is no allocator process: every domain executes its own requests on the
//! shared words; the supervisor only admits, revokes and, when a process died at any
//! instruction, retires its domain.

use crate::acquire::{UpdateGuard, add_within, lower_to_zero};
use crate::contract::{AdmissionError, Contract};
use crate::domain::{DomainId, DomainPhase, DomainWord};
use crate::domain_frames::DomainFrames;
use crate::layout::{DomainSlot, Layout, LedgerMemory, MAGIC};
use crate::millis::Millis;
use crate::pressure::PressureBell;
use crate::ramtab::{Frame, Owner};
use crate::stats::DomainStats;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use wired::{PAGE, WiredMemory};

/// Why a ledger cannot be made or attached, or a domain is not found in it.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A number of frames out of range.
    #[error("invalid number of frames: {0}; expected 1 to {max}", max = Frame::MAX)]
    Total(u32),
    /// A number of domains out of range.
    #[error("invalid number of domains: {0}; expected 1 to {max}", max = Ledger::MAX_DOMAINS)]
    Domains(u32),
    /// The descriptor is of something else.
    #[error(
        "the descriptor is not a frames ledger of this version; pass one made by Ledger::create of the \
         same selfpage"
    )]
    NotALedger,
    /// The domain was retired.
    #[error("domain {0} is not in the ledger: it was retired, and its frames were freed")]
    Gone(DomainId),
    /// The kernel refused the mapping.
    #[error(
        "cannot map the frames ledger: {0}; it needs 4 to 6 bytes for each frame, in memory that is a file to the kernel \
         (`ulimit -f`)"
    )]
    Map(std::io::Error),
}

/// A ledger of `total` frames, shared by all holders of its descriptor.
pub struct Ledger {
    pub(crate) memory: LedgerMemory,
    pub(crate) bell: PressureBell,
}

impl Ledger {
    /// Most domains at once. The table of their frame sets is sparse: an unused slot costs an
    /// eighth of a byte of address space per frame and no memory.
    pub const MAX_DOMAINS: u32 = DomainWord::SLOT_MASK;

    /// A new ledger of `total` free frames for at most `max_domains` domains at once, and the
    /// descriptor for their processes.
    pub fn create(total: u32, max_domains: u32) -> Result<(Self, OwnedFd), LedgerError> {
        Self::create_limited(total, total, max_domains)
    }

    /// A new ledger of which at most `limit` frames may be owned, until a
    /// [`crate::LimitControl`] on the descriptor raises the limit, up to `total`.
    pub fn create_limited(
        total: u32,
        limit: u32,
        max_domains: u32,
    ) -> Result<(Self, OwnedFd), LedgerError> {
        let slots = check(total, max_domains)?;
        let layout = Layout::new(total, slots);
        let (region, fd) = WiredMemory::shared(layout.length, "selfpage-ledger")
            .map_err(|e| LedgerError::Map(e.into()))?;
        let memory = LedgerMemory::new(region, layout);
        memory.set(0).fill(total);
        let header = memory.header();
        header.length.store(layout.length as u64, SeqCst);
        header.total.store(total, SeqCst);
        header.slots.store(slots, SeqCst);
        header.limit.set(limit.min(total));
        header.max_guaranteed.store(total, SeqCst);
        header.reclaim_target.store(u32::MAX, SeqCst);
        header.magic.store(MAGIC, SeqCst);
        Ok((Self::new(memory), fd))
    }

    /// The ledger behind a descriptor from [`Ledger::create`], in another process.
    pub fn attach(fd: impl AsFd) -> Result<Self, LedgerError> {
        let map =
            |len| WiredMemory::attach(fd.as_fd(), len).map_err(|e| LedgerError::Map(e.into()));
        let found = rustix::fs::fstat(&fd).map_err(|e| LedgerError::Map(e.into()))?;
        let length = found.st_size as u64;
        if length < PAGE as u64 {
            return Err(LedgerError::NotALedger);
        }
        let first = map(PAGE)?;
        let layout = Layout::read(&first, length).ok_or(LedgerError::NotALedger)?;
        Ok(Self::new(LedgerMemory::new(map(layout.length)?, layout)))
    }

    fn new(memory: LedgerMemory) -> Self {
        Self {
            memory,
            bell: PressureBell::default(),
        }
    }

    /// Admits a domain, nascent until its process adopts it with [`Ledger::adopt`].
    pub fn admit(&self, contract: Contract) -> Result<DomainId, AdmissionError> {
        self.admit_by(0, contract)
    }

    /// Admits a domain that names its creator until it is adopted.
    pub(crate) fn admit_by(
        &self,
        creator: Owner,
        contract: Contract,
    ) -> Result<DomainId, AdmissionError> {
        let Contract { g, x } = contract;
        if x == 0 || g > x {
            return Err(AdmissionError::Contract { g, x });
        }
        let _activity = UpdateGuard::begin(&self.memory, creator);
        let header = self.memory.header();
        let max_guaranteed = header.max_guaranteed.load(SeqCst);
        if !add_within(&header.guaranteed, g, max_guaranteed) {
            return Err(AdmissionError::Guarantee {
                asked: g,
                admitted: header.guaranteed.load(SeqCst),
                total: max_guaranteed,
                domains: header.live.load(SeqCst),
            });
        }
        let Some((owner, word)) = self.claim(creator) else {
            lower_to_zero(&header.guaranteed, g);
            return Err(AdmissionError::Slots {
                slots: self.memory.slot_count() - 1,
            });
        };
        let slot = self.memory.slot(owner);
        self.memory.set(owner).clear();
        slot.g.store(g, SeqCst);
        slot.x.store(x.min(self.total()), SeqCst);
        slot.demanded.store(0, SeqCst);
        slot.wanted.store(0, SeqCst);
        slot.trim.store(0, SeqCst);
        slot.locked.store(0, SeqCst);
        // By a program's thread, before a fork.
        let now = Millis::of(wired::clock::now_by_call());
        slot.used_at.store(now.0, SeqCst);
        for word in [
            &slot.activity,
            &slot.taken_over,
            &slot.lost,
            &slot.demanded_ever,
            &slot.released,
            &slot.refused,
        ] {
            word.store(0, SeqCst);
        }
        header.committed.fetch_add(g, SeqCst);
        header.live.fetch_add(1, SeqCst);
        header.reach.fetch_max(owner + 1, SeqCst);
        slot.n.store(0, SeqCst);
        slot.state
            .store(word.in_phase(DomainPhase::Nascent).pack(), SeqCst);
        Ok(DomainId {
            slot: owner,
            generation: word.generation,
        })
    }

    /// Adopts an admitted domain in the process that will page with it: the child after a fork,
    /// or the new image after an exec.
    pub fn adopt(&self, id: DomainId) -> Result<DomainFrames<'_>, LedgerError> {
        let slot = self.find(id).ok_or(LedgerError::Gone(id))?;
        let live = |word: DomainWord| DomainWord {
            creator: 0,
            ..word.in_phase(DomainPhase::Live)
        };
        if slot.change(id, live) {
            Ok(DomainFrames::new(self, id))
        } else {
            Err(LedgerError::Gone(id))
        }
    }

    /// The frames of an admitted domain.
    pub fn client(&self, id: DomainId) -> Result<DomainFrames<'_>, LedgerError> {
        self.find(id)
            .map(|_| DomainFrames::new(self, id))
            .ok_or(LedgerError::Gone(id))
    }

    /// Wakes a domain's pager.
    pub fn ring(&self, id: DomainId) {
        if let Some(slot) = self.find(id) {
            slot.ring();
        }
    }

    /// A value that changes when frames become free: read it, try, then wait on it.
    pub fn freed_seq(&self) -> u32 {
        self.memory.header().freed_seq()
    }

    /// Sleeps until frames became free since `seq` was read, or the limit. Returns early on a
    /// signal: callers try again.
    pub fn wait_freed(&self, seq: u32, limit: Option<Duration>) {
        self.memory.header().wait_freed(seq, limit);
    }

    /// Sets the most that the guarantees of all domains may sum to: the tenant's own guarantee
    /// for a tenant's ledger. Domains admitted already stay.
    pub fn set_max_guaranteed(&self, frames: u32) {
        let frames = frames.min(self.total());
        self.memory.header().max_guaranteed.store(frames, SeqCst);
    }

    /// The most that the guarantees of all domains may sum to.
    pub(crate) fn max_guaranteed(&self) -> u32 {
        self.memory.header().max_guaranteed.load(SeqCst)
    }

    /// Frames that may be owned now.
    pub fn limit(&self) -> u32 {
        self.memory.header().limit.limit()
    }

    /// Frames owned by all domains.
    pub fn owned(&self) -> u32 {
        self.memory.header().limit.owned()
    }

    /// The most frames that all domains owned at any moment.
    pub fn peak_owned(&self) -> u32 {
        self.memory.header().peak_owned.load(SeqCst)
    }

    /// Sum of max(n, g): frames owned, and those still owed to guarantees.
    pub fn committed(&self) -> u32 {
        self.memory.header().committed.load(SeqCst)
    }

    /// Number of frames, the most that the limit can be.
    pub fn total(&self) -> u32 {
        self.memory.total()
    }

    /// Approximate number of free frames; the limit may forbid to take them.
    pub fn free(&self) -> u32 {
        self.memory.set(0).len()
    }

    /// Sum of the admitted guarantees.
    pub fn guaranteed(&self) -> u32 {
        self.memory.header().guaranteed.load(SeqCst)
    }

    /// Number of admitted domains.
    pub fn domains(&self) -> u32 {
        self.memory.header().live.load(SeqCst)
    }

    /// Statistics of a domain; none if it is not admitted.
    pub fn stats(&self, id: DomainId) -> Option<DomainStats> {
        self.all_stats().find(|stats| stats.id == id)
    }

    /// Statistics of all admitted domains.
    pub fn all_stats(&self) -> impl Iterator<Item = DomainStats> {
        (1..self.memory.reach()).filter_map(|owner| DomainStats::read(&self.memory, owner))
    }

    /// The pressure word: not 0 from the start of pressure until the limit is raised, or
    /// [`crate::LimitControl::acknowledge_pressure`] was called.
    pub fn pressure(&self) -> &AtomicU32 {
        &self.memory.header().pressure
    }

    /// Sets the eventfd that this process rings when it is the first to signal pressure. An
    /// earlier one stays open, since another thread may be ringing it, and in the child of a fork
    /// its number names another descriptor. The descriptor must stay open while the ledger lives
    /// and should not block: 8 bytes are written to it on the page path.
    pub fn set_bell(&self, bell: OwnedFd) {
        self.bell.set(bell);
    }

    pub(crate) fn find(&self, id: DomainId) -> Option<&DomainSlot> {
        let slot = self.memory.slots().get(id.slot as usize)?;
        let word = slot.word();
        (id.slot != 0 && word.generation == id.generation && word.is_admitted()).then_some(slot)
    }

    fn claim(&self, creator: Owner) -> Option<(Owner, DomainWord)> {
        (1..self.memory.slot_count()).find_map(|owner| {
            let state = &self.memory.slot(owner).state;
            let now = state.load(SeqCst);
            let word = DomainWord::unpack(now);
            let claimed = DomainWord {
                phase: DomainPhase::Claimed,
                creator,
                ..word
            };
            let ours = word.phase == DomainPhase::Vacant
                && state
                    .compare_exchange(now, claimed.pack(), SeqCst, SeqCst)
                    .is_ok();
            ours.then_some((owner, claimed))
        })
    }
}

pub(crate) fn check(total: u32, max_domains: u32) -> Result<u32, LedgerError> {
    if total == 0 || total > Frame::MAX {
        return Err(LedgerError::Total(total));
    }
    if max_domains == 0 || max_domains > Ledger::MAX_DOMAINS {
        return Err(LedgerError::Domains(max_domains));
    }
    Ok(max_domains + 1)
}
