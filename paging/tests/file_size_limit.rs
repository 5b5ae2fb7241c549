//! A limit on the size of files, which memory shared between processes is to the kernel: an error, not the end of the process.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a child process of the test's own"
)]

use selfpage::Domain;

/// Bytes that a file may have: more than the ledger of few frames, less than that of many and than a store's tables.
const LIMIT: u64 = 256 << 10;

fn reason(frames: u32, store: Option<&str>) -> String {
    let builder = Domain::builder().frames(frames);
    let builder = match store {
        Some(store) => builder.store(store.parse().unwrap()),
        None => builder,
    };
    builder
        .build()
        .err()
        .map_or(String::new(), |error| error.to_string())
}

fn work() -> bool {
    let limit = libc::rlimit {
        rlim_cur: LIMIT,
        rlim_max: LIMIT,
    };
    assert_eq!(
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) },
        0
    );
    let reasons = [
        reason(64, None),
        reason(1 << 20, None),
        reason(64, Some("ram:64M")),
    ];
    println!("{reasons:#?}");
    reasons[0].is_empty()
        && reasons[1..]
            .iter()
            .all(|reason| reason.contains("ulimit -f"))
}

#[test]
fn a_domain_beyond_the_limit_on_the_size_of_files_is_an_error() {
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        unsafe { libc::_exit(i32::from(!work())) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "status {status:#x}"
    );
}
