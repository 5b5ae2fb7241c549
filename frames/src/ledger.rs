//! The ledger: the frames allocator's books, in memory that all its domains share.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: admission, {n, g, x},
//! revocation. There is no allocator process to ask: every domain does its own requests on
//! the shared words, and the supervisor only admits, revokes and, when a process died at
//! whatever instruction, retires its domain.

use crate::client::Client;
use crate::contract::{Contract, Process, Refusal};
use crate::domain::{DomainId, Phase, Word};
use crate::layout::{CLOSED, Layout, MAGIC, Memory, Slot};
use crate::quota::{Activity, add_within, lower_to_zero};
use crate::ramtab::{Entry, Frame, Owner, State};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;
use wired::{PAGE, Region};

/// Why a ledger could not be made or attached, or a domain not found in it.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// More or fewer frames than a ledger can keep.
    #[error("a ledger keeps 1 to {most} frames, not {0}", most = Frame::MOST)]
    Total(u32),
    /// More or fewer domains than a ledger can keep.
    #[error("a ledger keeps 1 to {most} domains, not {0}", most = Ledger::MOST_DOMAINS)]
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
    pub(crate) memory: Memory,
}

/// What the ledger knows of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainView {
    /// Its name.
    pub id: DomainId,
    /// Where it is in its life.
    pub phase: Phase,
    /// The process that holds it.
    pub process: Process,
    /// {g, x}.
    pub contract: Contract,
    /// Frames it owns.
    pub n: u32,
    /// Those of them with nothing resident, about.
    pub unused: u32,
    /// Frames it was asked to give back and has not.
    pub asked: u32,
    /// Frames it waits for.
    pub wanted: u32,
    /// Frames it took over from others, transparently, since it was admitted.
    pub taken_over: u64,
    /// Frames others took over from it.
    pub lost: u64,
    /// Frames it was ever asked for, intrusively.
    pub asked_ever: u64,
    /// Frames it gave back because it was asked.
    pub answered: u64,
    /// Requests of its that found no frame.
    pub refused: u64,
}

/// How many of a domain's frames are in each state, by the RamTab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// With nothing resident.
    pub unused: u32,
    /// With a page mapped.
    pub mapped: u32,
    /// With a page staged.
    pub standby: u32,
    /// With a page that must stay.
    pub nailed: u32,
    /// Set aside for a child, or changing hands.
    pub other: u32,
}

impl Census {
    /// Frames in all.
    pub fn total(&self) -> u32 {
        self.unused + self.mapped + self.standby + self.nailed + self.other
    }
}

impl Ledger {
    /// Most domains at once. The table of their frame sets is sparse: a slot not used
    /// costs an eighth of a byte a frame of address space and no memory.
    pub const MOST_DOMAINS: u32 = Word::SLOT_MASK;

    /// New books of `total` frames, all free, for at most `max_domains` domains at once;
    /// with the descriptor to hand to their processes.
    pub fn create(total: u32, max_domains: u32) -> Result<(Self, OwnedFd), LedgerError> {
        let slots = check(total, max_domains)?;
        let layout = Layout::new(total, slots);
        let (region, fd) = Region::shared(layout.length, "selfpage-ledger")
            .map_err(|e| LedgerError::Map(e.into()))?;
        let memory = Memory::new(region, layout);
        for number in 0..total {
            memory.set(0).insert(Frame(number));
        }
        let header = memory.header();
        header.length.store(layout.length as u64, SeqCst);
        header.total.store(total, SeqCst);
        header.slots.store(slots, SeqCst);
        header.magic.store(MAGIC, SeqCst);
        Ok((Self { memory }, fd))
    }

    /// The books behind a descriptor from [`Ledger::create`], in another process.
    pub fn attach(fd: impl AsFd) -> Result<Self, LedgerError> {
        let map = |len| Region::attach(fd.as_fd(), len).map_err(|e| LedgerError::Map(e.into()));
        let small = std::fs::File::from(fd.as_fd().try_clone_to_owned().map_err(LedgerError::Map)?);
        let length = small.metadata().map_err(LedgerError::Map)?.len();
        if length < PAGE as u64 {
            return Err(LedgerError::NotALedger);
        }
        let (total, slots) = {
            let first = map(PAGE)?;
            let header = &first.slice::<crate::layout::Header>(0, 1)[0];
            if header.magic.load(SeqCst) != MAGIC {
                return Err(LedgerError::NotALedger);
            }
            (header.total.load(SeqCst), header.slots.load(SeqCst))
        };
        let fits = check(total, slots.wrapping_sub(1)).is_ok();
        if !fits || Layout::new(total, slots).length as u64 != length {
            return Err(LedgerError::NotALedger);
        }
        let layout = Layout::new(total, slots);
        Ok(Self {
            memory: Memory::new(map(layout.length)?, layout),
        })
    }

    /// Admits a domain, nascent until its process takes it up with [`Ledger::adopt`].
    pub fn admit(&self, contract: Contract, process: Process) -> Result<DomainId, Refusal> {
        self.admit_by(0, contract, process)
    }

    /// Admits a domain that goes with its creator until it is adopted.
    pub(crate) fn admit_by(
        &self,
        creator: Owner,
        contract: Contract,
        process: Process,
    ) -> Result<DomainId, Refusal> {
        let Contract { g, x } = contract;
        if x == 0 || g > x {
            return Err(Refusal::Contract { g, x });
        }
        let _activity = Activity::begin(&self.memory, creator);
        let header = self.memory.header();
        if !add_within(&header.guaranteed, g, self.total()) {
            return Err(Refusal::Guarantee {
                asked: g,
                admitted: header.guaranteed.load(SeqCst),
                total: self.total(),
                domains: header.live.load(SeqCst),
            });
        }
        let Some((owner, word)) = self.claim(creator) else {
            lower_to_zero(&header.guaranteed, g);
            return Err(Refusal::Slots {
                slots: self.memory.slot_count() - 1,
            });
        };
        let slot = self.memory.slot(owner);
        self.memory.set(owner).clear();
        slot.pid.store(process.pid, SeqCst);
        slot.start.store(process.start, SeqCst);
        slot.g.store(g, SeqCst);
        slot.x.store(x.min(self.total()), SeqCst);
        for word in [&slot.asked, &slot.wanted] {
            word.store(0, SeqCst);
        }
        for word in [
            &slot.activity,
            &slot.taken_over,
            &slot.lost,
            &slot.asked_ever,
            &slot.answered,
            &slot.refused,
        ] {
            word.store(0, SeqCst);
        }
        header.committed.fetch_add(g, SeqCst);
        header.live.fetch_add(1, SeqCst);
        header.reach.fetch_max(owner + 1, SeqCst);
        slot.n.store(0, SeqCst);
        slot.state.store(
            Word {
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
    pub fn adopt(&self, id: DomainId, process: Process) -> Result<Client<'_>, LedgerError> {
        let slot = self.find(id).ok_or(LedgerError::Gone(id))?;
        let live = |now: u32| {
            let word = Word::unpack(now);
            let same = word.generation == id.generation && word.admitted();
            same.then_some(
                Word {
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
            Ok(_) => Ok(Client::new(self, id)),
            Err(_) => Err(LedgerError::Gone(id)),
        }
    }

    /// A domain's view of the ledger.
    pub fn client(&self, id: DomainId) -> Result<Client<'_>, LedgerError> {
        self.find(id)
            .map(|_| Client::new(self, id))
            .ok_or(LedgerError::Gone(id))
    }

    /// Takes back everything of a domain whose process is gone, wherever it died, and of
    /// children it had admitted that were never adopted. Returns the frames that came
    /// back; none when there is no such domain. To be called by one thread of the supervisor, *after* the process was reaped.
    pub fn retire(&self, id: DomainId) -> u32 {
        let back = self.dismiss(id).unwrap_or(0);
        if self.memory.header().suspect.load(SeqCst) != 0 {
            self.reconcile();
        }
        back
    }

    /// Takes back everything of a domain, if it is there; without making counts again.
    pub(crate) fn dismiss(&self, id: DomainId) -> Option<u32> {
        let slot = self.find(id)?;
        let retiring = |now: u32| {
            let word = Word::unpack(now);
            let ours = word.generation == id.generation && word.admitted();
            ours.then_some(
                Word {
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
        slot.asked.store(0, SeqCst);
        // A process that died while changing counts left them too high somewhere.
        let torn = slot.activity.swap(0, SeqCst) as u32 != 0;
        if torn || n & CLOSED != 0 {
            header.suspect.store(1, SeqCst);
        }
        if n & CLOSED == 0 {
            let g = slot.g.load(SeqCst);
            lower_to_zero(&header.committed, n.max(g));
            lower_to_zero(&header.guaranteed, g);
            lower_to_zero(&header.live, 1);
        }
        back += self.dismiss_children(owner);
        self.vacate(owner);
        header.ring_freed();
        back
    }

    fn vacate(&self, owner: Owner) {
        let slot = self.memory.slot(owner);
        let generation = Word::unpack(slot.state.load(SeqCst)).generation + 1;
        let generation = generation & Word::GENERATION_MASK;
        slot.state.store(
            Word {
                phase: Phase::Vacant,
                creator: 0,
                generation,
            }
            .pack(),
            SeqCst,
        );
    }

    /// Asks domains with more than their guarantee to give back frames, so that `id` can
    /// have `k`: the largest n - g first. Frames asked for before and still on their way
    /// count. Returns how many are on their way in all; fewer than `k` when the others
    /// have no more to give. What happens to a domain that does not answer in time is the
    /// supervisor's to decide: see [`DomainView::asked`].
    ///
    /// From g on `id` is no better than the others: they are asked down to the fair share
    /// only, and until `id` has its frames none above that share gets more.
    pub fn demand(&self, id: DomainId, k: u32) -> u32 {
        let Some(slot) = self.find(id) else { return 0 };
        let slots = || (1..self.memory.reach()).map(|owner| self.memory.slot(owner));
        slot.wanted.store(k, SeqCst);
        let wants = slots()
            .map(|slot| slot.wanted.load(SeqCst))
            .fold(0, u32::saturating_add);
        self.memory.header().wants.store(wants, SeqCst);
        let coming = || {
            slots()
                .map(|slot| slot.asked.load(SeqCst))
                .fold(0, u32::saturating_add)
        };
        let guaranteed = slot.n.load(SeqCst) < slot.g.load(SeqCst);
        let keep = if guaranteed { 0 } else { self.memory.fair() };
        while coming() < wants {
            let others = (1..self.memory.reach()).filter(|owner| *owner != id.slot);
            let spare = |owner: &Owner| {
                let slot = self.memory.slot(*owner);
                let above = self.memory.surplus(*owner);
                let asked = slot.asked.load(SeqCst);
                above
                    .min(slot.n.load(SeqCst).saturating_sub(keep))
                    .saturating_sub(asked)
            };
            let Some(victim) = others.max_by_key(spare).filter(|v| spare(v) > 0) else {
                break;
            };
            let (most, missing) = (spare(&victim), wants.saturating_sub(coming()));
            let more = most.min(missing);
            let victim = self.memory.slot(victim);
            victim.asked.fetch_add(more, SeqCst);
            victim.asked_ever.fetch_add(u64::from(more), Relaxed);
            ring(victim);
            if more == 0 {
                break;
            }
        }
        coming()
    }

    /// Wakes a domain's pager.
    pub fn ring(&self, id: DomainId) {
        if let Some(slot) = self.find(id) {
            ring(slot);
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

    /// Frames in all.
    pub fn total(&self) -> u32 {
        self.memory.total()
    }

    /// Free frames, about.
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

    /// What the ledger knows of a domain.
    pub fn view(&self, id: DomainId) -> Option<DomainView> {
        self.views().find(|view| view.id == id)
    }

    /// All domains admitted.
    pub fn views(&self) -> impl Iterator<Item = DomainView> {
        (1..self.memory.reach()).filter_map(|owner| {
            let slot = self.memory.slot(owner);
            let word = Word::unpack(slot.state.load(SeqCst));
            word.admitted().then(|| DomainView {
                id: DomainId {
                    slot: owner,
                    generation: word.generation,
                },
                phase: word.phase,
                process: Process {
                    pid: slot.pid.load(SeqCst),
                    start: slot.start.load(SeqCst),
                },
                contract: Contract {
                    g: slot.g.load(SeqCst),
                    x: slot.x.load(SeqCst),
                },
                n: slot.n.load(SeqCst) & !CLOSED,
                unused: self.memory.set(owner).len(),
                asked: slot.asked.load(SeqCst),
                wanted: slot.wanted.load(SeqCst),
                taken_over: slot.taken_over.load(Relaxed),
                lost: slot.lost.load(Relaxed),
                asked_ever: slot.asked_ever.load(Relaxed),
                answered: slot.answered.load(Relaxed),
                refused: slot.refused.load(Relaxed),
            })
        })
    }

    /// Counts a domain's frames in the RamTab: for statistics, 1 us for 4,000 frames.
    pub fn census(&self, id: DomainId) -> Census {
        let mut census = Census::default();
        for (_, entry) in self.memory.ramtab().entries() {
            if entry.owner() == id.slot {
                match entry.state() {
                    State::Free => (),
                    State::Unused => census.unused += 1,
                    State::Mapped => census.mapped += 1,
                    State::Standby => census.standby += 1,
                    State::Nailed => census.nailed += 1,
                    State::Reserved | State::Revoking => census.other += 1,
                }
            }
        }
        census
    }

    pub(crate) fn find(&self, id: DomainId) -> Option<&Slot> {
        let slot = self.memory.slots().get(id.slot as usize)?;
        let word = Word::unpack(slot.state.load(SeqCst));
        (id.slot != 0 && word.generation == id.generation && word.admitted()).then_some(slot)
    }

    fn claim(&self, creator: Owner) -> Option<(Owner, Word)> {
        (1..self.memory.slot_count()).find_map(|owner| {
            let state = &self.memory.slot(owner).state;
            let now = state.load(SeqCst);
            let word = Word::unpack(now);
            let claimed = Word {
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
            let word = Word::unpack(self.memory.slot(*owner).state.load(SeqCst));
            word.creator == creator && word.phase != Phase::Vacant
        };
        let mut back = 0;
        for owner in (1..self.memory.slot_count()).filter(theirs) {
            let word = Word::unpack(self.memory.slot(owner).state.load(SeqCst));
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

fn ring(slot: &Slot) {
    slot.bell.fetch_add(1, SeqCst);
    wired::futex::wake_all(&slot.bell);
}

fn check(total: u32, max_domains: u32) -> Result<u32, LedgerError> {
    if total == 0 || total > Frame::MOST {
        return Err(LedgerError::Total(total));
    }
    if max_domains == 0 || max_domains > Ledger::MOST_DOMAINS {
        return Err(LedgerError::Domains(max_domains));
    }
    Ok(max_domains + 1)
}
