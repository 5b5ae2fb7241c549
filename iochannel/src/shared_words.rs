//! The shared words of a channel, as both sides access them.

use crate::fifo::Fifo;
use crate::need_wakeup::WakeFlag;
use crate::slot::RequestSlot;

/// References into a channel's memory, or into loom's model of it.
#[derive(Clone, Copy)]
pub(crate) struct SharedWords<'a> {
    /// Set while the server sleeps.
    pub server: &'a WakeFlag,
    /// Set while the client may be asleep.
    pub client: &'a WakeFlag,
    pub requests: Fifo<'a>,
    pub completions: Fifo<'a>,
    pub slots: &'a [RequestSlot],
}
