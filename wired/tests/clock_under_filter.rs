//! A process that filters its system calls reads the clock without one.

use wired::clock;

/// Fails with EPERM.
const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// Refuses the calls that find the vDSO, and kills a process that reads the clock by a system call.
fn filter() {
    let (load, equal, answer) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let step = |code: u32, skip: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: skip,
        k,
    };
    // The number of a call is the first word of a filter's data.
    let mut steps = [
        step(load, 0, 0),
        step(equal, 1, libc::SYS_clock_gettime as u32),
        step(answer, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(equal, 1, libc::SYS_openat as u32),
        step(answer, 0, REFUSED),
        step(equal, 1, libc::SYS_open as u32),
        step(answer, 0, REFUSED),
        step(equal, 1, libc::SYS_prctl as u32),
        step(answer, 0, REFUSED),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: a filter that outlives the call.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program);
    }
}

/// Runs a child, and returns true if it exits and was not killed.
fn survives(child: impl FnOnce()) -> bool {
    // SAFETY: the child calls nothing that another thread may hold.
    match unsafe { libc::fork() } {
        0 => {
            child();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: a child of this process and a local word.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            status == 0
        }
    }
}

#[test]
fn a_clock_that_is_prepared_needs_no_system_call() {
    let library_reads = || {
        filter();
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: a local structure.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    };
    if !survives(library_reads) {
        eprintln!("SKIPPED: this kernel's clock source cannot be read in user space");
        return;
    }
    assert!(survives(|| {
        clock::prepare();
        filter();
        let first = clock::now();
        assert!(clock::now() >= first);
    }));
    // This process has not read the clock, so that its child finds no vDSO.
    assert!(!survives(|| {
        filter();
        clock::now();
    }));
}
