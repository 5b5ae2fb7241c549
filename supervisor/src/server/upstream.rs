//! The contract with the system's daemon, where the tree has one.

use super::{Supervisor, UPSTREAM};
use crate::compressed_ram::{self, CompressedRamParts};
use crate::config::StartError;
use crate::daemon_link::DaemonLink;
use frames::Ledger;
use host::seqpacket;
use protocol::contract_spec::ContractSpec;
use rustix::event::epoll;
use rustix::io;
use tenant::Session;
use wired::PAGE;

impl Supervisor {
    /// Shows the ledger to the daemon. The last that can fail: from then on it takes a
    /// tenant that hangs up for one that has frames, and ends it.
    pub(super) fn begin(&mut self, mut tenant: Session) -> Result<(), StartError> {
        let copy = io::fcntl_dupfd_cloexec(&self.ledger_fd, 0);
        tenant.start(copy.map_err(StartError::call("copy a descriptor"))?)?;
        self.ledger.set_max_guaranteed(tenant.terms().frames.g);
        self.upstream = Some(DaemonLink::new(tenant));
        self.watch_upstream();
        Ok(())
    }

    /// Watches the remote client, where there is one.
    pub(super) fn watch_remote(&self) -> Result<(), StartError> {
        let Some(remote) = &self.remote else {
            return Ok(());
        };
        let data = epoll::EventData::new_u64(UPSTREAM);
        epoll::add(&self.epoll, remote.fd(), data, epoll::EventFlags::IN)
            .map_err(StartError::call("watch the remote client"))
    }

    /// Has compressed RAM sized, where it is part of the frames; without it pages go to the disk.
    pub(super) fn start_compressed_ram(&mut self) {
        if self.settings.ram_of_frames
            && let Err(why) = self.try_start_compressed_ram()
        {
            tracing::warn!("pages are not compressed in RAM, only written to the disk: {why}");
        }
    }

    /// Starts the thread that sizes compressed RAM, where the store has some, with a domain of its
    /// own in the ledger.
    fn try_start_compressed_ram(&mut self) -> Result<(), StartError> {
        let Some((store, _)) = &self.store else {
            return Ok(());
        };
        let Some(ram) = self.settings.store.as_ref().and_then(|store| store.ram) else {
            return Ok(());
        };
        let call = StartError::call;
        let mut parts = CompressedRamParts {
            ledger: Ledger::attach(&self.ledger_fd)?,
            store: store.clone(),
            channel: None,
            most: (ram / PAGE as u64) as u32,
        };
        let Some(upstream) = &mut self.upstream else {
            return compressed_ram::start(parts).map(drop);
        };
        let bell = io::fcntl_dupfd_cloexec(upstream.pressure_bell(), 0);
        parts
            .ledger
            .set_bell(bell.map_err(call("copy a descriptor"))?);
        let (ours, theirs) = seqpacket::pair().map_err(call("make a socket"))?;
        parts.channel = Some(ours);
        let slot = compressed_ram::start(parts)?;
        upstream.open(slot, store::RamResizer::OPS, theirs);
        Ok(())
    }

    /// The contract with the system's daemon, where there is one.
    pub fn terms(&self) -> Option<ContractSpec> {
        self.upstream.as_ref().map(DaemonLink::terms)
    }

    /// Puts a share of the faults in force that the daemon has sent.
    pub(super) fn follow_upstream(&mut self) {
        let share = self.upstream.as_mut().and_then(DaemonLink::new_share);
        if let (Some(limits), Some(share)) = (&mut self.fault_limits, share) {
            limits.give(share);
            limits.apply(&self.stats_page);
        }
    }

    /// Watches the connection to the daemon; the one before has ended, and left the epoll.
    pub(super) fn watch_upstream(&self) {
        if let Some(fd) = self.upstream.as_ref().and_then(DaemonLink::fd) {
            let data = epoll::EventData::new_u64(UPSTREAM);
            let _ = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN);
        }
    }
}
