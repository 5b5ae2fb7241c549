//! Cost of making a swap file read as zeros, and of writing to it afterwards: written zeros, as a
//! scrub does, against a range that the file system declares unwritten. `scrub FILE`: makes the
//! file and removes it again.

use disk::swapfs::{BlockDevice, FileName, FormatOptions, SwapFs, UNIT};
use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE: u64 = 128 * UNIT;
const ROUNDS: u32 = 5;
const WRITERS: u64 = 8;
const PAGE: usize = 4096;

#[repr(align(4096))]
struct Page([u8; PAGE]);

/// Writes every page once, in scattered order, by several threads.
fn write_pages(fs: &SwapFs, device: u64) -> Duration {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let page = Page([writer as u8 + 1; PAGE]);
                let pages = SIZE / PAGE as u64;
                for at in (writer..pages).step_by(WRITERS as usize) {
                    // An odd factor visits every page of a power of two once.
                    let at = at * 7919 % pages * PAGE as u64;
                    if let Err(errno) = fs.medium().write(&page.0, device + at) {
                        eprintln!("writing at {at}: {errno}");
                    }
                }
            });
        }
    });
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn measure(path: &Path) -> Result<(), Box<dyn Error>> {
    let options = FormatOptions {
        size: Some(SIZE + 2 * UNIT),
        force: false,
    };
    let mut fs = SwapFs::format(path, &options)?;
    let name = FileName::new(b"what is measured")?;
    let [mut scrubs, mut declares, mut after_scrub, mut after_declare] = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let file = fs.create(name, SIZE, &[])?;
        let begun = Instant::now();
        if let Some(mut scrub) = fs.scrub(file)? {
            scrub.run()?;
            fs.complete_scrub(scrub)?;
        }
        scrubs.push(begun.elapsed());
        let device = fs.extents(file)?.list()[0].device;
        after_scrub.push(write_pages(&fs, device));

        let begun = Instant::now();
        let fd = fs.medium().as_fd();
        fallocate(fd, FallocateFlags::ZERO_RANGE, device, SIZE)?;
        fdatasync(fd)?;
        declares.push(begun.elapsed());
        after_declare.push(write_pages(&fs, device));
        fs.release(file)?;
    }
    let gib = SIZE as f64 / (1 << 30) as f64;
    let (written, declared) = (median(after_scrub), median(after_declare));
    println!("zeros written: {:.2} s a GiB", median(scrubs) / gib);
    println!("zeros declared: {:.3} s a GiB", median(declares) / gib);
    println!(
        "{WRITERS} threads write every page after that: {:.2} and {:.2} s a GiB, {:.2} times",
        written / gib,
        declared / gib,
        declared / written
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("scrub FILE")?;
    let path = Path::new(&path);
    let is_new = !path.exists();
    let measured = measure(path);
    if is_new {
        let _ = std::fs::remove_file(path);
    }
    measured
}
