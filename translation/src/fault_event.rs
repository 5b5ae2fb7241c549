//! Counts the page faults of a thread that the kernel handles by itself: a software event sends the
//! thread a signal after every N of them.
//!
//! userfaultfd reports faults on registered memory only. A program's text, its libraries and mapped
//! files, on which a launch faults most, are the kernel's own. `PERF_COUNT_SW_PAGE_FAULTS` counts
//! every fault of a thread, of both kinds. With `sigtrap` (Linux 5.13) the thread itself takes a
//! SIGTRAP with `TRAP_PERF` after N faults, on its return to user mode from the last, and can be
//! stopped there. The signal carries the last fault's address and a number that identifies the
//! event.
//!
//! The cost of a fault, by N: `cargo run --release -p translation --example fault_event`.
//!
//! Rules of the kernel, found by trial: only faults in user mode count here, not those inside
//! system calls (`exclude_kernel`, which makes the event need no privilege), so the signal never
//! interrupts a system call. A blocked signal stays pending, one for all, and is marked late. A
//! thread inherits the event of the thread that starts it; a forked process does not, and exec ends
//! it.

use crate::uapi;
use linux_raw_sys::general as sys;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

/// `struct perf_event_attr` of Linux 5.13, where it has 128 bytes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: [u32; 5],
    branches: u64,
    user_registers: u64,
    user_stack: u32,
    clock: i32,
    registers: u64,
    aux_watermark: u32,
    stack: u32,
    aux_sample: [u32; 2],
    signal_data: u64,
}

const _: () = assert!(size_of::<Attributes>() == 128);
const _: () = assert!(std::mem::offset_of!(Attributes, signal_data) == 120);

/// Type and number of the event: `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS`.
const SOFTWARE: u32 = 1;
const PAGE_FAULTS: u64 = 2;

/// Bits of `flags` in `struct perf_event_attr` (`include/uapi/linux/perf_event.h`).
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGNAL: u64 = 1 << 37;

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: usize = 1 << 3;

/// `PERF_EVENT_IOC_ENABLE`, `_DISABLE`, `_PERIOD`.
const ENABLE: usize = 0x2400;
const DISABLE: usize = 0x2401;
const PERIOD: usize = 0x4008_2404;

/// Offset of `si_perf_data` in `siginfo_t`, on 64-bit machines.
const DATA: usize = 24;

/// The event of one thread and of the threads that it starts afterwards.
#[derive(Debug)]
pub struct FaultEvent(OwnedFd);

impl FaultEvent {
    /// Opens the event for thread `thread` of this process: a signal with number `data` after each
    /// `every` faults. The caller installs a handler for SIGTRAP first.
    ///
    /// # Errors
    /// EACCES or EPERM: forbidden by `kernel.perf_event_paranoid` or a seccomp filter. ENOSYS,
    /// ENOENT, EINVAL: this kernel lacks it. ESRCH: no such thread.
    pub fn open(thread: i32, every: u32, data: u64) -> Result<Self, Errno> {
        let event = Self::open_disabled(thread, every, data)?;
        event.switch(true)?;
        Ok(event)
    }

    /// Opens the event without counting yet.
    pub(crate) fn open_disabled(thread: i32, every: u32, data: u64) -> Result<Self, Errno> {
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: PAGE_FAULTS,
            sample_period: every.max(1).into(),
            flags: DISABLED
                | INHERIT
                | INHERIT_THREAD
                | EXCLUDE_KERNEL
                | EXCLUDE_HYPERVISOR
                | REMOVE_ON_EXEC
                | SIGNAL,
            signal_data: data,
            ..Attributes::default()
        };
        let at = std::ptr::from_ref(&attributes) as usize;
        let (any_processor, no_group) = (usize::MAX, usize::MAX);
        // SAFETY: reads the attributes and returns a new descriptor.
        unsafe {
            let fd = uapi::syscall(
                sys::__NR_perf_event_open,
                [
                    at,
                    thread as usize,
                    any_processor,
                    no_group,
                    CLOSE_ON_EXEC,
                    0,
                ],
            )?;
            Ok(Self(OwnedFd::from_raw_fd(fd as i32)))
        }
    }

    /// Sets the number of faults between signals.
    ///
    /// # Errors
    /// The ioctl's error.
    pub fn set_every(&self, every: u32) -> Result<(), Errno> {
        let every = u64::from(every.max(1));
        self.control(PERIOD, std::ptr::from_ref(&every) as usize)
    }

    /// Starts or stops counting.
    ///
    /// # Errors
    /// The ioctl's error.
    pub fn switch(&self, on: bool) -> Result<(), Errno> {
        self.control(if on { ENABLE } else { DISABLE }, 0)
    }

    fn control(&self, operation: usize, argument: usize) -> Result<(), Errno> {
        let fd = self.0.as_raw_fd() as usize;
        // SAFETY: our own event; the kernel reads at most one word.
        unsafe { uapi::syscall(sys::__NR_ioctl, [fd, operation, argument, 0, 0, 0]) }.map(drop)
    }
}

/// The `data` number of the event that sent the signal; an arbitrary value for other signals.
///
/// # Safety
/// `info` points to a `siginfo_t` that the kernel filled.
pub unsafe fn signal_data(info: *const core::ffi::c_void) -> u64 {
    // SAFETY: the caller's promise; a `siginfo_t` has 128 bytes.
    unsafe { info.byte_add(DATA).cast::<u64>().read_unaligned() }
}
