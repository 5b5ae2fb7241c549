//! Faults that the kernel handles by itself: counted by signals, throttled in their handler.
//!
//! RAPHA (Ko and Yoo), section 4.2, limits every page fault of a task. A launch faults mostly
//! on text and data in files, which userfaultfd does not report. So each thread has a perf
//! event ([`translation::fault_event`]) that sends it a SIGTRAP after every *batch* of faults.
//! The handler counts the batch for the task, together with the faults that the pager handles
//! for it, and past a limit it sleeps until the rest of the batch fits a period.
//!
//! The event also counts faults on paged memory, which the pager has counted already. The
//! address of a batch's last fault decides which kind the batch was: one fault in a batch is a
//! sample, and stands for all. Batches are prime, so that memory of both kinds used in turns
//! is sampled fairly.
//!
//! A batch is counted after its faults were handled. So a thread whose faults are all of this
//! kind has no more than its limit in a period, since the handler leaves room for one batch
//! ([`rate::Limiter::in_batches`]); a thread with both kinds may have a batch more, and all
//! threads together a batch each more than theirs. Faults of a thread after its last whole
//! batch, and faults of a process before its pager runs, are not counted.
//!
//! Rules: the handler sleeps under the program's own mask, so its signals are handled
//! meanwhile, and holds nothing. It does nothing if it interrupted the pager's own code, which
//! may hold a lock. It runs on the thread's own stack: see [`super::signals`].
//! Signals that do not come from these events go to the program's handler.

use super::signals;
use crate::counters::Counter;
use crate::pager::Pager;
use crate::throttle::{ThrottleDecision, ThrottleState};
use rate::thread_counters::ThreadKey;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The handler's state.
struct Traps {
    pager: &'static Pager,
    /// Code in which the handler must not sleep.
    code: Range<usize>,
}

static TRAPS: OnceLock<Traps> = OnceLock::new();

/// Faults in a batch.
static BATCH: AtomicU32 = AtomicU32::new(1);

/// The number that these events' signals carry: an address in this library, which no other
/// event uses.
pub(crate) fn number() -> u64 {
    std::ptr::from_ref(&BATCH) as u64
}

/// Installs the handler. `code` is the text of the pager's library.
pub(crate) fn install(pager: &'static Pager, code: Range<usize>) -> std::io::Result<()> {
    TRAPS.get_or_init(|| Traps { pager, code });
    signals::install(libc::SIGTRAP, on_sigtrap)
}

/// Sets how many faults come with a signal.
pub(crate) fn set_batch(batch: u32) {
    BATCH.store(batch.max(1), Ordering::Release);
}

extern "C-unwind" fn on_sigtrap(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel's own record and context.
    let (code, data, addr, at) = unsafe {
        (
            (*info).si_code,
            translation::fault_event::signal_data(info.cast()),
            (*info).si_addr() as usize,
            interrupted(context),
        )
    };
    if code != libc::TRAP_PERF || data != number() {
        // SAFETY: the kernel's arguments.
        return unsafe { signals::chain(signal, info, context) };
    }
    if let Some(traps) = TRAPS.get()
        && !traps.code.contains(&at)
    {
        traps.count_batch(addr);
    }
}

/// Where a thread was interrupted.
///
/// # Safety
/// `context` is what the kernel passed to a signal handler.
unsafe fn interrupted(context: *const libc::c_void) -> usize {
    let context: *const libc::ucontext_t = context.cast();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's promise.
    unsafe {
        (*context).uc_mcontext.pc as usize
    }
}

impl Traps {
    /// The calling thread has had a batch of faults, the last of them at `addr`. Returns when
    /// all of them fit the limits.
    fn count_batch(&self, addr: usize) {
        // No gate is entered, since a fork may have closed it: stretches of a process are
        // never freed.
        if self.pager.mm.index.find(addr).is_some() {
            return;
        }
        let batch = BATCH.load(Ordering::Acquire);
        let task = ThreadKey::new(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let (log, throttle) = (&self.pager.log, &self.pager.faults.throttle);
        log.add(Counter::kernel_faults, batch.into());
        let mut left = batch;
        while left > 0 {
            let mut state = ThrottleState::default();
            while let ThrottleDecision::RetryAt(until) =
                throttle.check_after(batch, task, &mut state)
            {
                until.sleep(throttle.limits());
            }
            let more = throttle.grant_after(batch, task, left - 1);
            left -= 1 + more;
            if state.was_suspended() {
                log.add(Counter::kernel_paced, u64::from(1 + more));
            }
        }
    }
}
