//! A message of a userfaultfd in memory that may outlive its reader.
//!
//! The kernel forgets an event when it is read. A reader that is killed before it has acted on one would lose it, unless
//! the message lies where the next reader finds it. Rule: a slot is emptied after its message has taken effect.

use crate::foreign::UffdMessage;
use crate::uapi;
use linux_raw_sys::general as sys;
use std::sync::atomic::{AtomicU64, Ordering};
use wired::Plain;

const WORDS: usize = size_of::<uapi::uffd_msg>() / size_of::<u64>();

/// One message, or none: all zeros.
#[repr(C)]
#[derive(Debug, Default)]
pub struct MessageSlot([AtomicU64; WORDS]);

const _: () = assert!(size_of::<MessageSlot>() == size_of::<uapi::uffd_msg>());

// SAFETY: atomics accept every bit pattern.
unsafe impl Plain for MessageSlot {}

impl MessageSlot {
    fn load(&self) -> uapi::uffd_msg {
        let words: [u64; WORDS] = std::array::from_fn(|at| self.0[at].load(Ordering::Acquire));
        // SAFETY: plain old data of the same size; any bytes are valid.
        unsafe { std::mem::transmute(words) }
    }

    /// The message, if there is one, for the process that read it. One of a fork leaves the slot: its descriptor has one
    /// owner.
    pub fn message(&self) -> Option<UffdMessage> {
        let message = self.load();
        let is_taken = u32::from(message.event) == sys::UFFD_EVENT_FORK
            && self.0[0].swap(0, Ordering::AcqRel) == 0;
        (message.event != 0 && !is_taken).then(|| UffdMessage::decode(&message))
    }

    /// The message that a process left here when it ended, without one of a fork: its descriptor ended with the
    /// process.
    pub fn left_message(&self) -> Option<UffdMessage> {
        let message = self.load();
        let event = u32::from(message.event);
        let is_lost = event == 0 || event == sys::UFFD_EVENT_FORK;
        (!is_lost).then(|| UffdMessage::decode(&message))
    }

    /// Empties the slot.
    pub fn clear(&self) {
        // The event's number is in the first word.
        self.0[0].store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(event: u32, words: [u64; 3]) -> MessageSlot {
        let slot = MessageSlot::default();
        slot.0[0].store(u64::from(event), Ordering::Relaxed);
        for (to, word) in slot.0[1..].iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        slot
    }

    #[test]
    fn a_message_stays_until_its_slot_is_cleared() {
        let slot = slot(sys::UFFD_EVENT_REMOVE, [4096, 12288, 0]);
        for _ in 0..2 {
            let left = slot.left_message();
            assert!(
                matches!(
                    left,
                    Some(UffdMessage::Removed {
                        addr: 4096,
                        len: 8192
                    })
                ),
                "{left:?}"
            );
        }
        slot.clear();
        assert!(slot.message().is_none() && slot.left_message().is_none());
    }

    #[test]
    fn the_descriptor_of_a_fork_has_one_owner() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let fd = std::os::fd::IntoRawFd::into_raw_fd(reader) as u64;
        let slot = slot(sys::UFFD_EVENT_FORK, [fd, 0, 0]);
        assert!(matches!(slot.message(), Some(UffdMessage::Forked(_))));
        assert!(slot.message().is_none());
    }

    #[test]
    fn the_descriptor_of_a_fork_is_not_taken_from_a_process_that_ended() {
        assert!(slot(sys::UFFD_EVENT_FORK, [0; 3]).left_message().is_none());
    }
}
