//! Paging where the kernel has less: each newer feature switched off.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{Capabilities, Counter, DirectIo, Domain, EntryKind, Feature, Paged};

const PAGE: usize = 4096;
const PAGES: usize = 2048;

fn pattern(page: usize, round: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round as u64
}

/// Two threads write and check their halves, several times over.
fn page_with(capabilities: Capabilities, entry: EntryKind, direct_io: DirectIo) {
    let domain = Domain::builder()
        .frames(256)
        .store("ram:32M".parse().unwrap())
        .entry(entry)
        .direct_io(direct_io)
        .capabilities(capabilities)
        .build()
        .unwrap();
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    std::thread::scope(|scope| {
        for half in unsafe { stretch.bytes_mut() }.chunks_mut(PAGES / 2 * PAGE) {
            scope.spawn(move || {
                for round in 0..4 {
                    for (page, bytes) in half.chunks_exact_mut(PAGE).enumerate() {
                        bytes[8..16].copy_from_slice(&pattern(page, round).to_le_bytes());
                    }
                    for (page, bytes) in half.chunks_exact(PAGE).enumerate() {
                        assert_eq!(
                            bytes[8..16],
                            pattern(page, round).to_le_bytes(),
                            "page {page}"
                        );
                    }
                }
            });
        }
    });
    assert!(domain.counters().get(Counter::PeakResidentPages) <= 256);
    assert!(domain.counters().get(Counter::Written) > 0);
}

fn all() -> Capabilities {
    Capabilities::probe_fast()
}

#[test]
fn nothing_is_lost_without_move_poison_thread_ids_batches_and_scans() {
    let least = [
        Feature::Move,
        Feature::Poison,
        Feature::ThreadId,
        Feature::BatchDiscard,
        Feature::PagemapScan,
        Feature::WpAsync,
    ]
    .into_iter()
    .fold(all(), Capabilities::without);
    for entry in [EntryKind::Upcall, EntryKind::Thread] {
        page_with(least, entry, DirectIo::PinnedOnly);
    }
}

#[test]
fn pins_are_found_without_scans_of_the_page_table() {
    if !all().has(Feature::Move) {
        println!("SKIPPED: this kernel has no UFFDIO_MOVE");
        return;
    }
    page_with(
        all().without(Feature::PagemapScan),
        EntryKind::Upcall,
        DirectIo::Anytime,
    );
}

#[test]
fn a_kernel_that_cannot_stage_is_refused_in_words() {
    let refused = Domain::builder()
        .frames(16)
        .capabilities(all().without(Feature::Stage))
        .build();
    let text = refused.err().unwrap().to_string();
    assert!(text.contains("lacks stage"), "{text}");
}

#[test]
fn an_entry_that_the_kernel_does_not_have_is_refused_in_words() {
    let refused = Domain::builder()
        .frames(16)
        .capabilities(all().without(Feature::Upcall))
        .build();
    let text = refused.err().unwrap().to_string();
    assert!(
        text.to_lowercase().contains("upcall") || text.contains("SIGBUS"),
        "{text}"
    );
}
