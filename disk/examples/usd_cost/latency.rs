//! One page at a time.

use crate::asker::Asker;
use crate::ground::Ground;
use crate::shares::contract;
use crate::{Outcome, median};
use disk::atropos::Utilization;
use rustix::fd::AsFd;
use std::time::{Duration, Instant};
use wired::{PAGE, WiredMemory};

const TURNS: usize = 20;
const READS: usize = 200;

pub fn print(ground: &Ground) -> Outcome {
    for spin in [Duration::from_millis(1), Duration::ZERO] {
        let usd = ground.usd(spin)?;
        let mut asker = Asker::new(&usd, contract(Utilization::percent(10), 100, true), ground)?;
        let pieces = asker.pieces();
        let memory = WiredMemory::private(PAGE)?;
        // SAFETY: fresh memory of that size, used only here.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), PAGE) };
        let (mut by_channel, mut direct) = (Vec::new(), Vec::new());
        let mut random = fastrand::Rng::with_seed(99);
        let before = usd.disk_stats().processor;
        let mut busy = Duration::ZERO;
        for _ in 0..TURNS {
            let begun = Instant::now();
            for _ in 0..READS {
                let begun = Instant::now();
                asker.one(&pieces);
                by_channel.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            busy += begun.elapsed();
            // Time for the thread to go to sleep, not counted.
            std::thread::sleep(2 * spin);
            for _ in 0..READS {
                let at = ground.device(Ground::anywhere(&mut random))?;
                let begun = Instant::now();
                rustix::io::pread(ground.fs.medium().as_fd(), &mut *bytes, at)?;
                direct.push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
        let used = (usd.disk_stats().processor - before).as_secs_f64() / busy.as_secs_f64();
        let (by_channel, direct) = (median(by_channel), median(direct));
        println!(
            "spin {spin:?}: a read takes {by_channel:.1} us by the disk's thread, {direct:.1} us \
             without ({:.2} times), and {:.0} % of a processor",
            by_channel / direct,
            used * 100.0
        );
    }
    Ok(())
}
