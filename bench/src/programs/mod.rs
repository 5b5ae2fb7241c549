//! `selfpage bench programs`: programs that people know, in less memory than they take.
//!
//! Each program runs alone first: the peak of its cgroup is the memory that it takes. Then it has a
//! half, a quarter and an eighth of that, under the kernel's swap and under ours ([`arm`] has what
//! counts as memory). All arms have the same input, read from the page cache, and a run whose output
//! differs from the first has no figure. A program that the kernel kills, or that takes too long, is
//! a result and no error.
//!
//! | file | what it is |
//! |---|---|
//! | `program`, `sqlite`, `python`, `sort`, `lines`, `gcc`, `redis` | the programs and their input |
//! | `arm`, `fraction` | the ways to run them, and in how much memory |
//! | `trial`, `child` | one run |
//! | `analysis`, `plot` | tables, rows, data; the picture |

mod analysis;
mod arm;
mod child;
mod fraction;
mod gcc;
mod lines;
mod options;
mod plot;
mod postgres;
mod program;
mod python;
mod redis;
mod sort;
mod sqlite;
mod trial;

pub use options::ProgramsOptions;

use crate::daemon_fixture::DaemonDisk;
use crate::env::find_allocator;
use crate::prelude::*;
use crate::repeats::{Repeats, run_each};
use analysis::Part;
use arm::MemoryArm;
use program::{KnownProgram, Workload};
use serde_json::Value;
use std::process::ExitCode;
use trial::{Allotment, TrialFigures};

/// The time of a quick look: two minutes, less what it takes to put the machine back.
const QUICK: Duration = Duration::from_secs(110);

/// Times what a program takes alone that a run under a limit is taken to need, of which a quick look
/// is judged beforehand.
const SLOWER: u32 = 2;

/// MiB of the daemon's beyond the contract: its reserve, and its grants to requests.
const MARGIN: u64 = 64;

/// A program that was run alone.
struct Measured {
    program: KnownProgram,
    work: Workload,
    alone: TrialFigures,
}

/// The time that is left for runs.
struct Budget {
    /// When a quick look is to be over.
    end: Option<Instant>,
    /// The longest that a run may take.
    limit: Duration,
    /// Runs to come.
    runs: u64,
}

impl Budget {
    /// How long the next run may take: in a quick look its part of what is left.
    fn next(&mut self) -> Duration {
        let runs = self.runs.max(1) as u32;
        self.runs = self.runs.saturating_sub(1);
        let left = |end: Instant| end.saturating_duration_since(Instant::now()) / runs;
        self.end.map_or(self.limit, |end| left(end).min(self.limit))
    }
}

/// Measures and prints.
pub fn run(options: &ProgramsOptions) -> Result<ExitCode> {
    let options = &options.clone().settled();
    let mut env = TestEnv::new(&options.env)?;
    env.allocator = find_allocator(options.allocator.as_deref());
    child::adopt()?;
    let mut budget = Budget {
        end: options.quick.then(|| Instant::now() + QUICK),
        limit: Duration::from_secs(options.limit),
        runs: options.only.len() as u64 * options.runs_each(),
    };
    let machine = Machine::now(&env.folder);
    let mut report = Report::new("programs", machine, Vec::new());
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for program in &options.only {
        match measure(*program, options, &env, &mut budget) {
            Ok(measured) => all.push(measured),
            Err(why) => rows.push(Row::lacking(program.name(), why)),
        }
    }
    check_quick(options, &all, &budget)?;
    let mut arms = options.arms.clone();
    let daemon = match start_daemon(&mut env, options, &all) {
        Ok(daemon) => daemon,
        Err(why) => {
            arms.retain(|arm| *arm != MemoryArm::OursContract);
            rows.push(Row::lacking(MemoryArm::OursContract.name(), why));
            None
        }
    };
    budget.runs = (all.len() * options.memory.len() * arms.len()) as u64 * options.repeats;
    report.settings = settings(options, &all, &rows);
    let mut parts: Vec<Part> = Vec::new();
    for measured in &all {
        for fraction in &options.memory {
            let part = compare(
                measured,
                *fraction,
                options.repeats,
                &arms,
                |arm, memory| {
                    let (work, limit) = (&measured.work, budget.next());
                    trial::run(&env, daemon.as_ref(), arm, work, memory, limit)
                },
            );
            progress("");
            rows.extend(part.rows());
            parts.push(part);
            let data = parts.iter().map(Part::json).collect::<Vec<Value>>();
            report.data.insert("parts".into(), data.into());
            let table = parts.last().map(Part::table);
            report.publish_tables(table, options.env.json.as_deref())?;
        }
    }
    if let Some(path) = &options.svg {
        crate::plot::save(plot::drawn(&parts, &report.machine), path)?;
    }
    let summaries = options.memory.iter().map(|f| analysis::summary(*f, &parts));
    report.publish_tables(summaries, options.env.json.as_deref())?;
    report.publish_part(rows, options.env.json.as_deref())?;
    report.conclude(options.env.json.as_deref())
}

/// Runs a program in a part of its memory, in each arm as often as it is to be.
fn compare(
    measured: &Measured,
    fraction: fraction::Fraction,
    repeats: u64,
    arms: &[MemoryArm],
    mut run: impl FnMut(MemoryArm, Allotment) -> Result<TrialFigures>,
) -> Part {
    let memory = Allotment {
        bytes: measured.alone.peak(),
        limit: fraction.of(measured.alone.peak()),
    };
    let mut series = Repeats::of(arms);
    for repeat in 0..repeats {
        run_each(&mut series, repeat, |arm, _| {
            let (name, arm_name) = (part_name(measured, fraction), arm.name());
            progress(&format!("{name}: {arm_name}, {} of {repeats}", repeat + 1));
            same(run(arm, memory)?, &measured.alone)
        });
    }
    Part {
        program: measured.program,
        fraction,
        memory,
        series,
    }
}

fn part_name(measured: &Measured, fraction: fraction::Fraction) -> String {
    format!("{} in {}", measured.program.name(), fraction.about())
}

/// Prepares a program and runs it alone.
fn measure(
    program: KnownProgram,
    options: &ProgramsOptions,
    env: &TestEnv,
    budget: &mut Budget,
) -> Result<Measured> {
    progress(&format!("{}: its input, then a run alone", program.name()));
    let work = program.prepare(options, env)?;
    let none = Allotment { bytes: 0, limit: 0 };
    let alone = trial::run(env, None, MemoryArm::Alone, &work, none, budget.next())?;
    Ok(Measured {
        program,
        work,
        alone,
    })
}

/// Refuses a quick look that could not be one, before anything is compared.
fn check_quick(options: &ProgramsOptions, all: &[Measured], budget: &Budget) -> Result<()> {
    let Some(end) = budget.end else {
        return Ok(());
    };
    let runs = (options.arms.len() * options.memory.len()) as u32 * options.repeats as u32;
    let alone: Duration = all.iter().map(|one| one.alone.done.elapsed).sum();
    let (needed, left) = (
        alone * runs * SLOWER,
        end.saturating_duration_since(Instant::now()),
    );
    if needed > left {
        bail!(
            "no judged answer in two minutes here: the programs take {:.1} s alone, {runs} runs of each in less memory \
             about {} s, and {} s are left; leave out --quick, or have less to do (--only, --arms, --mib)",
            alone.as_secs_f64(),
            needed.as_secs(),
            left.as_secs()
        );
    }
    Ok(())
}

/// With memory and swap for any one of the programs, where an arm needs it.
fn start_daemon(
    env: &mut TestEnv,
    options: &ProgramsOptions,
    all: &[Measured],
) -> Result<Option<DaemonFixture>> {
    let most = all.iter().map(|one| one.alone.peak() >> 20).max();
    let Some(most) = most.filter(|_| options.arms.contains(&MemoryArm::OursContract)) else {
        return Ok(None);
    };
    let most = most * 3 / 2 + MARGIN;
    env.disk = Some(DaemonDisk::new(env, most + MARGIN)?);
    progress("the daemon: it measures the disk");
    DaemonFixture::start(env, DaemonConfig::of(most)).map(Some)
}

/// A run that lost or changed data has no figure.
fn same(done: TrialFigures, alone: &TrialFigures) -> Result<TrialFigures> {
    match done.done.digest == alone.done.digest {
        true => Ok(done),
        false => Err(anyhow!("its output differs from that of the run alone")),
    }
}

fn settings(options: &ProgramsOptions, all: &[Measured], skipped: &[Row]) -> Vec<String> {
    let mut lines = vec![
        "a run's memory is the peak of its cgroup, zram's pages added; what a program takes is measured alone".into(),
        "in every arm but alone, zram and ours-ram the cgroup's limit is for everything: the program, our pager \
         processes, tables, compressed pages; in zram and ours-ram compressed pages are beyond it".into(),
        format!("medians of {} interleaved and rotated runs, outputs compared", options.repeats),
    ];
    lines.extend(all.iter().map(|one| {
        let (what, alone) = (one.program.about(), one.alone);
        let (mib, time) = (alone.peak() >> 20, alone.done.elapsed.as_secs_f64());
        format!("{}: {what}; {mib} MiB, {time:.1} s", one.program.name())
    }));
    let why = |row: &Row| {
        Some(format!(
            "skipped: {}: {:#}",
            row.what,
            row.failure.as_ref()?
        ))
    };
    lines.extend(skipped.iter().filter_map(why));
    lines
}
