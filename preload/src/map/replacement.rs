//! Mappings at given addresses: the arena's pieces that lie there give way, or the call is refused.

use super::FIXED;
use crate::address_space::{self, AddressSpace};
use crate::paged_memory;
use crate::raw_syscall::{SyscallResult, error, is_error, syscall6};
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
    // A mapping that fails must not destroy the old one: the kernel makes it elsewhere. It counts once against
    // the limits of locked memory and of huge pages.
    let made = map(0, flags & !FIXED);
    if is_error(made) {
        give_back_claims(&pieces, flags);
        return made;
    }
    let answer = move_into_place(space, made as usize, &to);
    if is_error(answer) {
        address_space::unmap(&(made as usize..made as usize + to.len()));
        give_back_claims(&pieces, flags);
        // What lay here is gone, as it may be after the kernel's own failed MAP_FIXED.
        for piece in space.map.lookup(&to) {
            if !matches!(piece.state, Lookup::Outside) {
                space.release(&piece);
            }
        }
    }
    answer
}

/// Moves a mapping of the kernel's, as long as `to`, from `from` over what lies at `to`: the arena gives way.
pub fn move_into_place(space: &mut AddressSpace, from: usize, to: &AddrRange) -> SyscallResult {
    let pieces = space.map.lookup(to);
    displace(space, &pieces);
    let place = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    let args = [from, to.len(), to.len(), place, to.start, 0];
    // SAFETY: the target has given way, and what moves is what the program asked for.
    unsafe { syscall6(libc::SYS_mremap, args) }
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
