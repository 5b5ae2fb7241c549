//! Processes of a tree, played by forks and threads of the test.

// Each test binary uses a part of this module.
#![allow(dead_code)]

use link::client::{JoinError, Joined, SupervisorPort};
use link::handshake::{Hello, ProgramPlace};
use rustix::process::Pid;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use supervisor::{Supervisor, TreeEvent};

/// The first message of a program without a pager process.
pub const OWN_IMAGE: Hello = Hello::Exec {
    program: ProgramPlace { above: 0, pid: 0 },
};

pub fn join(port: SupervisorPort, hello: Hello) -> JoinHandle<Result<Joined, JoinError>> {
    std::thread::spawn(move || port.join(hello))
}

/// Starts a child of this process, which runs `play` and exits.
pub fn child(play: impl FnOnce()) -> Pid {
    // SAFETY: the child runs only `play` and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        play();
        // SAFETY: ends the child without running the test harness's exit handlers.
        unsafe { libc::_exit(0) };
    }
    Pid::from_raw(pid).unwrap()
}

pub fn end(child: Pid) {
    // SAFETY: our own child.
    unsafe {
        libc::kill(child.as_raw_nonzero().get(), libc::SIGKILL);
        libc::waitpid(child.as_raw_nonzero().get(), std::ptr::null_mut(), 0);
    }
}

/// Dispatches until `done` is satisfied by the events so far.
pub fn until(
    supervisor: &mut Supervisor,
    mut done: impl FnMut(&[TreeEvent]) -> bool,
) -> Vec<TreeEvent> {
    let (mut events, begin) = (Vec::new(), Instant::now());
    while !done(&events) {
        assert!(begin.elapsed() < Duration::from_secs(20), "only {events:?}");
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            supervisor.fd(),
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        rustix::event::poll(&mut fds, Some(&limit)).unwrap();
        events.extend(supervisor.dispatch());
    }
    events
}

pub fn joined(event: &TreeEvent) -> bool {
    matches!(event, TreeEvent::Joined { .. })
}

pub fn sleep() {
    // SAFETY: this process alone.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::pause();
    }
}

pub fn is_readable(fd: rustix::fd::BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}
