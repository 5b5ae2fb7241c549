//! Zeros where another's pages may still lie.
//!
//! What a released file leaves on the device is its tenant's. It is overwritten before the
//! space is given to the next: when a file is made or grown, not when one is released, so that
//! a file whose owner was killed needs nothing done for it, and a release is one small write.
//! No mark of "never used" is kept, neither for a file's parts nor for the device: a fresh
//! device is scrubbed as well, which costs the same as finding out, and afterwards a page that
//! was never written reads as zeros.
//!
//! It costs one pass of writing over the size of the file. A partition is asked to make zeros
//! itself. A file is always written, though a file system can declare a range unwritten a
//! hundred times as fast: the tenant's writes would then each change the file system's tables
//! (10 % slower one at a time, 3 times slower many at a time), and declaring it waits for
//! everybody's I/O on the file. Figures: `cargo run --release -p disk --example scrub`.
//!
//! Rules:
//! - It is driven by whoever likes, on any thread, a [`UNIT`] at a time, as slowly as they
//!   like: nobody waits for it but who asked for the file.
//! - It can be given up at any step. [`super::SwapFs::release`], or another scrub of the file,
//!   ends it, and waits for the step in hand: after that its space may be another's.
//! - Zeros are flushed before the tables say that they are there.

use super::UNIT;
use super::error::FileError;
use super::extents::Extent;
use super::file::FileId;
use super::medium::Medium;
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

/// Whether a scrub may go on. Held while a step writes.
#[derive(Clone, Debug)]
pub(super) struct Permit(Arc<Mutex<bool>>);

impl Permit {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(true)))
    }

    /// Returns when nothing is written under it any more, nor will be.
    pub fn revoke(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// How far a scrub is, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Overwritten.
    pub done: u64,
    /// To overwrite in all.
    pub total: u64,
}

/// Why a scrub does not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScrubError {
    /// The file was released, or is scrubbed anew.
    #[error("the swap file was released, or is scrubbed anew: nothing to do")]
    GivenUp,
    /// The device failed.
    #[error("overwriting a swap file before its first use failed: {0}")]
    Io(Errno),
}

/// The work of making a file's space readable as zeros. Sent to whoever does it, and back to
/// [`super::SwapFs::scrubbed`].
#[derive(Debug)]
pub struct Scrub<M> {
    medium: Arc<M>,
    permit: Permit,
    file: FileId,
    /// What is left, the next last.
    left: Vec<Extent>,
    /// Units of the file that are clean when it is done.
    until: u32,
    progress: Progress,
    flushed: bool,
}

impl<M: Medium> Scrub<M> {
    pub(super) fn new(
        medium: Arc<M>,
        file: FileId,
        mut extents: Vec<Extent>,
        until: u32,
    ) -> (Self, Permit) {
        let permit = Permit::new();
        let total = extents.iter().map(|extent| extent.len).sum();
        extents.reverse();
        let scrub = Self {
            medium,
            permit: permit.clone(),
            file,
            left: extents,
            until,
            progress: Progress { done: 0, total },
            flushed: false,
        };
        (scrub, permit)
    }

    /// Of which file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// Overwrites at most one [`UNIT`], and says how far it is. The last step makes sure that
    /// the zeros survive.
    pub fn step(&mut self) -> Result<Progress, ScrubError> {
        let permit = self.permit.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !*permit {
            return Err(ScrubError::GivenUp);
        }
        if let Some(extent) = self.left.last_mut() {
            let len = extent.len.min(UNIT);
            self.medium
                .zero(extent.device, len)
                .map_err(ScrubError::Io)?;
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

    /// Steps until it is done.
    pub fn run(&mut self) -> Result<(), ScrubError> {
        while !self.flushed {
            self.step()?;
        }
        Ok(())
    }

    /// Whether nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.flushed
    }

    /// How many units are clean now, if it is done and `permit` is its own.
    pub(super) fn outcome(&self, permit: Option<&Permit>) -> Result<u32, FileError> {
        if self.flushed && permit.is_some_and(|permit| permit.is(&self.permit)) {
            Ok(self.until)
        } else {
            Err(FileError::NotScrubbed(self.file))
        }
    }
}
