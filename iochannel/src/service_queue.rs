//! The server's half of the protocol: requests to take, completions to publish, and the recovery
//! of a predecessor's requests.

use crate::bitset::BitSet;
use crate::fifo::END;
use crate::geometry::MAX_SLOTS;
use crate::request::{ProtocolError, Request};
use crate::shared_words::SharedWords;
use crate::slot::SlotState;

/// The slots that a server serves, and its positions in the FIFOs.
pub(crate) struct ServiceQueue<'a> {
    words: SharedWords<'a>,
    /// Requests read so far, and completions put.
    read: u32,
    put: u32,
    in_flight: BitSet<{ MAX_SLOTS / 64 }>,
    /// Slots that a predecessor left submitted, in reverse order of service.
    left: Vec<u16>,
    /// The client no longer uses the channel.
    has_ended: bool,
}

impl<'a> ServiceQueue<'a> {
    /// The queue of a new channel, or of a channel that a predecessor has left.
    ///
    /// Submitted slots at FIFO positions before the tail are found here; a slot at the tail or
    /// after, which a client is submitting at this moment, comes through the FIFO. The tail is
    /// read first, so that all slots before it are seen submitted.
    pub fn recover(words: SharedWords<'a>) -> Self {
        let mut queue = Self {
            words,
            read: words.requests.tail(),
            put: words.completions.tail(),
            in_flight: BitSet::EMPTY,
            left: Vec::with_capacity(words.slots.len()),
            has_ended: false,
        };
        let last = queue.read.wrapping_sub(1);
        queue.has_ended = queue.read != 0 && words.requests.at(last) == END;
        let mut waiting = Vec::with_capacity(words.slots.len());
        for (number, slot) in words.slots.iter().enumerate() {
            match slot.state() {
                SlotState::Submitted { position } => {
                    let ago = queue.read.wrapping_sub(position) as i32;
                    if ago > 0 {
                        waiting.push((ago, number as u16));
                    }
                }
                // The predecessor may have published it: the client ignores a second number.
                SlotState::Done { .. } => queue.publish(number),
                SlotState::Free | SlotState::Invalid => {}
            }
        }
        waiting.sort_unstable();
        queue.left.extend(waiting.iter().map(|&(_, slot)| slot));
        queue
    }

    /// Takes the next request. There are `pages` page buffers from `base` on.
    pub fn take(&mut self, base: *mut u8, pages: usize) -> Result<Option<Request>, ProtocolError> {
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
            return Err(ProtocolError::Overrun { pending, slots });
        }
        let slot = self.words.requests.at(self.read);
        if slot == END {
            self.read = self.read.wrapping_add(1);
            self.has_ended = true;
            return Ok(None);
        }
        if slot >= slots {
            return Err(ProtocolError::Slot { slot, slots });
        }
        let request = self.read_slot(slot, Some(self.read), base, pages)?;
        self.read = self.read.wrapping_add(1);
        Ok(Some(request))
    }

    fn read_slot(
        &mut self,
        slot: usize,
        expected: Option<u32>,
        base: *mut u8,
        pages: usize,
    ) -> Result<Request, ProtocolError> {
        if self.in_flight.has(slot) {
            return Err(ProtocolError::InFlight { slot });
        }
        match self.words.slots[slot].state() {
            SlotState::Submitted { position }
                if expected.is_none_or(|expected| expected == position) => {}
            _ => return Err(ProtocolError::State { slot }),
        }
        let request = Request::validate(slot, &self.words.slots[slot].request(), base, pages)?;
        self.in_flight.insert(slot);
        Ok(request)
    }

    /// Returns true if there are requests; reliable once the server's flag is set.
    pub fn has_pending(&self) -> bool {
        !self.left.is_empty() || self.words.requests.tail() != self.read
    }

    /// Returns true if the client no longer uses the channel: reliable when there is no request to take.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Completes a request that was taken; returns false if the slot is not in flight.
    pub fn complete(&mut self, slot: usize, result: i32) -> bool {
        if slot >= self.words.slots.len() || !self.in_flight.remove(slot) {
            return false;
        }
        self.words.slots[slot].complete(result);
        self.publish(slot);
        true
    }

    fn publish(&mut self, slot: usize) {
        self.words.completions.put(self.put, slot);
        self.put = self.put.wrapping_add(1);
    }

    /// Number of requests taken and not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The shared words.
    pub fn words(&self) -> &SharedWords<'a> {
        &self.words
    }
}
