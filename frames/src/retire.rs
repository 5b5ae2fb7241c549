//! Retirement: reclaiming the frames of a domain whose process is gone.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2: a killed domain's frames are
//! reclaimed. Rule: each step can be repeated, so a process that dies while it retires a domain
//! leaves nothing but a retirement to finish.
//!
//! A slot's number names other tables' entries, too, which may be in use for longer than the memory
//! of the process. So the supervisor may retire a domain in two steps: [`Ledger::drain`], which
//! frees its frames and leaves the slot retiring, and [`Ledger::retire`], which vacates the slot.

use crate::acquire::lower_to_zero;
use crate::domain::{DomainId, DomainPhase, DomainWord};
use crate::layout::CLOSED;
use crate::ledger::Ledger;
use crate::ramtab::{FrameEntry, Owner};
use crate::recount::Recount;
use std::sync::atomic::Ordering::SeqCst;

impl Ledger {
    /// Reclaims everything of a domain whose process is gone, wherever it died. The domains of
    /// children that it had admitted stay, and are retired by themselves. Returns the number of
    /// frames reclaimed, zero where there is no such domain or where it was drained. One thread of
    /// the supervisor calls this, *after* it reaped the process.
    pub fn retire(&self, id: DomainId) -> u32 {
        let back = self.drain(id);
        if self.is_drained(id) {
            self.vacate(id.slot);
        }
        back
    }

    /// Reclaims the frames and the guarantee of a domain whose process is gone, as
    /// [`Ledger::retire`] does, but not its slot: no domain is admitted there until the domain is
    /// retired. Returns the number of frames reclaimed.
    pub fn drain(&self, id: DomainId) -> u32 {
        // Without a creator, whose own retirement would vacate the slot.
        let drained = |word: DomainWord| DomainWord {
            creator: 0,
            ..word.in_phase(DomainPhase::Retiring)
        };
        let slot = self.find(id).filter(|slot| slot.change(id, drained));
        let back = slot.map_or(0, |_| self.dismantle(id.slot));
        self.recount();
        back
    }

    /// Returns true if [`Ledger::drain`] left the domain in its slot. One with a creator is being
    /// dismissed by that.
    fn is_drained(&self, id: DomainId) -> bool {
        let slot = self.memory.slots().get(id.slot as usize);
        slot.is_some_and(|slot| {
            let word = slot.word();
            word.generation == id.generation
                && word.phase == DomainPhase::Retiring
                && word.creator == 0
        })
    }

    /// Corrects the counts if a process died while changing them. Returns true if they are right
    /// now. [`Ledger::retire`] calls it; where it failed there the supervisor may call it again.
    /// Allocates: not for the page path.
    pub fn recount(&self) -> bool {
        Recount(&self.memory).run()
    }

    /// Reclaims everything of a child's domain by its creator, if it exists, without a recount.
    pub(crate) fn dismiss(&self, id: DomainId) -> Option<u32> {
        let slot = self.find(id)?;
        slot.change(id, |word| word.in_phase(DomainPhase::Retiring))
            .then(|| self.dismantle_and_vacate(id.slot))
    }

    fn dismantle_and_vacate(&self, owner: Owner) -> u32 {
        let back = self.dismantle(owner);
        self.vacate(owner);
        back
    }

    /// Empties a retiring slot. Idempotent: where its caller is killed, another process calls it
    /// again.
    fn dismantle(&self, owner: Owner) -> u32 {
        let (slot, header) = (self.memory.slot(owner), self.memory.header());
        let n = slot.n.fetch_or(CLOSED, SeqCst);
        let mut back = self.sweep(owner, n & !CLOSED);
        self.memory.set(owner).clear();
        self.memory.want_less(owner, u32::MAX);
        slot.demanded.store(0, SeqCst);
        slot.trim.store(0, SeqCst);
        self.memory.note_locked(slot, 0);
        // A process that died while changing counts left some too high.
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
        back += self.release_children(owner);
        header.notify_freed();
        back
    }

    fn vacate(&self, owner: Owner) {
        let slot = self.memory.slot(owner);
        let vacant = DomainWord {
            phase: DomainPhase::Vacant,
            creator: 0,
            generation: (slot.word().generation + 1) & DomainWord::GENERATION_MASK,
        };
        slot.state.store(vacant.pack(), SeqCst);
    }

    /// Frees every frame of an owner, of which there are `most`: it may be told more than there are, never less.
    fn sweep(&self, owner: Owner, most: u32) -> u32 {
        let mut back = 0;
        for (frame, seen) in self.memory.ramtab().entries() {
            // One thread retires all processes of a tree, which is as good as its rate of new ones.
            if back == most {
                break;
            }
            let mut entry = seen;
            while entry.owner() == owner && entry != FrameEntry::FREE {
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

    /// Ends what a dead creator had begun with its children's domains. A nascent one stays: its
    /// child may be about to adopt it, and the creator's slot may soon have another domain.
    fn release_children(&self, creator: Owner) -> u32 {
        let theirs = |owner: &Owner| {
            let word = self.memory.slot(*owner).word();
            word.creator == creator && word.phase != DomainPhase::Vacant
        };
        let mut back = 0;
        for owner in (1..self.memory.slot_count()).filter(theirs) {
            let word = self.memory.slot(owner).word();
            match word.phase {
                DomainPhase::Nascent => {
                    let orphan = DomainWord { creator: 0, ..word };
                    let state = &self.memory.slot(owner).state;
                    // It fails where the child adopts the domain meanwhile, which does the same.
                    let _ = state.compare_exchange(word.pack(), orphan.pack(), SeqCst, SeqCst);
                }
                DomainPhase::Retiring => back += self.dismantle_and_vacate(owner),
                DomainPhase::Claimed => self.vacate(owner),
                DomainPhase::Vacant | DomainPhase::Live => (),
            }
        }
        back
    }
}
