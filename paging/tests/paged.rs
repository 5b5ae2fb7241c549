//! Paged stretches of a linked program, on the real kernel.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

mod common;

use common::{PAGE, domain};
use selfpage::{Counter, DirectIo, Domain, EntryKind, Paged, Stretch};

/// What page `page` holds in round `round`: half of it compressible.
fn fill(bytes: &mut [u8], page: usize, round: u64) {
    let seed = (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round;
    fastrand::Rng::with_seed(seed).fill(&mut bytes[..PAGE / 2]);
    bytes[PAGE / 2..].fill(page as u8 ^ round as u8 | 1);
}

fn write_all(stretch: &Stretch, round: u64) {
    let bytes = unsafe { stretch.bytes_mut() };
    for (page, chunk) in bytes.chunks_exact_mut(PAGE).enumerate() {
        fill(chunk, page, round);
    }
}

fn check_all(stretch: &Stretch, round: u64) {
    let bytes = unsafe { stretch.bytes() };
    let mut expected = [0; PAGE];
    for (page, chunk) in bytes.chunks_exact(PAGE).enumerate() {
        fill(&mut expected, page, round);
        assert!(chunk == expected, "page {page} is not what was written");
    }
}

fn written_and_read_back(
    frames: u32,
    pages: usize,
    store: &str,
    entry: EntryKind,
    direct_io: DirectIo,
) {
    let domain = domain(frames, store, entry, direct_io);
    let stretch = domain.allocate(pages * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    for round in 0..3 {
        write_all(&stretch, round);
        check_all(&stretch, round);
    }
    assert!(domain.n() <= frames);
    let peak = domain.counters().get(Counter::PeakResidentPages);
    assert!(peak <= u64::from(frames), "peak {peak} of {frames}");
    assert!(domain.counters().get(Counter::Written) > pages as u64);
}

#[test]
fn pages_come_back_as_they_were_written_from_compressed_ram() {
    written_and_read_back(
        1024,
        8192,
        "ram:64M",
        EntryKind::Upcall,
        DirectIo::PinnedOnly,
    );
}

#[test]
fn pages_come_back_when_every_one_is_checked_for_pins() {
    written_and_read_back(1024, 8192, "ram:64M", EntryKind::Upcall, DirectIo::Anytime);
}

#[test]
fn four_frames_are_enough() {
    written_and_read_back(4, 256, "ram:8M", EntryKind::Upcall, DirectIo::PinnedOnly);
}

#[test]
fn handler_threads_serve_what_upcalls_serve() {
    written_and_read_back(
        1024,
        8192,
        "ram:64M",
        EntryKind::Thread,
        DirectIo::PinnedOnly,
    );
}

#[test]
fn pages_come_back_from_disk() {
    let path = std::env::temp_dir().join(format!("selfpage-test-{}", std::process::id()));
    let store = format!("disk:{},size=64M", path.display());
    written_and_read_back(1024, 8192, &store, EntryKind::Upcall, DirectIo::PinnedOnly);
    written_and_read_back(1024, 8192, &store, EntryKind::Thread, DirectIo::PinnedOnly);
}

#[test]
fn threads_that_page_at_once_lose_nothing() {
    for entry in [EntryKind::Upcall, EntryKind::Thread] {
        let domain = domain(512, "ram:64M", entry, DirectIo::PinnedOnly);
        let stretch = domain.allocate(8192 * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        std::thread::scope(|scope| {
            for part in 0..4 {
                let bytes = unsafe { stretch.bytes_mut() };
                scope.spawn(move || {
                    let mine = &mut bytes[part * 2048 * PAGE..(part + 1) * 2048 * PAGE];
                    for round in 0..4 {
                        for (page, chunk) in mine.chunks_exact_mut(PAGE).enumerate() {
                            fill(chunk, page, round);
                        }
                        let mut expected = [0; PAGE];
                        for (page, chunk) in mine.chunks_exact(PAGE).enumerate() {
                            fill(&mut expected, page, round);
                            assert!(chunk == expected, "part {part} page {page} round {round}");
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn the_end_of_a_stretch_writes_no_page_of_another() {
    let domain = Domain::builder()
        .frames(1024)
        .store("ram:16M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let stretch = domain.allocate(64 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    unsafe { stretch.bytes_mut() }.fill(5);
    stretch.unmap(0..64).unwrap();
    let other = domain.allocate(PAGE).unwrap();
    other.bind(Paged).unwrap();
    unsafe { other.as_ptr().write_volatile(6) };
    drop(other);
    assert_eq!(domain.counters().get(Counter::Written), 0);
    assert!(unsafe { stretch.bytes() }.iter().all(|byte| *byte == 5));
}
