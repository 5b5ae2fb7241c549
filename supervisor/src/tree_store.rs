//! The supervisor's part of a tree's store: the descriptors that processes receive, the fence
//! around the swap file, and the peak of the store's contents.

use crate::config::SupervisorConfig;
use crate::daemon_link::ChannelUnavailable;
use crate::fence::Fence;
use link::MAX_PROCESSES;
use link::handshake::SlotIndex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::time::{Duration, Instant};
use store::{Occupancy, SetupError, SharedStore, Store};

/// The shortest time between two scans of the store at the ends of processes: a scan takes milliseconds
/// for a store of gigabytes.
const SCAN_INTERVAL: Duration = Duration::from_millis(200);

/// A tree's store.
pub(crate) struct TreeStore {
    store: SharedStore,
    fds: Vec<OwnedFd>,
    fence: Option<Fence>,
    peak: Occupancy,
    scanned: Instant,
}

impl TreeStore {
    /// Makes the store that the settings name, if they name one.
    pub fn create(settings: &SupervisorConfig) -> Result<Option<Self>, SetupError> {
        let Some(config) = &settings.store else {
            return Ok(None);
        };
        let (store, fds) = SharedStore::create(config, MAX_PROCESSES)?;
        if settings.tenant.is_some() || settings.page_client.is_some() {
            store.set_transport(Box::new(ChannelUnavailable));
        }
        if settings.ram_of_frames {
            store.hold_ram();
        }
        // The swap file is the last of the store's descriptors.
        let swap = fds.last().filter(|_| config.has_file());
        let fence = swap.and_then(|swap| Fence::around(swap).ok());
        Ok(Some(Self {
            store,
            fds,
            fence,
            peak: Occupancy::default(),
            scanned: Instant::now(),
        }))
    }

    pub fn shared(&self) -> &SharedStore {
        &self.store
    }

    /// The most that each tier held at the end of a process.
    pub fn peak(&self) -> Occupancy {
        self.peak
    }

    /// A description of the swap file for the process in `slot` alone; see [`TreeStore::descriptors`].
    ///
    /// # Errors
    /// As [`Fence::description`].
    pub fn description(&self, slot: SlotIndex) -> io::Result<Option<OwnedFd>> {
        match &self.fence {
            Some(fence) => fence.description(slot),
            None => Ok(None),
        }
    }

    /// The descriptors that a process receives, with its own description of the swap file.
    pub fn descriptors<'a>(&'a self, own: Option<&'a OwnedFd>) -> Vec<BorrowedFd<'a>> {
        let mut fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
        if let (Some(own), Some(swap)) = (own, fds.last_mut()) {
            *swap = own.as_fd();
        }
        fds
    }

    /// Returns true if no write of the process that was in `slot` to the swap file is in flight.
    pub fn is_quiet(&self, slot: SlotIndex) -> bool {
        self.fence.as_ref().is_none_or(|fence| fence.is_quiet(slot))
    }

    /// Releases the pages that the process that was in `slot` held, which has no write in flight. Returns false if another
    /// process has a page locked.
    ///
    /// Only where the fence is incomplete the store itself waits for the I/O of all processes, and blocks new I/O meanwhile.
    pub fn retire(&self, slot: SlotIndex) -> bool {
        match self.fence.as_ref().is_some_and(Fence::is_complete) {
            true => self.store.retire_quiet(slot),
            false => self.store.retire(slot),
        }
    }

    /// Samples the store before a process's pages are released: no other sample may see those of a short
    /// program.
    pub fn note_peak(&mut self, is_last: bool) {
        if is_last || self.scanned.elapsed() > SCAN_INTERVAL {
            self.scanned = Instant::now();
            self.peak = self.peak.max(self.store.occupancy());
        }
    }
}
