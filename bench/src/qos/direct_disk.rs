//! The device without a scheduler: direct reads of random pages at a fixed queue depth.

use crate::prelude::*;
use crate::qos::subject::Done;
use crate::swap::open_direct;
use io_uring::{IoUring, opcode, types};
use std::os::fd::AsRawFd;

/// Reads pages of a file of `bytes` at random, `depth` at once.
pub fn read(path: &Path, bytes: u64, depth: u32, during: Duration) -> Result<Done> {
    let file = open_direct(path)?;
    // Before the ring, so that it is dropped after: a ring that goes has nothing under way.
    let buffers = WorkerMemory::new(&MemoryKind::Anonymous, u64::from(depth), 0)?;
    let mut ring = IoUring::new(depth.next_power_of_two()).doing("make a ring")?;
    let pages = bytes / PAGE as u64;
    let began = Instant::now();
    let (mut begun, mut under_way, mut accesses) = (0u64, 0u64, 0u64);
    let mut idle: Vec<u64> = (0..u64::from(depth)).collect();
    let mut failure = None;
    // A failure too ends when nothing is under way: the buffers are the device's until then.
    while under_way > 0 || (failure.is_none() && began.elapsed() < during) {
        while failure.is_none() && began.elapsed() < during {
            let Some(slot) = idle.pop() else { break };
            // SAFETY: a page of the buffers, this slot's alone.
            let into = unsafe { buffers.start().add(slot as usize * PAGE) };
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), into, PAGE as u32)
                .offset(mix(begun) % pages * PAGE as u64)
                .build()
                .user_data(slot);
            // SAFETY: the buffer and the file stay until nothing is under way.
            match unsafe { ring.submission().push(&read) } {
                Ok(()) => (begun, under_way) = (begun + 1, under_way + 1),
                // There are as many entries as slots.
                Err(full) => failure = Some(std::io::Error::other(full)),
            }
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            Err(why) => return Err(Error::from(why).context("could not read the device")),
        }
        for entry in ring.completion() {
            under_way -= 1;
            idle.push(entry.user_data());
            match entry.result() {
                result if result == PAGE as i32 => accesses += 1,
                result => {
                    // A short read is an error too: the file was as long as that.
                    let errno = if result < 0 { -result } else { libc::EIO };
                    failure = Some(std::io::Error::from_raw_os_error(errno));
                }
            }
        }
    }
    if let Some(why) = failure {
        return Err(Error::from(why).context("could not read the device"));
    }
    Ok(Done {
        accesses,
        ns: began.elapsed().as_nanos() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_as_long_as_was_said() {
        let path = std::env::temp_dir().join(format!(
            "selfpage-bench-test-device-{}-q",
            std::process::id()
        ));
        std::fs::write(&path, vec![0; 64 * PAGE]).unwrap();
        let done = read(&path, 64 * PAGE as u64, 8, Duration::from_millis(20));
        std::fs::remove_file(&path).unwrap();
        match done {
            Ok(done) => assert!(done.accesses >= 8),
            // A file system in memory has no direct I/O.
            Err(other) => assert!(other.to_string().contains("direct I/O"), "{other}"),
        }
    }
}
