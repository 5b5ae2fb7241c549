//! Starting `selfpage`, its output, and the processes that a test starts.

use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::ExitStatus;
use std::process::Output;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

/// Long enough for a machine under load; reached only where something is broken.
pub const LIMIT: Duration = Duration::from_secs(30);

pub fn joiner() -> PathBuf {
    // Cargo builds examples beside the tests that it builds.
    let tests = std::env::current_exe().unwrap();
    tests
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/libjoiner.so")
}

pub fn selfpage(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selfpage"));
    command.args(arguments).env("SELFPAGE_PRELOAD", joiner());
    command
        .env("XDG_STATE_HOME", "/var/tmp/selfpage-tests")
        .env_remove("SELFPAGE_WITHOUT");
    command
}

pub fn run(program: &[&str]) -> Command {
    let mut command = selfpage(&["run", "--frames", "64M", "--"]);
    command.args(program);
    command
}

/// Runs to the end, with what it wrote: to files, so that nothing waits for processes
/// that hold a pipe.
pub fn output(mut command: Command) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    let file = |path: &Path| std::fs::File::create(path).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&err));
    let status = Running::start(&mut command).wait();
    let (stdout, stderr) = (std::fs::read(out).unwrap(), std::fs::read(err).unwrap());
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    (
        Output {
            status,
            stdout,
            stderr,
        },
        errors,
    )
}

/// Waits until `done`, or fails.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: signals a process these tests started.
    unsafe { libc::kill(pid, signal) };
}

/// A `run` that is killed, and all below it, if its test fails.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("run ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder whose files tell the pids of what a test started.
pub struct Pids(tempfile::TempDir);

impl Pids {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub fn get(&self, name: &str) -> i32 {
        let mut pid = None;
        until(name, || {
            let text = std::fs::read_to_string(self.0.path().join(name)).unwrap_or_default();
            pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
            pid.is_some()
        });
        pid.unwrap()
    }
}

/// The supervisor below a front process.
pub fn supervisor(front: &Child) -> i32 {
    let mut found = None;
    until("supervisor", || {
        let children = format!("/proc/{0}/task/{0}/children", front.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let mut children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        found = children.find(|pid: &i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim_end() == "selfpage-super")
        });
        found.is_some()
    });
    found.unwrap()
}

pub fn executable(path: &Path) {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

/// Compiles a static program; says why not where there is no compiler for it.
pub fn static_program(source: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let (code, program) = (folder.path().join("p.c"), folder.path().join("p"));
    std::fs::write(&code, source).unwrap();
    let made = Command::new("cc")
        .args(["-static", "-o"])
        .arg(&program)
        .arg(&code)
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("skipped: cc -static does not work here");
        return None;
    }
    Some((folder, program))
}

/// The library where every user may read it; the folder of the tests may be root's alone.
pub fn readable_joiner() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    executable(folder.path());
    let library = folder.path().join("libjoiner.so");
    std::fs::copy(joiner(), &library).unwrap();
    executable(&library);
    (folder, library)
}

pub fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}
