//! A lost page fails on access, with the marker and with the fallback.

mod common;
use common::*;
use translation::{Capabilities, EntryKind, Feature, MapError, PoisonMethod, Userfault, Wake};
use wired::PAGE;

fn each_way(test: impl Fn(&Capabilities, PoisonMethod)) {
    let capabilities = capabilities();
    if capabilities.has(Feature::Poison) {
        test(&capabilities, PoisonMethod::Marked);
    }
    test(
        &capabilities.without(Feature::Poison),
        PoisonMethod::Replaced,
    );
}

/// An area whose page 1 of 3 is poisoned.
fn poisoned(capabilities: &Capabilities, method: PoisonMethod) -> (Userfault, Area) {
    let userfault = Userfault::open(EntryKind::Upcall, capabilities).unwrap();
    let area = Area::new(3);
    userfault
        .register(area.at(0), area.len(), true, false)
        .unwrap();
    // SAFETY: a missing page, registered above.
    assert_eq!(unsafe { userfault.poison(area.at(1), PAGE) }, Ok(method));
    (userfault, area)
}

#[test]
fn a_poisoned_page_fails_in_system_calls_and_its_neighbours_stay_registered() {
    each_way(|capabilities, method| {
        let (userfault, area) = poisoned(capabilities, method);
        assert!(!kernel_reads(area.at(1)));
        for page in [0, 2] {
            assert!(!kernel_reads(area.at(page)));
            userfault
                .copy(area.at(page), page_of(4).as_ptr(), PAGE, Wake::No)
                .unwrap();
            assert_eq!(load(area.at(page)), 4);
        }
    });
}

#[test]
fn touching_a_poisoned_page_is_a_sigbus() {
    each_way(|capabilities, method| {
        let capabilities = *capabilities;
        let end = in_child(|| {
            let (_userfault, area) = poisoned(&capabilities, method);
            load(area.at(1)).into()
        });
        assert_eq!(end, End::Signal(libc::SIGBUS));
    });
}

#[test]
fn poison_taken_away_leaves_a_missing_page_that_can_be_mapped() {
    each_way(|capabilities, method| {
        let (userfault, area) = poisoned(capabilities, method);
        // SAFETY: poisoned above by `method`.
        unsafe { userfault.unpoison(area.at(1), PAGE, method, false) }.unwrap();
        assert!(!kernel_reads(area.at(1)));
        userfault
            .copy(area.at(1), page_of(8).as_ptr(), PAGE, Wake::No)
            .unwrap();
        assert_eq!(load(area.at(1)), 8);
    });
}

#[test]
fn a_page_marked_as_lost_cannot_be_mapped_over() {
    let capabilities = capabilities();
    if !capabilities.has(Feature::Poison) {
        return skipped("the kernel has no UFFDIO_POISON");
    }
    let (userfault, area) = poisoned(&capabilities, PoisonMethod::Marked);
    assert_eq!(
        userfault.zero(area.at(1), PAGE, Wake::No),
        Err(MapError::Exists { done: 0 })
    );
}

#[test]
fn a_thread_that_waits_for_a_lost_page_gets_sigbus() {
    each_way(|capabilities, _| {
        let userfault = match Userfault::open(EntryKind::Thread, capabilities) {
            Ok(userfault) => userfault,
            Err(refused) => return skipped(&refused.to_string()),
        };
        let area = Area::new(1);
        userfault.register(area.at(0), PAGE, true, false).unwrap();
        let _entry = Entry::new(std::sync::Arc::new(userfault), |userfault, fault| {
            // SAFETY: a thread waits for the page, which is missing.
            unsafe { userfault.poison(fault.addr, PAGE) }.unwrap();
        });
        assert!(!kernel_reads(area.at(0)));
    });
}
