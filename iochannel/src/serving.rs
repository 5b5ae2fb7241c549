//! The server's half of the protocol: requests taken, answers given, a predecessor's work
//! found again.

use crate::bits::Bits;
use crate::request::{Corrupt, Request};
use crate::shape::MAX_SLOTS;
use crate::slot::State;
use crate::words::Words;

/// Which slots a server serves, and how far it has read.
pub(crate) struct Serving<'a> {
    words: Words<'a>,
    /// Requests read so far, and completions put.
    read: u32,
    put: u32,
    in_flight: Bits<{ MAX_SLOTS / 64 }>,
    /// Slots that a predecessor left submitted, the first to be served last.
    left: Vec<u16>,
}

impl<'a> Serving<'a> {
    /// Of a channel that is new, or that a server has left.
    ///
    /// A slot whose place in the FIFO is before the tail is found here; one at the tail or
    /// after, that a client is putting there now, comes by the FIFO. The tail is read
    /// first, so that all before it are seen submitted.
    pub fn take_over(words: Words<'a>) -> Self {
        let mut serving = Self {
            words,
            read: words.requests.tail(),
            put: words.completions.tail(),
            in_flight: Bits::EMPTY,
            left: Vec::with_capacity(words.slots.len()),
        };
        let mut waiting = Vec::with_capacity(words.slots.len());
        for (number, slot) in words.slots.iter().enumerate() {
            match slot.state() {
                State::Submitted { ticket } => {
                    let ago = serving.read.wrapping_sub(ticket) as i32;
                    if ago > 0 {
                        waiting.push((ago, number as u16));
                    }
                }
                // Told already, or not: the client knows.
                State::Done { .. } => serving.tell(number),
                State::Free | State::Nonsense => {}
            }
        }
        waiting.sort_unstable();
        serving.left.extend(waiting.iter().map(|&(_, slot)| slot));
        serving
    }

    /// The next request. The page buffers begin at `base`, and are `pages`.
    pub fn take(&mut self, base: *mut u8, pages: usize) -> Result<Option<Request>, Corrupt> {
        if let Some(&slot) = self.left.last() {
            let slot = usize::from(slot);
            let request = self.read_slot(slot, None, base, pages)?;
            self.left.pop();
            return Ok(Some(request));
        }
        let slots = self.words.slots.len();
        let pending = self.words.requests.tail().wrapping_sub(self.read);
        if pending == 0 {
            return Ok(None);
        }
        if pending as usize > slots {
            return Err(Corrupt::Overrun { pending, slots });
        }
        let slot = self.words.requests.at(self.read);
        if slot >= slots {
            return Err(Corrupt::Slot { slot, slots });
        }
        let request = self.read_slot(slot, Some(self.read), base, pages)?;
        self.read = self.read.wrapping_add(1);
        Ok(Some(request))
    }

    fn read_slot(
        &mut self,
        slot: usize,
        place: Option<u32>,
        base: *mut u8,
        pages: usize,
    ) -> Result<Request, Corrupt> {
        if self.in_flight.has(slot) {
            return Err(Corrupt::InFlight { slot });
        }
        match self.words.slots[slot].state() {
            State::Submitted { ticket } if place.is_none_or(|place| place == ticket) => {}
            _ => return Err(Corrupt::State { slot }),
        }
        let request = Request::judge(slot, &self.words.slots[slot].ask(), base, pages)?;
        self.in_flight.insert(slot);
        Ok(request)
    }

    /// Whether requests wait. Asked after the server's alarm is raised, it is not deceived.
    pub fn has_more(&self) -> bool {
        !self.left.is_empty() || self.words.requests.tail() != self.read
    }

    /// Answers a request that was taken; false if the slot is not in flight.
    pub fn finish(&mut self, slot: usize, result: i32) -> bool {
        if slot >= self.words.slots.len() || !self.in_flight.remove(slot) {
            return false;
        }
        self.words.slots[slot].finish(result);
        self.tell(slot);
        true
    }

    fn tell(&mut self, slot: usize) {
        self.words.completions.put(self.put, slot);
        self.put = self.put.wrapping_add(1);
    }

    /// Requests taken and not answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The shared words.
    pub fn words(&self) -> &Words<'a> {
        &self.words
    }
}
