//! Stand-ins for the ledger and the store until their crates have them.

use crate::wire::{LAYOUT, Slot};
use rustix::fd::OwnedFd;
use std::sync::Mutex;

/// Counts what is promised to whom.
pub struct Ledger {
    promised: Mutex<Vec<Option<u32>>>,
    total: u32,
}

impl Ledger {
    pub fn create(total: u32, slots: u16) -> rustix::io::Result<(Self, OwnedFd)> {
        let (_, fd) = wired::Region::shared(wired::PAGE, "selfpage-ledger")?;
        Ok((
            Self {
                promised: Mutex::new(vec![None; slots.into()]),
                total,
            },
            fd,
        ))
    }

    pub fn admit(&self, guaranteed: u32, _pid: u32) -> Result<Slot, String> {
        let mut promised = self.promised.lock().expect("no panic while held");
        let sum: u32 = promised.iter().flatten().sum();
        if sum + guaranteed > self.total {
            return Err(format!(
                "{guaranteed} frames asked for one more process, {} of {} left to promise",
                self.total - sum,
                self.total
            ));
        }
        let free = (1..promised.len()).find(|slot| promised[*slot].is_none());
        let slot = free.ok_or_else(|| format!("{} processes page already", promised.len() - 1))?;
        promised[slot] = Some(guaranteed);
        Ok(slot as Slot)
    }

    pub fn retire(&self, slot: Slot) -> u32 {
        self.promised.lock().expect("no panic while held")[usize::from(slot)]
            .take()
            .unwrap_or(0)
    }
}

/// Nowhere to put pages yet.
pub struct Store;

impl Store {
    pub fn descriptors(&self) -> &[OwnedFd] {
        &[]
    }

    pub fn layout(&self) -> [u8; LAYOUT] {
        [0; LAYOUT]
    }

    pub fn retire(&self, _slot: Slot) {}
}
