//! The frames allocator's access to a tenant's ledger.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. The allocator grants a tenant
//! frames by raising its ledger's limit, and takes unused ones transparently by lowering it.
//! Rule: the ledger's words are not trusted. The tenant can write its ledger and so corrupt its
//! own state, but nothing else: values are clamped, no loop waits for the tenant, and the limit
//! that counts is the one remembered here.

use crate::layout::{Header, Layout};
use crate::limit_word::LimitValue;
use crate::ramtab::Frame;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use wired::{PAGE, WiredMemory};

/// Attempts to lower the limit while the tenant takes and releases frames: each attempt fails only
/// if the tenant changed the word meanwhile.
const MAX_ATTEMPTS: u32 = 1000;

/// The file system of memfds: tmpfs, whose pages can always be read.
const TMPFS: u64 = 0x0102_1994;

/// Why a descriptor is refused as a tenant's ledger.
#[derive(Debug, thiserror::Error)]
pub enum LimitControlError {
    /// Not a memfd.
    #[error("the descriptor is not a memfd; pass the one that came with Ledger::create_limited")]
    NotAMemfd,
    /// Its size may change. The kernel kills a process that touches truncated memory.
    #[error(
        "the memfd's size is not sealed; pass one with F_SEAL_SHRINK and F_SEAL_GROW, as Ledger::create_limited makes it"
    )]
    Unsealed,
    /// Its header is not a ledger's, or does not match its length.
    #[error(
        "the memfd of {length} bytes is not a frames ledger of this version; make it with the same \
         selfpage as the system daemon's"
    )]
    NotALedger {
        /// Its length in bytes.
        length: u64,
    },
    /// The kernel refused a call.
    #[error("cannot map a tenant's frames ledger: {0}; the descriptor must be open for writing")]
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
    /// Attaches the ledger behind a tenant's descriptor. The limit is the ledger's, which is not
    /// trusted: a caller that knows the true one sets it with [`LimitControl::set_limit`].
    pub fn attach(fd: impl AsFd) -> Result<Self, LimitControlError> {
        let fd = fd.as_fd();
        let seals = fcntl_get_seals(fd).map_err(|_| LimitControlError::NotAMemfd)?;
        if fstatfs(fd)?.f_type as u64 != TMPFS {
            return Err(LimitControlError::NotAMemfd);
        }
        // To close one that has grown takes the daemon time.
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(LimitControlError::Unsealed);
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

    /// Frames the tenant may own: n of its contract.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Frames that the ledger counts as owned, at most the limit.
    pub fn owned(&self) -> u32 {
        self.bound().owned.min(self.limit)
    }

    /// Frames that the ledger counts as owned or owed to guarantees of its domains, at most the
    /// limit: what lies above can be taken transparently.
    pub fn committed(&self) -> u32 {
        let committed = self.header().committed.load(SeqCst);
        self.owned().max(committed).min(self.limit)
    }

    /// Frames that the tenant has guaranteed to its domains, by the ledger; at most the limit.
    pub fn guaranteed(&self) -> u32 {
        self.header().guaranteed.load(SeqCst).min(self.limit)
    }

    /// Frames that the tenant has nailed or locked, by the ledger; at most the limit: no revocation
    /// takes them.
    pub fn nailed(&self) -> u32 {
        self.header().nailed.load(SeqCst).min(self.limit)
    }

    /// Frames that the tenant cannot release: guaranteed to its domains, nailed or locked; at most
    /// the limit.
    pub fn fixed(&self) -> u32 {
        let fixed = self.guaranteed().saturating_add(self.nailed());
        fixed.min(self.limit)
    }

    /// The lowest guarantee under which its domains keep theirs and what is nailed, beside other
    /// pages: [`crate::Ledger::room_to_nail`].
    pub fn least_guarantee(&self) -> u32 {
        let (guaranteed, nailed) = (self.guaranteed(), self.nailed());
        let beside_others = u64::from(nailed) * 8;
        let beside_others = u32::try_from(beside_others.div_ceil(7)).unwrap_or(u32::MAX);
        beside_others.max(guaranteed.saturating_add(nailed))
    }

    /// Frames that the tenant's processes wait for, by the ledger; at most what the limit can be
    /// raised by.
    pub fn wanted(&self) -> u32 {
        let wants = self.header().wants.load(SeqCst);
        wants.min(self.total - self.limit)
    }

    /// Returns true if the tenant signalled pressure since the limit was raised or the pressure
    /// acknowledged.
    pub fn is_under_pressure(&self) -> bool {
        self.header().pressure.load(SeqCst) != 0
    }

    /// Lets the tenant signal pressure again: for when the limit could not be raised before and
    /// may be raised now.
    pub fn acknowledge_pressure(&self) {
        self.header().pressure.store(0, SeqCst);
    }

    /// Raises the limit by `k` frames, up to the total, ends a reclaim and wakes waiters for
    /// frames. Returns by how many.
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

    /// Lowers the limit by up to `k` frames that the tenant has unused, without its help. Returns
    /// by how many.
    pub fn take_unused(&mut self, k: u32) -> u32 {
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.bound();
            let committed = self.header().committed.load(SeqCst);
            let kept = seen.owned.max(committed).min(self.limit);
            let next = self.limit.saturating_sub(k).max(kept);
            if self.header().limit.replace(seen, next) {
                let taken = self.limit - next;
                self.limit = next;
                if taken > 0 {
                    // A revocation of which more is to come sets its target again.
                    self.header().clear_reclaim_target();
                }
                return taken;
            }
        }
        0
    }

    /// Sets the limit, whatever the ledger's is, for a tenant that reconnects after a restart.
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

/// Wakes all waiters on a word that its owner may write continuously.
fn wake(freed: &AtomicU32) {
    freed.fetch_add(2, SeqCst);
    wired::futex::wake_all(freed);
}
