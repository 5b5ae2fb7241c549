//! Managers that are killed: a keeper in a process of its own starts another one, and guests notice a pause alone.

use crate::Test;
use crate::common::{Guest, await_that, mib};
use crate::guest::PAGE;
use crate::kept_service::KeptService;
use host::fd_reaper::lingering_socket;
use host::seqpacket;
use manager::control::{ControlReply, ControlRequest, request};
use manager::save::SaveEvent;
use rustix::fd::AsFd;
use rustix::net::SendFlags;
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    (
        "killed_managers_of_evicted_memory_lose_nothing",
        killed_managers_of_evicted_memory_lose_nothing,
    ),
    (
        "killed_managers_of_private_memory_lose_nothing",
        killed_managers_of_private_memory_lose_nothing,
    ),
    (
        "a_killed_manager_ends_its_saves_and_leaves_no_file",
        a_killed_manager_ends_its_saves_and_leaves_no_file,
    ),
    (
        "a_hand_off_that_a_killed_manager_was_receiving_is_received_again",
        a_hand_off_that_a_killed_manager_was_receiving_is_received_again,
    ),
    (
        "a_manager_outlives_its_keeper",
        a_manager_outlives_its_keeper,
    ),
    (
        "managers_that_end_at_each_start_are_given_up",
        managers_that_end_at_each_start_are_given_up,
    ),
    (
        "a_guest_without_manager_and_keeper_loses_its_connection",
        a_guest_without_manager_and_keeper_loses_its_connection,
    ),
    (
        "a_refused_peer_whose_close_takes_long_delays_no_guest",
        a_refused_peer_whose_close_takes_long_delays_no_guest,
    ),
    (
        "a_guest_that_a_killed_manager_waits_for_delays_itself_alone",
        a_guest_that_a_killed_manager_waits_for_delays_itself_alone,
    ),
];

/// Kills of each test that kills again and again; the environment has another number.
const KILLS: usize = 40;

fn kills() -> usize {
    let wanted = std::env::var("SELFPAGE_TEST_KILLS").ok();
    wanted.map_or(KILLS, |it| it.parse().expect("SELFPAGE_TEST_KILLS"))
}

/// Kills managers while a guest writes, checks and discards pages, and others come and go.
fn endure(kind: &str, contract: &str, cache: &str, kills: usize) {
    let pages = mib(16);
    let service = KeptService::start(pages, contract, cache, "lenient");
    let mut guest = service.guest(kind, pages * PAGE);
    await_that("the guest is admitted", || {
        service.clients().is_some_and(|clients| !clients.is_empty())
    });
    // The keeper has it: a hand-off that is received again has another number.
    assert_eq!(guest.wrong("verify 0 1 0"), 0);
    guest.run("endure 3");
    let mut random = fastrand::Rng::with_seed(kills as u64);
    let mut visitor: Option<Guest> = None;
    let mut last = 0;
    for kill in 0..kills {
        if kill % 4 == 0 {
            let mut next = service.guest(kind, pages * PAGE);
            next.begin("verify 0 400 0");
            if let Some(mut before) = visitor.replace(next) {
                assert_eq!(before.finish(), "0", "a guest that came meanwhile");
            }
        }
        std::thread::sleep(Duration::from_micros(random.u64(..60_000)));
        last = service.kill_manager(last);
    }
    if let Some(mut visitor) = visitor {
        assert_eq!(visitor.finish(), "0", "a guest that came meanwhile");
    }
    let reply = guest.run("endured");
    let [wrong, steps, longest] = [0, 1, 2].map(|at| {
        let number = reply.split(' ').nth(at).and_then(|it| it.parse().ok());
        number.unwrap_or_else(|| panic!("the guest has ended: {reply:?}"))
    });
    let restarts = service.counter("restarts");
    let lost = service.counter("lost_pages");
    println!(
        "{kind}, {contract}: {kills} kills, {restarts} seen by the guest's record, {steps} steps, longest {} ms",
        longest / 1000_u64
    );
    assert_eq!((wrong, lost), (0, 0));
    assert!(restarts > 0 && steps > 0);
    if kind == "memfd" {
        // Every page has contents, and the last manager knows which are in frames.
        guest.run(&format!("write 0 {pages} 1"));
        let frames = guest.wrong("frames");
        assert!(frames <= mib(2), "{frames} frames");
        await_that("the counter is current", || {
            service.counter("resident_pages") == frames as u64
        });
    }
}

fn killed_managers_of_evicted_memory_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().display();
    for store in [
        "ram:32M".to_owned(),
        format!("disk:{disk},size=32M"),
        format!("ram:1M+disk:{disk},size=512M,grow"),
    ] {
        endure("memfd", &store, "-", kills().div_ceil(3));
    }
}

fn killed_managers_of_private_memory_lose_nothing() {
    endure("private", "-", "-", kills().div_ceil(2));
    let name = format!("/dev/shm/selfpage-test-restart-{}", std::process::id());
    endure(&format!("cache:{name}"), "-", &name, kills().div_ceil(2));
    std::fs::remove_file(name).unwrap();
}

fn a_killed_manager_ends_its_saves_and_leaves_no_file() {
    let pages = mib(64);
    let service = KeptService::start(pages, "-", "-", "lenient");
    let mut guest = service.guest("private", pages * PAGE);
    guest.run(&format!("write 0 {pages} 1"));
    let to = service.folder.path().join("differential");
    let save = ControlRequest::Save {
        client: 1,
        to: to.clone(),
    };
    let mut last = 0;
    let mut was_interrupted = false;
    for _ in 0..20 {
        await_that("the guest is served", || {
            service.clients().is_some_and(|clients| !clients.is_empty())
        });
        let mut events = Vec::new();
        for reply in request(&service.socket(), &save).unwrap() {
            match reply {
                Ok(ControlReply::Save(SaveEvent::Protected { .. })) => {
                    last = service.kill_manager(last)
                }
                Ok(other) => events.push(format!("{other:?}")),
                // The connection ended with the manager.
                Err(_) => break,
            }
        }
        was_interrupted |= events.is_empty();
        await_that("the guest is served again", || {
            service.clients().is_some_and(|clients| !clients.is_empty())
        });
        let parts = std::fs::read_dir(service.folder.path()).unwrap().flatten();
        let parts = parts.filter(|it| it.file_name().to_string_lossy().contains(".part."));
        assert_eq!(parts.count(), 0, "a part of a save is left");
        let _ = std::fs::remove_file(&to);
    }
    assert!(
        was_interrupted,
        "every save was faster than its manager's end"
    );
    guest.run(&format!("write 0 {pages} 2"));
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 2")), 0);
    // And it is saved again.
    let last = request(&service.socket(), &save).unwrap().last().unwrap();
    assert!(
        matches!(last, Ok(ControlReply::Save(SaveEvent::Saved { .. }))),
        "{last:?}"
    );
}

fn a_hand_off_that_a_killed_manager_was_receiving_is_received_again() {
    use crate::guest::{page_to_hand_over, send, word};
    use rustix::fd::AsFd;
    let service = KeptService::start(mib(1), "-", "-", "lenient");
    let (uffd, memory, text) = page_to_hand_over();
    let (head, tail) = text.as_bytes().split_at(20);
    let peer = std::os::unix::net::UnixStream::connect(service.socket()).unwrap();
    // Its descriptor comes with the first part, and a manager is killed after each.
    send(&peer, head, &[uffd.as_fd()]);
    std::thread::sleep(Duration::from_millis(20));
    let first = service.kill_manager(0);
    send(&peer, tail, &[]);
    // SAFETY: the mapping above, whose faults a manager answers.
    let seen = unsafe { memory.cast::<u64>().read_volatile() };
    assert_eq!(seen, word(0, 0, 0));
    service.kill_manager(first);
    await_that("the client is served again", || {
        service.counter("restarts") > 0
    });
    // SAFETY: as above; no fault of it is left to serve.
    unsafe { libc::munmap(memory, PAGE) };
}

fn a_manager_outlives_its_keeper() {
    let pages = mib(8);
    let mut service = KeptService::start(pages, "ram:32M", "-", "lenient");
    let mut guest = service.guest("memfd", pages * PAGE);
    guest.run(&format!("write 0 {pages} 1"));
    let manager = service.manager().expect("a manager");
    service.end_keeper();
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 1")), 0);
    // It accepts others, too.
    let mut other = service.guest("memfd", pages * PAGE);
    assert_eq!(other.wrong(&format!("verify 0 {pages} 0")), 0);
    // SAFETY: the manager, which no process waits for.
    unsafe { libc::kill(manager, libc::SIGTERM) };
    guest.await_refusal();
}

fn managers_that_end_at_each_start_are_given_up() {
    let pages = mib(1);
    let mut service = KeptService::start(pages, "-", "-", "mortal");
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
    service.kill_manager(0);
    let mut end = String::new();
    let output = service.keeper.stdout.as_mut().expect("its output");
    output.read_to_string(&mut end).unwrap();
    assert_eq!(
        end.trim(),
        format!(
            "GaveUp {{ last: \"signal {}\", clients: 1 }}",
            libc::SIGABRT
        )
    );
    guest.await_refusal();
}

fn a_guest_without_manager_and_keeper_loses_its_connection() {
    let pages = mib(1);
    let mut service = KeptService::start(pages, "-", "-", "lenient");
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong("verify 0 20 0"), 0);
    let manager = service.manager().expect("a manager");
    service.end_keeper();
    // SAFETY: the manager, which no process waits for.
    unsafe { libc::kill(manager, libc::SIGKILL) };
    guest.await_refusal();
    // What is there is there.
    assert_eq!(guest.wrong("verify 0 20 0"), 0);
}

/// The peer sends its descriptor when the manager has refused it, and before the keeper has released its place.
fn a_refused_peer_whose_close_takes_long_delays_no_guest() {
    let pages = mib(4);
    let service = KeptService::start(pages, "-", "-", "lenient");
    let manager = service.manager().expect("a manager");
    let has_client_thread = || {
        let threads = std::fs::read_dir(format!("/proc/{manager}/task"));
        let names = threads.expect("a manager").flatten();
        let mut names = names.filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
        names.any(|name| name.starts_with("selfpage-client"))
    };
    let signal_keeper = |signal| {
        // SAFETY: the keeper, which has not been waited for.
        unsafe { libc::kill(service.keeper.id() as i32, signal) };
    };
    let mut peer = UnixStream::connect(service.socket()).expect("a connection");
    await_that("the manager has the connection", has_client_thread);
    signal_keeper(libc::SIGSTOP);
    peer.write_all(b"garbage").expect("room for a message");
    // The manager refuses it, and waits for the keeper to release its place.
    std::thread::sleep(Duration::from_millis(50));
    let (slow, other) = lingering_socket(Duration::from_secs(60)).expect("a socket");
    if seqpacket::send(&peer, b"x", &[slow.as_fd()], SendFlags::DONTWAIT).is_err() {
        // The manager has ended the connection: the last close would be this one.
        set_socket_linger(&slow, None).expect("an option");
    }
    drop(slow);
    std::thread::sleep(Duration::from_millis(50));
    signal_keeper(libc::SIGCONT);
    let begin = Instant::now();
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
    assert!(begin.elapsed() < Duration::from_secs(30), "it has waited");
    drop(other);
}

/// Returns true if a thread of a process waits uninterruptibly, each time that it is looked at.
fn waits(process: i32) -> bool {
    (0..50).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let threads = std::fs::read_dir(format!("/proc/{process}/task"));
        let threads = threads.expect("a manager").flatten();
        let mut texts =
            threads.filter_map(|it| std::fs::read_to_string(it.path().join("stat")).ok());
        texts.any(|text| text.contains(") D "))
    })
}

fn a_guest_that_a_killed_manager_waits_for_delays_itself_alone() {
    let pages = mib(8);
    let service = KeptService::start(pages, "ram:32M", "-", "lenient");
    let mut bad = service.guest("memfd", pages * PAGE);
    let mut good = service.guest("memfd", pages * PAGE);
    good.run(&format!("write 0 {pages} 1"));
    bad.run("hold");
    bad.run("sweep");
    let manager = service.manager().expect("a manager");
    await_that("a hole waits for the memfd", || waits(manager));
    service.kill_manager(0);
    assert_eq!(good.wrong(&format!("verify 0 {pages} 1")), 0);
    assert_ne!(service.manager(), Some(manager));
    bad.run("let_go");
    let at = bad.run("pause");
    let [version, page] = [0, 1].map(|word| at.split(' ').nth(word).expect("a place"));
    assert_eq!(bad.wrong(&format!("verify 0 {page} {version}")), 0);
}
