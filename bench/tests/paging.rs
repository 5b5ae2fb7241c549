//! The benchmark itself: that it has figures of what it says it measures, verified, and
//! that it leaves nothing behind. Never how long anything took.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Arms that need no privilege and nothing outside this crate.
const ARMS: [&str; 4] = ["linked-ram", "linked-both", "device", "resident"];

/// All passes.
const PASSES: [&str; 7] = [
    "fill",
    "sequential-read",
    "strided-read",
    "random-read",
    "random-rmw",
    "zipf",
    "sequential-rmw",
];

/// A folder of a test's own, on the disk the tests are built on; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let own = format!("{name}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(own);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selfpage-bench"));
    command.args(["paging", "--folder"]).arg(&folder.0);
    command
}

#[test]
fn every_arm_has_verified_figures_of_every_pass_and_no_file_is_left() {
    let (folder, results) = (Folder::new("figures"), Folder::new("results"));
    let (json, svg) = (results.0.join("all.json"), results.0.join("all.svg"));
    let output = bench(&folder)
        .args(["--data", "8", "--frames", "2", "--accesses", "200"])
        .args(["--repeats", "2", "--threads", "1,2"])
        .args(["--arms", &ARMS.join(",")])
        .arg("--json")
        .arg(&json)
        .arg("--svg")
        .arg(&svg)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Wrong data in any arm is a failure.
    assert!(output.status.success(), "{said}");
    assert_eq!(folder.files(), Vec::<PathBuf>::new());

    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("contents verified"), "{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let arms = report["arms"].as_array().unwrap();
    assert_eq!(arms.len(), 2 * ARMS.len());
    for arm in arms {
        assert!(arm["failure"].is_null(), "{}", arm["failure"]);
        assert_eq!(arm["runs"].as_array().unwrap().len(), 2);
        for pass in PASSES {
            let ns = &arm["medians"][pass]["ns_per_page"];
            let bounds = ["low", "median", "high"].map(|bound| ns[bound].as_f64().unwrap());
            assert!(bounds.is_sorted() && bounds[0] > 0.0, "{pass}: {ns}");
        }
        assert!(arm["medians"]["random-read"]["p99_ns"].is_f64());
    }
    let ratio = |ratio: &Value| ratio["ours"] == "linked-ram" && ratio["theirs"] == "device";
    let ratios = report["ratios"].as_array().unwrap();
    assert!(!ratios.iter().any(ratio), "they are on other media");
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("linked-both"));
}

#[test]
fn a_benchmark_that_is_killed_leaves_no_file_and_no_worker() {
    let folder = Folder::new("killed");
    let benchmark = Killed(
        bench(&folder)
            .args(["--arms", "device", "--data", "64", "--frames", "4"])
            .args(["--repeats", "1000"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    until(|| !folder.files().is_empty() && !workers(&benchmark.0).is_empty());
    let workers = workers(&benchmark.0);
    drop(benchmark);
    until(|| folder.files().is_empty());
    until(|| workers.iter().all(|pid| !lives(*pid)));
}

/// A process to be killed, by a test that fails too.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The workers a benchmark has just now.
fn workers(benchmark: &Child) -> Vec<u32> {
    let pid = benchmark.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|p| p.parse().ok());
    pids.filter(|pid| {
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        words.is_ok_and(|words| words.split('\0').any(|word| word == "worker"))
    })
    .collect()
}

/// Whether a process is there and not just waited for.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !stat.is_empty() && !state.starts_with('Z')
}

/// Waits for something that is to come soon; a test that waits a minute has failed.
fn until(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn figures_that_could_not_be_written_are_refused_before_anything_is_measured() {
    let done = Command::new(env!("CARGO_BIN_EXE_selfpage-bench"))
        .args(["micro", "--json", "/no/such/folder/x"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(125), "{errors}");
    assert!(
        done.stdout.is_empty() && errors.contains("cannot be written"),
        "{errors}"
    );
}
