//! Services whose keeper and manager end, both: systemd has the descriptors, and guests notice a pause alone.

use crate::Test;
use crate::common::{Guest, await_that, mib};
use crate::guest::{PAGE, open_userfaultfd, page_to_hand_over, register, send, word};
use crate::kept_service::KeptService;
use crate::systemd::Systemd;
use rustix::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub const TESTS: &[Test] = &[
    (
        "guests_outlive_keeper_and_manager",
        guests_outlive_keeper_and_manager,
    ),
    (
        "a_service_that_is_stopped_and_started_has_its_guests",
        a_service_that_is_stopped_and_started_has_its_guests,
    ),
    (
        "a_hand_off_that_a_killed_service_was_receiving_is_received_again",
        a_hand_off_that_a_killed_service_was_receiving_is_received_again,
    ),
    (
        "a_guest_for_which_systemd_has_no_room_is_refused",
        a_guest_for_which_systemd_has_no_room_is_refused,
    ),
    (
        "a_service_with_other_options_is_refused_and_the_former_goes_on",
        a_service_with_other_options_is_refused_and_the_former_goes_on,
    ),
    (
        "a_guest_with_a_descriptor_of_another_kind_waits_and_others_are_served",
        a_guest_with_a_descriptor_of_another_kind_waits_and_others_are_served,
    ),
    (
        "memory_that_is_handed_over_in_two_parts_is_served_on",
        memory_that_is_handed_over_in_two_parts_is_served_on,
    ),
];

/// What a service has stored without guests.
const OWN: [&str; 3] = ["control", "handoffs", "manager"];

/// Kills of each kind of memory; the environment has another number.
const KILLS: usize = 6;

fn kills() -> usize {
    let wanted = std::env::var("SELFPAGE_TEST_KILLS").ok();
    wanted.map_or(KILLS, |it| it.parse().expect("SELFPAGE_TEST_KILLS"))
}

fn service(pages: usize, contract: &str, cache: &str) -> KeptService {
    let systemd = Systemd::start(200);
    KeptService::start_under(Some(systemd), pages, &[contract, cache, "lenient"])
}

/// A guest that has no descriptor of its userfaultfd: without another one its missing pages would read zero.
fn guest(service: &KeptService, kind: &str, pages: usize) -> Guest {
    let mut guest = service.guest(kind, pages * PAGE);
    // What is served is stored.
    assert_eq!(guest.wrong("verify 0 1 0"), 0);
    assert_eq!(guest.run("forget"), "forgotten");
    guest
}

fn await_names(service: &KeptService, wanted: &[&str]) {
    await_that("systemd has what there is", || {
        let mut names = service.systemd().names();
        names.sort();
        names == wanted
    });
}

/// Kills keeper and manager while a guest writes, checks and discards pages.
fn endure(kind: &str, contract: &str, cache: &str, kills: usize) {
    let pages = mib(16);
    let mut service = service(pages, contract, cache);
    let mut quiet = guest(&service, kind, pages);
    assert_eq!(quiet.wrong(&format!("verify 0 {} 0", pages / 2)), 0);
    let mut loaded = guest(&service, kind, pages);
    loaded.run("endure 3");
    let mut random = fastrand::Rng::with_seed(kills as u64);
    for kill in 0..kills {
        std::thread::sleep(Duration::from_micros(random.u64(..60_000)));
        let pause = Duration::from_micros(random.u64(..5_000));
        service.kill_both(kill % 2 == 0, pause);
        service.start_again();
        await_that("the next manager serves", || {
            service.clients().is_some_and(|clients| clients.len() == 2)
        });
    }
    let reply = loaded.run("endured");
    let [wrong, steps, longest] = [0, 1, 2].map(|at| {
        let number = reply.split(' ').nth(at).and_then(|it| it.parse().ok());
        number.unwrap_or_else(|| panic!("the guest has ended: {reply:?}"))
    });
    let longest = longest / 1000_u64;
    println!("{kind}, {contract}: {kills} kills, {steps} steps, longest {longest} ms");
    assert_eq!((wrong, service.counter("lost_pages")), (0, 0));
    assert!(steps > 0 && service.counter("restarts") >= kills as u64);
    assert_eq!(quiet.wrong(&format!("verify 0 {pages} 0")), 0);
    drop((loaded, quiet));
    let own: Vec<_> = [&["cache"][usize::from(cache == "-")..], &OWN].concat();
    await_names(&service, &own);
}

fn guests_outlive_keeper_and_manager() {
    let folder = tempfile::tempdir().unwrap();
    let disk = format!("ram:1M+disk:{},size=512M,grow", folder.path().display());
    for store in ["ram:32M", &disk] {
        endure("memfd", store, "-", kills());
    }
    endure("private", "-", "-", kills());
    let name = format!("/dev/shm/selfpage-test-fdstore-{}", std::process::id());
    endure(&format!("cache:{name}"), "-", &name, kills());
    std::fs::remove_file(name).unwrap();
}

fn a_service_that_is_stopped_and_started_has_its_guests() {
    let pages = mib(8);
    let mut service = service(pages, "ram:32M", "-");
    let mut stays = guest(&service, "memfd", pages);
    stays.run(&format!("write 0 {pages} 1"));
    let leaves = guest(&service, "memfd", pages);
    let names = service.systemd().names();
    for start in 1..4 {
        await_that("systemd knows that the service is ready", || {
            service.systemd().ready() == start
        });
        service.stop();
        service.start_again();
        assert_eq!(stays.wrong(&format!("verify 0 {pages} 1")), 0);
    }
    assert_eq!(service.systemd().names(), names, "nothing was stored twice");
    service.stop();
    drop(leaves);
    // Where a socket is, no service is needed to connect.
    let mut comes = service.guest("memfd", pages * PAGE);
    comes.begin(&format!("verify 0 {pages} 0"));
    service.start_again();
    assert_eq!(comes.finish(), "0");
    assert_eq!(stays.wrong(&format!("verify 0 {pages} 1")), 0);
    await_that("the guest that has left is released", || {
        service.clients().is_some_and(|it| it.len() == 2)
    });
    let numbers: Vec<_> = service
        .clients()
        .unwrap()
        .iter()
        .map(|it| it.number)
        .collect();
    assert_eq!(numbers, [1, 3], "a number is given once");
    drop((stays, comes));
    await_names(&service, &OWN);
}

fn a_hand_off_that_a_killed_service_was_receiving_is_received_again() {
    for is_complete_before_the_manager_ends in [false, true] {
        receive_again(is_complete_before_the_manager_ends);
    }
}

/// Hands a page over in two parts; the keeper is killed between them, and its manager before or after the second.
fn receive_again(is_complete_before_the_manager_ends: bool) {
    let mut service = service(mib(1), "-", "-");
    let (uffd, memory, text) = page_to_hand_over();
    let (head, tail) = text.as_bytes().split_at(20);
    let peer = UnixStream::connect(service.socket()).unwrap();
    send(&peer, head, &[uffd.as_fd()]);
    drop(uffd);
    await_that("systemd has the connection", || {
        service.systemd().names().contains(&"0.c".to_owned())
    });
    if is_complete_before_the_manager_ends {
        let manager = service.manager().expect("a manager");
        service.end_keeper();
        send(&peer, tail, &[]);
        // The manager neither serves nor refuses what systemd does not have.
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: the manager, which no process waits for.
        unsafe { libc::kill(manager, libc::SIGKILL) };
    } else {
        service.kill_both(true, Duration::ZERO);
        send(&peer, tail, &[]);
    }
    service.start_again();
    // SAFETY: the mapping above, whose faults a manager answers.
    let seen = unsafe { memory.cast::<u64>().read_volatile() };
    assert_eq!(seen, word(0, 0, 0));
    let clients = service.clients().expect("a manager");
    let restarts: Vec<_> = clients.iter().map(|it| it.counters["restarts"]).collect();
    assert_eq!(restarts, [0], "no manager before has served it");
    // SAFETY: as above; no fault of it is left to serve.
    unsafe { libc::munmap(memory, PAGE) };
}

fn a_guest_for_which_systemd_has_no_room_is_refused() {
    let pages = mib(1);
    let room = OWN.len() + 5;
    let systemd = Systemd::start(room);
    let mut service = KeptService::start_under(Some(systemd), pages, &["-", "-", "lenient"]);
    let mut first = guest(&service, "private", pages);
    let mut names = service.systemd().names();
    names.sort();
    assert_eq!(
        names,
        [
            "0.c", "0.p0", "0.r0", "0.u0", "control", "handoffs", "manager"
        ]
    );
    let mut second = service.guest("private", pages * PAGE);
    second.await_refusal();
    await_that("what was stored of it is removed", || {
        service.systemd().names().len() == names.len()
    });
    service.kill_both(false, Duration::ZERO);
    service.start_again();
    assert_eq!(first.wrong(&format!("verify 0 {pages} 0")), 0);
    drop(first);
    await_names(&service, &OWN);
    let mut third = guest(&service, "private", pages);
    assert_eq!(third.wrong(&format!("verify 0 {pages} 0")), 0);
}

fn a_service_with_other_options_is_refused_and_the_former_goes_on() {
    let pages = mib(4);
    let mut service = service(pages, "ram:32M", "-");
    let mut guest = guest(&service, "memfd", pages);
    guest.run(&format!("write 0 {pages} 1"));
    service.stop();
    let refusal = service.refusal(0, "ram:64M");
    assert!(refusal.contains("had \"--store ram:32MiB\""), "{refusal}");
    service.start_again();
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 1")), 0);
}

fn a_guest_with_a_descriptor_of_another_kind_waits_and_others_are_served() {
    let pages = mib(4);
    let mut service = service(pages, "ram:32M", "-");
    let mut guests = [(); 4].map(|()| guest(&service, "memfd", pages));
    let names = service.systemd().names();
    service.stop();
    let other = || rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    // Without the userfaultfd a page would read zero.
    let _former = ["1.u0", "2.r0", "3.s0"].map(|name| service.systemd().replace(name, other()));
    service.start_again();
    assert_eq!(guests[0].wrong(&format!("verify 0 {pages} 0")), 0);
    let mut comes = guest(&service, "memfd", pages);
    assert_eq!(comes.wrong(&format!("verify 0 {pages} 0")), 0);
    let numbers: Vec<_> = (service.clients().unwrap().iter())
        .map(|it| it.number)
        .collect();
    assert_eq!(numbers, [1, 5]);
    for guest in &mut guests[1..] {
        guest.begin(&format!("verify 0 {pages} 0"));
    }
    drop(comes);
    // Nothing of those that wait is removed.
    await_that("the last is released", || {
        service.systemd().names().len() == names.len()
    });
    for guest in &mut guests[1..] {
        assert!(!guest.has_replied(), "it waits");
    }
}

/// A VMM with one memfd, and two mappings of it that it hands over by themselves.
fn memory_that_is_handed_over_in_two_parts_is_served_on() {
    let mut service = service(mib(1), "-", "-");
    let memfd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, 2 * PAGE as u64).unwrap();
    let parts = [0, PAGE].map(|offset| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, at) = (memfd.as_raw_fd(), offset as i64);
        // SAFETY: a new mapping, where the kernel chooses.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, libc::MAP_SHARED, fd, at) };
        let uffd = open_userfaultfd();
        register(&uffd, memory as usize, PAGE);
        let text = format!(
            r#"[{{"base_host_virt_addr":{},"size":{PAGE},"offset":{offset},"page_size":{PAGE}}}]"#,
            memory as usize
        );
        let peer = UnixStream::connect(service.socket()).unwrap();
        send(&peer, text.as_bytes(), &[uffd.as_fd(), memfd.as_fd()]);
        (memory, peer)
    });
    let names = ["0.m0", "0.r0", "1.m0", "1.r0"].map(str::to_owned);
    await_that("systemd has both", || {
        let stored = service.systemd().names();
        names.iter().all(|name| stored.contains(name))
    });
    service.kill_both(true, Duration::ZERO);
    service.start_again();
    for (page, (memory, _)) in parts.iter().enumerate() {
        // SAFETY: the mapping above, whose faults a manager answers.
        let seen = unsafe { memory.cast::<u64>().read_volatile() };
        assert_eq!(seen, word(page, 0, 0));
        // SAFETY: as above; no fault of it is left to serve.
        unsafe { libc::munmap(*memory, PAGE) };
    }
}
