//! Pages that a copy-on-write mapping copied, while no entry of the VTLB maps them.
//!
//! A copy is nowhere but in the page tables of its mapping. So before an entry is recycled its
//! copies go to a file of the mapping's own (a memfd, sparse, of the mapping's size), and come
//! back when a miss enters the piece again: into a mapping at addresses that no program code knows,
//! which then moves into place at once for all threads. All of it is system calls without
//! allocations. A hole of that file is a page that was not copied: it shows the object.

use crate::region::{Copies, Mapping, Region};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstat, seek};
use rustix::io::{Errno, pwrite};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use translation::{Access, Pagemap, TranslationError};
use wired::PAGE;

fn failed(operation: &'static str, piece: &Region) -> impl Fn(Errno) -> TranslationError {
    let (addr, len) = (piece.start, piece.end - piece.start);
    move |errno| TranslationError {
        operation,
        addr,
        len,
        errno,
    }
}

fn borrow(copies: &Copies) -> BorrowedFd<'_> {
    // SAFETY: the space keeps the file while a region or a piece has it.
    unsafe { BorrowedFd::borrow_raw(copies.file) }
}

/// Saves the copied pages of `piece`, which begins at `offset` of the object. Stores to the piece
/// fault from here on, and wait.
pub(crate) fn save(
    pagemap: &Pagemap,
    copies: Copies,
    offset: u64,
    piece: &Region,
) -> Result<u64, TranslationError> {
    let (addr, len) = (piece.start, piece.end - piece.start);
    // SAFETY: the region is the space's; a store that faults is repeated when the caller is done.
    unsafe { translation::set_access(addr, len, Access::READ) }?;
    let mut saved = Ok(0);
    let walked = pagemap.private_copies(addr, len, |page| {
        let from = std::ptr::with_exposed_provenance::<u8>(addr + page * PAGE);
        // SAFETY: a readable page that no thread can store to; a page that its object lost is no copy.
        let contents = unsafe { std::slice::from_raw_parts(from, PAGE) };
        let at = offset - copies.begin + (page * PAGE) as u64;
        saved = saved.and_then(|pages| match pwrite(borrow(&copies), contents, at) {
            Ok(PAGE) => Ok(pages + 1),
            Ok(_) => Err(Errno::NOSPC),
            Err(errno) => Err(errno),
        });
    });
    walked
        .and(saved)
        .map_err(failed("saving copied pages", piece))
}

/// Returns true if a page of `piece`, which begins at `offset` of the object, was saved.
pub(crate) fn has_copies(
    copies: Copies,
    offset: u64,
    piece: &Region,
) -> Result<bool, TranslationError> {
    let offset = offset - copies.begin;
    let end = offset + (piece.end - piece.start) as u64;
    match seek(borrow(&copies), SeekFrom::Data(offset)) {
        Ok(data) => Ok(data < end),
        Err(Errno::NXIO) => Ok(false),
        Err(errno) => Err(failed("looking for copied pages", piece)(errno)),
    }
}

/// Brings the saved pages of `piece` back to a writable mapping of it at `staging`. Returns how many.
/// Copies beyond the end of an object that was truncated are gone, as a private mapping's are.
pub(crate) fn restore(
    copies: Copies,
    mapping: &Mapping,
    piece: &Region,
    staging: usize,
) -> Result<u64, TranslationError> {
    let begin = mapping.offset - copies.begin;
    let whole = begin + (piece.end - piece.start) as u64;
    let restored = (|| {
        loop {
            let length = fstat(mapping.object())?.st_size as u64;
            let there = length.next_multiple_of(PAGE as u64);
            let end = there.saturating_sub(copies.begin).clamp(begin, whole);
            if end < whole {
                free(borrow(&copies), end, whole - end)?;
            }
            match restore_range(copies, begin..end, staging) {
                // The object was truncated again meanwhile.
                Err(Errno::FAULT) if fstat(mapping.object())?.st_size as u64 != length => {}
                restored => return restored,
            }
        }
    })();
    restored.map_err(failed("bringing copied pages back", piece))
}

/// Gives the memory of saved pages back: the pages show the object again.
pub(crate) fn free(file: BorrowedFd<'_>, offset: u64, len: u64) -> rustix::io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, flags, offset, len)
}

fn restore_range(copies: Copies, range: Range<u64>, staging: usize) -> rustix::io::Result<u64> {
    let (mut at, mut pages) = (range.start, 0);
    while at < range.end {
        let data = match seek(borrow(&copies), SeekFrom::Data(at)) {
            Ok(data) if data < range.end => data,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let hole = seek(borrow(&copies), SeekFrom::Hole(data))?;
        let bytes = (hole.min(range.end) - data) as usize;
        let to = staging + (data - range.start) as usize;
        let into = std::ptr::with_exposed_provenance_mut::<u8>(to);
        // SAFETY: inside the staging mapping, which is the VTLB's alone.
        let into = unsafe { std::slice::from_raw_parts_mut(into, bytes) };
        read_all(copies, into, data)?;
        pages += bytes.div_ceil(PAGE) as u64;
        at = hole;
    }
    Ok(pages)
}

fn read_all(copies: Copies, into: &mut [u8], offset: u64) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(borrow(&copies), &mut into[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(bytes) => done += bytes,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
