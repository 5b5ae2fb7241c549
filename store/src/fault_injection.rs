//! Fault injection for tests: I/O errors, silent corruption and latency.
//!
//! The plan lies in the store's shared memory, so that one counter runs over all processes
//! of a tree and a test can change it while they run.

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
            let kind = match kind {
                "eio" => InjectedFault::Eio,
                "enospc" => InjectedFault::Enospc,
                "flip" => InjectedFault::Flip,
                _ => return None,
            };
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
            let fault = match fault {
                InjectedFault::Eio => "eio",
                InjectedFault::Enospc => "enospc",
                InjectedFault::Flip => "flip",
            };
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
            Some((InjectedFault::Eio, first, count)) => (1, first, count),
            Some((InjectedFault::Enospc, first, count)) => (2, first, count),
            Some((InjectedFault::Flip, first, count)) => (3, first, count),
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
    pub fn next(&self) -> Option<InjectedFault> {
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
        match kind {
            1 if hit => Some(InjectedFault::Eio),
            2 if hit => Some(InjectedFault::Enospc),
            3 if hit => Some(InjectedFault::Flip),
            _ => None,
        }
    }
}
