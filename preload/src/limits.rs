//! Limits on address space and data that the program sets for itself.
//!
//! The kernel counts what the library has reserved and the program has not mapped: free
//! addresses of arenas, those of the allocator's heap, and the pager's own tables. A program that
//! lowers RLIMIT_AS or RLIMIT_DATA to what it needs itself could not map more memory (Chromium's
//! sandbox sets 2 GiB of data).
//! So the kernel's limit is the program's and a reserve. The reserve is fixed when the first limit is set, by
//! this process or one that it descends from: the child of a fork has it in its memory, a program that is
//! executed in its environment ([`next_image`]). The limits themselves are in the kernel alone: the child of a
//! vfork has its parent's memory, and limits of its own. The hard limit that the tree began with has no reserve: a
//! process that has set none reads it as it is, and one that has may return to it. A soft limit below it gets one.
//!
//! What the program maps of addresses that were free when the reserve was fixed is in it: up to an arena more than
//! the limit says.

mod next_image;

use crate::raw_syscall::{SyscallResult, c_result, error, is_error, syscall6};
use crate::{address_space, raw_syscall};
use rustix::fs::{Mode, OFlags, open};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use wired::PAGE;

pub use next_image::{LimitsVariable, LimitsWithoutRoom, is_variable, lift_inherited};

/// A limit, as the kernel has it on machines of 64 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    soft: u64,
    hard: u64,
}

impl Limit {
    /// The program's limit where this is the kernel's.
    fn as_shown(self, room: Room) -> Self {
        let hard = room.program_limit(self.hard);
        let soft = room.program_limit(self.soft).min(hard);
        Self { soft, hard }
    }

    /// The kernel's limit where the program requests this one, and has read `shown` for the kernel's `now`. The
    /// kernel checks the right to raise a hard limit.
    fn for_kernel(self, room: Room, shown: Self, now: Self) -> Self {
        let mut hard = room.kernel_limit(self.hard);
        if self.hard <= shown.hard {
            hard = hard.min(now.hard);
        }
        let soft = room.kernel_limit(self.soft).min(hard);
        Self { soft, hard }
    }
}

/// What the kernel's limits have beside the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    /// 0 where no limit was set.
    reserve: u64,
    /// The hard limit that the tree began with, which has no reserve.
    first_hard: u64,
}

impl Room {
    /// One below the reserve was set by another process, and has none.
    fn program_limit(self, kernels: u64) -> u64 {
        match kernels {
            libc::RLIM_INFINITY => kernels,
            _ if kernels == self.first_hard => kernels,
            _ => kernels.checked_sub(self.reserve).unwrap_or(kernels),
        }
    }

    /// One below the first hard limit stays below: there it has less room, and reads less.
    fn kernel_limit(self, programs: u64) -> u64 {
        let kernels = programs.saturating_add(self.reserve);
        match programs.cmp(&self.first_hard) {
            std::cmp::Ordering::Less => kernels.min(self.first_hard - 1),
            std::cmp::Ordering::Equal => programs,
            std::cmp::Ordering::Greater => kernels,
        }
    }
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

    fn room(self) -> Room {
        Room {
            reserve: RESERVES[self as usize].load(Ordering::Acquire),
            first_hard: FIRST_HARD[self as usize].load(Ordering::Relaxed),
        }
    }

    /// The same, with a reserve that is fixed from now on.
    fn fix_reserve(self) -> Room {
        let reserve = &RESERVES[self as usize];
        if self.room().reserve == 0 {
            // A program that is executed gets as much for its own pager.
            let free = address_space::lock().map.free();
            let free = free.max(FIRST_FREE.load(Ordering::Relaxed));
            let own = OWN[self as usize].load(Ordering::Relaxed);
            let fixed = (free + own) as u64;
            let _ = reserve.compare_exchange(0, fixed, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.room()
    }

    /// The kernel's limit where the program requests `requested`, or the error.
    fn for_kernel(self, requested: Limit) -> Result<Limit, SyscallResult> {
        let Some(now) = self.current().filter(|_| requested.soft <= requested.hard) else {
            return Err(error(libc::EINVAL));
        };
        let shown = now.as_shown(self.room());
        Ok(requested.for_kernel(self.fix_reserve(), shown, now))
    }
}

static RESERVES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The hard limits that the tree began with.
static FIRST_HARD: [AtomicU64; 2] = [const { AtomicU64::new(libc::RLIM_INFINITY) }; 2];

/// Free bytes of arenas when the program began.
static FIRST_FREE: AtomicUsize = AtomicUsize::new(0);

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
/// addresses, of which the program has none yet. The soft limits that were `lifted` come down to the program's and
/// the reserve. In the constructor.
pub fn init(lifted: [Option<u64>; 2], before: [usize; 2], heap: usize) {
    let (arenas, free) = {
        let space = address_space::lock();
        (space.map.reserved(), space.map.free())
    };
    FIRST_FREE.store(free, Ordering::Relaxed);
    for (own, (now, before)) in OWN.iter().zip(mapped().into_iter().zip(before)) {
        let pager = now.saturating_sub(before + arenas);
        own.store(pager + heap, Ordering::Relaxed);
    }
    for (kind, soft) in LimitKind::ALL.into_iter().zip(lifted) {
        if let (Some(soft), Some(Limit { hard, .. })) = (soft, kind.current()) {
            let soft = kind.fix_reserve().kernel_limit(soft).min(hard);
            kind.set(&Limit { soft, hard });
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
    let new = match new.map(|requested| kind.for_kernel(requested)).transpose() {
        Ok(new) => new,
        Err(answer) => return answer,
    };
    let new = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // The kernel writes first, which returns EFAULT for an unmapped address.
    let answer = kernel(0, resource, new, old);
    // SAFETY: the caller's, and writeable.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| !is_error(answer)) {
        // Of now: another thread may have set its first limit.
        *old = old.as_shown(kind.room());
    }
    answer
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNLIMITED: Limit = Limit {
        soft: libc::RLIM_INFINITY,
        hard: libc::RLIM_INFINITY,
    };

    fn limit() -> impl Strategy<Value = Limit> {
        let number = || prop_oneof![4 => 0..1u64 << 50, 1 => Just(libc::RLIM_INFINITY)];
        (number(), number()).prop_map(|(a, b)| Limit {
            soft: a.min(b),
            hard: a.max(b),
        })
    }

    proptest! {
        #[test]
        fn a_limit_reads_as_it_was_set(
            first in limit(),
            then in limit(),
            reserve in 1..1u64 << 40,
        ) {
            let room = Room { reserve, first_hard: libc::RLIM_INFINITY };
            let kernels = first.for_kernel(room, UNLIMITED, UNLIMITED);
            let shown = kernels.as_shown(room);
            prop_assert_eq!(shown, first);
            let kernels_then = then.for_kernel(room, shown, kernels);
            prop_assert_eq!(kernels_then.as_shown(room), then);
            prop_assert_eq!(kernels_then.hard > kernels.hard, then.hard > first.hard);
        }

        #[test]
        fn no_hard_limit_of_before_is_raised_unasked(
            before in limit(),
            set in limit(),
            reserve in 1..1u64 << 40,
        ) {
            let room = Room { reserve, first_hard: before.hard };
            let set = Limit { soft: set.soft.min(before.hard), hard: set.hard.min(before.hard) };
            let kernels = set.for_kernel(room, before, before);
            prop_assert!(kernels.soft <= kernels.hard && kernels.hard <= before.hard);
            prop_assert_eq!(kernels.hard < before.hard, set.hard < before.hard);
        }

        #[test]
        fn a_limit_of_before_that_is_lowered_can_be_restored(
            before in limit(),
            lowered in 0..1u64 << 50,
            reserve in 1..1u64 << 40,
        ) {
            let none = Room { reserve: 0, first_hard: before.hard };
            let room = Room { reserve, ..none };
            prop_assert_eq!(before.as_shown(none), before);
            let kernels = Limit { soft: room.kernel_limit(before.soft), ..before };
            let saved = kernels.as_shown(room);
            prop_assert_eq!(saved.hard, before.hard);
            let lowered = Limit { soft: lowered.min(saved.soft), ..saved };
            let kernels_lowered = lowered.for_kernel(room, saved, kernels);
            let shown = kernels_lowered.as_shown(room);
            prop_assert_eq!(kernels_lowered.hard, before.hard);
            prop_assert_eq!(shown.hard, before.hard);
            if before.hard > lowered.soft.saturating_add(reserve) {
                prop_assert_eq!(shown, lowered);
            }
            prop_assert_eq!(saved.for_kernel(room, shown, kernels_lowered), kernels);
        }

        #[test]
        fn a_process_without_limits_of_its_own_reads_what_it_was_given(
            hard in 0..1u64 << 50,
            reserve in 1..1u64 << 40,
        ) {
            let inherited = Limit { soft: hard, hard };
            prop_assert_eq!(inherited.as_shown(Room { reserve, first_hard: hard }), inherited);
        }
    }
}
