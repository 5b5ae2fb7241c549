//! Zeroes space that may still hold another tenant's pages.
//!
//! A released file's contents on the device belong to its tenant. They are overwritten before the
//! space is reused: when a file is made or grown, not when one is released, so that a file whose
//! owner was killed needs no work, and a release is one small write. No "never used" mark is kept,
//! neither for a file's parts nor for the device: a fresh device is scrubbed as well, which costs
//! the same as finding out, and afterwards a page that was never written reads as zeros.
//!
//! It costs one pass of writing over the size of the file, under the daemon in disk time of its own.
//! A partition could make the zeros itself, in a request that no schedule bounds. A
//! file is always written, too, though a file system can declare a range unwritten far faster: the
//! tenant's first write to every page would then change the file system's tables, and declaring
//! waits for all I/O on the file. On ext4 here a GiB took 0.3 s written and 0.008 s declared;
//! writing all of its pages by 8 threads then took 2.7 to 2.9 s and 4.0 to 5.1 s (two runs of
//! `cargo run --release -p disk --example scrub FILE`, each the median of five rounds).
//!
//! Rules:
//! - Any thread may drive it, a step at a time, at any pace and by any way to the device: only the
//!   process that requested the file waits for it.
//! - It can be cancelled at any step. [`super::SwapFs::release`], or another scrub of the file,
//!   cancels it and waits for its current step: after that another file may get its space. A step waits for the device, so an
//!   owner that must not cancels it first ([`super::SwapFs::begin_cancel`]) and has another thread wait.
//! - Zeros are flushed before the table records them.

use super::UNIT;
use super::block_device::BlockDevice;
use super::error::FileError;
use super::extents::Extent;
use super::file::FileId;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Whether a scrub may continue.
#[derive(Clone, Debug, Default)]
pub(super) struct ScrubToken(Arc<ScrubState>);

#[derive(Debug, Default)]
struct ScrubState {
    is_cancelled: AtomicBool,
    /// Held while a step writes.
    step: Mutex<()>,
}

/// A scrub that was cancelled, if there was one.
#[derive(Debug)]
pub struct CancelledScrub(pub(super) Option<ScrubToken>);

impl CancelledScrub {
    /// Returns when the step in hand is over.
    pub fn wait(self) {
        if let Some(ScrubToken(scrub)) = self.0 {
            drop(scrub.step.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl ScrubToken {
    /// No further step writes under the token, but the one in hand.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Relaxed);
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Progress of a scrub, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubProgress {
    /// Overwritten bytes.
    pub done: u64,
    /// Bytes to overwrite in all.
    pub total: u64,
}

/// Why a scrub ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScrubError {
    /// The file was released, or another scrub of it started.
    #[error("the swap file was released, or is scrubbed anew: nothing to do")]
    GivenUp,
    /// The device failed.
    #[error("overwriting a swap file before its first use failed: {0}")]
    Io(Errno),
}

/// The work of zeroing a file's space. Moves to the thread that does it, and back to
/// [`super::SwapFs::complete_scrub`].
#[derive(Debug)]
pub struct Scrub<M> {
    medium: Arc<M>,
    token: ScrubToken,
    file: FileId,
    /// Remaining extents, the next last.
    left: Vec<Extent>,
    /// Usable units of the file after completion.
    until: u32,
    progress: ScrubProgress,
    flushed: bool,
}

impl<M: BlockDevice> Scrub<M> {
    pub(super) fn new(
        medium: Arc<M>,
        file: FileId,
        mut extents: Vec<Extent>,
        until: u32,
    ) -> (Self, ScrubToken) {
        let token = ScrubToken::default();
        let total = extents.iter().map(|extent| extent.len).sum();
        extents.reverse();
        let scrub = Self {
            medium,
            token: token.clone(),
            file,
            left: extents,
            until,
            progress: ScrubProgress { done: 0, total },
            flushed: false,
        };
        (scrub, token)
    }

    /// The file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// Overwrites at most `most` bytes by `zero`, which is told their place on the device and how many
    /// they are, and returns the progress. The last step makes the zeros durable. `most` divides
    /// [`UNIT`].
    pub fn step(
        &mut self,
        most: u64,
        zero: impl FnOnce(u64, u64) -> Result<(), Errno>,
    ) -> Result<ScrubProgress, ScrubError> {
        let scrub = &self.token.0;
        let _step = scrub.step.lock().unwrap_or_else(PoisonError::into_inner);
        if scrub.is_cancelled.load(Relaxed) {
            return Err(ScrubError::GivenUp);
        }
        if let Some(extent) = self.left.last_mut() {
            let len = extent.len.min(most);
            zero(extent.device, len).map_err(ScrubError::Io)?;
            extent.device += len;
            extent.len -= len;
            self.progress.done += len;
            if extent.len == 0 {
                self.left.pop();
            }
        }
        if self.left.is_empty() && !self.flushed {
            self.medium.flush().map_err(ScrubError::Io)?;
            self.flushed = true;
        }
        Ok(self.progress)
    }

    /// Runs all remaining steps on the device itself, where no other client has the disk.
    pub fn run(&mut self) -> Result<(), ScrubError> {
        let medium = self.medium.clone();
        while !self.flushed {
            self.step(UNIT, |at, len| medium.zero(at, len))?;
        }
        Ok(())
    }

    /// Returns true if nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.flushed
    }

    /// The usable units, if the scrub is done and `token` is its own.
    pub(super) fn outcome(&self, token: Option<&ScrubToken>) -> Result<u32, FileError> {
        if self.flushed && token.is_some_and(|token| token.is(&self.token)) {
            Ok(self.until)
        } else {
            Err(FileError::NotScrubbed(self.file))
        }
    }
}
