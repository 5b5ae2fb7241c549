//! A client that reads pages at random.

use crate::Outcome;
use crate::ground::Ground;
use disk::atropos::{ClientId, DiskContract};
use disk::usd::{IoTarget, Usd};
use iochannel::{ChannelClient, ChannelGeometry, Doorbell, IoVec, create};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use wired::{PAGE, WiredMemory};

/// Maximum outstanding requests of a client.
pub const DEPTH: usize = 32;

pub struct Asker {
    pub id: ClientId,
    pub client: ChannelClient,
    pub doorbell: OwnedFd,
    memory: WiredMemory,
    random: fastrand::Rng,
}

impl Asker {
    pub fn new(usd: &Usd, contract: DiskContract, ground: &Ground) -> Outcome<Self> {
        let id = usd.admit(contract)?;
        let doorbell = Doorbell::new()?;
        let (server, ends) = create(ChannelGeometry::for_depth(DEPTH))?;
        let client = ChannelClient::attach(ends.memory, doorbell.share()?, ends.bell)?;
        let own = doorbell.share()?;
        usd.set_target(id, IoTarget::Swap(ground.extents.clone()), doorbell);
        usd.add_channel(id, server);
        Ok(Self {
            id,
            client,
            doorbell: own,
            memory: WiredMemory::private(DEPTH * PAGE)?,
            random: fastrand::Rng::with_seed(id.number().into()),
        })
    }

    pub fn read(&mut self, op: usize, pieces: &[IoVec; DEPTH]) {
        let offset = Ground::anywhere(&mut self.random);
        let piece = std::slice::from_ref(&pieces[op]);
        // SAFETY: the pieces and the memory outlive the operations of every caller here.
        unsafe { self.client.begin(op, false, piece, offset) };
    }

    pub fn pieces(&self) -> [IoVec; DEPTH] {
        let start = self.memory.as_ptr();
        std::array::from_fn(|op| IoVec {
            start: start.wrapping_add(op * PAGE),
            len: PAGE,
        })
    }

    /// Reads one page and waits for it.
    pub fn one(&mut self, pieces: &[IoVec; DEPTH]) {
        self.read(0, pieces);
        self.client.flush();
        assert_eq!(self.client.reap(true), Some((0, PAGE as i32)));
    }

    /// Keeps `depth` requests outstanding until it is stopped.
    pub fn keep(&mut self, depth: usize, stop: &AtomicBool) {
        let pieces = self.pieces();
        (0..depth).for_each(|op| self.read(op, &pieces));
        self.client.flush();
        while let Some((op, moved)) = self.client.reap(true) {
            assert_eq!(moved, PAGE as i32);
            if !stop.load(Ordering::Relaxed) {
                self.read(op, &pieces);
                self.client.flush();
            }
        }
    }
}
