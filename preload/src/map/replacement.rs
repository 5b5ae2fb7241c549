//! Mappings at given addresses: the arena's pieces that lie there give way, or the call is refused.

use super::FIXED;
use crate::address_space::{self, AddressSpace};
use crate::paged_memory;
use crate::raw_syscall::{SyscallResult, error, is_error};
use crate::vma_map::{AddrRange, Lookup, MappedRange, MappingAttrs};
use std::ffi::c_int;

/// The kernel's error for MAP_FIXED_NOREPLACE over a mapping. Where there is none, the addresses
/// outside the arenas are claimed; an error gives those claimed back.
pub fn refuse_replacement(pieces: &[MappedRange], flags: c_int) -> Option<SyscallResult> {
    if flags & libc::MAP_FIXED_NOREPLACE == 0 {
        return None;
    }
    if pieces.iter().any(|p| matches!(p.state, Lookup::Used(..))) {
        return Some(error(libc::EEXIST));
    }
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    for (n, gap) in outside(pieces).enumerate() {
        let answer = address_space::map(gap.start, gap.len(), libc::PROT_NONE, flags, -1, 0);
        if is_error(answer) {
            outside(pieces).take(n).for_each(|gap| {
                address_space::unmap(gap);
            });
            return Some(answer);
        }
    }
    None
}

/// Gives back what [`refuse_replacement`] has claimed.
fn give_back_claims(pieces: &[MappedRange], flags: c_int) {
    if flags & libc::MAP_FIXED_NOREPLACE != 0 {
        outside(pieces).for_each(|gap| {
            address_space::unmap(gap);
        });
    }
}

/// The pieces outside the arenas.
fn outside(pieces: &[MappedRange]) -> impl Iterator<Item = &AddrRange> {
    let outside = pieces.iter().filter(|p| p.state == Lookup::Outside);
    outside.map(|p| &p.span)
}

/// Any other mapping at a given address: the arena gives way.
pub fn map_foreign(
    space: &mut AddressSpace,
    to: AddrRange,
    flags: c_int,
    map: impl Fn(usize, c_int) -> SyscallResult,
) -> SyscallResult {
    if !space.map.touches(&to) {
        return map(to.start, flags);
    }
    let pieces = space.map.lookup(&to);
    if let Some(refused) = refuse_replacement(&pieces, flags) {
        return refused;
    }
    // A mapping that fails must not destroy the old one: try it elsewhere first.
    let trial = map(0, flags & !FIXED);
    if is_error(trial) {
        give_back_claims(&pieces, flags);
        return trial;
    }
    displace(space, &pieces);
    let answer = map(to.start, flags & !FIXED | libc::MAP_FIXED);
    // Not before: a segment of shared memory may end with its last attachment.
    address_space::unmap(&(trial as usize..trial as usize + to.len()));
    if is_error(answer) {
        // What lay here is gone, as it may be after the kernel's own failed MAP_FIXED.
        for piece in space.map.lookup(&to) {
            if !matches!(piece.state, Lookup::Outside) {
                space.release(&piece);
            }
        }
    }
    answer
}

/// Other mappings take the place of the arena's pieces.
pub fn displace(space: &mut AddressSpace, pieces: &[MappedRange]) {
    for piece in pieces {
        if !piece.state.is_kernels() {
            paged_memory::surrender(&piece.span);
            crate::pthread::forget_nails(&piece.span);
            space.map.set(piece.span.clone(), MappingAttrs::FOREIGN);
        }
    }
}
