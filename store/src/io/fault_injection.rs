//! Fault injection for tests: I/O errors, silent corruption and latency.
//!
//! The plan lies in the store's shared memory, so that one counter runs over all processes
//! of a tree and a test can change it while they run.

use super::{IoBackend, IoVec, MAX_OPS};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An injected fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    /// `EIO` without I/O.
    Eio,
    /// `ENOSPC` without I/O.
    Enospc,
    /// A read returns one wrong bit without an error.
    Flip,
}

/// The faults by name, in the order of the enumeration; in the plan's word 0 is none, and 1 is the first.
const FAULTS: [(&str, InjectedFault); 3] = [
    ("eio", InjectedFault::Eio),
    ("enospc", InjectedFault::Enospc),
    ("flip", InjectedFault::Flip),
];

/// The I/Os that fail. The default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// The fault, the number of the first I/O it hits (from 0, over all processes), and the number
    /// of hits.
    pub fail: Option<(InjectedFault, u64, u64)>,
    /// Additional latency of every I/O.
    pub slow: Option<Duration>,
}

impl FaultPlan {
    /// Parses `fail=eio@1000`, `fail=flip@5x2` (two of them) or `slow=200us`; returns false for
    /// anything else.
    pub(crate) fn parse_option(&mut self, text: &str) -> bool {
        self.try_parse(text).is_some()
    }

    fn try_parse(&mut self, text: &str) -> Option<()> {
        if let Some(text) = text.strip_prefix("fail=") {
            let (kind, when) = text.split_once('@')?;
            let (_, kind) = FAULTS.into_iter().find(|(name, _)| *name == kind)?;
            let (first, count) = match when.split_once('x') {
                Some((first, count)) => (first, count.parse().ok()?),
                None => (when, u64::MAX),
            };
            self.fail = Some((kind, first.parse().ok()?, count));
        } else {
            let text = text.strip_prefix("slow=")?.strip_suffix("us")?;
            self.slow = Some(Duration::from_micros(text.parse().ok()?));
        }
        Some(())
    }
}

impl std::fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((fault, first, count)) = self.fail {
            let (fault, _) = FAULTS[fault as usize];
            write!(f, ",fail={fault}@{first}")?;
            if count != u64::MAX {
                write!(f, "x{count}")?;
            }
        }
        if let Some(slow) = self.slow {
            write!(f, ",slow={}us", slow.as_micros())?;
        }
        Ok(())
    }
}

/// The plan in shared memory: five words.
pub(crate) struct Injector<'a>(pub &'a [AtomicU64]);

/// Words of a plan.
pub(crate) const WORDS: usize = 5;
const KIND: usize = 0;
const FIRST: usize = 1;
const COUNT: usize = 2;
const SLOW: usize = 3;
const DONE: usize = 4;

impl Injector<'_> {
    /// Replaces the plan and restarts the I/O count at 0.
    pub fn set(&self, plan: FaultPlan) {
        let (kind, first, count) = match plan.fail {
            None => (0, 0, 0),
            Some((fault, first, count)) => (fault as u64 + 1, first, count),
        };
        self.0[KIND].store(0, Ordering::SeqCst);
        self.0[FIRST].store(first, Ordering::SeqCst);
        self.0[COUNT].store(count, Ordering::SeqCst);
        self.0[DONE].store(0, Ordering::SeqCst);
        let slow = plan.slow.map_or(0, |slow| slow.as_micros() as u64);
        self.0[SLOW].store(slow, Ordering::SeqCst);
        self.0[KIND].store(kind, Ordering::SeqCst);
    }

    /// The fault for the present I/O. Without a plan: one load of a shared word.
    fn next(&self) -> Option<InjectedFault> {
        let slow = self.0[SLOW].load(Ordering::Relaxed);
        let kind = self.0[KIND].load(Ordering::Relaxed);
        if slow == 0 && kind == 0 {
            return None;
        }
        if slow != 0 {
            crate::backoff::sleep(Duration::from_micros(slow));
        }
        let number = self.0[DONE].fetch_add(1, Ordering::Relaxed);
        let first = self.0[FIRST].load(Ordering::Relaxed);
        let hit = number >= first && number - first < self.0[COUNT].load(Ordering::Relaxed);
        let fault = FAULTS.get((kind as usize).wrapping_sub(1)).filter(|_| hit);
        fault.map(|(_, fault)| *fault)
    }
}

/// A backend some of whose operations fail, by the plan.
pub(crate) struct FaultInjection<B> {
    backend: B,
    plan: &'static [AtomicU64],
    /// Where the data of an operation will be corrupted; null for most.
    flips: [*mut u8; MAX_OPS],
}

// SAFETY: a pointer is used when its operation completes, and its memory is the channel's until
// then.
unsafe impl<B: Send> Send for FaultInjection<B> {}

impl<B> FaultInjection<B> {
    pub fn new(backend: B, plan: &'static [AtomicU64]) -> Self {
        Self {
            backend,
            plan,
            flips: [std::ptr::null_mut(); MAX_OPS],
        }
    }

    /// Corrupts what a completed operation read, if that is planned.
    fn corrupt(&mut self, op: usize, result: i32) {
        let memory = std::mem::replace(&mut self.flips[op], std::ptr::null_mut());
        if !memory.is_null() && result > 0 {
            // SAFETY: a page of the operation's memory; the operation is complete.
            unsafe { *memory ^= 1 };
        }
    }
}

impl<B: IoBackend> IoBackend for FaultInjection<B> {
    unsafe fn begin(
        &mut self,
        op: usize,
        write: bool,
        pieces: &mut [IoVec],
        offset: u64,
    ) -> Option<i32> {
        match Injector(self.plan).next() {
            Some(InjectedFault::Eio) => return Some(-Errno::IO.raw_os_error()),
            Some(InjectedFault::Enospc) => return Some(-Errno::NOSPC.raw_os_error()),
            Some(InjectedFault::Flip) if !write => self.flips[op] = pieces[0].start,
            Some(InjectedFault::Flip) | None => {}
        }
        // SAFETY: the caller's promise.
        let result = unsafe { self.backend.begin(op, write, pieces, offset) };
        if let Some(result) = result {
            self.corrupt(op, result);
        }
        result
    }

    fn set_waiter(&mut self, thread: u32) {
        self.backend.set_waiter(thread);
    }

    fn submit(&mut self) {
        self.backend.submit();
    }

    fn reap(&mut self, wait: bool) -> Option<(usize, i32)> {
        let (op, result) = self.backend.reap(wait)?;
        self.corrupt(op, result);
        Some((op, result))
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.backend.poll_fd()
    }

    fn may_poll(&self) -> bool {
        self.backend.may_poll()
    }

    fn close(&mut self) {
        self.backend.close();
    }
}
