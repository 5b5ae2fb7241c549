//! The pager of an unmodified program: the seam to the preloaded library.
//!
//! The preloaded library decides which memory becomes stretches and what the program's own
//! calls mean for them; this module does it. The program's threads do not hold the userfaultfd
//! (it lives in the pager threads' own descriptor table, out of reach of a program that closes
//! all its descriptors), so a pager thread does what needs it.

mod fork;

pub use fork::{ForkError, ForkGuard};

use crate::DomainError;
use crate::counters::{Counter, Counters};
use crate::driver::Paged;
use crate::entry::thread::HandlerThread;
use crate::entry::upcall::thread_hint;
use crate::entry::{kernel_faults, signals};
use crate::evict::ReclaimOutcome;
use crate::page::State;
use crate::page_table::PageTable;
use crate::pager::{Hooks, Pager, PagerConfig};
use crate::stretch::StretchState;
use frames::DomainFrames;
use rustix::fd::BorrowedFd;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use store::{HolderId, SharedStore};
use translation::{Access, Capabilities, Userfault};
use wired::{Guard, Lock, PAGE, PiGuard, futex};

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
    /// Words for [`Counter::ALL`], where a supervisor can read them.
    pub counters: &'static [AtomicU64],
    /// Not zero once a device may touch the process's memory.
    pub careful: &'static AtomicU32,
    /// Set to a new value of `careful` once the pager acts on it.
    pub careful_seen: &'static AtomicU32,
    /// Limits of the fault rate of the whole tree.
    pub limits: rate::SharedLimits<'static>,
    /// The pager's interface to its host.
    pub hooks: &'static dyn Hooks,
}

/// How often the evictor polls for work that no doorbell announces.
const IDLE: Duration = Duration::from_millis(50);

/// A request of a program's thread to the evictor's thread: any operation that needs a
/// descriptor (the userfaultfd, the store's ring), which the program's threads do not have.
#[derive(Clone, Copy, Debug)]
enum Command {
    /// Register memory: address, length.
    Register(usize, usize),
    /// Move contents: from, length, to.
    Transfer(usize, usize, usize),
    /// Charge the pages that are present already: address, length.
    Charge(usize, usize),
    /// Empty the standby list and make about this many frames unused.
    Drain(u32),
    /// Change pages: how, address, length. Returns 1 where a page could not be.
    Change(Change, usize, usize),
}

/// An operation on pages with their unit's gate closed.
#[derive(Clone, Copy, Debug)]
enum Change {
    Discard,
    Surrender,
    Reclaim,
    Nail,
    Unnail,
}

/// One command at a time.
struct Mailbox {
    /// Whose turn it is, the sender's or the evictor's: see [`EMPTY`] and so on.
    turn: AtomicU32,
    command: Lock<Option<Command>>,
    /// The result: an errno, or frames that became unused.
    result: AtomicU32,
}

/// No command.
const EMPTY: u32 = 0;
/// An command is pending.
const PENDING: u32 = 1;
/// The command is complete.
const COMPLETED: u32 = 2;

/// The pager of one process.
pub struct ProcessPager {
    pager: &'static Pager,
    store: &'static SharedStore,
    careful_seen: UnsafeCell<&'static AtomicU32>,
    mail: Mailbox,
    sender: Lock<()>,
    next_id: AtomicU32,
    /// Set when a stretch has surrendered its last page.
    abandoned: AtomicBool,
    /// Not zero once the evictor's thread serves commands.
    running: AtomicU32,
}

// SAFETY: the cell is written in the child of a fork only, by its only thread.
unsafe impl Sync for ProcessPager {}

/// Why a process's memory could not be made a stretch.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No address space.
    #[error(transparent)]
    Reserve(#[from] translation::ReserveError),
    /// No memory for the tables.
    #[error("no memory for a page table of {pages} pages: {errno}")]
    Table {
        /// Pages it was for.
        pages: usize,
        /// What the kernel said.
        errno: rustix::io::Errno,
    },
    /// The kernel would not register it.
    #[error("{len} bytes at {addr:#x} cannot be registered with userfaultfd (errno {errno})")]
    Register {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
        /// What the kernel said.
        errno: u32,
    },
    /// Too many stretches.
    #[error(
        "the process has {} stretches, the most there can be",
        crate::MOST_STRETCHES
    )]
    TooMany,
}

impl ProcessPager {
    /// A pager without threads and stretches yet; the caller runs [`ProcessPager::entry_main`] and
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
            careful_seen: UnsafeCell::new(config.careful_seen),
            mail: Mailbox {
                turn: AtomicU32::new(EMPTY),
                command: Lock::new(None),
                result: AtomicU32::new(0),
            },
            sender: Lock::new(()),
            next_id: AtomicU32::new(1),
            abandoned: AtomicBool::new(false),
            running: AtomicU32::new(0),
        })))
    }

    fn inside<T>(&self, work: impl FnOnce(&'static Pager) -> T) -> T {
        let _inside = self.pager.mm.gate.enter(thread_hint());
        work(self.pager)
    }

    /// A new stretch of `len` bytes of readable and writeable memory, where the kernel
    /// chooses.
    pub fn reserve(&self, len: usize) -> Result<Range<usize>, ProcessError> {
        let reservation = translation::reserve(None, len, true)?;
        let range = reservation.addr..reservation.addr + reservation.len;
        match self.add_stretch(range.clone()) {
            Ok(()) => Ok(range),
            Err(error) => {
                // SAFETY: just reserved, and no other code refers to it.
                let _ = unsafe { translation::unmap_reservation(reservation) };
                Err(error)
            }
        }
    }

    /// Makes private anonymous memory of the program paged; pages that are present keep their
    /// contents and are charged. The pages are missing for the moment in which they are
    /// registered, so no other thread may use them yet.
    ///
    /// The parts that a stretch surrendered become that stretch's again, the rest becomes new
    /// stretches, so that an address is in one stretch at most. No other part of a stretch may
    /// be in the range.
    pub fn adopt(&self, range: Range<usize>) -> Result<(), ProcessError> {
        let _ = translation::advise_no_huge(range.start, range.len());
        if self.abandoned.swap(false, Ordering::AcqRel) {
            self.forget_abandoned();
        }
        let mut at = range.start;
        while at < range.end {
            let (part, known) = self.next_part(at..range.end);
            at = part.end;
            let adopted = match known {
                true => self.resume(part.clone()),
                false => self.add_stretch(part.clone()),
            };
            if let Err(error) = adopted {
                self.surrender(range.start..part.start);
                return Err(error);
            }
        }
        self.send(Command::Charge(range.start, range.len()));
        Ok(())
    }

    /// The first part of `range` that is in one stretch, or in none; true if it is in one.
    fn next_part(&self, range: Range<usize>) -> (Range<usize>, bool) {
        let _control = self.pager.mm.control.lock();
        let next = self.pager.mm.index.first_after(range.start);
        let (end, known) = match next.map(StretchState::table) {
            Some(table) if table.base() <= range.start => (table.end(), true),
            Some(table) => (table.base(), false),
            None => (range.end, false),
        };
        (range.start..end.min(range.end), known)
    }

    /// Frees the stretches that have surrendered every page.
    fn forget_abandoned(&self) {
        let control = self.pager.mm.control.lock();
        let mut at = 0;
        while let Some(stretch) = self.pager.mm.index.first_after(at) {
            at = stretch.table().end();
            if stretch.table().is_abandoned() {
                let bytes = (stretch.table().pages() * PAGE) as u64;
                // SAFETY: every stretch of a process is a leaked box, which the directory
                // alone keeps.
                unsafe { self.forget_stretch(&control, stretch) };
                self.pager.log.counters().sub(Counter::stretch_bytes, bytes);
            }
        }
    }

    fn add_stretch(&self, range: Range<usize>) -> Result<(), ProcessError> {
        let pages = range.len() / PAGE;
        let table = PageTable::new(range.start, pages, self.pager.mm.unit_pages)
            .map_err(|errno| ProcessError::Table { pages, errno })?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let stretch: &'static StretchState = Box::leak(Box::new(StretchState::new(id, table)));
        stretch.set_driver(Box::new(Paged));
        // In the directory first: a fault may come the moment it is registered.
        let control = self.pager.mm.control.lock();
        let fits = self.pager.mm.index.insert(stretch);
        drop(control);
        if !fits {
            // SAFETY: leaked above, and in no directory.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(stretch).cast_mut()) });
            return Err(ProcessError::TooMany);
        }
        if let Err(error) = self.register(range.start, range.len()) {
            let control = self.pager.mm.control.lock();
            // SAFETY: leaked above, and there is no other reference to it.
            unsafe { self.forget_stretch(&control, stretch) };
            return Err(error);
        }
        self.pager
            .log
            .counters()
            .add(Counter::stretch_bytes, range.len() as u64);
        Ok(())
    }

    /// Takes a stretch out of the directory and frees it.
    /// # Safety
    /// It is a leaked box, and the caller keeps no other reference to it.
    unsafe fn forget_stretch(&self, _control: &PiGuard<'_, ()>, stretch: &StretchState) {
        self.pager.remove(stretch);
        // SAFETY: the caller's promise; any thread that found it has left the gate.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(stretch).cast_mut()) });
    }

    /// Returns `range`, which its stretch surrendered, to that stretch: plain anonymous memory
    /// is mapped there again.
    fn resume(&self, range: Range<usize>) -> Result<(), ProcessError> {
        self.register(range.start, range.len())?;
        self.change(Change::Reclaim, &range);
        Ok(())
    }

    fn register(&self, addr: usize, len: usize) -> Result<(), ProcessError> {
        match self.send(Command::Register(addr, len)) {
            0 => Ok(()),
            errno => Err(ProcessError::Register { addr, len, errno }),
        }
    }

    /// Runs an command on the evictor's thread; on this one before that thread runs, while it
    /// has the descriptors itself.
    fn send(&self, command: Command) -> u32 {
        let one = self.sender.lock();
        self.send_as(&one, command)
    }

    fn send_as(&self, _sender: &Guard<'_, ()>, command: Command) -> u32 {
        if self.running.load(Ordering::Acquire) == 0 {
            return self.run_command(command);
        }
        *self.mail.command.lock() = Some(command);
        self.mail.turn.store(PENDING, Ordering::Release);
        self.pager.frames.wake_evictor();
        while self.mail.turn.load(Ordering::Acquire) == PENDING {
            futex::wait(&self.mail.turn, PENDING, Some(IDLE));
        }
        self.mail.turn.store(EMPTY, Ordering::Relaxed);
        self.mail.result.load(Ordering::Acquire)
    }

    fn handle_command(&self) {
        if self.mail.turn.load(Ordering::Acquire) != PENDING {
            return;
        }
        let command = self.mail.command.lock().take();
        let result = command.map_or(0, |command| self.run_command(command));
        self.mail.result.store(result, Ordering::Release);
        self.mail.turn.store(COMPLETED, Ordering::Release);
        futex::wake_all(&self.mail.turn);
    }

    fn run_command(&self, command: Command) -> u32 {
        match command {
            Command::Register(addr, len) => match self.pager.mm.register(addr, len) {
                Ok(()) => 0,
                Err(error) => error.errno.raw_os_error() as u32,
            },
            Command::Transfer(from, len, to) => {
                self.inside(|pager| pager.transfer(from..from + len, to));
                0
            }
            Command::Charge(addr, len) => {
                self.inside(|pager| account_all_resident(pager, addr, len))
            }
            Command::Change(change, addr, len) => {
                let range = addr..addr + len;
                let done = self.inside(|pager| match change {
                    Change::Discard => {
                        pager.discard(range);
                        true
                    }
                    Change::Surrender => {
                        self.surrender_inside(pager, range);
                        true
                    }
                    Change::Reclaim => {
                        pager.reclaim_foreign(range);
                        true
                    }
                    Change::Nail => pager.nail(range),
                    Change::Unnail => {
                        pager.unnail(range);
                        true
                    }
                });
                u32::from(!done)
            }
            Command::Drain(want) => {
                self.pager.evictor.drain();
                if want == 0 {
                    return 0;
                }
                let round = self
                    .pager
                    .evictor
                    .reclaim(&mut self.pager.evictor.some_cleaner(), want);
                self.pager.evictor.drain();
                match round {
                    ReclaimOutcome::Freed(count) => count,
                    ReclaimOutcome::Nothing
                    | ReclaimOutcome::Others
                    | ReclaimOutcome::Refused(_) => 0,
                }
            }
        }
    }

    /// Records that the pager threads are running and that they alone have the userfaultfd.
    pub fn threads_run(&self) {
        self.running.store(1, Ordering::Release);
    }

    /// Throttles the faults that the kernel handles by itself from now on. The program's
    /// threads have events with number [`fault_signal`](Self::fault_signal). `code` is the
    /// text of the library that contains the pager.
    ///
    /// # Errors
    /// The kernel's error if the handler cannot be installed.
    pub fn throttle_kernel_faults(&self, code: Range<usize>) -> std::io::Result<()> {
        kernel_faults::install(self.pager, code)
    }

    /// The number of those events.
    pub fn fault_signal() -> u64 {
        kernel_faults::number()
    }

    /// Sets how many faults come with one of the events' signals.
    pub fn set_fault_batch(&self, batch: u32) {
        kernel_faults::set_batch(batch);
    }

    /// The limits of the fault rate.
    pub fn limits(&self) -> rate::SharedLimits<'static> {
        self.pager.faults.throttle.limits()
    }

    /// Unblocks the pager's signals on the calling thread, which was started with them
    /// blocked.
    pub fn unblock_signals() {
        signals::unblock_here();
    }

    /// Returns true if an address is in a stretch.
    pub fn contains(&self, addr: usize) -> bool {
        self.inside(|pager| pager.mm.index.find(addr).is_some())
    }

    /// Discards the contents of `range`: `munmap`, `madvise(MADV_DONTNEED)`.
    pub fn discard(&self, range: Range<usize>) {
        self.change(Change::Discard, &range);
    }

    /// Surrenders `range`, before a mapping that is not the pager's replaces it.
    pub fn surrender(&self, range: Range<usize>) {
        self.change(Change::Surrender, &range);
    }

    fn surrender_inside(&self, pager: &Pager, range: Range<usize>) {
        pager.surrender(range.clone());
        let mut abandoned = false;
        pager.mm.for_each_unit(range, &mut |stretch, _, _| {
            abandoned |= stretch.table().is_abandoned()
        });
        if abandoned {
            self.abandoned.store(true, Ordering::Release);
        }
    }

    /// Changes pages; returns false if one could not be changed. If the caller's stack is
    /// paged, the evictor's thread does it: with gates closed, a fault on that stack could
    /// wait for the thread that it stops.
    fn change(&self, change: Change, range: &Range<usize>) -> bool {
        let here = 0u8;
        let stack = std::ptr::from_ref(&here).addr();
        let command = Command::Change(change, range.start, range.len());
        let failed = match self.contains(stack) {
            true => self.send(command),
            false => self.run_command(command),
        };
        failed == 0
    }

    /// Moves the contents of `from` to `to`, as long, empty, and unknown to the program
    /// until this returns. Nothing is copied.
    pub fn transfer(&self, from: Range<usize>, to: usize) {
        self.send(Command::Transfer(from.start, from.len(), to));
    }

    /// Frames that the process can have at most.
    pub fn most_frames(&self) -> u32 {
        self.pager.frames.client().contract().x
    }

    /// Frames that a program may still lock: those that all processes of its tree leave.
    pub fn lockable_frames(&self) -> u32 {
        let client = self.pager.frames.client();
        client.room_to_nail(crate::FEWEST_FRAMES)
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
            let mut nailed = false;
            for _ in 0..100 {
                if !fault_in(page) {
                    break;
                }
                nailed = self.change(Change::Nail, &one);
                if nailed {
                    break;
                }
            }
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
            if let Some(stretch) = pager.mm.index.find(range.start) {
                stretch.set_odd_access();
            }
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
    pub fn entry(&self, cpu: usize) -> Result<EntryThread, DomainError> {
        Ok(EntryThread(HandlerThread::new(self.pager, cpu)?))
    }

    /// A handler thread's work. Returns when `ended` returns true; called whenever `watch` is
    /// readable.
    pub fn entry_main(
        &self,
        entry: &mut EntryThread,
        watch: Option<BorrowedFd<'_>>,
        ended: &mut dyn FnMut() -> bool,
    ) {
        entry.0.serve(self.pager, watch, ended);
    }

    /// The evictor thread's work: keeps a few frames unused, serves revocations and the
    /// program threads' commands. Never returns.
    pub fn evictor_main(&self) -> ! {
        loop {
            let seq = self.pager.frames.client().bell_seq();
            self.handle_command();
            let careful = self.pager.mm.careful.load(Ordering::Acquire);
            // SAFETY: replaced in the child of a fork only, before this thread runs there.
            let seen = unsafe { *self.careful_seen.get() };
            if careful != seen.load(Ordering::Relaxed) {
                // Any thread that stages holds the lock; the next one to take it sees the new
                // value.
                drop(self.pager.evictor.stager.lock());
                seen.store(careful, Ordering::Release);
                futex::wake_all(seen);
            }
            self.pager.maintain_watermark();
            self.pager.frames.client().wait_bell(seq, Some(IDLE));
        }
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

/// A handler thread's buffers.
pub struct EntryThread(HandlerThread);

/// Charges what memory held before it became paged. Returns an errno if that cannot be read.
fn account_all_resident(pager: &Pager, addr: usize, len: usize) -> u32 {
    let Some(pagemap) = pager.mm.pagemap() else {
        return 0;
    };
    let charged = pagemap.runs_with_contents(addr, len, |run| {
        for page in run.map(|page| addr + page * PAGE) {
            if let Some(stretch) = pager.mm.index.find(page) {
                account_resident(pager, stretch, stretch.table().index(page));
            }
        }
    });
    match charged {
        Ok(()) => 0,
        Err(errno) => {
            pager.log.write(format_args!(
                "pages that were there at {addr:#x} before the pager could not be counted: {errno}"
            ));
            errno.raw_os_error() as u32
        }
    }
}

fn account_resident(pager: &Pager, stretch: &StretchState, index: usize) {
    let word = stretch.table().word(index);
    let seen = word.load();
    if seen.state() != State::Empty {
        return;
    }
    let Ok(frame) = pager.evictor.obtain_frame(State::Resident, false) else {
        return;
    };
    let unit = stretch.table().unit_of(index);
    stretch.table().gate(unit).enter();
    if word.begin_fill(seen) {
        pager
            .standby
            .places
            .set_home(frame.0, stretch.table().address(index));
        word.finish_fill(frame.0);
        stretch.table().add_resident(unit, 1);
        let queue = stretch.table().touch(unit);
        stretch.table().gate(unit).leave();
        if queue {
            pager.standby.queues.note_filled(stretch, unit, true, false);
        }
    } else {
        stretch.table().gate(unit).leave();
        pager.frames.put(frame);
    }
}

/// Restricts what a page of a stretch may be used for.
///
/// # Safety
/// As `mprotect`.
pub unsafe fn set_access(
    range: Range<usize>,
    access: Access,
) -> Result<(), translation::TranslationError> {
    // SAFETY: the caller's promise.
    unsafe { translation::set_access(range.start, range.len(), access) }
}
