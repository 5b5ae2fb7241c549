//! Selection of the handler threads that wait for faults; the others idle.
//!
//! A fault should be served on the processor that took it: there, no idle processor has to be
//! woken (9 us against 40 us a fault, measured by `examples/latency`). But every fault wakes
//! all handlers that wait on the userfaultfd, and they race to read it; a distant one may win.
//! So only those handlers wait on whose processors program threads run; the others *doze* until
//! they are called.
//!
//! The pager's host may know where a thread runs
//! ([`Hooks::processor_of`](crate::Hooks::processor_of)). Otherwise the kernel reports it in
//! the thread's stat file, which takes 15 us, and a handler reads one in [`LOOK`] of the faults
//! it serves:
//! - The thread runs here: handlers that served nothing in [`LOOK`] faults are rung, and
//!   doze.
//! - It runs elsewhere: the handler of that processor is called, and this one dozes after
//!   [`ELSEWHERE`] such answers in a row, or at once if it is known that the thread it served
//!   moved there.
//!
//! The scheduler moves a thread that a handler wakes to a processor that is idle, once in 20 to
//! 100 faults. A move costs a few remote faults if the processor is known, and some twenty if
//! it is looked up: 8.7 us an access instead of 9.3 (`selfpage bench paging --arms run-ram
//! --passes random-read`, the other with `GLIBC_TUNABLES=glibc.pthread.rseq=0`).
//!
//! (The time that the handler slept would be a cheaper indication, but is wrong too often if
//! several threads fault: half of the gain was lost.)
//!
//! At least one handler is always awake, and a handler that is about to wait for a device calls
//! all. Without stat files no handler dozes.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;
use wired::futex;

/// Faults from one check to the next.
const LOOK: u32 = 16;

/// Faults from the end of a doze to the first check.
const SOON: u32 = 4;

/// Consecutive answers that name another processor, after which a handler is of no use on its
/// own.
const ELSEWHERE: u32 = 4;

/// Longest doze.
const LONGEST: Duration = Duration::from_millis(100);

/// Handlers in the table.
const SLOTS: usize = 64;

/// What the other handlers know of a handler.
struct HandlerSlot {
    /// Doorbell that makes it doze; -1 if there is no handler, or it dozes already.
    bell: AtomicI32,
    /// Its processor.
    cpu: AtomicU32,
    /// Faults it served.
    served: AtomicU32,
    /// Counts calls: the futex word that it sleeps on while it dozes.
    calls: AtomicU32,
}

/// The handlers of a pager.
pub(crate) struct HandlerSet {
    awake: AtomicU32,
    dozing: AtomicU32,
    slots: [HandlerSlot; SLOTS],
}

impl Default for HandlerSet {
    fn default() -> Self {
        Self {
            awake: AtomicU32::new(0),
            dozing: AtomicU32::new(0),
            slots: std::array::from_fn(|_| HandlerSlot {
                bell: AtomicI32::new(-1),
                cpu: AtomicU32::new(u32::MAX),
                served: AtomicU32::new(0),
                calls: AtomicU32::new(0),
            }),
        }
    }
}

impl HandlerSlot {
    fn wake(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.calls);
    }
}

impl HandlerSet {
    /// Clears the table in the child of a fork.
    pub(crate) fn clear(&self) {
        self.awake.store(0, Ordering::SeqCst);
        self.dozing.store(0, Ordering::SeqCst);
        for slot in &self.slots {
            slot.bell.store(-1, Ordering::SeqCst);
            slot.cpu.store(u32::MAX, Ordering::SeqCst);
        }
    }

    /// Returns true if no handler thread serves the pager's faults: upcalls do.
    pub(crate) fn is_empty(&self) -> bool {
        self.awake.load(Ordering::Relaxed) + self.dozing.load(Ordering::Relaxed) == 0
    }

    /// Wakes the dozing handlers: the caller may not be back soon.
    pub(crate) fn wake(&self) {
        if self.dozing.load(Ordering::SeqCst) > 0 {
            self.slots.iter().for_each(HandlerSlot::wake);
        }
    }

    /// Wakes the handler of a processor, if it dozes. Returns true if there is one.
    fn wake_on_cpu(&self, cpu: u32) -> bool {
        let slot = self
            .slots
            .iter()
            .find(|slot| slot.cpu.load(Ordering::Relaxed) == cpu);
        if let Some(slot) = slot
            && slot.bell.load(Ordering::SeqCst) < 0
        {
            slot.wake();
        }
        slot.is_some()
    }
}

/// One handler's own state.
pub(crate) struct IdleState {
    bell: OwnedFd,
    cpu: u32,
    slot: Option<usize>,
    /// Faults served since the last check.
    since: u32,
    elsewhere: u32,
    /// The thread that faulted here last.
    here: u32,
    /// The stat file of the thread looked at last.
    stat: Option<(u32, OwnedFd)>,
    /// What the others had served at this handler's last check.
    seen: [u32; SLOTS],
}

impl IdleState {
    /// Ends it, and leaves its descriptors open.
    pub(crate) fn forget_descriptors(self) {
        let stat = self.stat.map(|(_, stat)| stat);
        [Some(self.bell), stat]
            .into_iter()
            .flatten()
            .for_each(std::mem::forget);
    }

    /// For a handler on this processor that does not wait yet. Opens a descriptor.
    pub(crate) fn new(cpu: usize) -> rustix::io::Result<Self> {
        Ok(Self {
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            cpu: cpu as u32,
            slot: None,
            since: 0,
            elsewhere: 0,
            here: 0,
            stat: None,
            seen: [0; SLOTS],
        })
    }

    /// The handler begins to wait for faults.
    pub(crate) fn enter(&mut self, handlers: &HandlerSet) {
        handlers.awake.fetch_add(1, Ordering::SeqCst);
        let bell = self.bell.as_raw_fd();
        self.slot = handlers.slots.iter().position(|slot| {
            let free =
                slot.cpu
                    .compare_exchange(u32::MAX, self.cpu, Ordering::SeqCst, Ordering::Relaxed);
            free.is_ok()
        });
        if let Some(slot) = self.slot {
            handlers.slots[slot].bell.store(bell, Ordering::SeqCst);
        }
    }

    /// The handler ends.
    pub(crate) fn exit(&mut self, handlers: &HandlerSet) {
        if let Some(slot) = self.slot.take() {
            handlers.slots[slot].bell.store(-1, Ordering::SeqCst);
            handlers.slots[slot].cpu.store(u32::MAX, Ordering::SeqCst);
        }
        handlers.awake.fetch_sub(1, Ordering::SeqCst);
    }

    /// Readable if the handler should doze.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Records that the handler serves a fault of a thread, which runs on processor `known`, if
    /// that is known.
    pub(crate) fn note_served(&mut self, handlers: &HandlerSet, thread: u32, known: Option<u32>) {
        let Some(mine) = self.slot else { return };
        handlers.slots[mine].served.fetch_add(1, Ordering::Relaxed);
        self.since += 1;
        let looks = self.since >= LOOK;
        if looks {
            self.since = 0;
        }
        let cpu = match known {
            None if looks => self.processor_of(thread),
            known => known,
        };
        match cpu {
            Some(cpu) if cpu == self.cpu => {
                self.elsewhere = 0;
                self.here = thread;
                if looks {
                    self.look_after(handlers, mine);
                }
            }
            Some(cpu) if handlers.wake_on_cpu(cpu) => {
                self.elsewhere += 1;
                let moved = known.is_some() && self.here == thread;
                if moved || self.elsewhere >= ELSEWHERE {
                    self.elsewhere = 0;
                    ring(&handlers.slots[mine]);
                }
            }
            _ => {}
        }
    }

    /// Makes handlers doze that served nothing since the last check.
    fn look_after(&mut self, handlers: &HandlerSet, mine: usize) {
        for (at, slot) in handlers.slots.iter().enumerate() {
            if at == mine || slot.bell.load(Ordering::SeqCst) < 0 {
                continue;
            }
            let served = slot.served.load(Ordering::Relaxed);
            if served == std::mem::replace(&mut self.seen[at], served) {
                ring(slot);
            }
        }
    }

    /// The processor on which a thread of this process runs, or last ran.
    fn processor_of(&mut self, thread: u32) -> Option<u32> {
        if self.stat.as_ref().is_none_or(|(of, _)| *of != thread) {
            self.stat = Some((thread, open_stat(thread)?));
        }
        let (_, stat) = self.stat.as_ref()?;
        let mut text = [0; 1024];
        let read = rustix::io::pread(stat, &mut text[..], 0);
        let found = read.ok().and_then(|len| processor_in(&text[..len]));
        if found.is_none() {
            // The thread has exited; its number may be reused.
            self.stat = None;
        }
        found
    }

    /// The bell was rung. The handler has nothing under way: it dozes for at most `limit`,
    /// unless it is the last one awake.
    pub(crate) fn idle(&mut self, handlers: &HandlerSet, limit: Option<Duration>) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        let Some(mine) = self.slot else { return };
        let slot = &handlers.slots[mine];
        let calls = slot.calls.load(Ordering::SeqCst);
        let others = |awake: u32| (awake > 1).then(|| awake - 1);
        let left = handlers
            .awake
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, others);
        if left.is_ok() {
            handlers.dozing.fetch_add(1, Ordering::SeqCst);
            let limit = limit.map_or(LONGEST, |limit| limit.min(LONGEST));
            futex::wait(&slot.calls, calls, Some(limit));
            handlers.dozing.fetch_sub(1, Ordering::SeqCst);
            handlers.awake.fetch_add(1, Ordering::SeqCst);
            // A handler that was of use until now may no longer be.
            self.since = LOOK - SOON;
            for (seen, slot) in self.seen.iter_mut().zip(&handlers.slots) {
                *seen = slot.served.load(Ordering::Relaxed);
            }
        }
        slot.bell.store(self.bell.as_raw_fd(), Ordering::SeqCst);
    }
}

/// Makes a handler doze, once.
fn ring(slot: &HandlerSlot) {
    let bell = slot.bell.swap(-1, Ordering::SeqCst);
    if bell >= 0 {
        // SAFETY: the descriptor of a handler of this table, which outlives its slot.
        let bell = unsafe { BorrowedFd::borrow_raw(bell) };
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

/// Opens a thread's stat file, without allocating.
fn open_stat(thread: u32) -> Option<OwnedFd> {
    const BEFORE: &[u8] = b"/proc/self/task/";
    const AFTER: &[u8] = b"/stat\0";
    let mut digits = [0; 10];
    let mut first = digits.len();
    let mut rest = thread;
    while rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut path = [0; 40];
    let mut len = 0;
    for part in [BEFORE, &digits[first..], AFTER] {
        path[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    let path = std::ffi::CStr::from_bytes_with_nul(&path[..len]).ok()?;
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The processor in the text of a stat file: field 39, counted after the name, which may
/// contain any bytes.
fn processor_in(text: &[u8]) -> Option<u32> {
    let after = text.len() - text.iter().rev().position(|b| *b == b')')?;
    let mut fields = text[after..].split(|b| *b == b' ').skip(1);
    let processor = fields.nth(36)?;
    std::str::from_utf8(processor).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(idle: &IdleState) -> bool {
        rustix::io::read(&idle.bell, &mut [0; 8]).is_ok()
    }

    #[test]
    fn the_processor_of_a_thread_is_found() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let here = rustix::thread::sched_getaffinity(None).unwrap();
        let mut one = IdleState::new(0).unwrap();
        for _ in 0..3 {
            let cpu = one.processor_of(thread).unwrap();
            assert!(here.is_set(cpu as usize));
        }
        assert_eq!(one.processor_of(u32::MAX / 3), None);
        assert_eq!(processor_in(b"1 (a) b) S 1 2"), None);
    }

    #[test]
    fn a_handler_that_serves_nothing_dozes_and_the_last_stays() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut cpus = rustix::thread::CpuSet::new();
        let here = rustix::thread::sched_getcpu();
        cpus.set(here);
        rustix::thread::sched_setaffinity(None, &cpus).unwrap();
        let handlers = HandlerSet::default();
        let (mut one, mut other) = (
            IdleState::new(here).unwrap(),
            IdleState::new(here + 1).unwrap(),
        );
        one.enter(&handlers);
        other.enter(&handlers);
        for _ in 0..4 * LOOK {
            one.note_served(&handlers, thread, None);
        }
        assert!(rung(&other) && !rung(&one));
        // The handler is called when it is needed, and then the one elsewhere gets a ring to doze.
        std::thread::scope(|scope| {
            let dozer = scope.spawn(|| other.idle(&handlers, None));
            while handlers.dozing.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            handlers.wake();
            dozer.join().unwrap();
        });
        for _ in 0..ELSEWHERE * LOOK {
            other.note_served(&handlers, thread, None);
        }
        assert!(rung(&other), "its threads are all elsewhere");
        other.exit(&handlers);
        // The only handler does not doze even if its doorbell rings.
        one.idle(&handlers, None);
        assert_eq!(handlers.awake.load(Ordering::SeqCst), 1);
    }
}
