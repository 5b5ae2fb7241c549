//! Selection of the entry threads that wait for faults; the others idle.
//!
//! A fault should be served on the processor that took it: there, no idle processor has to be
//! woken (9 us against 40 us a fault, measured by `examples/latency`). But every fault wakes
//! all entries that wait on the userfaultfd, and they race to read it; a distant one may win.
//! So only those entries wait on whose processors program threads run; the others *doze* until
//! they are called.
//!
//! The pager's host may know where a thread runs
//! ([`Hooks::processor_of`](crate::Hooks::processor_of)). Otherwise the kernel reports it in
//! the thread's stat file, which takes 15 us, and an entry reads one in [`LOOK`] of the faults
//! it serves:
//! - The thread runs here: entries that served nothing in [`LOOK`] faults are rung, and
//!   doze.
//! - It runs elsewhere: the entry of that processor is called, and this one dozes after
//!   [`ELSEWHERE`] such answers in a row, or at once if it is known that the thread it served
//!   moved there.
//!
//! The scheduler moves a thread that an entry wakes to a processor that is idle, once in 20 to
//! 100 faults. A move costs a few remote faults if the processor is known, and some twenty if
//! it is looked up: 8.7 us an access instead of 9.3 (`selfpage bench paging --arms run-ram
//! --passes random-read`, the other with `GLIBC_TUNABLES=glibc.pthread.rseq=0`).
//!
//! (The time that the entry slept would be a cheaper indication, but is wrong too often if
//! several threads fault: half of the gain was lost.)
//!
//! At least one entry is always awake, and an entry that is about to wait for a device calls
//! all. Without stat files no entry dozes.

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

/// Consecutive answers that name another processor, after which an entry is of no use on its
/// own.
const ELSEWHERE: u32 = 4;

/// Longest doze.
const LONGEST: Duration = Duration::from_millis(100);

/// Entries in the table.
const SEATS: usize = 64;

/// What the other entries know of an entry.
struct Seat {
    /// Doorbell that makes it doze; -1 if there is no entry, or it dozes already.
    bell: AtomicI32,
    /// Its processor.
    cpu: AtomicU32,
    /// Faults it served.
    served: AtomicU32,
    /// Counts calls: the futex word that it sleeps on while it dozes.
    calls: AtomicU32,
}

/// The entries of a pager.
pub(crate) struct Entries {
    awake: AtomicU32,
    dozing: AtomicU32,
    seats: [Seat; SEATS],
}

impl Default for Entries {
    fn default() -> Self {
        Self {
            awake: AtomicU32::new(0),
            dozing: AtomicU32::new(0),
            seats: std::array::from_fn(|_| Seat {
                bell: AtomicI32::new(-1),
                cpu: AtomicU32::new(u32::MAX),
                served: AtomicU32::new(0),
                calls: AtomicU32::new(0),
            }),
        }
    }
}

impl Seat {
    fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.calls);
    }
}

impl Entries {
    /// Clears the table in the child of a fork.
    pub(crate) fn forget(&self) {
        self.awake.store(0, Ordering::SeqCst);
        self.dozing.store(0, Ordering::SeqCst);
        for seat in &self.seats {
            seat.bell.store(-1, Ordering::SeqCst);
            seat.cpu.store(u32::MAX, Ordering::SeqCst);
        }
    }

    /// Wakes the dozing entries: the caller may not be back soon.
    pub(crate) fn call(&self) {
        if self.dozing.load(Ordering::SeqCst) > 0 {
            self.seats.iter().for_each(Seat::call);
        }
    }

    /// Wakes the entry of a processor, if it dozes. Returns true if there is one.
    fn call_to(&self, cpu: u32) -> bool {
        let seat = self
            .seats
            .iter()
            .find(|seat| seat.cpu.load(Ordering::Relaxed) == cpu);
        if let Some(seat) = seat
            && seat.bell.load(Ordering::SeqCst) < 0
        {
            seat.call();
        }
        seat.is_some()
    }
}

/// One entry's own state.
pub(crate) struct Alertness {
    bell: OwnedFd,
    cpu: u32,
    seat: Option<usize>,
    /// Faults served since the last check.
    since: u32,
    elsewhere: u32,
    /// The thread that faulted here last.
    here: u32,
    /// The stat file of the thread looked at last.
    stat: Option<(u32, OwnedFd)>,
    /// What the others had served at this entry's last check.
    seen: [u32; SEATS],
}

impl Alertness {
    /// For an entry on this processor that does not wait yet. Opens a descriptor.
    pub(crate) fn new(cpu: usize) -> rustix::io::Result<Self> {
        Ok(Self {
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            cpu: cpu as u32,
            seat: None,
            since: 0,
            elsewhere: 0,
            here: 0,
            stat: None,
            seen: [0; SEATS],
        })
    }

    /// The entry begins to wait for faults.
    pub(crate) fn come(&mut self, entries: &Entries) {
        entries.awake.fetch_add(1, Ordering::SeqCst);
        let bell = self.bell.as_raw_fd();
        self.seat = entries.seats.iter().position(|seat| {
            let free =
                seat.cpu
                    .compare_exchange(u32::MAX, self.cpu, Ordering::SeqCst, Ordering::Relaxed);
            free.is_ok()
        });
        if let Some(seat) = self.seat {
            entries.seats[seat].bell.store(bell, Ordering::SeqCst);
        }
    }

    /// The entry ends.
    pub(crate) fn go(&mut self, entries: &Entries) {
        if let Some(seat) = self.seat.take() {
            entries.seats[seat].bell.store(-1, Ordering::SeqCst);
            entries.seats[seat].cpu.store(u32::MAX, Ordering::SeqCst);
        }
        entries.awake.fetch_sub(1, Ordering::SeqCst);
    }

    /// Readable if the entry should doze.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Records that the entry serves a fault of a thread, which runs on processor `known`, if
    /// that is known.
    pub(crate) fn serves(&mut self, entries: &Entries, thread: u32, known: Option<u32>) {
        let Some(mine) = self.seat else { return };
        entries.seats[mine].served.fetch_add(1, Ordering::Relaxed);
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
                    self.look_after(entries, mine);
                }
            }
            Some(cpu) if entries.call_to(cpu) => {
                self.elsewhere += 1;
                let moved = known.is_some() && self.here == thread;
                if moved || self.elsewhere >= ELSEWHERE {
                    self.elsewhere = 0;
                    ring(&entries.seats[mine]);
                }
            }
            _ => {}
        }
    }

    /// Makes entries doze that served nothing since the last check.
    fn look_after(&mut self, entries: &Entries, mine: usize) {
        for (at, seat) in entries.seats.iter().enumerate() {
            if at == mine || seat.bell.load(Ordering::SeqCst) < 0 {
                continue;
            }
            let served = seat.served.load(Ordering::Relaxed);
            if served == std::mem::replace(&mut self.seen[at], served) {
                ring(seat);
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

    /// The bell was rung. The entry has nothing under way: it dozes for at most `limit`,
    /// unless it is the last one awake.
    pub(crate) fn doze(&mut self, entries: &Entries, limit: Option<Duration>) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        let Some(mine) = self.seat else { return };
        let seat = &entries.seats[mine];
        let calls = seat.calls.load(Ordering::SeqCst);
        let others = |awake: u32| (awake > 1).then(|| awake - 1);
        let left = entries
            .awake
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, others);
        if left.is_ok() {
            entries.dozing.fetch_add(1, Ordering::SeqCst);
            let limit = limit.map_or(LONGEST, |limit| limit.min(LONGEST));
            futex::wait(&seat.calls, calls, Some(limit));
            entries.dozing.fetch_sub(1, Ordering::SeqCst);
            entries.awake.fetch_add(1, Ordering::SeqCst);
            // An entry that was of use until now may no longer be.
            self.since = LOOK - SOON;
            for (seen, seat) in self.seen.iter_mut().zip(&entries.seats) {
                *seen = seat.served.load(Ordering::Relaxed);
            }
        }
        seat.bell.store(self.bell.as_raw_fd(), Ordering::SeqCst);
    }
}

/// Makes an entry doze, once.
fn ring(seat: &Seat) {
    let bell = seat.bell.swap(-1, Ordering::SeqCst);
    if bell >= 0 {
        // SAFETY: the descriptor of an entry of this table, which outlives its seat.
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

    fn rung(alertness: &Alertness) -> bool {
        rustix::io::read(&alertness.bell, &mut [0; 8]).is_ok()
    }

    #[test]
    fn the_processor_of_a_thread_is_found() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let here = rustix::thread::sched_getaffinity(None).unwrap();
        let mut one = Alertness::new(0).unwrap();
        for _ in 0..3 {
            let cpu = one.processor_of(thread).unwrap();
            assert!(here.is_set(cpu as usize));
        }
        assert_eq!(one.processor_of(u32::MAX / 3), None);
        assert_eq!(processor_in(b"1 (a) b) S 1 2"), None);
    }

    #[test]
    fn an_entry_that_serves_nothing_dozes_and_the_last_stays() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut cpus = rustix::thread::CpuSet::new();
        let here = rustix::thread::sched_getcpu();
        cpus.set(here);
        rustix::thread::sched_setaffinity(None, &cpus).unwrap();
        let entries = Entries::default();
        let (mut one, mut other) = (
            Alertness::new(here).unwrap(),
            Alertness::new(here + 1).unwrap(),
        );
        one.come(&entries);
        other.come(&entries);
        for _ in 0..4 * LOOK {
            one.serves(&entries, thread, None);
        }
        assert!(rung(&other) && !rung(&one));
        // The entry is called when it is needed, and then the one elsewhere gets a ring to doze.
        std::thread::scope(|scope| {
            let dozer = scope.spawn(|| other.doze(&entries, None));
            while entries.dozing.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            entries.call();
            dozer.join().unwrap();
        });
        for _ in 0..ELSEWHERE * LOOK {
            other.serves(&entries, thread, None);
        }
        assert!(rung(&other), "its threads are all elsewhere");
        other.go(&entries);
        // The only entry does not doze even if its doorbell rings.
        one.doze(&entries, None);
        assert_eq!(entries.awake.load(Ordering::SeqCst), 1);
    }
}
