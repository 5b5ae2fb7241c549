//! The supervisor's side of a tree's contract with the daemon.
//!
//! Processes of the tree connect to their supervisor only. The supervisor opens their IO channels for them,
//! collects the frames that the daemon revokes (*Self-Paging*, section 6.2: intrusive
//! revocation), and brings the tree through a restart of the daemon.
//!
//! Rule: nothing here blocks. A daemon that does not know the contract (it has another swap file) has no
//! page of the tree, so the tree ends. A channel that is requested while no daemon runs opens when
//! the next one does; a dead process's channels count as busy until the daemon reports that none of
//! their I/O is in flight.

use crate::TreeEvent;
use crate::channel_slots::ChannelSlots;
use frames::Ledger;
use host::fd_reaper::PeerFd;
use link::handshake::SlotIndex;
use protocol::contract_spec::ContractSpec;
use protocol::{ChannelNumber, FaultShare};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::time::Duration;
use tenant::{Session, SessionEvent};
use wired::Bytes;

/// The transport of the supervisor's own store handle, which opens no channel: the supervisor moves no
/// pages, and retires a process only when [`DaemonLink::is_quiet`] returns true.
pub(crate) struct ChannelUnavailable;

impl store::DiskTransport for ChannelUnavailable {
    fn open(&self, _: usize) -> Result<iochannel::ChannelClient, Errno> {
        Err(Errno::NOTCONN)
    }

    fn wait_for_io(&self) {}
}

/// Frames: the first notice of memory that is not paged is at four times as many, 2 MiB.
const NOTICE_BASE: u32 = 128;

/// The contract with the daemon, on the supervisor's side.
pub(crate) struct DaemonLink {
    pub session: Session,
    channels: ChannelSlots<ChannelNumber>,
    /// A received share of the faults that is not in force yet.
    faults: Option<FaultShare>,
    /// Frames for memory that is not paged at the last notice.
    unpaged: u32,
}

impl DaemonLink {
    pub fn new(session: Session) -> Self {
        Self {
            session,
            channels: ChannelSlots::new(),
            faults: None,
            unpaged: 0,
        }
    }

    /// Takes the share of the faults that has been received since the last call.
    pub fn new_share(&mut self) -> Option<FaultShare> {
        self.faults.take()
    }

    /// Requests a channel for the process in `slot`; the reply goes to `reply`.
    pub fn open(&mut self, slot: SlotIndex, depth: u16, reply: PeerFd) {
        let cookie = self.session.open(depth);
        self.channels.request(cookie, slot, depth, reply);
    }

    /// The process in `slot` has ended. Returns true if none of its I/O is in flight.
    pub fn is_quiet(&mut self, slot: SlotIndex) -> bool {
        for channel in self.channels.release(slot) {
            self.close(channel);
        }
        // Once the contract has ended no daemon has I/O of it.
        self.session.is_over() || self.channels.is_quiet(slot)
    }

    /// Handles pending messages, and returns the events.
    pub fn dispatch(&mut self, ledger: &Ledger, events: &mut Vec<TreeEvent>) {
        for event in self.session.dispatch(ledger) {
            match event {
                SessionEvent::Opened {
                    cookie,
                    channel,
                    memory,
                    bell,
                } => {
                    let fds = [memory.as_fd(), self.session.doorbell(), bell.as_fd()];
                    if !self.channels.open(cookie, channel, &fds) {
                        self.close(channel);
                    }
                }
                SessionEvent::NotOpened { cookie, why } => self.channels.refuse(cookie, &why),
                SessionEvent::Closed(channel) => self.channels.on_closed(channel),
                SessionEvent::Faults(share) => self.faults = Some(share),
                SessionEvent::Changed { terms, notice } => push_notice(events, change_notice(&terms, notice)),
                SessionEvent::Unpaged(frames) => self.on_unpaged(frames, events),
                SessionEvent::OverGuarantee {
                    resident,
                    owned,
                    within,
                } => push_notice(events, over_guarantee_notice(resident, owned, within)),
                SessionEvent::Disconnected => push_notice(
                    events,
                    "the daemon has ended: faults that need its disk wait until it is started again"
                        .into(),
                ),
                SessionEvent::Resumed => events.push(TreeEvent::DaemonReconnected),
                SessionEvent::Lost(why) => {
                    let why = format!("the daemon does not take this contract back: {why}");
                    events.push(TreeEvent::PagesLost(why));
                }
                SessionEvent::Refused(why) => {
                    push_notice(events, format!("the daemon refused a request: {why}"))
                }
                // A tree has its contract until it ends.
                SessionEvent::Revoke(_) | SessionEvent::Left | SessionEvent::LeaveRefused(_) => {}
            }
        }
        self.session.serve_revocation(ledger);
    }

    /// Gives a notice each time the memory has grown fourfold.
    fn on_unpaged(&mut self, frames: u32, events: &mut Vec<TreeEvent>) {
        if frames / 4 >= self.unpaged.max(NOTICE_BASE) {
            self.unpaged = frames;
            push_notice(
                events,
                unpaged_notice(frames, self.session.terms().frames.g),
            );
        }
    }

    fn close(&mut self, channel: ChannelNumber) {
        if self.channels.start_close(channel) {
            self.session.close(channel);
        }
    }
}

fn push_notice(events: &mut Vec<TreeEvent>, text: String) {
    events.push(TreeEvent::Notice {
        pid: rustix::process::getpid(),
        text,
    });
}

fn change_notice(terms: &ContractSpec, notice: Duration) -> String {
    match notice.is_zero() {
        true => format!("the contract is now: {terms}"),
        false => format!(
            "the contract becomes: {terms}; frames that it no longer guarantees stay for {notice:.0?}"
        ),
    }
}

fn unpaged_notice(frames: u32, guaranteed: u32) -> String {
    format!(
        "{} of the {} of frames that the contract guarantees are taken by memory that is not paged (written pages of \
         mapped files, stacks, the pagers' own tables)",
        Bytes::of_pages(frames),
        Bytes::of_pages(guaranteed)
    )
}

fn over_guarantee_notice(resident: u32, owned: u32, within: Duration) -> String {
    format!(
        "warning: {} of anonymous memory are resident and the contract guarantees {}: the daemon kills the program \
         if that lasts another {within:.0?}; reduce the memory that is not paged, or ask for a larger contract",
        Bytes::of_pages(resident),
        Bytes::of_pages(owned)
    )
}
