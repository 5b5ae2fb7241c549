//! Control groups of real processes.

use super::*;
use rustix::process::Signal;
use std::process::{Command, Stdio};
use std::time::Instant;

const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A shell that is in its group before it starts anything.
fn group_of(script: &str) -> (CgroupRoot, TenantCgroup, std::process::Child) {
    let groups = CgroupRoot::open(&format!("test-{}", std::process::id()));
    let mut child = Command::new("sh")
        .args(["-c", &format!("read go; {script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    let group = groups.create_entered(pid, process_tree::process(pid).start, child.id());
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"go\n").unwrap();
    (groups, group, child)
}

#[test]
fn processes_that_share_memory_count_once() {
    extern "C" fn pause(_: *mut libc::c_void) -> libc::c_int {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    let mut child = Command::new("sleep").arg("20").spawn().unwrap();
    let mut stack = vec![0u128; 4096];
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: a stack of its own that outlives it, on which it only waits.
    let beside = unsafe {
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        libc::clone(pause, top, flags, std::ptr::null_mut())
    };
    let pids = [rustix::process::getpid(), Pid::from_child(&child)];
    let beside = Pid::from_raw(beside).unwrap();
    let all = AddressSpaces::of(&[pids[0], beside, pids[1], pids[0]]);
    let _ = child.kill().and_then(|()| child.wait());
    let _ = rustix::process::kill_process(beside, Signal::KILL);
    let _ = rustix::process::waitpid(Some(beside), rustix::process::WaitOptions::empty());
    drop(stack);
    assert_eq!((all.distinct.len(), all.unknown.len()), (2, 0));
    assert!(pids.iter().all(|pid| all.distinct.contains(pid)));
}

#[test]
fn a_tenant_is_killed_with_all_processes_that_it_started() {
    let (_groups, group, mut child) = group_of("(sleep 20 & sleep 20) & sleep 20");
    let begin = Instant::now();
    while group.processes().len() < 4 && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(POLL_INTERVAL);
    }
    let there = group.processes();
    assert_eq!(there.len(), 4);
    assert!(
        group.is_alive()
            && group.resident(0).unwrap() > 0
            && group.resident_exactly(0).unwrap() > 0
    );
    // Each process has some 100 KiB once it executes its program. The unused allowance of the others does not count for one.
    let own = |pid: &Pid| procfs::anonymous(*pid).unwrap().unwrap();
    let exceeds = || {
        let most = there.iter().map(own).max().unwrap();
        (1024..=4 * 1024).contains(&group.resident(most - 1024).unwrap())
    };
    while !exceeds() && begin.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(POLL_INTERVAL);
    }
    assert!(exceeds());
    std::thread::scope(|scope| {
        scope.spawn(|| child.wait());
        assert!(group.kill_and_await_exit(Duration::from_secs(5)) >= 4);
    });
    assert!(!group.is_alive());
    let alive = |pid: &&Pid| process_tree::ProcStat::of(**pid).is_some_and(|stat| !stat.is_dead());
    assert_eq!(there.iter().filter(alive).count(), 0);
    group.remove();
}

#[test]
fn without_a_group_processes_that_outlive_the_leader_stay_the_tenants() {
    let groups = CgroupRoot {
        root: None,
        protects: false,
    };
    let mut child = Command::new("sh")
        .args(["-c", "sleep 20 & sleep 20 & wait"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    let group = groups.create_entered(pid, process_tree::process(pid).start, 1);
    let begin = Instant::now();
    while group.processes().len() < 3 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(POLL_INTERVAL);
    }
    let there = group.processes();
    assert_eq!(there.len(), 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!group.is_alive());
    assert_eq!(group.processes().len(), 2);
    group.kill_and_await_exit(Duration::from_secs(20));
    let alive = |pid: &&Pid| process_tree::ProcStat::of(**pid).is_some_and(|stat| !stat.is_dead());
    assert_eq!(there.iter().filter(alive).count(), 0);
    assert!(group.processes().is_empty());
}

#[test]
fn a_tenant_whose_processes_cannot_be_read_is_killed_once_they_can() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const LIMITED: &str = "SELFPAGE_TEST_LIMITED";
    if std::env::var_os(LIMITED).is_none() {
        // The limit applies to all threads.
        let limited = Command::new(std::env::current_exe().unwrap())
            .args([
                "a_tenant_whose_processes_cannot_be_read",
                "--test-threads=1",
            ])
            .env(LIMITED, "1")
            .output()
            .unwrap();
        return assert!(limited.status.success(), "{limited:?}");
    }
    let (_groups, group, mut child) = group_of("sleep 20 & sleep 20");
    let begin = Instant::now();
    while group.processes().len() < 3 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(POLL_INTERVAL);
    }
    let there = group.processes();
    let before = getrlimit(Resource::Nofile);
    let current = Some(0);
    let none = Rlimit { current, ..before };
    setrlimit(Resource::Nofile, none).unwrap();
    assert!(group.try_processes().is_err() && group.resident(0).is_err());
    std::thread::scope(|scope| {
        let kill = scope.spawn(|| group.kill_and_await_exit(Duration::ZERO));
        let begin = Instant::now();
        while !kill.is_finished() && begin.elapsed() < 3 * RETRY_PAUSE {
            std::thread::sleep(POLL_INTERVAL);
        }
        assert!(!kill.is_finished());
        setrlimit(Resource::Nofile, before).unwrap();
        scope.spawn(|| child.wait());
        while !kill.is_finished() {
            std::thread::sleep(POLL_INTERVAL);
        }
    });
    let begin = Instant::now();
    let is_alive =
        |pid: &&Pid| process_tree::ProcStat::of(**pid).is_some_and(|stat| !stat.is_dead());
    while there.iter().filter(is_alive).count() > 0 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(POLL_INTERVAL);
    }
    assert_eq!((there.len(), there.iter().filter(is_alive).count()), (3, 0));
    group.remove();
}

/// A small file system, frozen and thawed by these tests.
struct FrozenMount(tempfile::TempDir);

impl FrozenMount {
    /// `None` where this process may not mount a file system.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
        let it = Self(folder);
        fs::create_dir(it.path()).unwrap();
        let (image, path) = (image.to_str()?, it.path());
        let is_made = run("mkfs.ext4", &["-q", image])
            && run("mount", &["-o", "loop", image, path.to_str()?])
            && run("fsfreeze", &["-f", path.to_str()?]);
        is_made.then_some(it)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("mount")
    }

    fn thaw(&self) {
        run("fsfreeze", &["-u", self.path().to_str().unwrap()]);
    }
}

impl Drop for FrozenMount {
    fn drop(&mut self) {
        self.thaw();
        run("umount", &[self.path().to_str().unwrap()]);
    }
}

fn run(program: &str, args: &[&str]) -> bool {
    let done = Command::new(program)
        .args(args)
        .stderr(Stdio::null())
        .status();
    done.is_ok_and(|status| status.success())
}

#[test]
fn a_process_that_the_kernel_keeps_is_awaited_until_it_ends() {
    let Some(mount) = FrozenMount::new() else {
        return println!("SKIPPED: no file system can be mounted and frozen here");
    };
    let script = format!("echo > {}/file", mount.path().display());
    let (_groups, group, mut child) = group_of(&script);
    let pid = Pid::from_child(&child);
    let begin = Instant::now();
    let waits = || process_tree::ProcStat::of(pid).is_some_and(|stat| stat.state == b'D');
    while !waits() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(POLL_INTERVAL);
    }
    assert!(waits());
    std::thread::scope(|scope| {
        let kill = scope.spawn(|| group.kill_and_await_exit(Duration::ZERO));
        let begin = Instant::now();
        while !kill.is_finished() && begin.elapsed() < 3 * RETRY_PAUSE {
            std::thread::sleep(POLL_INTERVAL);
        }
        let was_gone = kill.is_finished();
        mount.thaw();
        scope.spawn(|| child.wait());
        assert_eq!((was_gone, kill.join().unwrap()), (false, 1));
    });
    group.remove();
}
