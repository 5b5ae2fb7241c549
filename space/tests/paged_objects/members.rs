//! What a process of a pager leaves to the others, and what remains when one of them ends that has forked.

use crate::common::{PAGE, alone, fork, in_child, read_write, sockets, wait};
use crate::pager::{FRAMES, SIZE};
use selfpage::Contract;
use space::{AddressSpace, ObjectPager, PagedMemory};
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
            let space = AddressSpace::without_domain(4).unwrap();
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
        let space = AddressSpace::without_domain(4).unwrap();
        let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
        let pinned = space.pin(at, FRAMES as usize / 2 * PAGE).map(drop);
        kill(child);
        pinned.unwrap();
        0
    });
    assert_eq!(ended, Ok(0));
}
