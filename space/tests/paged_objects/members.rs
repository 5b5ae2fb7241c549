//! What a process of a pager leaves to the others, and what remains when one of them ends that has forked.

use crate::common::{PAGE, alone, fork, in_child, read_write, sockets, wait};
use crate::pager::{FRAMES, PAGES, Pager, SIZE, check, hear, say, write};
use rustix::process::{Resource, Rlimit, setrlimit};
use selfpage::Contract;
use space::{AddressSpace, MemoryObject, ObjectPager, PagedMemory};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A child of the calling process, which has copies of all its descriptors, until it is killed.
fn fork_idle() -> i32 {
    fork(|| {
        loop {
            std::thread::park();
        }
    })
}

fn send_pid(socket: &OwnedFd, pid: i32) {
    rustix::io::write(socket, &pid.to_ne_bytes()).unwrap();
}

fn receive_pid(socket: &OwnedFd) -> i32 {
    let mut pid = [0; 4];
    assert_eq!(rustix::io::read(socket, &mut pid), Ok(4));
    i32::from_ne_bytes(pid)
}

fn kill(pid: i32) {
    // SAFETY: a process that a test has started, and whose end no other code awaits.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

#[test]
fn a_killed_process_gives_its_objects_and_pins_back_though_its_child_lives() {
    let _alone = alone();
    let ended = in_child(|| {
        let pager = ObjectPager::start(Contract::from(FRAMES), &"ram:64M".parse().unwrap());
        let pager = pager.unwrap();
        let (ours, theirs) = sockets();
        let (connection, served) = sockets();
        let member = fork(|| {
            let memory = PagedMemory::new(connection.try_clone().unwrap()).unwrap();
            let object = memory.create(SIZE as u64).unwrap();
            let space = AddressSpace::without_domain(6).unwrap();
            let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
            let _pin = space.pin(at, FRAMES as usize / 2 * PAGE).unwrap();
            send_pid(&theirs, fork_idle());
            loop {
                std::thread::park();
            }
        });
        drop(connection);
        pager.serve(served).unwrap();
        let child = receive_pid(&ours);
        kill(member);
        assert_eq!(wait(member), Err(libc::SIGKILL));
        let begin = Instant::now();
        while pager.frames_in_use() > FRAMES / 8 {
            if begin.elapsed() > Duration::from_secs(30) {
                kill(child);
                panic!("{} frames", pager.frames_in_use());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let memory = PagedMemory::new(pager.connect().unwrap()).unwrap();
        let object = memory.create(SIZE as u64).unwrap();
        let space = AddressSpace::without_domain(6).unwrap();
        let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
        let pinned = space.pin(at, FRAMES as usize / 2 * PAGE).map(drop);
        kill(child);
        pinned.unwrap();
        0
    });
    assert_eq!(ended, Ok(0));
}

/// The child has the pager's end of each connection.
#[test]
fn the_end_of_a_pager_whose_child_lives_ends_processes_with_objects_and_requests_of_others() {
    let _alone = alone();
    let (ours, theirs) = sockets();
    let mut pager = Pager::start_with(2, || send_pid(&theirs, fork_idle()));
    let child = receive_pid(&ours);
    let connection = pager.connections.pop().unwrap();
    // An alarm ends them where nothing else does.
    let user = fork(|| {
        // SAFETY: no handler is set; below, too.
        unsafe { libc::alarm(30) };
        let memory = PagedMemory::new(connection).unwrap();
        let object = memory.create(SIZE as u64).unwrap();
        let space = AddressSpace::without_domain(6).unwrap();
        let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
        write(at, 0..PAGES, 3);
        say(&theirs);
        loop {
            check(at, 0..PAGES, 3);
        }
    });
    hear(&ours);
    let connection = pager.connections.pop().unwrap();
    let idle = fork(|| {
        // SAFETY: as above.
        unsafe { libc::alarm(30) };
        let memory = PagedMemory::new(connection).unwrap();
        say(&theirs);
        hear(&theirs);
        i32::from(memory.create(SIZE as u64).is_ok())
    });
    hear(&ours);
    pager.kill();
    say(&ours);
    let ended = [user, idle].map(wait);
    kill(child);
    assert_eq!(ended, [Err(libc::SIGABRT), Ok(0)]);
}

/// Creates objects until the pager refuses one of `least` bytes; halves the size where it refuses.
fn take_all(memory: &PagedMemory, mut size: u64, least: u64) -> (Vec<MemoryObject>, String) {
    let mut objects = Vec::new();
    loop {
        match memory.create(size) {
            Ok(object) => objects.push(object),
            Err(why) if size == least => return (objects, why.to_string()),
            Err(_) => size /= 2,
        }
    }
}

#[test]
fn a_process_that_takes_all_it_gets_leaves_objects_and_addresses_to_others() {
    let _alone = alone();
    const DESCRIPTORS: u64 = 1024;
    const LEAST: u64 = 64 << 10;
    let ended = in_child(|| {
        let limit = Some(DESCRIPTORS);
        let (current, maximum) = (limit, limit);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        let pager = ObjectPager::start(Contract::from(FRAMES), &"ram:64M".parse().unwrap());
        let pager = pager.unwrap();
        let [first, second] = [0; 2].map(|_| PagedMemory::new(pager.connect().unwrap()).unwrap());
        for size in [LEAST, 1 << 46] {
            let (objects, why) = take_all(&first, size, LEAST);
            assert!(!objects.is_empty());
            assert_eq!(
                why.matches("the pager of memory objects").count(),
                1,
                "{why}"
            );
            second.create(SIZE as u64).unwrap();
            drop(objects);
        }
        let own = second.create(SIZE as u64).unwrap();
        first.create(SIZE as u64).unwrap();
        drop(own);
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn a_process_that_may_open_no_more_descriptors_ends_with_its_pager() {
    let _alone = alone();
    let mut pager = Pager::start(1);
    let connection = pager.connections.pop().unwrap();
    let (ours, theirs) = sockets();
    let user = fork(|| {
        // Ends it where nothing else does.
        // SAFETY: concerns the calling child alone; below, too.
        unsafe { libc::alarm(30) };
        let memory = PagedMemory::new(connection).unwrap();
        let _object = memory.create(SIZE as u64).unwrap();
        let limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        say(&theirs);
        loop {
            std::thread::park();
        }
    });
    hear(&ours);
    // A wait is made again after a stop.
    let mut status = 0;
    // SAFETY: this test's own child.
    unsafe {
        libc::kill(user, libc::SIGSTOP);
        assert_eq!(libc::waitpid(user, &mut status, libc::WUNTRACED), user);
        libc::kill(user, libc::SIGCONT);
    }
    pager.kill();
    assert_eq!(wait(user), Err(libc::SIGABRT));
}
