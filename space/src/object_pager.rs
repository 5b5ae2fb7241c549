//! The process that pages memory objects: the pager of a tree's shared memory, for linked programs.
//!
//! No process can evict what another one has mapped, and no page of a private stretch is another
//! process's. So a paged object is one of the memory manager's ([`manager::shared_memory`]): a memfd
//! whose faults in all processes one thread answers, under one contract and with one store. This
//! file gives it processes that are no tree: each has a connection, over which its userfaultfd, its
//! objects and its mappings come ([`PagerRequest`](crate::pager_protocol::PagerRequest)).
//!
//! An object has contents for as long as a process *holds* it. The pager forgets an object that no
//! process maps; so while one is held it has a mapping here, its [`Anchor`]. Holds end with their
//! connection.

use crate::anchor::Anchor;
use crate::error::SpaceError;
use crate::pager_member::PagerMember;
use crate::service_thread;
use frames::{Contract, DomainId, Ledger};
use host::seqpacket;
use manager::shared_memory::clients::SlotIndex;
use manager::shared_memory::object::most_objects;
use manager::shared_memory::{Mailbox, Request, Responder, SharedMemoryParts};
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{SharedStore, StoreConfig};
use translation::{Capabilities, EntryKind, Userfault, UserfaultOptions};

/// Addresses of a process on x86-64, in bytes.
const ADDRESSES: usize = 1 << 47;

/// Pages memory objects, for this process and others. Its threads are this process's, so paging ends with the process;
/// [`PagedMemory`](crate::PagedMemory) describes what happens to the other processes then.
pub struct ObjectPager {
    pub(crate) state: Arc<PagerState>,
}

pub(crate) struct PagerState {
    pub(crate) mailbox: Mailbox,
    ledger: Ledger,
    domain: DomainId,
    objects: Mutex<Objects>,
}

pub(crate) struct Objects {
    pub(crate) by_number: BTreeMap<u32, HeldObject>,
    pub(crate) next: u32,
    pub(crate) slots: BTreeSet<SlotIndex>,
    /// This process's, for the anchors, until the pager has it.
    pub(crate) userfault: Option<OwnedFd>,
}

/// An object that processes hold.
pub(crate) struct HeldObject {
    /// Its memory's file system, and inode there.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) anchor: Anchor,
    /// The process that made it, while it has its connection.
    pub(crate) maker: Option<SlotIndex>,
    pub(crate) holds: usize,
}

/// A userfaultfd of this process for paged objects.
pub(crate) fn open_userfault() -> Result<Userfault, SpaceError> {
    let options = UserfaultOptions {
        user_mode_only: true,
        reports_changes: true,
        ..UserfaultOptions::default()
    };
    Userfault::open_with(EntryKind::Thread, &Capabilities::probe_fast(), options)
        .map_err(|why| SpaceError::Pager(why.to_string()))
}

impl ObjectPager {
    /// A pager whose objects have `contract`'s frames of memory together, and beyond them the store.
    /// Pages that come in are resident in all processes at once, and count once.
    ///
    /// # Errors
    /// [`SpaceError::Pager`] names the part that failed.
    pub fn start(contract: Contract, store: &StoreConfig) -> Result<Self, SpaceError> {
        let text = |why: &dyn std::fmt::Display| SpaceError::Pager(why.to_string());
        let (ledger, descriptor) = Ledger::create(contract.x, 1).map_err(|why| text(&why))?;
        let domain = ledger.admit(contract).map_err(|why| text(&why))?;
        ledger.adopt(domain).map_err(|why| text(&why))?;
        let holder = domain.slot() as store::HolderId;
        let (store, _) = SharedStore::create(store, holder + 1).map_err(|why| text(&why))?;
        store.grow_ahead().map_err(|why| text(&why))?;
        store.set_holder(holder).map_err(|why| text(&why))?;
        let parts = SharedMemoryParts {
            ledger: Ledger::attach(&descriptor).map_err(|why| text(&why))?,
            domain,
            store,
            // Devices access pinned pages alone, which are locked.
            careful: Box::new(|| false),
            count: Box::new(|_, _, _| {}),
        };
        let userfault = open_userfault()?;
        let mailbox = manager::shared_memory::start(parts).map_err(|why| text(&why))?;
        Ok(Self {
            state: Arc::new(PagerState {
                mailbox,
                ledger,
                domain,
                objects: Mutex::new(Objects {
                    by_number: BTreeMap::new(),
                    next: 0,
                    slots: BTreeSet::new(),
                    userfault: Some(userfault.into()),
                }),
            }),
        })
    }

    /// A connection, for [`PagedMemory::new`](crate::PagedMemory::new) in this process or another. A child of a fork has
    /// both ends, and sees the pager's end by a pidfd alone, which needs Linux 5.3.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn connect(&self) -> Result<OwnedFd, SpaceError> {
        let (ours, theirs) = seqpacket::pair().map_err(SpaceError::system("socketpair"))?;
        self.serve(ours)?;
        Ok(theirs)
    }

    /// Serves the process at the other end of a `SOCK_SEQPACKET` socket, in a thread.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn serve(&self, socket: OwnedFd) -> Result<(), SpaceError> {
        let mut member = PagerMember::new(self.state.clone())?;
        service_thread::spawn("selfpage-objects", move || member.serve(&socket)).map(drop)
    }

    /// Frames that pages of the objects have now, about.
    pub fn frames_in_use(&self) -> u32 {
        let stats = self.state.ledger.stats(self.state.domain);
        stats.map_or(0, |domain| domain.n.saturating_sub(domain.unused))
    }
}

impl Objects {
    /// Checks that a process, with one more object of `len` bytes, has no more objects and addresses than it leaves to
    /// others: a process that takes all that it gets takes half.
    ///
    /// # Errors
    /// [`SpaceError::Pager`].
    pub(crate) fn check_share(&self, slot: SlotIndex, len: usize) -> Result<(), SpaceError> {
        let all = || self.by_number.values();
        let own = || all().filter(|it| it.maker == Some(slot));
        let check = |what, limit, own: usize, all: usize, one: usize, most: usize| {
            let (own, left) = (own + one, most.saturating_sub(all.saturating_add(one)));
            if own <= left {
                return Ok(());
            }
            Err(SpaceError::Pager(format!(
                "{own} {what} would be one process's, and {left} left to all others, which is less; \
                 see `ulimit {limit}` of the pager's process"
            )))
        };
        let most = most_objects();
        check("objects", "-n", own().count(), all().count(), 1, most)?;
        let limit = getrlimit(Resource::As).current;
        let most = limit.map_or(ADDRESSES, |limit| ADDRESSES.min(limit as usize));
        let bytes = |it: &HeldObject| it.anchor.len();
        let (own, all) = (own().map(bytes).sum(), all().map(bytes).sum());
        check("bytes of addresses", "-v", own, all, len, most)
    }

    /// Ends what is a process's, whose connection has ended.
    pub(crate) fn free_slot(&mut self, slot: SlotIndex) {
        let all = self.by_number.values_mut();
        let own = all.filter(|it| it.maker == Some(slot));
        own.for_each(|it| it.maker = None);
        self.slots.remove(&slot);
    }
}

impl PagerState {
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the pager, and waits for its answer.
    pub(crate) fn request(
        &self,
        request: impl FnOnce(Responder) -> Request,
    ) -> Result<(), SpaceError> {
        let (reply, answered) = sync_channel(1);
        let respond = move |outcome| drop(reply.send(outcome));
        self.mailbox.send(request(Box::new(respond)));
        let ended = |_| SpaceError::Pager("its thread has ended".into());
        answered.recv().map_err(ended)?.map_err(SpaceError::Pager)
    }
}
