//! The shared words of a channel, as both sides see them.

use crate::alarm::Alarm;
use crate::fifo::Fifo;
use crate::slot::Slot;

/// Views of the memory, or of a model of it.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a> {
    /// Raised while the server sleeps.
    pub server: &'a Alarm,
    /// Raised while the client may be asleep.
    pub client: &'a Alarm,
    pub requests: Fifo<'a>,
    pub completions: Fifo<'a>,
    pub slots: &'a [Slot],
}
