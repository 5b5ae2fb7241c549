//! Processes join and leave over the real sockets. One test process plays both sides,
//! forking where a real child is needed.

// A refusal carries its text in place.
#![allow(clippy::result_large_err)]

mod common;
#[path = "common/processes.rs"]
mod processes;

use common::{port, settings, start};
use link::client::{JoinError, SupervisorPort};
use link::handshake::{ChildMessage, Hello, ProgramPlace};
use processes::{OWN_IMAGE, child, end, is_readable, join, joined, sleep, until};
use rustix::fd::{AsFd, AsRawFd};
use rustix::process::{Pid, getpid};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use supervisor::{Supervisor, TreeEvent};
use wired::Counter;

/// The first message of a pager process whose parent is the program.
fn image_of(program: Pid) -> Hello {
    let pid = program.as_raw_nonzero().get() as u32;
    let program = ProgramPlace { above: 1, pid };
    Hello::Exec { program }
}

#[test]
fn a_process_joins_by_either_socket_and_is_reclaimed_when_its_connection_closes() {
    for both in [true, false] {
        let mut supervisor = start(1024, None);
        let thread = join(port(&supervisor, both), OWN_IMAGE);
        until(&mut supervisor, |h| h.iter().any(joined));
        let member = thread.join().unwrap().unwrap();
        assert_eq!(member.welcome.frames, 1024);
        assert_eq!(
            supervisor.members().collect::<Vec<_>>(),
            [(member.welcome.slot(), getpid())]
        );
        member
            .map_stats_page()
            .unwrap()
            .block(member.welcome.slot())
            .add(Counter::Faults, 3);
        member
            .connection
            .send(ChildMessage::Notice(b"hello"))
            .unwrap();
        drop(member);
        let events = until(&mut supervisor, |h| {
            h.iter().any(|e| matches!(e, TreeEvent::Left { .. }))
        });
        assert!(events.contains(&TreeEvent::Notice {
            pid: getpid(),
            text: "hello".into()
        }));
        assert_eq!(supervisor.members().count(), 0);
        assert_eq!(
            supervisor.counter(Counter::Faults),
            3,
            "figures survive their process"
        );
    }
}

#[test]
fn a_second_image_of_one_process_takes_the_place_of_the_first() {
    let mut supervisor = start(1024, None);
    let port = port(&supervisor, true);
    let first = join(port, OWN_IMAGE);
    until(&mut supervisor, |h| h.iter().any(joined));
    let first = first.join().unwrap().unwrap();
    let second = join(port, OWN_IMAGE);
    let events = until(&mut supervisor, |h| h.iter().any(joined));
    assert!(matches!(events[0], TreeEvent::Left { .. }));
    second.join().unwrap().unwrap();
    drop(first);
}

/// Sends the supervisor a descriptor, and garbage, by its name.
fn send_by_name(name: &[u8], fd: rustix::fd::BorrowedFd<'_>) -> rustix::fd::OwnedFd {
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, socket};
    let connection = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name).unwrap();
    connect(&connection, &address).unwrap();
    host::seqpacket::send(&connection, b"garbage", &[fd], SendFlags::empty()).unwrap();
    connection
}

/// Sends a descriptor whose close takes a minute, and which no other process has. Checks that another
/// process is admitted meanwhile.
fn serves_while_it_closes(
    send: impl FnOnce(&Supervisor, rustix::fd::OwnedFd) -> Option<rustix::fd::OwnedFd>,
) {
    let mut supervisor = start(1024, None);
    let (slow, other) = host::fd_reaper::lingering_socket(Duration::from_secs(60)).unwrap();
    let connection = send(&supervisor, slow);
    let begin = Instant::now();
    supervisor.dispatch();
    let member = join(port(&supervisor, true), OWN_IMAGE);
    until(&mut supervisor, |h| h.iter().any(joined));
    assert!(begin.elapsed() < Duration::from_secs(30), "it has waited");
    member.join().unwrap().unwrap();
    // The closing thread ends.
    drop((connection, other));
}

#[test]
fn descriptors_from_a_process_of_the_tree_are_closed_outside_the_loop() {
    serves_while_it_closes(|supervisor, slow| {
        let flags = rustix::net::SendFlags::empty();
        host::seqpacket::send(
            supervisor.inherited_port(),
            b"garbage",
            &[slow.as_fd()],
            flags,
        )
        .unwrap();
        None
    });
    serves_while_it_closes(|supervisor, slow| {
        let name = &supervisor.environment(0).unwrap()[1].1;
        Some(send_by_name(name.as_encoded_bytes(), slow.as_fd()))
    });
}

#[test]
fn descriptors_from_a_process_of_another_tree_are_closed_outside_the_loop() {
    serves_while_it_closes(|supervisor, slow| {
        let name = &supervisor.environment(0).unwrap()[1].1;
        let (sent, send) = std::io::pipe().unwrap();
        let parent = child(|| {
            let parent = getpid();
            child(|| {
                while rustix::process::getppid() == Some(parent) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let _connection = send_by_name(name.as_encoded_bytes(), slow.as_fd());
                drop(slow);
                send_byte(&send);
            });
        });
        rustix::process::waitpid(Some(parent), rustix::process::WaitOptions::empty()).unwrap();
        await_byte(&sent);
        None
    });
}

/// Waits for a byte of another process.
fn await_byte(from: &std::io::PipeReader) {
    use std::io::Read;
    let mut from = from;
    assert_eq!(from.read(&mut [0]).unwrap(), 1);
}

fn send_byte(to: &std::io::PipeWriter) {
    use std::io::Write;
    let mut to = to;
    to.write_all(&[1]).unwrap();
}

/// A socket whose peer's close kills `program`, and the peer.
fn lifeline(program: Pid) -> (rustix::fd::OwnedFd, rustix::fd::OwnedFd) {
    const F_SETSIG: i32 = 10;
    let (end, peer) = host::seqpacket::pair().unwrap();
    let fcntl = |command: i32, argument: i32| {
        // SAFETY: changes the socket alone.
        let result = unsafe { libc::fcntl(end.as_raw_fd(), command, argument) };
        assert!(result >= 0);
    };
    fcntl(libc::F_SETOWN, program.as_raw_nonzero().get());
    fcntl(F_SETSIG, libc::SIGKILL);
    fcntl(libc::F_SETFL, libc::O_ASYNC);
    (end, peer)
}

#[test]
fn a_program_survives_the_pager_of_its_previous_image_though_that_lifeline_arrives_after_the_next_image()
 {
    let mut supervisor = start(1024, None);
    let port = port(&supervisor, true);
    let [
        (reports, report),
        (may_send_lifeline, allow_lifeline),
        (may_begin, allow_begin),
    ] = [(); 3].map(|()| std::io::pipe().unwrap());
    let program = child(|| {
        let program = getpid();
        child(|| {
            let joined = port.join(image_of(program)).unwrap();
            send_byte(&report);
            await_byte(&may_send_lifeline);
            let (end, _peer) = lifeline(program);
            joined
                .connection
                .send_lifeline(end.as_fd(), None, None)
                .unwrap();
            send_byte(&report);
            sleep();
        });
        child(|| {
            await_byte(&may_begin);
            let _joined = port.join(image_of(program)).unwrap();
            sleep();
        });
        sleep();
    });
    until(&mut supervisor, |h| h.iter().any(joined));
    await_byte(&reports);
    // The next image's message is in the queue before the lifeline.
    send_byte(&allow_begin);
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
        supervisor.fd(),
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, None).unwrap();
    send_byte(&allow_lifeline);
    await_byte(&reports);
    until(&mut supervisor, |h| {
        h.iter().any(joined) && h.iter().any(|e| matches!(e, TreeEvent::Left { .. }))
    });
    let mut status = 0;
    // SAFETY: our own child and a local word.
    let ended =
        unsafe { libc::waitpid(program.as_raw_nonzero().get(), &mut status, libc::WNOHANG) };
    assert_eq!((ended, status), (0, 0), "the program has ended");
    end(program);
}

#[test]
fn a_dead_process_is_reclaimed_though_a_copy_of_its_connection_stays_open() {
    let mut supervisor = start(1024, None);
    let mut child: Child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = Pid::from_child(&child);
    // The child's first message, as the kernel would deliver it for the child.
    let (ours, theirs) = host::seqpacket::pair().unwrap();
    supervisor.admit_for_test(theirs, pid);
    until(&mut supervisor, |_| true);
    assert_eq!(supervisor.members().count(), 1);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    until(&mut supervisor, |h| {
        h.iter().any(|e| matches!(e, TreeEvent::Left { .. }))
    });
    assert_eq!(supervisor.members().count(), 0);
    drop(ours);
}

#[test]
fn without_the_filter_a_request_for_a_connection_is_an_error() {
    let outcome = SupervisorPort::BY_FILTER.join(OWN_IMAGE);
    assert!(
        matches!(
            outcome,
            Err(JoinError::Unreachable(rustix::io::Errno::BADF))
        ),
        "{outcome:?}"
    );
}

#[test]
fn a_process_under_the_filter_needs_neither_a_descriptor_nor_a_name() {
    let mut supervisor = Supervisor::start(settings(1024)).unwrap();
    let (ours, theirs) = host::seqpacket::pair().unwrap();
    let process = child(|| {
        let listener = host::seccomp::install();
        let fds: Vec<_> = listener.iter().map(AsFd::as_fd).collect();
        let errno = listener.as_ref().err().map_or(0, |e| e.raw_os_error());
        let sent = host::seqpacket::send(
            &theirs,
            &errno.to_ne_bytes(),
            &fds,
            rustix::net::SendFlags::empty(),
        );
        sent.unwrap();
        // SAFETY: closes all that this child has inherited; it uses none of it any more.
        unsafe { libc::close_range(0, u32::MAX, 0) };
        let member = SupervisorPort::BY_FILTER.join(OWN_IMAGE).unwrap();
        member
            .connection
            .send(ChildMessage::Notice(b"is in"))
            .unwrap();
        std::thread::sleep(Duration::from_secs(20));
    });
    let mut first = host::seqpacket::receive(&ours, rustix::net::RecvFlags::empty()).unwrap();
    let Some(listener) = first.fds[0].take() else {
        end(process);
        let errno = i32::from_ne_bytes(first.as_slice().try_into().unwrap());
        let why = std::io::Error::from_raw_os_error(errno);
        return println!("SKIPPED: no filter can be installed here: {why}");
    };
    supervisor
        .serve_filter(listener.try_clone().unwrap())
        .unwrap();
    let mut notifier = supervisor::direct_io_filter::Notifier::new(listener);
    let (mut events, begin) = (Vec::new(), Instant::now());
    let is_in =
        |event: &TreeEvent| matches!(event, TreeEvent::Notice { text, .. } if text == "is in");
    while !events.iter().any(is_in) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{events:?}");
        if is_readable(notifier.fd()) {
            notifier.receive(supervisor.stats_page()).unwrap();
        }
        let requests = notifier.take_requests();
        requests
            .into_iter()
            .for_each(|request| supervisor.connect(request));
        events.extend(supervisor.dispatch());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(events[0], TreeEvent::Joined { pid, .. } if pid == process));
    end(process);
}
