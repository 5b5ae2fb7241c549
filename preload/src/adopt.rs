//! Takes over memory that exists before the constructor: the program's zero-initialised data,
//! a heap of the loader's.
//!
//! What the kernel or the pager itself needs at any moment stays as it is: stacks, the
//! main thread's control block, the library's own tables, and mappings so small that
//! paging them gives nothing back.

use crate::address_space::{RW, WORTH_ADOPTING};
use crate::maps_file::{MapsLine, for_each_mapping};
use crate::vma_map::{AddrRange, MappingAttrs};
use crate::{address_space, early_alloc, paged_memory, pager_process};

/// A byte of the library's own data: the mapping that holds it is not adopted.
static OWN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Most mappings adopted; a program has a handful that are large enough.
const MAX_CANDIDATES: usize = 64;

/// The mappings that may be adopted.
pub struct Candidates {
    spans: [(usize, usize); MAX_CANDIDATES],
    count: usize,
}

/// Finds the mappings to adopt. The constructor's first step: the library's own tables are
/// mapped later and look the same.
pub fn find_candidates() -> Candidates {
    let keep_out = [
        pager_process::thread_pointer(),
        std::ptr::from_ref(&OWN) as usize,
    ];
    let mut found = Candidates {
        spans: [(0, 0); MAX_CANDIDATES],
        count: 0,
    };
    for_each_mapping(|mapping| {
        let Some(span) = candidate(mapping) else {
            return;
        };
        let kept_out = keep_out.iter().any(|addr| span.contains(addr));
        if !kept_out && !early_alloc::owns(span.start as *const u8) && found.count < MAX_CANDIDATES
        {
            found.spans[found.count] = (span.start, span.end);
            found.count += 1;
        }
    });
    found
}

/// Adopts the mappings found.
pub fn adopt_all(found: &Candidates) {
    for (start, end) in &found.spans[..found.count] {
        let span = *start..*end;
        let space = &mut address_space::lock();
        if !space.map.touches(&span) && paged_memory::adopt(&span).is_ok() {
            space.map.add_adopted(span, MappingAttrs::paged(RW));
        }
    }
}

/// The addresses of a mapping, if it is private anonymous memory that can be read and written and is worth having.
fn candidate(mapping: &MapsLine<'_>) -> Option<AddrRange> {
    let MapsLine {
        span,
        access,
        inode,
        name,
        ..
    } = mapping;
    let ours = *access == "rw-p" && *inode == 0 && (name.is_empty() || *name == "[heap]");
    (ours && span.len() >= WORTH_ADOPTING).then(|| span.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_private_anonymous_writeable_mappings_are_candidates() {
        let line = |s: &str| MapsLine::parse(s.as_bytes()).and_then(|mapping| candidate(&mapping));
        assert_eq!(
            line("7f0000000000-7f0000100000 rw-p 00000000 00:00 0 "),
            Some(0x7f00_0000_0000..0x7f00_0010_0000)
        );
        assert!(
            line("55f000000000-55f000021000 rw-p 00000000 00:00 0                          [heap]")
                .is_some()
        );
        assert!(
            line(
                "7ffd00000000-7ffd00100000 rw-p 00000000 00:00 0                          [stack]"
            )
            .is_none()
        );
        assert!(line("7f0000000000-7f0000100000 r--p 00000000 00:00 0 ").is_none());
        assert!(
            line("7f0000000000-7f0000100000 rw-s 00000000 00:01 9 /dev/zero (deleted)").is_none()
        );
        assert!(line("7f0000000000-7f0000100000 rw-p 00001000 fe:00 77 /lib/x.so").is_none());
        assert!(line("7f0000000000-7f0000002000 rw-p 00000000 00:00 0 ").is_none());
        assert!(line("").is_none());
    }
}
