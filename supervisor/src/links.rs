//! What a tree is connected to beyond itself: the party that serves its IO channels, which is the
//! daemon or a page client, and the limits on its faults, to which the daemon contributes.
//!
//! Rule: nothing here blocks. The daemon may be away for any time; what needs it waits.

use crate::TreeEvent;
use crate::config::StartError;
use crate::daemon_link::DaemonLink;
use crate::fault_limits::TreeFaultLimits;
use crate::page_client_link::{PageClientConnection, PageClientLink};
use crate::sockets::refuse;
use frames::Ledger;
use host::epoll_set::EpollSet;
use host::fd_reaper::PeerFd;
use link::handshake::SlotIndex;
use link::stats_page::StatsPage;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io;
use std::time::Duration;
use tenant::Session;

/// The party that serves IO channels, where the store has no file of its own.
enum ChannelServer {
    Daemon(Box<DaemonLink>),
    PageClient(PageClientLink),
}

/// The links of one tree.
pub(crate) struct Links {
    server: Option<ChannelServer>,
    fault_limits: Option<TreeFaultLimits>,
    /// What the set of descriptors reports of a link that is readable.
    token: u64,
}

impl Links {
    pub fn new(token: u64) -> Self {
        Self {
            server: None,
            fault_limits: None,
            token,
        }
    }

    /// Links to a page client.
    pub fn connect_page_client(
        &mut self,
        to: PageClientConnection,
        set: &EpollSet,
    ) -> io::Result<()> {
        let client = PageClientLink::new(to);
        set.add(client.fd(), self.token)?;
        self.server = Some(ChannelServer::PageClient(client));
        Ok(())
    }

    /// Shows the ledger to the daemon. The last that can fail: from then on it takes a
    /// tenant that hangs up for one that has frames, and ends it.
    pub fn connect_daemon(
        &mut self,
        mut tenant: Session,
        ledger: &Ledger,
        ledger_fd: &OwnedFd,
        set: &EpollSet,
    ) -> Result<(), StartError> {
        let copy = io::fcntl_dupfd_cloexec(ledger_fd, 0);
        tenant.start(copy.map_err(StartError::call("copy a descriptor"))?)?;
        ledger.set_max_guaranteed(tenant.terms().frames.g);
        let daemon = DaemonLink::new(tenant);
        watch(&daemon, set, self.token);
        self.server = Some(ChannelServer::Daemon(Box::new(daemon)));
        Ok(())
    }

    /// Tells a page client that the tree has ended; see [`PageClientLink::end`].
    pub fn end_page_client(&self) -> Option<BorrowedFd<'_>> {
        match &self.server {
            Some(ChannelServer::PageClient(client)) => Some(client.end()),
            _ => None,
        }
    }

    /// Returns true if the daemon or a page client serves IO channels.
    pub fn has_channels(&self) -> bool {
        self.server.is_some()
    }

    /// Gets a channel for the process in `slot`; it is answered on `reply`.
    pub fn open(&mut self, slot: SlotIndex, depth: u16, reply: PeerFd) {
        match &mut self.server {
            Some(ChannelServer::Daemon(daemon)) => daemon.open(slot, depth, reply),
            Some(ChannelServer::PageClient(client)) => client.open(slot, depth, reply),
            None => refuse(&reply, "this tree has a disk of its own, and no channels"),
        }
    }

    /// The process in `slot` has ended. Returns true if none of its I/O through channels is in
    /// flight; the daemon may be away for any time, and has the requests still.
    pub fn is_quiet(&mut self, slot: SlotIndex) -> bool {
        match &mut self.server {
            Some(ChannelServer::Daemon(daemon)) => daemon.is_quiet(slot),
            Some(ChannelServer::PageClient(client)) => client.is_quiet(slot),
            None => true,
        }
    }

    /// Rung when more frames are wanted of the daemon, where the tree has a contract with one.
    pub fn pressure_bell(&self) -> Option<BorrowedFd<'_>> {
        match &self.server {
            Some(ChannelServer::Daemon(daemon)) => Some(daemon.session.pressure_bell()),
            _ => None,
        }
    }

    /// When [`Links::dispatch`] wants to be called though no link is readable.
    pub fn next_timeout(&self) -> Option<Duration> {
        match &self.server {
            Some(ChannelServer::Daemon(daemon)) => daemon.session.timeout(),
            Some(ChannelServer::PageClient(client)) => client.next_timeout(),
            None => None,
        }
    }

    /// Limits the rate of the tree's faults from now on.
    pub fn set_fault_limits(&mut self, mut limits: TreeFaultLimits, stats_page: &StatsPage) {
        limits.apply(stats_page);
        self.fault_limits = Some(limits);
    }

    /// Has the limits follow what faults are measured to cost, and reports that cost to the daemon.
    pub fn update_fault_cost(&mut self, stats_page: &StatsPage) {
        if let Some(limits) = &mut self.fault_limits {
            limits.apply(stats_page);
        }
        let units = stats_page.limits().units();
        if let Some(ChannelServer::Daemon(daemon)) = &mut self.server
            && units.samples() > 0
        {
            daemon.session.fault_unit(units.fault_unit());
        }
    }

    /// Handles pending messages, and appends the events.
    pub fn dispatch(
        &mut self,
        ledger: &Ledger,
        stats_page: &StatsPage,
        set: &EpollSet,
        happened: &mut Vec<TreeEvent>,
    ) {
        match &mut self.server {
            Some(ChannelServer::Daemon(daemon)) => {
                daemon.dispatch(ledger, happened);
                if happened.contains(&TreeEvent::Back) {
                    watch(daemon, set, self.token);
                }
                if let (Some(limits), Some(share)) = (&mut self.fault_limits, daemon.new_share()) {
                    limits.give(share);
                    limits.apply(stats_page);
                }
            }
            Some(ChannelServer::PageClient(client)) => {
                client.dispatch(happened);
                if matches!(happened.last(), Some(TreeEvent::PagesLost(_))) {
                    set.remove(client.fd());
                }
            }
            None => {}
        }
    }
}

/// Watches the connection to the daemon; the one before has ended, and left the set.
fn watch(daemon: &DaemonLink, set: &EpollSet, token: u64) {
    if let Some(fd) = daemon.session.fd() {
        let _ = set.add(fd, token);
    }
}
