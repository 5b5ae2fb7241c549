//! Faults reach the pager, in both kinds, with and without privilege.

mod common;
use common::*;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use translation::userfault::open_device;
use translation::{EntryKind, Feature, OpenError, Userfault, UserfaultOptions, Wake};
use wired::PAGE;

/// Pages an area by upcall and touches it all; returns the number of upcalls.
fn page_by_upcall(userfault: Userfault, pages: usize) -> usize {
    let userfault: &'static Userfault = Box::leak(Box::new(userfault));
    let area: &'static Area = Box::leak(Box::new(Area::new(pages)));
    let upcalls: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    userfault
        .register(area.at(0), area.len(), true, false)
        .unwrap();
    on_upcall(area.at(0), area.len(), move |page| {
        upcalls.fetch_add(1, Ordering::Relaxed);
        let value = ((page - area.at(0)) / PAGE) as u8;
        userfault
            .copy(page, page_of(value).as_ptr(), PAGE, Wake::No)
            .unwrap();
    });
    for page in 0..pages {
        assert_eq!(load(area.at(page) + 17), page as u8);
    }
    upcalls.load(Ordering::Relaxed)
}

#[test]
fn an_upcall_resolves_each_fault_on_its_own_thread() {
    let userfault = Userfault::open(EntryKind::Upcall, &capabilities()).unwrap();
    assert!(!userfault.resolves_kernel_faults());
    assert_eq!(page_by_upcall(userfault, 16), 16);
}

#[test]
fn an_ordinary_user_pages_by_upcall() {
    if !is_root() {
        return skipped("already an ordinary user: the other tests cover it");
    }
    let capabilities = capabilities();
    let end = in_child(|| {
        become_nobody();
        page_by_upcall(
            Userfault::open(EntryKind::Upcall, &capabilities).unwrap(),
            16,
        ) as i32
    });
    assert_eq!(end, End::Exit(16));
}

#[test]
fn without_a_handler_an_upcall_ends_the_program() {
    let capabilities = capabilities();
    let end = in_child(|| {
        // SAFETY: the default action.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        let userfault = Userfault::open(EntryKind::Upcall, &capabilities).unwrap();
        let area = Area::new(1);
        userfault.register(area.at(0), PAGE, true, false).unwrap();
        load(area.at(0)).into()
    });
    assert_eq!(end, End::Signal(libc::SIGBUS));
}

/// A thread-kind descriptor whose area holds the page index in each page, and the last
/// faulting thread.
fn page_by_thread(userfault: Userfault, area: &Area) -> (Entry, Arc<AtomicU32>) {
    userfault
        .register(area.at(0), area.len(), true, false)
        .unwrap();
    let base = area.at(0);
    let last = Arc::new(AtomicU32::new(0));
    let seen = last.clone();
    let entry = Entry::new(Arc::new(userfault), move |userfault, fault| {
        seen.store(fault.thread, Ordering::Relaxed);
        let value = ((fault.addr - base) / PAGE) as u8;
        // The kernel may deliver the same fault twice.
        let _ = userfault.copy(fault.addr, page_of(value).as_ptr(), PAGE, Wake::Yes);
    });
    (entry, last)
}

#[test]
fn an_entry_thread_resolves_faults_of_loads_and_of_system_calls() {
    let userfault = match Userfault::open(EntryKind::Thread, &capabilities()) {
        Ok(userfault) => userfault,
        Err(refused) => return skipped(&refused.to_string()),
    };
    assert!(userfault.resolves_kernel_faults());
    let area = Area::new(4);
    let (_entry, last) = page_by_thread(userfault, &area);
    assert_eq!(load(area.at(1)), 1);
    assert_eq!(
        last.load(Ordering::Relaxed),
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    );
    assert!(kernel_reads(area.at(2)));
    assert_eq!(load(area.at(2)), 2);
}

#[test]
fn without_thread_ids_faults_name_no_thread() {
    let without = capabilities().without(Feature::ThreadId);
    let userfault = match Userfault::open(EntryKind::Thread, &without) {
        Ok(userfault) => userfault,
        Err(refused) => return skipped(&refused.to_string()),
    };
    let area = Area::new(4);
    let (_entry, last) = page_by_thread(userfault, &area);
    assert_eq!(load(area.at(3)), 3);
    assert_eq!(last.load(Ordering::Relaxed), 0);
}

#[test]
fn without_kernel_faults_the_thread_entry_is_refused_unless_asked_for_user_mode_only() {
    let without = capabilities().without(Feature::KernelFaults);
    let refused = Userfault::open(EntryKind::Thread, &without).unwrap_err();
    assert!(matches!(refused, OpenError::UserModeOnly { .. }));
    assert!(
        refused
            .to_string()
            .contains("sysctl -w vm.unprivileged_userfaultfd=1"),
        "{refused}"
    );
    let options = UserfaultOptions {
        user_mode_only: true,
        ..UserfaultOptions::default()
    };
    let userfault = Userfault::open_with(EntryKind::Thread, &without, options).unwrap();
    let area = Area::new(2);
    let (_entry, _) = page_by_thread(userfault, &area);
    assert_eq!(load(area.at(1)), 1);
    assert!(!kernel_reads(area.at(0)));
}

#[test]
fn without_upcalls_the_upcall_entry_is_refused() {
    let without = capabilities().without(Feature::Upcall);
    assert_eq!(
        Userfault::open(EntryKind::Upcall, &without).unwrap_err(),
        OpenError::Lacks(Feature::Upcall)
    );
}

#[test]
fn a_device_opened_before_setuid_gives_a_full_descriptor_after_it() {
    let device = match open_device() {
        Ok(device) => device,
        Err(errno) => return skipped(&format!("/dev/userfaultfd: {errno}")),
    };
    if !is_root() {
        return skipped("needs root, to drop it");
    }
    let capabilities = capabilities();
    let end = in_child(|| {
        become_nobody();
        assert!(matches!(
            Userfault::open(EntryKind::Thread, &capabilities),
            Err(OpenError::UserModeOnly { .. }) | Ok(_)
        ));
        let userfault = Userfault::from_device(
            device.as_fd(),
            EntryKind::Thread,
            &capabilities,
            UserfaultOptions::default(),
        )
        .unwrap();
        let area = Area::new(1);
        let (_entry, _) = page_by_thread(userfault, &area);
        i32::from(kernel_reads(area.at(0)))
    });
    assert_eq!(end, End::Exit(1));
}

#[test]
fn a_descriptor_works_after_transfer_as_a_plain_file_descriptor() {
    let capabilities = capabilities();
    let userfault = Userfault::open(EntryKind::Upcall, &capabilities).unwrap();
    let bare = rustix::fd::OwnedFd::from(userfault);
    let again = Userfault::from_owned(
        bare,
        EntryKind::Upcall,
        &capabilities,
        UserfaultOptions::default(),
    );
    assert_eq!(page_by_upcall(again, 2), 2);
}
