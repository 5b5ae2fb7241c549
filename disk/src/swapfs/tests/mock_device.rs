//! A block device that loses power.
//!
//! An unflushed sector may survive or not, in any order, and one sector may be half written. Kept
//! sparse: sectors never written are zeros.

use crate::swapfs::block_device::BlockDevice;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

const SECTOR: usize = 512;

type Sector = [u8; SECTOR];
type Sectors = HashMap<u64, Sector>;

#[derive(Default)]
struct State {
    durable: Sectors,
    /// Unflushed sectors, in the order written.
    pending: Vec<(u64, Sector)>,
    /// Sectors written and flushes completed until the power is lost.
    left: Option<usize>,
    /// True once the power is lost.
    lost: bool,
    /// True if flushes fail though the power is on.
    failing: bool,
    /// Bad sectors: reads fail until they are written.
    bad: HashSet<u64>,
}

/// The device. [`MockDevice::lose_power_after`] switches it off, and [`MockDevice::recover`] makes
/// another device of what is left.
pub(super) struct MockDevice {
    size: u64,
    state: Mutex<State>,
}

impl MockDevice {
    pub fn new(size: u64) -> Self {
        Self {
            size,
            state: Mutex::default(),
        }
    }

    pub fn lose_power_after(&self, steps: usize) {
        self.state.lock().unwrap().left = Some(steps);
    }

    /// Ends a fault other than a power loss. Unflushed sectors stay unflushed.
    pub fn recover_in_place(&self) {
        let mut state = self.state.lock().unwrap();
        (state.left, state.lost) = (None, false);
    }

    pub fn has_lost_power(&self) -> bool {
        self.state.lock().unwrap().lost
    }

    pub fn fail(&self, failing: bool) {
        self.state.lock().unwrap().failing = failing;
    }

    /// Makes the sector at `at` unreadable until it is written.
    pub fn damage(&self, at: u64) {
        self.state.lock().unwrap().bad.insert(at / SECTOR as u64);
    }

    /// The same contents on another device, all of them durable.
    pub fn copy(&self) -> Self {
        self.recover(&mut || u64::MAX)
    }

    /// The device after a power loss: `random` decides for each unflushed sector whether it
    /// survives, and in which order; one of them is torn.
    pub fn recover(&self, random: &mut dyn FnMut() -> u64) -> Self {
        let state = self.state.lock().unwrap();
        let mut durable = state.durable.clone();
        let torn = random();
        for (at, (sector, bytes)) in state.pending.iter().enumerate() {
            let chance = random();
            if chance.is_multiple_of(2) {
                continue;
            }
            let kept = durable.entry(*sector).or_insert([0; SECTOR]);
            if torn != u64::MAX && torn as usize % state.pending.len() == at {
                let cut = (chance >> 8) as usize % SECTOR;
                kept[..cut].copy_from_slice(&bytes[..cut]);
            } else {
                *kept = *bytes;
            }
        }
        let recovered = Self::new(self.size);
        recovered.state.lock().unwrap().durable = durable;
        recovered
    }

    /// The byte at `at`, as a read returns it.
    pub fn byte(&self, at: u64) -> u8 {
        let state = self.state.lock().unwrap();
        state.sector(at / SECTOR as u64)[at as usize % SECTOR]
    }

    /// Fills the sector at `at` with `mark`, durably: as a tenant's write would, or decay.
    pub fn mark(&self, at: u64, mark: u8) {
        let mut state = self.state.lock().unwrap();
        state.durable.insert(at / SECTOR as u64, [mark; SECTOR]);
    }
}

impl State {
    fn sector(&self, sector: u64) -> Sector {
        let pending = self.pending.iter().rev().find(|(at, _)| *at == sector);
        match pending {
            Some((_, bytes)) => *bytes,
            None => self.durable.get(&sector).copied().unwrap_or([0; SECTOR]),
        }
    }

    fn step(&mut self) -> Result<(), Errno> {
        match &mut self.left {
            Some(0) => {
                self.lost = true;
                return Err(Errno::IO);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    fn write(&mut self, sector: u64, bytes: Sector) -> Result<(), Errno> {
        self.step()?;
        self.bad.remove(&sector);
        self.pending.push((sector, bytes));
        Ok(())
    }
}

impl BlockDevice for MockDevice {
    fn name(&self) -> &str {
        "the simulated device"
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, to: &mut [u8], at: u64) -> Result<(), Errno> {
        assert!(at + to.len() as u64 <= self.size && to.len().is_multiple_of(SECTOR));
        let state = self.state.lock().unwrap();
        for (sector, bytes) in to.chunks_mut(SECTOR).enumerate() {
            let sector = at / SECTOR as u64 + sector as u64;
            if state.bad.contains(&sector) {
                return Err(Errno::IO);
            }
            bytes.copy_from_slice(&state.sector(sector));
        }
        Ok(())
    }

    fn write(&self, from: &[u8], at: u64) -> Result<(), Errno> {
        assert!(at + from.len() as u64 <= self.size && from.len().is_multiple_of(SECTOR));
        let mut state = self.state.lock().unwrap();
        for (sector, bytes) in from.chunks(SECTOR).enumerate() {
            state.write(
                at / SECTOR as u64 + sector as u64,
                bytes.try_into().unwrap(),
            )?;
        }
        Ok(())
    }

    /// Only existing sectors: all others read as zeros anyway.
    fn zero(&self, at: u64, len: u64) -> Result<(), Errno> {
        assert!(at + len <= self.size);
        let mut state = self.state.lock().unwrap();
        let range = at / SECTOR as u64..(at + len) / SECTOR as u64;
        let mut there: Vec<u64> = (state.durable.keys().copied())
            .chain(state.pending.iter().map(|(sector, _)| *sector))
            .filter(|sector| range.contains(sector))
            .collect();
        there.sort_unstable();
        there.dedup();
        (there.into_iter()).try_for_each(|sector| state.write(sector, [0; SECTOR]))
    }

    fn flush(&self) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        state.step()?;
        if state.failing {
            return Err(Errno::IO);
        }
        let pending = std::mem::take(&mut state.pending);
        state.durable.extend(pending);
        Ok(())
    }
}
