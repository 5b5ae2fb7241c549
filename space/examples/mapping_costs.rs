//! What the kernel does with shared file mappings: the measurements behind the VTLB.
//!
//!     cargo run --release -p space --example mapping_costs
//!
//! Prints page-table memory (`VmPTE`) of 16 GiB of a sparse memfd touched once in each 2 MiB: after
//! the touches, after `MADV_DONTNEED`, after the ranges were replaced by inaccessible memory; what
//! a range costs to take away and to bring back; and whether a private mapping shows later changes
//! of its file.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{PAGE, status_kb};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::os::fd::AsFd;
use std::time::Instant;

const RANGE: usize = 2 << 20;
const RANGES: usize = 8192;

fn map_file(at: *mut u8, len: usize, flags: MapFlags, file: impl AsFd, offset: u64) -> *mut u8 {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping, or one over a range of this program's own.
    unsafe { mmap(at.cast(), len, rights, flags, file, offset) }
        .expect("the mapping fits")
        .cast()
}

fn hide(at: *mut u8, len: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: a range of this program's own, which no reference is to.
    unsafe { mmap_anonymous(at.cast(), len, ProtFlags::empty(), flags) }.expect("replaced");
}

fn touch(at: *mut u8) -> u8 {
    // SAFETY: a mapped byte.
    unsafe { at.read_volatile() }
}

fn write(at: *mut u8, value: u8) {
    // SAFETY: a mapped byte.
    unsafe { at.write_volatile(value) };
}

fn per(ranges: usize, begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e6 / ranges as f64
}

fn tables() {
    let file = memfd_create("sparse", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&file, (RANGE * RANGES) as u64).expect("sparse");
    let before = status_kb("self", "VmPTE:");
    let all = map_file(
        std::ptr::null_mut(),
        RANGE * (RANGES + 1),
        MapFlags::SHARED | MapFlags::NORESERVE,
        &file,
        0,
    );
    let base = all.wrapping_add(all.align_offset(RANGE));
    hide(all, RANGE * (RANGES + 1));
    map_file(
        base,
        RANGE * RANGES,
        MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED,
        &file,
        0,
    );
    let range = |n: usize| base.wrapping_add(n * RANGE);
    (0..RANGES).for_each(|n| write(range(n), 1));
    let touched = status_kb("self", "VmPTE:");
    // SAFETY: a shared mapping: the file keeps the contents.
    unsafe { madvise(base.cast(), RANGE * RANGES, Advice::LinuxDontNeed) }.expect("advice");
    let dropped = status_kb("self", "VmPTE:");
    (0..RANGES).for_each(|n| assert_eq!(touch(range(n)), 1));
    hide(base, RANGE * RANGES);
    let hidden = status_kb("self", "VmPTE:");
    println!(
        "VmPTE over the start, 16 GiB sparse: touched {} kB, MADV_DONTNEED {} kB, hidden {} kB",
        touched - before,
        dropped - before,
        hidden - before
    );
    for second in [false, true] {
        ranges(base, &file, second, before);
    }
    // SAFETY: this function's own.
    unsafe { munmap(all.cast(), RANGE * (RANGES + 1)) }.expect("unmapped");
}

/// What a range costs, alone or beside a second thread.
fn ranges(base: *mut u8, file: &rustix::fd::OwnedFd, second: bool, before: u64) {
    let range = |n: usize| base.wrapping_add(n * RANGE);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        if second {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let begin = Instant::now();
        (0..RANGES).for_each(|n| {
            map_file(
                range(n),
                RANGE,
                MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED,
                file,
                (n * RANGE) as u64,
            );
        });
        let enter = per(RANGES, begin);
        let begin = Instant::now();
        (0..RANGES).for_each(|n| assert_eq!(touch(range(n)), 1));
        let fault = per(RANGES, begin);
        let begin = Instant::now();
        (0..RANGES).for_each(|n| hide(range(n), RANGE));
        let leave = per(RANGES, begin);
        println!(
            "us a range, {} threads: map {enter:.2}, first access {fault:.2}, hide {leave:.2}; VmPTE {} kB",
            1 + usize::from(second),
            status_kb("self", "VmPTE:") - before
        );
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn copy_on_write() {
    let file = memfd_create("source", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&file, 4 * PAGE as u64).expect("length");
    let a = map_file(std::ptr::null_mut(), 4 * PAGE, MapFlags::SHARED, &file, 0);
    let b = map_file(std::ptr::null_mut(), 4 * PAGE, MapFlags::PRIVATE, &file, 0);
    write(a, 1);
    let first = touch(b);
    write(a, 2);
    let later = touch(b);
    write(b, 3);
    write(a, 4);
    println!(
        "private mapping: sees 1 as {first}, a later 2 as {later}; after its own 3 and the source's 4: {} and {}",
        touch(b),
        touch(a)
    );
    write(b.wrapping_add(PAGE), 7);
    fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        2 * PAGE as u64,
    )
    .expect("hole");
    println!(
        "after a hole in the source: own pages {} and {}, the source {}",
        touch(b),
        touch(b.wrapping_add(PAGE)),
        touch(a)
    );
    ftruncate(&file, PAGE as u64).expect("shorter");
    ftruncate(&file, 4 * PAGE as u64).expect("longer");
    println!(
        "after the source was truncated to a page and grown: own pages {} and {}",
        touch(b),
        touch(b.wrapping_add(PAGE))
    );
}

fn main() {
    tables();
    copy_on_write();
}
