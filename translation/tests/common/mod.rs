//! Shared by the tests on the real kernel: memory, an entry of each kind, children.
#![allow(dead_code, reason = "each test file uses its part")]

use rustix::event::{PollFd, PollFlags, poll};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use translation::{
    Capabilities, EntryKind, Fault, Reservation, Userfault, reserve, reserve_staging,
    unmap_reservation, unmap_staging,
};
use wired::PAGE;

/// The features of this machine.
pub fn capabilities() -> Capabilities {
    Capabilities::probe().capabilities
}

/// Scratch address space, unmapped at the end.
pub struct Area(pub Reservation);

impl Area {
    pub fn new(pages: usize) -> Self {
        Self(reserve(None, pages * PAGE, true).unwrap())
    }

    /// Address of a page.
    pub fn at(&self, page: usize) -> usize {
        self.0.addr + page * PAGE
    }

    pub fn len(&self) -> usize {
        self.0.len
    }

    pub fn pages(&self) -> usize {
        self.0.len / PAGE
    }
}

/// A staging slot, unmapped at the end.
pub struct Slot(Reservation);

impl Slot {
    pub fn new(pages: usize) -> Self {
        Self(reserve_staging(pages * PAGE).unwrap())
    }

    /// Address of a page.
    pub fn at(&self, page: usize) -> usize {
        self.0.addr + page * PAGE
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: the test is over.
        unsafe { unmap_staging(self.0) }.unwrap();
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the test is over.
        unsafe { unmap_reservation(self.0) }.unwrap();
    }
}

/// An address below `vm.mmap_min_addr`: nothing is ever mapped there.
pub const NOWHERE: usize = PAGE;

/// Loads the first byte of an address.
pub fn load(addr: usize) -> u8 {
    // SAFETY: the tests give addresses of their own areas.
    unsafe { std::ptr::with_exposed_provenance::<u8>(addr).read_volatile() }
}

/// Stores to the first byte of an address.
pub fn store(addr: usize, value: u8) {
    // SAFETY: as above.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(addr).write_volatile(value) }
}

/// A page filled with a byte.
pub fn page_of(value: u8) -> [u8; PAGE] {
    [value; PAGE]
}

/// Returns true if a system call may read the address: false where it fails with EFAULT or the
/// like.
pub fn kernel_reads(addr: usize) -> bool {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: the kernel checks the address.
    unsafe {
        libc::write(
            std::os::fd::AsRawFd::as_raw_fd(&writer),
            addr as *const _,
            1,
        ) == 1
    }
}

/// A handler thread that passes each fault to a closure, until dropped.
pub struct Entry {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Entry {
    pub fn new(
        userfault: Arc<Userfault>,
        answer: impl Fn(&Userfault, Fault) + Send + 'static,
    ) -> Self {
        assert_eq!(userfault.kind(), EntryKind::Thread);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut faults = [Fault::default(); 16];
            while !stopped.load(Ordering::Relaxed) {
                let mut fds = [PollFd::new(&*userfault, PollFlags::IN)];
                let timeout = rustix::time::Timespec {
                    tv_sec: 0,
                    tv_nsec: 20_000_000,
                };
                let _ = poll(&mut fds, Some(&timeout));
                let count = userfault.read_faults(&mut faults).unwrap();
                faults[..count]
                    .iter()
                    .for_each(|fault| answer(&userfault, *fault));
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

type Answer = Box<dyn Fn(usize) + Sync>;

/// Ranges whose SIGBUS a closure handles.
static RANGES: [[AtomicUsize; 3]; 16] = [const { [const { AtomicUsize::new(0) }; 3] }; 16];

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure, of a memory fault.
    let addr = unsafe { (*info).si_addr() } as usize;
    for [start, end, answer] in &RANGES {
        if (start.load(Ordering::Acquire)..end.load(Ordering::Acquire)).contains(&addr) {
            // SAFETY: a leaked closure.
            let answer = unsafe { &*(answer.load(Ordering::Acquire) as *const Answer) };
            return answer(addr & !(PAGE - 1));
        }
    }
    // Not an address of a test: the next access takes the default action.
    // SAFETY: async-signal-safe.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// Makes `answer` handle SIGBUS in a range, for the life of the process.
pub fn on_upcall(addr: usize, len: usize, answer: impl Fn(usize) + Sync + 'static) {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: a handler with the signature SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
            assert_eq!(
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()),
                0
            );
        }
    });
    let answer: Answer = Box::new(answer);
    let answer: &'static Answer = Box::leak(Box::new(answer));
    let slot = RANGES
        .iter()
        .find(|[_, _, taken]| {
            taken
                .compare_exchange(
                    0,
                    std::ptr::from_ref(answer) as usize,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
        })
        .expect("few tests in a binary");
    slot[1].store(addr + len, Ordering::Release);
    slot[0].store(addr, Ordering::Release);
}

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
}

/// Runs `body` in a forked child, which exits with its value; 101 after a panic, killed
/// by SIGALRM where it hangs.
pub fn in_child(body: impl FnOnce() -> i32) -> End {
    // SAFETY: glibc keeps malloc usable in the child; the body uses nothing else that
    // another thread might hold.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(20);
                libc::setrlimit(
                    libc::RLIMIT_CORE,
                    &libc::rlimit {
                        rlim_cur: 0,
                        rlim_max: 0,
                    },
                );
                std::panic::set_hook(Box::new(|info| {
                    let text = info.to_string();
                    libc::write(2, text.as_ptr().cast(), text.len());
                    libc::_exit(101);
                }));
                let code = body();
                libc::_exit(code)
            }
            child => {
                assert!(child > 0);
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                if libc::WIFSIGNALED(status) {
                    End::Signal(libc::WTERMSIG(status))
                } else {
                    End::Exit(libc::WEXITSTATUS(status))
                }
            }
        }
    }
}

/// Changes the user from root to an unprivileged one, in a child.
pub fn become_nobody() {
    // SAFETY: plain system calls.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
        assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports that a test could not run here, and why.
pub fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}
