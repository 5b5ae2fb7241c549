//! A VMM that holds the lock of its memfd: a thread writes to the file from memory whose fault no one answers.

use super::{Memory, PAGE, open_userfaultfd, register};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

/// Has the fault.
static FAULT: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Holds the lock from now on.
pub fn hold(memory: &Memory) -> &'static str {
    let uffd = open_userfaultfd();
    // SAFETY: a new mapping, where the kernel chooses.
    let from = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0)
    } as usize;
    register(&uffd, from, PAGE);
    let memfd = memory.memfd.as_ref().expect("a memfd").as_raw_fd();
    let end = memory.len as libc::off_t;
    // Behind the guest's memory, of which no page changes.
    // SAFETY: reads the mapping, which stays.
    std::thread::spawn(move || unsafe { libc::pwrite(memfd, from as *const _, PAGE, end) });
    poll(&mut [PollFd::new(&uffd, PollFlags::IN)], None).expect("a fault");
    *FAULT.lock().expect("the fault") = Some(uffd);
    "held"
}

/// Ends the fault, and so the write.
pub fn let_go() -> &'static str {
    FAULT.lock().expect("the fault").take();
    "let go"
}
