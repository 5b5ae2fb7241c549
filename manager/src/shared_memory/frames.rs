//! The frames of the objects' domain.
//!
//! A frame has no place: it is a unit of the contract, held for each page that is resident or staged.

use frames::{DomainFrames, Frame, Millis, PageAge};
use selfpage::FEWEST_FRAMES;
use std::time::{Duration, Instant};

/// Frames of domains of the tree that are asked for at once.
const TRIM_BATCH: u32 = 64;
/// Frames kept unused at most.
const MOST_SPARE: u32 = 256;

/// How long a fault waits for a frame before its access fails.
const NO_FRAME: Duration = Duration::from_secs(30);
/// How long it waits after another one that has failed so, while no frame has come since: a full store has the
/// accesses to all pages fail, and each one would wait anew.
const STILL_NO_FRAME: Duration = Duration::from_secs(1);

/// No frame is free.
pub(super) struct NoFrame;

/// When an access failed last for want of a frame, until one comes.
#[derive(Default)]
pub struct Shortage {
    failed: Option<Instant>,
}

impl Shortage {
    /// How long a fault waits for a frame. A failure that is long past says nothing about the store of today.
    pub fn patience(&self, now: Instant) -> Duration {
        let is_recent = |failed| now.saturating_duration_since(failed) < NO_FRAME;
        match self.failed.is_some_and(is_recent) {
            true => STILL_NO_FRAME,
            false => NO_FRAME,
        }
    }

    /// An access has failed.
    pub fn on_failed(&mut self, now: Instant) {
        self.failed = Some(now);
    }

    fn on_taken(&mut self) {
        self.failed = None;
    }
}

/// The domain's frames.
pub struct ObjectFrames {
    domain: DomainFrames<'static>,
    held: Vec<Frame>,
    age: PageAge,
    is_demanding: bool,
    /// Whether accesses fail for want of a frame.
    pub shortage: Shortage,
}

impl ObjectFrames {
    /// With room for all that the domain may own.
    pub fn new(domain: DomainFrames<'static>) -> Self {
        Self {
            held: Vec::with_capacity(domain.contract().x as usize),
            domain,
            age: PageAge::default(),
            is_demanding: false,
            shortage: Shortage::default(),
        }
    }

    /// Takes a frame for a page. Returns false if there is none.
    pub fn take(&mut self) -> bool {
        let Some(frame) = self.domain.take() else {
            return false;
        };
        self.shortage.on_taken();
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
        if let Some(oldest) = self.age.oldest() {
            let (ledger, id) = (self.domain.ledger(), self.domain.id());
            ledger.trim_idle(id, TRIM_BATCH, oldest, Millis::now());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_access_has_failed_the_next_faults_wait_shortly_until_a_frame_comes() {
        let begin = Instant::now();
        let mut shortage = Shortage::default();
        assert_eq!(shortage.patience(begin), NO_FRAME);
        // A sweep of 48 pages, none of which finds a frame.
        let mut now = begin;
        for _ in 0..48 {
            now += shortage.patience(now);
            shortage.on_failed(now);
        }
        assert_eq!(now - begin, NO_FRAME + 47 * STILL_NO_FRAME);
        shortage.on_taken();
        assert_eq!(shortage.patience(now), NO_FRAME);
        shortage.on_failed(now);
        assert_eq!(shortage.patience(now + NO_FRAME), NO_FRAME);
    }
}
