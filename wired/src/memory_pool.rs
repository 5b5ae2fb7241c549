//! A pool of mappings from which private memory is allocated. A pager has dozens of tables, and three or
//! four system calls for each would be a twentieth of a process's start.

use crate::WiredMemory;
use crate::memory::address_apart;
use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes mapped at once.
const CHUNK: usize = 8 << 20;

/// Memory of this size or more is a mapping of its own.
const OWN_MAPPING: usize = CHUNK / 2;

/// Bytes that all pools have mapped, less the unused rests of chunks that they have unmapped.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Bytes that this process, and its parents before their forks, have mapped as private memory.
pub fn private_bytes_mapped() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

/// A bump allocator over mapped chunks. Addresses are not used twice.
pub(crate) struct MemoryPool {
    /// The first free byte of the last chunk, which begins and ends at a multiple of [`CHUNK`].
    /// Such a multiple means that the chunk is used up.
    next: AtomicUsize,
    wiped_in_children: bool,
}

impl MemoryPool {
    pub(crate) const fn new(wiped_in_children: bool) -> Self {
        Self {
            next: AtomicUsize::new(0),
            wiped_in_children,
        }
    }

    /// Memory of `len` bytes, whole pages. Lock-free: a signal handler may call this, and the pager's
    /// threads must not wait for a thread of the program's.
    pub(crate) fn take(&self, len: usize) -> io::Result<WiredMemory> {
        if len >= OWN_MAPPING {
            return self.map(address_apart(len), len);
        }
        loop {
            let next = self.next.load(Ordering::Acquire);
            let used = next % CHUNK;
            let mut chunk = None;
            if used == 0 || used + len > CHUNK {
                let apart = address_apart(2 * CHUNK);
                let aligned = apart.map_addr(|addr| addr.next_multiple_of(CHUNK));
                chunk = self.map(aligned, CHUNK).ok().filter(is_aligned);
                if chunk.is_none() {
                    // Little address space is left, or another mapping lies there.
                    return self.map(address_apart(len), len);
                }
            }
            let start = chunk.as_ref().map_or(next, |it| it.as_ptr().addr());
            let exchanged =
                self.next
                    .compare_exchange(next, start + len, Ordering::AcqRel, Ordering::Relaxed);
            if exchanged.is_ok() {
                if chunk.is_some() && used != 0 {
                    self.unmap_rest(next, CHUNK - used);
                }
                std::mem::forget(chunk);
                let start = std::ptr::with_exposed_provenance_mut(start);
                // SAFETY: the range is part of a chunk that only this pool uses, and is allocated once.
                return Ok(unsafe { WiredMemory::from_raw(start, len) });
            }
        }
    }

    /// Unmaps the rest of a chunk that another chunk has replaced: otherwise a process that makes and drops domains for
    /// ever would run out of mappings.
    fn unmap_rest(&self, start: usize, len: usize) {
        // SAFETY: the rest belongs to this pool, which allocates nothing from it any more.
        let unmapped = unsafe { munmap(std::ptr::with_exposed_provenance_mut(start), len) };
        if unmapped.is_ok() {
            MAPPED.fetch_sub(len, Ordering::Relaxed);
        }
    }

    /// A fresh mapping, at `hint` if that is free.
    fn map(&self, hint: *mut c_void, len: usize) -> io::Result<WiredMemory> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping: the address is a hint.
        let start = unsafe { mmap_anonymous(hint, len, access, flags)? };
        MAPPED.fetch_add(len, Ordering::Relaxed);
        start.expose_provenance();
        // SAFETY: the mapping just made.
        let memory = unsafe { WiredMemory::from_raw(start, len) };
        // SAFETY: as above. Huge pages would make a sparse table dense.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        // SAFETY: as above; the advice changes no contents.
        let _ = unsafe { madvise(start, len, Advice::LinuxDontDump) };
        if self.wiped_in_children {
            // SAFETY: as above; contents change in children alone.
            unsafe { madvise(start, len, Advice::LinuxWipeOnFork)? };
        }
        Ok(memory)
    }
}

fn is_aligned(chunk: &WiredMemory) -> bool {
    chunk.as_ptr().addr().is_multiple_of(CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_another_one_replaces_leaves_no_mapping_behind() {
        const PIECE: usize = 3 << 20;
        let pool = MemoryPool::new(false);
        let pieces: Vec<_> = (0..3).map(|_| pool.take(PIECE).unwrap()).collect();
        let rest = pieces[1].as_ptr().addr() + PIECE;
        assert_eq!(rest % CHUNK, 2 * PIECE, "the third is of another chunk");
        let mut resident = [0; (CHUNK - 2 * PIECE) / crate::PAGE];
        // SAFETY: the kernel looks at the addresses, and writes a byte for each page.
        let found = unsafe {
            libc::mincore(
                rest as *mut c_void,
                CHUNK - 2 * PIECE,
                resident.as_mut_ptr(),
            )
        };
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((found, error), (-1, Some(libc::ENOMEM)));
    }
}
