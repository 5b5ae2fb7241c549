//! A program of the class SCHED_DEADLINE, which it keeps across exec. The kernel refuses it any clone, so its next image
//! could not start its pager, but for one that is of an ordinary class (SCHED_FLAG_RESET_ON_FORK).

use crate::raw_syscall::{SyscallResult, error, is_error, syscall3, syscall6};

/// The kernel's `struct sched_attr`.
type Attributes = libc::sched_attr;

/// Has `clone` make a process, also where the calling thread is a deadline task.
pub fn clone_of_any_class(clone: impl Fn() -> SyscallResult) -> SyscallResult {
    let answer = clone();
    if answer != error(libc::EAGAIN) {
        return answer;
    }
    match deadline() {
        Some(attributes) => {
            let reset = libc::SCHED_FLAG_RESET_ON_FORK as u64;
            set(&Attributes {
                sched_flags: attributes.sched_flags | reset,
                ..attributes
            });
            let answer = clone();
            set(&attributes);
            answer
        }
        None => answer,
    }
}

/// The calling thread's attributes, if it is a deadline task.
fn deadline() -> Option<Attributes> {
    // SAFETY: a structure of numbers.
    let mut attributes: Attributes = unsafe { std::mem::zeroed() };
    let at = std::ptr::from_mut(&mut attributes) as usize;
    let size = size_of::<Attributes>();
    // SAFETY: a structure of this size, which the kernel fills.
    let answer = unsafe { syscall6(libc::SYS_sched_getattr, [0, at, size, 0, 0, 0]) };
    let is_deadline = attributes.sched_policy == libc::SCHED_DEADLINE as u32;
    (!is_error(answer) && is_deadline).then_some(attributes)
}

fn set(attributes: &Attributes) {
    let at = std::ptr::from_ref(attributes) as usize;
    // SAFETY: a structure of the size that it names, which the kernel reads.
    unsafe { syscall3(libc::SYS_sched_setattr, 0, at, 0) };
}
