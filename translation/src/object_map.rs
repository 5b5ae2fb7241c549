//! Mappings of memory objects: files and shared memory at addresses that the caller reserved.
//!
//! The paper of Rialto calls what the hardware maps a cache of the true description of a space
//! (section 3.1). On Linux an entry of that cache is a mapping of 2 MiB of an object, which has one
//! page of page tables; replacing it by inaccessible memory frees that page. Measured (`cargo run
//! --release -p space --example mapping_costs`, Linux 6.18): 16 GiB touched once in each 2 MiB have
//! 32,832 kB of page tables, and 64 kB after all ranges were hidden one by one.

use crate::protect::Access;
use crate::register::{TranslationError, failed};
use rustix::fd::BorrowedFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};

/// How stores to a mapping of an object behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A store changes the object.
    Shared,
    /// A store copies the page first. A page that was not stored to shows later changes of the object.
    CopyOnWrite,
}

fn rights(access: Access) -> ProtFlags {
    let mut rights = ProtFlags::empty();
    rights.set(ProtFlags::READ, access.read);
    rights.set(ProtFlags::WRITE, access.write);
    rights.set(ProtFlags::EXEC, access.execute);
    rights
}

/// Maps whole pages of an object over `addr..addr + len`.
///
/// # Safety
/// The range is the caller's, and no code may use what was there.
pub unsafe fn map_object(
    object: BorrowedFd<'_>,
    offset: u64,
    addr: usize,
    len: usize,
    access: Access,
    sharing: Sharing,
) -> Result<(), TranslationError> {
    let kind = match sharing {
        Sharing::Shared => MapFlags::SHARED,
        Sharing::CopyOnWrite => MapFlags::PRIVATE,
    };
    let flags = kind | MapFlags::NORESERVE | MapFlags::FIXED;
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller's promise.
    unsafe { mmap(at, len, rights(access), flags, object, offset) }
        .map(drop)
        .map_err(failed("mapping an object", addr, len))
}

/// Replaces what is mapped in `addr..addr + len` by inaccessible address space, and frees its page
/// tables.
///
/// # Safety
/// The range is the caller's, and no code may use what was there.
pub unsafe fn hide(addr: usize, len: usize) -> Result<(), TranslationError> {
    // SAFETY: the caller's promise.
    unsafe { map_anonymous(addr, len, ProtFlags::empty()) }.map_err(failed(
        "hiding a mapping",
        addr,
        len,
    ))
}

/// Maps zeros of the process's own over `addr..addr + len`, readable and writable.
///
/// # Safety
/// As for [`hide`].
pub unsafe fn map_scratch(addr: usize, len: usize) -> Result<(), TranslationError> {
    // SAFETY: the caller's promise.
    unsafe { map_anonymous(addr, len, ProtFlags::READ | ProtFlags::WRITE) }.map_err(failed(
        "mapping scratch pages",
        addr,
        len,
    ))
}

unsafe fn map_anonymous(addr: usize, len: usize, rights: ProtFlags) -> rustix::io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller's promise.
    unsafe { mmap_anonymous(at, len, rights, flags) }.map(drop)
}

/// Prepares a mapping of shared memory whose faults a userfaultfd is to receive: without huge pages,
/// of which a part cannot be evicted, and not in children of a fork, whose faults it does not receive.
///
/// # Safety
/// The mapping is the caller's.
pub unsafe fn prepare_for_pager(addr: usize, len: usize) -> Result<(), TranslationError> {
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller's promise. A kernel without huge pages refuses the advice.
    let _ = unsafe { madvise(at, len, Advice::LinuxNoHugepage) };
    // SAFETY: as above.
    unsafe { madvise(at, len, Advice::LinuxDontFork) }.map_err(failed(
        "keeping a mapping from children",
        addr,
        len,
    ))
}

/// Moves a mapping with its pages over `to..to + len`, at once for all threads. What stays at
/// `from` is an empty mapping of the same object.
///
/// # Safety
/// Both ranges are the caller's, and no code may use what was at `to`.
pub unsafe fn move_mapping(from: usize, len: usize, to: usize) -> Result<(), TranslationError> {
    // SAFETY: the caller's promise.
    unsafe { crate::stage::remap(from, len, to) }.map_err(failed("moving a mapping", from, len))
}

/// Brings the pages of a mapping in (Linux 5.14), for stores or for loads alone.
pub fn populate(addr: usize, len: usize, write: bool) -> Result<(), TranslationError> {
    let advice = match write {
        true => Advice::LinuxPopulateWrite,
        false => Advice::LinuxPopulateRead,
    };
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: has the effect of accesses, and changes no contents.
    unsafe { madvise(at, len, advice) }.map_err(failed("bringing pages in", addr, len))
}
