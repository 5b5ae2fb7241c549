//! The shared memory of a tree: a domain of the ledger, whose pager is a thread of the supervisor
//! (`manager::shared_memory`).
//!
//! The thread starts with the first memory that a process shares. The supervisor's loop passes
//! requests and descriptors to it, and does not wait: the thread sends the replies.

use crate::compressed_ram::AwaitedChannel;
use crate::descriptor_reserve;
use crate::links::Links;
use crate::processes::PagedProcess;
use crate::sockets::{own_uid, refuse, send_reply};
use crate::tree_store::TreeStore;
use frames::{Contract, DomainId, Ledger};
use host::fd_reaper::PeerFd;
use host::seqpacket;
use link::handshake::{Reply, SlotIndex, slot_of};
use link::shared_request::SharedRequest;
use link::stats_page::StatsPage;
use link::{MAX_PROCESSES, MIN_FRAMES};
use manager::shared_memory::{
    CHANNEL_DEPTH, Change, LEAST_BYTES, Mailbox, Request, Responder, SharedMemoryParts,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::SharedStore;
use translation::ForeignUserfault;
use wired::{Counter, PAGE};

/// The pager's state.
#[derive(Default)]
pub(crate) enum SharedMemory {
    /// No process shares memory.
    #[default]
    Unused,
    /// The pager runs, in a slot of the tree's tables.
    Runs(Mailbox, SlotIndex, Arc<StatsPage>),
    /// The pager cannot run, with the reason.
    Failed(String),
}

/// The parts of the tree that the pager uses.
pub(crate) struct TreeParts<'a> {
    pub ledger: &'a Ledger,
    pub ledger_fd: &'a OwnedFd,
    pub stats_fd: &'a OwnedFd,
    pub store: Option<&'a TreeStore>,
    pub frames: u32,
    pub links: &'a mut Links,
}

/// The change that a process requests; `None` for requests of another kind.
fn change_of(request: SharedRequest) -> Option<Change> {
    let range = |addr: u64, len: u64| addr as usize..addr.saturating_add(len) as usize;
    Some(match request {
        SharedRequest::Create { .. }
        | SharedRequest::Share { .. }
        | SharedRequest::Fork { .. }
        | SharedRequest::Inherit => return None,
        SharedRequest::Discard { addr, len } => Change::Discard(range(addr, len)),
        SharedRequest::Unmapped { addr, len } => Change::Unmapped(range(addr, len)),
        SharedRequest::Lock { addr, len } => Change::Lock(range(addr, len)),
        SharedRequest::Unlock { addr, len } => Change::Unlock(range(addr, len)),
        SharedRequest::Extend {
            from,
            offset,
            to,
            len,
        } => Change::Extend {
            from: from as usize,
            offset: offset as usize,
            to: range(to, len),
        },
        SharedRequest::Remap {
            like,
            page,
            to,
            len,
        } => Change::Remap {
            like: like as usize,
            page: page as usize,
            to: range(to, len),
        },
    })
}

impl SharedMemory {
    /// Serves a process's request; the pager replies to most of them.
    pub fn serve(
        &mut self,
        connection: PeerFd,
        member: &mut PagedProcess,
        request: SharedRequest,
        fd: Option<PeerFd>,
        tree: TreeParts<'_>,
    ) {
        let slot = member.slot();
        let change = match (request, fd) {
            (SharedRequest::Create { len }, _) => return self.create(&connection, len, tree),
            (SharedRequest::Share { addr, len }, Some(memory)) => {
                return self.share(connection, member, addr, len, memory);
            }
            (SharedRequest::Fork { child }, _) => {
                return self.send(connection, None, |respond| Request::Fork {
                    slot,
                    child: DomainId::from_raw(child),
                    respond,
                });
            }
            (SharedRequest::Inherit, Some(uffd)) => {
                if let Err(why) = ForeignUserfault::check(&uffd) {
                    return refuse(&connection, &why.to_string());
                }
                return self.send(connection, None, |respond| Request::Inherit {
                    slot,
                    domain: member.domain,
                    uffd: uffd.into_owned(),
                    respond,
                });
            }
            (SharedRequest::Share { .. } | SharedRequest::Inherit, None) => {
                let text = "a descriptor has to come with this request";
                return refuse(&connection, text);
            }
            (request, _) => change_of(request),
        };
        let Some(change) = change else {
            return refuse(&connection, "this request does not change shared memory");
        };
        self.send(connection, None, |respond| Request::Change {
            slot,
            change,
            respond,
        });
    }

    /// Pages memory that a process has mapped.
    fn share(
        &self,
        connection: PeerFd,
        member: &mut PagedProcess,
        addr: u64,
        len: u64,
        memory: PeerFd,
    ) {
        let slot = member.slot();
        if !descriptor_reserve::has_room_for_more() {
            if let Self::Runs(_, _, stats_page) = self {
                count_unpaged(stats_page, slot, len);
            }
            let text =
                "`selfpage run` has no descriptor for one more range: raise `ulimit -n` before it";
            return refuse(&connection, text);
        }
        let Some(memory) = memory.into_quick() else {
            let text = "the descriptor is not memory that the supervisor made: it has no seals";
            return refuse(&connection, text);
        };
        let uffd = member.take_shared_userfault();
        if let Some(Err(why)) = uffd.as_ref().map(ForeignUserfault::check) {
            return refuse(&connection, &why.to_string());
        }
        let uffd = uffd.map(PeerFd::into_owned);
        self.send(connection, Some((slot, len)), |respond| Request::Share {
            slot,
            uffd,
            addr: addr as usize,
            len: len as usize,
            memory,
            respond,
        });
    }

    /// Makes memory for a process to share.
    fn create(&mut self, connection: &PeerFd, len: u64, tree: TreeParts<'_>) {
        if (len as usize) < LEAST_BYTES {
            return refuse(connection, "shared memory of less than 64 KiB is not paged");
        }
        if matches!(self, Self::Unused) {
            *self = start(tree).unwrap_or_else(|why| {
                tracing::warn!("shared memory is not paged: {why}");
                Self::Failed(why)
            });
        }
        match (&*self, wired::sealed_memory("selfpage-shared", len)) {
            (Self::Failed(why), _) => refuse(connection, why),
            (_, Err(why)) => refuse(connection, &format!("no memory of {len} bytes: {why}")),
            (_, Ok(memory)) => {
                send_reply(connection, Reply::Memory, &[memory.as_fd()]);
            }
        }
    }

    /// Passes a request to the pager, which replies on the connection. `unpaged` is a process's slot and the bytes of its memory
    /// that stay unpaged if the request is refused.
    fn send(
        &self,
        connection: PeerFd,
        unpaged: Option<(SlotIndex, u64)>,
        request: impl FnOnce(Responder) -> Request,
    ) {
        match self {
            Self::Runs(mailbox, _, stats_page) => {
                let stats_page = Arc::clone(stats_page);
                mailbox.send(request(Box::new(move |outcome| match outcome {
                    Ok(()) => {
                        send_reply(&connection, Reply::Shared, &[]);
                    }
                    Err(why) => {
                        if let Some((slot, bytes)) = unpaged {
                            count_unpaged(&stats_page, slot, bytes);
                        }
                        refuse(&connection, &why);
                    }
                })))
            }
            Self::Unused => refuse(&connection, "this tree has no shared memory"),
            Self::Failed(why) => refuse(&connection, why),
        }
    }

    /// A process has ended, or begun another image.
    pub fn end(&self, slot: SlotIndex) {
        if let Self::Runs(mailbox, ..) = self {
            mailbox.send(Request::End { slot });
        }
    }

    /// Wakes the pager, so that it acknowledges the flag *careful*.
    pub fn ring(&self) {
        if let Self::Runs(mailbox, ..) = self {
            mailbox.ring();
        }
    }

    /// The pager's slot.
    pub fn slot(&self) -> Option<SlotIndex> {
        match self {
            Self::Runs(_, slot, _) => Some(*slot),
            Self::Unused | Self::Failed(_) => None,
        }
    }
}

fn count_unpaged(stats_page: &StatsPage, slot: SlotIndex, bytes: u64) {
    let pages = bytes / PAGE as u64;
    let block = stats_page.block(slot);
    block.add(Counter::UnpagedSharedPages, pages);
}

fn start(tree: TreeParts<'_>) -> Result<SharedMemory, String> {
    let text = |why: &dyn std::fmt::Display| why.to_string();
    let contract = Contract {
        g: MIN_FRAMES,
        x: tree.frames,
    };
    let store = tree.store.ok_or("the tree has no store (--store)")?;
    let domain = tree.ledger.admit(contract).map_err(|why| text(&why))?;
    tree.ledger.adopt(domain).map_err(|why| text(&why))?;
    let slot = slot_of(domain.raw());
    let ledger = Ledger::attach(tree.ledger_fd).map_err(|why| text(&why))?;
    if let Some(bell) = tree.links.pressure_bell() {
        ledger.set_bell(io::fcntl_dupfd_cloexec(bell, 0).map_err(|why| text(&why))?);
    }
    let own = store.description(slot).map_err(|why| text(&why))?;
    let fds = store.descriptors(own.as_ref()).into_iter();
    let fds: Result<Vec<_>, _> = fds.map(|fd| io::fcntl_dupfd_cloexec(fd, 0)).collect();
    let fds = fds.map_err(|why| text(&why))?;
    let store = SharedStore::attach(fds, slot).map_err(|why| text(&why))?;
    if tree.links.has_channels() {
        let (ours, theirs) = seqpacket::pair().map_err(|why| text(&why))?;
        let ops = store.channel_ops(CHANNEL_DEPTH);
        tree.links.open(slot, ops, PeerFd::new(theirs, own_uid()));
        store.set_transport(Box::new(AwaitedChannel::new(ours)));
    }
    let stats_page = StatsPage::attach(tree.stats_fd, MAX_PROCESSES).map_err(|why| text(&why))?;
    stats_page.block(slot).clear();
    let stats_page = Arc::new(stats_page);
    let (counted, refused) = (Arc::clone(&stats_page), Arc::clone(&stats_page));
    let parts = SharedMemoryParts {
        ledger,
        domain,
        store,
        careful: Box::new(move || {
            let careful = stats_page.careful().load(Ordering::SeqCst);
            stats_page
                .block(slot)
                .careful_seen()
                .store(careful, Ordering::SeqCst);
            careful != 0
        }),
        count: Box::new(move |of, counter, count| {
            let of = if of == 0 { slot } else { of };
            counted.block(of).add(counter, count);
        }),
    };
    let mailbox = manager::shared_memory::start(parts).map_err(|why| text(&why))?;
    Ok(SharedMemory::Runs(mailbox, slot, refused))
}
