//! Staging a range with a hole. The only test of its program: another test's mapping could fill a
//! hole in the address space.

mod common;
use common::*;
use translation::{
    Access, EntryKind, StageError, StageResult, StagedRange, Userfault, Wake, set_access, stage,
    stage_across_mappings,
};
use wired::PAGE;

#[test]
fn a_range_across_mappings_is_refused_whole_and_goes_by_halves() {
    let userfault = Userfault::open(EntryKind::Upcall, &capabilities()).unwrap();
    let (area, slot) = (Area::new(16), Slot::new(16));
    userfault
        .register(area.at(0), area.len(), true, false)
        .unwrap();
    for page in 0..16 {
        userfault
            .copy(
                area.at(page),
                page_of(page as u8 + 1).as_ptr(),
                PAGE,
                Wake::No,
            )
            .unwrap();
    }
    // Page 5 gets other rights: a mapping of its own. Page 9 is not mapped at all.
    // SAFETY: the test's memory; page 9 is mapped again below.
    unsafe {
        set_access(area.at(5), PAGE, Access::READ).unwrap();
        rustix::mm::munmap(area.at(9) as *mut _, PAGE).unwrap();
        assert_eq!(
            stage(area.at(0), area.len(), slot.at(0)),
            Err(StageError::CrossesMappings)
        );
    }
    let mut pieces = Vec::<StagedRange>::new();
    // SAFETY: both are the test's.
    unsafe {
        stage_across_mappings(area.at(0), area.len(), slot.at(0), |piece| {
            pieces.push(piece)
        })
    };
    let mut next = 0;
    for piece in &pieces {
        assert_eq!(piece.offset, next, "parts cover the range in order");
        next += piece.len;
        let outcome = if piece.offset == 9 * PAGE {
            StageResult::NotMapped
        } else {
            StageResult::Moved
        };
        assert_eq!(piece.outcome, outcome);
    }
    assert_eq!(next, area.len());
    for page in (0..16).filter(|page| *page != 9) {
        assert_eq!(load(slot.at(page)), page as u8 + 1);
        assert!(!kernel_reads(area.at(page)));
    }
    // SAFETY: fills the hole for the area's own end.
    unsafe {
        rustix::mm::mmap_anonymous(
            area.at(9) as *mut _,
            PAGE,
            rustix::mm::ProtFlags::empty(),
            rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED_NOREPLACE,
        )
        .unwrap();
    }
}
