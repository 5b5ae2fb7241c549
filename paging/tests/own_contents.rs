//! A driver with contents of its own for pages never touched, whose pages go to the store.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{Activation, DirectIo, Domain, FillOutcome, Stretch, StretchDriver, StretchError};

const PAGE: usize = 4096;

/// Fills each page with its number.
struct Numbered;

impl StretchDriver for Numbered {
    fn name(&self) -> &'static str {
        "numbered"
    }
    fn evictable(&self) -> bool {
        true
    }
    fn needs_store(&self) -> bool {
        true
    }
    fn zero_is_empty(&self) -> bool {
        false
    }
    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        fault.fill_with(|page, into| {
            into.fill(byte_of(page));
            Ok(())
        })
    }
}

fn byte_of(page: usize) -> u8 {
    (page % 251) as u8 + 1
}

fn read(stretch: &Stretch, page: usize) -> u8 {
    unsafe { stretch.as_ptr().add(page * PAGE).read_volatile() }
}

/// Touches a part, evicts it, and reads all in order: windows and huge frames come to the pages
/// that were never touched.
fn assert_every_page_has_its_number(domain: &Domain, stretch: &Stretch) {
    stretch.bind(Numbered).unwrap();
    let is_touched = |page: &usize| page % 64 < 40;
    for page in (0..stretch.pages()).filter(is_touched) {
        assert_eq!(read(stretch, page), byte_of(page), "page {page}, first");
    }
    stretch.unmap(0..stretch.pages()).unwrap();
    domain.relinquish(domain.n());
    for page in 0..stretch.pages() {
        assert_eq!(read(stretch, page), byte_of(page), "page {page}");
    }
}

fn domain(frames: u32) -> Domain {
    Domain::builder()
        .frames(frames)
        .store("ram:64M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap()
}

#[test]
fn a_window_puts_no_zeros_in_the_place_of_the_drivers_contents() {
    let domain = domain(1024);
    let stretch = domain.allocate(512 * PAGE).unwrap();
    assert_every_page_has_its_number(&domain, &stretch);
}

#[test]
fn a_huge_frame_puts_no_zeros_in_the_place_of_the_drivers_contents() {
    let domain = domain(8192);
    match domain.allocate_huge(1024 * PAGE) {
        Ok(stretch) => assert_every_page_has_its_number(&domain, &stretch),
        Err(StretchError::NoHugeFrames(why)) => println!("SKIPPED: {why}"),
        Err(error) => panic!("{error}"),
    }
}
