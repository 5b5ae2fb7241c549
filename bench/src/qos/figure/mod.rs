//! Figures 7, 8 and 9: applications that page, and one that reads a file, each with its
//! share of the disk.
//!
//! "The experiment uses three applications: one is allocated 25ms per 250ms, the second
//! allocated 50ms per 250ms, and the third allocated 100ms per 250ms. No domain is eligible
//! for slack time, and all domains have a laxity value of 10ms" (section 7.2.1). In the third
//! the client that reads a file "is guaranteed 50% of the disk. It is first run on its own",
//! then "concurrently with two paging applications having 10% and 20% guarantees" (7.3).
//!
//! Rule: what each was charged is the scheduler's own count, what each got is its own, and
//! whether the rules were kept is computed from the trace of every transaction.

use crate::system::{Setup, System};
mod judge;

use super::picture::{self, Line};
use super::progress::{Progress, bandwidth};
use super::schedule::{Client, Contract};
use super::{Grounds, Options};
use crate::ExperimentError;
use crate::process::Process;
use crate::real::goal::Row;
use protocol::TenantInfo;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The paper's, of every client.
const PERIOD: Duration = Duration::from_millis(250);
const LAXITY: Duration = Duration::from_millis(10);

/// MiB of swap of each application, and of the file that is read.
const SWAP: u64 = 16;
const FILE: u64 = 64;

/// Requests of the client that reads a file, outstanding at once.
const PIPELINE: u32 = 32;

/// How often the trace is read: it holds the last of it only.
const LOOK: Duration = Duration::from_millis(100);

/// What the paper shows of the schedule.
const SAMPLE: Duration = Duration::from_secs(4);

/// The part of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Pages in.
    Pager,
    /// Pages out: its driver forgets what it has on disk.
    Forgetter,
    /// Reads a file.
    Reader,
}

/// A client of the experiment.
#[derive(Clone, Copy, Debug)]
struct Actor {
    role: Role,
    /// Milliseconds of the disk in each period.
    slice: u64,
}

impl Actor {
    fn contract(self) -> Contract {
        Contract {
            slice: Duration::from_millis(self.slice),
            period: PERIOD,
            laxity: LAXITY,
        }
    }

    /// As `--disk` takes it.
    fn disk(self) -> String {
        let (period, laxity) = (PERIOD.as_millis(), LAXITY.as_millis());
        format!("{}ms/{period}ms,laxity={laxity}ms", self.slice)
    }

    fn name(self) -> String {
        let role = match self.role {
            Role::Pager | Role::Forgetter => "pager",
            Role::Reader => "file client",
        };
        format!("{role} {} ms", self.slice)
    }

    fn command(self, stage: &Stage<'_, '_>) -> Command {
        let mut command = match self.role {
            Role::Pager | Role::Forgetter => {
                let mut command = stage.grounds.base.myself.command("pager");
                command.args(["--swap", &SWAP.to_string()]);
                if self.role == Role::Forgetter {
                    command.arg("--forgets");
                }
                command
            }
            Role::Reader => {
                let mut command = stage.grounds.base.myself.command("reader");
                command.arg("--file").arg(&stage.file);
                command.args(["--depth", &PIPELINE.to_string()]);
                command
            }
        };
        command.arg("--system").arg(stage.system.socket());
        command.args(["--name", &self.name(), "--disk", &self.disk()]);
        let seconds = |time: f64| time.to_string();
        command.args(["--seconds", &seconds(stage.options.seconds)]);
        command.args(["--every", &seconds(stage.options.every)]);
        command
    }
}

/// What all actors share.
struct Stage<'a, 'b> {
    grounds: &'a Grounds<'b>,
    options: &'a Options,
    system: &'a System,
    /// What readers read.
    file: PathBuf,
}

/// The result of one actor.
struct Part {
    progress: Vec<Progress>,
    charged: Duration,
    client: Client,
}

impl Part {
    fn bytes(&self) -> f64 {
        self.progress.last().map_or(0.0, |last| last.bytes as f64)
    }
}

/// The result of all actors.
struct Play {
    parts: Vec<Part>,
    /// Events that the trace had forgotten before they were read.
    lost: u64,
    /// When the sample of the schedule begins.
    from: Duration,
}

impl Play {
    fn charged(&self) -> Vec<f64> {
        let each = self.parts.iter().map(|part| part.charged.as_secs_f64());
        each.collect()
    }

    fn lines(&self, beside: bool) -> Vec<Line> {
        let line = |(grey, part): (usize, &Part)| Line {
            name: part.client.name.clone(),
            grey,
            beside,
            points: bandwidth(&part.progress),
        };
        self.parts.iter().enumerate().map(line).collect()
    }
}

/// Figure 7 or 8.
pub fn paging(grounds: &Grounds<'_>, options: &Options, out: bool) -> Vec<Row> {
    let (number, title, role) = match out {
        false => (7, "Figure 7: paging in", Role::Pager),
        true => (8, "Figure 8: paging out", Role::Forgetter),
    };
    let actors = [25, 50, 100].map(|slice| Actor { role, slice });
    let outcome = play(grounds, options, &actors).and_then(|play| {
        save(options, number, title, play.lines(false), &play)?;
        Ok(play)
    });
    match outcome {
        Ok(play) => judge::paging(number, &play, &actors),
        Err(failure) => vec![super::lacking(format!("figure {number}"), failure)],
    }
}

/// Figure 9.
pub fn file_system(grounds: &Grounds<'_>, options: &Options) -> Vec<Row> {
    match alternate(grounds, options) {
        Ok(plays) => judge::file_system(&plays),
        Err(failure) => vec![super::lacking("figure 9".into(), failure)],
    }
}

/// The file client alone and beside pagers, in turn, so that what else the machine does is in
/// both.
fn alternate(grounds: &Grounds<'_>, options: &Options) -> Result<Vec<[Play; 2]>, ExperimentError> {
    let reader = Actor {
        role: Role::Reader,
        slice: 125,
    };
    let [small, large] = [25, 50].map(|slice| Actor {
        role: Role::Pager,
        slice,
    });
    let options = &Options {
        seconds: options.seconds / options.repeats as f64,
        ..options.clone()
    };
    let mut plays = Vec::new();
    for _ in 0..options.repeats {
        let alone = play(grounds, options, &[reader])?;
        plays.push([alone, play(grounds, options, &[small, large, reader])?]);
    }
    if let Some([alone, beside]) = plays.last() {
        let mut lines = beside.lines(false);
        lines.extend(alone.lines(true).into_iter().map(|line| Line {
            name: format!("{}, alone", line.name),
            grey: 2,
            ..line
        }));
        let title = "Figure 9: a file client beside pagers";
        save(options, 9, title, lines, beside)?;
    }
    Ok(plays)
}

/// Starts all actors, releases them at the same time, and collects their figures.
fn play(
    grounds: &Grounds<'_>,
    options: &Options,
    actors: &[Actor],
) -> Result<Play, ExperimentError> {
    let setup = Setup {
        depth: Some(options.depth),
        spin: Some(Duration::from_micros(options.spin)),
        ..Setup::of(16)
    };
    let system = System::start(&grounds.base, &grounds.disk, setup)?;
    let (file, _owed) = super::data(grounds, FILE)?;
    let stage = Stage {
        grounds,
        options,
        system: &system,
        file,
    };
    act(&stage, actors).map_err(|failure| system.explain(failure))
}

fn act(stage: &Stage<'_, '_>, actors: &[Actor]) -> Result<Play, ExperimentError> {
    let Stage {
        system, options, ..
    } = stage;
    let mut processes = Vec::new();
    for actor in actors {
        super::say(&format!(
            "{} of {} start: {}",
            processes.len() + 1,
            actors.len(),
            actor.name()
        ));
        processes.push(Process::start(actor.command(stage))?);
    }
    let before = system.tenants()?;
    let mut tracer = system.tracer()?;
    let began = Instant::now();
    for process in &mut processes {
        process.tell("go")?;
    }
    let (mut events, mut lost) = (Vec::new(), 0);
    let during = Duration::from_secs_f64(options.seconds);
    while began.elapsed() < during {
        std::thread::sleep(LOOK.min(during.saturating_sub(began.elapsed())));
        let seen = tracer.read().map_err(crate::error::failed)?;
        events.extend(seen.events);
        lost += seen.lost;
        super::say(&format!(
            "{:.0} of {} s",
            began.elapsed().as_secs_f64(),
            options.seconds
        ));
    }
    let after = system.tenants()?;
    let mut parts = Vec::new();
    for (actor, process) in actors.iter().zip(processes) {
        let name = actor.name();
        let of = |all: &[TenantInfo]| {
            all.iter()
                .find(|tenant| tenant.name == name)
                .cloned()
                .ok_or_else(|| {
                    ExperimentError::Worker(format!("the system domain has no tenant {name:?}"))
                })
        };
        let (before, after) = (of(&before)?, of(&after)?);
        let client = Client::of(&name, actor.contract(), after.client, &events);
        let said = process.end()?;
        let progress = said
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok());
        parts.push(Part {
            progress: progress.collect(),
            charged: after.charged.saturating_sub(before.charged),
            client,
        });
    }
    // From the middle of the run, where all actors are in a steady state.
    let first = events
        .first()
        .map_or(Duration::ZERO, |e| Duration::from_nanos(e.at().0));
    let from = first + during.saturating_sub(SAMPLE) / 2;
    Ok(Play { parts, lost, from })
}

fn save(
    options: &Options,
    number: u32,
    title: &str,
    lines: Vec<Line>,
    play: &Play,
) -> Result<(), ExperimentError> {
    let Some(folder) = &options.svg else {
        return Ok(());
    };
    let clients: Vec<Client> = play.parts.iter().map(|part| part.client.clone()).collect();
    let figure = picture::Figure {
        title: title.to_owned(),
        lines,
        clients: &clients,
        from: play.from,
    };
    picture::save(&figure, &folder.join(format!("figure-{number}.svg")))
}
