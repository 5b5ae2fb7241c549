//! The links of a tree to other parties: to the daemon or page client that serves its IO channels, and the
//! limits on its faults, which result from the daemon's share.
//!
//! Rule: nothing here blocks. No daemon may run for any time; requests to it wait.

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
    /// The token by which the set of descriptors reports a readable link.
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

    /// Attaches the ledger to the daemon. The last step that can fail: from then on the daemon kills a
    /// tenant that disconnects, since it has frames.
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

    /// Notifies a page client of the tree's end; see [`PageClientLink::end`].
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

    /// Requests a channel for the process in `slot`; the reply goes to `reply`.
    pub fn open(&mut self, slot: SlotIndex, depth: u16, reply: PeerFd) {
        match &mut self.server {
            Some(ChannelServer::Daemon(daemon)) => daemon.open(slot, depth, reply),
            Some(ChannelServer::PageClient(client)) => client.open(slot, depth, reply),
            None => refuse(&reply, "this tree has a disk of its own, and no channels"),
        }
    }

    /// The process in `slot` has ended. Returns true if none of its I/O through channels is in
    /// flight; the requests stay pending while no daemon runs.
    pub fn is_quiet(&mut self, slot: SlotIndex) -> bool {
        match &mut self.server {
            Some(ChannelServer::Daemon(daemon)) => daemon.is_quiet(slot),
            Some(ChannelServer::PageClient(client)) => client.is_quiet(slot),
            None => true,
        }
    }

    /// The bell to ring when the tree needs more frames, where it has a contract with the daemon.
    pub fn pressure_bell(&self) -> Option<BorrowedFd<'_>> {
        match &self.server {
            Some(ChannelServer::Daemon(daemon)) => Some(daemon.session.pressure_bell()),
            _ => None,
        }
    }

    /// The time after which [`Links::dispatch`] is to be called even if no link is readable.
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

    /// Updates the limits by the measured cost of faults, and reports that cost to the daemon.
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
        events: &mut Vec<TreeEvent>,
    ) {
        match &mut self.server {
            Some(ChannelServer::Daemon(daemon)) => {
                daemon.dispatch(ledger, events);
                if events.contains(&TreeEvent::DaemonReconnected) {
                    watch(daemon, set, self.token);
                }
                if let (Some(limits), Some(share)) = (&mut self.fault_limits, daemon.new_share()) {
                    limits.set_share(share);
                    limits.apply(stats_page);
                }
            }
            Some(ChannelServer::PageClient(client)) => {
                client.dispatch(events);
                if matches!(events.last(), Some(TreeEvent::PagesLost(_))) {
                    set.remove(client.fd());
                }
            }
            None => {}
        }
    }
}

/// Watches the connection to the daemon; the former connection has closed, and left the set.
fn watch(daemon: &DaemonLink, set: &EpollSet, token: u64) {
    if let Some(fd) = daemon.session.fd() {
        let _ = set.add(fd, token);
    }
}
