//! The processes that page now: each a program and its pager process, which joined the tree.

use crate::orphaned_memory::OrphanedMemory;
use frames::DomainId;
use host::address_spaces::share_memory;
use host::fd_reaper::PeerFd;
use host::process_tree::{self, ProcStatus};
use link::handshake::{ProgramPlace, RawDomainId, SlotIndex, slot_of};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// A process that pages.
pub(crate) struct PagedProcess {
    /// The pager process.
    pub pid: Pid,
    /// The program that it pages; the same process, where program and pager are one.
    pub program: Pid,
    pub pidfd: OwnedFd,
    pub connection: PeerFd,
    pub domain: DomainId,
    /// The socket by which the kernel kills the program if the pager process ends first, and the
    /// userfaultfd, which keeps the program's missing pages missing until then.
    lifeline: Option<PeerFd>,
    userfault: Option<PeerFd>,
    /// The userfaultfd of its shared memory, until the pager of shared memory takes it.
    shared_userfault: Option<PeerFd>,
    joined: Instant,
    /// When its connection hung up.
    leaving: Option<Instant>,
}

impl PagedProcess {
    /// The pager process `pid`. It may have ended by now, which the pidfd then reports.
    pub fn new(
        connection: PeerFd,
        pid: Pid,
        program: Pid,
        domain: DomainId,
    ) -> std::io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self {
            pid,
            program,
            pidfd,
            connection,
            domain,
            lifeline: None,
            userfault: None,
            shared_userfault: None,
            joined: Instant::now(),
            leaving: None,
        })
    }

    /// Keeps the descriptors that the pager process sends once it serves.
    pub fn keep_lifeline(&mut self, mut fds: impl Iterator<Item = PeerFd>) {
        self.lifeline = fds.next();
        self.userfault = fds.next();
        self.shared_userfault = fds.next();
    }

    /// Takes the userfaultfd of its shared memory; `None` after the first call.
    pub fn take_shared_userfault(&mut self) -> Option<PeerFd> {
        self.shared_userfault.take()
    }

    /// The program has begun another image: ends the pager process of this one, without the
    /// program.
    pub fn end_image(&self) {
        if self.pid == self.program {
            return;
        }
        if let Some(lifeline) = &self.lifeline {
            let no_owner = 0;
            // SAFETY: changes the owner of the socket's signal.
            unsafe { libc::fcntl(lifeline.as_fd().as_raw_fd(), libc::F_SETOWN, no_owner) };
        }
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// The process's memory, if another process still uses it.
    pub fn into_orphaned_memory(self) -> Option<OrphanedMemory> {
        self.userfault.and_then(OrphanedMemory::of)
    }

    pub fn slot(&self) -> SlotIndex {
        slot_of(self.domain.raw())
    }

    /// Returns true if `pid` is a process of this program, which has this domain. A program may consist of several
    /// processes that share its memory (`clone` with CLONE_VM): any of them may send requests for it.
    pub fn matches(&self, domain: RawDomainId, pid: Pid) -> bool {
        let is_known = self.pid == pid || self.program == pid;
        self.domain.raw() == domain && (is_known || share_memory(self.program, pid))
    }
}

/// Most generations between a program and a process that shares its memory.
const GENERATIONS: usize = 4;

/// All processes that page, by slot.
#[derive(Default)]
pub(crate) struct ProcessTable(BTreeMap<SlotIndex, PagedProcess>);

impl ProcessTable {
    pub fn iter(&self) -> impl Iterator<Item = &PagedProcess> {
        self.0.values()
    }

    pub fn get(&self, slot: SlotIndex) -> Option<&PagedProcess> {
        self.0.get(&slot)
    }

    pub fn get_mut(&mut self, slot: SlotIndex) -> Option<&mut PagedProcess> {
        self.0.get_mut(&slot)
    }

    /// The process that pages a program: its latest image, where pagers of earlier ones have not ended yet.
    pub fn of(&self, program: Pid) -> Option<&PagedProcess> {
        let images = self.iter().filter(|member| member.program == program);
        images.max_by_key(|member| member.joined)
    }

    /// The process that pages a program, or that pages the ancestor whose memory it shares (as a child of `vfork`, or of `clone` with CLONE_VM).
    ///
    /// # Errors
    /// Where a shortage of descriptors or memory keeps it unknown.
    pub fn by_memory(&self, process: Pid) -> io::Result<Option<&PagedProcess>> {
        let mut above = process;
        for _ in 0..=GENERATIONS {
            let shares = |_: &&PagedProcess| above == process || share_memory(above, process);
            if let Some(member) = self.of(above).filter(shares) {
                return Ok(Some(member));
            }
            match ProcStatus::read(above)?.and_then(|status| status.parent) {
                Some(parent) => above = parent,
                None => break,
            }
        }
        Ok(None)
    }

    pub fn insert(&mut self, member: PagedProcess) {
        self.0.insert(member.slot(), member);
    }

    pub fn remove(&mut self, slot: SlotIndex) -> Option<PagedProcess> {
        self.0.remove(&slot)
    }

    /// The connection of a process has hung up: the process is ending, or has begun another image.
    pub fn on_hang_up(&mut self, slot: SlotIndex) {
        if let Some(member) = self.0.get_mut(&slot) {
            member.leaving.get_or_insert_with(Instant::now);
        }
    }

    pub fn is_any_leaving(&self) -> bool {
        self.iter().any(|member| member.leaving.is_some())
    }

    /// The slots whose connection hung up at least `ago`.
    pub fn left_since(&self, ago: Duration) -> Vec<SlotIndex> {
        let left =
            |member: &&PagedProcess| member.leaving.is_some_and(|since| since.elapsed() >= ago);
        self.iter().filter(left).map(PagedProcess::slot).collect()
    }
}

/// The program that a pager process joins for: itself or, as it claims, its parent or grandparent, if both have
/// the same user, so that the pager process may kill that program by a signal. A process of another user joins
/// for itself only. `None` where the program has ended, and its pager process is below a subreaper.
pub(crate) fn program_of(pid: Pid, place: ProgramPlace) -> Option<Pid> {
    let above = usize::from(place.above.min(2));
    let parent = |status: &ProcStatus| status.parent.and_then(ProcStatus::of);
    let Some(own) = ProcStatus::of(pid).filter(|_| above > 0) else {
        return Some(pid);
    };
    let below = std::iter::successors(Some(own), parent).nth(above - 1);
    match below.and_then(|below| Some((below.parent?, parent(&below)?))) {
        Some((program, status)) if status.effective_user == own.effective_user => {
            let number = program.as_raw_nonzero().get() as u32;
            let is_claimed =
                number == place.pid || process_tree::inner_pid(program) == Some(place.pid);
            // The process that cloned the pager process was killed, and the program was not.
            let orphaned = || Pid::from_raw(place.pid as i32).filter(|it| share_memory(*it, pid));
            is_claimed.then_some(program).or_else(orphaned)
        }
        _ => Some(pid),
    }
}
