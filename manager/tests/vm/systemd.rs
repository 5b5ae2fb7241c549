//! What systemd does for a service that has a descriptor store, in the test's process: it receives notifications, keeps
//! descriptors, and starts the service with them, the last first.

use crate::common::await_that;
use host::seqpacket::{self, Received};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::RecvFlags;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Numbers that are not those of descriptors to be passed.
const BEYOND: i32 = 400;
/// What ends the thread, and what is counted.
const END: &[u8] = b"END";
const BARRIER: &[u8] = b"BARRIER";

#[derive(Default)]
struct State {
    stored: Mutex<Vec<(String, OwnedFd)>>,
    ready: AtomicUsize,
    barriers: AtomicUsize,
}

/// A service manager.
pub struct Systemd {
    folder: tempfile::TempDir,
    state: Arc<State>,
    most: usize,
}

impl Systemd {
    /// With room for so many descriptors.
    pub fn start(most: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let state = Arc::new(State::default());
        let systemd = Self {
            folder,
            state,
            most,
        };
        let socket = UnixDatagram::bind(systemd.socket()).expect("a socket");
        let state = Arc::clone(&systemd.state);
        std::thread::spawn(move || {
            loop {
                let message = seqpacket::receive(&socket, RecvFlags::empty()).expect("a message");
                match message.as_slice() {
                    END => return,
                    BARRIER => drop(state.barriers.fetch_add(1, Ordering::SeqCst)),
                    b"READY=1" => drop(state.ready.fetch_add(1, Ordering::SeqCst)),
                    _ => state.take(message, most),
                }
            }
        });
        systemd
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("notify")
    }

    fn send(&self, message: &[u8]) {
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.send_to(message, self.socket()).expect("the thread");
    }

    /// Waits until all that was sent has been received.
    fn catch_up(&self) {
        let before = self.state.barriers.load(Ordering::SeqCst);
        self.send(BARRIER);
        await_that("messages are received", || {
            self.state.barriers.load(Ordering::SeqCst) > before
        });
    }

    /// The names of what is stored.
    pub fn names(&self) -> Vec<String> {
        self.catch_up();
        let stored = self.state.stored.lock().expect("what is stored");
        stored.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Has another descriptor under a name. Returns the former.
    pub fn replace(&self, name: &str, fd: OwnedFd) -> OwnedFd {
        self.catch_up();
        let mut stored = self.state.stored.lock().expect("what is stored");
        let found = stored.iter_mut().find(|(it, _)| it == name);
        std::mem::replace(&mut found.expect("it is stored").1, fd)
    }

    /// How often the service was ready.
    pub fn ready(&self) -> usize {
        self.catch_up();
        self.state.ready.load(Ordering::SeqCst)
    }

    /// A command that is started with what is stored.
    pub fn command(&self, program: &Path) -> Command {
        self.catch_up();
        let stored = self.state.stored.lock().expect("what is stored");
        let (names, fds): (Vec<_>, Vec<_>) = stored.iter().rev().cloned_out().unzip();
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                r#"export LISTEN_PID=$$ SYSTEMD_EXEC_PID=$$; exec "$0" "$@""#,
            ])
            .arg(program)
            .env("NOTIFY_SOCKET", self.socket())
            .env("FDSTORE", self.most.to_string())
            .env("LISTEN_FDS", fds.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
        let pass = move || {
            for (number, fd) in (3..).zip(&fds) {
                // SAFETY: the child's descriptors, which its program gets.
                if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: makes system calls alone.
        unsafe { command.pre_exec(pass) };
        command
    }
}

/// Copies of descriptors, whose numbers are not those of what is passed.
trait ClonedOut {
    fn cloned_out(self) -> impl Iterator<Item = (String, OwnedFd)>;
}

impl<'a, I: Iterator<Item = &'a (String, OwnedFd)>> ClonedOut for I {
    fn cloned_out(self) -> impl Iterator<Item = (String, OwnedFd)> {
        self.map(|(name, fd)| {
            let copy = rustix::io::fcntl_dupfd_cloexec(fd, BEYOND);
            (name.clone(), copy.expect("a descriptor"))
        })
    }
}

impl State {
    /// Stores or removes a descriptor, as sd_notify(3) has it.
    fn take(&self, mut message: Received, most: usize) {
        let text = String::from_utf8_lossy(message.as_slice()).into_owned();
        let lines: Vec<_> = text.lines().collect();
        let value = |key| lines.iter().find_map(|it| it.strip_prefix(key));
        let name = value("FDNAME=").unwrap_or("stored").to_owned();
        let mut stored = self.stored.lock().expect("what is stored");
        if lines.contains(&"FDSTOREREMOVE=1") {
            stored.retain(|(it, _)| *it != name);
        } else if lines.contains(&"FDSTORE=1") {
            assert!(lines.contains(&"FDPOLL=0"), "systemd drops what hangs up");
            let fd = message.fds[0].take().expect("a descriptor");
            let is_new = !stored.iter().any(|(_, it)| is_same(it, &fd));
            if is_new && stored.len() < most {
                stored.push((name, fd));
            }
        }
    }
}

/// Returns true if two descriptors are of one open file: systemd stores it once.
fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    const KCMP_FILE: i32 = 0;
    let own = std::process::id();
    // SAFETY: compares descriptors of this process.
    let order = unsafe {
        let (one, other) = (one.as_raw_fd(), other.as_raw_fd());
        libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, one, other)
    };
    order == 0
}

impl Drop for Systemd {
    fn drop(&mut self) {
        self.send(END);
    }
}
