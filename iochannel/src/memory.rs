//! A channel's memory: made and sealed by a server, validated before its use.

use crate::error::{ChannelError, needs};
use crate::fifo::{CAPACITY, Fifo};
use crate::geometry::{ChannelGeometry, SLOT, at};
use crate::need_wakeup::WakeFlag;
use crate::shared_words::SharedWords;
use crate::slot::RequestSlot;
use crate::threads::ChannelThreads;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use wired::{PAGE, WiredMemory};

/// First word of a channel's memory.
const MAGIC: u64 = u64::from_le_bytes(*b"slfpgioc");
/// Version of the layout and of the protocol.
const VERSION: u32 = 3;

/// f_type of tmpfs, from magic.h: a memfd of small pages.
const TMPFS: u64 = 0x0102_1994;

/// Required seals: of the size, so that no access of the server's ever faults, and of the seals,
/// so that none is added that forbids writing.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A channel's memory, mapped.
pub(crate) struct ChannelMemory {
    region: WiredMemory,
    pub geometry: ChannelGeometry,
}

impl ChannelMemory {
    /// New memory, sealed, and its descriptor.
    pub fn create(geometry: ChannelGeometry) -> Result<(Self, OwnedFd), ChannelError> {
        let (region, fd) = WiredMemory::shared(geometry.bytes(), "selfpage-channel")
            .map_err(needs("sealed memory"))?;
        let word = |at| &region.slice::<AtomicU32>(at, 1)[0];
        word(at::VERSION).store(VERSION, Ordering::Relaxed);
        word(at::SLOTS).store(geometry.slots() as u32, Ordering::Relaxed);
        word(at::PAGES).store(geometry.pages() as u32, Ordering::Relaxed);
        region.slice::<AtomicU64>(at::MAGIC, 1)[0].store(MAGIC, Ordering::Release);
        Ok((Self { region, geometry }, fd))
    }

    /// Maps a channel's memory from its descriptor.
    ///
    /// The memory is mapped only once it is known that it cannot shrink: a server that touched
    /// truncated memory would get SIGBUS. The checks exclude files of a file system, and huge
    /// pages, whose faults may find none free.
    pub fn attach(fd: impl AsFd) -> Result<Self, ChannelError> {
        let seals = fcntl_get_seals(&fd).map_err(|_| ChannelError::NotMemory)?;
        if !fstatfs(&fd).is_ok_and(|system| system.f_type as u64 == TMPFS) {
            return Err(ChannelError::NotMemory);
        }
        let forbids_writing = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        if !seals.contains(SEALS) || forbids_writing {
            let seals = seals.bits();
            return Err(ChannelError::Unsealed { seals });
        }
        let there = fstat(&fd).map_err(|_| ChannelError::NotMemory)?.st_size as u64;
        let least = ChannelGeometry::for_depth(1).bytes() as u64;
        let most = ChannelGeometry::for_depth(usize::MAX).bytes() as u64;
        if !(least..=most).contains(&there) {
            let required = least;
            return Err(ChannelError::Size { there, required });
        }
        let region = WiredMemory::attach(&fd, there as usize).map_err(needs("a mapping"))?;
        let word = |at| region.slice::<AtomicU32>(at, 1)[0].load(Ordering::Relaxed);
        let magic = region.slice::<AtomicU64>(at::MAGIC, 1)[0].load(Ordering::Acquire);
        let version = word(at::VERSION);
        if (magic, version) != (MAGIC, VERSION) {
            return Err(ChannelError::Header { magic, version });
        }
        let geometry = ChannelGeometry::new(word(at::SLOTS) as usize, word(at::PAGES) as usize)?;
        if geometry.bytes() as u64 != there {
            let required = geometry.bytes() as u64;
            return Err(ChannelError::Size { there, required });
        }
        Ok(Self { region, geometry })
    }

    /// The shared words.
    ///
    /// # Safety
    /// Used only while `self` lives.
    pub unsafe fn words(&self) -> SharedWords<'static> {
        // SAFETY: the views end with `self`, by the caller's promise.
        unsafe {
            SharedWords {
                server: &self.view::<WakeFlag>(at::SERVER_FLAG, 1)[0],
                client: &self.view::<WakeFlag>(at::CLIENT_FLAG, 1)[0],
                requests: Fifo::new(
                    &self.view::<AtomicU32>(at::REQUESTS_TAIL, 1)[0],
                    self.view(at::REQUESTS, CAPACITY),
                ),
                completions: Fifo::new(
                    &self.view::<AtomicU32>(at::COMPLETIONS_TAIL, 1)[0],
                    self.view(at::COMPLETIONS, CAPACITY),
                ),
                slots: self.view::<RequestSlot>(PAGE, self.geometry.slots()),
            }
        }
    }

    /// The threads that wait for the channel's requests.
    pub fn threads(&self) -> &ChannelThreads {
        &self.region.slice::<ChannelThreads>(at::THREADS, 1)[0]
    }

    /// # Safety
    /// Used only while `self` lives.
    unsafe fn view<T: wired::Plain>(&self, offset: usize, count: usize) -> &'static [T] {
        let slice = self.region.slice::<T>(offset, count);
        // SAFETY: the memory stays mapped while `self` lives, which the caller promises.
        unsafe { std::slice::from_raw_parts(slice.as_ptr(), count) }
    }

    /// The first page buffer.
    pub fn pages(&self) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.geometry.pages_at())
    }
}

const _: () = assert!(at::REQUESTS + CAPACITY * 4 <= at::COMPLETIONS);
const _: () = assert!(at::COMPLETIONS + CAPACITY * 4 <= PAGE && PAGE.is_multiple_of(SLOT));
