//! Devices that read and write a linked program's paged memory behind the processor's
//! back.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{Capabilities, Counter, DirectIo, Domain, Feature, Paged, Stretch};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
const BLOCK: usize = 64 * PAGE;
const BLOCKS: usize = 32;

/// A file of known contents, open for direct I/O; none where the file system has none.
fn direct_file() -> Option<File> {
    let named = tempfile::NamedTempFile::new().unwrap();
    let (path, mut file) = (named.path(), named.as_file());
    for block in 0..BLOCKS {
        file.write_all(&vec![block as u8 + 1; BLOCK]).unwrap();
    }
    file.sync_all().unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path);
    direct.ok()
}

fn read_block(file: &File, block: usize, into: *mut u8) -> isize {
    unsafe { libc::pread(file.as_raw_fd(), into.cast(), BLOCK, (block * BLOCK) as i64) }
}

fn domain(direct_io: DirectIo) -> (Domain, Stretch) {
    let domain = Domain::builder()
        .frames(512)
        .store("ram:64M".parse().unwrap())
        .direct_io(direct_io)
        .build()
        .unwrap();
    let stretch = domain.allocate(4096 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    (domain, stretch)
}

/// Reads blocks by direct I/O while another thread makes the domain evict all the time.
fn read_under_pressure(stretch: &Stretch, mut read: impl FnMut(usize, usize)) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut x = 1usize;
            while !done.load(Ordering::Relaxed) {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = 2048 + (x >> 33) % 2048;
                unsafe { stretch.as_ptr().add(page * PAGE).write_volatile(x as u8) };
            }
        });
        for round in 0..100 {
            let block = round % BLOCKS;
            let at = (round * 7 % BLOCKS) * 64 * PAGE;
            read(block, at);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_a_device_writes_into_memory_that_is_not_pinned_is_not_lost() {
    let Some(file) = direct_file() else {
        println!("SKIPPED: the file system has no direct I/O");
        return;
    };
    if !Capabilities::probe_fast().has(Feature::Move) {
        println!("SKIPPED: this kernel has no UFFDIO_MOVE");
        return;
    }
    let (domain, stretch) = domain(DirectIo::Anytime);
    read_under_pressure(&stretch, |block, at| {
        // Missing pages are refused with EFAULT: brought in, and tried again.
        let got = (0..1000).find_map(|_| {
            stretch.populate(at..at + BLOCK).unwrap();
            let got = read_block(&file, block, unsafe { stretch.as_ptr().add(at) });
            (got == BLOCK as isize).then_some(got)
        });
        assert!(got.is_some(), "block {block} could never be read");
        let bytes = unsafe { std::slice::from_raw_parts(stretch.as_ptr().add(at), BLOCK) };
        let wrong = bytes.iter().position(|b| *b != block as u8 + 1);
        assert_eq!(wrong, None, "block {block} lost what the device wrote");
    });
    println!(
        "{} pages were found pinned",
        domain.counters().get(Counter::DmaPinnedSkips)
    );
}

#[test]
fn pinned_buffers_take_direct_io_under_either_promise() {
    let Some(file) = direct_file() else {
        println!("SKIPPED: the file system has no direct I/O");
        return;
    };
    for direct_io in [DirectIo::PinnedOnly, DirectIo::Anytime] {
        let (_domain, stretch) = domain(direct_io);
        read_under_pressure(&stretch, |block, at| {
            let pin = stretch.pin(at..at + BLOCK).unwrap();
            assert_eq!(
                read_block(&file, block, unsafe { stretch.as_ptr().add(at) }),
                BLOCK as isize
            );
            drop(pin);
            let bytes = unsafe { std::slice::from_raw_parts(stretch.as_ptr().add(at), BLOCK) };
            assert!(bytes.iter().all(|b| *b == block as u8 + 1), "block {block}");
        });
    }
}
