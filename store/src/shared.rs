//! One store for a tree of processes: made by the first, joined by the others.
//!
//! Three descriptors make a store: the tables, the arena, the swap file; each process maps the
//! first two and does its own I/O on the third. With a disk of the daemon's there are the first
//! two, and each process has a transport. A linked program makes a store for itself.

use crate::channel::StoreChannel;
use crate::error::{SetupError, StoreError};
use crate::growth::{self, Growth};
use crate::inner::{StoreCounter, StoreInner};
use crate::io::fault_injection::{FaultPlan, Injector};
use crate::layout::{Geometry, MAX_HOLDERS, Offsets, Tables, check_holder};
use crate::location::Location;
use crate::on_demand::{OnDemand, RETRY};
use crate::page_index::Lookup;
use crate::ram_resizer::RamResizer;
use crate::segment::room_for;
use crate::swap_file::{self, notes};
use crate::traits::{Channel, Store};
use crate::usage::{Occupancy, Usage};
use crate::{Checksum, DiskLocation, DiskTransport, HolderId, PageHandle, StoreConfig};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wired::{PAGE, WiredMemory};

/// A store in shared memory, as mapped by one process; clones share the mapping.
#[derive(Clone)]
pub struct SharedStore {
    pub(crate) inner: Arc<StoreInner>,
    pub(crate) growth: Arc<Mutex<Option<Growth>>>,
    /// Made by another process: channels to a disk of the tree's own are opened by their first pages.
    pub(crate) is_attached: bool,
}

impl SharedStore {
    /// Makes a store with slots for holders 0 to `max_holders` - 1, attached as holder 0. Another
    /// process needs the returned descriptors, close-on-exec, to [`SharedStore::attach`]; the store
    /// itself keeps one of the swap file. A store with a disk of the daemon's has none of a swap
    /// file, and needs [`SharedStore::set_transport`] before it makes channels.
    pub fn create(
        config: &StoreConfig,
        max_holders: u16,
    ) -> Result<(Self, Vec<OwnedFd>), SetupError> {
        config.check()?;
        if max_holders == 0 || max_holders > MAX_HOLDERS {
            return Err(SetupError::HolderId {
                holder: max_holders,
                last: MAX_HOLDERS,
            });
        }
        let geometry = Geometry::of(config, max_holders);
        let disk = match &config.disk {
            Some(disk) => match &disk.place {
                DiskLocation::File(path) => Some(swap_file::create(path, disk)?),
                DiskLocation::System | DiskLocation::Remote | DiskLocation::Objects(_) => None,
            },
            None => None,
        };
        let (region, tables_fd) = shared("tables", Offsets::of(&geometry).end)?;
        let tables = Tables::create(region, geometry, &config.to_string());
        let mut fds = vec![tables_fd];
        let mut arena = None;
        if geometry.segments > 0 {
            let (region, fd) = shared("compressed RAM", geometry.segments * geometry.segment_size)?;
            fds.push(fd);
            arena = Some(region);
        }
        let mut swap = None;
        let mut unusual = 0;
        if let Some((fd, notes)) = disk {
            swap = Some(duplicate(&fd)?);
            unusual = notes;
            fds.push(fd);
        }
        let inner = StoreInner::new(tables, arena, swap, 0)?;
        inner.page_index.reserve_zero();
        if let Some(bloks) = &inner.bloks {
            bloks.close_end();
        }
        inner.header.notes().store(unusual, Ordering::Relaxed);
        let grows = config.disk.as_ref().is_some_and(|disk| disk.grows);
        let growth = match (&inner.bloks, fds.last()) {
            (Some(bloks), Some(file)) if grows => {
                Some(Growth::new(duplicate(file)?, geometry.bloks as u64, bloks))
            }
            _ => None,
        };
        let store = Self {
            inner: Arc::new(inner),
            growth: Arc::new(Mutex::new(growth)),
            is_attached: false,
        };
        if let Some(plan) = config.disk.as_ref().and_then(|disk| disk.inject) {
            store.inject(plan);
        }
        Ok((store, fds))
    }

    /// Joins the store behind `fds`, in the order that `create` returned them, as `holder`. Closes
    /// the memory's descriptors and keeps the swap file's.
    pub fn attach(fds: Vec<OwnedFd>, holder: HolderId) -> Result<Self, SetupError> {
        let few = || SetupError::NotAStore("there are too few of them");
        let mut fds = fds.into_iter();
        let tables = Tables::attach(fds.next().ok_or_else(few)?)?;
        let geometry = tables.geometry;
        check_holder(holder, &geometry)?;
        let mut arena = None;
        if geometry.segments > 0 {
            let bytes = geometry.segments * geometry.segment_size;
            let fd = fds.next().ok_or_else(few)?;
            let size = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_size as usize);
            if size < bytes {
                return Err(SetupError::NotAStore(
                    "the arena is smaller than its tables say",
                ));
            }
            arena = Some(
                WiredMemory::attach(fd, bytes).map_err(|errno| SetupError::Memory {
                    what: "compressed RAM",
                    bytes: bytes as u64,
                    errno,
                })?,
            );
        }
        let swap = match geometry.bloks > 0 && !geometry.by_daemon {
            true => Some(fds.next().ok_or_else(few)?),
            false => None,
        };
        Ok(Self {
            inner: Arc::new(StoreInner::new(tables, arena, swap, holder)?),
            growth: Arc::default(),
            is_attached: true,
        })
    }

    /// Sets the holder of new channels: for the child of a fork. A slot past the store's last is
    /// refused.
    pub fn set_holder(&self, holder: HolderId) -> Result<(), SetupError> {
        check_holder(holder, &self.inner.tables.geometry)?;
        self.inner.holder.store(holder, Ordering::Release);
        Ok(())
    }

    /// The holder of new channels.
    pub fn holder(&self) -> HolderId {
        self.inner.holder.load(Ordering::Acquire)
    }

    /// Sets the swap file's descriptor for new channels: where the store's own is closed, or is in
    /// another descriptor table. The former one is not closed. A store with a disk of the daemon's
    /// does not need it, and closes it.
    pub fn reopen(&self, swap: OwnedFd) {
        self.inner.backing.reopen(swap);
    }

    /// Sets the transport of new channels, for a store with a disk of the daemon's
    /// ([`DiskLocation::System`]): in each process that joined it, before it makes channels, and
    /// again in a fork's child. A replaced transport is kept, because another thread may be opening
    /// a channel by it.
    pub fn set_transport(&self, transport: Box<dyn DiskTransport>) {
        self.inner.backing.set_transport(transport);
    }

    /// As [`Store::retire`], where none of the holder's I/O is known to be in flight: waits for none.
    pub fn retire_quiet(&self, holder: HolderId) -> bool {
        self.inner.retire(holder, true)
    }

    /// Frees the room of the swap file, which has no name, at once: no process uses the store any more.
    pub fn free_room(&self) {
        self.inner.backing.free_room();
    }

    /// Removes the descriptor of the swap file from the store and returns it, unclosed: for a
    /// library that keeps none in its program's table. Existing channels have their own access to
    /// the file; new ones need [`SharedStore::reopen`] first.
    pub fn take_swap(&self) -> Option<i32> {
        self.inner.backing.take_swap()
    }

    /// Injects disk faults from now on, in every process of the tree. For tests.
    pub fn inject(&self, plan: FaultPlan) {
        Injector(self.inner.header.inject()).set(plan);
    }

    /// Starts the thread that allocates a growing swap file ahead of need, and frees unused space
    /// at its end: in the process that made the store. Does nothing where the file does not grow.
    pub fn grow_ahead(&self) -> Result<(), SetupError> {
        let growth = self
            .growth
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let started = growth.map_or(Ok(()), |growth| growth::start(&self.inner, growth));
        started.map_err(|error| SetupError::Memory {
            what: "thread that grows the swap file",
            bytes: 0,
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })
    }

    /// Returns true if the swap file's file system is itself memory: such a store saves none.
    pub fn is_in_memory(&self) -> bool {
        self.inner.header.notes().load(Ordering::Relaxed) & notes::MEMORY != 0
    }

    /// What changes the limit on compressed RAM from now on: one for all processes, as the store's
    /// present holder. It begins with a limit of 0. For a store with a disk to demote to.
    pub fn ram_resizer(&self) -> Result<RamResizer, StoreError> {
        let channel = StoreChannel::new(self.inner.clone(), RamResizer::DEPTH)?;
        Ok(RamResizer::new(channel))
    }

    /// Operations in flight at most of a channel of this depth: an IO channel for it has as many
    /// slots ([`DiskTransport::open`]).
    pub fn channel_ops(&self, depth: usize) -> u16 {
        self.inner.channel_ops(depth) as u16
    }

    /// Returns true if the store's disk is reached through IO channels, by a transport.
    pub fn needs_transport(&self) -> bool {
        self.inner.tables.geometry.by_daemon
    }

    /// Leaves compressed RAM unused until [`RamResizer::raise`].
    pub fn hold_ram(&self) {
        self.inner.segments.set_limit(0);
    }

    /// Bytes in each tier now.
    pub fn occupancy(&self) -> Occupancy {
        let bloks = self.inner.bloks.as_ref();
        Occupancy {
            ram: self.inner.segments.used(),
            disk: bloks.map_or(0, |bloks| bloks.used() * PAGE as u64),
            pages: self.inner.page_index.taken(),
        }
    }

    /// Returns true if a read of this page needs the disk now.
    pub fn is_on_disk(&self, handle: PageHandle) -> bool {
        let found = self.inner.page_index.find(handle);
        matches!(found, Some(Lookup::At(Location::Disk { .. })))
    }

    /// The shared parts, for unit tests.
    #[cfg(test)]
    pub(crate) fn inner(&self) -> Arc<StoreInner> {
        self.inner.clone()
    }
}

fn shared(what: &'static str, bytes: usize) -> Result<(WiredMemory, OwnedFd), SetupError> {
    let name = if what == "tables" {
        "selfpage-tables"
    } else {
        "selfpage-store"
    };
    WiredMemory::shared(bytes, name).map_err(|errno| SetupError::Memory {
        what,
        bytes: bytes as u64,
        errno,
    })
}

pub(crate) fn duplicate(fd: impl AsFd) -> Result<OwnedFd, SetupError> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|errno| SetupError::Memory {
        what: "descriptor of the swap file",
        bytes: 0,
        errno,
    })
}

impl SharedStore {
    fn channel_on_demand(&self, depth: usize, pause: Duration) -> Box<dyn Channel> {
        Box::new(OnDemand::new(self.inner.clone(), depth, pause))
    }
}

impl Store for SharedStore {
    fn describe(&self) -> String {
        let mut text = self.inner.tables.line();
        let notes = self.inner.header.notes().load(Ordering::Relaxed);
        for (bit, what) in [
            (
                notes::BUFFERED,
                " (no direct I/O there: through the page cache)",
            ),
            (notes::MEMORY, " (that file system is itself memory)"),
            (notes::NO_RING, " (no io_uring: one I/O at a time)"),
        ] {
            if notes & bit != 0 {
                text.push_str(what);
            }
        }
        text
    }

    fn channel(&self, depth: usize) -> Result<Box<dyn Channel>, StoreError> {
        // An IO channel to the daemon's disk may be refused: then the process is, before it begins.
        match self.is_attached && !self.inner.tables.geometry.by_daemon {
            true => Ok(self.channel_on_demand(depth, Duration::ZERO)),
            false => Ok(StoreChannel::new(self.inner.clone(), depth)?),
        }
    }

    fn readahead_channel(&self, depth: usize) -> Result<Box<dyn Channel>, StoreError> {
        match self.is_attached {
            true => Ok(self.channel_on_demand(depth, RETRY)),
            false => self.channel(depth),
        }
    }

    fn discard(&self, slot: HolderId, handles: &[PageHandle]) {
        self.inner.discard(slot, handles);
    }

    fn checksum(&self, handle: PageHandle) -> Checksum {
        self.inner.page_index.checksum(handle)
    }

    fn verify_checksum(&self, handle: PageHandle, page: &[u8; PAGE]) -> bool {
        self.inner.page_index.verify_checksum(handle, page)
    }

    fn usage(&self) -> Usage {
        let inner = &*self.inner;
        let geometry = &inner.tables.geometry;
        let occupancy = self.occupancy();
        let mut usage = Usage {
            ram_used: occupancy.ram,
            ram_limit: (geometry.segments * geometry.segment_size) as u64,
            disk_used: occupancy.disk,
            disk_limit: (geometry.bloks * PAGE) as u64,
            tables: inner.page_index.bytes(),
            written: inner.total(StoreCounter::Written),
            read: inner.total(StoreCounter::Read),
            read_disk: inner.total(StoreCounter::ReadDisk),
            demoted: inner.total(StoreCounter::Demoted),
            compacted: inner.total(StoreCounter::Compacted),
            mismatches: inner.total(StoreCounter::Mismatches),
            io_errors: inner.total(StoreCounter::IoErrors),
            ios: inner.total(StoreCounter::Ios),
            to_ram: inner.total(StoreCounter::ToRam),
            to_ram_bytes: inner.total(StoreCounter::ToRamBytes),
            ..Usage::default()
        };
        for (_, holders, found) in inner.page_index.each_page() {
            usage.holds += holders;
            match found {
                Lookup::Filled(_) => usage.pages_filled += 1,
                Lookup::At(Location::Ram { len, .. }) => {
                    usage.pages_ram += 1;
                    usage.ram_compressed += room_for(len as usize) as u64;
                }
                Lookup::At(Location::Disk { .. }) => usage.pages_disk += 1,
                Lookup::At(Location::Nowhere) => {}
            }
        }
        usage
    }

    fn adopt_fork(&self, parent: HolderId, child: HolderId) {
        self.inner.adopt_fork(parent, child);
    }

    fn retire(&self, holder: HolderId) -> bool {
        self.inner.retire(holder, false)
    }
}
