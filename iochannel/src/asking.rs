//! The client's half of the protocol: slots submitted, answers found.

use crate::bits::Bits;
use crate::shape::MAX_SLOTS;
use crate::slot::{Ask, State};
use crate::words::Words;

/// Which slots a client has under way, and how far it has read.
pub(crate) struct Asking<'a> {
    pub words: Words<'a>,
    /// Requests put so far, and completions read.
    put: u32,
    read: u32,
    under_way: Bits<{ MAX_SLOTS / 64 }>,
    /// Slots to look at whatever the FIFO says: it overflowed, or nothing came for long.
    suspects: Bits<{ MAX_SLOTS / 64 }>,
}

impl<'a> Asking<'a> {
    /// Of a channel that nobody has asked anything through; `None` if somebody has.
    pub fn new(words: Words<'a>) -> Option<Self> {
        let unused = words.requests.tail() == 0
            && words.slots.iter().all(|slot| slot.state() == State::Free);
        unused.then_some(Self {
            words,
            put: 0,
            read: words.completions.tail(),
            under_way: Bits::EMPTY,
            suspects: Bits::EMPTY,
        })
    }

    /// Slots under way.
    pub fn under_way(&self) -> &Bits<{ MAX_SLOTS / 64 }> {
        &self.under_way
    }

    /// Asks in a slot that is not under way. The server is to be rung after this, if its
    /// alarm says so.
    pub fn submit(&mut self, slot: usize, ask: &Ask) {
        self.under_way.insert(slot);
        self.words.slots[slot].submit(ask, self.put);
        self.words.requests.put(self.put, slot);
        self.put = self.put.wrapping_add(1);
    }

    /// A slot whose answer is there, with it. The slot is free.
    pub fn hear(&mut self) -> Option<(usize, i32)> {
        loop {
            while let Some(slot) = self.suspects.pop() {
                if let Some(result) = self.answer(slot) {
                    return Some((slot, result));
                }
            }
            let tail = self.words.completions.tail();
            match tail.wrapping_sub(self.read) {
                0 => return None,
                new if new > self.words.completions.room() => {
                    self.read = tail;
                    self.suspect_all();
                }
                _ => {
                    let slot = self.words.completions.at(self.read);
                    self.read = self.read.wrapping_add(1);
                    if let Some(result) = self.answer(slot) {
                        return Some((slot, result));
                    }
                }
            }
        }
    }

    /// Completions read so far.
    #[cfg(all(test, loom))]
    pub fn heard(&self) -> u32 {
        self.read
    }

    /// Forgets a slot under way: its server cannot be reached any more.
    #[cfg(not(all(test, loom)))]
    pub fn give_up(&mut self) -> Option<usize> {
        self.under_way.pop()
    }

    /// Looks at every slot under way the next time.
    pub fn suspect_all(&mut self) {
        self.suspects = self.under_way;
    }

    /// The answer in a slot. A successor of a server tells again of what may have been
    /// told: so a slot that is named is not always under way, nor done.
    fn answer(&mut self, slot: usize) -> Option<i32> {
        if slot >= self.words.slots.len() || !self.under_way.has(slot) {
            return None;
        }
        let State::Done { result } = self.words.slots[slot].state() else {
            return None;
        };
        self.words.slots[slot].free();
        self.under_way.remove(slot);
        Some(result)
    }
}
