//! A process's side of paged memory objects: its connection to their pager.
//!
//! A paged object is mapped as a whole region, not by entries of the VTLB: its pages come by faults
//! that the pager answers, and leave all processes at once. Until the pager serves a mapping it has
//! no access, and a child of a fork does not have it: an access that the pager does not see would
//! put a page of zeros in the place of one that is out.

use crate::anchor::map_without_access;
use crate::error::SpaceError;
use crate::object::{MemoryObject, aligned};
use crate::object_pager::open_userfault;
use crate::pager_protocol::{PagerReply, PagerRequest, receive, send};
use crate::service_thread;
use host::fd_reaper::PeerFd;
use manager::shared_memory::LEAST_BYTES;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{Shutdown, shutdown};
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use translation::{Access, Userfault};
use wired::{ForkGuard, PAGE};

/// Makes and receives memory objects whose contents an [`ObjectPager`](crate::ObjectPager) pages.
/// Clones are the same connection.
///
/// If the pager's process ends, this one is aborted while it has objects of it: a page that is out
/// cannot be had any more, and an access never reads something else. Rights of views are kept by
/// this library alone, since the pager's memory is writable. Paged objects keep their size, and are
/// mapped shared: not copy-on-write, and not as client views, whose owner they protect against
/// cannot truncate them.
#[derive(Clone)]
pub struct PagedMemory {
    connection: Arc<PagerConnection>,
}

impl PagedMemory {
    /// Joins the pager at the other end of a connection
    /// ([`ObjectPager::connect`](crate::ObjectPager::connect)).
    ///
    /// # Errors
    /// [`SpaceError::Pager`], or the kernel's error.
    pub fn new(socket: OwnedFd) -> Result<Self, SpaceError> {
        let userfault = open_userfault()?;
        let fork_guard =
            ForkGuard::new().map_err(SpaceError::system("mapping memory that a fork wipes"))?;
        let socket = Arc::new(socket);
        let holds = Arc::new(AtomicUsize::new(0));
        let (watched, held) = (socket.clone(), holds.clone());
        let mut connection = PagerConnection {
            fork_guard,
            socket: Mutex::new(socket),
            watcher: None,
            holds,
            userfault,
        };
        let descriptor = Some(connection.userfault.as_fd());
        let (_, process) = connection.transact(PagerRequest::Join, descriptor)?;
        let end = PagerEnd::watch(watched, process.map(PeerFd::into_owned))
            .map_err(SpaceError::system("watching a pager by epoll"))?;
        let watch = move || abort_with_pager(&end, &held);
        connection.watcher = Some(service_thread::spawn("selfpage-watch", watch)?);
        let connection = Arc::new(connection);
        Ok(Self { connection })
    }

    /// A new object of `size` bytes of zeros, 64 KiB at least, with all rights.
    ///
    /// # Errors
    /// [`SpaceError::Unaligned`], [`SpaceError::Pager`], or the kernel's error.
    pub fn create(&self, size: u64) -> Result<MemoryObject, SpaceError> {
        aligned("size", size)?;
        if size < LEAST_BYTES as u64 {
            let why = format!("{size} bytes are too few: expected {LEAST_BYTES} at least");
            return Err(SpaceError::Pager(why));
        }
        let memory = wired::sealed_memory("selfpage-paged", size)
            .map_err(SpaceError::system("making a sealed memory object"))?;
        let hold = self.hold(PagerRequest::Create, memory.as_fd())?;
        Ok(MemoryObject::from_file(memory)?.with_pager(hold))
    }

    /// Receives an object of the same pager that another process sent, and still holds.
    ///
    /// # Errors
    /// As for [`MemoryObject::receive`]; [`SpaceError::Pager`] for an object that has ended.
    pub fn receive(&self, socket: impl AsFd) -> Result<MemoryObject, SpaceError> {
        let (object, paged) = MemoryObject::receive_any(socket)?;
        if !paged {
            return Ok(object);
        }
        let hold = self.hold(PagerRequest::Hold, object.as_fd())?;
        Ok(object.with_pager(hold))
    }

    fn hold(
        &self,
        request: PagerRequest,
        memory: BorrowedFd<'_>,
    ) -> Result<Arc<PagedObject>, SpaceError> {
        match self.connection.request(request, Some(memory))? {
            PagerReply::Object(number) => {
                let connection = self.connection.clone();
                connection.holds.fetch_add(1, Ordering::SeqCst);
                Ok(Arc::new(PagedObject { connection, number }))
            }
            reply => Err(reply.unexpected()),
        }
    }
}

/// The connection of a process to its pager.
struct PagerConnection {
    fork_guard: ForkGuard,
    /// Locked for a request and its reply.
    socket: Mutex<Arc<OwnedFd>>,
    /// Objects held. A mapping is made and removed while its object is held.
    holds: Arc<AtomicUsize>,
    watcher: Option<JoinHandle<()>>,
    /// Kept beside the pager's: an access waits once the pager is gone, and reads no zeros.
    userfault: Userfault,
}

impl PagerConnection {
    fn request(
        &self,
        request: PagerRequest,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<PagerReply, SpaceError> {
        self.transact(request, descriptor).map(|(reply, _)| reply)
    }

    /// Sends a request, and returns the reply with the descriptor that came along.
    fn transact(
        &self,
        request: PagerRequest,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(PagerReply, Option<PeerFd>), SpaceError> {
        if !self.fork_guard.is_same_process() {
            let why = "the connection is its parent's: a child of a fork makes its own";
            return Err(SpaceError::Pager(why.into()));
        }
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send(&socket, &request, descriptor)?;
        match receive(&socket)? {
            Some((PagerReply::Refused(why), _)) => Err(SpaceError::Pager(why)),
            Some(reply) => Ok(reply),
            None => Err(SpaceError::Pager("it has ended".into())),
        }
    }
}

impl Drop for PagerConnection {
    fn drop(&mut self) {
        let watcher = self.watcher.take();
        if !self.fork_guard.is_same_process() {
            // A child's copy: the connection is the parent's, and so is the thread.
            std::mem::forget(watcher);
            return;
        }
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = shutdown(&**socket, Shutdown::Both);
        let _ = watcher.map(JoinHandle::join);
    }
}

/// What tells the end of a pager. `poll` would fail once the limit of descriptors (`ulimit -n`) is below the number of its
/// entries.
struct PagerEnd {
    epoll: OwnedFd,
    socket: Arc<OwnedFd>,
    /// The pager's end of the socket may outlive it in a child of a fork.
    _process: Option<OwnedFd>,
}

impl PagerEnd {
    fn watch(socket: Arc<OwnedFd>, process: Option<OwnedFd>) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*socket, EventData::new_u64(0), EventFlags::RDHUP)?;
        if let Some(process) = &process {
            epoll::add(&epoll, process, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            socket,
            _process: process,
        })
    }

    fn wait(&self) {
        let mut ready = [const { std::mem::MaybeUninit::uninit() }; 1];
        while epoll::wait(&self.epoll, &mut ready, None).is_err() {}
    }
}

/// Ends the process when its pager has ended, if it has objects of it.
fn abort_with_pager(pager: &PagerEnd, holds: &AtomicUsize) {
    pager.wait();
    if holds.load(Ordering::SeqCst) > 0 {
        eprintln!("selfpage: the pager of this process's memory objects has ended, and so does it");
        std::process::abort();
    }
    // A request that waits for its reply fails.
    let _ = shutdown(&pager.socket, Shutdown::Both);
}

/// A hold of an object. Dropping it ends the hold.
pub(crate) struct PagedObject {
    connection: Arc<PagerConnection>,
    number: u32,
}

impl PagedObject {
    /// Maps a part of the object over reserved addresses; they are reserved again where this fails.
    pub(crate) fn map(
        &self,
        memory: BorrowedFd<'_>,
        offset: u64,
        range: &Range<usize>,
        access: Access,
    ) -> Result<(), SpaceError> {
        let (addr, len) = (range.start, range.len());
        let request = PagerRequest::Map {
            object: self.number,
            page: offset / PAGE as u64,
            addr: addr as u64,
            len: len as u64,
        };
        let mapped = map_without_access(memory, offset, addr, len)
            .and_then(|()| self.connection.request(request, None))
            .and_then(PagerReply::done)
            // SAFETY: the mapping just made, whose faults the pager serves.
            .and_then(|()| Ok(unsafe { translation::set_access(addr, len, access) }?));
        if mapped.is_err() {
            // SAFETY: the range is the caller's, and no code uses it yet.
            unsafe { translation::hide(addr, len) }?;
        }
        mapped
    }

    /// Brings mapped pages in, and keeps them.
    pub(crate) fn lock(&self, range: &Range<usize>) -> Result<(), SpaceError> {
        let (addr, len) = (range.start as u64, range.len() as u64);
        self.connection
            .request(PagerRequest::Lock { addr, len }, None)?;
        for page in range.clone().step_by(PAGE) {
            // SAFETY: mapped for reading. In user mode, since the pager serves no other faults.
            unsafe { std::ptr::with_exposed_provenance::<u8>(page).read_volatile() };
        }
        Ok(())
    }

    /// Undoes [`PagedObject::lock`].
    pub(crate) fn unlock(&self, range: &Range<usize>) {
        let (addr, len) = (range.start as u64, range.len() as u64);
        // A pager that has ended has no locks.
        let _ = self
            .connection
            .request(PagerRequest::Unlock { addr, len }, None);
    }
}

impl Drop for PagedObject {
    fn drop(&mut self) {
        if self.connection.fork_guard.is_same_process() {
            let object = self.number;
            let _ = self
                .connection
                .request(PagerRequest::Release { object }, None);
            self.connection.holds.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl fmt::Debug for PagedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PagedObject").field(&self.number).finish()
    }
}
