//! The pager's pause across a fork.

use super::{AttachedPager, get};
use crate::cancellation::CancellationDisabled;
use crate::raw_syscall::SignalsBlocked;
use frames::DomainId;
use link::handshake::{RawDomainId, slot_of};
use selfpage::embedding::{FORK_POLL_INTERVAL, FORK_TIMEOUT, ForkError, ForkGuard, ProcessPager};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::Store;
use wired::futex;

/// Longest wait of a parent for its child: a child that dies first sends no message.
const CHILD_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which the parent checks that the child's domain still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What becomes of a child, as it tells its parent. The word of the stats page that holds it is 0
/// before.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ForkOutcome {
    /// The child has what it inherits.
    Inherited = 1,
    /// The child has no pager, and ends: the fork is to fail.
    Refused = 2,
}

/// A fork in progress: the pager is paused.
pub struct ForkGate(Option<ForkGuard>);

/// Admits the child of a fork to come; None in plain mode. A domain is waited for briefly: those of processes that
/// have just ended, or were killed, come back only when the supervisor has noticed.
pub fn admit_child() -> Result<Option<DomainId>, ForkError> {
    let Some(pager) = get() else { return Ok(None) };
    let _uncancelled = CancellationDisabled::new();
    let begun = Instant::now();
    loop {
        let signals = SignalsBlocked::new();
        let admitted = pager.process.admit_child(pager.contract);
        drop(signals);
        match admitted {
            Err(_) if begun.elapsed() < FORK_TIMEOUT => std::thread::sleep(FORK_POLL_INTERVAL),
            admitted => return admitted.map(Some),
        }
    }
}

/// Gives back the domain of a child that the kernel did not make. The supervisor need not know: a program's thread may
/// have no descriptor for a request.
pub fn dismiss_child(child: DomainId) {
    if let Some(pager) = get() {
        pager.dismiss(child);
    }
}

impl AttachedPager {
    /// Pages before frames: once the ledger has the slot back another process may get it.
    fn dismiss(&self, child: DomainId) {
        let _signals = SignalsBlocked::new();
        match self.store.retire(slot_of(child.raw())) {
            true => self.process.dismiss_child(child),
            // Another process has an entry locked. The supervisor takes back what no process can claim.
            false => self.process.let_go_of_child(child),
        }
    }
}

/// Returns true if a fork that could not stop the pager is to try again.
pub fn is_retryable(why: &ForkError, begun: Instant) -> bool {
    get().is_some_and(|pager| pager.process.is_retryable(why, begun))
}

/// Waits until the child of a fork has what it inherits: until then its memory is not yet what the parent may read and
/// write there (`process_vm_readv`). Returns false if the child has no pager, and ends. `has_ended` is called where it
/// takes long, since a child that is killed first sends no message.
pub fn await_inheritance(child: DomainId, has_ended: impl Fn() -> bool) -> bool {
    let Some(pager) = get() else { return true };
    let inherited = pager.stats_page.block(slot_of(child.raw())).inherited();
    let since = Instant::now();
    while inherited.load(Ordering::Acquire) == 0
        && since.elapsed() < CHILD_TIMEOUT
        && pager.ledger.stats(child).is_some()
    {
        futex::wait(inherited, 0, Some(POLL_INTERVAL));
        if inherited.load(Ordering::Acquire) == 0 && has_ended() {
            break;
        }
    }
    inherited.load(Ordering::Acquire) != ForkOutcome::Refused as u32
}

impl ForkGate {
    /// Stops the pager for a fork of this child, which is None in plain mode, or returns the reason that the child has
    /// no room.
    pub fn close(child: Option<DomainId>) -> Result<Self, ForkError> {
        let (Some(pager), Some(child)) = (get(), child) else {
            return Ok(Self(None));
        };
        let fork = pager.process.close_for_fork(child)?;
        let child = slot_of(child.raw());
        pager.store.adopt_fork(pager.store.holder(), child);
        let inherited = pager.stats_page.block(child).inherited();
        inherited.store(0, Ordering::Release);
        Ok(Self(Some(fork)))
    }

    /// The child's domain; 0 in plain mode.
    pub fn child(&self) -> RawDomainId {
        let fork = self.0.as_ref();
        fork.map_or(0, |fork| ProcessPager::child_of(fork).raw())
    }

    /// The pager's state for the child.
    pub fn into_fork(self) -> Option<ForkGuard> {
        self.0
    }

    /// Restarts the pager of a fork's parent. Returns the child where the kernel made one: its domain is its own from now
    /// on. The domain of a child that the kernel did not make is given back.
    pub fn open(self, is_cloned: bool) -> Option<DomainId> {
        let (pager, fork) = (get()?, self.0?);
        let child = ProcessPager::child_of(&fork);
        pager.process.open_after_fork(fork);
        if !is_cloned {
            pager.dismiss(child);
            return None;
        }
        // One that is killed before it joins leaves its domain to the supervisor.
        pager.process.let_go_of_child(child);
        Some(child)
    }
}
