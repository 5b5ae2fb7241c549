//! A process that was killed and has not ended, since its last threads wait in the kernel.
//!
//! A killed thread ends when its call returns. Some calls wait uninterruptibly for another process (for a memfd's lock, for the
//! reply of a FUSE server), as long as that process likes.

use crate::process_tree::ProcStat;
use crate::procfs::threads;
use rustix::process::Pid;

/// Returns true if a process has no runnable thread any more, but threads that wait uninterruptibly: its first thread
/// has ended, and each other thread has ended or waits.
pub fn waits_in_kernel(pid: Pid) -> bool {
    let state = |thread: Pid| ProcStat::of(thread).map(|stat| stat.state);
    if state(pid) != Some(b'Z') {
        return false;
    }
    let others = threads(pid).filter(|thread| *thread != pid);
    let states: Vec<_> = others.filter_map(state).collect();
    let waits = |state: &u8| *state == b'D';
    let has_ended = |state: &u8| matches!(*state, b'Z' | b'X');
    states.iter().any(waits) && states.iter().all(|it| waits(it) || has_ended(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_runs_and_one_that_has_ended_do_not_wait() {
        let us = rustix::process::getpid();
        assert!(threads(us).any(|it| it == us) && !waits_in_kernel(us));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        while ProcStat::of(pid).is_some_and(|stat| stat.state != b'Z') {
            std::thread::yield_now();
        }
        assert!(!waits_in_kernel(pid), "a zombie has no thread that waits");
        child.wait().unwrap();
    }
}
