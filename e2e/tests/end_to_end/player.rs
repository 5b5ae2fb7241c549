//! `selfpage bench launch` at its smallest: a clip is played in every arm, each frame has its
//! delay, a neighbour is launched beside it and has its usual result, the pictures are drawn,
//! and nothing is left behind, also after kill -9. The figures are not judged here.

use e2e::contract::{Size, selfpage};
use e2e::verdict::{Doing, Verdict, ensure, failed, skipped};
use e2e::{Sandbox, workload};
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Frames that count: of two seconds.
const FRAMES: usize = 60;

/// The longest that anything may take to begin or to be gone.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn trials(_: Size) -> Vec<Trial> {
    trials![
        "player":
        every_arm_plays_the_clip_and_leaves_nothing => arms,
        a_bench_that_is_killed_leaves_nothing => killed,
    ]
}

/// The benchmark with one small neighbour, little load and so many seconds of the clip, in
/// `work`.
fn bench(sandbox: &Sandbox, work: &Path, seconds: usize) -> Verdict<Command> {
    for program in ["ffmpeg", "python3"] {
        if workload::find(program).is_none() {
            return skipped(format!(
                "{program} is not installed (Debian package {program})"
            ));
        }
    }
    std::fs::create_dir(work).at("make", work)?;
    let mut command = Command::new(selfpage()?);
    command
        .args(["bench", "launch", "--only", "python", "--mib", "16"])
        .args(["--read-ahead", "1", "--repeats", "1", "--load", "0.1"])
        .args(["--seconds", &seconds.to_string(), "--folder"])
        .arg(work)
        .current_dir(sandbox.path())
        .envs(sandbox.environment())
        .stdin(Stdio::null());
    Ok(command)
}

fn arms() -> Verdict {
    let sandbox = Sandbox::new("player")?;
    let (work, figures, drawn) = (
        sandbox.join("work"),
        sandbox.join("all.json"),
        sandbox.join("pictures"),
    );
    let mut bench = bench(&sandbox, &work, FRAMES / 30)?;
    bench.arg("--json").arg(&figures).arg("--svg").arg(&drawn);
    let output = bench.output().doing(|| "run the benchmark".into())?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure(output.status.success(), || said.clone())?;
    for words in ["table 1:", "table 11:", "clip: ", "load 0.100 processors"] {
        ensure(said.contains(words), || format!("no {words:?} in {said}"))?;
    }
    let text = std::fs::read(&figures).at("read", &figures)?;
    let all: Value = serde_json::from_slice(&text).doing(|| "understand the figures".into())?;
    let scenes = all["details"]["scenes"].as_array();
    let [scene] = scenes.map_or(&[][..], Vec::as_slice) else {
        return failed(format!("there is not one scene in {}", all["details"]));
    };
    let arms = scene["arms"].as_array().map_or(&[][..], Vec::as_slice);
    ensure(arms.len() == 5, || format!("{} arms", arms.len()))?;
    arms.iter().try_for_each(played)?;
    let picture = drawn.join("launch-python-1.svg");
    let svg = std::fs::read_to_string(&picture).at("read", &picture)?;
    ensure(svg.contains("figure 5"), || "no figure 5".into())?;
    empty(&work)
}

/// An arm has a delay for each frame and, but for the player alone, a launch; or it names the
/// feature that this machine, or `run`, does not have.
fn played(arm: &Value) -> Verdict {
    let name = arm["arm"].as_str().unwrap_or_default();
    if let Some(why) = arm["failure"].as_str() {
        let lacks = match name {
            "ours-limited" => why.contains("the arm lacks `run "),
            "swap" => !why.is_empty(),
            _ => false,
        };
        return ensure(lacks, || format!("{name}: {why}"));
    }
    let round = &arm["rounds"][0];
    let delays = round["lateness_us"].as_array().map_or(0, Vec::len);
    ensure(delays == FRAMES, || format!("{name}: {delays} delays"))?;
    let launched = round["launch"]
        .as_f64()
        .is_some_and(|seconds| seconds > 0.0);
    ensure(launched == (name != "alone"), || {
        format!("{name}: launched {}", round["launch"])
    })?;
    let count = |field: &str| round["quality"][field].as_u64().unwrap_or(u64::MAX);
    ensure(
        count("longest_run") <= count("missed") && count("missed") <= count("frames"),
        || format!("{name}: {}", round["quality"]),
    )?;
    let counters = !round["counters"][0].is_null() && !round["counters"][1].is_null();
    ensure(counters == name.starts_with("ours"), || {
        format!("{name}: counters of `run`: {counters}")
    })
}

fn killed() -> Verdict {
    let sandbox = Sandbox::new("stopped")?;
    let work = sandbox.join("work");
    let mut bench = bench(&sandbox, &work, 120)?;
    bench.args(["--arms", "ours", "--limit", "600"]);
    bench.stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = bench.spawn().doing(|| "start the benchmark".into())?;
    // A decoder that plays for ever is there once the sink has started it.
    let playing = || with_words(&["ffmpeg", "-stream_loop", &work.to_string_lossy()]);
    let began = until(|| !playing().is_empty());
    let stopped = bench.kill().and_then(|()| bench.wait());
    stopped.doing(|| "kill the benchmark".into())?;
    ensure(began, || "no decoder was ever started".into())?;
    ensure(until(|| playing().is_empty()), || {
        format!("still there: {:?}", playing())
    })?;
    // What ends with it may write figures until it has ended.
    let users = || with_words(&[&work.to_string_lossy()]);
    ensure(until(|| users().is_empty()), || {
        format!("still there: {:?}", users())
    })?;
    until(|| empty(&work).is_ok());
    empty(&work)
}

/// The processes whose command line has all of some words.
fn with_words(words: &[&str]) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|process| {
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    let all = |line: &String| words.iter().all(|word| line.contains(word));
    lines.filter(all).collect()
}

fn until(what: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while !what() {
        if begin.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn empty(folder: &Path) -> Verdict {
    let entries = std::fs::read_dir(folder).at("read", folder)?;
    let left: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    ensure(left.is_empty(), || format!("left behind: {left:?}"))
}
