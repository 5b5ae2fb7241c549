//! Peers that send half a message, lie, or vanish: they cost only themselves.

use crate::Test;
use crate::common::{Service, await_that, mib};
use crate::guest::{PAGE, open_userfaultfd, send};
use host::fd_reaper::lingering_socket;
use manager::control::control_path;
use rustix::fd::{AsFd, OwnedFd};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("bad_peers_are_refused", bad_peers_are_refused),
    (
        "half_messages_delay_no_other_peer",
        half_messages_delay_no_other_peer,
    ),
    (
        "a_process_that_takes_all_places_loses_the_oldest",
        a_process_that_takes_all_places_loses_the_oldest,
    ),
    (
        "descriptors_whose_close_waits_delay_no_end",
        descriptors_whose_close_waits_delay_no_end,
    ),
    (
        "a_hand_off_may_come_in_pieces",
        a_hand_off_may_come_in_pieces,
    ),
    (
        "a_guest_that_vanishes_leaves_nothing",
        a_guest_that_vanishes_leaves_nothing,
    ),
    (
        "a_truncated_memfd_ends_its_own_guest",
        a_truncated_memfd_ends_its_own_guest,
    ),
    ("a_silent_peer_delays_no_end", a_silent_peer_delays_no_end),
    (
        "a_guest_whose_userfaultfd_blocks_is_seen_to_end",
        a_guest_whose_userfaultfd_blocks_is_seen_to_end,
    ),
    ("a_user_has_a_bound_of_guests", a_user_has_a_bound_of_guests),
    (
        "children_of_a_guest_read_no_zeros_however_many",
        children_of_a_guest_read_no_zeros_however_many,
    ),
    (
        "a_manager_whose_sockets_have_lost_their_names_stops",
        a_manager_whose_sockets_have_lost_their_names_stops,
    ),
];

fn json(addr: usize, size: usize) -> String {
    format!(r#"[{{"base_host_virt_addr":{addr},"size":{size},"offset":0,"page_size":4096}}]"#)
}

/// Returns true if the server closes the connection.
fn is_refused(mut peer: UnixStream) -> bool {
    peer.set_read_timeout(Some(crate::common::PATIENCE))
        .unwrap();
    matches!(peer.read(&mut [0]), Ok(0))
        || peer
            .read(&mut [0])
            .is_err_and(|why| why.kind() == std::io::ErrorKind::ConnectionReset)
}

fn bad_peers_are_refused() {
    let pages = mib(4);
    let service = Service::start(pages, |_| {});
    let mut good = service.guest("private", pages * PAGE);
    let uffd = open_userfaultfd();
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let good_json = json(1 << 32, PAGE);
    let (uffd, file) = (uffd.as_fd(), file.as_fd());
    let cases: [(&str, &[u8], &[rustix::fd::BorrowedFd<'_>]); 7] = [
        ("no descriptor", good_json.as_bytes(), &[]),
        ("not a userfaultfd", good_json.as_bytes(), &[file]),
        ("not memory", good_json.as_bytes(), &[uffd, file]),
        (
            "three descriptors",
            good_json.as_bytes(),
            &[uffd, uffd, file],
        ),
        ("a range that is not mapped", good_json.as_bytes(), &[uffd]),
        ("no JSON", b"\xff\x00garbage", &[uffd]),
        (
            "beyond the snapshot",
            &json(1 << 32, 1 << 40).into_bytes(),
            &[uffd],
        ),
    ];
    for (what, bytes, fds) in cases {
        let peer = UnixStream::connect(service.socket()).unwrap();
        send(&peer, bytes, fds);
        assert!(is_refused(peer), "{what}");
    }
    assert_eq!(good.wrong(&format!("verify 0 {pages} 0")), 0);
}

fn half_messages_delay_no_other_peer() {
    let pages = mib(4);
    let service = Service::start(pages, |_| {});
    let halves: Vec<_> = (0..32)
        .map(|_| {
            let peer = UnixStream::connect(service.socket()).unwrap();
            send(&peer, br#"[{"base_host_virt"#, &[]);
            peer
        })
        .collect();
    let mut good = service.guest("private", pages * PAGE);
    assert_eq!(good.wrong(&format!("verify 0 {pages} 0")), 0);
    assert!(halves.into_iter().all(is_refused));
}

fn a_process_that_takes_all_places_loses_the_oldest() {
    let pages = mib(4);
    let patience = crate::common::PATIENCE;
    let service = Service::start(pages, |config| config.patience = patience);
    let idle: Vec<_> = (0..300)
        .map(|_| UnixStream::connect(service.socket()).unwrap())
        .collect();
    let mut good = service.guest("private", pages * PAGE);
    assert_eq!(good.wrong(&format!("verify 0 {pages} 0")), 0);
    // The guest did not wait until these were late.
    let mut last = idle.last().unwrap();
    last.set_nonblocking(true).unwrap();
    let read = last.read(&mut [0]).map_err(|why| why.kind());
    assert_eq!(read, Err(std::io::ErrorKind::WouldBlock));
    assert!(is_refused(idle.into_iter().next().unwrap()));
}

fn descriptors_whose_close_waits_delay_no_end() {
    let service = Service::start(mib(1), |_| {});
    let (slow, other) = lingering_socket(Duration::from_secs(60)).unwrap();
    let peer = UnixStream::connect(service.socket()).unwrap();
    send(&peer, b"[", &[slow.as_fd()]);
    drop(slow);
    send(&peer, b"x", &[]);
    assert!(is_refused(peer));
    let begin = Instant::now();
    drop(service);
    assert!(begin.elapsed() < Duration::from_secs(30), "it has waited");
    drop(other);
}

fn a_hand_off_may_come_in_pieces() {
    let service = Service::start(mib(1), |_| {});
    let uffd = open_userfaultfd();
    // SAFETY: a new mapping, where the kernel chooses.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0)
    };
    crate::guest::register(&uffd, memory as usize, PAGE);
    let text = json(memory as usize, PAGE);
    let peer = UnixStream::connect(service.socket()).unwrap();
    let (head, tail) = text.as_bytes().split_at(20);
    send(&peer, head, &[]);
    send(&peer, tail, &[]);
    // The descriptor comes last of all.
    send(&peer, b"\n", &[uffd.as_fd()]);
    service.counters(1);
    // SAFETY: the mapping above, whose faults the server answers.
    let seen = unsafe { memory.cast::<u64>().read_volatile() };
    assert_eq!(seen, crate::guest::word(0, 0, 0));
    // SAFETY: as above; the server sees that nothing is left to serve only with this process.
    unsafe { libc::munmap(memory, PAGE) };
}

fn a_guest_that_vanishes_leaves_nothing() {
    let pages = mib(16);
    let service = Service::start(pages, |config| {
        config.contract = Some((mib(2), "ram:32M".parse().unwrap()));
    });
    for _ in 0..5 {
        let mut guest = service.guest("memfd", pages * PAGE);
        guest.begin("storm 4 1000000");
        await_that("it pages", || {
            let clients = service.server.as_ref().unwrap().clients();
            clients
                .iter()
                .any(|it| it.counters.evicted_pages.get() > 100)
        });
        drop(guest);
        service.await_no_clients();
    }
}

fn a_truncated_memfd_ends_its_own_guest() {
    let pages = mib(8);
    let service = Service::start(pages, |config| {
        config.contract = Some((mib(2), "ram:32M".parse().unwrap()));
    });
    let mut bad = service.guest("memfd", pages * PAGE);
    bad.run(&format!("write 0 {pages} 1"));
    let mut good = service.guest("memfd", pages * PAGE);
    good.run(&format!("write 0 {pages} 1"));
    bad.run("truncate");
    bad.begin(&format!("write 0 {pages} 2"));
    assert_eq!(good.wrong(&format!("verify 0 {pages} 1")), 0);
    drop(bad);
    assert_eq!(good.wrong(&format!("verify 0 {pages} 1")), 0);
}

fn a_manager_whose_sockets_have_lost_their_names_stops() {
    let mut service = Service::start(mib(1), |_| {});
    std::fs::remove_file(service.socket()).unwrap();
    std::fs::remove_file(control_path(&service.socket())).unwrap();
    let manager = service.server.take().expect("a server");
    let stop = std::thread::spawn(|| manager.stop());
    await_that("it stops", || stop.is_finished());
}

fn a_silent_peer_delays_no_end() {
    let service = Service::start(mib(1), |config| config.patience = Duration::from_secs(600));
    let mut peer = UnixStream::connect(service.socket()).unwrap();
    send(&peer, b"[", &[]);
    let mut good = service.guest("private", mib(1) * PAGE);
    assert_eq!(good.wrong("verify 0 1 0"), 0);
    let begin = Instant::now();
    drop(service);
    assert!(begin.elapsed() < Duration::from_secs(25), "it has waited");
    assert!(matches!(peer.read(&mut [0]), Ok(0) | Err(_)));
}

fn a_guest_whose_userfaultfd_blocks_is_seen_to_end() {
    let service = Service::start(mib(1), |_| {});
    let mut guest = service.guest("memfd", mib(1) * PAGE);
    assert_eq!(guest.wrong("verify 0 1 0"), 0);
    guest.run("block");
    let to = service.folder.path().join("differential");
    crate::saves::save_complete(&service, &to, || ());
    assert_eq!(guest.wrong(&format!("verify 0 {} 0", mib(1))), 0);
    drop(guest);
    service.await_no_clients();
}

fn children_of_a_guest_read_no_zeros_however_many() {
    let service = Service::start(mib(1), |_| {});
    let mut guest = service.guest("forking", mib(1) * PAGE);
    assert_eq!(guest.wrong("verify 0 1 0"), 0);
    // Others have ended: the last one's fault waits.
    let waits = format!("signal {}", libc::SIGALRM);
    assert_eq!(guest.run("child 17 0 1"), waits);
    // Others live, and there is no room for the last one.
    let fails = format!("signal {}", libc::SIGBUS);
    assert_eq!(guest.run("child 16 1 1"), fails);
    assert_eq!(guest.wrong(&format!("verify 0 {} 0", mib(1))), 0);
}

fn a_user_has_a_bound_of_guests() {
    let service = Service::start(mib(1), |config| config.most_clients_of_a_user = 2);
    let guest = || service.guest("private", mib(1) * PAGE);
    let [first, _second] = [guest(), guest()].map(|mut guest| {
        assert_eq!(guest.wrong("verify 0 1 0"), 0);
        guest
    });
    guest().await_refusal();
    drop(first);
    await_that("there is a place", || {
        service.server.as_ref().unwrap().clients().len() < 2
    });
    assert_eq!(guest().wrong("verify 0 1 0"), 0);
}
