//! The same reads without a scheduler: each client has a ring of its own.

use crate::Outcome;
use crate::asker::DEPTH;
use crate::ground::Ground;
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};
use wired::clock::thread_time;
use wired::{PAGE, WiredMemory};

/// Totals of all clients.
pub struct Had {
    /// Pages a second, of all clients.
    pub rate: f64,
    /// Processor time a page, in microseconds, of the clients' threads.
    pub processor: f64,
}

/// Runs clients with `depth` outstanding reads each.
pub fn run(ground: &Ground, clients: u64, depth: usize, time: Duration) -> Outcome<Had> {
    let begun = Instant::now();
    let had = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=clients)
            .map(|seed| {
                scope.spawn(move || client(ground, seed, depth, time).map_err(|e| e.to_string()))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.collect::<Result<Vec<_>, _>>()
    });
    let elapsed = begun.elapsed().as_secs_f64();
    let mut all = (0, Duration::ZERO);
    for had in had.map_err(|_| "a client failed")? {
        let (count, used) = had?;
        all = (all.0 + count, all.1 + used);
    }
    Ok(Had {
        rate: all.0 as f64 / elapsed,
        processor: all.1.as_secs_f64() * 1e6 / all.0.max(1) as f64,
    })
}

fn client(ground: &Ground, seed: u64, depth: usize, time: Duration) -> Outcome<(u64, Duration)> {
    let mut ring = IoUring::new(DEPTH as u32)?;
    let memory = WiredMemory::private(DEPTH * PAGE)?;
    let file = types::Fd(ground.fs.medium().as_fd().as_raw_fd());
    let mut random = fastrand::Rng::with_seed(seed);
    let mut start = |ring: &mut IoUring, slot: usize| -> Outcome {
        let at = ground.device(Ground::anywhere(&mut random))?;
        let buffer = memory.as_ptr().wrapping_add(slot * PAGE);
        let entry = opcode::Read::new(file, buffer, PAGE as u32)
            .offset(at)
            .build();
        // SAFETY: the memory outlives the ring's operations: all are waited for.
        unsafe { ring.submission().push(&entry.user_data(slot as u64))? };
        Ok(())
    };
    let (begun, mut count, mut flying) = (Instant::now(), 0, depth);
    for slot in 0..depth {
        start(&mut ring, slot)?;
    }
    while flying > 0 {
        ring.submit_and_wait(1)?;
        let over: Vec<_> = ring.completion().collect();
        for entry in over {
            assert_eq!(entry.result(), PAGE as i32);
            count += 1;
            match begun.elapsed() < time {
                true => start(&mut ring, entry.user_data() as usize)?,
                false => flying -= 1,
            }
        }
    }
    Ok((count, Duration::from_nanos(thread_time().unwrap_or(0))))
}
