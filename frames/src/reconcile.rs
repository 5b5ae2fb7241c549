//! Making the counts again from the RamTab after a process died changing them.
//!
//! Counts are changed in steps, and a process may be killed between two of them. Nothing
//! is lost then, but a count stays too high: a frame nobody can use. Rule: a count is
//! corrected by the *difference* between what it says and what the RamTab says, both read
//! while no domain was changing counts. Such a moment is recognised, as a sequence lock
//! does it, by every domain's activity word being idle before and the same afterwards; it
//! is made, if it does not come by itself, by asking all to pause for at most some
//! milliseconds. If a domain is stopped in mid-change even that fails, and it is tried
//! again at the next retirement.

use crate::domain::Word;
use crate::layout::{CLOSED, Slot};
use crate::ledger::Ledger;
use crate::ramtab::{Entry, Owner, State};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Attempts without and with everybody asked to pause.
const GLANCES: u32 = 8;
const LOOKS: u32 = 400;

/// What one domain's words say at one moment.
#[derive(Clone, Default)]
struct Reading {
    admitted: bool,
    activity: u64,
    n: u32,
    g: u32,
    wanted: u32,
    /// Frames the RamTab gives it.
    owned: u32,
}

impl Ledger {
    /// Corrects the counts if a process died changing them; whether they are right now.
    /// Done by [`Ledger::retire`]; the supervisor may call it again when it failed there.
    /// Allocates: not for the page path.
    pub fn reconcile(&self) -> bool {
        let header = self.memory.header();
        if header.suspect.load(SeqCst) == 0 {
            return true;
        }
        if header.reconciling.swap(1, SeqCst) != 0 {
            return false;
        }
        let mut done = (0..GLANCES).any(|_| self.try_reconcile());
        if !done {
            header.pause.store(1, SeqCst);
            done = (0..LOOKS).any(|look| {
                if look > 10 {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                self.try_reconcile()
            });
            header.pause.store(0, SeqCst);
            wired::futex::wake_all(&header.pause);
        }
        if done {
            header.suspect.store(0, SeqCst);
        }
        header.reconciling.store(0, SeqCst);
        done
    }

    fn try_reconcile(&self) -> bool {
        let memory = &self.memory;
        let header = memory.header();
        let count = memory.slot_count();
        let read = |owner: Owner| read(memory.slot(owner));
        let mut all: Vec<Reading> = (0..count).map(read).collect();
        let totals = [
            &header.guaranteed,
            &header.committed,
            &header.live,
            &header.wants,
        ];
        let said = totals.map(|word| word.load(SeqCst));
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
            } else if entry != Entry::FREE {
                strays.push((frame, entry));
            }
        }
        let same = |(owner, reading): (Owner, &Reading)| {
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
        let sum = |each: fn(&Reading) -> u32| admitted().map(each).sum::<u32>();
        let true_totals = [
            sum(|r| r.g),
            sum(|r| r.owned.max(r.g)),
            sum(|_| 1),
            sum(|r| r.wanted),
        ];
        for ((word, said), truth) in totals.into_iter().zip(said).zip(true_totals) {
            correct(word, said, truth);
        }
        for (frame, entry) in strays {
            memory.release(frame, entry);
        }
        self.mend_sets();
        true
    }

    /// Puts unused frames back in their owners' sets, should their bits be lost.
    fn mend_sets(&self) {
        let memory = &self.memory;
        for (frame, entry) in memory.ramtab().entries() {
            if entry.owner() < memory.slot_count()
                && (entry == Entry::FREE
                    || matches!(entry.state(), State::Unused | State::Reserved))
            {
                memory.set(entry.owner()).insert(frame);
            }
        }
    }
}

fn read(slot: &Slot) -> Reading {
    Reading {
        admitted: Word::unpack(slot.state.load(SeqCst)).admitted(),
        activity: slot.activity.load(SeqCst),
        n: slot.n.load(SeqCst) & !CLOSED,
        g: slot.g.load(SeqCst),
        wanted: slot.wanted.load(SeqCst),
        owned: 0,
    }
}

/// Moves `word` by how far `said` is from `truth`.
fn correct(word: &AtomicU32, said: u32, truth: u32) {
    if said != truth {
        word.fetch_add(truth.wrapping_sub(said), SeqCst);
    }
}
