//! Memory objects: views, asymmetric copy-on-write, client views.

mod common;

use common::{PAGE, TABLE, bytes, bytes_mut, read_write, sockets};
use space::{AddressSpace, MapFlags, MemoryObject, RegionState, Rights, SpaceError};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn copy_on_write() -> MapFlags {
    MapFlags {
        copy_on_write: true,
        ..read_write()
    }
}

#[test]
fn memory_of_huge_pages_and_bare_paths_are_no_objects() {
    use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
    let huge = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB).unwrap();
    let bare = open("/proc/self/exe", OFlags::PATH, Mode::empty()).unwrap();
    for file in [huge, bare] {
        let refused = MemoryObject::from_file(file);
        assert!(matches!(refused, Err(SpaceError::Foreign(_))));
    }
}

#[test]
fn a_view_gives_no_more_than_its_part_and_rights() {
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(4 * PAGE as u64).unwrap();
    let view = object
        .restricted_access(PAGE as u64, 2 * PAGE as u64, Rights::READ)
        .unwrap();
    assert!(matches!(
        view.restricted_access(0, PAGE as u64, Rights::WRITE),
        Err(SpaceError::Rights { .. })
    ));
    assert!(matches!(
        view.restricted_access(PAGE as u64, 2 * PAGE as u64, Rights::READ),
        Err(SpaceError::Overflow { .. })
    ));
    assert!(matches!(
        space.map(None, PAGE, &view, 0, read_write()),
        Err(SpaceError::Rights { .. })
    ));
    assert!(matches!(view.revoke(), Err(SpaceError::Rights { .. })));
    let whole = space.map(None, 4 * PAGE, &object, 0, read_write()).unwrap();
    let part = space
        .map(None, 2 * PAGE, &view, 0, MapFlags::default())
        .unwrap();
    assert!(matches!(
        space.protect(part, PAGE, Rights::WRITE),
        Err(SpaceError::Rights { .. })
    ));
    // SAFETY: mapped, and used by this test alone.
    unsafe { bytes_mut(whole + PAGE, 1) }.fill(5);
    // SAFETY: as above.
    assert_eq!(unsafe { bytes(part, 1) }, [5]);
}

#[test]
fn a_section_shows_no_more_of_an_object_than_its_view() {
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(16 * PAGE as u64).unwrap();
    let rights = Rights::READ | Rights::WRITE;
    let view = object.restricted_access(4 * PAGE as u64, PAGE as u64, rights);
    let section = space.reserve(None, 12 * PAGE, true).unwrap();
    let refused = space.map(Some(section), 0, &view.unwrap(), 0, read_write());
    assert!(matches!(
        refused,
        Err(SpaceError::Overflow { limit: 4096, .. })
    ));
    assert_eq!(space.query(section).unwrap().state, RegionState::Reserved);
    space
        .map(Some(section), 0, &object, 4 * PAGE as u64, read_write())
        .unwrap();
}

#[test]
fn copies_before_the_new_end_of_an_object_outlive_its_truncation() {
    let space = AddressSpace::without_domain(6).unwrap();
    let object = MemoryObject::create(8 * TABLE as u64).unwrap();
    let at = space
        .map(None, 8 * TABLE, &object, 0, copy_on_write())
        .unwrap();
    let byte = |page: usize| {
        // SAFETY: mapped, and used by this test alone.
        unsafe { &mut bytes_mut(at + page * PAGE, 1)[0] }
    };
    for page in [3, 4, 5, 399, 400, 500] {
        *byte(page) = page as u8;
    }
    let recycle = || (1..8).for_each(|range| assert_eq!(*byte(range * TABLE / PAGE), 0));
    recycle();
    object.set_len(400 * PAGE as u64).unwrap();
    assert_eq!([0, 3, 4, 5, 399].map(|page| *byte(page)), [0, 3, 4, 5, 143]);
    object.set_len(8 * TABLE as u64).unwrap();
    recycle();
    // As of a private mapping: what was beyond the end is gone.
    assert_eq!([3, 399, 400, 500].map(|page| *byte(page)), [3, 143, 0, 0]);
}

#[test]
fn the_copies_of_a_part_that_is_deallocated_are_freed() {
    // The size by which the mapping's file of copies is found.
    const SIZE: usize = 13 * TABLE + 7 * PAGE;
    let saved = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let paths = open.filter_map(|entry| Some(entry.ok()?.path()));
        let copies = paths.filter(|path| {
            std::fs::read_link(path)
                .is_ok_and(|to| to.to_string_lossy().contains("selfpage-copies"))
        });
        let mut files = copies.filter_map(|path| std::fs::metadata(path).ok());
        let file = files.find(|file| file.len() == SIZE as u64).unwrap();
        file.blocks() * 512
    };
    let space = AddressSpace::without_domain(6).unwrap();
    let object = MemoryObject::create(SIZE as u64).unwrap();
    let at = space.map(None, SIZE, &object, 0, copy_on_write()).unwrap();
    let pages = |range: usize| (0..4).map(move |page| at + range * TABLE + page * PAGE);
    for page in (0..13).flat_map(pages) {
        // SAFETY: mapped, and used by this test alone.
        unsafe { bytes_mut(page, 1) }.fill(5);
    }
    let before = saved();
    space.deallocate(at, 6 * TABLE).unwrap();
    assert_eq!(
        saved(),
        before / 7,
        "of the ranges that are not entered one is left"
    );
    for page in (6..13).flat_map(pages) {
        // SAFETY: as above.
        assert_eq!(unsafe { bytes(page, 1)[0] }, 5);
    }
}

#[test]
fn copies_stay_when_the_parts_of_their_mapping_are_one_again() {
    let space = AddressSpace::without_domain(6).unwrap();
    let object = MemoryObject::create(4 * PAGE as u64).unwrap();
    let at = space
        .map(None, 4 * PAGE, &object, 0, copy_on_write())
        .unwrap();
    let last = at + 3 * PAGE;
    space.protect(last, PAGE, Rights::NONE).unwrap();
    for page in 0..3 {
        // SAFETY: mapped, and used by this test alone.
        unsafe { bytes_mut(at + page * PAGE, 1) }.fill(5);
    }
    space
        .protect(last, PAGE, Rights::READ | Rights::WRITE)
        .unwrap();
    // SAFETY: as above. The page's miss finds the pages before it entered.
    unsafe { bytes_mut(last, 1) }.fill(6);
    // SAFETY: as above.
    let found = [0, 1, 2, 3].map(|page| unsafe { bytes(at + page * PAGE, 1)[0] });
    assert_eq!(found, [5, 5, 5, 6]);
}

#[test]
fn a_copy_on_write_mapping_shows_the_source_until_it_is_written() {
    let space = AddressSpace::without_domain(6).unwrap();
    let object = MemoryObject::create(8 * TABLE as u64).unwrap();
    let a = space
        .map(None, 8 * TABLE, &object, 0, read_write())
        .unwrap();
    let b = space
        .map(None, 8 * TABLE, &object, 0, copy_on_write())
        .unwrap();
    let byte = |at: usize| {
        // SAFETY: mapped, and used by this test alone.
        unsafe { &mut bytes_mut(at, 1)[0] }
    };
    for range in 0..8 {
        *byte(a + range * TABLE) = 1;
        assert_eq!(*byte(b + range * TABLE), 1);
        *byte(a + range * TABLE) = 2;
        assert_eq!(*byte(b + range * TABLE), 2);
        *byte(b + range * TABLE) = 3;
        *byte(a + range * TABLE) = 4;
    }
    for range in 0..8 {
        assert_eq!((*byte(a + range * TABLE), *byte(b + range * TABLE)), (4, 3));
        *byte(a + range * TABLE + PAGE) = 6;
        assert_eq!(
            *byte(b + range * TABLE + PAGE),
            6,
            "a page beside a copy still shows the source"
        );
    }
    let stats = space.vtlb_stats();
    assert!(
        stats.copies_saved >= 8 && stats.copies_restored >= 8,
        "{stats:?}"
    );
    assert!(stats.peak_pages <= 6, "{stats:?}");
}

#[test]
fn stores_of_other_threads_are_kept_while_entries_of_copies_are_recycled() {
    const RANGES: usize = 9;
    let space = AddressSpace::without_domain(6).unwrap();
    let object = MemoryObject::create((RANGES * TABLE) as u64).unwrap();
    let at = space
        .map(None, RANGES * TABLE, &object, 0, copy_on_write())
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread as u64);
                let mut written = vec![0u64; RANGES * 16];
                for round in 1..4000u64 {
                    let slot = random.usize(..written.len());
                    let word = at + slot / 16 * TABLE + slot % 16 * PAGE + thread * 8;
                    let word = std::ptr::with_exposed_provenance_mut::<u64>(word);
                    // SAFETY: a word of this thread's own in mapped memory.
                    unsafe {
                        assert_eq!(word.read_volatile(), written[slot]);
                        word.write_volatile(round);
                    }
                    written[slot] = round;
                }
            });
        }
    });
    assert!(space.vtlb_stats().copies_restored > 0);
}

#[test]
fn memory_of_a_client_that_cannot_be_mapped_gets_it_a_fault() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let space = AddressSpace::without_domain(64).unwrap();
    let sealed = memfd_create("sealed", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&sealed, 4 * PAGE as u64).unwrap();
    fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    let object = MemoryObject::from_file(sealed).unwrap();
    let rights = Rights::READ | Rights::WRITE;
    let mut view = space.client_view(&object, rights).unwrap();
    for _ in 0..2 {
        let call = view.begin();
        call.write(PAGE, &[7; 8]).unwrap();
        let mut read = [1; 8];
        call.read(0, &mut read).unwrap();
        assert_eq!(read, [0; 8]);
        let fault = call.end().unwrap_err();
        // The kernel may report a page twice.
        assert!(fault.offset == PAGE && fault.count >= 1, "{fault:?}");
    }
}

#[test]
fn a_client_view_of_no_bytes_is_refused_as_such() {
    let space = AddressSpace::without_domain(8).unwrap();
    let empty = MemoryObject::create(0).unwrap();
    let refused = space.client_view(&empty, Rights::READ).map(drop);
    assert!(matches!(refused, Err(SpaceError::Foreign(_))));
}

#[test]
fn a_client_view_is_of_memory_and_files_of_local_file_systems_alone() {
    let space = AddressSpace::without_domain(8).unwrap();
    // A file system that is not known as a local one.
    let file = std::fs::File::open("/sys/kernel/uevent_seqnum").unwrap();
    let object = MemoryObject::from_file(file).unwrap();
    let refused = space.client_view(&object, Rights::READ).map(drop);
    assert!(
        matches!(refused, Err(SpaceError::ServedFile)),
        "{refused:?}"
    );
    // SAFETY: makes a descriptor.
    let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    if secret < 0 {
        println!("SKIPPED: the kernel has no memfd_secret");
        return;
    }
    // SAFETY: made above.
    let secret = unsafe { OwnedFd::from_raw_fd(secret as i32) };
    rustix::fs::ftruncate(&secret, PAGE as u64).unwrap();
    let object = MemoryObject::from_file(secret).unwrap();
    space.client_view(&object, Rights::READ).unwrap();
}

#[test]
fn a_client_that_truncates_gets_its_fault_and_no_other_client_does() {
    let space = AddressSpace::without_domain(64).unwrap();
    let objects: Vec<_> = (0..8)
        .map(|_| MemoryObject::create(4 * PAGE as u64).unwrap())
        .collect();
    let mut views: Vec<_> = objects
        .iter()
        .map(|object| {
            space
                .client_view(object, Rights::READ | Rights::WRITE)
                .unwrap()
        })
        .collect();
    objects[3].revoke().unwrap();
    let mut page = vec![1; PAGE];
    for (client, view) in views.iter_mut().enumerate() {
        let call = view.begin();
        assert!(call.translate(3 * PAGE, PAGE + 1).is_err());
        assert!(call.translate(usize::MAX, 2).is_err());
        call.read(2 * PAGE, &mut page).unwrap();
        assert!(page.iter().all(|b| *b == 0));
        call.write(3 * PAGE, &[7; 8]).unwrap();
        let ended = call.end();
        if client == 3 {
            let fault = ended.unwrap_err();
            assert_eq!(fault.offset, 2 * PAGE);
            // A fault gives scratch pages up to the end of its piece, and another piece may begin here.
            assert!((1..=2).contains(&fault.count), "{fault}");
            assert!(fault.to_string().contains("truncated"));
        } else {
            assert_eq!(ended, Ok(()));
        }
    }
    // What went to scratch pages is gone with the call.
    let call = views[3].begin();
    call.read(3 * PAGE, &mut page).unwrap();
    assert!(page.iter().all(|b| *b == 0));
    assert!(call.end().is_err());
}

#[test]
fn a_signal_does_not_end_the_wait_for_an_object() {
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn on_signal(_: libc::c_int) {
        SIGNALS.fetch_add(1, Ordering::SeqCst);
    }
    // Without SA_RESTART: the kernel ends the call that the signal finds.
    let handler = on_signal as extern "C" fn(libc::c_int);
    // SAFETY: a handler that touches one word, of a signal that nothing else here uses.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let (ours, theirs) = sockets();
    let receiver = std::thread::spawn(move || MemoryObject::receive(theirs));
    while SIGNALS.load(Ordering::SeqCst) < 20 {
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(receiver.as_pthread_t(), libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(1));
        if receiver.is_finished() {
            break;
        }
    }
    let object = MemoryObject::create(PAGE as u64).unwrap();
    object.send(&ours).unwrap();
    assert_eq!(receiver.join().unwrap().unwrap().len(), PAGE as u64);
}
