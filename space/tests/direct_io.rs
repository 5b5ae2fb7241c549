//! Pinned pages under devices: what they write arrives, beside threads that recycle and evict
//! everything else.

mod common;

use common::{PAGE, TABLE, bytes, bytes_mut, read_write, space};
use io_uring::{IoUring, opcode, types};
use space::{AddressSpace, MapFlags, MemoryObject, Rights};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCKS: usize = 16;

/// A file of blocks that each hold their number, and a descriptor past the page cache. None where
/// the file system has no direct I/O.
fn blocks() -> Option<(tempfile::NamedTempFile, std::fs::File)> {
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for block in 0..BLOCKS {
        file.write_all(&[block as u8 + 1; PAGE]).unwrap();
    }
    file.as_file().sync_all().unwrap();
    let direct = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(file.path());
    match direct {
        Ok(direct) => Some((file, direct)),
        Err(error) => {
            println!(
                "SKIPPED: no direct I/O on {}: {error}",
                env!("CARGO_TARGET_TMPDIR")
            );
            None
        }
    }
}

/// Reads every block into the pinned pages at `at` by registered buffers, `rounds` times, and compares.
fn read_by_fixed_buffers(direct: &std::fs::File, at: usize, rounds: usize) {
    let mut ring = IoUring::new(BLOCKS as u32).unwrap();
    let buffer = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at),
        iov_len: BLOCKS * PAGE,
    };
    // SAFETY: the pages are pinned until the ring is dropped.
    unsafe { ring.submitter().register_buffers(&[buffer]) }.unwrap();
    for round in 0..rounds {
        for block in 0..BLOCKS {
            let from = (block + round) % BLOCKS;
            let into = std::ptr::with_exposed_provenance_mut(at + block * PAGE);
            let read = opcode::ReadFixed::new(types::Fd(direct.as_raw_fd()), into, PAGE as u32, 0)
                .offset((from * PAGE) as u64)
                .build();
            // SAFETY: as above.
            unsafe { ring.submission().push(&read) }.unwrap();
        }
        ring.submit_and_wait(BLOCKS).unwrap();
        assert!(ring.completion().all(|done| done.result() == PAGE as i32));
        for block in 0..BLOCKS {
            let expected = ((block + round) % BLOCKS) as u8 + 1;
            // SAFETY: the reads are complete.
            let found = unsafe { bytes(at + block * PAGE, PAGE) };
            assert!(
                found.iter().all(|b| *b == expected),
                "round {round}, block {block}"
            );
        }
    }
}

/// Reads by plain direct reads, which fail with EFAULT where a page is not mapped.
fn read_directly(direct: &std::fs::File, at: usize) {
    for block in 0..BLOCKS {
        // SAFETY: pinned pages that no other code uses.
        let into = unsafe { bytes_mut(at + block * PAGE, PAGE) };
        assert_eq!(
            rustix::io::pread(direct, &mut *into, (block * PAGE) as u64),
            Ok(PAGE)
        );
        assert!(into.iter().all(|b| *b == block as u8 + 1));
    }
}

/// Keeps the space busy elsewhere while `work` runs.
fn beside(
    space: &AddressSpace,
    churn: impl Fn(&AddressSpace, &mut fastrand::Rng) + Sync,
    work: impl FnOnce(),
) {
    // Also where `work` panics: the scope waits for the thread.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(9);
            while !stop.load(Ordering::Relaxed) {
                churn(space, &mut random);
            }
        });
        work();
    });
}

#[test]
fn devices_write_to_pinned_committed_pages_while_others_are_evicted() {
    let Some((_file, direct)) = blocks() else {
        return;
    };
    let space = space(96, 8);
    let at = space.allocate(BLOCKS * PAGE).unwrap();
    let other = space.allocate(256 * PAGE).unwrap();
    let pin = space.pin(at, BLOCKS * PAGE).unwrap();
    let churn = |_: &AddressSpace, random: &mut fastrand::Rng| {
        let page = random.usize(..256);
        // SAFETY: committed, and used by this thread alone.
        unsafe { bytes_mut(other + page * PAGE, PAGE) }.fill(page as u8 | 1);
    };
    beside(&space, churn, || {
        read_by_fixed_buffers(&direct, at, 200);
        read_directly(&direct, at);
    });
    drop(pin);
}

#[test]
fn devices_write_to_pinned_pages_of_an_object_while_entries_are_recycled() {
    let Some((_file, direct)) = blocks() else {
        return;
    };
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(16 * TABLE as u64).unwrap();
    let at = space.map(None, 16 * TABLE, &object, 0, read_write());
    let at = at.unwrap();
    let pin = space.pin(at, BLOCKS * PAGE).unwrap();
    let churn = |_: &AddressSpace, random: &mut fastrand::Rng| {
        // SAFETY: mapped, and used by this thread alone.
        unsafe { bytes_mut(at + random.usize(1..16) * TABLE, 1) }.fill(1);
    };
    beside(&space, churn, || {
        read_by_fixed_buffers(&direct, at, 200);
        read_directly(&direct, at);
    });
    assert!(space.vtlb_stats().recycled > 0);
    drop(pin);
}

#[test]
fn devices_write_to_pinned_copies_while_their_neighbours_are_changed() {
    let Some((_file, direct)) = blocks() else {
        return;
    };
    let space = AddressSpace::without_domain(8).unwrap();
    let object = MemoryObject::create(TABLE as u64).unwrap();
    let flags = MapFlags {
        copy_on_write: true,
        ..read_write()
    };
    let at = space.map(None, TABLE, &object, 0, flags).unwrap();
    // SAFETY: mapped, and used by this thread alone.
    unsafe { bytes_mut(at, TABLE) }.fill(1);
    let pin = space.pin(at, BLOCKS * PAGE).unwrap();
    let churn = |space: &AddressSpace, random: &mut fastrand::Rng| {
        let page = at + random.usize(BLOCKS..TABLE / PAGE) * PAGE;
        space.protect(page, PAGE, Rights::READ).unwrap();
        space.protect(page, PAGE, read_write().rights).unwrap();
        // SAFETY: as above; of this thread's alone.
        unsafe { bytes_mut(page, 1) }.fill(2);
    };
    beside(&space, churn, || {
        read_by_fixed_buffers(&direct, at, 200);
        read_directly(&direct, at);
    });
    drop(pin);
}
