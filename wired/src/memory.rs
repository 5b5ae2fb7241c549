//! The pager's own memory, mapped by raw system calls.

use crate::memory_pool::MemoryPool;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A mapping that is unmapped when dropped. Zero until written; the kernel allocates its pages as they
/// are touched, so a sparse table takes only the memory that is used of it.
pub struct WiredMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory; the types that are shared through it are `Plain`.
unsafe impl Send for WiredMemory {}
// SAFETY: as above.
unsafe impl Sync for WiredMemory {}

/// The distance of the pager's memory below this library: programs map from the top downwards, and
/// few map as much. A much larger one is not possible: ThreadSanitizer refuses to start where something is
/// mapped below 0x7e8000000000, and the kernel places code at random within 1 TiB.
const APART: usize = 1 << 38;

/// An address hint for a mapping of the pager's, far from the program's mappings. The pager maps memory
/// while the program runs: its mapping must not take a hole that the program has just unmapped and is
/// about to map again.
pub fn address_apart(len: usize) -> *mut c_void {
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let len = len.checked_next_multiple_of(crate::PAGE).unwrap_or(0);
    let taken = TAKEN.fetch_add(len, Ordering::Relaxed).saturating_add(len);
    // Not the address of this function, of which the compiler may make copies, so that hints would overlap.
    let top = (&raw const TAKEN).addr() & !(crate::PAGE - 1);
    // In a program at low addresses this is zero, and the kernel chooses.
    let address = top.saturating_sub(APART.saturating_add(taken));
    std::ptr::with_exposed_provenance_mut(address)
}

/// Types for which every bit pattern is a value and which many threads and processes may access
/// at once.
///
/// # Safety
/// All-zero bytes, and any bytes another process may write, must be valid values, and
/// access through a shared reference must be atomic.
pub unsafe trait Plain {}
// SAFETY: atomics accept every bit pattern.
unsafe impl Plain for AtomicU8 {}
// SAFETY: atomics accept every bit pattern.
unsafe impl Plain for AtomicU16 {}
// SAFETY: atomics accept every bit pattern.
unsafe impl Plain for AtomicU32 {}
// SAFETY: atomics accept every bit pattern.
unsafe impl Plain for AtomicU64 {}

/// The pools of private memory: one that a fork copies, and one that it wipes.
static INHERITED: MemoryPool = MemoryPool::new(false);
static WIPED: MemoryPool = MemoryPool::new(true);

impl WiredMemory {
    /// Private memory, copied on write at fork, without huge pages, not reserved, not in core
    /// dumps. By the last the kernel's statistics distinguish it from the program's memory.
    pub fn private(len: usize) -> io::Result<Self> {
        INHERITED.take(round(len)?)
    }

    /// Private memory that is zero in the child of a fork: for buffers that children do not
    /// inherit. The fork does not copy its page tables either.
    pub fn wiped_in_children(len: usize) -> io::Result<Self> {
        WIPED.take(round(len)?)
    }

    /// Frees the pages of private memory: it reads as zeros, and takes no page until it is written again.
    pub fn discard(&mut self) {
        let start = self.start.as_ptr() as usize;
        // SAFETY: this value owns the mapping, which is borrowed mutably. The advice never fails for a
        // mapping of [`WiredMemory::private`].
        let _ = unsafe { crate::syscall::madvise(start, self.len, libc::MADV_DONTNEED) };
    }

    /// Memory shared with every process that holds the descriptor and across fork, without huge pages. It is not in
    /// core dumps, which would contain other processes' data and would allocate every page that
    /// is still untouched. Its descriptor is of [`sealed_memory`].
    pub fn shared(len: usize, name: &str) -> io::Result<(Self, OwnedFd)> {
        let len = round(len)?;
        let fd = sealed_memory(name, len as u64)?;
        Ok((Self::attach(&fd, len)?, fd))
    }

    /// Maps the memory behind a descriptor made by [`WiredMemory::shared`].
    pub fn attach(fd: impl AsFd, len: usize) -> io::Result<Self> {
        let len = round(len)?;
        // SAFETY: a fresh mapping: the address is a hint.
        let start = unsafe {
            mmap(
                address_apart(len),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )?
        };
        let this = Self {
            start: nonnull(start),
            len,
        };
        // SAFETY: the mapping just made; the advice changes no contents.
        unsafe { madvise(start, len, Advice::LinuxDontDump)? };
        // A huge page would make a sparse table dense, and keep its memory when a part of it is freed. Kernels without
        // huge pages refuse this.
        // SAFETY: as above.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        Ok(this)
    }

    /// Takes ownership of the mapping of `len` bytes at `start`.
    ///
    /// # Safety
    /// No other code unmaps the range, or maps anything there.
    pub(crate) unsafe fn from_raw(start: *mut c_void, len: usize) -> Self {
        Self {
            start: nonnull(start),
            len,
        }
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes, a multiple of the page size.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the mapping has no bytes, which no constructor makes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `count` values of `T` that start `offset` bytes in.
    ///
    /// # Panics
    /// Where the values do not lie wholly inside the mapping, or are not aligned: a programming
    /// error in the layout.
    pub fn slice<T: Plain>(&self, offset: usize, count: usize) -> &[T] {
        let bytes = count
            .checked_mul(size_of::<T>())
            .expect("a layout fits in memory");
        let end = offset.checked_add(bytes).expect("a layout fits in memory");
        assert!(
            end <= self.len && offset.is_multiple_of(align_of::<T>()),
            "layout"
        );
        // SAFETY: inside the mapping, aligned, and `Plain` allows any contents.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(offset).cast(), count) }
    }

    /// Leaks the mapping and returns its start: for tables that live as long as the process.
    pub fn leak(self) -> *mut u8 {
        let start = self.as_ptr();
        std::mem::forget(self);
        start
    }
}

impl Drop for WiredMemory {
    fn drop(&mut self) {
        // SAFETY: the value owns its mapping, and borrows of it have ended.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A memfd of `len` bytes, which /proc shows as `name`. The size is sealed: no holder of the
/// descriptor can truncate the memory, which would kill the others at their next access.
pub fn sealed_memory(name: &str, len: u64) -> io::Result<OwnedFd> {
    check_file_size(len)?;
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Fails with EFBIG where a file of `len` bytes is beyond the process's limit (`ulimit -f`), which applies to memfds,
/// too. The kernel would send SIGXFSZ, which kills a process without a message.
pub fn check_file_size(len: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Fsize).current;
    match limit.is_some_and(|limit| limit < len) {
        true => Err(io::Errno::FBIG),
        false => Ok(()),
    }
}

fn round(len: usize) -> io::Result<usize> {
    if len == 0 {
        return Err(io::Errno::INVAL);
    }
    len.checked_next_multiple_of(crate::PAGE)
        .ok_or(io::Errno::NOMEM)
}

fn nonnull(ptr: *mut core::ffi::c_void) -> NonNull<u8> {
    NonNull::new(ptr.cast()).expect("mmap never returns null without being asked for it")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags that the kernel shows for the mapping that has `start`.
    fn flags(start: *mut u8) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let contains = |line: &str| {
            let range = line.split(' ').next()?.split_once('-')?;
            let [from, to] =
                [range.0, range.1].map(|address| usize::from_str_radix(address, 16).ok());
            Some((from?..to?).contains(&start.addr()))
        };
        let mut mapping = smaps
            .lines()
            .skip_while(|line| contains(line) != Some(true));
        let flags = mapping.find_map(|line| line.strip_prefix("VmFlags:"));
        flags.unwrap().to_owned()
    }

    #[test]
    fn discarded_memory_is_zeros_and_takes_no_page() {
        let mut memory = WiredMemory::private(4 * crate::PAGE).unwrap();
        let fill = |memory: &WiredMemory| {
            let words = memory.slice::<AtomicU64>(0, memory.len() / 8);
            words
                .iter()
                .for_each(|word| word.store(7, Ordering::Relaxed));
        };
        let resident = |memory: &WiredMemory| {
            let mut pages = [0u8; 4];
            let at = memory.as_ptr().cast();
            // SAFETY: a byte for each page of the mapping.
            let asked = unsafe { libc::mincore(at, memory.len(), pages.as_mut_ptr()) };
            assert_eq!(asked, 0);
            pages.iter().filter(|page| **page & 1 != 0).count()
        };
        fill(&memory);
        assert_eq!(resident(&memory), 4);
        memory.discard();
        assert_eq!(resident(&memory), 0);
        let words = memory.slice::<AtomicU64>(0, memory.len() / 8);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        fill(&memory);
        assert_eq!(resident(&memory), 4);
    }

    #[test]
    fn memory_that_many_threads_take_does_not_overlap() {
        let take = |seed: usize| {
            let pages = (0..200).map(move |n| 1 + (n * 7 + seed) % 300);
            pages.map(|pages| WiredMemory::private(pages * crate::PAGE).unwrap())
        };
        let threads = [1, 2, 3].map(|seed| std::thread::spawn(move || take(seed).collect()));
        let taken: Vec<Vec<WiredMemory>> = threads.map(|t| t.join().unwrap()).into();
        let mut spans: Vec<_> = taken
            .iter()
            .flatten()
            .map(|memory| (memory.as_ptr().addr(), memory.len()))
            .collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        for memory in taken.iter().flatten() {
            let words = memory.slice::<AtomicU64>(0, memory.len() / 8);
            words[0].store(7, Ordering::Relaxed);
            words[words.len() - 1].store(7, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_memory_that_is_wiped_in_children_has_the_flag() {
        let wiped = WiredMemory::wiped_in_children(crate::PAGE).unwrap();
        let large = WiredMemory::wiped_in_children(64 << 20).unwrap();
        let inherited = WiredMemory::private(crate::PAGE).unwrap();
        let is_wiped = |memory: &WiredMemory| {
            let flags = flags(memory.as_ptr());
            flags.split(' ').any(|flag| flag == "wf")
        };
        assert!(is_wiped(&wiped) && is_wiped(&large) && !is_wiped(&inherited));
    }

    #[test]
    fn wired_memory_has_no_huge_pages_and_is_not_in_core_dumps() {
        let are_there = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        let private = WiredMemory::private(crate::PAGE).unwrap();
        let (shared, fd) = WiredMemory::shared(crate::PAGE, "selfpage-test").unwrap();
        let attached = WiredMemory::attach(&fd, crate::PAGE).unwrap();
        for region in [&private, &shared, &attached] {
            let flags = flags(region.as_ptr());
            let has = |flag| flags.split(' ').any(|one| one == flag);
            assert!(has("dd") && has("nh") == are_there, "{flags}");
        }
    }
}
