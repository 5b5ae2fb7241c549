//! The memory a worker works on, by kind.

use crate::prelude::*;
use selfpage::{DirectIo, Domain, EntryKind, Paged, StoreConfig, Stretch};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Which memory. A store is written as `selfpage run` takes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum MemoryKind {
    /// Private memory of the kernel's.
    Anonymous,
    /// The same, in a process that `selfpage run` pages.
    Paged,
    /// Shared memory without a file, in such a process: the memory manager pages it.
    Shared,
    /// A shared mapping of a file.
    File(PathBuf),
    /// The same, advised that accesses are random.
    FileRandom(PathBuf),
    /// A stretch of the worker's own domain over a store, by upcalls.
    Upcall(String),
    /// The same by handler threads.
    Thread(String),
    /// The same by upcalls and frames of 2 MiB.
    Huge(String),
    /// No memory at all, direct reads and writes of a file.
    Device(PathBuf),
}

/// Memory, released when dropped.
pub enum WorkerMemory {
    /// Of the kernel's.
    Mapping(Mapping),
    /// Of a domain's.
    Linked(Stretch, Domain),
}

impl WorkerMemory {
    /// Memory of a kind that has any, without huge pages but in the kind of that name: the arms work on 4 KiB. A domain
    /// gets `frames` bytes of frames.
    pub fn new(kind: &MemoryKind, pages: u64, frames: u64) -> Result<Self> {
        let bytes = pages as usize * PAGE;
        let linked = |entry, store: &str, huge| {
            let (stretch, domain) = paged(entry, store, bytes, frames, huge)?;
            Ok(Self::Linked(stretch, domain))
        };
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        let (file, sharing) = match kind {
            MemoryKind::Anonymous | MemoryKind::Paged => (None, libc::MAP_PRIVATE),
            MemoryKind::Shared => (None, libc::MAP_SHARED),
            MemoryKind::File(path) | MemoryKind::FileRandom(path) => {
                (Some(open(path).at("open", path)?), libc::MAP_SHARED)
            }
            MemoryKind::Upcall(store) => return linked(EntryKind::Upcall, store, false),
            MemoryKind::Thread(store) => return linked(EntryKind::Thread, store, false),
            MemoryKind::Huge(store) => return linked(EntryKind::Upcall, store, true),
            MemoryKind::Device(_) => bail!("a device is not mapped"),
        };
        let mapping = Mapping::new(bytes, file.as_ref(), sharing)?;
        let advice = match kind {
            MemoryKind::FileRandom(_) => libc::MADV_RANDOM,
            _ => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: the mapping just made. A file mapping need not know huge pages.
        let _ = unsafe { libc::madvise(mapping.start, bytes, advice) };
        Ok(Self::Mapping(mapping))
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        match self {
            Self::Mapping(mapping) => mapping.start.cast(),
            Self::Linked(stretch, _) => stretch.as_ptr(),
        }
    }
}

/// A domain and a paged stretch of it. The worker does no direct I/O, and declares that.
pub fn paged(
    entry: EntryKind,
    store: &str,
    bytes: usize,
    frames: u64,
    huge: bool,
) -> Result<(Stretch, Domain)> {
    let count = u32::try_from(frames / PAGE as u64)
        .map_err(|_| anyhow!("{frames} bytes are too many frames"))?;
    let domain = Domain::builder()
        .frames(count)
        .store(store.parse::<StoreConfig>()?)
        .entry(entry)
        .direct_io(DirectIo::PinnedOnly)
        .build()?;
    let stretch = match huge {
        true => domain.allocate_huge(bytes),
        false => domain.allocate(bytes),
    }?;
    stretch.bind(Paged)?;
    Ok((stretch, domain))
}

/// A mapping of the kernel's; unmapped when dropped.
pub struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it only holds the address; its users divide the pages among themselves.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// By the C library's mmap: the system call itself is out of a preloaded library's sight, and
    /// `selfpage run` would have nothing to page.
    fn new(bytes: usize, file: Option<&File>, sharing: i32) -> Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = match file {
            Some(file) => (sharing, file.as_raw_fd()),
            None => (sharing | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a fresh mapping at an address the kernel chooses; a file is this experiment's own.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, fd, 0) };
        match start == libc::MAP_FAILED {
            true => Err(host::last_errno()).doing(format_args!("map {bytes} bytes")),
            false => Ok(Self { start, bytes }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { libc::munmap(self.start, self.bytes) };
    }
}
