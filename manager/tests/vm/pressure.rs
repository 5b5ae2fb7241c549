//! A memory control group that is over-full: a keeper, its manager, guests, and hogs that take all that is left. The kernel
//! may kill hogs alone, and every guest goes on, beside guests whose allocations fail at random. Once more with the group's
//! disk slowed.

use crate::Test;
use crate::common::{Guest, await_that, mib};
use crate::failing_allocation;
use crate::guest::{Kind, Memory, PAGE, page_bytes};
use crate::kept_service::KeptService;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    (
        "an_over_full_control_group_stops_no_guest",
        an_over_full_control_group_stops_no_guest,
    ),
    (
        "an_over_full_control_group_with_a_slow_disk_stops_no_guest",
        an_over_full_control_group_with_a_slow_disk_stops_no_guest,
    ),
];

/// Bytes of the group.
const GROUP: usize = 96 << 20;
/// Bytes of each guest's memory, eight times its frames.
const GUEST: usize = 16 << 20;
/// Operations a second of the slow disk, in each direction.
const SLOW: usize = 1000;

/// How long the group is full; the environment has another number of seconds.
fn duration() -> Duration {
    let wanted = std::env::var("SELFPAGE_TEST_PRESSURE").ok();
    let seconds = wanted.map_or(3, |it| it.parse().expect("SELFPAGE_TEST_PRESSURE"));
    Duration::from_secs(seconds)
}

fn an_over_full_control_group_stops_no_guest() {
    let Some(group) = Group::limited("memory", &memory_limit()) else {
        return eprintln!("skipped: no memory control group can be made here (as root it can)");
    };
    run_in(&[&group]);
}

fn an_over_full_control_group_with_a_slow_disk_stops_no_guest() {
    let memory = Group::limited("memory", &memory_limit());
    let disk = fs::metadata(std::env::temp_dir()).expect("a folder").dev();
    let (major, minor) = (libc::major(disk), libc::minor(disk));
    let limit = |file| (file, format!("{major}:{minor} {SLOW}"));
    let disk = Group::limited(
        "blkio",
        &[
            limit("blkio.throttle.read_iops_device"),
            limit("blkio.throttle.write_iops_device"),
        ],
    );
    match (memory, disk) {
        (Some(memory), Some(disk)) => run_in(&[&memory, &disk]),
        _ => eprintln!(
            "skipped: no control group can slow the disk of {} here",
            std::env::temp_dir().display()
        ),
    }
}

fn memory_limit() -> Vec<(&'static str, String)> {
    vec![("memory.limit_in_bytes", GROUP.to_string())]
}

/// A control group, which is removed when dropped.
struct Group(PathBuf);

impl Group {
    /// Of this controller, with these limits; with control groups v2 only memory has one.
    fn limited(controller: &str, limits: &[(&str, String)]) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        static GROUPS: AtomicUsize = AtomicUsize::new(0);
        let number = GROUPS.fetch_add(1, Ordering::SeqCst);
        let name = format!("selfpage-test-{}-{number}", std::process::id());
        let is_v2 = root.join("cgroup.procs").exists();
        let folder = if is_v2 {
            root.join(name)
        } else {
            root.join(controller).join(name)
        };
        fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        let write = |(file, limit): &(&str, String)| {
            let file = if is_v2 && controller == "memory" {
                "memory.max"
            } else {
                file
            };
            fs::write(group.0.join(file), limit).ok()
        };
        limits.iter().try_for_each(write).map(|()| group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last of its processes may still be ending.
        let removed = || fs::remove_dir(&self.0).is_ok();
        let end = Instant::now() + Duration::from_secs(5);
        while !removed() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs [`main`] in these groups.
fn run_in(groups: &[&Group]) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.arg("pressure").stdin(Stdio::null());
    let joins: Vec<_> = groups
        .iter()
        .map(|group| group.0.join("cgroup.procs"))
        .collect();
    let files = joins
        .iter()
        .map(|path| fs::File::options().write(true).open(path));
    let mut files: Vec<_> = files.map(|file| file.expect("a group")).collect();
    // SAFETY: the child writes to descriptors that are open.
    unsafe { command.pre_exec(move || files.iter_mut().try_for_each(|file| file.write_all(b"0"))) };
    let status = command.status().expect("this program");
    assert!(status.success(), "{status}");
}

/// What runs in the group: arguments `hog KIND SOCKET` for a hog.
pub fn main(args: &[String]) {
    match args {
        [] => endure(),
        [_, kind, _] if kind == "file" => read_and_write_files(),
        [_, kind, socket] if kind == "guest" => be_a_failing_guest(socket),
        _ => take_memory(),
    }
}

/// Whether the kernel has killed a hog, and whether an allocation of one has failed.
static WAS_FULL: AtomicBool = AtomicBool::new(false);
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

fn endure() {
    let pages = GUEST / PAGE;
    let disk = tempfile::tempdir().expect("a folder");
    let store = format!("disk:{},size=64M", disk.path().display());
    let service = KeptService::start(pages, &store, "-", "lenient");
    let manager = service.manager().expect("a manager");
    let mut guests: Vec<Guest> = (0..3).map(|_| service.guest("memfd", GUEST)).collect();
    await_that("the guests are admitted", || {
        service.clients().is_some_and(|clients| clients.len() == 3)
    });
    guests.iter_mut().for_each(|guest| {
        guest.run("endure 2");
    });
    let (is_over, socket) = (AtomicBool::new(false), service.socket());
    let ends = std::thread::scope(|scope| {
        let kinds = ["memory", "memory", "file", "guest"];
        let keep = |kind| keep_hog(kind, &socket, &is_over);
        let hogs = kinds.map(|kind| scope.spawn(move || keep(kind)));
        std::thread::sleep(duration());
        // On a busy machine that takes longer.
        await_that(
            "the group has been full, and an allocation has failed",
            || WAS_FULL.load(Ordering::SeqCst) && HAS_FAILED.load(Ordering::SeqCst),
        );
        is_over.store(true, Ordering::SeqCst);
        let ends = hogs.map(|hog| hog.join().expect("a hog's thread"));
        ends.into_iter().fold(HogEnds::default(), HogEnds::and)
    });
    let HogEnds { kills, aborts } = ends;
    for mut guest in guests {
        let reply = guest.run("endured");
        let numbers: Vec<usize> = reply
            .split(' ')
            .map(|it| {
                it.parse()
                    .unwrap_or_else(|_| panic!("a guest has ended: {reply:?}"))
            })
            .collect();
        let [wrong, steps, longest] = numbers[..] else {
            panic!("{reply:?}");
        };
        println!(
            "{steps} steps, longest {} ms, {kills} hogs killed, {aborts} without an allocation",
            longest / 1000
        );
        assert_eq!(wrong, 0);
        assert!(steps > 0);
    }
    assert!(kills > 0, "the group was never full");
    assert!(aborts > 0, "no guest's allocation has failed");
    assert_eq!(service.manager(), Some(manager), "the manager was killed");
    for client in service.clients().expect("a manager") {
        assert_eq!(client.counters["lost_pages"], 0);
        assert!(client.counters["resident_pages"] <= mib(2) as u64);
    }
}

/// How hogs have ended.
#[derive(Clone, Copy, Default)]
struct HogEnds {
    /// The kernel killed them.
    kills: usize,
    /// An allocation of theirs failed.
    aborts: usize,
}

impl HogEnds {
    fn add(&mut self, status: ExitStatus) {
        let ended_by = |signal| status.signal() == Some(signal);
        let (killed, aborted) = (ended_by(libc::SIGKILL), ended_by(libc::SIGABRT));
        WAS_FULL.fetch_or(killed, Ordering::SeqCst);
        HAS_FAILED.fetch_or(aborted, Ordering::SeqCst);
        self.kills += usize::from(killed);
        self.aborts += usize::from(aborted);
    }

    fn and(self, other: Self) -> Self {
        Self {
            kills: self.kills + other.kills,
            aborts: self.aborts + other.aborts,
        }
    }
}

/// Starts a hog whenever the one before has ended.
fn keep_hog(kind: &str, socket: &Path, is_over: &AtomicBool) -> HogEnds {
    let start = || {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["pressure", "hog", kind])
            .arg(socket)
            .stderr(Stdio::null())
            .spawn()
    };
    let mut ends = HogEnds::default();
    let mut hog: Option<Child> = None;
    while !is_over.load(Ordering::SeqCst) {
        match hog.as_mut().map(|hog| hog.try_wait().expect("a hog")) {
            // A group that is full refuses processes, too.
            None => hog = start().ok(),
            Some(None) => std::thread::sleep(Duration::from_millis(2)),
            Some(Some(status)) => {
                ends.add(status);
                hog = None;
            }
        }
    }
    if let Some(mut hog) = hog {
        let _ = hog.kill();
        let _ = hog.wait();
    }
    ends
}

/// The kernel kills this process first.
fn be_killed_first() {
    fs::write("/proc/self/oom_score_adj", "1000").expect("a score");
}

fn take_memory() {
    be_killed_first();
    let mut taken = Vec::new();
    loop {
        taken.push(vec![1_u8; 1 << 20]);
    }
}

/// A guest whose allocations fail at random, from before it hands its memory over.
fn be_a_failing_guest(socket: &str) {
    be_killed_first();
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, no_core).expect("a limit");
    failing_allocation::begin();
    let memory = Memory::hand_over(&Kind::Memfd, socket, GUEST);
    for page in (0..GUEST / PAGE).cycle() {
        memory.write(page, 0);
        // Allocates, too.
        assert_eq!(memory.bytes(page), page_bytes(page));
    }
}

/// Fills the group with pages of a file, clean and dirty.
fn read_and_write_files() {
    be_killed_first();
    let mut file = tempfile::tempfile().expect("a file");
    let chunk = vec![1_u8; 1 << 20];
    loop {
        use std::io::{Read, Seek};
        for _ in 0..GROUP >> 20 {
            file.write_all(&chunk).expect("room on the disk");
        }
        file.rewind().expect("a file");
        let mut read = chunk.clone();
        while file.read(&mut read).expect("a file") > 0 {}
        file.rewind().expect("a file");
    }
}
