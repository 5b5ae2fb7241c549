//! Populating: pages are brought in on request, before any access.

use crate::fault_outcome::FaultError;
use crate::page::PageState;
use crate::pager::Pager;
use crate::resolve::{PageFault, Resolution, Waiter};
use crate::stream_detector::{Prediction, WINDOWS};
use crate::stretch::StretchState;
use rate::thread_counters::ThreadKey;
use wired::PAGE;

/// A page to populate, and what else may come with it.
#[derive(Clone, Copy)]
pub(crate) struct PopulateTarget {
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
pub(crate) enum PopulateError {
    /// The stretch no longer exists.
    Gone,
    /// The page cannot be brought in.
    Failed(FaultError),
}

impl PopulateTarget {
    /// Brings the page in and waits for what that takes. `locate` finds the stretch again for
    /// each attempt: no reference keeps it alive while this waits.
    pub(crate) fn populate<'p>(
        &self,
        pager: &'p Pager,
        locate: &dyn Fn() -> Option<&'p StretchState>,
    ) -> Result<(), PopulateError> {
        let hint = self.caller as usize;
        let window = pager.widest_window().min(self.window as u32);
        let mut fault = PageFault {
            write: true,
            prediction: (window > 1).then_some(Prediction {
                stream: self.caller | 1 << 31,
                stride: 1,
                window,
                ahead: WINDOWS * window,
            }),
            whole: !self.nail,
            in_order: true,
            at_bind: true,
            task: self.task,
            ..PageFault::default()
        };
        loop {
            let resolved = fault.resolve(pager, &mut Waiter::Thread(hint), |fault| {
                let stretch = locate().ok_or(PopulateError::Gone)?;
                fault.addr = stretch.table().address(self.page);
                Ok(stretch)
            })?;
            if let Resolution::Failed(why) = resolved {
                return Err(PopulateError::Failed(why));
            }
            if !self.nail {
                return Ok(());
            }
            let _inside = pager.mm.gate.enter(hint);
            let stretch = locate().ok_or(PopulateError::Gone)?;
            if pager.nail(fault.addr..fault.addr + PAGE) {
                return Ok(());
            }
            if stretch.table().word(self.page).load().nails() == PageState::MOST_NAILS {
                return Err(PopulateError::Failed(FaultError::MostPins));
            }
        }
    }
}
