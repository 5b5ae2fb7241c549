//! Which processes share an address space.

use rustix::process::Pid;
use std::cmp::Ordering;

/// Processes, one for each address space. What a process is called proves nothing: a tenant could
/// hide its memory behind the name of a pager process.
#[derive(Default)]
pub struct AddressSpaces {
    /// Sorted by the kernel's order of their address spaces.
    pub distinct: Vec<Pid>,
    /// Those that this process may not compare with others, or that have ended.
    pub unknown: Vec<Pid>,
}

impl AddressSpaces {
    /// Those of processes.
    pub fn of(pids: &[Pid]) -> Self {
        let mut all = Self::default();
        for pid in pids {
            let mut comparable = order_of_memory(*pid, *pid).is_some();
            let place = all.distinct.binary_search_by(|other| {
                let order = order_of_memory(*other, *pid);
                comparable &= order.is_some();
                order.unwrap_or(Ordering::Less)
            });
            match place {
                _ if !comparable => all.unknown.push(*pid),
                Ok(_) => {}
                Err(place) => all.distinct.insert(place, *pid),
            }
        }
        all
    }
}

/// Returns true if two processes share an address space. False, too, where the kernel does not allow the question.
pub fn share_memory(one: Pid, other: Pid) -> bool {
    order_of_memory(one, other) == Some(Ordering::Equal)
}

/// How the address spaces of two processes compare, by `kcmp`. None where one has ended, or where
/// the kernel does not allow it.
fn order_of_memory(one: Pid, other: Pid) -> Option<Ordering> {
    const KCMP_VM: libc::c_int = 1;
    let (one, other) = (one.as_raw_nonzero().get(), other.as_raw_nonzero().get());
    // SAFETY: compares, and touches no memory.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) } {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}
