//! Limits on address space and data that the program sets for itself.
//!
//! The kernel counts what the library has reserved and the program has not mapped: free
//! addresses of arenas, and the pager's own tables. A program that lowers RLIMIT_AS or RLIMIT_DATA
//! to what it needs itself could not map more memory (Chromium's sandbox sets 2 GiB of data).
//! So the kernel gets the program's limit and that reserve, and the program reads the limit that
//! it set. What it starts is given the limit itself, but for the hard one, which an ordinary
//! user could not raise again where the exec fails.
//!
//! What the program maps of addresses that were free when it set the limit is in the reserve: up
//! to an arena more than the limit says.

use crate::raw::{self, Answer, give};
use crate::space;
use rustix::fs::{Mode, OFlags, open};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use wired::{Lock, PAGE};

/// A limit, as the kernel has it on machines of 64 bits.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    now: u64,
    most: u64,
}

/// The limits that count reservations.
#[derive(Clone, Copy)]
enum Counted {
    AddressSpace = 0,
    Data = 1,
}

/// The program's limit, and the kernel's limit for it.
#[derive(Clone, Copy)]
struct Set {
    asked: Limit,
    given: Limit,
}

static SET: [Lock<Option<Set>>; 2] = [const { Lock::new(None) }; 2];

/// Bytes that the pager has mapped for itself, by either count.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Bytes mapped now, by either count.
pub fn mapped() -> [usize; 2] {
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

/// The library has mapped its own: `before` was there before. In the constructor.
pub fn start(before: [usize; 2]) {
    let arenas = space::hold().map.reserved();
    for (own, (now, before)) in OWN.iter().zip(mapped().into_iter().zip(before)) {
        own.store(now.saturating_sub(before + arenas), Ordering::Relaxed);
    }
}

fn counted(resource: c_int) -> Option<Counted> {
    match resource as u32 {
        libc::RLIMIT_AS => Some(Counted::AddressSpace),
        libc::RLIMIT_DATA => Some(Counted::Data),
        _ => None,
    }
}

fn kernel(pid: c_int, resource: c_int, new: *const Limit, old: *mut Limit) -> Answer {
    let args = [
        pid as usize,
        resource as usize,
        new as usize,
        old as usize,
        0,
        0,
    ];
    // SAFETY: the program's pointers, or locals of the callers.
    unsafe { raw::call(libc::SYS_prlimit64, args) }
}

/// `prlimit`.
///
/// # Safety
/// `new` and `old` are null, or point to a limit.
pub unsafe fn prlimit(pid: c_int, resource: c_int, new: *const Limit, old: *mut Limit) -> Answer {
    let own = pid == 0 || pid == raw::pid();
    let Some(counted) = counted(resource).filter(|_| own && space::active()) else {
        return kernel(pid, resource, new, old);
    };
    let free = space::hold().map.free();
    let _quiet = raw::Quiet::new();
    let mut set = SET[counted as usize].lock();
    let mut before = Limit { now: 0, most: 0 };
    let answer = kernel(0, resource, std::ptr::null(), &mut before);
    if raw::failed(answer) {
        return answer;
    }
    let told = set.filter(|set| set.given == before);
    let told = told.map_or(before, |set| set.asked);
    // SAFETY: the caller's.
    if let Some(asked) = unsafe { new.as_ref() }.copied() {
        let reserve = (free + OWN[counted as usize].load(Ordering::Relaxed)) as u64;
        let given = Limit {
            now: asked
                .now
                .saturating_add(reserve)
                .min(before.most.max(asked.now)),
            most: asked
                .most
                .saturating_add(reserve)
                .min(before.most.max(asked.most)),
        };
        let answer = kernel(0, resource, &given, std::ptr::null_mut());
        if raw::failed(answer) {
            return answer;
        }
        *set = Some(Set { asked, given });
    }
    // SAFETY: the caller's.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = told;
    }
    0
}

/// The program's own limits, while it begins another image; put back where that fails.
pub struct ForExec([Option<Set>; 2]);

/// Gives the kernel the limits as the program set them. Safe between vfork and exec.
pub fn for_exec() -> ForExec {
    const RESOURCES: [u32; 2] = [libc::RLIMIT_AS, libc::RLIMIT_DATA];
    ForExec([0, 1].map(|n| {
        let set = (*SET[n].try_lock()?)?;
        let now = Limit {
            now: set.asked.now,
            most: set.given.most,
        };
        kernel(0, RESOURCES[n] as c_int, &now, std::ptr::null_mut());
        Some(set)
    }))
}

impl Drop for ForExec {
    fn drop(&mut self) {
        for (resource, set) in [libc::RLIMIT_AS, libc::RLIMIT_DATA].into_iter().zip(self.0) {
            if let Some(set) = set {
                kernel(0, resource as c_int, &set.given, std::ptr::null_mut());
            }
        }
    }
}

mod exports {
    use super::{Limit, c_int, give, prlimit};

    /// Defines the C library's functions of one meaning under both of their names.
    macro_rules! both {
        ($($name:literal, $name64:literal, $a:ident, $b:ident, ($($arg:ident: $ty:ty),*) => $call:expr;)*) => {$(
            #[cfg_attr(not(test), unsafe(export_name = $name))]
            unsafe extern "C" fn $a($($arg: $ty),*) -> c_int {
                // SAFETY: the caller's: as in C.
                give(unsafe { $call }) as c_int
            }

            #[cfg_attr(not(test), unsafe(export_name = $name64))]
            unsafe extern "C" fn $b($($arg: $ty),*) -> c_int {
                // SAFETY: the caller's: as in C.
                give(unsafe { $call }) as c_int
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
