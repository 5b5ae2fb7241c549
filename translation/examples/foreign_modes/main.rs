//! What this kernel lets a handler do to the memory of another process, and what a fault costs.
//!
//! `cargo run --release -p translation --example foreign_modes`. A child process (the owner) maps memory
//! of each kind, registers it for missing pages only, with no feature but the events, and sends
//! its userfaultfd; everything else is done from outside, as a microVM's page-fault handler must.

mod owner;

use linux_raw_sys::general as sys;
use owner::own;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use translation::{Fault, ForeignUserfault, Modes, UffdMessage, Wake};

const PAGE: usize = 4096;
const PAGES: usize = 4096;
const LEN: usize = PAGES * PAGE;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Anonymous,
    SharedMemfd,
    PrivateMemfd,
}

/// The process whose memory is served.
struct Owner {
    pid: i32,
    address: usize,
    control: UnixStream,
    faults: ForeignUserfault,
    memfd: OwnedFd,
    /// The last event.
    seen: Option<String>,
}

/// How the handler answers.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Copy,
    CopyProtected,
    Zero,
    WriteThenContinue,
    Continue,
    Unprotect,
}

fn main() {
    for (kind, name) in [
        (Kind::Anonymous, "private anonymous memory"),
        (Kind::SharedMemfd, "memfd, shared mapping"),
        (Kind::PrivateMemfd, "memfd, private mapping"),
    ] {
        println!("{name}");
        modes(kind);
        costs(kind);
        events(kind);
    }
}

fn show(what: &str, outcome: Result<String, String>) {
    match outcome {
        Ok(text) => println!("  {what:<58} {text}"),
        Err(text) => println!("  {what:<58} no: {text}"),
    }
}

fn yes<E: std::fmt::Display>(result: Result<(), E>) -> Result<String, String> {
    result
        .map(|()| "yes".to_owned())
        .map_err(|why| why.to_string())
}

/// Which registrations and operations the kernel permits from outside.
fn modes(kind: Kind) {
    let mut owner = Owner::start(kind, 0);
    let all = |write_protect, minor| Modes {
        missing: true,
        write_protect,
        minor,
    };
    let uffd = |owner: &Owner, modes| owner.faults.register(owner.address, LEN, modes);
    show(
        "registering MISSING again",
        yes(uffd(&owner, all(false, false))),
    );
    show("registering WP", yes(uffd(&owner, all(true, false))));
    show("registering MINOR", yes(uffd(&owner, all(true, true))));
    owner.serve(b'w', Answer::Copy);
    let protect = |owner: &Owner, on| {
        owner
            .faults
            .userfault()
            .write_protect(owner.address, LEN, on)
    };
    let start = Instant::now();
    let outcome = yes(protect(&owner, true));
    let took = start.elapsed();
    show(
        "write-protecting 16 MiB",
        outcome.map(|yes| format!("{yes}, {took:.0?}")),
    );
    let (stores, ns) = owner.serve(b'w', Answer::Unprotect);
    show(
        "stores reported, of 4096",
        Ok(format!("{stores}, {:.1} us each", ns as f64 / 1e3)),
    );
    show(
        "process_madvise(MADV_DONTNEED)",
        owner.advise(sys::MADV_DONTNEED),
    );
    show(
        "process_madvise(MADV_PAGEOUT)",
        owner.advise(sys::MADV_PAGEOUT),
    );
    if kind == Kind::SharedMemfd {
        let start = Instant::now();
        for page in 0..PAGES {
            owner.punch(page, 1);
        }
        let each = start.elapsed() / PAGES as u32;
        let (faults, _) = owner.serve(b'r', Answer::Copy);
        show(
            "punching holes page by page",
            Ok(format!("{each:.1?} each, {faults} faults after it")),
        );
        let _ = protect(&owner, true);
        let start = Instant::now();
        for page in (0..PAGES).step_by(64) {
            owner.punch(page, 64);
        }
        let each = start.elapsed() / PAGES as u32;
        let (faults, _) = owner.serve(b'w', Answer::Copy);
        show(
            "64 pages at once, write-protected",
            Ok(format!("{each:.1?} a page, {faults} faults after it")),
        );
    }
}

/// What a fault costs, answered each way.
fn costs(kind: Kind) {
    for (name, answer) in [
        ("fault answered by COPY", Answer::Copy),
        ("by COPY, write-protected", Answer::CopyProtected),
        ("by ZEROPAGE", Answer::Zero),
        (
            "by pwrite to the memfd and CONTINUE",
            Answer::WriteThenContinue,
        ),
        ("by CONTINUE, page in the memfd already", Answer::Continue),
    ] {
        let minor = matches!(answer, Answer::WriteThenContinue | Answer::Continue);
        if minor && kind == Kind::Anonymous {
            continue;
        }
        let mut owner = Owner::start(kind, 0);
        let modes = Modes {
            missing: true,
            write_protect: true,
            minor,
        };
        if let Err(why) = owner.faults.register(owner.address, LEN, modes) {
            show(name, Err(why.to_string()));
            continue;
        }
        if answer == Answer::Continue {
            for page in 0..PAGES {
                owner.fill(page);
            }
        }
        let (faults, ns) = owner.serve(b'r', answer);
        show(
            name,
            Ok(format!("{:.1} us, {faults} faults", ns as f64 / 1e3)),
        );
    }
}

/// Which events arrive, and what the memory reads after them.
fn events(kind: Kind) {
    let events = sys::UFFD_FEATURE_EVENT_REMOVE
        | sys::UFFD_FEATURE_EVENT_UNMAP
        | sys::UFFD_FEATURE_EVENT_FORK;
    let mut owner = Owner::start(kind, u64::from(events));
    owner.serve(b'w', Answer::Copy);
    for (name, command) in [
        ("event of MADV_DONTNEED", b'd'),
        ("event of MADV_REMOVE", b'm'),
        ("event of fork", b'f'),
        ("event of munmap", b'u'),
    ] {
        owner.serve(command, Answer::Zero);
        let seen = owner.seen.take();
        show(name, seen.ok_or_else(|| "none".to_owned()));
    }
}

impl Owner {
    /// Starts a process with 16 MiB of `kind`.
    fn start(kind: Kind, features: u64) -> Self {
        let memfd = memfd_create("memory", MemfdFlags::CLOEXEC).expect("memfd_create");
        rustix::fs::ftruncate(&memfd, LEN as u64).expect("ftruncate");
        let (mut control, theirs) = UnixStream::pair().expect("socketpair");
        // SAFETY: this process has one thread.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            drop(control);
            own(kind, features, &memfd, theirs);
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        drop(theirs);
        let mut words = [0; 16];
        control.read_exact(&mut words).expect("the owner's memory");
        let (fd, address) = words.split_at(8);
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
        let peer = Pid::from_raw(pid).expect("a child");
        let peer = pidfd_open(peer, PidfdFlags::empty()).expect("pidfd_open");
        let faults = pidfd_getfd(&peer, number(fd) as i32, PidfdGetfdFlags::empty());
        Self {
            pid,
            address: number(address) as usize,
            control,
            faults: ForeignUserfault::adopt(faults.expect("pidfd_getfd")).expect("a userfaultfd"),
            memfd,
            seen: None,
        }
    }

    /// Has the owner carry out a command and serves it meanwhile. Returns the faults, and the
    /// nanoseconds a page that the owner took.
    fn serve(&mut self, command: u8, answer: Answer) -> (usize, u64) {
        self.control.write_all(&[command]).expect("a command");
        let mut faults = 0;
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(rustix::fd::AsFd::as_fd(&self.faults), PollFlags::IN),
                PollFd::new(&self.control, PollFlags::IN),
            ];
            poll(&mut ready, None).expect("poll");
            if ready[1].revents().contains(PollFlags::IN) {
                let mut word = [0; 8];
                self.control
                    .read_exact(&mut word)
                    .expect("the owner's reply");
                return (faults, u64::from_ne_bytes(word));
            }
            let mut messages = [const { None }; 16];
            let count = self.faults.read(&mut messages).expect("messages");
            for message in messages.into_iter().take(count).flatten() {
                match message {
                    UffdMessage::Fault(fault) => {
                        faults += 1;
                        self.answer(fault, answer);
                    }
                    event => self.seen = Some(format!("{event:?}")),
                }
            }
        }
    }

    fn answer(&self, fault: Fault, answer: Answer) {
        static CONTENTS: [u8; PAGE] = [7; PAGE];
        let page = fault.addr;
        let uffd = self.faults.userfault();
        let wake = |result: Result<(), translation::MapError>| {
            if let Err(why) = result {
                println!("  at {page:#x}: {why}");
                let _ = uffd.wake(page, PAGE);
            }
        };
        match answer {
            Answer::Copy => wake(uffd.copy(page, CONTENTS.as_ptr(), PAGE, Wake::Yes)),
            Answer::CopyProtected => {
                wake(uffd.copy_protected(page, CONTENTS.as_ptr(), PAGE, Wake::Yes))
            }
            Answer::Zero => wake(uffd.zero(page, PAGE, Wake::Yes)),
            Answer::WriteThenContinue => {
                self.fill((page - self.address) / PAGE);
                wake(self.faults.map_cached(page, PAGE));
            }
            Answer::Continue => wake(self.faults.map_cached(page, PAGE)),
            Answer::Unprotect => uffd.write_protect(page, PAGE, false).expect("unprotecting"),
        }
    }

    /// Writes a page to the memfd.
    fn fill(&self, page: usize) {
        let at = (page * PAGE) as u64;
        rustix::io::pwrite(&self.memfd, &[7; PAGE], at).expect("pwrite");
    }

    fn punch(&self, page: usize, pages: usize) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (at, len) = ((page * PAGE) as u64, (pages * PAGE) as u64);
        fallocate(&self.memfd, how, at, len).expect("punching a hole");
    }

    /// Advises the kernel of the owner's memory.
    fn advise(&self, advice: u32) -> Result<String, String> {
        let peer = Pid::from_raw(self.pid).expect("a child");
        let peer = pidfd_open(peer, PidfdFlags::empty()).expect("pidfd_open");
        let range = libc::iovec {
            iov_base: self.address as *mut libc::c_void,
            iov_len: PAGE,
        };
        // SAFETY: the child's memory, which holds nothing of value.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                peer.as_raw_fd(),
                &raw const range,
                1,
                advice,
                0,
            )
        };
        if advised >= 0 {
            Ok("yes".to_owned())
        } else {
            Err(std::io::Error::last_os_error().to_string())
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: a child of this process that was not waited for yet.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}
