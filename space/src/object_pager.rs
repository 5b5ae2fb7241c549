//! The process that pages memory objects: the pager of a tree's shared memory, for linked programs.
//!
//! No process can evict what another one has mapped, and no page of a private stretch is another
//! process's. So a paged object is one of the memory manager's ([`manager::shared_memory`]): a memfd
//! whose faults in all processes one thread answers, under one contract and with one store. This
//! file gives it processes that are no tree: each has a connection, over which its userfaultfd, its
//! objects and its mappings come ([`PagerRequest`]).
//!
//! An object has contents for as long as a process *holds* it. The pager forgets an object that no
//! process maps; so while one is held it has a mapping here, its [`Anchor`]. Holds end with their
//! connection.

use crate::anchor::Anchor;
use crate::error::SpaceError;
use crate::pager_protocol::{PagerReply, PagerRequest, receive, send};
use crate::service_thread;
use frames::{Contract, DomainId, Ledger, Process};
use host::seqpacket;
use manager::shared_memory::clients::SlotIndex;
use manager::shared_memory::{Change, Mailbox, Request, Responder, SharedMemoryParts};
use rustix::fs::fstat;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{SharedStore, StoreConfig};
use translation::{Capabilities, EntryKind, Userfault, UserfaultOptions};

/// The slot of the anchors, and the first one of a process.
const ANCHORS: SlotIndex = 1;
const FIRST: SlotIndex = 2;

/// Pages memory objects for other processes, and for this one, until this process ends: its own
/// threads do. What its death means for the others: see [`PagedMemory`](crate::PagedMemory).
pub struct ObjectPager {
    state: Arc<PagerState>,
}

struct PagerState {
    mailbox: Mailbox,
    ledger: Ledger,
    domain: DomainId,
    objects: Mutex<Objects>,
}

struct Objects {
    by_number: BTreeMap<u32, Held>,
    next: u32,
    slots: BTreeSet<SlotIndex>,
    /// This process's, for the anchors, until the pager has it.
    userfault: Option<OwnedFd>,
}

/// An object that processes hold.
struct Held {
    inode: u64,
    _anchor: Anchor,
    holds: usize,
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
        let process = Process {
            pid: std::process::id(),
            start: 0,
        };
        let domain = ledger.admit(contract, process).map_err(|why| text(&why))?;
        ledger.adopt(domain, process).map_err(|why| text(&why))?;
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

    /// A connection, for [`PagedMemory::new`](crate::PagedMemory::new) in this process or another.
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
        let mut member = Member::new(self.state.clone())?;
        service_thread::spawn("selfpage-objects", move || member.serve(&socket)).map(drop)
    }

    /// Frames that pages of the objects have now, about.
    pub fn frames_in_use(&self) -> u32 {
        let stats = self.state.ledger.stats(self.state.domain);
        stats.map_or(0, |domain| domain.n.saturating_sub(domain.unused))
    }
}

impl PagerState {
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the pager, and waits for its answer.
    fn ask(&self, request: impl FnOnce(Responder) -> Request) -> Result<(), SpaceError> {
        let (reply, answered) = sync_channel(1);
        let respond = move |outcome| drop(reply.send(outcome));
        self.mailbox.send(request(Box::new(respond)));
        let ended = |_| SpaceError::Pager("its thread has ended".into());
        answered.recv().map_err(ended)?.map_err(SpaceError::Pager)
    }
}

/// A process with a connection.
struct Member {
    state: Arc<PagerState>,
    slot: SlotIndex,
    /// Its userfaultfd, until the pager has it.
    userfault: Option<OwnedFd>,
    /// Objects that it holds, and how many times.
    holds: BTreeMap<u32, usize>,
}

impl Member {
    fn new(state: Arc<PagerState>) -> Result<Self, SpaceError> {
        let mut objects = state.objects();
        let slot = (FIRST..SlotIndex::MAX).find(|slot| !objects.slots.contains(slot));
        let slot = slot.ok_or_else(|| SpaceError::Pager("it has too many connections".into()))?;
        objects.slots.insert(slot);
        drop(objects);
        Ok(Self {
            state,
            slot,
            userfault: None,
            holds: BTreeMap::new(),
        })
    }

    /// Serves requests until the connection ends, or has another message.
    fn serve(&mut self, socket: &OwnedFd) {
        while let Ok(Some((request, descriptor))) = receive(socket) {
            let reply = self
                .perform(request, descriptor)
                .unwrap_or_else(|why| PagerReply::refused(&why.to_string()));
            if send(socket, &reply, None).is_err() {
                return;
            }
        }
    }

    fn perform(
        &mut self,
        request: PagerRequest,
        descriptor: Option<OwnedFd>,
    ) -> Result<PagerReply, SpaceError> {
        let lacks = || SpaceError::Pager("a descriptor comes with this request".into());
        let range = |addr: u64, len: u64| addr as usize..addr.saturating_add(len) as usize;
        match request {
            PagerRequest::Join => self.userfault = Some(descriptor.ok_or_else(lacks)?),
            PagerRequest::Create => return self.create(descriptor.ok_or_else(lacks)?),
            PagerRequest::Hold => return self.hold(&descriptor.ok_or_else(lacks)?),
            PagerRequest::Release { object } => self.release(object),
            PagerRequest::Map {
                object,
                page,
                addr,
                len,
            } => self.map(object, page as usize, range(addr, len))?,
            PagerRequest::Lock { addr, len } => self.change(Change::Lock(range(addr, len)))?,
            PagerRequest::Unlock { addr, len } => self.change(Change::Unlock(range(addr, len)))?,
        }
        Ok(PagerReply::Done)
    }

    fn create(&mut self, memory: OwnedFd) -> Result<PagerReply, SpaceError> {
        let stat = fstat(&memory).map_err(SpaceError::system("fstat"))?;
        let mut objects = self.state.objects();
        let anchor = Anchor::new(memory.as_fd(), stat.st_size as usize)?;
        let uffd = objects.userfault.take();
        let (addr, len) = (anchor.addr(), anchor.len());
        self.state.ask(|respond| Request::Share {
            slot: ANCHORS,
            uffd,
            addr,
            len,
            memory,
            respond,
        })?;
        let number = objects.next;
        objects.next += 1;
        let held = Held {
            inode: stat.st_ino,
            _anchor: anchor,
            holds: 1,
        };
        objects.by_number.insert(number, held);
        self.holds.insert(number, 1);
        Ok(PagerReply::Object(number))
    }

    fn hold(&mut self, memory: &OwnedFd) -> Result<PagerReply, SpaceError> {
        let inode = fstat(memory).map_err(SpaceError::system("fstat"))?.st_ino;
        let mut objects = self.state.objects();
        let mut all = objects.by_number.iter_mut();
        let (number, held) = all
            .find(|(_, held)| held.inode == inode)
            .ok_or_else(|| SpaceError::Pager("the object has ended".into()))?;
        held.holds += 1;
        *self.holds.entry(*number).or_default() += 1;
        Ok(PagerReply::Object(*number))
    }

    /// Ends a hold of this process's; one that it does not have is none.
    fn release(&mut self, number: u32) {
        let Some(own) = self.holds.get_mut(&number) else {
            return;
        };
        *own -= 1;
        if *own == 0 {
            self.holds.remove(&number);
        }
        let mut objects = self.state.objects();
        let Some(held) = objects.by_number.get_mut(&number) else {
            return;
        };
        held.holds -= 1;
        if held.holds == 0 {
            objects.by_number.remove(&number);
        }
    }

    fn map(
        &mut self,
        number: u32,
        page: usize,
        to: std::ops::Range<usize>,
    ) -> Result<(), SpaceError> {
        let holds = self.holds.contains_key(&number);
        let objects = self.state.objects();
        let inode = objects
            .by_number
            .get(&number)
            .filter(|_| holds)
            .map(|held| held.inode);
        drop(objects);
        let inode = inode.ok_or_else(|| SpaceError::Pager("it holds no such object".into()))?;
        let (slot, uffd) = (self.slot, self.userfault.take());
        self.state.ask(|respond| Request::Attach {
            slot,
            uffd,
            inode,
            page,
            to,
            respond,
        })
    }

    fn change(&self, change: Change) -> Result<(), SpaceError> {
        let slot = self.slot;
        self.state.ask(|respond| Request::Change {
            slot,
            change,
            respond,
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        while let Some((number, _)) = self.holds.first_key_value() {
            self.release(*number);
        }
        let slot = self.slot;
        self.state.mailbox.send(Request::End { slot });
        self.state.objects().slots.remove(&slot);
    }
}
