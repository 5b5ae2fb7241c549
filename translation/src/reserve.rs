//! Address space for stretches and for staging.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use wired::{HUGE_RANGE, PAGE};

/// Why no address space was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// The address range is mapped already.
    #[error(
        "the {len} bytes at {addr:#x} are partly mapped already; request another address or none"
    )]
    Taken {
        /// First byte asked for.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// The kernel refused.
    #[error(
        "cannot reserve {len} bytes of address space ({errno}); see `ulimit -v`, `ulimit -d` and vm.max_map_count"
    )]
    Refused {
        /// Bytes asked for.
        len: usize,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Private anonymous address space, without memory until touched. A plain value: released by
/// [`unmap_reservation`], not on drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// First byte.
    pub addr: usize,
    /// Bytes, whole pages.
    pub len: usize,
}

/// Reserves `len` bytes (rounded up to whole pages) at `addr_hint` exactly, or where the kernel
/// chooses. `writable` allows loads and stores, else neither. The reservation is not charged to the
/// kernel's commit limit and gets no huge pages: one would take 512 frames at a fault.
pub fn reserve(
    addr_hint: Option<usize>,
    len: usize,
    writable: bool,
) -> Result<Reservation, ReserveError> {
    let (hint, fixed) = match addr_hint {
        Some(addr) => (addr, MapFlags::FIXED_NOREPLACE),
        None => (0, MapFlags::empty()),
    };
    reserve_at(hint, fixed, len, writable)
}

/// Reserves `len` bytes for the pager's own use, apart from the program's memory.
pub fn reserve_apart(len: usize, writable: bool) -> Result<Reservation, ReserveError> {
    let hint = wired::address_apart(len).expose_provenance();
    reserve_at(hint, MapFlags::empty(), len, writable)
}

fn reserve_at(
    hint: usize,
    fixed: MapFlags,
    len: usize,
    writable: bool,
) -> Result<Reservation, ReserveError> {
    let refused = |errno| ReserveError::Refused { len, errno };
    if len == 0 {
        return Err(refused(Errno::INVAL));
    }
    let len = len
        .checked_next_multiple_of(PAGE)
        .ok_or(refused(Errno::NOMEM))?;
    let rights = if writable {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::empty()
    };
    let at = std::ptr::with_exposed_provenance_mut(hint);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
    // SAFETY: never replaces a mapping.
    let start = unsafe { mmap_anonymous(at, len, rights, flags) }.map_err(|errno| match errno {
        Errno::EXIST => ReserveError::Taken { addr: hint, len },
        _ => refused(errno),
    })?;
    let reservation = Reservation {
        addr: start.expose_provenance(),
        len,
    };
    // A kernel without huge pages refuses the advice and needs none.
    let _ = advise_no_huge(reservation.addr, len);
    Ok(reservation)
}

/// Reserves `len` bytes for staging slots, writable, aligned so that a huge page can move there
/// whole, with an inaccessible guard page on either side. The guards are needed: see
/// [`crate::stage`](mod@crate::stage) on neighbours.
pub fn reserve_staging(len: usize) -> Result<Reservation, ReserveError> {
    let refused = |errno| ReserveError::Refused { len, errno };
    let whole = len
        .checked_next_multiple_of(PAGE)
        .and_then(|len| len.checked_add(HUGE_RANGE + 2 * PAGE));
    let spacious = reserve_apart(whole.ok_or(refused(Errno::NOMEM))?, false)?;
    let addr = (spacious.addr + PAGE).next_multiple_of(HUGE_RANGE);
    let inner = Reservation {
        addr,
        len: spacious.len - HUGE_RANGE - 2 * PAGE,
    };
    trim(spacious, addr - PAGE..addr + inner.len + PAGE);
    // SAFETY: just reserved; no other code knows it.
    let opened = unsafe { crate::set_access(inner.addr, inner.len, crate::Access::READ_WRITE) };
    opened.map(|()| inner).map_err(|e| {
        // SAFETY: as above.
        let _ = unsafe { unmap_staging(inner) };
        refused(e.errno)
    })
}

/// Reserves `len` bytes (rounded up to whole ranges of 2 MiB) for a stretch of huge frames,
/// aligned to them; otherwise as [`reserve`] does, writable.
pub fn reserve_aligned(len: usize) -> Result<Reservation, ReserveError> {
    let refused = |errno| ReserveError::Refused { len, errno };
    let rounded = len
        .checked_next_multiple_of(HUGE_RANGE)
        .ok_or(refused(Errno::NOMEM))?;
    let spacious = reserve(
        None,
        rounded
            .checked_add(HUGE_RANGE)
            .ok_or(refused(Errno::NOMEM))?,
        true,
    )?;
    let addr = spacious.addr.next_multiple_of(HUGE_RANGE);
    trim(spacious, addr..addr + rounded);
    Ok(Reservation { addr, len: rounded })
}

/// Unmaps what lies outside `kept`.
fn trim(reservation: Reservation, kept: std::ops::Range<usize>) {
    let before = reservation.addr..kept.start;
    let after = kept.end..reservation.addr + reservation.len;
    for rest in [before, after].into_iter().filter(|r| !r.is_empty()) {
        // SAFETY: just reserved; no other code knows it. What stays mapped is only address space.
        let _ = unsafe {
            unmap_reservation(Reservation {
                addr: rest.start,
                len: rest.len(),
            })
        };
    }
}

/// Replaces a part of a reservation of [`reserve_staging`] by empty memory of the same kind, so
/// that several mappings become one with their neighbours.
///
/// # Safety
/// No code may use the old contents any more.
pub unsafe fn renew(addr: usize, len: usize) -> Result<(), Errno> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller's promise.
    unsafe { mmap_anonymous(at, len, rights, flags) }?;
    advise_no_huge(addr, len).or(Ok(()))
}

/// Unmaps a reservation of [`reserve_staging`], guards included.
///
/// # Safety
/// No code may use it any more.
pub unsafe fn unmap_staging(staging: Reservation) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        unmap_reservation(Reservation {
            addr: staging.addr - PAGE,
            len: staging.len + 2 * PAGE,
        })
    }
}

/// Unmaps a reservation.
///
/// # Safety
/// No code may use it any more.
pub unsafe fn unmap_reservation(reservation: Reservation) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        munmap(
            std::ptr::with_exposed_provenance_mut(reservation.addr),
            reservation.len,
        )
    }
}

/// Forbids huge pages, so that a fault takes one frame.
pub fn advise_no_huge(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no contents.
    unsafe {
        madvise(
            std::ptr::with_exposed_provenance_mut(addr),
            len,
            Advice::LinuxNoHugepage,
        )
    }
}

/// Requests huge pages where the kernel has them.
pub fn advise_huge(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no contents.
    unsafe {
        madvise(
            std::ptr::with_exposed_provenance_mut(addr),
            len,
            Advice::LinuxHugepage,
        )
    }
}
