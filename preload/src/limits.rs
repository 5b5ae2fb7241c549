//! Limits on address space and data that the program sets for itself.
//!
//! The kernel counts what the library has reserved and the program has not mapped: free
//! addresses of arenas, those of the allocator's heap, and the pager's own tables. A program that
//! lowers RLIMIT_AS or RLIMIT_DATA to what it needs itself could not map more memory (Chromium's
//! sandbox sets 2 GiB of data).
//! So the kernel gets the program's limit and that reserve, and the program reads the limit that
//! it set. A program that it executes finds both in its environment, and gets a reserve of its own
//! ([`next_image`]), as does one that begins with a soft limit below the hard one. A hard limit that
//! `run` was started with holds as it is.
//!
//! What the program maps of addresses that were free when it set the limit is in the reserve: up
//! to an arena more than the limit says.

mod next_image;

use crate::raw_syscall::{SignalsBlocked, SyscallResult, c_result, error, is_error, syscall6};
use crate::{address_space, raw_syscall};
use rustix::fs::{Mode, OFlags, open};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use wired::{Guard, Lock, PAGE};

pub use next_image::{LimitsVariable, for_exec, is_variable, lift_inherited};

/// A limit, as the kernel has it on machines of 64 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    soft: u64,
    hard: u64,
}

/// The limits that count reservations.
#[derive(Clone, Copy)]
enum LimitKind {
    AddressSpace = 0,
    Data = 1,
}

impl LimitKind {
    const ALL: [Self; 2] = [Self::AddressSpace, Self::Data];

    fn resource(self) -> c_int {
        match self {
            Self::AddressSpace => libc::RLIMIT_AS as c_int,
            Self::Data => libc::RLIMIT_DATA as c_int,
        }
    }

    fn of(resource: c_int) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.resource() == resource)
    }

    /// The kernel's limit for this process.
    fn current(self) -> Option<Limit> {
        let mut now = Limit { soft: 0, hard: 0 };
        let answer = kernel(0, self.resource(), std::ptr::null(), &mut now);
        (!is_error(answer)).then_some(now)
    }

    fn set(self, to: &Limit) -> SyscallResult {
        kernel(0, self.resource(), to, std::ptr::null_mut())
    }

    /// What the kernel counts of the library's, where the program's arenas have `free` bytes.
    fn reserve(self, free: usize) -> u64 {
        (free + OWN[self as usize].load(Ordering::Relaxed)) as u64
    }
}

/// The program's limit, and the kernel's limit for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitPair {
    requested: Limit,
    effective: Limit,
}

/// Holds the program's limits still.
pub type LimitsGuard = [Guard<'static, Option<LimitPair>>; 2];

/// For the time of a fork. The caller may hold the space's lock, and nothing that a fault waits for.
pub fn hold() -> LimitsGuard {
    SET.each_ref().map(Lock::lock)
}

static SET: [Lock<Option<LimitPair>>; 2] = [const { Lock::new(None) }; 2];

/// Bytes that the pager and the allocator have mapped for themselves, by either count.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Bytes mapped now, by either count, without this library's private memory. In the constructor.
pub fn mapped_by_program() -> [usize; 2] {
    let own = wired::private_bytes_mapped();
    mapped().map(|all| all.saturating_sub(own))
}

/// Bytes mapped now, by either count.
fn mapped() -> [usize; 2] {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut text = [0u8; 128];
    let len = open(c"/proc/self/statm", flags, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut text[..]))
        .unwrap_or(0);
    let pages = |field: usize| {
        let mut fields = text[..len].split(|b| *b == b' ');
        let field = std::str::from_utf8(fields.nth(field)?).ok()?;
        field.parse::<usize>().ok()
    };
    // Size, and data with stacks.
    [0, 5].map(|field| pages(field).unwrap_or(0) * PAGE)
}

/// The library has mapped its own: `before` was there before, and the allocator has `heap` bytes of
/// addresses, of which the program has none yet. Lifted limits come down to the program's and the
/// reserve. In the constructor.
pub fn init(before: [usize; 2], heap: usize) {
    let (arenas, free) = {
        let space = address_space::lock();
        (space.map.reserved(), space.map.free())
    };
    for (own, (now, before)) in OWN.iter().zip(mapped().into_iter().zip(before)) {
        let pager = now.saturating_sub(before + arenas);
        own.store(pager + heap, Ordering::Relaxed);
    }
    for kind in LimitKind::ALL {
        if let Some(set) = SET[kind as usize].lock().as_mut() {
            let soft = set.requested.soft.saturating_add(kind.reserve(free));
            set.effective.soft = soft.min(set.effective.hard);
            kind.set(&set.effective);
        }
    }
}

fn kernel(pid: c_int, resource: c_int, new: *const Limit, old: *mut Limit) -> SyscallResult {
    let args = [
        pid as usize,
        resource as usize,
        new as usize,
        old as usize,
        0,
        0,
    ];
    // SAFETY: the program's pointers, or locals of the callers.
    unsafe { syscall6(libc::SYS_prlimit64, args) }
}

/// `prlimit`.
///
/// # Safety
/// `new` and `old` are null, or point to a limit.
pub unsafe fn prlimit(
    pid: c_int,
    resource: c_int,
    new: *const Limit,
    old: *mut Limit,
) -> SyscallResult {
    let own = pid == 0 || pid == raw_syscall::pid();
    let Some(kind) = LimitKind::of(resource).filter(|_| own && address_space::is_active()) else {
        return kernel(pid, resource, new, old);
    };
    if !new.is_null() && !raw_syscall::is_readable(new as usize, size_of::<Limit>()) {
        return error(libc::EFAULT);
    }
    // Copied: a program may give one address for both.
    // SAFETY: readable, or null.
    let new = unsafe { new.as_ref() }.copied();
    let free = address_space::lock().map.free();
    let _blocked = SignalsBlocked::new();
    let mut set = SET[kind as usize].lock();
    let mut before = Limit { soft: 0, hard: 0 };
    let answer = kernel(0, resource, std::ptr::null(), &mut before);
    if is_error(answer) {
        return answer;
    }
    let visible = set.filter(|set| set.effective == before);
    let visible = visible.map_or(before, |set| set.requested);
    if let Some(requested) = new {
        if requested.soft > requested.hard {
            return error(libc::EINVAL);
        }
        let reserve = kind.reserve(free);
        let mut effective = Limit {
            soft: requested.soft.saturating_add(reserve),
            hard: requested.hard.saturating_add(reserve),
        };
        // The kernel checks the right to raise a hard limit.
        effective.hard = match requested.hard > visible.hard {
            true => effective.hard.max(before.hard.saturating_add(1)),
            false => effective.hard.min(before.hard),
        };
        effective.soft = effective.soft.min(effective.hard);
        let answer = kind.set(&effective);
        if is_error(answer) {
            return answer;
        }
        *set = Some(LimitPair {
            requested,
            effective,
        });
    }
    // The kernel writes first, which returns EFAULT for an unmapped address.
    let written = kernel(0, resource, std::ptr::null(), old);
    // SAFETY: the caller's, and writeable.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| !is_error(written)) {
        *old = visible;
    }
    written
}

mod exports {
    use super::{Limit, c_int, c_result, prlimit};

    /// Defines the C library's functions of one meaning under both of their names.
    macro_rules! both {
        ($($name:literal, $name64:literal, $a:ident, $b:ident, ($($arg:ident: $ty:ty),*) => $call:expr;)*) => {$(
            #[cfg_attr(not(test), unsafe(export_name = $name))]
            unsafe extern "C" fn $a($($arg: $ty),*) -> c_int {
                // SAFETY: the caller's: as in C.
                c_result(unsafe { $call }) as c_int
            }

            #[cfg_attr(not(test), unsafe(export_name = $name64))]
            unsafe extern "C" fn $b($($arg: $ty),*) -> c_int {
                // SAFETY: the caller's: as in C.
                c_result(unsafe { $call }) as c_int
            }
        )*};
    }

    both! {
        "setrlimit", "setrlimit64", set, set64, (resource: c_int, new: *const Limit) =>
            prlimit(0, resource, new, std::ptr::null_mut());
        "getrlimit", "getrlimit64", get, get64, (resource: c_int, old: *mut Limit) =>
            prlimit(0, resource, std::ptr::null(), old);
        "prlimit", "prlimit64", both, both64, (pid: c_int, resource: c_int, new: *const Limit, old: *mut Limit) =>
            prlimit(pid, resource, new, old);
    }
}
