//! A daemon with a disk of its own, and the processes that play roles beside it.

use crate::honest::{Honest, file_channels, listed, read_late, refusal_of_writable};
use crate::restart::{capacity, query};
use crate::role::{Role, process};
use protocol::DaemonEvent;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A uid without privileges, which a rule of the configuration admits.
const UNPRIVILEGED: u32 = 65_534;

/// A daemon with a disk of its own, in a folder of its own.
pub struct Machine {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl Machine {
    pub fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = folder.path();
        std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!(
            "socket = \"{0}/s\"\n[memory]\nframes = \"64M\"\n[disk]\nswap = \"{0}/swap\"\nsize = \"128M\"\n\
             [[allow]]\nuid = {UNPRIVILEGED}\n",
            at.display()
        );
        std::fs::write(at.join("config.toml"), config).unwrap();
        std::fs::write(at.join("counts"), "").unwrap();
        let shared = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(at.join("counts"), shared).unwrap();
        let daemon = daemon(at, 0);
        let it = Self { folder, daemon };
        let begin = Instant::now();
        while !it.socket().exists() || it.is_measuring() {
            assert!(begin.elapsed() < Duration::from_secs(120), "{}", it.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        it
    }

    /// Stops the daemon (SIGSTOP).
    pub fn stop(&self) {
        let pid = rustix::process::Pid::from_child(&self.daemon);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    }

    /// Continues the stopped daemon.
    pub fn resume(&self) {
        let pid = rustix::process::Pid::from_child(&self.daemon);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    }

    /// Kills the daemon, and starts another one.
    pub fn restart(&mut self) {
        self.restart_with(0);
    }

    /// The same, where the next daemon may have this many descriptors; as many as this process, for 0.
    pub fn restart_with(&mut self, descriptors: u64) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        self.daemon = daemon(self.folder.path(), descriptors);
    }

    /// Kills the daemon, and starts another one in a PID namespace of its own.
    pub fn restart_apart(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        let inner = process(self.folder.path(), Role::Daemon, 0);
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child"])
            .arg(inner.get_program())
            .args(inner.get_args());
        for (variable, value) in inner.get_envs() {
            command.env(variable, value.unwrap_or_default());
        }
        command.stderr(self.errors("apart"));
        self.daemon = command.stdout(Stdio::null()).spawn().unwrap();
    }

    /// The daemon's reply to a query that it refuses.
    pub fn refusal(&self) -> String {
        let begin = Instant::now();
        loop {
            if let Some(DaemonEvent::Refused(why)) = query(&self.socket()) {
                return why;
            }
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sets the daemon's soft limit of descriptors to `now`, and the hard limit to `most`.
    pub fn allow_descriptors(&self, now: u64, most: u64) {
        let pid = rustix::process::Pid::from_child(&self.daemon);
        let limit = rustix::process::Rlimit {
            current: Some(now),
            maximum: Some(most),
        };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    }

    /// Waits until a daemon replies.
    pub fn await_service(&self) {
        let begin = Instant::now();
        while capacity(&self.socket()).is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Channels that the daemon serves.
    pub fn channels(&self) -> u32 {
        capacity(&self.socket()).map_or(0, |summary| summary.channels)
    }

    /// Processors that are reserved.
    pub fn reserved(&self) -> f64 {
        capacity(&self.socket()).map_or(0.0, |summary| summary.reserved)
    }

    /// Makes the file `go`, for which processes wait.
    pub fn make_go_file(&self) {
        std::fs::write(self.folder.path().join("go"), "").unwrap();
    }

    /// Waits until the processes have counted up to `most`.
    pub fn await_count(&self, most: u64) {
        let begin = Instant::now();
        while self.counts() < most {
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn counts(&self) -> u64 {
        let counts = std::fs::read(self.folder.path().join("counts")).unwrap();
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        counts.chunks_exact(8).map(number).sum()
    }

    /// Returns true while the disk is being measured, when the socket exists already.
    fn is_measuring(&self) -> bool {
        !self.folder.path().join("swap.calibration.toml").exists()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// How many descriptors the daemon has, except those for measuring threads that page now: honest
    /// programs page meanwhile.
    pub fn descriptors(&self) -> usize {
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.daemon.id()));
        let all = all.unwrap_or_else(|_| panic!("the daemon has ended: {}", self.log()));
        let targets = all.flatten().map(|fd| std::fs::read_link(fd.path()));
        targets
            .filter(|target| {
                !target
                    .as_ref()
                    .is_ok_and(|path| path.ends_with("schedstat"))
            })
            .count()
    }

    /// How many descriptors the daemon polls.
    pub fn polled(&self) -> usize {
        let all = std::fs::read_dir(format!("/proc/{}/fdinfo", self.daemon.id())).unwrap();
        let texts = all
            .flatten()
            .flat_map(|one| std::fs::read_to_string(one.path()));
        let polled = |text: String| text.lines().filter(|line| line.starts_with("tfd:")).count();
        texts.map(polled).sum()
    }

    /// Waits until the daemon has `most` descriptors or fewer.
    pub fn await_descriptors(&self, most: usize) {
        let begin = Instant::now();
        while self.descriptors() > most {
            let there = self.descriptors();
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "{there} > {most}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the daemon has no tenant.
    pub fn await_no_tenants(&self) {
        let begin = Instant::now();
        while capacity(&self.socket()).is_none_or(|summary| summary.tenants > 0) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts a process of this user with a role.
    pub fn spawn(&self, role: Role, seed: u64, user: u32, name: &str) -> Child {
        let mut command = process(self.folder.path(), role, seed);
        if rustix::process::getuid().is_root() {
            command.uid(user).gid(user);
        }
        command.stderr(self.errors(name)).spawn().unwrap()
    }

    /// Starts a process with a role by `selfpage run`; `None` where that
    /// is not built.
    pub fn under_contract(&self, role: Role, name: &str) -> Option<Child> {
        let own = std::env::current_exe().unwrap();
        let targets = own.ancestors().nth(3)?;
        let built = ["release/selfpage", "debug/selfpage"].map(|path| targets.join(path));
        let Some(selfpage) = built.iter().find(|path| path.exists()) else {
            println!(
                "SKIPPED: an unmodified program: there is no {}",
                built[0].display()
            );
            return None;
        };
        let itself = process(self.folder.path(), role, 0);
        let mut command = Command::new(selfpage);
        command
            .arg("run")
            .arg(format!("--system={}", self.socket().display()))
            .args([
                "--frames=4M+12M",
                "--disk=50ms/250ms,extra",
                "--swap=64M",
                "--",
            ])
            .arg(itself.get_program())
            .args(itself.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        for (variable, value) in itself.get_envs() {
            command.env(variable, value.unwrap_or_default());
        }
        Some(command.stderr(self.errors(name)).spawn().unwrap())
    }

    /// Writes to a file at which sockets a program and its children listen, for [`Role::Supervisor`].
    pub fn note_sockets(&self, program: u32) {
        let children = |pid: u32| {
            let path = format!("/proc/{pid}/task/{pid}/children");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<u32>>()
        };
        let mut pids = vec![program];
        pids.extend(children(program));
        let links = pids
            .iter()
            .filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).ok());
        let links = links
            .flatten()
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let links: Vec<_> = links
            .map(|link| link.to_string_lossy().into_owned())
            .collect();
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let name = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let inode = format!("socket:[{}]", words.get(6)?);
            let name = words.get(7)?.strip_prefix('@')?;
            links.contains(&inode).then(|| name.to_owned())
        };
        let names: Vec<_> = sockets.lines().filter_map(name).collect();
        std::fs::write(self.folder.path().join("sockets"), names.join("\n")).unwrap();
    }

    /// The progress that a program has written to its file.
    pub fn progress(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// The output of a program and of the daemon.
    pub fn outputs(&self, name: &str) -> String {
        let path = self.folder.path().join(format!("{name}.errors"));
        let errors = std::fs::read_to_string(path).unwrap_or_default();
        format!("{name}:\n{errors}\nthe daemon:\n{}", self.log())
    }

    fn errors(&self, name: &str) -> File {
        let path = self.folder.path().join(format!("{name}.errors"));
        File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap()
    }

    /// Starts a process with a role, and resets the counts.
    pub fn begin(&self, role: Role, seed: u64) -> Child {
        let counts = self.folder.path().join("counts");
        File::options()
            .write(true)
            .truncate(true)
            .open(counts)
            .unwrap();
        let mut command = process(self.folder.path(), role, seed);
        let errors = File::create(self.folder.path().join("errors")).unwrap();
        if rustix::process::getuid().is_root() {
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
        command.stderr(errors).spawn().unwrap()
    }

    /// Runs a process with a role to its end. Returns the sum of what it counted.
    pub fn play(&self, role: Role, seed: u64) -> u64 {
        let mut child = self.begin(role, seed);
        let begin = Instant::now();
        let ended = loop {
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
            if begin.elapsed() > Duration::from_secs(120) {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{role:?} does not end: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        // It may end by itself, or be killed by the daemon.
        let is_right = ended.success() || ended.signal() == Some(9);
        assert!(is_right, "{role:?} {ended}: {}", self.last_errors());
        self.descriptors();
        self.counts()
    }

    /// The standard error of the process that [`Machine::begin`] started last.
    pub fn last_errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("errors")).unwrap()
    }

    /// Starts a client that reads a file under a contract and checks the data.
    pub fn honest(&self) -> Honest {
        Honest::start(&self.folder.path().join("file"), &self.socket())
    }

    /// The events that a client receives that reads late, after it has closed `closed` channels and opened one.
    pub fn read_late(&self, closed: u32) -> Vec<DaemonEvent> {
        let file = self.folder.path().join("late");
        File::create(&file).unwrap().set_len(1 << 16).unwrap();
        read_late(&file, &self.socket(), closed)
    }

    /// How many channels a contract for the honest client's file may have.
    pub fn file_channels(&self) -> usize {
        file_channels(&self.folder.path().join("file"), &self.socket())
    }

    /// The reason why a file that is open for writing gets no contract.
    pub fn refusal_of_writable(&self) -> String {
        let file = self.folder.path().join("writable");
        std::fs::write(&file, [0; 4096]).unwrap();
        refusal_of_writable(&file, &self.socket())
    }

    /// How many of `contracts` contracts a list has.
    pub fn listed(&self, contracts: usize) -> usize {
        let file = self.folder.path().join("listed");
        std::fs::write(&file, [0; 4096]).unwrap();
        listed(&file, &self.socket(), contracts)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn daemon(folder: &Path, descriptors: u64) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"));
    let mut command = process(folder, Role::Daemon, descriptors);
    command.stderr(log.unwrap()).spawn().unwrap()
}
