//! What a mapped stretch writes to its file when it is flushed or freed, whatever keeps its
//! pages where they are.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{
    Capabilities, DirectIo, Domain, Feature, Mapped, MappedError, Rights, Stretch, StretchError,
};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
const PAGES: usize = 40;

fn domain(capabilities: Capabilities, direct_io: DirectIo) -> Domain {
    Domain::builder()
        .frames(64)
        .capabilities(capabilities)
        .direct_io(direct_io)
        .build()
        .unwrap()
}

fn mapped(domain: &Domain) -> (File, Stretch) {
    let file = tempfile::tempfile().unwrap();
    file.set_len((PAGES * PAGE) as u64).unwrap();
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    let driver = Mapped::new(&file, 0, PAGES, true).unwrap();
    stretch.bind(driver).unwrap();
    (file, stretch)
}

fn write(stretch: &Stretch, page: usize, byte: u8) {
    unsafe { stretch.as_ptr().add(page * PAGE).write_volatile(byte) };
}

fn in_file(file: &File, page: usize) -> u8 {
    let mut byte = [0];
    file.read_exact_at(&mut byte, (page * PAGE) as u64).unwrap();
    byte[0]
}

fn all() -> Capabilities {
    Capabilities::probe_fast()
}

#[test]
fn a_pinned_page_is_written_and_stays() {
    let domain = domain(all(), DirectIo::PinnedOnly);
    let (file, stretch) = mapped(&domain);
    let pin = stretch.pin(3 * PAGE..4 * PAGE).unwrap();
    for page in 0..PAGES {
        write(&stretch, page, 7);
    }
    stretch.flush().unwrap();
    for page in 0..PAGES {
        assert_eq!(in_file(&file, page), 7, "page {page}");
    }
    assert!(stretch.trans(3).unwrap().frame.is_some());
    write(&stretch, 3, 8);
    drop(pin);
    stretch.flush().unwrap();
    assert_eq!(in_file(&file, 3), 8);
}

#[test]
fn what_is_flushed_stays_resident_and_is_evicted_as_before() {
    let domain = domain(all(), DirectIo::PinnedOnly);
    let (file, stretch) = mapped(&domain);
    for page in 0..PAGES {
        write(&stretch, page, 1);
    }
    stretch.flush().unwrap();
    for page in 0..PAGES {
        assert!(stretch.trans(page).unwrap().frame.is_some(), "page {page}");
        write(&stretch, page, 2);
    }
    assert!(domain.relinquish(64) > 0, "nothing stays nailed");
    for page in 0..PAGES {
        assert_eq!(in_file(&file, page), 2, "page {page}");
    }
}

#[test]
fn pages_that_cannot_be_evicted_soundly_are_written() {
    let domain = domain(all().without(Feature::Move), DirectIo::Anytime);
    let (file, stretch) = mapped(&domain);
    for page in 0..PAGES {
        write(&stretch, page, 9);
    }
    stretch.flush().unwrap();
    assert!((0..PAGES).all(|page| in_file(&file, page) == 9));
    for page in 0..PAGES {
        write(&stretch, page, 10);
    }
    drop(stretch);
    assert!((0..PAGES).all(|page| in_file(&file, page) == 10));
}

#[test]
fn a_stretch_that_may_not_be_read_says_so_when_flushed_and_is_written_when_freed() {
    let domain = domain(all().without(Feature::Move), DirectIo::Anytime);
    let (file, stretch) = mapped(&domain);
    write(&stretch, 5, 3);
    stretch.protect(Rights::META).unwrap();
    let refused = stretch.flush().unwrap_err().to_string();
    assert!(refused.contains("read"), "{refused}");
    drop(stretch);
    assert_eq!(in_file(&file, 5), 3);
}

#[test]
fn what_was_written_before_a_flush_is_in_the_file_though_other_threads_go_on() {
    let domain = domain(all(), DirectIo::PinnedOnly);
    let (file, stretch) = mapped(&domain);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Pages that leave come back at once.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for page in 0..PAGES {
                    let byte = unsafe { stretch.as_ptr().add(page * PAGE + 1) };
                    let _ = unsafe { byte.read_volatile() };
                }
            }
        });
        for round in 1..100 {
            for page in 0..PAGES {
                write(&stretch, page, round);
            }
            stretch.flush().unwrap();
            for page in 0..PAGES {
                assert_eq!(in_file(&file, page), round, "page {page}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Fewer frames than the stretches of these tests have pages.
fn small_domain() -> Domain {
    Domain::builder()
        .frames(16)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap()
}

#[test]
fn a_mapped_file_is_read_when_touched_and_written_when_flushed_taken_or_freed() {
    let domain = small_domain();
    let mut file = tempfile::tempfile().unwrap();
    let pages = 100;
    let contents: Vec<u8> = (0..pages * PAGE - 100)
        .map(|i| (i / PAGE) as u8 ^ i as u8)
        .collect();
    file.write_all(&contents).unwrap();
    let stretch = domain.allocate(pages * PAGE).unwrap();
    stretch
        .bind(Mapped::new(&file, 0, pages, true).unwrap())
        .unwrap();
    let bytes = unsafe { stretch.bytes_mut() };
    assert!(bytes[..contents.len()] == contents[..]);
    assert!(
        bytes[contents.len()..].iter().all(|b| *b == 0),
        "past the end is zero"
    );
    let mut expected = contents.clone();
    for page in (0..pages).step_by(3) {
        bytes[page * PAGE + 17] = 0xaa;
        expected[page * PAGE + 17] = 0xaa;
    }
    stretch.flush().unwrap();
    let mut on_disk = vec![0; contents.len()];
    file.read_exact_at(&mut on_disk, 0).unwrap();
    assert!(on_disk == expected);
    bytes[50 * PAGE] = 0xbb;
    expected[50 * PAGE] = 0xbb;
    drop(stretch);
    file.read_exact_at(&mut on_disk, 0).unwrap();
    assert!(on_disk == expected);
    assert_eq!(file.metadata().unwrap().len() as usize, contents.len());
}

#[test]
fn a_read_only_mapped_file_is_never_written() {
    let domain = small_domain();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![5; 64 * PAGE]).unwrap();
    let stretch = domain.allocate(64 * PAGE).unwrap();
    stretch
        .bind(Mapped::new(&file, 0, 64, false).unwrap())
        .unwrap();
    assert!(unsafe { stretch.bytes() }.iter().all(|b| *b == 5));
    assert_eq!(stretch.rights(), Rights::READ | Rights::META);
    assert!(matches!(
        stretch.protect(Rights::ALL),
        Err(StretchError::ReadOnly { .. })
    ));
    drop(stretch);
    let mut on_disk = vec![0; 64 * PAGE];
    file.read_exact_at(&mut on_disk, 0).unwrap();
    assert!(on_disk.iter().all(|b| *b == 5));
}

#[test]
fn a_file_that_cannot_keep_what_is_written_is_refused() {
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().set_len(PAGE as u64).unwrap();
    let open = |options: &mut std::fs::OpenOptions| options.open(named.path()).unwrap();
    let appending = open(File::options().read(true).append(true));
    let refused = Mapped::new(&appending, 0, 1, true);
    assert!(matches!(refused, Err(MappedError::Append)));
    Mapped::new(&appending, 0, 1, false).unwrap();
    let reading = open(File::options().read(true));
    let refused = Mapped::new(&reading, 0, 1, true);
    assert!(matches!(refused, Err(MappedError::NotOpenFor("writing"))));
    Mapped::new(&reading, 0, 1, false).unwrap();
    let (end, _other) = std::io::pipe().unwrap();
    let refused = Mapped::new(&end, 0, 1, false);
    assert!(matches!(refused, Err(MappedError::NotRegular)));
}

#[test]
fn a_stretch_longer_than_its_driver_is_not_bound() {
    let domain = small_domain();
    let file = tempfile::tempfile().unwrap();
    file.set_len(4 * PAGE as u64).unwrap();
    let stretch = domain.allocate(4 * PAGE).unwrap();
    let short = Mapped::new(&file, 0, 2, true).unwrap();
    assert!(matches!(
        stretch.bind(short),
        Err(StretchError::TooLong {
            backed: 2,
            pages: 4,
            ..
        })
    ));
    stretch
        .bind(Mapped::new(&file, 0, 4, true).unwrap())
        .unwrap();
}
