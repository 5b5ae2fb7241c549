//! The memory management entry: where faults arrive.
//!
//! Nemesis, section 6.5: the kernel's part of a fault ends with its dispatch; the domain
//! does the rest. A *notification handler* makes a first attempt where waiting is not
//! possible; what it cannot do, a worker does, and only the faulting thread waits.
//!
//! Two kinds, for two kinds of program:
//! - [`upcall`]: the fault is a signal to the faulting thread itself (4.6 us with a page
//!   copied in, 2.5 us in aggregate with two threads). No privilege. For explicit data
//!   stretches: a system call given a missing page fails with `EFAULT`.
//! - [`thread`]: the fault is a message to an entry thread on the faulting processor
//!   (10.9 us; 5.7 us in aggregate). Faults inside system calls resolve too, so that any
//!   memory of an unmodified program can be paged.

pub(crate) mod idle;
pub(crate) mod kernel_faults;
pub(crate) mod marked;
pub(crate) mod signals;
pub(crate) mod thread;
pub(crate) mod throttled;
pub(crate) mod upcall;

use crate::counters::Counter;
use crate::fault_context::Context;
use crate::page_in::{Activation, Failure, Outcome, Phase};
use crate::pager::Pager;
use crate::stream_detector::Advice;
use crate::stretch::Inner;
use frames::Frame;
use rate::thread_counters::ThreadKey;

/// A fault to attempt.
#[derive(Clone, Copy, Default)]
pub(crate) struct Attempt {
    /// The faulting address.
    pub(crate) addr: usize,
    /// Whether the access was a write.
    pub(crate) write: bool,
    /// True if the fault may leave a read under way and return `Pending`.
    pub(crate) detached: bool,
    /// The predicted next faults.
    pub(crate) advice: Option<Advice>,
    /// True if the fault may fill a whole unit, if the stretch has huge frames.
    pub(crate) whole: bool,
    /// True if the program goes through the stretch's units in order.
    pub(crate) in_order: bool,
    /// True if the program has not accessed the page: it is brought in on request.
    pub(crate) at_bind: bool,
    /// The thread whose fault it is; None if the fault is not counted.
    pub(crate) task: Option<ThreadKey>,
}

impl Pager {
    /// One attempt at a fault: the notification handler's with no frame in hand, a worker's
    /// with one, or that of a binding. A frame that was not used is released.
    pub(crate) fn attempt(
        &self,
        stretch: &Inner,
        attempt: Attempt,
        held: &mut Option<Frame>,
        context: &mut Context,
    ) -> Outcome {
        let Attempt {
            addr,
            write,
            detached,
            advice,
            whole,
            in_order,
            at_bind,
            task,
        } = attempt;
        let mut activation = Activation {
            pager: self,
            stretch,
            index: stretch.table().index(addr),
            write,
            phase: match held {
                _ if at_bind => Phase::Bind,
                Some(_) => Phase::Worker,
                None => Phase::Activation,
            },
            held: held.take(),
            detached,
            advice,
            whole,
            in_order,
            task,
            context,
        };
        let outcome = stretch.fault(&mut activation);
        if let Some(frame) = activation.held.take() {
            activation.give_back(frame);
        }
        outcome
    }

    /// Logs an unrecoverable fault.
    pub(crate) fn report(&self, stretch: &Inner, addr: usize, failure: &Failure) {
        self.log.counters().add(Counter::lost, 1);
        let store = self.store.name();
        self.log.write(format_args!(
            "page {:#x} ({} stretch at {:#x}, store {store}): {failure}",
            addr & !(wired::PAGE - 1),
            stretch.driver().map_or("unbound", |d| d.name()),
            stretch.table().base(),
        ));
    }
}
