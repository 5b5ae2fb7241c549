//! `selfpage vm serve` as a service of systemd's: what it stores, it is started again with.

use host::seqpacket;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::RecvFlags;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A folder, with the socket of the service manager, what it has, and the files of the service.
struct Service {
    folder: tempfile::TempDir,
    notifications: UnixDatagram,
    stored: Vec<(String, OwnedFd)>,
    cache: PathBuf,
}

impl Service {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let notifications = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        std::fs::write(folder.path().join("snapshot"), [7; 4096]).unwrap();
        let patience = notifications.set_read_timeout(Some(Duration::from_secs(60)));
        patience.unwrap();
        // Of this test alone.
        let name = folder.path().file_name().unwrap().to_str().unwrap();
        let cache = PathBuf::from(format!("/dev/shm/selfpage-test-{name}"));
        Self {
            folder,
            notifications,
            stored: Vec::new(),
            cache,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the service with what is stored, the last first.
    fn start(&self, more: &[&str], room: usize) -> Child {
        // Their numbers are not those of what is passed.
        let passed = self.stored.iter().rev();
        let (names, fds): (Vec<_>, Vec<OwnedFd>) = passed
            .map(|(name, fd)| (name.as_str(), fcntl_dupfd_cloexec(fd, 100).unwrap()))
            .unzip();
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                r#"export LISTEN_PID=$$ SYSTEMD_EXEC_PID=$$; exec "$0" "$@""#,
            ])
            .args([env!("CARGO_BIN_EXE_selfpage"), "vm", "serve", "--socket"])
            .arg(self.path("socket"))
            .arg("--snapshot")
            .arg(self.path("snapshot"))
            .arg("--shared-cache")
            .arg(&self.cache)
            .args(more)
            .env("NOTIFY_SOCKET", self.path("notify"))
            .env("LISTEN_FDS", fds.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .env("FDSTORE", room.to_string())
            .env_remove("SELFPAGE_LOG")
            .stderr(Stdio::piped());
        let pass = move || {
            for (number, fd) in (3..).zip(&fds) {
                // SAFETY: the child's descriptors, which its program gets.
                unsafe { libc::dup2(fd.as_raw_fd(), number) };
            }
            Ok(())
        };
        // SAFETY: makes system calls alone.
        unsafe { command.pre_exec(pass) };
        command.spawn().unwrap()
    }

    fn stored_names(&self) -> Vec<&str> {
        self.stored.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Takes what the service stores, and drops what it removes, until it is ready.
    fn await_ready(&mut self) {
        loop {
            let mut message = seqpacket::receive(&self.notifications, RecvFlags::empty()).unwrap();
            let text = String::from_utf8_lossy(message.as_slice()).into_owned();
            if text == "BARRIER=1" {
                continue;
            }
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
            match (name, message.fds[0].take()) {
                (Some(name), Some(fd)) => self.stored.push((name.to_owned(), fd)),
                (Some(name), None) => self.stored.retain(|(it, _)| it != name),
                (None, _) => return assert_eq!(text, "READY=1"),
            }
        }
    }

    fn refusal(&self, more: &[&str], room: usize) -> String {
        let output = self.start(more, room).wait_with_output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.cache);
    }
}

fn stop(mut service: Child) {
    // SAFETY: the child, which has not been waited for.
    unsafe { libc::kill(service.id() as i32, libc::SIGTERM) };
    assert_eq!(service.wait().unwrap().code(), Some(0));
}

fn shown(socket: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selfpage"));
    let output = command
        .args(["vm", "show", "--socket"])
        .arg(socket)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_service_that_is_started_again_has_its_sockets_and_its_cache() {
    let mut service = Service::new();
    let first = service.start(&[], 100);
    service.await_ready();
    let names = ["manager", "cache", "control", "handoffs"];
    assert_eq!(service.stored_names(), names);
    let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
    let [socket, control] = ["socket", "socket.control"].map(|name| service.path(name));
    let inodes = [&socket, &control, &service.cache].map(|path| inode(path));
    stop(first);
    let refusal = service.refusal(&[], 0);
    assert!(refusal.contains("FileDescriptorStoreMax="), "{refusal}");
    let second = service.start(&[], 100);
    service.await_ready();
    assert_eq!(service.stored_names(), names, "nothing is stored twice");
    assert_eq!(shown(&socket), "no guests\n");
    assert_eq!(
        [&socket, &control, &service.cache].map(|path| inode(path)),
        inodes
    );
    stop(second);
    // Another configuration, and no guest of the former one.
    let third = service.start(&["--frames", "2M", "--store", "ram:64M"], 100);
    service.await_ready();
    assert_eq!(service.stored_names(), names);
    assert_eq!(shown(&socket), "no guests\n");
    stop(third);
}

#[test]
fn a_store_that_is_too_small_for_the_service_is_refused() {
    let service = Service::new();
    let refusal = service.refusal(&[], 3);
    assert!(refusal.contains("store is full, at 3"), "{refusal}");
}
