//! Trans on the real kernel: the scan and its fallback agree.

mod common;
use common::*;
use translation::{
    Access, Capabilities, EntryKind, Feature, Pagemap, ReserveError, Translation, Userfault,
    UserfaultOptions, Wake, open_access, reserve, set_access,
};
use wired::PAGE;

/// `pkey_alloc`: a thread has no access to memory of the key until it gives itself some.
const PKEY_DISABLE_ACCESS: libc::c_int = 1;

fn each_way(test: impl Fn(&Capabilities)) {
    test(&capabilities());
    test(&capabilities().without(Feature::PagemapScan));
}

#[test]
fn pages_with_contents_are_found_by_scan_and_by_reading() {
    each_way(|capabilities| {
        let pagemap = Pagemap::open(capabilities).unwrap();
        let area = Area::new(700);
        // More runs than one scan returns, and runs across words and reads.
        let there = |page: usize| page % 5 == 1 || (250..330).contains(&page) || page > 690;
        (0..700)
            .filter(|p| there(*p))
            .for_each(|p| store(area.at(p), 1));
        let mut bitmap = [!0; 11];
        let count = pagemap
            .present_pages(area.at(0), area.len(), &mut bitmap)
            .unwrap();
        assert_eq!(count, (0..700).filter(|p| there(*p)).count());
        for page in 0..700 {
            assert_eq!(
                bitmap[page / 64] >> (page % 64) & 1 == 1,
                there(page),
                "page {page}"
            );
        }
    });
}

#[test]
fn a_translation_shows_what_is_mapped() {
    each_way(|capabilities| {
        let pagemap = Pagemap::open(capabilities).unwrap();
        let userfault = Userfault::open(EntryKind::Upcall, capabilities).unwrap();
        let area = Area::new(2);
        userfault
            .register(area.at(0), area.len(), true, true)
            .unwrap();
        assert_eq!(pagemap.trans(area.at(0)), Ok(Translation::default()));
        userfault
            .copy(area.at(0), page_of(1).as_ptr(), PAGE, Wake::No)
            .unwrap();
        let mapped = Translation {
            present: true,
            ..Translation::default()
        };
        assert_eq!(pagemap.trans(area.at(0) + 100), Ok(mapped));
        userfault.write_protect(area.at(0), PAGE, true).unwrap();
        assert_eq!(
            pagemap.trans(area.at(0)),
            Ok(Translation {
                write_protected: true,
                ..mapped
            })
        );
        userfault.write_protect(area.at(0), PAGE, false).unwrap();
        assert_eq!(pagemap.trans(area.at(0)), Ok(mapped));
    });
}

#[test]
fn a_page_of_a_file_differs_from_private_memory() {
    let (shared, _fd) = wired::WiredMemory::shared(PAGE, "selfpage-test").unwrap();
    let at = shared.as_ptr() as usize;
    store(at, 1);
    let trans = Pagemap::open(&capabilities()).unwrap().trans(at).unwrap();
    assert!(trans.present && trans.file_or_shared);
}

#[test]
fn stores_are_tracked_where_the_kernel_resolves_protection() {
    let capabilities = capabilities();
    let options = UserfaultOptions {
        async_write_protect: true,
        ..UserfaultOptions::default()
    };
    let userfault = match Userfault::open_with(EntryKind::Upcall, &capabilities, options) {
        Ok(userfault) => userfault,
        Err(refused) => return skipped(&refused.to_string()),
    };
    let pagemap = Pagemap::open(&capabilities).unwrap();
    let area = Area::new(4);
    (0..4).for_each(|p| store(area.at(p), 1));
    userfault
        .register(area.at(0), area.len(), false, true)
        .unwrap();
    userfault
        .write_protect(area.at(0), area.len(), true)
        .unwrap();
    store(area.at(2), 2);
    assert_eq!(pagemap.trans(area.at(2)).unwrap().dirty, Some(true));
    assert_eq!(pagemap.trans(area.at(1)).unwrap().dirty, Some(false));
    store(area.at(3), 3);
    assert_eq!(pagemap.trans(area.at(3)).unwrap().dirty, Some(true));
}

#[test]
fn without_the_features_tracking_stores_is_an_error() {
    let capabilities = capabilities();
    let options = UserfaultOptions {
        async_write_protect: true,
        ..UserfaultOptions::default()
    };
    let refused = Userfault::open_with(
        EntryKind::Upcall,
        &capabilities.without(Feature::WpAsync),
        options,
    );
    assert!(refused.is_err());
    let pagemap = Pagemap::open(&capabilities.without(Feature::PagemapScan)).unwrap();
    let area = Area::new(1);
    assert_eq!(pagemap.trans(area.at(0)).unwrap().dirty, None);
}

#[test]
fn rights_hold_and_come_back() {
    let area = Area::new(1);
    store(area.at(0), 3);
    let read = |access| {
        // SAFETY: the test's memory.
        unsafe { set_access(area.at(0), PAGE, access) }.unwrap();
        kernel_reads(area.at(0))
    };
    assert!(!read(Access::NONE));
    assert!(read(Access::READ));
    assert!(read(Access::READ_WRITE));
    assert_eq!(load(area.at(0)), 3);
}

#[test]
fn a_store_without_the_right_is_a_fault() {
    let end = in_child(|| {
        let area = Area::new(1);
        // SAFETY: the default action; the test's memory.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            set_access(area.at(0), PAGE, Access::READ).unwrap();
        }
        store(area.at(0), 1);
        0
    });
    assert_eq!(end, End::Signal(libc::SIGSEGV));
}

#[test]
fn open_access_overrides_any_rights_and_keys() {
    let area = Area::new(1);
    store(area.at(0), 6);
    // SAFETY: the test's memory.
    unsafe {
        set_access(area.at(0), PAGE, Access::NONE).unwrap();
        open_access(area.at(0), PAGE).unwrap();
    }
    assert_eq!(load(area.at(0)), 6);
    // SAFETY: no memory carries the key yet; the rights are the calling thread's.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, PKEY_DISABLE_ACCESS) };
    if key < 0 {
        return skipped("this processor has no protection keys, or all are taken");
    }
    // SAFETY: the test's memory.
    unsafe {
        let prot = libc::PROT_READ as usize;
        let with_key = libc::syscall(libc::SYS_pkey_mprotect, area.at(0), PAGE, prot, key);
        assert_eq!(with_key, 0);
        assert!(!kernel_reads(area.at(0)));
        open_access(area.at(0), PAGE).unwrap();
    }
    store(area.at(0), 7);
    assert_eq!(load(area.at(0)), 7);
    // SAFETY: no memory carries the key any more.
    unsafe { libc::syscall(libc::SYS_pkey_free, key) };
}

#[test]
fn a_reservation_at_an_address_never_replaces_a_mapping() {
    let area = Area::new(4);
    let wanted = area.at(0);
    assert_eq!(
        reserve(Some(wanted), PAGE, true),
        Err(ReserveError::Taken {
            addr: wanted,
            len: PAGE
        })
    );
    drop(area);
    // Far from what other tests map.
    let far = 0x2000_0000_0000;
    let got = reserve(Some(far), 10, false).unwrap();
    assert_eq!((got.addr, got.len), (far, PAGE));
    assert!(!kernel_reads(far));
    // SAFETY: the test's own.
    unsafe { translation::unmap_reservation(got) }.unwrap();
    assert!(matches!(
        reserve(None, 0, true),
        Err(ReserveError::Refused { .. })
    ));
    assert!(matches!(
        reserve(None, usize::MAX, true),
        Err(ReserveError::Refused { .. })
    ));
}
