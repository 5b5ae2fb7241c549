//! Recounting from the RamTab after a process died while changing counts.
//!
//! Counts are changed in steps, and a process may be killed between two of them. That loses
//! nothing, but leaves a count too high: a frame that cannot be used. Rule: a count is corrected
//! by the *difference* between its value and the RamTab's number, both read while no domain was
//! changing counts. As in a sequence lock, such a moment is recognised by every domain's activity
//! word being idle before and unchanged after; where none occurs by itself, all domains are made
//! to pause for at most some milliseconds. Where a domain is stopped in mid-change even that
//! fails, and the next retirement tries again.

use crate::layout::{CLOSED, DomainSlot, LedgerMemory};
use crate::ramtab::{FrameEntry, Owner, State};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Attempts without and with all domains pausing.
const UNPAUSED_ATTEMPTS: u32 = 8;
const PAUSED_ATTEMPTS: u32 = 400;

/// One domain's words at one moment.
#[derive(Clone, Default)]
struct RecountSample {
    admitted: bool,
    activity: u64,
    n: u32,
    g: u32,
    /// Frames that the RamTab assigns to it.
    owned: u32,
}

/// Corrects a ledger's counts by its RamTab.
pub(crate) struct Recount<'a>(pub(crate) &'a LedgerMemory);

impl Recount<'_> {
    /// Corrects the counts if a process died while changing them. Returns true if they are right
    /// now.
    pub(crate) fn run(&self) -> bool {
        let header = self.0.header();
        if header.suspect.load(SeqCst) == 0 {
            return true;
        }
        if header.recounting.swap(1, SeqCst) != 0 {
            return false;
        }
        let mut done = (0..UNPAUSED_ATTEMPTS).any(|_| self.attempt());
        if !done {
            header.pause.store(1, SeqCst);
            done = (0..PAUSED_ATTEMPTS).any(|attempt| {
                if attempt > 10 {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                self.attempt()
            });
            header.pause.store(0, SeqCst);
            wired::futex::wake_all(&header.pause);
        }
        if done {
            header.suspect.store(0, SeqCst);
        }
        header.recounting.store(0, SeqCst);
        done
    }

    /// Returns true if it saw a moment without changes, and corrected the counts by it.
    fn attempt(&self) -> bool {
        let memory = self.0;
        let header = memory.header();
        let count = memory.slot_count();
        let read = |owner: Owner| read(memory.slot(owner));
        let mut all: Vec<RecountSample> = (0..count).map(read).collect();
        let totals = [&header.guaranteed, &header.committed, &header.live];
        let said = totals.map(|word| word.load(SeqCst));
        let said_owned = header.limit.owned();
        if all.iter().any(|reading| reading.activity as u32 != 0) {
            return false;
        }
        let mut strays = Vec::new();
        for (frame, entry) in memory.ramtab().entries() {
            let Some(reading) = all.get_mut(entry.owner() as usize) else {
                strays.push((frame, entry));
                continue;
            };
            if reading.admitted {
                reading.owned += 1;
            } else if entry != FrameEntry::FREE {
                strays.push((frame, entry));
            } else if !memory.set(0).contains(frame) {
                memory.set(0).insert(frame);
            }
        }
        let miscount = memory.set(0).miscount();
        let same = |(owner, reading): (Owner, &RecountSample)| {
            let now = read(owner);
            now.activity == reading.activity
                && now.n == reading.n
                && now.admitted == reading.admitted
        };
        if !(0..count).zip(&all).all(same) {
            return false;
        }
        for (owner, reading) in (0..count).zip(&all).filter(|(_, reading)| reading.admitted) {
            correct(&memory.slot(owner).n, reading.n, reading.owned);
        }
        let admitted = || all.iter().filter(|reading| reading.admitted);
        let sum = |each: fn(&RecountSample) -> u32| admitted().map(each).sum::<u32>();
        let true_totals = [sum(|r| r.g), sum(|r| r.owned.max(r.g)), sum(|_| 1)];
        for ((word, said), truth) in totals.into_iter().zip(said).zip(true_totals) {
            correct(word, said, truth);
        }
        header.limit.correct(said_owned, sum(|r| r.owned));
        memory.set(0).correct(miscount);
        for (frame, entry) in strays {
            memory.release(frame, entry);
        }
        self.repair_sets();
        true
    }

    /// Puts unused frames back into their owners' sets, in case a dead taker removed their bits.
    /// An owner that takes such a frame at this moment drops the bit later.
    fn repair_sets(&self) {
        let memory = self.0;
        for (frame, entry) in memory.ramtab().entries() {
            let unused = matches!(entry.state(), State::Unused | State::Reserved);
            if unused && entry.owner() < memory.slot_count() {
                memory.set(entry.owner()).insert(frame);
            }
        }
    }
}

fn read(slot: &DomainSlot) -> RecountSample {
    RecountSample {
        admitted: slot.word().is_admitted(),
        activity: slot.activity.load(SeqCst),
        n: slot.n.load(SeqCst) & !CLOSED,
        g: slot.g.load(SeqCst),
        owned: 0,
    }
}

/// Moves `word` by the difference between `said` and `truth`.
fn correct(word: &AtomicU32, said: u32, truth: u32) {
    if said != truth {
        word.fetch_add(truth.wrapping_sub(said), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::DomainWord;
    use crate::ramtab::Frame;
    use crate::{Contract, DomainFrames, Ledger};

    /// Two domains with 10 frames each, one of those of the second unused.
    fn two(ledger: &Ledger) -> (DomainFrames<'_>, DomainFrames<'_>) {
        let domains = [(5, 50), (5, 50)].map(|(g, x)| {
            let id = ledger.admit(Contract { g, x }).unwrap();
            let client = ledger.adopt(id).unwrap();
            (0..10).for_each(|_| assert!(client.take().is_some()));
            client
        });
        (domains[0], domains[1])
    }

    /// Each step leaves the words as a taker that dies at that point does.
    #[test]
    fn counts_are_right_after_a_taker_that_died_anywhere_is_retired() {
        let steps: [fn(&Ledger, Owner, Owner); 7] = [
            // Optimistic quota taken, n not raised.
            |ledger, _, _| assert_eq!(ledger.memory.header().committed.fetch_add(1, SeqCst), 20),
            // A unit of the limit taken, n not raised.
            |ledger, _, _| assert!(ledger.memory.header().limit.try_take()),
            // n raised, no frame found.
            |ledger, dead, _| assert_eq!(ledger.memory.slot(dead).n.fetch_add(1, SeqCst), 10),
            // A frame out of the free set, and not in the RamTab.
            |ledger, _, _| assert!(ledger.memory.set(0).pop().is_some()),
            // Another domain's unused frame locked, its n not lowered.
            |ledger, dead, other| {
                let frame = ledger.memory.set(other).pop().unwrap();
                let (from, to) = (
                    FrameEntry::new(other, State::Unused),
                    FrameEntry::new(dead, State::Revoking),
                );
                assert!(ledger.memory.ramtab().change(frame, from, to));
            },
            // A slot claimed for a child and its guarantee counted.
            |ledger, dead, _| {
                let slot = ledger.memory.slot(3);
                let word = DomainWord {
                    phase: crate::DomainPhase::Claimed,
                    creator: dead,
                    generation: 0,
                };
                slot.state.store(word.pack(), SeqCst);
                ledger.memory.header().guaranteed.fetch_add(7, SeqCst);
            },
            // A frame freed, but not put into the set, nor n lowered.
            |ledger, _, other| {
                let frame = ledger.memory.set(other).pop().unwrap();
                let from = FrameEntry::new(other, State::Unused);
                assert!(ledger.memory.ramtab().change(frame, from, FrameEntry::FREE));
            },
        ];
        for step in steps {
            let ledger = Ledger::create(30, 4).unwrap().0;
            let (dead, other) = two(&ledger);
            let mut mapped = None::<Frame>;
            other.stack(|frame, _| mapped = Some(frame));
            other.put(mapped.unwrap()).unwrap();
            step(&ledger, dead.id().slot, other.id().slot);
            // The taker died while changing counts.
            ledger
                .memory
                .slot(dead.id().slot)
                .activity
                .fetch_add(1 << 32 | 1, SeqCst);
            ledger.retire(dead.id());
            let header = ledger.memory.header();
            assert_eq!(header.suspect.load(SeqCst), 0);
            let mut n = 0;
            other.stack(|_, _| n += 1);
            assert_eq!((other.n(), ledger.free()), (n, 30 - n));
            assert_eq!(
                (header.committed.load(SeqCst), header.limit.owned()),
                (n.max(5), n)
            );
            assert_eq!((ledger.guaranteed(), ledger.domains()), (5, 1));
            let rest = (0..30).map_while(|_| other.take()).count() as u32;
            assert_eq!(
                rest,
                30 - n + u32::from(n == 10),
                "every frame can be taken"
            );
        }
    }
}
