//! A trace of the scheduler, for plots such as the right-hand ones of figures 7 to 9.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 7.2: a log inside the scheduler of
//! each transaction, the lax time charged, and the period boundaries on which a new allocation was
//! granted. Rule: recording allocates nothing, never waits and costs a few stores, so that it is
//! always on.

mod event;
mod perfetto;
mod ring;

pub use event::TraceEvent;
pub use perfetto::write_perfetto;
pub use ring::{Reader, TraceBatch, Writer, ring};

/// Receives the scheduler's events.
pub trait Trace {
    /// Records an event.
    fn record(&mut self, event: TraceEvent);
}

/// Discards events.
impl Trace for () {
    fn record(&mut self, _: TraceEvent) {}
}

impl Trace for Vec<TraceEvent> {
    fn record(&mut self, event: TraceEvent) {
        self.push(event);
    }
}
