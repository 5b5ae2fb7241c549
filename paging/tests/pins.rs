//! Pins, discards of pinned pages, and frames in use.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{Counter, DirectIo, Domain, Nailed, Paged, Stretch, StretchError};

const PAGE: usize = 4096;

fn domain() -> Domain {
    Domain::builder()
        .frames(16)
        .store("ram:4M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap()
}

fn write(stretch: &Stretch, page: usize, value: u8) {
    unsafe { stretch.as_ptr().add(page * PAGE).write_volatile(value) };
}

fn read(stretch: &Stretch, page: usize) -> u8 {
    unsafe { stretch.as_ptr().add(page * PAGE).read_volatile() }
}

fn paged(domain: &Domain, pages: usize) -> Stretch {
    let stretch = domain.allocate(pages * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    for page in 0..pages {
        write(&stretch, page, page as u8 + 1);
    }
    stretch
}

#[test]
fn a_discard_takes_no_pin_away() {
    let domain = domain();
    let stretch = paged(&domain, 4);
    let first = stretch.pin(0..PAGE).unwrap();
    assert!(stretch.discard(0..2).is_err());
    assert_eq!(read(&stretch, 0), 1, "a pinned page keeps its contents");
    let second = stretch.pin(0..PAGE).unwrap();
    drop(first);
    stretch.unmap(0..4).unwrap();
    assert!(stretch.trans(0).unwrap().frame.is_some());
    drop(second);
    stretch.discard(0..4).unwrap();
    assert_eq!(read(&stretch, 0), 0);
}

#[test]
fn a_nailed_stretch_keeps_its_pages_whatever_is_discarded() {
    let domain = domain();
    let stretch = domain.allocate(4 * PAGE).unwrap();
    stretch.bind(Nailed).unwrap();
    write(&stretch, 1, 9);
    assert!(stretch.discard(0..4).is_err());
    assert_eq!(read(&stretch, 1), 9);
}

#[test]
fn more_pins_of_a_page_than_are_counted_are_refused() {
    let domain = domain();
    let stretch = paged(&domain, 2);
    let pins: Vec<_> = (0..7).map(|_| stretch.pin(0..2 * PAGE).unwrap()).collect();
    assert!(stretch.pin(0..2 * PAGE).is_err());
    drop(pins);
    drop(stretch.pin(0..2 * PAGE).unwrap());
    stretch.unmap(0..2).unwrap();
    assert!(stretch.trans(0).unwrap().frame.is_none());
}

#[test]
fn a_frame_that_has_a_page_is_not_mapped_again() {
    let domain = domain();
    let stretch = paged(&domain, 2);
    let frame = stretch.trans(0).unwrap().frame.unwrap();
    stretch.unmap(1..2).unwrap();
    assert!(stretch.map(1, frame).is_err());
    assert_eq!(read(&stretch, 1), 2);
    let taken = domain.take_frame().unwrap();
    domain.put_frame(taken).unwrap();
    assert!(stretch.map(1, taken).is_err(), "put back");
}

#[test]
fn a_frame_that_has_a_page_is_not_put_back() {
    let domain = domain();
    let stretch = paged(&domain, 2);
    let in_use = domain.in_use();
    let frame = stretch.trans(0).unwrap().frame.unwrap();
    assert!(domain.put_frame(frame).is_err());
    assert_eq!(domain.in_use(), in_use);
}

#[test]
fn a_nailed_stretch_that_finds_too_few_frames_keeps_none() {
    let domain = domain();
    let first = domain.allocate(10 * PAGE).unwrap();
    first.bind(Nailed).unwrap();
    let second = domain.allocate(10 * PAGE).unwrap();
    assert!(matches!(
        second.bind(Nailed),
        Err(StretchError::Frames { pages: 10, .. })
    ));
    assert_eq!(domain.in_use(), 10);
    let paged = paged(&domain, 20);
    assert_eq!(read(&paged, 7), 8);
}

#[test]
fn a_hint_that_finds_no_frame_ends_with_its_first_page() {
    let domain = domain();
    let nailed = domain.allocate(16 * PAGE).unwrap();
    nailed.bind(Nailed).unwrap();
    let stretch = domain.allocate(1000 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let waits = domain.counters().get(Counter::FrameWaits);
    stretch.prefetch(0..1000 * PAGE).unwrap();
    stretch.await_prefetch();
    // About two milliseconds each, for one page.
    assert!(domain.counters().get(Counter::FrameWaits) - waits < 1000);
}

#[test]
fn without_a_store_every_frame_can_be_nailed() {
    let domain = Domain::builder().frames(64).build().unwrap();
    let stretch = domain.allocate(64 * PAGE).unwrap();
    stretch.bind(Nailed).unwrap();
    assert_eq!(domain.in_use(), 64);
}
