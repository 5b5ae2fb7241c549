//! Takes over memory that exists before the constructor: the program's zero-initialised data,
//! a heap of the loader's.
//!
//! What the kernel or the pager itself needs at any moment stays as it is: stacks, the
//! main thread's control block, the library's own tables, and mappings so small that
//! paging them gives nothing back. The kernel makes one mapping of a library's zero-initialised data and anonymous memory
//! that the loader has mapped behind it: this library's own, the C library's and the loader's are cut out.

use crate::address_space::{RW, WORTH_ADOPTING};
use crate::maps_file::{MapsLine, for_each_mapping};
use crate::vma_map::{AddrRange, MappingAttrs};
use crate::{address_space, early_alloc, library_data, paged_memory, pager_process, process_pager};
use selfpage::embedding::ProcessError;

/// Most mappings adopted; a program has a handful that are large enough.
const MAX_CANDIDATES: usize = 64;

/// The mappings that may be adopted.
pub struct Candidates {
    spans: [(usize, usize); MAX_CANDIDATES],
    count: usize,
}

/// Finds the mappings to adopt. Among the constructor's first steps: the library's own tables are
/// mapped later and look the same.
pub fn find_candidates() -> Candidates {
    let [own, c_library, loader] = library_data::libraries();
    let kept = [own, c_library, loader, early_alloc::span()];
    let mut found = Candidates {
        spans: [(0, 0); MAX_CANDIDATES],
        count: 0,
    };
    // What is not listed stays the kernel's.
    let _ = for_each_mapping(|mapping| {
        let span = candidate(mapping).filter(|it| !it.contains(&pager_process::thread_pointer()));
        let Some(span) = span else { return };
        each_rest(span, &kept, |rest| {
            if rest.len() >= WORTH_ADOPTING && found.count < MAX_CANDIDATES {
                found.spans[found.count] = (rest.start, rest.end);
                found.count += 1;
            }
        });
    });
    found
}

/// Calls `take` for each part of `span` that is in none of `kept`.
fn each_rest(span: AddrRange, kept: &[AddrRange], mut take: impl FnMut(AddrRange)) {
    let mut at = span.start;
    while at < span.end {
        let ahead = kept.iter().filter(|it| !it.is_empty() && it.end > at);
        let next = ahead.min_by_key(|it| it.start);
        let end = next.map_or(span.end, |it| it.start.clamp(at, span.end));
        if end > at {
            take(at..end);
        }
        at = next.map_or(span.end, |it| it.end);
    }
}

/// Adopts the mappings found.
///
/// # Errors
/// Contents of one were given up: the program is not to start.
pub fn adopt_all(found: &Candidates) -> Result<(), ProcessError> {
    // Where it cannot be known what they contain, all stay the kernel's.
    if process_pager::get().is_some_and(|pager| !pager.process.knows_contents()) {
        return Ok(());
    }
    for (start, end) in &found.spans[..found.count] {
        let span = *start..*end;
        let space = &mut address_space::lock();
        if space.map.touches(&span) {
            continue;
        }
        match paged_memory::adopt(&span) {
            Ok(()) => space.map.add_adopted(span, MappingAttrs::paged(RW)),
            Err(error @ ProcessError::Charge { .. }) => return Err(error),
            // It stays the kernel's.
            Err(_) => {}
        }
    }
    Ok(())
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
    fn what_is_kept_is_cut_out() {
        let rest = |kept: &[(usize, usize)]| {
            let kept: Vec<_> = kept.iter().map(|(start, end)| *start..*end).collect();
            let mut found = Vec::new();
            each_rest(10..20, &kept, |rest| found.push((rest.start, rest.end)));
            found
        };
        assert_eq!(rest(&[]), [(10, 20)]);
        assert_eq!(rest(&[(0, 0), (20, 30), (5, 10)]), [(10, 20)]);
        assert_eq!(rest(&[(15, 30), (0, 12)]), [(12, 15)]);
        let pieces = [(10, 11), (15, 17), (18, 20)];
        assert_eq!(rest(&[(12, 13), (11, 15), (17, 18)]), pieces);
        assert_eq!(rest(&[(0, 30)]), []);
    }

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
