//! Runs a program without the pager and under it, and compares.

use crate::program::Program;
use crate::stall::{Stall, threads_of};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The settings of runs: binaries and time limits.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The interpreter, or a program written out in C.
    pub interpreter: PathBuf,
    /// The binary under test.
    pub selfpage: PathBuf,
    /// A run that logs nothing for so long, and then for so long again, hangs. The second
    /// time is longer by what its threads wait for a processor.
    pub patience: Duration,
    /// Where runs have their working folders: on a disk.
    pub folder: PathBuf,
    /// Pages that the runs under the pager have written to their stores so far: with none, the runs
    /// have not exercised paging.
    pub written_pages: Arc<AtomicU64>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Exit(i32),
    /// By a signal.
    Killed(i32),
    /// It made no progress; where its threads were.
    Hang(String),
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The log by path of execution: each has one order.
    pub log: BTreeMap<String, Vec<String>>,
    /// How it ended.
    pub end: End,
    /// Its standard error.
    pub errors: String,
}

/// What differs between two runs.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The first differing line without the pager.
    pub without: String,
    /// The same under it.
    pub under: String,
    /// What the run under the pager printed, or where it hung.
    pub errors: String,
}

impl Difference {
    /// What kind of difference this is: the operation, and the results with what is
    /// particular to them left out.
    pub fn kind(&self) -> String {
        let shape = |line: &str| -> String {
            let (operation, result) = line.split_once(" =").unwrap_or((line, ""));
            let name = operation.split_whitespace().nth(1).unwrap_or(operation);
            let mut words: Vec<&str> = result
                .split_whitespace()
                .map(|word| word.split('*').next().unwrap_or(word))
                .map(
                    |word| match word.len() == 4 && word.bytes().all(|b| b.is_ascii_hexdigit()) {
                        true => "contents",
                        false => word,
                    },
                )
                .collect();
            words.sort_unstable();
            words.dedup();
            format!("{name}: {}", words.join(" "))
        };
        format!("{} | {}", shape(&self.without), shape(&self.under))
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "without the pager: {}", self.without)?;
        writeln!(f, "under the pager:   {}", self.under)?;
        write!(f, "{}", self.errors)
    }
}

/// Why nothing can be compared.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The system refused the harness something.
    #[error("cannot run programs: {0}")]
    Harness(#[from] std::io::Error),
    /// The program itself is wrong, or has no one result.
    #[error("the program is wrong without the pager: {0}")]
    Program(String),
}

/// Runs `program` both ways; `None` where they agree.
pub fn compare(setup: &Setup, program: &Program) -> Result<Option<Difference>, Failure> {
    let folder = tempfile::Builder::new()
        .prefix("selfpage-fuzz-")
        .tempdir_in(&setup.folder)?;
    let text = folder.path().join("program");
    std::fs::write(&text, program.to_string())?;
    let without = run(
        setup,
        folder.path(),
        Command::new(&setup.interpreter),
        "without",
    )?;
    if without.end != End::Exit(0) {
        return Err(Failure::Program(format!("{:?}", without.end)));
    }
    if let Some(line) = without.log.values().flatten().find(|l| l.contains("WRONG")) {
        return Err(Failure::Program(line.clone()));
    }
    let statistics = folder.path().join("statistics");
    let mut command = Command::new(&setup.selfpage);
    command
        .args([
            "run",
            "--frames",
            &program.frames,
            "--store",
            &program.store,
            "--stats-json",
        ])
        .arg(&statistics)
        .arg("--")
        .arg(&setup.interpreter);
    let under = run(setup, folder.path(), command, "under")?;
    let statistics = std::fs::read_to_string(&statistics).unwrap_or_default();
    setup
        .written_pages
        .fetch_add(written_pages(&statistics), Ordering::Relaxed);
    Ok(difference(&without, &under))
}

/// The counter of that name in the statistics of a run; 0 where the run was killed and wrote none.
fn written_pages(statistics: &str) -> u64 {
    let after = statistics.split("\"written_pages\":").nth(1);
    let number = after.and_then(|rest| rest.split([',', '}']).next());
    number.map_or(0, |number| number.trim().parse().unwrap_or(0))
}

/// The first difference between two runs of one program.
pub fn difference(without: &Run, under: &Run) -> Option<Difference> {
    let found = |a: &str, b: &str| {
        let mut errors = under.errors.clone();
        if let End::Hang(threads) = &under.end {
            let _ = write!(errors, "\n{threads}");
        }
        Some(Difference {
            without: a.into(),
            under: b.into(),
            errors,
        })
    };
    // A line that no right run has says most.
    if let Some(line) = under.log.values().flatten().find(|l| l.contains("WRONG")) {
        return found("no such line", line);
    }
    let end = match &under.end {
        End::Hang(_) => "hang".into(),
        end => format!("{end:?}"),
    };
    let nothing = Vec::new();
    let paths = without.log.keys().chain(under.log.keys());
    for path in paths {
        let a = without.log.get(path).unwrap_or(&nothing);
        let b = under.log.get(path).unwrap_or(&nothing);
        for n in 0..a.len().max(b.len()) {
            let line = |lines: &[String]| lines.get(n).cloned();
            let (one, other) = (line(a), line(b));
            if one == other {
                continue;
            }
            // A line that is missing says less than one that is another: the process
            // that was to write it may have ended early, which its parent's line says.
            if let (Some(one), Some(other)) = (&one, &other) {
                return found(one, other);
            }
            if under.end != without.end {
                return found(&one.unwrap_or_default(), &format!("{path} end = {end}"));
            }
        }
    }
    if without.log != under.log {
        return found("another log", "");
    }
    (under.end != without.end).then(|| found("end = Exit(0)", &format!("0 end = {end}")))?
}

fn run(setup: &Setup, folder: &Path, mut command: Command, name: &str) -> std::io::Result<Run> {
    let work = folder.join(name);
    std::fs::create_dir(&work)?;
    let (log, errors) = (
        folder.join(format!("{name}.log")),
        folder.join(format!("{name}.err")),
    );
    std::fs::write(&log, "")?;
    // SAFETY: one system call, which a child may do before it executes.
    unsafe { command.pre_exec(end_with_parent) };
    let mut child = command
        .arg(folder.join("program"))
        .arg(&log)
        .current_dir(&work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&errors)?)
        .process_group(0)
        .spawn()?;
    let end = watch(&mut child, &log, setup.patience)?;
    let mut by_path: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&std::fs::read(&log)?).lines() {
        let path = line.split(' ').next().unwrap_or_default();
        by_path.entry(path.into()).or_default().push(line.into());
    }
    Ok(Run {
        log: by_path,
        end,
        errors: String::from_utf8_lossy(&std::fs::read(&errors)?).into_owned(),
    })
}

/// A campaign that is interrupted leaves no programs behind.
fn end_with_parent() -> std::io::Result<()> {
    let signal = Some(rustix::process::Signal::KILL);
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}

/// How many times the patience a run without progress has at most, however busy the machine.
const MOST_PATIENCE: u32 = 10;

/// Interval of the checks of a run without progress.
const LOOK: Duration = Duration::from_millis(500);

/// Waits for the end of a run; one whose log does not grow is ended.
fn watch(child: &mut Child, log: &Path, patience: Duration) -> std::io::Result<End> {
    let mut length = 0;
    let mut since = Instant::now();
    let mut stall: Option<Stall> = None;
    let mut nap = Duration::from_millis(2);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match status.signal() {
                Some(signal) => End::Killed(signal),
                None => End::Exit(status.code().unwrap_or(-1)),
            });
        }
        let now = std::fs::metadata(log)?.len();
        if now != length {
            (length, since, stall) = (now, Instant::now(), None);
            nap = nap.min(Duration::from_millis(20));
        } else if since.elapsed() > patience {
            nap = LOOK;
            let stall = stall.get_or_insert_with(|| Stall::begin(child.id()));
            if stall.unstarved() > patience || since.elapsed() > patience * MOST_PATIENCE {
                let threads = threads_of(child.id());
                let group = rustix::process::Pid::from_child(child);
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                child.wait()?;
                return Ok(End::Hang(threads));
            }
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(20)).max(nap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(lines: &[&str], end: End) -> Run {
        let mut log: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in lines {
            let path = line.split(' ').next().unwrap_or_default();
            log.entry(path.into()).or_default().push((*line).into());
        }
        Run {
            log,
            end,
            errors: String::new(),
        }
    }

    #[test]
    fn runs_that_log_the_same_agree_in_whatever_order_of_paths() {
        let a = run_of(&["0 sum = 1", "0.1 sum = 2"], End::Exit(0));
        let b = run_of(&["0.1 sum = 2", "0 sum = 1"], End::Exit(0));
        assert!(difference(&a, &b).is_none());
    }

    #[test]
    fn another_result_another_end_and_a_missing_line_are_differences() {
        let a = run_of(&["0 sum = 1", "0 sum = 2"], End::Exit(0));
        let other = run_of(&["0 sum = 1", "0 sum = 3"], End::Exit(0));
        assert_eq!(difference(&a, &other).expect("differs").under, "0 sum = 3");
        let killed = run_of(&["0 sum = 1"], End::Killed(9));
        assert_eq!(
            difference(&a, &killed).expect("differs").under,
            "0 end = Killed(9)"
        );
        let shorter = run_of(&["0 sum = 1"], End::Exit(0));
        assert!(difference(&a, &shorter).is_some());
        let hang = run_of(&["0 sum = 1", "0 sum = 2"], End::Hang(String::new()));
        assert!(difference(&a, &hang).is_some());
    }

    #[test]
    fn the_kind_of_a_difference_leaves_contents_out() {
        let of = |under: &str| Difference {
            without: "0 sum 1 2 = 0*4 12ab".into(),
            under: under.into(),
            errors: String::new(),
        };
        assert_eq!(of("0 sum 1 2 = 0*5").kind(), "sum: 0 contents | sum: 0");
    }
}
