//! The client's half of the protocol: slots to submit, completions to reap.

use crate::bitset::BitSet;
#[cfg(not(all(test, loom)))]
use crate::fifo::END;
use crate::geometry::MAX_SLOTS;
use crate::shared_words::SharedWords;
use crate::slot::{RawRequest, SlotState};

/// The slots that a client has in flight, and its positions in the FIFOs.
pub(crate) struct SubmissionQueue<'a> {
    pub words: SharedWords<'a>,
    /// Requests submitted so far, and completions read.
    put: u32,
    read: u32,
    in_flight: BitSet<{ MAX_SLOTS / 64 }>,
    /// Slots to check regardless of the FIFO: it overflowed, or nothing completed for long.
    suspects: BitSet<{ MAX_SLOTS / 64 }>,
}

impl<'a> SubmissionQueue<'a> {
    /// The queue of an unused channel; `None` if a client has used it.
    pub fn new(words: SharedWords<'a>) -> Option<Self> {
        let unused = words.requests.tail() == 0
            && words
                .slots
                .iter()
                .all(|slot| slot.state() == SlotState::Free);
        unused.then_some(Self {
            words,
            put: 0,
            read: words.completions.tail(),
            in_flight: BitSet::EMPTY,
            suspects: BitSet::EMPTY,
        })
    }

    /// Slots in flight.
    pub fn in_flight(&self) -> &BitSet<{ MAX_SLOTS / 64 }> {
        &self.in_flight
    }

    /// Submits a request in a slot that is not in flight. The caller rings the server after this,
    /// if its flag is set.
    pub fn submit(&mut self, slot: usize, request: &RawRequest) {
        self.in_flight.insert(slot);
        self.words.slots[slot].publish(request, self.put);
        self.words.requests.put(self.put, slot);
        self.put = self.put.wrapping_add(1);
    }

    /// Puts [`END`] into the FIFO: no request follows. Nothing is in flight; the caller rings as for a request.
    #[cfg(not(all(test, loom)))]
    pub fn end(&mut self) {
        self.words.requests.put(self.put, END);
        self.put = self.put.wrapping_add(1);
    }

    /// Reaps a completion: a slot, which is free again, and its result.
    pub fn reap(&mut self) -> Option<(usize, i32)> {
        loop {
            while let Some(slot) = self.suspects.pop() {
                if let Some(result) = self.on_completion(slot) {
                    return Some((slot, result));
                }
            }
            let tail = self.words.completions.tail();
            match tail.wrapping_sub(self.read) {
                0 => return None,
                new if new > self.words.completions.capacity() => {
                    self.read = tail;
                    self.suspect_all();
                }
                _ => {
                    let slot = self.words.completions.at(self.read);
                    self.read = self.read.wrapping_add(1);
                    if let Some(result) = self.on_completion(slot) {
                        return Some((slot, result));
                    }
                }
            }
        }
    }

    /// Number of completions read so far.
    #[cfg(all(test, loom))]
    pub fn completions_read(&self) -> u32 {
        self.read
    }

    /// Abandons a slot in flight: its server can no longer be reached.
    #[cfg(not(all(test, loom)))]
    pub fn abandon(&mut self) -> Option<usize> {
        self.in_flight.pop()
    }

    /// Checks every slot in flight at the next reap.
    pub fn suspect_all(&mut self) {
        self.suspects = self.in_flight;
    }

    /// The result in a slot. A server's successor publishes again what its predecessor may have
    /// published: so a slot in the FIFO need be neither in flight nor done.
    fn on_completion(&mut self, slot: usize) -> Option<i32> {
        if slot >= self.words.slots.len() || !self.in_flight.has(slot) {
            return None;
        }
        let SlotState::Done { result } = self.words.slots[slot].state() else {
            return None;
        };
        self.words.slots[slot].free();
        self.in_flight.remove(slot);
        Some(result)
    }
}
