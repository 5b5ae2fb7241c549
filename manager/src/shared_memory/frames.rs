//! The frames of the objects' domain.
//!
//! A frame has no place: it is a unit of the contract, held for each page that is resident or staged.

use frames::{DomainFrames, Frame, Millis, PageAge};
use selfpage::FEWEST_FRAMES;

/// Frames of domains of the tree that are asked for at once.
const TRIM_BATCH: u32 = 64;
/// Frames kept unused at most.
const MOST_SPARE: u32 = 256;

/// No frame is free.
pub(super) struct NoFrame;

/// The domain's frames.
pub struct ObjectFrames {
    domain: DomainFrames<'static>,
    held: Vec<Frame>,
    age: PageAge,
    is_demanding: bool,
}

impl ObjectFrames {
    /// With room for all that the domain may own.
    pub fn new(domain: DomainFrames<'static>) -> Self {
        Self {
            held: Vec::with_capacity(domain.contract().x as usize),
            domain,
            age: PageAge::default(),
            is_demanding: false,
        }
    }

    /// Takes a frame for a page. Returns false if there is none.
    pub fn take(&mut self) -> bool {
        let Some(frame) = self.domain.take() else {
            return false;
        };
        self.age.note_taken(self.domain.n());
        self.held.push(frame);
        if std::mem::take(&mut self.is_demanding) {
            self.demand(0);
        }
        true
    }

    /// Gives the frames of `count` pages back.
    pub fn put(&mut self, count: u32) {
        let first = self.held.len().saturating_sub(count as usize);
        if let Err(misuse) = self.domain.put_batch(&self.held[first..]) {
            tracing::error!("shared memory: {misuse}");
        }
        self.held.truncate(first);
    }

    /// Pages that have a frame.
    pub fn held(&self) -> u32 {
        self.held.len() as u32
    }

    /// Pages that may be locked: half of the contract's, and no more than the domains of the tree may nail beside
    /// those of private memory.
    pub fn most_locked(&self) -> usize {
        let room = self.domain.ledger().room_to_nail(FEWEST_FRAMES) + self.domain.locked();
        room.min(self.domain.contract().x / 2) as usize
    }

    /// So many pages are locked: the pagers of private memory leave room for them.
    pub fn note_locked(&self, pages: usize) {
        let pages = pages as u32;
        if self.domain.locked() != pages {
            self.domain.note_locked(pages);
        }
    }

    /// A fault happens now.
    pub fn note_use(&self) {
        self.domain.note_use(Millis::now());
    }

    /// Asks domains that are idle for frames; with nothing of its own to evict, all of them.
    pub fn want(&mut self, has_none: bool) {
        let ledger = self.domain.ledger();
        let (oldest, now) = (self.age.oldest(), Millis::now());
        ledger.trim_idle(self.domain.id(), TRIM_BATCH, oldest, now);
        if has_none {
            self.is_demanding = true;
            self.demand(1);
        }
    }

    fn demand(&self, count: u32) {
        self.domain.ledger().demand(self.domain.id(), count);
    }

    /// Returns true if fewer frames are unused than are to be kept so, with those of pages that are on their way out.
    pub fn is_low(&self, leaving: u32) -> bool {
        let limit = self.domain.resident_limit();
        let room = limit.saturating_sub(self.domain.n()) + self.domain.unused() + leaving;
        room < (limit / 16).min(MOST_SPARE) / 2
    }

    /// Answers revocations and trims with what is unused. Returns how many frames are missing.
    pub fn release_wanted(&self) -> u32 {
        let demanded = self.domain.demanded();
        let given = match demanded {
            0 => 0,
            _ => self.domain.release_demanded(demanded),
        };
        let trimmed = self.domain.trimmed();
        let unused = self.domain.unused();
        if trimmed > 0 && (unused > 0 || self.held.is_empty()) {
            let answered = if self.held.is_empty() {
                trimmed
            } else {
                trimmed.min(unused)
            };
            self.domain.release_trimmed(answered, Millis::now());
        }
        (demanded - given).saturating_add(trimmed.saturating_sub(unused))
    }

    /// Returns true if the domain was asked for frames.
    pub fn is_wanted(&self) -> bool {
        self.domain.demanded() > 0 || self.domain.trimmed() > 0
    }

    /// The domain.
    pub fn domain(&self) -> DomainFrames<'static> {
        self.domain
    }
}
