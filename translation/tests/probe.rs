//! The probe reports the same features to every user that this user may use.

mod common;
use common::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use translation::{Capabilities, EntryKind, Errno, Feature, UffdSource, Userfault};

/// One test at a time: a fork shares the pages of a trial that runs beside it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn both_probes_agree_on_what_the_pager_starts_with() {
    let _alone = alone();
    let full = Capabilities::probe().capabilities;
    assert_eq!(Capabilities::probe_fast(), full.without(Feature::WpAsync));
}

#[test]
fn every_feature_works_or_is_reported_missing() {
    let _alone = alone();
    let probe = Capabilities::probe();
    for feature in Feature::ALL {
        let lack = probe.missing.iter().find(|lack| lack.feature == feature);
        assert_eq!(lack.is_none(), probe.capabilities.has(feature), "{feature}");
    }
}

#[test]
fn a_probe_leaves_nothing_behind() {
    let _alone = alone();
    let end = in_child(|| {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mappings = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .lines()
                .count()
        };
        // Libraries keep what they map at first use.
        drop(Capabilities::probe());
        let before = (open(), mappings());
        drop(Capabilities::probe());
        Capabilities::probe_fast();
        i32::from(before != (open(), mappings()))
    });
    assert_eq!(end, End::Exit(0));
}

#[test]
fn an_ordinary_user_pages_by_upcall_and_lacks_privileged_features() {
    let _alone = alone();
    if !is_root() {
        return skipped("needs root, to drop it");
    }
    let sysctl =
        std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let end = in_child(|| {
        become_nobody();
        let denied = |errno| matches!(errno, Errno::PERM | Errno::ACCESS);
        let probe = Capabilities::probe();
        assert!(probe.capabilities.has(Feature::Upcall) && probe.capabilities.has(Feature::Stage));
        if sysctl.trim() == "0" && probe.source != UffdSource::Device {
            assert_eq!(probe.source, UffdSource::UserModeOnly);
            let lack = probe
                .missing
                .iter()
                .find(|l| l.feature == Feature::KernelFaults)
                .unwrap();
            assert!(denied(lack.errno));
        }
        0
    });
    assert_eq!(end, End::Exit(0));
}

#[test]
fn where_userfaultfd_is_forbidden_opening_it_names_the_reason() {
    let _alone = alone();
    let end = in_child(|| {
        forbid_userfaultfd();
        let probe = Capabilities::probe();
        assert_eq!(probe.source, UffdSource::Nothing);
        assert!(
            !probe.capabilities.has(Feature::Upcall) && !probe.capabilities.has(Feature::Stage)
        );
        let refused = Userfault::open(EntryKind::Upcall, &Capabilities::NONE.with(Feature::Upcall))
            .unwrap_err();
        assert!(refused.to_string().contains("seccomp"));
        0
    });
    assert_eq!(end, End::Exit(0));
}

/// A kernel of 6.1 has neither of the two calls that the first trials make.
#[test]
fn features_that_an_older_kernel_lacks_hide_no_others() {
    let _alone = alone();
    let end = in_child(|| {
        let whole = Capabilities::probe_fast();
        forbid(
            &[
                (libc::SYS_process_madvise, None),
                (libc::SYS_ioctl, Some(PAGEMAP_SCAN)),
            ],
            libc::EBADF,
        );
        let older = whole
            .without(Feature::BatchDiscard)
            .without(Feature::PagemapScan);
        assert_eq!(Capabilities::probe_fast(), older);
        0
    });
    assert_eq!(end, End::Exit(0));
}

const USERFAULTFD_IOC_NEW: u32 = 0xAA00;
const PAGEMAP_SCAN: u32 = 0xC060_6610;

/// Like the default filter of containers: EPERM, from the call and the device.
fn forbid_userfaultfd() {
    forbid(
        &[
            (libc::SYS_userfaultfd, None),
            (libc::SYS_ioctl, Some(USERFAULTFD_IOC_NEW)),
        ],
        libc::EPERM,
    );
}

/// Has each of `calls` fail with `errno`; one with a request, where that is its second argument.
fn forbid(calls: &[(libc::c_long, Option<u32>)], errno: i32) {
    let statement = |code, k| libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let equals = |k, jf| libc::sock_filter {
        code: 0x15,
        jt: 0,
        jf,
        k,
    };
    let mut program = Vec::new();
    for (call, request) in calls {
        program.push(statement(0x20, 0));
        if let Some(request) = request {
            program.push(equals(*call as u32, 3));
            // The low half of the second argument.
            program.push(statement(0x20, 24));
            program.push(equals(*request, 1));
        } else {
            program.push(equals(*call as u32, 1));
        }
        program.push(statement(0x06, libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    program.push(statement(0x06, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: a valid program.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter),
            0
        );
    }
}
