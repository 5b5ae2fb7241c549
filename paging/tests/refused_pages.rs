//! Pages in memory stay accessible while a full store refuses others.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{DirectIo, Domain, Paged};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
const FRAMES: u32 = 32;
const MOST: usize = 1024;
const REFUSALS: usize = 30;

fn noise(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Each refused page sends pages in memory to the standby list, and the store sends them back while a reader's fault on one searches for a
/// frame. A search that failed for such a page ended this process by SIGBUS.
#[test]
fn a_page_that_is_put_back_while_its_fault_finds_no_frame_is_read() {
    let domain = Domain::builder()
        .frames(FRAMES)
        .store("ram:256K".parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let stretch = domain.allocate((MOST + 1) * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    let mut seed = 88_172_645_463_325_252;
    let fitting = (0..MOST).take_while(|page| {
        let fits = stretch.populate(page * PAGE..(page + 1) * PAGE).is_ok();
        if fits {
            for at in 0..PAGE / 8 {
                let at = unsafe { stretch.as_ptr().add(page * PAGE).cast::<u64>().add(at) };
                unsafe { at.write_volatile(noise(&mut seed)) };
            }
        }
        fits
    });
    let fitting = fitting.count();
    assert!(fitting < MOST, "the store was never full");
    let resident = |page: &usize| stretch.trans(*page).unwrap().frame.is_some();
    let resident: Vec<usize> = (0..fitting).filter(resident).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (base, resident, stop) = (stretch.base(), &resident, &stop);
        let reader = scope.spawn(move || {
            let (mut seed, mut reads) = (12_345, 0_u64);
            while !stop.load(Ordering::Relaxed) {
                let page = resident[noise(&mut seed) as usize % resident.len()];
                let at = std::ptr::with_exposed_provenance::<u64>(base + page * PAGE + 8);
                unsafe { at.read_volatile() };
                reads += 1;
            }
            reads
        });
        let refused =
            (0..REFUSALS).filter(|_| stretch.populate(MOST * PAGE..(MOST + 1) * PAGE).is_err());
        assert_eq!(refused.count(), REFUSALS);
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}
