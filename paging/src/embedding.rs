//! The pager of an unmodified program: the seam to the preloaded library.
//!
//! The preloaded library decides which memory becomes stretches and what the program's own
//! calls mean for them; this module does it. The program's threads do not hold the userfaultfd
//! (it lives in the pager threads' own descriptor table, out of reach of a program that closes
//! all its descriptors), so a pager thread does what needs it.

mod command;
mod fork;
mod stretches;

pub use fork::{FORK_POLL_INTERVAL, FORK_TIMEOUT, ForkError, ForkGuard};
pub use stretches::ProcessError;

use command::{Change, DISCARD_RETRY, IDLE, PagerCommand, QUIET};

use crate::DomainError;
use crate::counters::Counters;
pub use crate::entry::thread::HandlerThread;
use crate::entry::upcall::thread_hint;
use crate::evict::ReclaimOutcome;
use crate::pager::{Hooks, Pager, PagerConfig};
use frames::DomainFrames;
use rustix::fd::BorrowedFd;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use store::{HolderId, SharedStore};
use translation::{Capabilities, Userfault};
use wired::{DiscardRequest, Guard, Mailbox, PAGE, futex};

/// The parts of a process's pager.
pub struct Config {
    /// The kernel's capabilities.
    pub capabilities: Capabilities,
    /// Open, not yet registered with anything.
    pub userfault: Userfault,
    /// The process's domain in the tree's ledger.
    pub frames: DomainFrames<'static>,
    /// The tree's store.
    pub store: &'static SharedStore,
    /// The process's slot in it.
    pub holder: HolderId,
    /// Words for a domain's counters ([`wired::Stage::DOMAIN_WORDS`]), where a supervisor can read them.
    pub counters: &'static [AtomicU64],
    /// Not zero once a device may touch the process's memory.
    pub careful: &'static AtomicU32,
    /// The words that the process's supervisor and its evictor share.
    pub words: SharedWords,
    /// Limits of the fault rate of the whole tree.
    pub limits: rate::SharedLimits<'static>,
    /// The pager's interface to its host.
    pub hooks: &'static dyn Hooks,
}

/// A process's words that its supervisor and its evictor share.
#[derive(Clone, Copy)]
pub struct SharedWords {
    /// Set to a new value of [`Config::careful`] once the pager acts on it.
    pub careful_seen: &'static AtomicU32,
    /// What the program discards by system calls of its own.
    pub discards: DiscardRequest<'static>,
}

/// The pager of one process.
pub struct ProcessPager {
    pager: &'static Pager,
    store: &'static SharedStore,
    words: UnsafeCell<SharedWords>,
    mail: Mailbox<PagerCommand>,
    next_id: AtomicU32,
    /// The program's process, once the evictor's thread serves commands; zero before.
    served: AtomicU32,
}

// SAFETY: the cell is written in the child of a fork only, by its only thread.
unsafe impl Sync for ProcessPager {}

impl ProcessPager {
    /// A pager without threads and stretches yet; the caller runs [`ProcessPager::handler_main`] and
    /// [`ProcessPager::evictor_main`] on threads of its own.
    pub fn start(config: Config) -> Result<&'static Self, DomainError> {
        let total = config.frames.ledger().total();
        let pager = Pager::new(PagerConfig {
            capabilities: config.capabilities,
            userfault: config.userfault,
            frames: config.frames,
            total_frames: total,
            store: Some(config.store),
            holder: config.holder,
            counters: Counters::new(config.counters),
            careful: config.careful,
            hooks: config.hooks,
            contexts: 0,
            limits: config.limits,
        })?;
        Ok(Box::leak(Box::new(Self {
            pager: Box::leak(Box::new(pager)),
            store: config.store,
            words: UnsafeCell::new(config.words),
            mail: Mailbox::new(),
            next_id: AtomicU32::new(1),
            served: AtomicU32::new(0),
        })))
    }

    fn inside<T>(&self, work: impl FnOnce(&'static Pager) -> T) -> T {
        let _inside = self.pager.mm.gate.enter(thread_hint());
        work(self.pager)
    }

    /// Runs a command on the evictor's thread; on this one before that thread runs, while it
    /// has the descriptors itself.
    fn send(&self, command: PagerCommand) -> u32 {
        self.send_as(&self.mail.lock(), command)
    }

    fn send_as(&self, sender: &Guard<'_, ()>, command: PagerCommand) -> u32 {
        match self.served.load(Ordering::Acquire) {
            0 => self.run_command(command),
            _ => self.mail.send(
                sender,
                command,
                || self.pager.frames.wake_evictor(),
                || self.pager.hooks.check_pager(),
            ),
        }
    }

    fn run_command(&self, command: PagerCommand) -> u32 {
        match command {
            PagerCommand::Register(addr, len) => match self.pager.mm.register(addr, len) {
                Ok(()) => 0,
                Err(error) => error.errno.raw_os_error() as u32,
            },
            PagerCommand::Unregister(addr, len) => {
                // What another mapping has replaced meanwhile is not registered.
                let _ = self.pager.mm.userfault().unregister(addr, len);
                0
            }
            PagerCommand::Transfer(from, len, to) => {
                self.inside(|pager| pager.transfer(from..from + len, to));
                0
            }
            PagerCommand::Insert(stretch) => u32::from(!self.pager.mm.index.insert(stretch)),
            PagerCommand::Remove(addr) => {
                if let Some(stretch) = self.pager.mm.index.find(addr) {
                    self.pager.remove(stretch);
                }
                0
            }
            PagerCommand::Charge(addr, len) => {
                self.inside(|pager| stretches::account_all_resident(pager, addr, len))
            }
            PagerCommand::Change(change, addr, len) => {
                let range = addr..addr + len;
                self.inside(|pager| {
                    match change {
                        Change::Discard => pager.discard(range),
                        Change::Surrender => pager.surrender(range),
                        Change::Reclaim => pager.reclaim_foreign(range),
                        Change::Nail => return u32::from(!pager.nail(range)),
                        Change::Unnail => pager.unnail(range),
                    }
                    0
                })
            }
            PagerCommand::Run(work) => work(),
            PagerCommand::Drain(want) => {
                let evictor = &self.pager.evictor;
                evictor.drain();
                if want == 0 {
                    return 0;
                }
                // The thread that forks cannot signal pressure.
                self.pager.frames.client().request_guaranteed();
                let round = evictor.reclaim(&mut evictor.some_cleaner(), want);
                evictor.drain();
                match round {
                    ReclaimOutcome::Freed(count) => count,
                    _ => 0,
                }
            }
        }
    }

    /// Runs work of the embedding's own on the evictor's thread; it is not to take long.
    pub fn run(&self, work: fn() -> u32) -> u32 {
        self.send(PagerCommand::Run(work))
    }

    /// Makes the mappings that evictions need in advance, before the program may have used all that it may have. With
    /// signals blocked.
    pub fn keep_mappings_in_reserve(&self) {
        let evictor = &self.pager.evictor;
        let _stager = evictor.stager.lock();
        let slots = evictor.standby.slots.number();
        evictor.standby.spare_mappings.keep_for(slots);
    }

    /// Records that the pager threads of a program's process are running and that they alone have the userfaultfd.
    pub fn threads_run(&self, program: u32) {
        self.served.store(program, Ordering::Release);
    }

    /// The limits of the fault rate.
    pub fn limits(&self) -> rate::SharedLimits<'static> {
        self.pager.faults.throttle.limits()
    }

    /// Returns true if an address is in a stretch. Not inside the gate: the caller's stack may be
    /// paged, and a fork that closes the gate would wait for a fault on it.
    pub fn contains(&self, addr: usize) -> bool {
        let _control = self.pager.mm.control.lock();
        self.pager.mm.index.find(addr).is_some()
    }

    /// Discards the contents of `range`: `munmap`, `madvise(MADV_DONTNEED)`.
    pub fn discard(&self, range: Range<usize>) {
        self.change(Change::Discard, &range);
    }

    /// Surrenders `range`, before a mapping that is not the pager's replaces it.
    pub fn surrender(&self, range: Range<usize>) {
        self.change(Change::Surrender, &range);
        self.forget_abandoned(range);
    }

    /// Changes pages; returns false if one could not be changed. If the caller's stack is
    /// paged, the evictor's thread does it: with gates closed, a fault on that stack could
    /// wait for the thread that it stops. The evictor's thread changes them for another process, too (a child of vfork, say), which may
    /// be killed meanwhile without this one: a gate that it left closed would have the program's faults wait for ever.
    fn change(&self, change: Change, range: &Range<usize>) -> bool {
        let here = 0u8;
        let stack = std::ptr::from_ref(&here).addr();
        let command = PagerCommand::Change(change, range.start, range.len());
        let served = self.served.load(Ordering::Acquire);
        let is_program = || rustix::process::getpid().as_raw_pid() as u32 == served;
        let failed = match self.contains(stack) || served != 0 && !is_program() {
            true => self.send(command),
            false => self.run_command(command),
        };
        failed == 0
    }

    /// Moves the contents of `from` to `to`, as long, empty, and unknown to the program
    /// until this returns. Nothing is copied.
    pub fn transfer(&self, from: Range<usize>, to: usize) {
        self.send(PagerCommand::Transfer(from.start, from.len(), to));
    }

    /// Frames that the process can have at most.
    pub fn most_frames(&self) -> u32 {
        self.pager.frames.client().contract().x
    }

    /// Frames that a program may still lock: those that all processes of its tree leave.
    pub fn lockable_frames(&self) -> u32 {
        let client = self.pager.frames.client();
        client.ledger().room_to_nail(crate::FEWEST_FRAMES)
    }

    /// Makes the pages of `range` resident and keeps them so. Returns false if there are not
    /// frames enough: then nothing is nailed.
    pub fn nail(&self, range: Range<usize>) -> bool {
        let start = range.start & !(PAGE - 1);
        let range = start..range.end.next_multiple_of(PAGE);
        let spare = self.most_frames().saturating_sub(crate::FEWEST_FRAMES) as usize;
        if range.len() / PAGE > spare {
            return false;
        }
        for page in range.clone().step_by(PAGE) {
            let one = page..page + PAGE;
            let mut attempts = (0..100).take_while(|_| fault_in(page));
            let nailed = attempts.any(|_| self.change(Change::Nail, &one));
            if !nailed {
                self.unnail(range.start..page);
                return false;
            }
        }
        true
    }

    /// Undoes [`ProcessPager::nail`].
    pub fn unnail(&self, range: Range<usize>) {
        let start = range.start & !(PAGE - 1);
        self.change(Change::Unnail, &(start..range.end.next_multiple_of(PAGE)));
    }

    /// Records that the program has changed the protection of `range` to something other than
    /// readable and writeable.
    pub fn access_changed(&self, range: Range<usize>) {
        self.inside(|pager| {
            let mm = &pager.mm;
            mm.for_each_stretch(range, &mut |stretch| stretch.set_odd_access());
        });
    }

    /// Brings `range` in before its use, as far as frames are unused.
    pub fn will_need(&self, range: Range<usize>) {
        // The caller's own access would read, too; a page that is present costs nothing.
        let most = self.pager.frames.client().unused() as usize;
        for page in range.step_by(PAGE).take(most) {
            fault_in(page);
        }
    }

    /// Makes a handler thread's state before it runs (this allocates).
    pub fn new_handler(&self, cpu: usize) -> Result<HandlerThread, DomainError> {
        HandlerThread::new(self.pager, cpu)
    }

    /// A handler thread's work. Returns when `ended` returns true; called whenever `watch` is
    /// readable.
    pub fn handler_main(
        &self,
        handler: &mut HandlerThread,
        watch: Option<BorrowedFd<'_>>,
        ended: &mut dyn FnMut() -> bool,
    ) {
        handler.serve(self.pager, watch, ended);
    }

    /// The evictor thread's work: keeps a few frames unused, serves revocations and the
    /// program threads' commands. Never returns.
    ///
    /// Most processes of a tree wait for most of their life: what an idle one needs rings for
    /// this thread, so that it sleeps longer and longer.
    pub fn evictor_main(&self) -> ! {
        let mut pause = IDLE;
        loop {
            let seq = self.pager.frames.client().bell_seq();
            self.mail.handle(|command| self.run_command(command));
            let careful = self.pager.mm.careful.load(Ordering::Acquire);
            if careful != self.words().careful_seen.load(Ordering::Relaxed) {
                // Any thread that stages holds the lock; the next one to take it sees the new
                // value.
                drop(self.pager.evictor.stager.lock());
                self.show_careful(careful);
            }
            let is_served = self.words().discards.serve(|range| self.try_discard(range));
            self.pager.maintain_watermark();
            let client = self.pager.frames.client();
            client.wait_bell(seq, Some(if is_served { pause } else { DISCARD_RETRY }));
            pause = match client.bell_seq() == seq && !self.pager.faults.failed.any() {
                true => (pause * 2).min(QUIET),
                false => IDLE,
            };
        }
    }

    /// Discards the contents of `range` on the evictor's thread. Returns false if a fork has closed the
    /// gate: it may wait for this thread.
    fn try_discard(&self, range: Range<usize>) -> bool {
        let inside = self.pager.mm.gate.try_enter(thread_hint());
        inside.map(|_inside| self.pager.discard(range)).is_some()
    }

    fn words(&self) -> SharedWords {
        // SAFETY: replaced in the child of a fork only, before other threads run there.
        unsafe { *self.words.get() }
    }

    /// No eviction is under way that began while the pager was less careful.
    fn show_careful(&self, careful: u32) {
        let seen = self.words().careful_seen;
        seen.store(careful, Ordering::SeqCst);
        futex::wake_all(seen);
    }

    /// The userfaultfd, in the table of the pager's threads.
    pub fn userfault(&self) -> BorrowedFd<'static> {
        use rustix::fd::AsFd;
        self.pager.mm.userfault().as_fd()
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.pager.log.counters()
    }
}

/// Brings a page in as a read of it would, but returns false if that would be a SIGSEGV: for a
/// page that is free, or that may not be read.
fn fault_in(page: usize) -> bool {
    use rustix::mm::Advice;
    let at = std::ptr::with_exposed_provenance_mut(page);
    // A write-only page is not populated for a read, although the processor reads it.
    [Advice::LinuxPopulateRead, Advice::LinuxPopulateWrite]
        .into_iter()
        // SAFETY: changes no contents.
        .any(|advice| unsafe { rustix::mm::madvise(at, PAGE, advice) }.is_ok())
}
