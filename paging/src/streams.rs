//! The streams of a domain's threads: their prediction, and their readahead.

use crate::evict::Stager;
use crate::page::State;
use crate::readahead::Readahead;
use crate::stream_detector::{Prediction, StreamDetector, WIDEST};
use crate::stretch::StretchState;
use store::{Store, StoreError};
use wired::{Guard, HUGE_RANGE, HUGE_RANGE_PAGES, Lock, PAGE};

/// Readers of a pager. Threads share them by their streams; a thread that finds its reader in
/// use goes without read-ahead for that fault.
const READERS: usize = 4;

/// What predicts faults, and what reads ahead of them.
pub(crate) struct Streams {
    pub(crate) detector: StreamDetector,
    /// By the numbers of units.
    units: StreamDetector,
    /// Empty if there is no store or no window.
    readers: Box<[Lock<Readahead>]>,
}

impl Streams {
    /// For a domain of at most `frames` frames. The widest window is a small part of the
    /// frames, so that the windows of several streams do not take each other's frames; the
    /// buffers are memory, too, so a lane's length is limited likewise.
    pub(crate) fn new(store: Option<&dyn Store>, frames: u32) -> Result<Self, crate::DomainError> {
        let widest = widest_window(frames);
        let readers = match store.filter(|_| widest > 1) {
            Some(store) => (0..READERS)
                .map(|_| Readahead::new(store, widest).map(Lock::new))
                .collect::<Result<_, _>>()?,
            None => Box::default(),
        };
        Ok(Self {
            detector: StreamDetector::default(),
            units: StreamDetector::default(),
            readers,
        })
    }

    /// Predicts the next faults from those so far, at a fault of the thread with number `thread` on a page of
    /// a stretch. Windows have at most `widest` pages.
    pub(crate) fn predict(
        &self,
        stretch: &StretchState,
        thread: usize,
        addr: usize,
        widest: u32,
    ) -> Option<Prediction> {
        if widest <= 1 {
            return None;
        }
        let table = stretch.table();
        let is_there = |page: usize| {
            let index = page.wrapping_sub(table.base() / PAGE);
            index >= table.pages()
                || !matches!(
                    table.word(index).load().state(),
                    State::Empty | State::Stored
                )
        };
        self.detector.fault(thread, addr / PAGE, widest, &is_there)
    }

    /// Returns true if a fault shows that its thread goes through a stretch of huge frames in
    /// order: it is at the edge of a unit, after one in the unit before.
    pub(crate) fn in_order(&self, stretch: &StretchState, thread: usize, addr: usize) -> bool {
        if !stretch.huge() {
            return false;
        }
        let unit = addr / HUGE_RANGE;
        let prediction = self.units.fault(thread, unit, 2, &|_| true);
        prediction.is_some_and(|prediction| {
            self.units.brought(&prediction, 1);
            let page = addr % HUGE_RANGE / PAGE;
            prediction.stride.abs() == 1 && (page == 0 || page == HUGE_RANGE_PAGES - 1)
        })
    }

    /// The reader of a stream; None if another stream's thread has it.
    pub(crate) fn reader(&self, prediction: &Prediction) -> Option<Guard<'_, Readahead>> {
        let count = self.readers.len();
        let at = (prediction.stream as usize).checked_rem(count)?;
        self.readers[at].try_lock()
    }

    /// Gives back the memory of the readers that are idle. A fork has the stager, so its child
    /// copies no reader's lock that this thread holds.
    pub(crate) fn release_idle(&self, _stager: &Stager) {
        let idle = self.readers.iter().filter_map(Lock::try_lock);
        idle.for_each(|mut reader| reader.release_idle());
    }

    /// Switches to the child process: its own channels.
    pub(crate) fn become_child(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut readers = self.readers.iter();
        readers.try_for_each(|reader| reader.lock().become_child(store))
    }
}

/// Pages of the widest window for a domain of so many frames; below 2 there are no windows.
pub(crate) fn widest_window(frames: u32) -> u32 {
    (frames / 64).min(WIDEST)
}
