//! A connection that is handed out through the seccomp filter is open in its process alone.

use host::seccomp::Listener;
use host::seccomp::call::{self, CarriedMessage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::time::{Duration, Instant};

/// Pins the calling thread: the process and the thread that replies to it share a processor.
fn pin_to_first_processor() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let mut set = rustix::thread::CpuSet::new();
    set.set(first.unwrap());
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Has the calling thread run before every ordinary thread from now on.
fn take_realtime_priority() -> bool {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: a structure that the kernel reads.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) == 0 }
}

/// The process under the filter: closes the connection that it receives, and then keeps the replying
/// thread off the processor until the test has checked the connection.
fn close_received_connection(socket: &OwnedFd, closed: &mut PipeWriter, checked: &mut PipeReader) {
    pin_to_first_processor();
    let listener = host::seccomp::install();
    let fds: Vec<_> = listener.iter().map(AsFd::as_fd).collect();
    host::seqpacket::send(
        socket,
        &[u8::from(take_realtime_priority())],
        &fds,
        SendFlags::empty(),
    )
    .unwrap();
    drop(call::request(CarriedMessage::default()).unwrap());
    closed.write_all(&[1]).unwrap();
    rustix::io::ioctl_fionbio(&*checked, true).unwrap();
    let begun = Instant::now();
    while checked.read(&mut [0]).is_err() && begun.elapsed() < Duration::from_secs(2) {}
}

#[test]
fn a_connection_that_its_process_has_closed_is_closed() {
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        return println!(
            "SKIPPED: a process that keeps one processor busy needs another beside it"
        );
    }
    let (socket, its_socket) = host::seqpacket::pair().unwrap();
    let (mut closes, mut closed) = std::io::pipe().unwrap();
    let (mut checked, mut check) = std::io::pipe().unwrap();
    // SAFETY: the child runs only what follows, and exits.
    let process = unsafe { libc::fork() };
    if process == 0 {
        close_received_connection(&its_socket, &mut closed, &mut checked);
        // SAFETY: ends the child without the test harness's exit handlers.
        unsafe { libc::_exit(0) };
    }
    drop((closed, its_socket));
    let mut first = host::seqpacket::receive(&socket, RecvFlags::empty()).unwrap();
    let is_realtime = first.as_slice() == [1];
    let (ours, theirs) = host::seqpacket::pair().unwrap();
    let skipped = match first.fds[0].take() {
        None => Some("no filter can be installed here"),
        Some(_) if !is_realtime => Some("real-time priority needs root"),
        Some(listener) => {
            let answer = std::thread::spawn(move || {
                pin_to_first_processor();
                let listener = Listener::from(listener);
                let call = listener.receive().unwrap().unwrap();
                listener.complete_with(call.id, theirs).unwrap();
            });
            closes.read_exact(&mut [0]).unwrap();
            let mut fds = [PollFd::from_borrowed_fd(ours.as_fd(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap();
            let is_closed = fds[0].revents().contains(PollFlags::HUP);
            check.write_all(&[1]).unwrap();
            answer.join().unwrap();
            assert!(is_closed, "the connection is open elsewhere");
            None
        }
    };
    // SAFETY: our own child.
    unsafe {
        libc::kill(process, libc::SIGKILL);
        libc::waitpid(process, std::ptr::null_mut(), 0);
    }
    if let Some(why) = skipped {
        println!("SKIPPED: {why}");
    }
}
