//! An io_uring over memory of the pager's own.
//!
//! The kernel refuses an address for a ring that it allocates (also when the mapping is moved): it
//! puts the ring into the highest hole, perhaps one that the program has just unmapped and is about
//! to fill with MAP_FIXED_NOREPLACE. Since Linux 6.5 a ring can lie in memory that the caller
//! provides, here [`WiredMemory`], which is apart from the program's. The `io-uring` crate cannot
//! do that, and reports errors through libc's `errno`, which is thread-local.
//!
//! Before Linux 6.10 such a ring, and its submissions, must fit into a page each: up to 64
//! operations. Where the kernel refuses, it allocates the ring.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringRegisterOp, IoringSetupFlags,
    io_uring_enter, io_uring_params, io_uring_ptr, io_uring_register, io_uring_sqe,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use wired::syscall::{checked, syscall6};
use wired::{PAGE, WiredMemory};

/// The number of io_uring_setup.
const SYS_IO_URING_SETUP: i64 = 425;

/// Bytes that the heads, tails and masks take at most, before the completions.
const HEADER: usize = 512;

/// Bytes of a completion: the token, the result, flags.
const CQE: usize = 16;

/// A ring whose submissions and completions one thread at a time handles.
pub(super) struct Ring {
    fd: OwnedFd,
    params: io_uring_params,
    memory: RingMemory,
}

/// Where the ring is.
enum RingMemory {
    /// In memory of the pager's.
    Own {
        rings: WiredMemory,
        submissions: WiredMemory,
    },
    /// Where the kernel put it: two mappings and their lengths.
    Kernel {
        rings: (*mut u8, usize),
        submissions: (*mut u8, usize),
    },
}

// SAFETY: the mappings are the ring's own, and no other code refers to them.
unsafe impl Send for Ring {}

impl Ring {
    /// For `entries` operations at once, a power of two. The child of a fork does not inherit its
    /// memory.
    pub(super) fn new(entries: u32) -> Result<Self, Errno> {
        Self::in_own_memory(entries).or_else(|_| Self::in_memory_of_kernel(entries))
    }

    fn in_own_memory(entries: u32) -> Result<Self, Errno> {
        let (submitted, completed) = (entries as usize, 2 * entries as usize);
        let rings = WiredMemory::private(HEADER + completed * CQE + submitted * 4)?;
        let submissions = WiredMemory::private(submitted * size_of::<io_uring_sqe>())?;
        for memory in [&rings, &submissions] {
            // SAFETY: the mapping just made. No code reads it in the child of a fork.
            unsafe { madvise(memory.as_ptr().cast(), memory.len(), Advice::LinuxDontFork)? };
        }
        let mut params = io_uring_params::default();
        params.flags = IoringSetupFlags::NO_MMAP;
        params.cq_off.user_addr = io_uring_ptr::new(rings.as_ptr().cast());
        params.sq_off.user_addr = io_uring_ptr::new(submissions.as_ptr().cast());
        // SAFETY: both mappings live as long as the ring, and have the size that the kernel uses.
        let fd = unsafe { setup(entries, &mut params)? };
        let memory = RingMemory::Own { rings, submissions };
        Ok(Self { fd, params, memory }.with_identity())
    }

    fn in_memory_of_kernel(entries: u32) -> Result<Self, Errno> {
        let mut params = io_uring_params::default();
        // SAFETY: no memory is passed.
        let fd = unsafe { setup(entries, &mut params)? };
        let completed = params.cq_off.cqes as usize + params.cq_entries as usize * CQE;
        let submitted = params.sq_off.array as usize + params.sq_entries as usize * 4;
        let map = |len: usize, offset| -> Result<(*mut u8, usize), Errno> {
            let len = len.next_multiple_of(PAGE);
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            // SAFETY: a fresh mapping, where the kernel chooses.
            let at = unsafe { mmap(std::ptr::null_mut(), len, access, flags, &fd, offset)? };
            // SAFETY: the mapping just made. No code reads it in the child of a fork.
            unsafe { madvise(at, len, Advice::LinuxDontFork)? };
            Ok((at.cast(), len))
        };
        let rings = map(completed.max(submitted), IORING_OFF_SQ_RING)?;
        let entries = params.sq_entries as usize * size_of::<io_uring_sqe>();
        let submissions = map(entries, IORING_OFF_SQES)?;
        let memory = RingMemory::Kernel { rings, submissions };
        Ok(Self { fd, params, memory }.with_identity())
    }

    /// Entry `n` of the submission queue is submission `n`, for good.
    fn with_identity(self) -> Self {
        for n in 0..self.params.sq_entries {
            self.word(self.params.sq_off.array + 4 * n)
                .store(n, Ordering::Relaxed);
        }
        self
    }

    /// Registers the file that operations name by index 0, so that they need no descriptor.
    pub(super) fn register_file(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let files = [file.as_raw_fd()];
        let op = IoringRegisterOp::RegisterFiles;
        // SAFETY: the kernel reads one descriptor.
        unsafe { io_uring_register(&self.fd, op, files.as_ptr().cast(), 1)? };
        Ok(())
    }

    /// Puts an entry into the submission queue. Returns false if the queue is full.
    ///
    /// # Safety
    /// What the entry points to stays as it is until its completion.
    pub(super) unsafe fn push(&mut self, entry: io_uring_sqe) -> bool {
        let off = &self.params.sq_off;
        let (head, tail) = (self.word(off.head), self.word(off.tail));
        let next = tail.load(Ordering::Relaxed);
        if next.wrapping_sub(head.load(Ordering::Acquire)) == self.params.sq_entries {
            return false;
        }
        let index = (next & (self.params.sq_entries - 1)) as usize;
        // SAFETY: of the submissions' entries. The kernel does not read it before the tail says
        // that it is there.
        unsafe { self.submissions().add(index).write(entry) };
        tail.store(next.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes the next completion: its token and result.
    pub(super) fn pop(&mut self) -> Option<(u64, i32)> {
        let off = &self.params.cq_off;
        let (head, tail) = (self.word(off.head), self.word(off.tail));
        let next = head.load(Ordering::Relaxed);
        if next == tail.load(Ordering::Acquire) {
            return None;
        }
        let at = off.cqes + (next & (self.params.cq_entries - 1)) * CQE as u32;
        // SAFETY: a completion is aligned to its first word, and lies within the rings.
        let token = unsafe { AtomicU64::from_ptr(self.rings().add(at as usize).cast()) };
        let token = token.load(Ordering::Relaxed);
        let result = self.word(at + 8).load(Ordering::Relaxed) as i32;
        head.store(next.wrapping_add(1), Ordering::Release);
        Some((token, result))
    }

    /// Submits `submit` entries and waits for as many completions as `wait_for`. Returns how many
    /// entries the kernel took.
    pub(super) fn enter(&self, submit: u32, wait_for: u32) -> Result<u32, Errno> {
        let flags = match wait_for {
            0 => IoringEnterFlags::empty(),
            _ => IoringEnterFlags::GETEVENTS,
        };
        // SAFETY: the entries' memory is kept by the promise of `push`.
        unsafe { io_uring_enter(&self.fd, submit, wait_for, flags) }
    }

    fn rings(&self) -> *mut u8 {
        match &self.memory {
            RingMemory::Own { rings, .. } => rings.as_ptr(),
            RingMemory::Kernel { rings, .. } => rings.0,
        }
    }

    fn submissions(&self) -> *mut io_uring_sqe {
        match &self.memory {
            RingMemory::Own { submissions, .. } => submissions.as_ptr().cast(),
            RingMemory::Kernel { submissions, .. } => submissions.0.cast(),
        }
    }

    /// A word of the rings, by the offset that the kernel gave.
    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: aligned and inside the rings, by the kernel's figures.
        unsafe { AtomicU32::from_ptr(self.rings().add(offset as usize).cast()) }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        if let Self::Kernel { rings, submissions } = self {
            for (at, len) in [rings, submissions] {
                // SAFETY: the ring's own mapping, which nothing refers to any more.
                let _ = unsafe { munmap(at.cast(), *len) };
            }
        }
    }
}

/// `io_uring_setup` with the argument that marks a pager's ring: one more than the kernel reads.
///
/// Its ENOMEM is the limit on locked memory, against which the kernel counts the rings of all processes of
/// a user: it is returned as EPERM, and ENOMEM as a lack of mappings alone.
///
/// # Safety
/// Memory that the parameters name lives as long as the ring.
unsafe fn setup(entries: u32, params: &mut io_uring_params) -> Result<OwnedFd, Errno> {
    let at = std::ptr::from_mut(params).expose_provenance();
    let arguments = [entries as usize, at, 0, 0, 0, wired::PAGER_TAG as usize];
    // SAFETY: the kernel writes the parameters; for their memory the caller promises.
    let made = checked(unsafe { syscall6(SYS_IO_URING_SETUP, arguments) });
    let made = made.map_err(|errno| match errno {
        Errno::NOMEM => Errno::PERM,
        errno => errno,
    })?;
    // SAFETY: a descriptor that the kernel has just made.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io_uring::{IoringOp, io_uring_user_data};

    fn completes_in_order(mut ring: Ring) {
        for round in 0..5u64 {
            let mut pushed = 0;
            loop {
                let entry = io_uring_sqe {
                    opcode: IoringOp::Nop,
                    user_data: io_uring_user_data::from_u64(round << 32 | pushed),
                    ..io_uring_sqe::default()
                };
                // SAFETY: a no-op points to nothing.
                if !unsafe { ring.push(entry) } {
                    break;
                }
                pushed += 1;
            }
            assert_eq!(pushed, 8);
            assert_eq!(ring.enter(8, 8), Ok(8));
            for token in 0..8 {
                assert_eq!(ring.pop(), Some((round << 32 | token, 0)));
            }
            assert_eq!(ring.pop(), None);
        }
    }

    #[test]
    fn a_ring_of_either_memory_completes_what_is_submitted() {
        match Ring::in_memory_of_kernel(8) {
            Ok(ring) => completes_in_order(ring),
            Err(why) => return eprintln!("SKIPPED: no io_uring here: {why}"),
        }
        match Ring::in_own_memory(8) {
            Ok(ring) => completes_in_order(ring),
            Err(why) => eprintln!("SKIPPED: no ring in memory of its caller's: {why}"),
        }
    }

    #[test]
    fn the_kernel_puts_no_mapping_among_the_programs() {
        if Ring::in_own_memory(64).is_err() {
            return eprintln!("SKIPPED: no ring in memory of its caller's");
        }
        let ring = Ring::new(64).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(matches!(ring.memory, RingMemory::Own { .. }), "{maps}");
    }
}
