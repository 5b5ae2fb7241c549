//! How soon a page comes back after its eviction.
//!
//! A page table of another process has no accessed bits that its pager could read, so a page that is used all the time leaves
//! as others do. That it is missed again before half of the memory was replaced tells it from them (the
//! reuse distance of the kernel's workingset.c); what a scan goes through comes back later.
//!
//! Rule: pure. The clock counts evicted pages, in ticks of a 64th of the memory, and goes round after a thousand times the memory.

/// The clock.
#[derive(Clone, Copy, Debug)]
pub struct ReuseClock {
    pages: u64,
    tick: u64,
}

/// Ticks in which as many pages leave as there are frames.
const TICKS: u64 = 64;

impl ReuseClock {
    /// For at most that many frames.
    pub fn new(frames: usize) -> Self {
        let tick = (frames as u64 / TICKS).max(1);
        // A page that never left has left at 0, long ago.
        Self {
            pages: tick * u64::from(u16::MAX / 2),
            tick,
        }
    }

    /// Pages leave.
    pub fn advance(&mut self, pages: u64) {
        self.pages += pages;
    }

    /// The time to note for a page that leaves.
    pub fn now(&self) -> u16 {
        (self.pages / self.tick) as u16
    }

    /// Returns true if a page that left then comes back before half of `resident` pages were replaced.
    pub fn is_soon(&self, left: u16, resident: u32) -> bool {
        let ticks = self.now().wrapping_sub(left);
        u64::from(ticks) * self.tick < u64::from(resident) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_within_half_of_the_memory_is_soon() {
        let mut clock = ReuseClock::new(6400);
        let left = clock.now();
        clock.advance(3100);
        assert!(clock.is_soon(left, 6400));
        clock.advance(200);
        assert!(!clock.is_soon(left, 6400));
        assert!(!clock.is_soon(0, 6400), "it never left");
    }

    #[test]
    fn the_clock_goes_round() {
        let mut clock = ReuseClock::new(64);
        clock.advance(u64::from(u16::MAX / 2));
        let left = clock.now();
        clock.advance(10);
        assert!(left > clock.now());
        assert!(clock.is_soon(left, 64));
    }
}
