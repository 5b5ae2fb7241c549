//! The memory a worker works on, by kind.

use crate::error::while_doing;
use crate::{ExperimentError, contents::PAGE};
use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use selfpage::{Contract, DirectIo, Domain, EntryKind, Paged, StoreConfig, Stretch};
use std::ffi::c_void;
use std::path::PathBuf;
use std::str::FromStr;

/// Which memory, as on the command line of a worker.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `anonymous`: private memory of the kernel's.
    Anonymous,
    /// `paged`: the same, in a process that `selfpage run` pages.
    Paged,
    /// `file:PATH`: a shared mapping of a file.
    File(PathBuf),
    /// `file-random:PATH`: the same, advised that accesses are random.
    FileRandom(PathBuf),
    /// `upcall:STORE` or `thread:STORE`: a stretch of the worker's own domain, with that
    /// entry, over a store written as `selfpage run` takes it.
    Linked(EntryKind, StoreConfig),
    /// `huge:STORE`: the same with upcalls, by frames of 2 MiB.
    Huge(StoreConfig),
    /// `device:PATH`: no memory at all, direct reads and writes of a file.
    Device(PathBuf),
}

impl Kind {
    fn linked(entry: EntryKind, store: &str) -> Result<Self, String> {
        let store = store.parse::<StoreConfig>();
        Ok(Self::Linked(entry, store.map_err(|e| e.to_string())?))
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "anonymous" => Ok(Self::Anonymous),
            None if text == "paged" => Ok(Self::Paged),
            Some(("file", path)) => Ok(Self::File(path.into())),
            Some(("file-random", path)) => Ok(Self::FileRandom(path.into())),
            Some(("device", path)) => Ok(Self::Device(path.into())),
            Some(("upcall", store)) => Self::linked(EntryKind::Upcall, store),
            Some(("huge", store)) => {
                let store = store.parse::<StoreConfig>();
                Ok(Self::Huge(store.map_err(|e| e.to_string())?))
            }
            Some(("thread", store)) => Self::linked(EntryKind::Thread, store),
            _ => Err(format!(
                "no memory is called {text:?}: there are anonymous, paged, file:PATH, file-random:PATH, upcall:STORE, \
                 thread:STORE, huge:STORE, device:PATH"
            )),
        }
    }
}

/// An entry, as [`Kind`] is written.
pub fn entry_name(entry: EntryKind) -> &'static str {
    match entry {
        EntryKind::Upcall => "upcall",
        EntryKind::Thread => "thread",
    }
}

/// Memory, released when dropped.
pub enum Memory {
    /// Of the kernel's.
    Mapping(Mapping),
    /// Of a domain's.
    Linked(Stretch, Domain),
}

impl Memory {
    /// Memory of a kind that has any, without huge pages unless it says so: the arms work on 4 KiB. A domain
    /// gets `frames` bytes of frames.
    pub fn new(kind: &Kind, pages: u64, frames: u64) -> Result<Self, ExperimentError> {
        let bytes = pages as usize * PAGE;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        let start = match kind {
            Kind::Anonymous | Kind::Paged => anonymous(bytes),
            Kind::File(path) | Kind::FileRandom(path) => {
                let file = std::fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(path)
                    .map_err(while_doing(format!("open {}", path.display())))?;
                // SAFETY: a fresh mapping; the file is this experiment's own.
                unsafe { mmap(null, bytes, rights, MapFlags::SHARED, file.as_fd(), 0) }
            }
            Kind::Linked(entry, store) => return linked(*entry, store, bytes, frames, false),
            Kind::Huge(store) => return linked(EntryKind::Upcall, store, bytes, frames, true),
            Kind::Device(_) => {
                return Err(ExperimentError::Options("a device is not mapped".into()));
            }
        }
        .map_err(while_doing(format!("map {bytes} bytes")))?;
        let mapping = Mapping { start, bytes };
        let advice = match kind {
            Kind::FileRandom(_) => Advice::Random,
            _ => Advice::LinuxNoHugepage,
        };
        // SAFETY: the mapping just made. A file mapping need not know huge pages.
        let _ = match kind {
            // SAFETY: as above, and by the C library as the mapping was.
            Kind::Anonymous | Kind::Paged => unsafe {
                libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) == 0
            },
            // SAFETY: as above.
            _ => unsafe { madvise(start, bytes, advice) }.is_ok(),
        };
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

/// Private memory by the C library's mmap: the system call itself is out of a preloaded
/// library's sight, and `selfpage run` would have nothing to page.
fn anonymous(bytes: usize) -> Result<*mut c_void, rustix::io::Errno> {
    let (rights, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a fresh mapping at an address the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(
            rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
                .unwrap_or(rustix::io::Errno::NOMEM),
        );
    }
    Ok(start)
}

/// A domain and a paged stretch of it. The worker does no direct I/O, and declares that.
fn linked(
    entry: EntryKind,
    store: &StoreConfig,
    bytes: usize,
    frames: u64,
    huge: bool,
) -> Result<Memory, ExperimentError> {
    let count = u32::try_from(frames / PAGE as u64)
        .map_err(|_| ExperimentError::Options(format!("{frames} bytes are too many frames")))?;
    let domain = Domain::builder()
        .frames(Contract { g: count, x: count })
        .store(store.clone())
        .entry(entry)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .map_err(|e| ExperimentError::Worker(e.to_string()))?;
    let stretch = match huge {
        true => domain.allocate_huge(bytes),
        false => domain.allocate(bytes),
    }
    .map_err(|e| ExperimentError::Worker(e.to_string()))?;
    stretch
        .bind(Paged)
        .map_err(|e| ExperimentError::Worker(e.to_string()))?;
    Ok(Memory::Linked(stretch, domain))
}

/// A mapping of the kernel's; unmapped when dropped.
pub struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it only holds the address; its users divide the pages among themselves.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { libc::munmap(self.start, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_name_of_the_worker_option() {
        for entry in [EntryKind::Upcall, EntryKind::Thread] {
            let text = format!("{}:ram:1M+disk:/a:b,size=2M", entry_name(entry));
            let kind: Kind = text.parse().unwrap();
            assert!(matches!(kind, Kind::Linked(e, _) if e == entry));
        }
        assert!(matches!("paged".parse(), Ok(Kind::Paged)));
        let unknown = "tape:/dev/st0".parse::<Kind>().unwrap_err();
        assert!(unknown.contains("device:PATH"), "{unknown}");
    }
}
