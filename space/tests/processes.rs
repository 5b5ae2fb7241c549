//! What needs processes of its own: exceptions, other address spaces, overflows.
//!
//! One test at a time: a child of `fork` has the locks as other threads held them.

mod common;

use common::{
    PAGE, TABLE, alone, bytes, bytes_mut, dig, fork, in_child, read_write, sockets, space, wait,
};
use corosensei::Coroutine;
use space::stack::{StackPool, StackThread};
use space::{
    AddressSpace, CommitFlags, MapFlags, MemoryObject, RemoteSpace, RemoteSpaceError, Rights,
    SpaceError, VtlbBudget,
};
use std::io::Read;
use std::os::fd::OwnedFd;

#[test]
fn an_access_that_the_space_does_not_allow_is_an_exception() {
    let _alone = alone();
    let object = MemoryObject::create(PAGE as u64).unwrap();
    type Make = fn(&AddressSpace, &MemoryObject) -> usize;
    let accesses: [(&str, Make); 5] = [
        ("reserved", |space, _| {
            space.reserve(None, PAGE, false).unwrap()
        }),
        ("decommitted", |space, _| {
            let at = space.allocate(PAGE).unwrap();
            space.decommit(at, PAGE).unwrap();
            at
        }),
        ("read only", |space, _| {
            let at = space.allocate(PAGE).unwrap();
            space.protect(at, PAGE, Rights::READ).unwrap();
            at
        }),
        ("mapped read only", |space, object| {
            space
                .map(None, PAGE, object, 0, MapFlags::default())
                .unwrap()
        }),
        ("revoked", |space, object| {
            let at = space.map(None, PAGE, object, 0, read_write()).unwrap();
            object.revoke().unwrap();
            at
        }),
    ];
    for (name, make) in accesses {
        let ended = in_child(|| {
            let space = space(64, 8);
            let at = make(&space, &object);
            // SAFETY: expected to end the child.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(1) };
            0
        });
        assert!(
            matches!(ended, Err(libc::SIGSEGV | libc::SIGBUS)),
            "{name}: {ended:?}"
        );
    }
}

#[test]
fn shareable_memory_goes_to_another_process_at_another_address_and_ends_with_its_section() {
    let _alone = alone();
    let space = common::space(64, 8);
    let at = space.reserve(None, 2 * PAGE, true).unwrap();
    let flags = CommitFlags {
        shareable: true,
        ..CommitFlags::default()
    };
    space.commit(at, 0, flags).unwrap();
    // SAFETY: committed, and used by this test and its child in turns; below, too.
    unsafe { bytes_mut(at, 2 * PAGE) }.fill(1);
    let (ours, theirs) = sockets();
    let view = space.memory_object(at + PAGE, PAGE).unwrap();
    view.restricted_access(0, PAGE as u64, Rights::READ)
        .unwrap()
        .send(&ours)
        .unwrap();
    view.send(&ours).unwrap();
    let ended = in_child(|| {
        let read_only = MemoryObject::receive(&theirs).unwrap();
        let object = MemoryObject::receive(&theirs).unwrap();
        let space = AddressSpace::without_domain(8).unwrap();
        let refused = space.map(None, PAGE, &read_only, 0, read_write());
        assert!(matches!(refused, Err(SpaceError::Rights { .. })));
        let mapped = space.map(None, PAGE, &object, 0, read_write()).unwrap();
        assert_ne!(mapped, at);
        // SAFETY: as above.
        unsafe { bytes_mut(mapped, PAGE) }.fill(2);
        0
    });
    assert_eq!(ended, Ok(0));
    // SAFETY: as above.
    assert_eq!(unsafe { (bytes(at, 1)[0], bytes(at + PAGE, 1)[0]) }, (1, 2));
    space.deallocate(at, 0).unwrap();
    let dead = space.map(None, PAGE, &view, 0, read_write());
    assert!(matches!(dead, Err(SpaceError::Dead { .. })));
}

/// What a child that overflows a stack writes to standard error; it ends by SIGSEGV.
fn overflow(child: impl FnOnce()) -> String {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let ended = in_child(|| {
        // SAFETY: this child's own standard error.
        let copied = unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&writer), 2) };
        assert_eq!(copied, 2);
        child();
        0
    });
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(ended, Err(libc::SIGSEGV), "{text}");
    text
}

#[test]
fn an_overflow_names_its_stack() {
    let _alone = alone();
    let text = overflow(|| {
        let pool = StackPool::new(64 << 10, 4).unwrap();
        let _other = pool.take("other").unwrap();
        let stack = pool.take("parser").unwrap();
        let mut coroutine =
            Coroutine::with_stack(stack, |_: &corosensei::Yielder<(), ()>, ()| dig(1 << 20, 0));
        coroutine.resume(());
    });
    assert!(text.contains("the stack \"parser\" has 64 KiB"), "{text}");
    let text = overflow(|| {
        let pool = StackPool::new(128 << 10, 4).unwrap();
        StackThread::spawn(&pool, "reader thread", || dig(1 << 20, 0))
            .unwrap()
            .join();
    });
    assert!(
        text.contains("the stack \"reader thread\" has 128 KiB"),
        "{text}"
    );
}

#[test]
fn a_thread_of_a_pool_that_calls_pthread_exit_ends_the_process() {
    let _alone = alone();
    let ended = in_child(|| {
        let pool = StackPool::new(128 << 10, 1).unwrap();
        let work = || -> i32 {
            // SAFETY: ends the process, which has no other thread that works.
            unsafe { libc::pthread_exit(std::ptr::null_mut()) }
        };
        StackThread::spawn(&pool, "exits", work).unwrap().join()
    });
    assert_eq!(ended, Err(libc::SIGABRT));
}

#[test]
fn a_child_of_a_fork_cannot_use_its_parents_space() {
    let _alone = alone();
    let space = space(64, 6);
    let at = space.reserve(None, PAGE, true).unwrap();
    let flags = CommitFlags {
        shareable: true,
        ..CommitFlags::default()
    };
    space.commit(at, 0, flags).unwrap();
    let space = std::cell::RefCell::new(Some(space));
    let ended = in_child(|| {
        let space = space.take().unwrap();
        assert!(matches!(
            space.reserve(None, PAGE, false),
            Err(SpaceError::Forked { .. })
        ));
        drop(space);
        0
    });
    assert_eq!(ended, Ok(0));
    // The child's end has revoked nothing.
    // SAFETY: committed, and used by this test alone.
    unsafe { bytes_mut(at, PAGE) }.fill(1);
    let ended = in_child(|| {
        // SAFETY: committed, entered before the fork, and written by no process now.
        unsafe { bytes(at, PAGE)[0].into() }
    });
    assert_eq!(ended, Ok(1), "what was entered at the fork is there");
}

#[test]
fn a_child_of_a_fork_leaves_its_parents_place_in_a_budget_to_it() {
    let _alone = alone();
    let budget = VtlbBudget::create(8, 1).unwrap();
    let space = AddressSpace::without_domain(&budget).unwrap();
    let space = std::cell::RefCell::new(Some(space));
    let ended = in_child(|| {
        drop(space.take());
        i32::from(AddressSpace::without_domain(&budget).is_ok())
    });
    assert_eq!(ended, Ok(0), "the place is the parent's still");
    drop(space.take());
    assert!(AddressSpace::without_domain(&budget).is_ok());
}

#[test]
fn copies_that_cannot_be_saved_stay_where_they_are_and_writable() {
    let _alone = alone();
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(7).unwrap();
        let object = MemoryObject::create(8 * TABLE as u64).unwrap();
        let flags = MapFlags {
            copy_on_write: true,
            ..read_write()
        };
        let at = space.map(None, 8 * TABLE, &object, 0, flags).unwrap();
        for range in 0..7 {
            // SAFETY: mapped, and used by this process alone; below, too.
            unsafe { bytes_mut(at + range * TABLE, PAGE) }.fill(7);
        }
        let limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: this child's own limit and signal; no file of it can grow or be written any more.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
        let refused = space.pin(at + 7 * TABLE, PAGE);
        assert!(matches!(refused, Err(SpaceError::Translation(_))));
        for range in 0..7 {
            // SAFETY: as above.
            let page = unsafe { bytes_mut(at + range * TABLE, PAGE) };
            assert!(page.iter().all(|b| *b == 7));
            page.fill(8);
        }
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn a_process_that_agrees_has_its_space_laid_out_by_another() {
    let _alone = alone();
    let ended = in_child(|| {
        // This process serves its space; its child lays it out.
        let (ours, theirs) = sockets();
        let pid = fork(move || {
            lay_out(ours);
            0
        });
        let space = space(64, 6);
        space.serve(&theirs).unwrap();
        assert_eq!(wait(pid), Ok(0));
        let status = space.memory_status();
        assert_eq!(
            (status.committed, status.mapped),
            (PAGE as u64, 4 * PAGE as u64)
        );
        0
    });
    assert_eq!(ended, Ok(0));
}

#[test]
fn threads_that_share_a_remote_space_get_the_replies_to_their_own_requests() {
    let _alone = alone();
    let (ours, theirs) = sockets();
    let space = space(64, 6);
    std::thread::scope(|scope| {
        scope.spawn(|| space.serve(&theirs).unwrap());
        let remote = RemoteSpace::new(ours);
        std::thread::scope(|threads| {
            for pages in 1..=3 {
                let remote = &remote;
                threads.spawn(move || {
                    let shareable = CommitFlags {
                        shareable: true,
                        ..CommitFlags::default()
                    };
                    for _ in 0..200 {
                        let at = remote.reserve(None, pages * PAGE, true).unwrap();
                        remote.commit(at, 0, shareable).unwrap();
                        let object = remote.memory_object(at, pages * PAGE).unwrap();
                        assert_eq!(object.len(), (pages * PAGE) as u64);
                        remote.deallocate(at, pages * PAGE).unwrap();
                    }
                });
            }
        });
        drop(remote);
    });
    assert_eq!(space.memory_status().reserved, 0);
}

/// Lays out the space of the process at the other end.
fn lay_out(socket: OwnedFd) {
    let remote = RemoteSpace::new(socket);
    let at = remote.reserve(None, 8 * PAGE, true).unwrap();
    let shareable = CommitFlags {
        shareable: true,
        ..CommitFlags::default()
    };
    remote.commit(at, 2 * PAGE, shareable).unwrap();
    remote
        .commit(at + 2 * PAGE, 2 * PAGE, CommitFlags::default())
        .unwrap();
    remote.protect(at + 2 * PAGE, PAGE, Rights::READ).unwrap();
    remote.decommit(at + 3 * PAGE, PAGE).unwrap();
    let refused = remote.commit(at + 2 * PAGE, PAGE, CommitFlags::default());
    assert!(
        matches!(refused, Err(RemoteSpaceError::Refused(ref why)) if why.contains("is committed, expected reserved"))
    );
    let object = MemoryObject::create(2 * PAGE as u64).unwrap();
    assert_eq!(
        remote
            .map(Some(at + 4 * PAGE), 2 * PAGE, &object, 0, read_write())
            .unwrap(),
        at + 4 * PAGE
    );
    // Its memory here: what this process writes is in the other one.
    let theirs = remote.memory_object(at, 2 * PAGE).unwrap();
    let space = AddressSpace::without_domain(6).unwrap();
    let here = space.map(None, 2 * PAGE, &theirs, 0, read_write()).unwrap();
    // SAFETY: mapped, and used by this process alone.
    unsafe { bytes_mut(here, 2 * PAGE) }.fill(5);
    let status = remote.memory_status().unwrap();
    assert_eq!(
        (status.reserved, status.committed, status.mapped),
        (8 * PAGE as u64, PAGE as u64, 4 * PAGE as u64)
    );
    assert!(matches!(
        remote.deallocate(at, PAGE),
        Err(RemoteSpaceError::Refused(_))
    ));
    let extra = remote.reserve(None, PAGE, false).unwrap();
    remote.deallocate(extra, PAGE).unwrap();
}
