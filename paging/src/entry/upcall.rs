//! Faults as upcalls: SIGBUS on the faulting thread is the activation.
//!
//! `UFFD_FEATURE_SIGBUS` makes the kernel deliver a fault on a registered missing page as a
//! synchronous SIGBUS. Its code does not distinguish it from others (`BUS_ADRERR`, as for a
//! file's end), so the address decides whether a fault is the pager's; every other SIGBUS and
//! SIGSEGV goes to the handler that was installed before.
//!
//! Rules: the handler allocates nothing, touches no stretch and no thread-local storage, and
//! can be nested (a program's own handler may fault in its turn).

use super::{registry, signals};
use crate::counters::Counter;
use crate::pager::Pager;
use crate::resolve::{PageFault, Resolution, Waiter};
use crate::stretch::{Fault, FaultKind, Handled, Handler, RegionFault, StretchState};
use crate::throttle::{Delay, ThrottleDecision, ThrottleState};
use rate::thread_counters::ThreadKey;
use rate::{SharedLimits, TimeNs};

/// Result of dispatching a signal.
enum Dispatch {
    /// Repeat the access.
    Resume,
    /// The address is in no stretch of this domain.
    NotOurs,
    /// Forward the signal to the program's handler.
    Forward,
    /// Call the program's own handler, outside all gates: it may jump away.
    Call(&'static Handler, FaultKind),
    /// The thread, or the system, is past its limit: sleep outside all gates, under the
    /// program's own mask, and retry.
    Sleep(Delay, SharedLimits<'static>),
}

/// An access that faulted, from its signal to its resolution.
struct FaultAccess {
    addr: usize,
    write: bool,
    /// True if the program's own handlers have not been called yet.
    own_handlers: bool,
    /// How many domains' handlers of unallocated addresses have been called.
    asked: usize,
    /// How many of these are still to be passed over.
    skipped: usize,
    /// True if it has been counted.
    counted: bool,
    /// True if it has passed the limits.
    passed: bool,
    state: ThrottleState,
    /// The thread's time at its start, if that is measured.
    sample: Option<TimeNs>,
}

impl FaultAccess {
    fn new(addr: usize, write: bool) -> Self {
        Self {
            addr,
            write,
            own_handlers: true,
            asked: 0,
            skipped: 0,
            counted: false,
            passed: false,
            state: ThrottleState::default(),
            sample: None,
        }
    }
}

pub(super) extern "C-unwind" fn on_sigbus(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the arguments are the kernel's own.
    unsafe { dispatch(signal, info, context, FaultAccess::upcall) };
}

pub(super) extern "C-unwind" fn on_sigsegv(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the arguments are the kernel's own.
    unsafe { dispatch(signal, info, context, FaultAccess::violation) };
}

/// # Safety
/// The arguments are what the kernel passes to a handler with SA_SIGINFO.
unsafe fn dispatch(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    resolve: fn(&mut FaultAccess, &Pager) -> Dispatch,
) {
    // SAFETY: the caller's promise.
    let (code, addr, error) = unsafe {
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            error_code(context),
        )
    };
    let (write, execute) = (error & WRITE != 0, error & FETCH != 0);
    // A signal sent by `kill` or `sigqueue` has no fault address.
    if code > 0 {
        let mut access = FaultAccess::new(addr, write);
        loop {
            let mut resolved = resolve_in_domains(&mut access, resolve);
            if matches!(resolved, Dispatch::NotOurs) && signal == libc::SIGSEGV {
                access.skipped = access.asked;
                resolved = resolve_in_domains(&mut access, FaultAccess::unallocated);
            }
            match resolved {
                Dispatch::Resume => return,
                Dispatch::NotOurs => {
                    let fault = RegionFault {
                        addr,
                        write,
                        execute,
                        no_page: signal == libc::SIGBUS && code == libc::BUS_ADRERR,
                    };
                    if registry::resolve_region(&fault) {
                        return;
                    }
                    break;
                }
                Dispatch::Forward => break,
                Dispatch::Call(handler, kind) => {
                    let call = || handler(&Fault { kind, addr, write });
                    // SAFETY: the caller's promise.
                    if unsafe { signals::with_program_mask(context, 0, call) } == Handled::Resume {
                        return;
                    }
                    match kind {
                        FaultKind::Unallocated => access.asked += 1,
                        _ => access.own_handlers = false,
                    }
                }
                Dispatch::Sleep(delay, limits) => {
                    let sleep = || delay.sleep(limits);
                    // SAFETY: the caller's promise.
                    unsafe { signals::with_program_mask(context, 0, sleep) };
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { signals::chain(signal, info, context) };
}

/// Tries each domain in turn.
fn resolve_in_domains(
    access: &mut FaultAccess,
    resolve: fn(&mut FaultAccess, &Pager) -> Dispatch,
) -> Dispatch {
    let resolved = registry::find_map(|pager| match resolve(access, pager) {
        Dispatch::NotOurs => None,
        dispatch => Some(dispatch),
    });
    resolved.unwrap_or(Dispatch::NotOurs)
}

/// Bits of the processor's page-fault error code: the access was a write, an instruction fetch.
const WRITE: i64 = 1 << 1;
const FETCH: i64 = 1 << 4;

/// The processor's error code of the access that faulted.
///
/// # Safety
/// `context` is what the kernel passed to a signal handler.
unsafe fn error_code(context: *mut libc::c_void) -> i64 {
    let context: *const libc::ucontext_t = context.cast();
    // SAFETY: the caller's promise.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] }
}

/// A number that differs between threads: their stacks do.
pub(crate) fn thread_hint() -> usize {
    let here = 0u8;
    let at = std::ptr::from_ref(&here).addr() >> 14;
    at ^ (at >> 7)
}

/// The calling thread as the limits know it: by the address of its control block, which is
/// at hand for one instruction, where its number would take a system call. Two threads of one
/// number share a limit.
fn task_here() -> ThreadKey {
    let block: usize;
    // SAFETY: the first word of a thread control block is its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) block, options(nostack, readonly, preserves_flags))
    };
    let mixed = (block as u64 >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ThreadKey::new((mixed >> 40) as u32)
}

impl FaultAccess {
    /// A fault on a missing page.
    fn upcall(&mut self, pager: &Pager) -> Dispatch {
        let addr = self.addr;
        let hint = thread_hint();
        let task = task_here();
        let mut fault = PageFault {
            addr,
            write: self.write,
            whole: true,
            task: Some(task),
            ..PageFault::default()
        };
        let mut predicted = false;
        let resolved = fault.resolve(pager, &mut Waiter::Thread(hint), |fault| {
            let stretch = pager.mm.index.find(addr).ok_or(Dispatch::NotOurs)?;
            self.count_and_throttle(pager, stretch, task)?;
            if !std::mem::replace(&mut predicted, true) {
                let streams = &pager.faults.streams;
                let widest = pager.widest_window();
                fault.prediction = streams.predict(stretch, hint, addr, widest);
                fault.in_order = streams.in_order(stretch, hint, addr);
            }
            Ok(stretch)
        });
        match resolved {
            Err(dispatch) => return dispatch,
            Ok(Resolution::Failed(failure)) => {
                // The gate may have closed since the attempt.
                let _inside = pager.mm.gate.enter(hint);
                pager.log_failure(addr, &failure);
                return Dispatch::Forward;
            }
            Ok(Resolution::Mapped) => {
                if let Some(begin) = self.sample {
                    let throttle = &pager.faults.throttle;
                    throttle.sample(fault.handled, throttle.used_since(begin));
                }
            }
            Ok(Resolution::PutBack | Resolution::Reading | Resolution::Deferred) => {}
        }
        Dispatch::Resume
    }

    /// Passes the access, once, to the counters, the program's own handler and the limits.
    fn count_and_throttle(
        &mut self,
        pager: &Pager,
        stretch: &StretchState,
        task: ThreadKey,
    ) -> Result<(), Dispatch> {
        if !std::mem::replace(&mut self.counted, true) {
            pager.log.add(Counter::Faults, 1);
        }
        if self.own_handlers
            && let Some(handler) = stretch.handler(FaultKind::Page)
        {
            return Err(Dispatch::Call(handler, FaultKind::Page));
        }
        if self.passed {
            return Ok(());
        }
        let throttle = &pager.faults.throttle;
        let decision = throttle.check(task, &mut self.state);
        if throttle.calls_swapper() {
            pager.frames.wake_evictor();
        }
        match decision {
            ThrottleDecision::Proceed(now) => self.sample = throttle.begin_sample(now),
            ThrottleDecision::RetryAt(delay) => {
                return Err(Dispatch::Sleep(delay, throttle.limits()));
            }
            ThrottleDecision::Stale => return Err(Dispatch::Resume),
        }
        self.passed = true;
        Ok(())
    }

    /// A protection fault.
    fn violation(&mut self, pager: &Pager) -> Dispatch {
        let _inside = pager.mm.gate.enter(thread_hint());
        let Some(stretch) = pager.mm.index.find(self.addr) else {
            return Dispatch::NotOurs;
        };
        if !self.own_handlers {
            return Dispatch::Forward;
        }
        pager.log.add(Counter::ProtectionFaults, 1);
        let handler = stretch.handler(FaultKind::Protection);
        handler.map_or(Dispatch::Forward, |handler| {
            Dispatch::Call(handler, FaultKind::Protection)
        })
    }

    /// A fault on an address that is in no stretch of any domain: the domains' handlers are called in turn.
    fn unallocated(&mut self, pager: &Pager) -> Dispatch {
        let Some(handler) = pager.faults.unallocated_handler() else {
            return Dispatch::NotOurs;
        };
        if self.skipped > 0 {
            self.skipped -= 1;
            return Dispatch::NotOurs;
        }
        pager.log.add(Counter::UnallocatedFaults, 1);
        Dispatch::Call(handler, FaultKind::Unallocated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;
    use crate::driver::{Physical, StretchDriver};
    use crate::fault_outcome::{FaultError, FillOutcome};
    use crate::page_in::Activation;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    /// Fails its faults once it is let go.
    #[derive(Clone, Default)]
    struct Failing {
        begun: Arc<AtomicBool>,
        go: Arc<AtomicBool>,
    }

    impl StretchDriver for Failing {
        fn name(&self) -> &'static str {
            "failing"
        }
        fn fault(&self, _: &mut Activation<'_>) -> FillOutcome {
            self.begun.store(true, Ordering::Release);
            while !self.go.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            FillOutcome::Failure(FaultError::NeverFaults)
        }
    }

    /// The gate closes while the fault is inside, and the fault enters once: the closer waits
    /// for it, and it waits for nothing.
    #[test]
    fn a_fault_that_fails_while_a_stretch_ends_keeps_neither_waiting() {
        let domain = Arc::new(Domain::builder().frames(16).build().unwrap());
        let driver = Failing::default();
        let stretch = domain.allocate(wired::PAGE).unwrap();
        stretch.bind(driver.clone()).unwrap();
        let other = domain.allocate(wired::PAGE).unwrap();
        other.bind(Physical).unwrap();
        let (tell, decision) = mpsc::channel();
        let (faulting, at) = (domain.clone(), stretch.base());
        std::thread::spawn(move || {
            let mut access = FaultAccess::new(at, true);
            let dispatch = access.upcall(faulting.pager());
            let _ = tell.send(matches!(dispatch, Dispatch::Forward));
        });
        while !driver.begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let ender = std::thread::spawn(move || drop(other));
        while !domain.pager().mm.gate.closing(0) {
            std::thread::yield_now();
        }
        driver.go.store(true, Ordering::Release);
        let decision = decision.recv_timeout(Duration::from_secs(20));
        assert_eq!(decision, Ok(true), "the fault waits for its own gate");
        ender.join().unwrap();
    }
}
