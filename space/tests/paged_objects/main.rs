//! Paged memory objects: contents under a contract, mapped in several processes.

#[path = "../common/mod.rs"]
mod common;
mod members;
mod pager;

use common::{PAGE, alone, bytes, bytes_mut, fork, read_write, sockets, wait};
use pager::{FRAMES, PAGES, Pager, SIZE, check, hear, resident, say, write};
use selfpage::Contract;
use space::{AddressSpace, MapFlags, MemoryObject, ObjectPager, PagedMemory, Rights, SpaceError};
use std::time::{Duration, Instant};

#[test]
fn what_one_process_writes_another_reads_within_the_contract() {
    let _alone = alone();
    let mut pager = Pager::start(2);
    let (ours, theirs) = sockets();
    let connection = pager.connections.pop().unwrap();
    let other = fork(|| {
        let memory = PagedMemory::new(connection).unwrap();
        let object = memory.receive(&theirs).unwrap();
        let space = AddressSpace::without_domain(6).unwrap();
        let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
        for round in 0..3 {
            hear(&theirs);
            check(at, 0..PAGES, 2 * round);
            write(at, (0..PAGES).rev(), 2 * round + 1);
            say(&theirs);
        }
        0
    });
    let object = pager.join().create(SIZE as u64).unwrap();
    object.send(&ours).unwrap();
    let space = AddressSpace::without_domain(6).unwrap();
    let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..3 {
        let mut pages: Vec<_> = (0..PAGES).collect();
        random.shuffle(&mut pages);
        write(at, pages.iter().copied(), 2 * round);
        assert!(resident(&object) <= FRAMES.into());
        say(&ours);
        hear(&ours);
        check(at, pages.into_iter(), 2 * round + 1);
    }
    assert!(resident(&object) <= FRAMES.into());
    assert_eq!(wait(other), Ok(0));
    // The other process is gone, and its hold with it.
    check(at, 0..PAGES, 5);
}

#[test]
fn contents_stay_while_a_process_holds_the_object_and_maps_nothing() {
    let _alone = alone();
    let mut pager = Pager::start(1);
    let memory = pager.join();
    let object = memory.create(SIZE as u64).unwrap();
    let space = AddressSpace::without_domain(6).unwrap();
    let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
    write(at, 0..PAGES, 7);
    space.deallocate(at, SIZE).unwrap();
    // A view of the second half, at an address of the program's choice, in two regions.
    let half = PAGES / 2;
    let view = object
        .restricted_access((half * PAGE) as u64, (SIZE / 2) as u64, Rights::READ)
        .unwrap();
    let at = space.reserve(None, SIZE, false).unwrap();
    let refused = space.map(Some(at), SIZE / 2, &view, 0, read_write());
    assert!(matches!(refused, Err(SpaceError::Rights { .. })));
    space
        .map(Some(at), SIZE / 2, &view, 0, MapFlags::default())
        .unwrap();
    check(at.wrapping_sub(half * PAGE), half..PAGES, 7);
    let refused = space.protect(at, PAGE, Rights::WRITE);
    assert!(matches!(refused, Err(SpaceError::Rights { .. })));
    drop((object, view));
    // The region holds the object still.
    check(at.wrapping_sub(half * PAGE), half..PAGES, 7);
    let again = space.memory_object(at, SIZE / 2).unwrap();
    space.deallocate(at, SIZE).unwrap();
    let at = space
        .map(None, SIZE / 2, &again, 0, MapFlags::default())
        .unwrap();
    check(at.wrapping_sub(half * PAGE), half..PAGES, 7);
}

#[test]
fn an_object_ends_with_its_last_hold_and_its_frames_are_free() {
    let _alone = alone();
    let ended = fork(|| {
        let contract = Contract::from(FRAMES);
        // The process that pages may have objects of its own.
        let pager = ObjectPager::start(contract, &"ram:64M".parse().unwrap()).unwrap();
        let memory = PagedMemory::new(pager.connect().unwrap()).unwrap();
        let space = AddressSpace::without_domain(6).unwrap();
        let (ours, theirs) = sockets();
        for round in 0..4 {
            let object = memory.create(SIZE as u64).unwrap();
            let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
            check_zeros(at);
            write(at, 0..PAGES, round);
            check(at, 0..PAGES, round);
            assert!(pager.frames_in_use() > FRAMES / 2);
            object.send(&ours).unwrap();
            drop(object);
            space.deallocate(at, SIZE).unwrap();
            let ended = memory.receive(&theirs);
            assert!(matches!(ended, Err(SpaceError::Pager(_))), "{ended:?}");
        }
        let begin = Instant::now();
        while pager.frames_in_use() > FRAMES / 8 {
            assert!(begin.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(1));
        }
        0
    });
    assert_eq!(wait(ended), Ok(0));
}

fn check_zeros(at: usize) {
    for page in 0..PAGES {
        // SAFETY: mapped, and used by this process alone.
        let found = unsafe { bytes(at + page * PAGE, PAGE) };
        assert!(found.iter().all(|b| *b == 0), "page {page}");
    }
}

#[test]
fn a_killed_process_takes_nothing_with_it() {
    let _alone = alone();
    const OTHERS: usize = 6;
    let mut pager = Pager::start(OTHERS + 1);
    let connections = pager.connections.split_off(1);
    let object = pager.join().create(SIZE as u64).unwrap();
    let space = AddressSpace::without_domain(6).unwrap();
    let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
    write(at, 0..PAGES, 9);
    for (number, connection) in connections.into_iter().enumerate() {
        let (ours, theirs) = sockets();
        object.send(&ours).unwrap();
        let other = fork(|| {
            let memory = PagedMemory::new(connection).unwrap();
            let object = memory.receive(&theirs).unwrap();
            let space = AddressSpace::without_domain(6).unwrap();
            let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
            say(&theirs);
            let mut random = fastrand::Rng::with_seed(number as u64);
            loop {
                let page = random.usize(..PAGES);
                check(at, page..page + 1, 9);
                write(at, page..page + 1, 9);
            }
        });
        hear(&ours);
        std::thread::sleep(Duration::from_millis(5 * number as u64));
        // SAFETY: this test's own child.
        unsafe { libc::kill(other, libc::SIGKILL) };
        assert_eq!(wait(other), Err(libc::SIGKILL));
        check(at, 0..PAGES, 9);
    }
}

/// Each process has a word of every page, and stores to it while pages leave and come.
#[test]
fn stores_of_processes_to_the_same_pages_are_all_kept() {
    let _alone = alone();
    const PROCESSES: usize = 3;
    const STEPS: usize = 20_000;
    let mut pager = Pager::start(PROCESSES + 1);
    let connections = pager.connections.split_off(1);
    let object = pager.join().create(SIZE as u64).unwrap();
    let processes: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(number, connection)| {
            let (ours, theirs) = sockets();
            object.send(&ours).unwrap();
            fork(|| {
                let memory = PagedMemory::new(connection).unwrap();
                let object = memory.receive(&theirs).unwrap();
                let space = AddressSpace::without_domain(6).unwrap();
                let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
                store_own_words(at + number * 8, number as u64);
                0
            })
        })
        .collect();
    for process in processes {
        assert_eq!(wait(process), Ok(0));
    }

    fn store_own_words(at: usize, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut written = vec![0; PAGES];
        for step in 1..=STEPS {
            let page = random.usize(..PAGES);
            let word = std::ptr::with_exposed_provenance_mut::<usize>(at + page * PAGE);
            // SAFETY: mapped, and this process's word.
            unsafe {
                assert_eq!(word.read_volatile(), written[page], "page {page}");
                word.write_volatile(step);
            }
            written[page] = step;
        }
    }
}

#[test]
fn small_objects_share_the_contract() {
    let _alone = alone();
    const EACH: usize = 17;
    let mut pager = Pager::start(1);
    let memory = pager.join();
    let space = AddressSpace::without_domain(6).unwrap();
    let objects: Vec<_> = (0..60)
        .map(|_| {
            let object = memory.create((EACH * PAGE) as u64).unwrap();
            let at = space.map(None, EACH * PAGE, &object, 0, read_write());
            (object, at.unwrap())
        })
        .collect();
    for (round, (_, at)) in objects.iter().enumerate() {
        write(*at, 0..EACH, round as u64);
    }
    for (round, (_, at)) in objects.iter().enumerate() {
        check(*at, 0..EACH, round as u64);
    }
    let all: u64 = objects.iter().map(|(object, _)| resident(object)).sum();
    assert!(all <= FRAMES.into(), "{all} pages");
}

#[test]
fn a_process_without_objects_outlives_its_pager_and_gets_errors() {
    let _alone = alone();
    let mut pager = Pager::start(2);
    let memory = pager.join();
    drop(memory.create(SIZE as u64).unwrap());
    pager.kill();
    assert!(matches!(
        memory.create(SIZE as u64),
        Err(SpaceError::Pager(_) | SpaceError::System { .. })
    ));
    assert!(PagedMemory::new(pager.connections.pop().unwrap()).is_err());
}

#[test]
fn without_its_pager_a_process_ends_and_reads_nothing_else() {
    let _alone = alone();
    let mut pager = Pager::start(1);
    let connection = pager.connections.pop().unwrap();
    let (ours, theirs) = sockets();
    let user = fork(|| {
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
    pager.kill();
    assert_eq!(wait(user), Err(libc::SIGABRT));
}

#[test]
fn pinned_pages_are_for_system_calls_and_a_child_of_a_fork_has_none() {
    let _alone = alone();
    let mut pager = Pager::start(1);
    let object = pager.join().create(SIZE as u64).unwrap();
    let space = AddressSpace::without_domain(6).unwrap();
    let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
    write(at, 0..PAGES, 4);
    let pin = space.pin(at, 64 * PAGE).unwrap();
    check(at, 0..PAGES, 4);
    let mut file = tempfile::tempfile().unwrap();
    // SAFETY: pinned, and used by this thread alone.
    let pinned = unsafe { bytes(at, 64 * PAGE) };
    std::io::Write::write_all(&mut file, pinned).unwrap();
    assert!(matches!(
        space.deallocate(at, SIZE),
        Err(SpaceError::Pinned { .. })
    ));
    assert!(matches!(
        space.pin(at + 64 * PAGE, SIZE / 2),
        Err(SpaceError::Pager(_))
    ));
    drop(pin);
    let ended = common::in_child(|| {
        check(at, 0..1, 4);
        0
    });
    assert_eq!(ended, Err(libc::SIGSEGV));
    check(at, 0..PAGES, 4);
    space.deallocate(at, SIZE).unwrap();
}

#[test]
fn pins_of_the_same_pages_count() {
    let _alone = alone();
    let mut pager = Pager::start(1);
    let object = pager.join().create(SIZE as u64).unwrap();
    let space = AddressSpace::without_domain(6).unwrap();
    let at = space.map(None, SIZE, &object, 0, read_write()).unwrap();
    let first = space.pin(at + 8 * PAGE, 32 * PAGE).unwrap();
    for (page, pages) in [(8, 32), (0, 16), (32, 16), (10, 2)] {
        drop(space.pin(at + page * PAGE, pages * PAGE).unwrap());
    }
    // A pin that fails ends no other one.
    assert!(space.pin(at, SIZE).is_err());
    for round in 0..3 {
        write(at, 64..PAGES, round);
    }
    let mut zeros = std::fs::File::open("/dev/zero").unwrap();
    for page in 8..40 {
        // SAFETY: pinned, and used by this thread alone.
        let pinned = unsafe { bytes_mut(at + page * PAGE, PAGE) };
        std::io::Read::read_exact(&mut zeros, pinned).unwrap();
    }
    drop(first);
    // As many as may be: the others have ended.
    space
        .pin(at + 64 * PAGE, FRAMES as usize / 2 * PAGE)
        .unwrap();
}

#[test]
fn what_paged_objects_do_not_have_is_a_typed_error() {
    let _alone = alone();
    let mut pager = Pager::start(1);
    let memory = pager.join();
    assert!(matches!(
        memory.create(PAGE as u64),
        Err(SpaceError::Pager(_))
    ));
    assert!(matches!(
        memory.create(SIZE as u64 + 1),
        Err(SpaceError::Unaligned { .. })
    ));
    let object = memory.create(SIZE as u64).unwrap();
    let space = AddressSpace::without_domain(6).unwrap();
    let flags = MapFlags {
        copy_on_write: true,
        ..read_write()
    };
    let refused = space.map(None, SIZE, &object, 0, flags);
    assert!(matches!(refused, Err(SpaceError::Paged(_))));
    let refused = space.client_view(&object, Rights::READ).err();
    assert!(matches!(refused, Some(SpaceError::Paged(_))));
    assert_eq!(space.memory_status().reserved, 0);
    assert!(matches!(object.revoke(), Err(SpaceError::System { .. })));
    let (ours, theirs) = sockets();
    object.send(&ours).unwrap();
    let refused = MemoryObject::receive(&theirs);
    assert!(matches!(refused, Err(SpaceError::Paged(_))));
    // An object without a pager comes as it is.
    MemoryObject::create(SIZE as u64)
        .unwrap()
        .send(&ours)
        .unwrap();
    let plain = memory.receive(&theirs).unwrap();
    let at = space.map(None, SIZE, &plain, 0, flags).unwrap();
    write(at, 0..1, 1);
}
