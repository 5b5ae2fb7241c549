//! A campaign: runs seeds one after the other until the time is over, and keeps its findings.

use crate::execution::{Difference, Failure, Setup, compare};
use crate::program::Program;
use crate::{emit, generate, shrink};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most time that one program is shrunk for.
const SHRINKING: Duration = Duration::from_secs(120);

/// Programs kept of one kind of difference: more would be the same defect.
const KEPT: u64 = 3;

/// Interval of the progress messages.
const REPORTS: Duration = Duration::from_secs(600);

/// The settings of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// How programs are run.
    pub setup: Setup,
    /// The first seed; others follow it.
    pub seed: u64,
    /// For how long.
    pub time: Duration,
    /// Programs at a time.
    pub jobs: usize,
    /// Where programs that fail are kept.
    pub findings: PathBuf,
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct Results {
    /// Seeds run.
    pub seeds: u64,
    /// The time of the last progress message.
    said: Option<Instant>,
    /// Differences, by kind, and how often each.
    pub differences: BTreeMap<String, u64>,
    /// Programs that are wrong by themselves.
    pub wrong: Vec<String>,
}

impl Campaign {
    /// Runs it.
    pub fn run(&self) -> Result<Results, Failure> {
        std::fs::create_dir_all(&self.findings)?;
        let kept = Mutex::new(self.kept()?);
        let next = AtomicU64::new(self.seed);
        let until = Instant::now() + self.time;
        let results = Mutex::new(Results::default());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.max(1))
                .map(|_| {
                    scope.spawn(|| {
                        while Instant::now() < until {
                            self.one(next.fetch_add(1, Ordering::Relaxed), &results, &kept)?;
                        }
                        Ok::<(), Failure>(())
                    })
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| match worker.join() {
                    Ok(result) => result,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
        })?;
        Ok(results.into_inner().unwrap_or_default())
    }

    /// How many programs of each kind of difference are kept, by this campaign and those
    /// before it.
    fn kept(&self) -> std::io::Result<BTreeMap<String, u64>> {
        let mut kept = BTreeMap::new();
        for entry in std::fs::read_dir(&self.findings)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "kind") {
                *kept.entry(std::fs::read_to_string(path)?).or_default() += 1;
            }
        }
        Ok(kept)
    }

    fn one(
        &self,
        seed: u64,
        results: &Mutex<Results>,
        kept: &Mutex<BTreeMap<String, u64>>,
    ) -> Result<(), Failure> {
        let program = generate::program(seed);
        let outcome = compare(&self.setup, &program);
        let mut counted = results.lock().expect("no thread panics while it counts");
        counted.seeds += 1;
        if counted.said.get_or_insert_with(Instant::now).elapsed() > REPORTS {
            counted.said = Some(Instant::now());
            println!(
                "{} seeds, {:.2} hours of processor time",
                counted.seeds,
                processor_hours()
            );
        }
        let difference = match outcome {
            Ok(None) => return Ok(()),
            Ok(Some(difference)) => difference,
            Err(Failure::Program(why)) => {
                eprintln!("seed {seed}: the program is wrong by itself: {why}");
                counted.wrong.push(format!("seed {seed}: {why}"));
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        let kind = difference.kind();
        *counted.differences.entry(kind.clone()).or_default() += 1;
        drop(counted);
        eprintln!("seed {seed}: {kind}");
        let mut all = kept.lock().expect("no thread panics while it counts");
        let times = all.entry(kind).or_default();
        *times += 1;
        let keep = *times <= KEPT;
        drop(all);
        if keep {
            self.keep(seed, &program, &difference)?;
        }
        Ok(())
    }

    /// Writes down what failed: as it was, shrunk, and in C.
    fn keep(&self, seed: u64, program: &Program, difference: &Difference) -> Result<(), Failure> {
        let file = |ending: &str| self.findings.join(format!("{seed}.{ending}"));
        std::fs::write(file("kind"), difference.kind())?;
        std::fs::write(file("full"), program.to_string())?;
        std::fs::write(file("difference"), difference.to_string())?;
        let mut setup = self.setup.clone();
        setup.patience = setup.patience.min(Duration::from_secs(3));
        let kind = difference.kind();
        let small = shrink::shrink(
            program,
            Instant::now() + SHRINKING,
            |candidate| matches!(compare(&setup, candidate), Ok(Some(found)) if found.kind() == kind),
        );
        std::fs::write(file("program"), small.to_string())?;
        std::fs::write(file("c"), emit::source(&small))?;
        if let Ok(Some(last)) = compare(&setup, &small) {
            std::fs::write(file("difference"), last.to_string())?;
        }
        Ok(())
    }
}

/// The processor time of this process and of all its reaped descendants.
pub fn processor_hours() -> f64 {
    // utime, stime, cutime and cstime of proc(5), in ticks, which are of 10 ms to programs.
    const FIRST: usize = 11;
    const TICKS_AN_HOUR: f64 = 3600.0 * 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let times = after_name.split_whitespace().skip(FIRST).take(4);
    times
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_AN_HOUR
}

/// The programs that failed once, in a folder: each with its name.
pub fn corpus(folder: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "program") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            programs.push((name.into_owned(), std::fs::read_to_string(&path)?));
        }
    }
    programs.sort();
    Ok(programs)
}
