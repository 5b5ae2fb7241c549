//! A store without room for all that the program has, but for the copies of resident pages.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{Counter, DirectIo, Domain, Paged};

const PAGE: usize = 4096;
const FRAMES: usize = 16_384;
const PAGES: usize = FRAMES + FRAMES / 10;

/// Numbers without a pattern.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The store has room for 2.5 times the pages without a frame. Reads leave copies of resident pages in it until it is
/// full: then each write that needs room finds none.
#[test]
fn an_access_that_finds_the_store_full_of_copies_tries_few_pages() {
    let domain = Domain::builder()
        .frames(FRAMES as u32)
        .store("ram:16M".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let word = |page: usize, word: usize| unsafe {
        stretch.as_ptr().add(page * PAGE + word * 8).cast::<u64>()
    };
    let mut noise = Noise(88_172_645_463_325_252);
    for page in 0..PAGES {
        for at in 0..PAGE / 8 {
            unsafe { word(page, at).write(noise.next()) };
        }
    }
    let failures = || domain.counters().get(Counter::WriteFailures);
    let mut expected = vec![None; PAGES];
    let mut most = 0;
    for _ in 0..100_000 {
        let page = noise.next() as usize % PAGES;
        let before = failures();
        let found = unsafe { word(page, 0).read_volatile() };
        if let Some(expected) = expected[page] {
            assert_eq!(found, expected, "page {page}");
        }
        expected[page] = Some(found);
        if noise.next().is_multiple_of(2) {
            let value = noise.next();
            unsafe { word(page, 0).write_volatile(value) };
            expected[page] = Some(value);
        }
        most = most.max(failures() - before);
    }
    println!("{} refused writes, {most} in one access", failures());
    assert!(failures() > 0, "the store was never full");
    assert!(
        most < FRAMES as u64 / 8,
        "one access tried {most} pages of {FRAMES}"
    );
}
