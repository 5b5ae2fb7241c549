//! SCHED_DEADLINE: the kernel's own reservation, with its own admission.
//!
//! A deadline task can neither fork nor be pinned. With SCHED_FLAG_RESET_ON_FORK it can fork:
//! its children are ordinary. The policy stays across exec.

use super::MechanismUnavailable;
use rate::Reservation;
use rustix::io::Errno;

/// Makes the calling thread a deadline task.
pub(super) fn enter(reservation: &Reservation) -> Result<(), Errno> {
    let period = reservation.period().as_nanos() as u64;
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_DEADLINE as u32,
        sched_flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: reservation.runtime().as_nanos() as u64,
        sched_deadline: period,
        sched_period: period,
    };
    // SAFETY: a structure whose `size` is right, which the kernel reads.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(crate::last_errno()),
    }
}

/// Checks in a child process that the kernel would admit the reservation now.
pub(super) fn probe(reservation: &Reservation) -> Result<(), MechanismUnavailable> {
    let failed = |errno| MechanismUnavailable {
        what: "SCHED_DEADLINE is not available".into(),
        errno,
        mend: match errno {
            Errno::PERM => {
                "it needs CAP_SYS_NICE, and to be allowed on all processors (no taskset, no cpuset)"
            }
            Errno::BUSY => {
                "the present reservations leave too little: ask for less, or end a program with a reservation"
            }
            _ => "choose another mechanism with by=",
        },
    };
    // SAFETY: the child makes one system call and ends.
    match unsafe { libc::fork() } {
        -1 => Err(failed(Errno::AGAIN)),
        0 => {
            let status = enter(reservation).err().map_or(0, Errno::raw_os_error);
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child just made.
            unsafe { libc::waitpid(child, &mut status, 0) };
            match libc::WEXITSTATUS(status) {
                0 if libc::WIFEXITED(status) => Ok(()),
                errno => Err(failed(Errno::from_raw_os_error(errno.max(1)))),
            }
        }
    }
}
