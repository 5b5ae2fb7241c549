//! The failure that a program sees when a page cannot be brought in, and what works without
//! privilege: in processes of their own, since the failure may end them.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the test's own stretch")]

use selfpage::{DirectIo, Domain, Paged, Stretch};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};

const PAGE: usize = 4096;
const ROLE: &str = "SELFPAGE_TEST_ROLE";

fn domain(frames: u32, store: &str) -> Domain {
    let store = store.replace(
        "PATH",
        &format!("/tmp/selfpage-told-{}", std::process::id()),
    );
    Domain::builder()
        .frames(frames)
        .store(store.parse().unwrap())
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap()
}

fn noise(bytes: &mut [u8], seed: usize) {
    fastrand::Rng::with_seed(seed as u64).fill(bytes);
}

/// Runs this test binary again in a role, as another user on request.
fn run(role: &str, unprivileged: bool) -> Output {
    let here = std::env::current_exe().unwrap();
    let place = tempfile::tempdir().unwrap();
    // Another user may not reach where the test was built.
    let program = if unprivileged {
        let copy = place.path().join("program");
        std::fs::copy(&here, &copy).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(place.path(), open).unwrap();
        copy
    } else {
        here
    };
    let mut command = Command::new(program);
    command
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, role)
        .current_dir("/tmp");
    if unprivileged {
        command.gid(65534).uid(65534);
    }
    loop {
        match command.output() {
            // Another test forked while the copy was being written, and has not exec'd yet.
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {
                std::thread::yield_now();
            }
            output => return output.unwrap(),
        }
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// What the processes that the tests start do.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("full") => full(),
        Ok("flipped") => flipped(),
        Ok("failing") => failing(),
        Ok("ordinary") => ordinary(),
        Ok("blocked") => blocked(),
        Ok("own handler") => own_handler(),
        Ok("forked") => forked(),
        _ => {}
    }
}

static RESIDENT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static FILLED: AtomicUsize = AtomicUsize::new(0);

/// Ends the process with 42 if every page that was written before the SIGBUS is there.
extern "C" fn check_and_exit(_: i32) {
    // A page that cannot be read back ends the process.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let base = RESIDENT.load(Ordering::Relaxed);
    for page in 0..FILLED.load(Ordering::Relaxed) {
        let mut expected = [0; PAGE];
        noise(&mut expected, page);
        let found = unsafe { std::slice::from_raw_parts(base.add(page * PAGE), PAGE) };
        if found != expected {
            unsafe { libc::_exit(43) };
        }
    }
    unsafe { libc::_exit(42) };
}

fn fill_until_told(stretch: &Stretch) {
    unsafe { libc::signal(libc::SIGBUS, check_and_exit as *const () as usize) };
    RESIDENT.store(stretch.as_ptr(), Ordering::Relaxed);
    for page in 0..stretch.pages() {
        noise(
            unsafe { &mut stretch.bytes_mut()[page * PAGE..(page + 1) * PAGE] },
            page,
        );
        FILLED.store(page + 1, Ordering::Relaxed);
    }
}

fn full() {
    let domain = domain(64, "ram:1M");
    let stretch = domain.allocate(4096 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    fill_until_told(&stretch);
}

#[test]
fn a_store_that_is_full_is_told_at_the_access_and_what_was_written_is_there() {
    let output = run("full", false);
    assert_eq!(output.status.code(), Some(42), "{}", text(&output));
    assert!(
        text(&output).contains("the store is full"),
        "{}",
        text(&output)
    );
}

fn failing() {
    let domain = domain(64, "disk:PATH,size=64M,fail=eio@3");
    let stretch = domain.allocate(4096 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    fill_until_told(&stretch);
}

#[test]
fn a_disk_that_fails_is_told_at_the_access_that_needs_it() {
    let output = run("failing", false);
    let told = text(&output);
    // Pages written before the disk failed cannot be read back either: 42 is for those
    // that can, and a read that fails ends the process by SIGBUS within the handler.
    assert!(
        output.status.code() == Some(42) || output.status.signal() == Some(libc::SIGBUS),
        "{told}"
    );
    assert!(told.contains("of the store failed"), "{told}");
}

fn flipped() {
    let domain = domain(64, "disk:PATH,size=64M");
    let stretch = domain.allocate(512 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    for page in 0..512 {
        noise(
            unsafe { &mut stretch.bytes_mut()[page * PAGE..(page + 1) * PAGE] },
            page,
        );
    }
    domain.store().unwrap().inject(store::FaultPlan {
        fail: Some((store::InjectedFault::Flip, 0, u64::MAX)),
        slow: None,
    });
    let mut sum = 0u64;
    for page in 0..512 {
        sum += u64::from(unsafe { stretch.bytes() }[page * PAGE]);
    }
    println!("read wrong data: {sum}");
}

#[test]
fn a_page_that_is_not_what_was_written_is_never_handed_out() {
    let output = run("flipped", false);
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGBUS),
        "{}",
        text(&output)
    );
    assert!(
        text(&output).contains("checksum mismatch"),
        "{}",
        text(&output)
    );
    assert!(!text(&output).contains("read wrong data"));
}

fn ordinary() {
    assert_ne!(unsafe { libc::geteuid() }, 0);
    let domain = domain(64, "ram:16M+disk:PATH,size=16M");
    let stretch = domain.allocate(4096 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    for page in 0..4096 {
        noise(
            unsafe { &mut stretch.bytes_mut()[page * PAGE..(page + 1) * PAGE] },
            page,
        );
    }
    let mut expected = [0; PAGE];
    for page in 0..4096 {
        noise(&mut expected, page);
        assert!(unsafe { stretch.bytes() }[page * PAGE..(page + 1) * PAGE] == expected);
    }
    println!("paged as {}", unsafe { libc::geteuid() });
}

#[test]
fn an_ordinary_user_pages_with_no_privilege_at_all() {
    if unsafe { libc::geteuid() } != 0 {
        // Then every other test of this crate has shown it.
        ordinary();
        return;
    }
    let output = run("ordinary", true);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("paged as 65534"));
}

fn block_all() {
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        assert_eq!(
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()),
            0
        );
        assert_eq!(
            libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut()),
            0
        );
    }
}

/// Of two threads, one blocks all signals before the first domain exists.
fn blocked() {
    let (before, made) = (Barrier::new(2), OnceLock::new());
    let write = |pages: std::ops::Range<usize>| {
        let stretch: &Stretch = made.wait();
        for page in pages {
            let at = page * PAGE;
            noise(unsafe { &mut stretch.bytes_mut()[at..at + PAGE] }, page);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_all();
            before.wait();
            write(0..512);
        });
        before.wait();
        let domain = domain(64, "ram:16M");
        let stretch = domain.allocate(1024 * PAGE).unwrap();
        stretch.bind(Paged).unwrap();
        assert!(made.set(stretch).is_ok());
        scope.spawn(|| {
            block_all();
            write(512..1024);
        });
    });
    println!("all pages written");
}

#[test]
fn an_upcall_reaches_a_thread_that_blocks_all_signals() {
    let output = run("blocked", false);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("all pages written"));
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn map_something(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
    let page = unsafe { (*info).si_addr() } as usize & !(PAGE - 1);
    unsafe {
        libc::mmap(
            page as *mut _,
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
}

fn own_handler() {
    let install = || unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = map_something as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()),
            0
        );
        let mut now: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut now), 0);
        assert_eq!(now.sa_sigaction, map_something as *const () as usize);
    };
    // Before the domain's, and again after it.
    install();
    let domain = domain(64, "ram:16M");
    install();
    let stretch = domain.allocate(1024 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    unsafe { stretch.bytes_mut() }.fill(1);
    assert_eq!(
        HANDLED.load(Ordering::Relaxed),
        0,
        "the stretch's faults are not the program's"
    );
    let empty = tempfile::tempfile().unwrap();
    let beyond = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&empty),
            0,
        )
    }
    .cast::<u8>();
    unsafe { beyond.write_volatile(1) };
    assert_eq!(
        HANDLED.load(Ordering::Relaxed),
        1,
        "a file's end is the program's"
    );
    println!("both handled");
}

#[test]
fn a_programs_own_sigbus_handler_gets_what_is_its_own() {
    let output = run("own handler", false);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("both handled"));
}

fn forked() {
    let domain = domain(64, "ram:16M");
    let stretch = domain.allocate(256 * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    unsafe { stretch.bytes_mut() }.fill(1);
    let child = unsafe { libc::fork() };
    if child == 0 {
        let byte = unsafe { stretch.as_ptr().add(200 * PAGE).read_volatile() };
        unsafe { libc::_exit(i32::from(byte)) };
    }
    let mut status = 0;
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
        "status {status:#x}"
    );
    assert!(unsafe { stretch.bytes() }.iter().all(|b| *b == 1));
    println!("the child was told");
}

#[test]
fn the_child_of_a_fork_never_sees_silent_zeros() {
    let output = run("forked", false);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("the child was told"));
}
