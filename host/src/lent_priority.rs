//! Real-time priority that the daemon lends to the threads of a tenant that move its pages.
//!
//! Weights order the threads of one control group, or of one session; only a real-time class runs
//! before the work of all others. The daemon lends it for a budget that the daemon enforces, so a
//! daemon that dies leaves threads with lent priority: the tenant ends it for its own threads when it
//! loses its connection, and the next daemon for all threads that it finds.
//!
//! Rules: a thread with a class of its own choice keeps it. The threads and processes that it starts
//! are ordinary. A program that changes its class meanwhile keeps its choice.

use crate::procfs::threads;
use rustix::io::Errno;
use rustix::process::Pid;
use wired::sched_class::{REAL_TIME, class_of, is_ordinary, priority_of, set_class, set_real_time};

/// The priority that is lent: below the daemon's own, and seldom a program's own choice, which is 1 or
/// far above.
pub const LENT: i32 = 2;

/// The priority of the daemon's loop, which must be able to take it back.
pub const DAEMON: i32 = 3;

/// The priority of the disk's thread, which works for all tenants: its work for one tenant must not
/// delay a thread of another whose page has arrived.
pub const DISK: i32 = LENT;

/// Returns true if a thread has lent priority now. A thread may lower a lent priority, which stays a lent
/// one; it cannot clear SCHED_RESET_ON_FORK.
pub fn is_lent(thread: u32) -> bool {
    let is_low = |priority| (1..=LENT).contains(&priority);
    class_of(thread) == Some(REAL_TIME) && priority_of(thread).is_some_and(is_low)
}

/// Lends priority to a thread, and returns the thread's own class.
///
/// # Errors
/// `EINVAL` for a thread with a class of its own choice; else the kernel's error.
pub fn lend(thread: u32) -> Result<i32, Errno> {
    let own = class_of(thread).ok_or(Errno::SRCH)?;
    if !is_ordinary(own) {
        return Err(Errno::INVAL);
    }
    set_real_time(thread, LENT).map(|()| own)
}

/// Returns true if the kernel permits this process real-time priority, which a thread tries that then ends.
pub fn is_permitted() -> bool {
    let tried = std::thread::spawn(|| set_real_time(0, LENT).is_ok());
    tried.join().unwrap_or(false)
}

/// Ends lent priority: gives a thread its own class again.
pub fn end(thread: u32, own: i32) {
    if is_lent(thread) && set_class(thread, own).is_err() {
        // Without the right to clear the flag it stays, and affects only children of the thread.
        let _ = set_class(thread, own | libc::SCHED_RESET_ON_FORK);
    }
}

/// Ends lent priority for all threads of these processes.
pub fn end_all(processes: impl IntoIterator<Item = Pid>) {
    for pid in processes {
        for thread in threads(pid) {
            end(thread.as_raw_pid() as u32, libc::SCHED_OTHER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, PoisonError};

    /// One test ends lent priority for all threads of this process, and must not run beside the other.
    static LENDING: Mutex<()> = Mutex::new(());

    #[test]
    fn a_thread_has_its_own_class_again_after_a_loan() {
        let _alone = LENDING.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::spawn(|| {
            let own = gettid().as_raw_nonzero().get() as u32;
            set_class(own, libc::SCHED_BATCH).unwrap();
            let class = match lend(own) {
                Ok(class) => class,
                Err(why) => return eprintln!("skipped: no real-time priority here: {why}"),
            };
            assert!(is_lent(own));
            set_real_time(own, 1).unwrap();
            assert!(is_lent(own), "a lower one is lent, too");
            assert_eq!(lend(own), Err(Errno::INVAL), "it is lent once");
            let started = std::thread::spawn(|| class_of(0)).join().unwrap();
            assert_eq!(started, Some(libc::SCHED_OTHER));
            end(own, class);
            assert_eq!(class_of(own), Some(libc::SCHED_BATCH));
            end(own, libc::SCHED_OTHER);
            assert_eq!(class_of(own), Some(libc::SCHED_BATCH), "nothing was lent");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_class_of_its_own_choice_stays() {
        std::thread::spawn(|| {
            set_class(0, libc::SCHED_IDLE).unwrap();
            assert_eq!(lend(0), Err(Errno::INVAL));
            assert_eq!(class_of(0), Some(libc::SCHED_IDLE));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn all_threads_of_a_process_have_their_own_class_again_after_a_loan() {
        let _alone = LENDING.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, receiver) = channel();
        let (finish, finished) = channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(lend(0).is_ok()).unwrap();
            let _ = finished.recv();
            class_of(0)
        });
        if !receiver.recv().unwrap() {
            return eprintln!("skipped: no real-time priority here");
        }
        end_all([rustix::process::getpid()]);
        drop(finish);
        assert_eq!(thread.join().unwrap(), Some(libc::SCHED_OTHER));
    }
}
