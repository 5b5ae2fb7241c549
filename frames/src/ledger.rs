//! The ledger: the frames allocator's books, in memory that all its domains share.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: admission, {n, g, x},
//! revocation. There is no allocator process to ask: every domain does its own requests on
//! the shared words, and the supervisor only admits, revokes and, when a process died at
//! whatever instruction, retires its domain.

use crate::acquire::{UpdateGuard, add_within, lower_to_zero};
use crate::contract::{AdmissionError, Contract, Process};
use crate::domain::{DomainId, DomainWord, Phase};
use crate::domain_frames::DomainFrames;
use crate::layout::{CLOSED, DomainSlot, Layout, LedgerMemory, MAGIC};
use crate::pressure::PressureBell;
use crate::ramtab::{Entry, Frame, Owner};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use wired::{PAGE, WiredMemory};

/// Why a ledger could not be made or attached, or a domain not found in it.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// More or fewer frames than a ledger can keep.
    #[error("a ledger keeps 1 to {most} frames, not {0}", most = Frame::MAX)]
    Total(u32),
    /// More or fewer domains than a ledger can keep.
    #[error("a ledger keeps 1 to {most} domains, not {0}", most = Ledger::MAX_DOMAINS)]
    Domains(u32),
    /// The descriptor is something else.
    #[error(
        "the descriptor is not a frames ledger of this version: it must come from Ledger::create of \
         the same selfpage"
    )]
    NotALedger,
    /// No such domain, or no longer.
    #[error("domain {0} is not in the ledger: it was retired, and its frames went to others")]
    Gone(DomainId),
    /// The kernel refused the memory.
    #[error("mapping the frames ledger: {0}; it needs 4 to 6 bytes of memory for each frame")]
    Map(std::io::Error),
}

/// The books of `total` frames, shared by all who hold the descriptor.
pub struct Ledger {
    pub(crate) memory: LedgerMemory,
    pub(crate) bell: PressureBell,
}

impl Ledger {
    /// Most domains at once. The table of their frame sets is sparse: a slot not used
    /// costs an eighth of a byte a frame of address space and no memory.
    pub const MAX_DOMAINS: u32 = DomainWord::SLOT_MASK;

    /// New books of `total` frames, all free, for at most `max_domains` domains at once;
    /// with the descriptor to hand to their processes.
    pub fn create(total: u32, max_domains: u32) -> Result<(Self, OwnedFd), LedgerError> {
        Self::create_limited(total, total, max_domains)
    }

    /// New books of which at most `limit` frames may be owned, until whoever attaches a
    /// [`crate::LimitControl`] to the descriptor raises that; `total` is the most it can be raised to.
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

    /// The books behind a descriptor from [`Ledger::create`], in another process.
    pub fn attach(fd: impl AsFd) -> Result<Self, LedgerError> {
        let map =
            |len| WiredMemory::attach(fd.as_fd(), len).map_err(|e| LedgerError::Map(e.into()));
        let small = std::fs::File::from(fd.as_fd().try_clone_to_owned().map_err(LedgerError::Map)?);
        let length = small.metadata().map_err(LedgerError::Map)?.len();
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

    /// Admits a domain, nascent until its process takes it up with [`Ledger::adopt`].
    pub fn admit(&self, contract: Contract, process: Process) -> Result<DomainId, AdmissionError> {
        self.admit_by(0, contract, process)
    }

    /// Admits a domain that goes with its creator until it is adopted.
    pub(crate) fn admit_by(
        &self,
        creator: Owner,
        contract: Contract,
        process: Process,
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
        slot.pid.store(process.pid, SeqCst);
        slot.start.store(process.start, SeqCst);
        slot.g.store(g, SeqCst);
        slot.x.store(x.min(self.total()), SeqCst);
        for word in [&slot.demanded, &slot.wanted] {
            word.store(0, SeqCst);
        }
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
        slot.state.store(
            DomainWord {
                phase: Phase::Nascent,
                ..word
            }
            .pack(),
            SeqCst,
        );
        Ok(DomainId {
            slot: owner,
            generation: word.generation,
        })
    }

    /// Takes up an admitted domain in the process that will page with it: the child after
    /// a fork, or the new image after an exec.
    pub fn adopt(&self, id: DomainId, process: Process) -> Result<DomainFrames<'_>, LedgerError> {
        let slot = self.find(id).ok_or(LedgerError::Gone(id))?;
        let live = |now: u32| {
            let word = DomainWord::unpack(now);
            let same = word.generation == id.generation && word.admitted();
            same.then_some(
                DomainWord {
                    phase: Phase::Live,
                    creator: 0,
                    ..word
                }
                .pack(),
            )
        };
        slot.pid.store(process.pid, SeqCst);
        slot.start.store(process.start, SeqCst);
        match slot.state.fetch_update(SeqCst, SeqCst, live) {
            Ok(_) => Ok(DomainFrames::new(self, id)),
            Err(_) => Err(LedgerError::Gone(id)),
        }
    }

    /// A domain's view of the ledger.
    pub fn client(&self, id: DomainId) -> Result<DomainFrames<'_>, LedgerError> {
        self.find(id)
            .map(|_| DomainFrames::new(self, id))
            .ok_or(LedgerError::Gone(id))
    }

    /// Takes back everything of a domain whose process is gone, wherever it died, and of
    /// children it had admitted that were never adopted. Returns the frames that came
    /// back; none when there is no such domain. To be called by one thread of the supervisor, *after* the process was reaped.
    pub fn retire(&self, id: DomainId) -> u32 {
        let back = self.dismiss(id).unwrap_or(0);
        if self.memory.header().suspect.load(SeqCst) != 0 {
            self.recount();
        }
        back
    }

    /// Takes back everything of a domain, if it is there; without making counts again.
    pub(crate) fn dismiss(&self, id: DomainId) -> Option<u32> {
        let slot = self.find(id)?;
        let retiring = |now: u32| {
            let word = DomainWord::unpack(now);
            let ours = word.generation == id.generation && word.admitted();
            ours.then_some(
                DomainWord {
                    phase: Phase::Retiring,
                    ..word
                }
                .pack(),
            )
        };
        slot.state.fetch_update(SeqCst, SeqCst, retiring).ok()?;
        Some(self.dismantle(id.slot))
    }

    /// Empties a retiring slot. May be begun by one process and, if that is killed, done
    /// again by another.
    fn dismantle(&self, owner: Owner) -> u32 {
        let (slot, header) = (self.memory.slot(owner), self.memory.header());
        let n = slot.n.fetch_or(CLOSED, SeqCst);
        let mut back = self.sweep(owner);
        self.memory.set(owner).clear();
        self.memory.want_less(owner, u32::MAX);
        slot.demanded.store(0, SeqCst);
        // A process that died while changing counts left them too high somewhere.
        let torn = slot.activity.swap(0, SeqCst) as u32 != 0;
        if torn || n & CLOSED != 0 {
            header.suspect.store(1, SeqCst);
        }
        if n & CLOSED == 0 {
            let g = slot.g.load(SeqCst);
            header.limit.release(n);
            lower_to_zero(&header.committed, n.max(g));
            lower_to_zero(&header.guaranteed, g);
            lower_to_zero(&header.live, 1);
        }
        back += self.dismiss_children(owner);
        self.vacate(owner);
        header.notify_freed();
        back
    }

    fn vacate(&self, owner: Owner) {
        let slot = self.memory.slot(owner);
        let generation = DomainWord::unpack(slot.state.load(SeqCst)).generation + 1;
        let generation = generation & DomainWord::GENERATION_MASK;
        slot.state.store(
            DomainWord {
                phase: Phase::Vacant,
                creator: 0,
                generation,
            }
            .pack(),
            SeqCst,
        );
    }

    /// Wakes a domain's pager.
    pub fn ring(&self, id: DomainId) {
        if let Some(slot) = self.find(id) {
            slot.ring();
        }
    }

    /// A value that changes when frames become free: read it, try, and then wait on it.
    pub fn freed_seq(&self) -> u32 {
        self.memory.header().freed_seq()
    }

    /// Sleeps until frames became free since `seq` was read, or the limit. Returns early
    /// on a signal: callers try again.
    pub fn wait_freed(&self, seq: u32, limit: Option<Duration>) {
        self.memory.header().wait_freed(seq, limit);
    }

    /// Most that the guarantees of all domains may sum to: the tenant's own guarantee, where
    /// the books are a tenant's. Those admitted already stay.
    pub fn set_max_guaranteed(&self, frames: u32) {
        let frames = frames.min(self.total());
        self.memory.header().max_guaranteed.store(frames, SeqCst);
    }

    /// How many frames may be owned now.
    pub fn limit(&self) -> u32 {
        self.memory.header().limit.limit()
    }

    /// Frames owned by all domains.
    pub fn owned(&self) -> u32 {
        self.memory.header().limit.owned()
    }

    /// The most frames that all domains owned at one moment.
    pub fn peak_owned(&self) -> u32 {
        self.memory.header().peak_owned.load(SeqCst)
    }

    /// Sum of max(n, g): frames owned, and those still owed to guarantees.
    pub fn committed(&self) -> u32 {
        self.memory.header().committed.load(SeqCst)
    }

    /// Frames in all, the most there can ever be.
    pub fn total(&self) -> u32 {
        self.memory.total()
    }

    /// Frames nobody owns, about; the limit may keep them from being taken.
    pub fn free(&self) -> u32 {
        self.memory.set(0).len()
    }

    /// Sum of the guarantees admitted.
    pub fn guaranteed(&self) -> u32 {
        self.memory.header().guaranteed.load(SeqCst)
    }

    /// Domains admitted.
    pub fn domains(&self) -> u32 {
        self.memory.header().live.load(SeqCst)
    }

    pub(crate) fn find(&self, id: DomainId) -> Option<&DomainSlot> {
        let slot = self.memory.slots().get(id.slot as usize)?;
        let word = DomainWord::unpack(slot.state.load(SeqCst));
        (id.slot != 0 && word.generation == id.generation && word.admitted()).then_some(slot)
    }

    fn claim(&self, creator: Owner) -> Option<(Owner, DomainWord)> {
        (1..self.memory.slot_count()).find_map(|owner| {
            let state = &self.memory.slot(owner).state;
            let now = state.load(SeqCst);
            let word = DomainWord::unpack(now);
            let claimed = DomainWord {
                phase: Phase::Claimed,
                creator,
                ..word
            };
            let ours = word.phase == Phase::Vacant
                && state
                    .compare_exchange(now, claimed.pack(), SeqCst, SeqCst)
                    .is_ok();
            ours.then_some((owner, claimed))
        })
    }

    /// Makes every frame of an owner free.
    fn sweep(&self, owner: Owner) -> u32 {
        let mut back = 0;
        for (frame, seen) in self.memory.ramtab().entries() {
            let mut entry = seen;
            while entry.owner() == owner && entry != Entry::FREE {
                if self.memory.release(frame, entry) {
                    back += 1;
                    break;
                }
                match self.memory.ramtab().get(frame) {
                    Some(now) => entry = now,
                    None => break,
                }
            }
        }
        back
    }

    /// Takes back domains that a dead creator had claimed or admitted and nobody took up.
    fn dismiss_children(&self, creator: Owner) -> u32 {
        let theirs = |owner: &Owner| {
            let word = DomainWord::unpack(self.memory.slot(*owner).state.load(SeqCst));
            word.creator == creator && word.phase != Phase::Vacant
        };
        let mut back = 0;
        for owner in (1..self.memory.slot_count()).filter(theirs) {
            let word = DomainWord::unpack(self.memory.slot(owner).state.load(SeqCst));
            match word.phase {
                Phase::Nascent => {
                    let id = DomainId {
                        slot: owner,
                        generation: word.generation,
                    };
                    back += self.dismiss(id).unwrap_or(0);
                }
                Phase::Retiring => back += self.dismantle(owner),
                Phase::Claimed => self.vacate(owner),
                Phase::Vacant | Phase::Live => (),
            }
        }
        back
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
