//! Populating: pages are brought in on request, before any access.

use crate::entry::Attempt;
use crate::evict::NoFrame;
use crate::page::State;
use crate::page_in::{Failure, Outcome};
use crate::pager::Pager;
use crate::stream_detector::Advice;
use crate::stretch::Inner;
use frames::Frame;
use rate::thread_counters::ThreadKey;
use wired::PAGE;

/// A page to populate, and what else may come with it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Its number in its stretch.
    pub(crate) page: usize,
    /// True if it stays until it is unnailed.
    pub(crate) nail: bool,
    /// How many of the pages after it are wanted with it.
    pub(crate) window: usize,
    /// Distinguishes callers: a caller that goes through pages in order uses one number.
    pub(crate) caller: u32,
    /// The thread whose faults it counts among, if any.
    pub(crate) task: Option<ThreadKey>,
}

/// Why a page was not populated.
#[derive(Debug)]
pub(crate) enum NotBrought {
    /// The stretch no longer exists.
    Gone,
    /// The page cannot be brought in.
    Failed(Failure),
}

impl Pager {
    /// Brings a page in and waits for what that takes. `locate` finds the stretch again for
    /// each attempt: no reference keeps it alive while this waits.
    pub(crate) fn bring<'a>(
        &'a self,
        locate: &dyn Fn() -> Option<&'a Inner>,
        wanted: Wanted,
    ) -> Result<(), NotBrought> {
        let mut held = None;
        let (mut whole, mut asked) = (!wanted.nail, false);
        loop {
            let mut more = 0;
            let outcome = {
                let _inside = self.mm.gate.enter(wanted.caller as usize);
                let Some(stretch) = locate() else {
                    if let Some(frame) = held {
                        self.frames.put(frame);
                    }
                    return Err(NotBrought::Gone);
                };
                let outcome = self.bring_once(stretch, &wanted, whole, &mut held, &mut more);
                let addr = stretch.table().address(wanted.page);
                if let Outcome::Success = outcome
                    && (!wanted.nail || self.nail(addr..addr + PAGE))
                {
                    return Ok(());
                }
                if let Outcome::Busy = outcome {
                    stretch.table().word(wanted.page).wait_settled();
                }
                outcome
            };
            match outcome {
                Outcome::Success | Outcome::Busy => {}
                Outcome::Retry if more > 0 => {
                    // Once only: the second attempt splits the unit.
                    self.evictor.obtain_room(more);
                    whole = !std::mem::replace(&mut asked, true);
                }
                Outcome::Retry | Outcome::Pending => {
                    match self.evictor.obtain_frame(State::Empty, false) {
                        Ok(frame) => held = Some(frame),
                        Err(NoFrame::Never(why)) => return Err(NotBrought::Failed(why)),
                        Err(NoFrame::Busy) => {}
                    }
                }
                Outcome::Failure(why) => return Err(NotBrought::Failed(why)),
            }
        }
    }

    fn bring_once(
        &self,
        stretch: &Inner,
        wanted: &Wanted,
        whole: bool,
        held: &mut Option<Frame>,
        more: &mut u32,
    ) -> Outcome {
        let mut context = self.faults.contexts.borrow(wanted.caller as usize);
        let window = (self.faults.streams.widest as usize).min(wanted.window) as u32;
        let advice = (window > 1).then_some(Advice {
            stream: wanted.caller | 1 << 31,
            stride: 1,
            window,
        });
        let attempt = Attempt {
            addr: stretch.table().address(wanted.page),
            write: true,
            detached: false,
            advice,
            whole,
            in_order: true,
            at_bind: true,
            task: wanted.task,
        };
        let outcome = self.attempt(stretch, attempt, held, &mut context);
        *more = std::mem::take(&mut context.wanted);
        outcome
    }
}
