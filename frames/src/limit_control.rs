//! A tenant's ledger as the frames allocator of the whole machine sees it.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. A tenant is granted frames
//! by raising its ledger's limit and loses unused ones, transparently, by lowering it. Rule:
//! nothing that is read is believed. The ledger is the tenant's to write: it can spoil its own
//! books and nothing else, so values are clamped, no loop waits for it, and the limit that
//! counts is the one remembered here.

use crate::layout::{Header, Layout};
use crate::limit_word::LimitValue;
use crate::ramtab::Frame;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use wired::{PAGE, WiredMemory};

/// How often the limit is tried to be lowered against a tenant that takes and gives frames at
/// the same time: each attempt fails only for one that took or gave.
const MAX_ATTEMPTS: u32 = 1000;

/// Where the kernel keeps memfds: tmpfs, whose pages are always there to be had.
const TMPFS: u64 = 0x0102_1994;

/// Why a descriptor was not taken for a tenant's ledger.
#[derive(Debug, thiserror::Error)]
pub enum LimitControlError {
    /// Not a memfd.
    #[error(
        "the descriptor is not a memfd: hand over the one that came with Ledger::create_limited"
    )]
    NotAMemfd,
    /// It could be shrunk, and whoever touches it then is killed by the kernel.
    #[error(
        "the memfd can be shrunk: hand over one sealed with F_SEAL_SHRINK, as \
         Ledger::create_limited makes it"
    )]
    Shrinkable,
    /// It says it is something else, or its length is not what it says.
    #[error(
        "the memfd of {length} bytes is not a frames ledger of this version: make it with the same \
         selfpage as the system daemon is of"
    )]
    NotALedger {
        /// Bytes it has.
        length: u64,
    },
    /// The kernel refused.
    #[error("mapping a tenant's frames ledger: {0}; the descriptor must be open for writing")]
    Map(std::io::Error),
}

impl From<rustix::io::Errno> for LimitControlError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Map(error.into())
    }
}

/// The limit of one tenant's ledger, for the frames allocator that moves it.
pub struct LimitControl {
    first: WiredMemory,
    total: u32,
    limit: u32,
}

impl LimitControl {
    /// The quota in the ledger behind a descriptor from a tenant. Its limit is what the ledger
    /// says: a caller that knows better, or was told too much, corrects it with
    /// [`LimitControl::set_limit`].
    pub fn attach(fd: impl AsFd) -> Result<Self, LimitControlError> {
        let fd = fd.as_fd();
        let seals = fcntl_get_seals(fd).map_err(|_| LimitControlError::NotAMemfd)?;
        if fstatfs(fd)?.f_type as u64 != TMPFS {
            return Err(LimitControlError::NotAMemfd);
        }
        if !seals.contains(SealFlags::SHRINK) {
            return Err(LimitControlError::Shrinkable);
        }
        let length = u64::try_from(fstat(fd)?.st_size).unwrap_or(0);
        if length < PAGE as u64 {
            return Err(LimitControlError::NotALedger { length });
        }
        let first = WiredMemory::attach(fd, PAGE)?;
        let layout =
            Layout::read(&first, length).ok_or(LimitControlError::NotALedger { length })?;
        let total = layout.total().min(Frame::MAX);
        let mut quota = Self {
            first,
            total,
            limit: 0,
        };
        quota.limit = quota.bound().limit.min(total);
        Ok(quota)
    }

    /// The most that the limit can be raised to: the tenant's x.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Frames the tenant may own: {n} of its contract.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Frames the tenant says it owns, at most the limit.
    pub fn owned(&self) -> u32 {
        self.bound().owned.min(self.limit)
    }

    /// Frames the tenant says it owns or owes to guarantees of its own, at most the limit:
    /// what lies above can be taken transparently.
    pub fn committed(&self) -> u32 {
        let committed = self.header().committed.load(SeqCst);
        self.owned().max(committed).min(self.limit)
    }

    /// Frames that processes of the tenant say they wait for, at most what the limit could
    /// be raised by.
    pub fn wanted(&self) -> u32 {
        let wants = self.header().wants.load(SeqCst);
        wants.min(self.total - self.limit)
    }

    /// Whether the tenant said that it feels its limit, since that was raised or heard.
    pub fn is_under_pressure(&self) -> bool {
        self.header().pressure.load(SeqCst) != 0
    }

    /// Lets the tenant say again that it feels its limit: for when it could not be raised
    /// and now may be.
    pub fn acknowledge_pressure(&self) {
        self.header().pressure.store(0, SeqCst);
    }

    /// Raises the limit by `k` frames, up to the total, and wakes those who wait for frames.
    /// By how many it did. What was to be shed is so no longer.
    pub fn raise(&mut self, k: u32) -> u32 {
        let k = k.min(self.total - self.limit);
        self.limit += k;
        let header = self.header();
        header.limit.raise(k);
        header.clear_reclaim_target();
        self.acknowledge_pressure();
        wake(&header.freed);
        k
    }

    /// Lowers the limit by up to `k` frames that the tenant has unused, without its help. By
    /// how many it did.
    pub fn take_unused(&mut self, k: u32) -> u32 {
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.bound();
            let committed = self.header().committed.load(SeqCst);
            let kept = seen.owned.max(committed).min(self.limit);
            let next = self.limit.saturating_sub(k).max(kept);
            if self.header().limit.replace(seen, next) {
                let taken = self.limit - next;
                self.limit = next;
                if self.header().reclaim_target.load(SeqCst) >= next {
                    self.header().clear_reclaim_target();
                }
                return taken;
            }
        }
        0
    }

    /// Makes `limit` the limit, whatever the ledger says, for a tenant that is taken back
    /// after a restart.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(self.total);
        for _ in 0..MAX_ATTEMPTS {
            if self.header().limit.replace(self.bound(), self.limit) {
                return;
            }
        }
    }

    fn bound(&self) -> LimitValue {
        self.header().limit.read()
    }

    fn header(&self) -> &Header {
        &self.first.slice::<Header>(0, 1)[0]
    }
}

/// Wakes all that wait on a word which its owner may be writing without end.
fn wake(freed: &AtomicU32) {
    freed.fetch_add(2, SeqCst);
    wired::futex::wake_all(freed);
}
