//! A server in this process, and guests in processes of their own.

use crate::guest::{PAGE, page_bytes};
use manager::client_memory::SharedCache;
use manager::counters::RecordedCounters;
use manager::server::{Manager, ManagerConfig};
use manager::snapshot::Snapshot;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A guard against hangs, far beyond any wait.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server, its folder and its snapshot.
pub struct Service {
    pub server: Option<Manager>,
    pub folder: tempfile::TempDir,
}

/// A guest process.
pub struct Guest {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// A snapshot of `pages` pages in `folder`; every 16th is a hole.
pub fn make_snapshot(folder: &Path, pages: usize) -> PathBuf {
    let path = folder.join("snapshot.mem");
    let mut file = std::fs::File::create(&path).expect("a snapshot");
    (0..pages).for_each(|page| file.write_all(&page_bytes(page)).expect("a page"));
    path
}

impl Service {
    /// Serves a snapshot of `pages` pages; `change` edits the configuration.
    pub fn start(pages: usize, change: impl FnOnce(&mut ManagerConfig)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshot = make_snapshot(folder.path(), pages);
        Self::over(folder, &snapshot, change)
    }

    pub fn over(
        folder: tempfile::TempDir,
        snapshot: &Path,
        change: impl FnOnce(&mut ManagerConfig),
    ) -> Self {
        let mut config = ManagerConfig {
            socket: folder.path().join("socket"),
            snapshot: Some(Snapshot::open(snapshot, &[]).expect("a snapshot")),
            size: 0,
            contract: None,
            disk: ManagerConfig::equal_share(),
            uses_working_set: false,
            cache: None,
            most_clients: 64,
            most_clients_of_a_user: usize::MAX,
            patience: Duration::from_secs(5),
        };
        change(&mut config);
        Self {
            server: Some(Manager::start(config).expect("a server")),
            folder,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn server(&self) -> &Manager {
        self.server.as_ref().expect("a server")
    }

    pub fn guest(&self, kind: &str, bytes: usize) -> Guest {
        Guest::start(kind, &self.socket(), bytes)
    }

    /// The counters of the client that is `number` in order of admission, when it is admitted.
    pub fn counters(&self, number: u64) -> RecordedCounters {
        let mut found = None;
        await_that("the client is admitted", || {
            let clients = self.server().clients();
            found = clients.into_iter().find(|it| it.number == number);
            found.is_some()
        });
        found.expect("found above").counters
    }

    /// Waits until no client is left.
    pub fn await_no_clients(&self) {
        await_that("clients end", || self.server().clients().is_empty());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// The path of a cache, which is removed when dropped.
pub struct CachePath(PathBuf);

impl CachePath {
    /// The kind of a guest that maps the cache.
    pub fn kind(&self) -> String {
        format!("cache:{}", self.0.display())
    }
}

impl Drop for CachePath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file in memory for the pages of `snapshot` that clones share.
pub fn make_cache(snapshot: &Path) -> (CachePath, Arc<SharedCache>) {
    let folder = snapshot.parent().and_then(Path::file_name);
    let name = folder.and_then(|it| it.to_str());
    let name = name.expect("a folder with a name");
    let path = CachePath(Path::new("/dev/shm").join(format!("selfpage-test-{name}")));
    let snapshot = Snapshot::open(snapshot, &[]).expect("a snapshot");
    let cache = SharedCache::create(&path.0, &snapshot).expect("a cache");
    (path, Arc::new(cache))
}

pub fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "still waiting until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Guest {
    pub fn start(kind: &str, socket: &Path, bytes: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .arg("guest")
            .arg(kind)
            .arg(socket)
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a guest");
        let input = process.stdin.take().expect("its input");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let mut guest = Self {
            process,
            input,
            output,
        };
        assert_eq!(guest.reply(), "ready");
        guest
    }

    fn reply(&mut self) -> String {
        let patience = Timespec::try_from(PATIENCE).expect("a time");
        let mut ready = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        let count = poll(&mut ready, Some(&patience)).expect("poll");
        assert!(count > 0, "the guest still waits");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a reply");
        line.trim().to_owned()
    }

    /// Begins a command.
    pub fn begin(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("a command");
    }

    /// Returns true if there is a reply, or the process has ended.
    pub fn has_replied(&self) -> bool {
        let mut ready = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// The reply of a command that was begun.
    pub fn finish(&mut self) -> String {
        self.reply()
    }

    /// Carries a command out.
    pub fn run(&mut self, command: &str) -> String {
        self.begin(command);
        self.reply()
    }

    /// Carries out a command that counts wrong pages.
    pub fn wrong(&mut self, command: &str) -> usize {
        let reply = self.run(command);
        reply
            .parse()
            .unwrap_or_else(|_| panic!("{command}: {reply:?}"))
    }

    /// Ends the process. What it has started may live on, as long as this.
    pub fn kill(&mut self) {
        self.process.kill().expect("its end");
        self.process.wait().expect("its end");
    }

    /// The signal that ended the process.
    pub fn signal(&mut self) -> Option<i32> {
        self.process.wait().expect("its end").signal()
    }

    /// Waits until the manager has closed the guest's connection.
    pub fn await_refusal(&mut self) {
        assert_eq!(self.run("closed"), "0");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Pages in so many MiB.
pub const fn mib(count: usize) -> usize {
    (count << 20) / PAGE
}
