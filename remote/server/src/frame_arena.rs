//! The server's frames: RAM that is touched as it is used and given back when it is free.
//!
//! Rule: the kernel never pages a frame out where it permits locking, so that no request waits for
//! the server's own disk unless the server put the page there itself.

use crate::wired_table::WiredTable;
use rustix::io::Errno;
use rustix::mm::{MlockFlags, mlock_with};
use std::io;
use wired::{PAGE, WiredMemory};

/// Free frames that keep their memory: what a client's burst of writes takes without the kernel.
const RESERVE: u32 = 1024;

/// madvise's MADV_DONTNEED_LOCKED (Linux 5.18), by the kernel's number.
const DONTNEED_LOCKED: libc::c_int = 24;

/// A frame of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameNumber(pub u32);

/// RAM of a fixed number of frames.
pub(crate) struct FrameArena {
    memory: WiredMemory,
    /// Free frames, the last freed at the top. The lowest `cold` have no memory.
    free: WiredTable<u32>,
    free_len: u32,
    cold: u32,
    /// Most frames in use.
    limit: u32,
    lock: Result<(), Errno>,
}

impl FrameArena {
    /// An arena of `frames`, none of which has memory yet.
    pub fn new(frames: u32) -> io::Result<Self> {
        let memory = WiredMemory::private(frames.max(1) as usize * PAGE)?;
        // SAFETY: the mapping just made; locking changes no contents.
        let lock = unsafe { mlock_with(memory.as_ptr().cast(), memory.len(), MlockFlags::ONFAULT) };
        let mut free = WiredTable::new(frames as usize)?;
        for at in 0..frames {
            // The lowest frame is taken first.
            free[at] = frames - 1 - at;
        }
        Ok(Self {
            memory,
            free,
            free_len: frames,
            cold: frames,
            limit: frames,
            lock,
        })
    }

    /// Whether the kernel locks the frames in RAM; an error says why not.
    pub fn lock(&self) -> Result<(), Errno> {
        self.lock
    }

    /// Frames in all.
    pub fn len(&self) -> u32 {
        self.free.len() as u32
    }

    /// Frames in use.
    pub fn used(&self) -> u32 {
        self.len() - self.free_len
    }

    /// Frames with memory, in use or not.
    pub fn resident(&self) -> u32 {
        self.len() - self.cold
    }

    /// Most frames that may be in use.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the most frames that may be in use. Those in use stay so.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(self.len());
    }

    /// Takes a frame, with any contents.
    pub fn take(&mut self) -> Option<FrameNumber> {
        if self.used() >= self.limit {
            return None;
        }
        self.free_len = self.free_len.checked_sub(1)?;
        self.cold = self.cold.min(self.free_len);
        Some(FrameNumber(self.free[self.free_len]))
    }

    /// Frees a frame.
    pub fn free(&mut self, frame: FrameNumber) {
        self.free[self.free_len] = frame.0;
        self.free_len += 1;
    }

    /// Free frames beyond the reserve that have memory.
    pub fn surplus(&self) -> u32 {
        (self.free_len - self.cold).saturating_sub(RESERVE)
    }

    /// Gives the memory of at most `most` free frames beyond a reserve to the host. Returns how many.
    pub fn trim(&mut self, most: u32) -> u32 {
        let count = most.min(self.surplus());
        let end = self.cold + count;
        // In order, neighbours are one call to the kernel.
        self.free.slice_mut(self.cold..end).sort_unstable();
        let begun = self.cold;
        while self.cold < end {
            let first = self.free[self.cold];
            let next = |run: &u32| {
                let at = self.cold + run;
                at < end && self.free[at] == first + run
            };
            let run = 1 + (1..count).take_while(next).count() as u32;
            let start = self.start(FrameNumber(first)).cast();
            // SAFETY: the frames are free, so nothing borrows their bytes; they read as zeros afterwards.
            let done = unsafe { libc::madvise(start, run as usize * PAGE, DONTNEED_LOCKED) };
            if done != 0 {
                break;
            }
            self.cold += run;
        }
        self.cold - begun
    }

    /// The bytes of a frame.
    pub fn bytes(&self, frame: FrameNumber) -> &[u8; PAGE] {
        // SAFETY: inside the mapping, by `start`; shared as long as the arena is.
        unsafe { &*self.start(frame).cast() }
    }

    /// The bytes of a frame.
    pub fn bytes_mut(&mut self, frame: FrameNumber) -> &mut [u8; PAGE] {
        // SAFETY: inside the mapping, by `start`; borrowed mutably with the arena.
        unsafe { &mut *self.start(frame).cast() }
    }

    /// Where a frame begins.
    pub fn start(&self, frame: FrameNumber) -> *mut u8 {
        assert!(frame.0 < self.len(), "frame {} of {}", frame.0, self.len());
        // SAFETY: inside the mapping, which has as many pages as there are frames.
        unsafe { self.memory.as_ptr().add(frame.0 as usize * PAGE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_frames_beyond_the_reserve_lose_their_memory() {
        let mut arena = FrameArena::new(RESERVE + 100).unwrap();
        let frames: Vec<_> = std::iter::from_fn(|| arena.take()).collect();
        assert_eq!(frames.len() as u32, RESERVE + 100);
        for &frame in &frames {
            arena.bytes_mut(frame).fill(7);
        }
        for &frame in &frames {
            arena.free(frame);
        }
        assert_eq!(arena.trim(u32::MAX), 100);
        assert_eq!(arena.resident(), RESERVE);
        let again: Vec<_> = std::iter::from_fn(|| arena.take()).collect();
        let zeroed = |frame: &&FrameNumber| arena.bytes(**frame)[0] == 0;
        assert_eq!(again.iter().filter(zeroed).count(), 100);
    }

    #[test]
    fn no_more_frames_than_the_limit_are_taken() {
        let mut arena = FrameArena::new(10).unwrap();
        arena.set_limit(3);
        let frames: Vec<_> = std::iter::from_fn(|| arena.take()).collect();
        assert_eq!(frames.len(), 3);
        arena.free(frames[0]);
        assert!(arena.take().is_some());
    }
}
