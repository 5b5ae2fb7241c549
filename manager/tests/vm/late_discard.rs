//! Discards beside other accesses: one that the manager has the report of before its effect, since it waits for the memfd's lock, which
//! another thread has, and a balloon that grows without a pause.

use super::{Memory, PAGE};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the kernel takes a moment for, with the lock.
const BYTES: u64 = 256 << 20;
/// After this a thread has the lock, or waits for it.
const PAUSE: Duration = Duration::from_millis(10);

/// Discards the first page so, and reads all pages but those of its unit meanwhile. Returns 1 if it is not zero afterwards, and 1
/// for each other page that has not the snapshot's contents.
pub fn discard(memory: &Memory, unit: usize) -> usize {
    let memfd = memory.memfd.as_ref().expect("a memfd");
    let len = memory.len as u64;
    let part = memory.part();
    let wrong = std::thread::scope(|scope| {
        scope.spawn(|| fallocate(memfd, FallocateFlags::KEEP_SIZE, len, BYTES).expect("fallocate"));
        std::thread::sleep(PAUSE);
        scope.spawn(move || part.memory().remove(0, 1));
        std::thread::sleep(PAUSE);
        let pages = unit..memory.len / PAGE;
        pages.filter(|page| !memory.has(*page, Some(0))).count()
    });
    ftruncate(memfd, len).expect("ftruncate");
    wrong + usize::from(!memory.has(0, None))
}

/// Reads the first pages while another thread discards the others again and again. Returns how many have not the snapshot's contents.
pub fn verify_beside(memory: &Memory, pages: usize) -> usize {
    let part = memory.part();
    let others = pages..memory.len / PAGE;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let memory = part.memory();
            for page in others.cycle() {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                memory.remove(page, 1);
            }
        });
        let wrong = (0..pages).filter(|page| !memory.has(*page, Some(0)));
        let wrong = wrong.count();
        is_over.store(true, Ordering::SeqCst);
        wrong
    })
}
