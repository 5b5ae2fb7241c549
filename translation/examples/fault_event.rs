//! Cost of a counted fault: `cargo run --release -p translation --example fault_event`. One thread
//! touches the pages of a file in the page cache, in turns without an event and with a signal after
//! every N faults; the minimum of the rounds is shown.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use translation::FaultEvent;

const PAGE: usize = 4096;
const PAGES: usize = 4096;
const ROUNDS: usize = 20;

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: i32) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Nanoseconds a fault.
fn touch(file: &std::fs::File) -> f64 {
    let len = PAGES * PAGE;
    // SAFETY: a new mapping of the file, used and unmapped here.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        let start = libc::mmap(null, len, rights, libc::MAP_PRIVATE, fd, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let begin = Instant::now();
        for page in 0..PAGES {
            start.cast::<u8>().add(page * PAGE).write_volatile(1);
        }
        let took = begin.elapsed();
        libc::munmap(start, len);
        took.as_nanos() as f64 / PAGES as f64
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = tempfile::tempfile()?;
    std::io::Write::write_all(&mut &file, &vec![1; PAGES * PAGE])?;
    // SAFETY: a handler that counts.
    unsafe { libc::signal(libc::SIGTRAP, count as *const () as usize) };
    let every = [97, 47, 23, 11, 5, 2, 1];
    let mut least = [f64::MAX; 8];
    for _ in 0..ROUNDS {
        least[0] = least[0].min(touch(&file));
        let event = FaultEvent::open(0, 1, 0)?;
        for (least, every) in least[1..].iter_mut().zip(every) {
            event.set_every(every)?;
            let before = SIGNALS.load(Ordering::Relaxed);
            *least = least.min(touch(&file));
            let signals = SIGNALS.load(Ordering::Relaxed) - before;
            // The first batch began under another number, and some signals fall together.
            let most = PAGES as u64 / u64::from(every);
            assert!(signals * 10 >= most * 9, "{signals} signals of {most}");
        }
    }
    println!("{:>26} {:7.0} ns a fault", "not counted", least[0]);
    for (took, every) in least[1..].iter().zip(every) {
        let (more, ratio) = (took - least[0], took / least[0]);
        println!(
            "a signal after every {every:>5} {took:7.0} ns a fault, {more:+5.0} ns, {ratio:.2} times"
        );
    }
    Ok(())
}
