//! Which processes share an address space.

use rustix::process::Pid;
use std::cmp::Ordering;

/// Processes, one for each address space. They are compared by the kernel and not by their names: a
/// tenant could hide its memory behind the name of a pager process.
#[derive(Default)]
pub struct AddressSpaces {
    /// Sorted by the kernel's order of their address spaces.
    pub distinct: Vec<Pid>,
    /// Processes that this process may not compare with others, or that have ended.
    pub unknown: Vec<Pid>,
}

impl AddressSpaces {
    /// The address spaces of `pids`.
    pub fn of(pids: &[Pid]) -> Self {
        let mut all = Self::default();
        for pid in pids {
            let mut comparable = order_of_memory(*pid, *pid).is_some();
            let found = all.distinct.binary_search_by(|other| {
                let order = order_of_memory(*other, *pid);
                comparable &= order.is_some();
                order.unwrap_or(Ordering::Less)
            });
            match found {
                _ if !comparable => all.unknown.push(*pid),
                Ok(_) => {}
                Err(at) => all.distinct.insert(at, *pid),
            }
        }
        all
    }
}

/// Returns true if two processes share an address space, and false where the kernel does not permit the comparison.
pub fn share_memory(one: Pid, other: Pid) -> bool {
    order_of_memory(one, other) == Some(Ordering::Equal)
}

/// Compares the address spaces of two processes in the kernel's order, by `kcmp`. `None` where one has
/// ended, or where the kernel does not permit the comparison.
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
