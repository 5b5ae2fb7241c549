//! A fork of a paged program: what it requires of the parent, and the state of the child.
//!
//! The kernel copies the parent's page tables; the pager's own words are copied with them. So
//! before the fork the gate is closed, the staging area is empty, and the child has a frame of
//! its own for each page that it will share; afterwards the child gives its pages those frames
//! and registers its memory with a userfaultfd of its own.

use super::command::PagerCommand;
use super::{ProcessPager, SharedWords};
use crate::DomainError;
use crate::counters::Counters;
use crate::evict::quiesce::QuiesceGuard;
use crate::page::State;
use crate::pager::Pager;
use crate::stretch::StretchState;
use frames::{Contract, DomainFrames, DomainId};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use store::HolderId;
use translation::Userfault;
use wired::{Guard, PiGuard};

/// How long a fork waits for what other processes release.
pub const FORK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it checks.
pub const FORK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// As a pager is that checks each eviction for pages that devices hold.
const CAREFUL: u32 = 1;

/// How often a fork has the standby list emptied before it gives up.
const DRAINS: u32 = 100;

/// A fork under way: the gate is closed while this is held.
pub struct ForkGuard {
    child: DomainId,
    control: ManuallyDrop<PiGuard<'static, ()>>,
    sender: ManuallyDrop<Guard<'static, ()>>,
    quiesced: ManuallyDrop<QuiesceGuard<'static>>,
}

/// Why a process cannot fork now.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// The child is not admitted.
    #[error(transparent)]
    Refused(#[from] frames::AdmissionError),
    /// Its resident pages cannot be made to fit.
    #[error(
        "the child needs {needed} frames for the pages it shares, and {missing} of them cannot be had; give the program more frames"
    )]
    Frames {
        /// Frames for the child.
        needed: u32,
        /// Frames that could not be had.
        missing: u32,
    },
    /// Pages are on their way out and cannot arrive, nor come back.
    #[error(
        "pages on the standby list can be neither written nor put back (what the store or the kernel said is above); give the store more room, or raise vm.max_map_count"
    )]
    Standby,
}

impl ProcessPager {
    /// Admits the child of a fork to come, which has this contract.
    pub fn admit_child(&self, child: Contract) -> Result<DomainId, ForkError> {
        Ok(self.pager.frames.client().admit_child(child)?)
    }

    /// Gives back the domain of a child that the kernel did not make.
    pub fn dismiss_child(&self, child: DomainId) {
        self.pager.frames.client().dismiss_child(child);
    }

    /// Returns true if a fork that could not close the gate is to try again. Frames are waited for briefly: those of
    /// processes that have just ended, or were killed, come back only when the supervisor has noticed. Frames that the
    /// tenant is owed are waited for until they have come.
    pub fn is_retryable(&self, why: &ForkError, begun: Instant) -> bool {
        matches!(why, ForkError::Frames { .. })
            && (begun.elapsed() < FORK_TIMEOUT || self.pager.frames.client().request_guaranteed())
    }

    /// Closes the gate for a fork: nothing is in transit, no slot is in use, and the child, which is
    /// admitted, has a frame for each page it will share.
    pub fn close_for_fork(&'static self, child: DomainId) -> Result<ForkGuard, ForkError> {
        let client = *self.pager.frames.client();
        let control = self.pager.mm.control.lock();
        // Before the gate: a pending command may have to pass it.
        let sender = self.mail.lock();
        self.pager.mm.gate.close();
        // With the gate closed no thread faults, and no thread evicts but the evictor's. It is
        // sent a command to make room, since this thread lacks the descriptors for that. Mostly
        // there is nothing to do, and the two threads' switches would be a tenth of the fork.
        let mut want = 0;
        let mut stuck = 0;
        let closed = loop {
            let freed = match want == 0 && self.pager.standby.slots.ring.is_empty() {
                true => 0,
                false => self.send_as(&sender, PagerCommand::Drain(want)),
            };
            let quiesced = self.pager.evictor.quiesce();
            if !self.pager.standby.slots.ring.is_empty() {
                drop(quiesced);
                stuck += 1;
                if stuck < DRAINS {
                    continue;
                }
                break Err(ForkError::Standby);
            }
            let needed = client.n().saturating_sub(client.unused());
            let Err(short) = client.reserve_for_child(child, needed) else {
                break Ok(quiesced);
            };
            drop(quiesced);
            if want > 0 && freed == 0 {
                let missing = short.missing;
                break Err(ForkError::Frames { needed, missing });
            }
            // Each frame freed here is one less for the child, too.
            want = short.missing.div_ceil(2).max(1);
            client.release(client.unused());
        };
        let quiesced = closed.inspect_err(|_| self.pager.mm.gate.open())?;
        // Nothing is evicted until the fork is over, which takes long where the program is stopped in it.
        self.show_careful(CAREFUL);
        Ok(ForkGuard {
            child,
            control: ManuallyDrop::new(control),
            sender: ManuallyDrop::new(sender),
            quiesced: ManuallyDrop::new(quiesced),
        })
    }

    /// Resumes the parent after its fork, or after a fork that failed: then the caller
    /// dismisses the child, with what it has in the store.
    pub fn open_after_fork(&self, mut fork: ForkGuard) {
        self.show_careful(self.pager.mm.careful.load(Ordering::SeqCst));
        // SAFETY: dropped once, here.
        unsafe {
            ManuallyDrop::drop(&mut fork.quiesced);
            self.pager.mm.gate.open();
            ManuallyDrop::drop(&mut fork.sender);
            ManuallyDrop::drop(&mut fork.control);
        }
    }

    /// Completes the child after its fork, before any other code runs in it: everything is
    /// registered with a userfaultfd of its own, every resident page is in a frame of its own.
    /// Its threads are not running yet.
    ///
    /// # Safety
    /// The caller is the only thread of the child, and the descriptor numbers that the
    /// parent's pager threads used mean nothing here.
    pub unsafe fn become_child(
        &self,
        mut fork: ForkGuard,
        userfault: Userfault,
        frames: DomainFrames<'static>,
        holder: HolderId,
        counters: &'static [AtomicU64],
        words: SharedWords,
    ) -> Result<(), DomainError> {
        self.served.store(0, Ordering::Release);
        self.mail.reset_after_fork();
        // SAFETY: the caller's promise.
        unsafe {
            self.pager
                .become_child(userfault, frames, holder, Counters::new(counters));
            self.words.get().write(words);
        }
        self.store.set_holder(holder)?;
        let mut n = 0;
        while let Some(stretch) = self.pager.mm.index.nth(n) {
            n += 1;
            self.pager
                .mm
                .register_mapped(stretch)
                .map_err(DomainError::Register)?;
            renumber(self.pager, stretch);
        }
        self.pager.frames.client().finish_renumbering();
        self.pager.standby.slots.forget_sieve();
        fork.quiesced.become_child(self.store)?;
        self.pager.faults.streams.become_child(self.store)?;
        self.pager.frames.note_resident();
        self.open_after_fork(fork);
        Ok(())
    }

    /// The child exists: what it holds does not end with this process.
    pub fn let_go_of_child(&self, child: DomainId) {
        self.pager.frames.client().let_go_of_child(child);
    }

    /// The child of a fork under way.
    pub fn child_of(fork: &ForkGuard) -> DomainId {
        fork.child
    }
}

/// Gives every resident page of the child a frame of the child's.
fn renumber(pager: &Pager, stretch: &StretchState) {
    let places = &pager.standby.places;
    let table = stretch.table();
    for unit in (0..table.unit_count()).filter(|u| table.touched(*u)) {
        for index in table.unit_pages(unit) {
            let word = table.word(index);
            let seen = word.load();
            if !matches!(seen.state(), State::Resident | State::Staged) {
                continue;
            }
            let Some(frame) = pager.frames.client().take_own() else {
                pager.log.write(format_args!(
                    "a child has fewer frames than pages it shares: this is a bug"
                ));
                return;
            };
            if seen.nails() > 0 {
                let _ = pager.frames.client().mark(frame, frames::State::Nailed);
            }
            places.set_home(frame.0, table.address(index));
            places.set_staged(frame.0, places.staged(seen.frame()));
            word.renumber(frame.0);
        }
    }
}
