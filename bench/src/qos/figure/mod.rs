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

mod analysis;

use super::backing::Backing;
use super::pager::PagerPlan;
use super::plot::{self, GREYS};
use super::progress::{Progress, ReportedRun, bandwidth};
use super::reader::ReaderPlan;
use super::schedule::{Client, DiskShare};
use super::{QosOptions, progress};
use crate::plot::Curve;
use crate::prelude::*;
use protocol::TenantInfo;

/// The paper's, of every client.
const PERIOD: Duration = Duration::from_millis(250);
const LAXITY: Duration = Duration::from_millis(10);

/// KiB of each application's stretch, and of its frames.
const STRETCH: u64 = 4096;
const FRAMES: u64 = 16;

/// MiB of swap of each application, and of the file that is read.
const SWAP: u64 = 16;
const FILE: u64 = 64;

/// Requests of the client that reads a file, outstanding at once.
const PIPELINE: usize = 32;

/// How often the trace is read: it holds the last of it only.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// What the paper shows of the schedule.
const SAMPLE: Duration = Duration::from_secs(4);

/// What a participant does.
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
struct Participant {
    role: Role,
    /// Milliseconds of the disk in each period.
    slice: u64,
}

impl Participant {
    fn contract(self) -> DiskShare {
        DiskShare {
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

    fn start(self, stage: &Stage<'_>) -> Result<Worker> {
        let QosOptions { seconds, every, .. } = *stage.options;
        let (name, disk, run) = (self.name(), self.disk(), ReportedRun { seconds, every });
        let plan = match self.role {
            Role::Pager | Role::Forgetter => WorkerPlan::Pager(PagerPlan {
                backing: Backing {
                    name,
                    ..Backing::of(stage.system, &disk, SWAP, FRAMES)
                },
                stretch: STRETCH,
                forgets: self.role == Role::Forgetter,
                leaves: 0,
                run,
            }),
            Role::Reader => WorkerPlan::Reader(ReaderPlan {
                file: stage.file.to_path_buf(),
                system: stage.system.socket().to_owned(),
                name,
                disk,
                depth: PIPELINE,
                random: false,
                pause: None,
                run,
            }),
        };
        plan.start()
    }
}

/// What all participants share.
struct Stage<'a> {
    options: &'a QosOptions,
    system: &'a DaemonFixture,
    /// What readers read.
    file: OwnedFile,
}

/// The result of one participant.
struct ClientResult {
    progress: Vec<Progress>,
    charged: Duration,
    client: Client,
}

impl ClientResult {
    fn bytes(&self) -> f64 {
        self.progress.last().map_or(0.0, |last| last.bytes as f64)
    }
}

/// The result of all participants.
struct RunResult {
    parts: Vec<ClientResult>,
    /// Events that the trace had forgotten before they were read.
    lost: u64,
    /// When the sample of the schedule begins.
    from: Duration,
}

impl RunResult {
    fn charged(&self) -> Vec<f64> {
        let each = self.parts.iter().map(|part| part.charged.as_secs_f64());
        each.collect()
    }

    fn curves(&self, dashed: bool) -> Vec<Curve> {
        let curve = |(grey, part): (usize, &ClientResult)| Curve {
            name: part.client.name.clone(),
            colour: GREYS[grey.min(GREYS.len() - 1)],
            dashed,
            points: bandwidth(&part.progress),
        };
        self.parts.iter().enumerate().map(curve).collect()
    }
}

/// Figure 7 or 8; if programs are to compute beside it, on a quiet machine first.
pub fn paging(env: &TestEnv, options: &QosOptions, out: bool) -> Result<Vec<Row>> {
    let (number, title, role) = match out {
        false => (7, "Figure 7: paging in", Role::Pager),
        true => (8, "Figure 8: paging out", Role::Forgetter),
    };
    let participants = [25, 50, 100].map(|slice| Participant { role, slice });
    let (quiet, play) = match options.busy {
        false => (None, play(env, options, &participants)?),
        true => {
            let quiet = play(env, options, &participants)?;
            let _computing = super::compute()?;
            (Some(quiet), play(env, options, &participants)?)
        }
    };
    save(options, number, title, play.curves(false), &play)?;
    let mut rows = analysis::paging(number, &play, &participants);
    rows.extend(quiet.map(|quiet| analysis::beside_computing(number, &play, &quiet)));
    Ok(rows)
}

/// Figure 9.
pub fn file_system(env: &TestEnv, options: &QosOptions) -> Result<Vec<Row>> {
    Ok(analysis::file_system(&alternate(env, options)?))
}

/// The file client alone and beside pagers, in turn, so that what else the machine does is in
/// both.
fn alternate(env: &TestEnv, options: &QosOptions) -> Result<Vec<[RunResult; 2]>> {
    let participant = |role, slice| Participant { role, slice };
    let reader = participant(Role::Reader, 125);
    let [small, large] = [25, 50].map(|slice| participant(Role::Pager, slice));
    let options = &QosOptions {
        seconds: options.seconds / options.repeats as f64,
        ..options.clone()
    };
    let mut plays = Vec::new();
    for _ in 0..options.repeats {
        let alone = play(env, options, &[reader])?;
        plays.push([alone, play(env, options, &[small, large, reader])?]);
    }
    if let Some([alone, beside]) = plays.last() {
        let mut curves = beside.curves(false);
        curves.extend(alone.curves(true).into_iter().map(|curve| Curve {
            name: format!("{}, alone", curve.name),
            colour: GREYS[2],
            ..curve
        }));
        let title = "Figure 9: a file client beside pagers";
        save(options, 9, title, curves, beside)?;
    }
    Ok(plays)
}

/// Starts all participants, releases them at the same time, and collects their figures.
fn play(env: &TestEnv, options: &QosOptions, participants: &[Participant]) -> Result<RunResult> {
    let config = DaemonConfig {
        depth: Some(options.depth),
        spin: Some(Duration::from_micros(options.spin)),
        ..DaemonConfig::of(16)
    };
    let system = DaemonFixture::start(env, config)?;
    let file = super::data(env, FILE)?;
    let stage = Stage {
        options,
        system: &system,
        file,
    };
    act(&stage, participants).map_err(|failure| system.explain(failure))
}

fn act(stage: &Stage<'_>, participants: &[Participant]) -> Result<RunResult> {
    let Stage {
        system, options, ..
    } = stage;
    let mut processes = Vec::new();
    for participant in participants {
        let (k, of) = (processes.len() + 1, participants.len());
        progress(&format!("{k} of {of} start: {}", participant.name()));
        processes.push(participant.start(stage)?);
    }
    let before = system.tenants()?;
    let mut tracer = system.tracer()?;
    let began = Instant::now();
    for process in &mut processes {
        process.go()?;
    }
    let (mut events, mut lost) = (Vec::new(), 0);
    let during = Duration::from_secs_f64(options.seconds);
    while began.elapsed() < during {
        std::thread::sleep(SAMPLE_INTERVAL.min(during.saturating_sub(began.elapsed())));
        let seen = tracer.read()?;
        events.extend(seen.events);
        lost += seen.lost;
        progress(&format!(
            "{:.0} of {} s",
            began.elapsed().as_secs_f64(),
            options.seconds
        ));
    }
    let after = system.tenants()?;
    let mut parts = Vec::new();
    for (participant, process) in participants.iter().zip(processes) {
        let name = participant.name();
        let of = |all: &[TenantInfo]| {
            let own = all.iter().find(|tenant| tenant.name == name).cloned();
            own.ok_or_else(|| anyhow!("the daemon has no tenant {name:?}"))
        };
        let (before, after) = (of(&before)?, of(&after)?);
        let client = Client::of(&name, participant.contract(), after.client, &events);
        let said = process.end()?;
        let progress = said
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok());
        parts.push(ClientResult {
            progress: progress.collect(),
            charged: after.charged.saturating_sub(before.charged),
            client,
        });
    }
    // From the middle of the run, where all participants are in a steady state.
    let first = events.first().map_or(0, |event| event.at().0);
    let from = Duration::from_nanos(first) + during.saturating_sub(SAMPLE) / 2;
    Ok(RunResult { parts, lost, from })
}

fn save(
    options: &QosOptions,
    number: u32,
    title: &str,
    curves: Vec<Curve>,
    play: &RunResult,
) -> Result<()> {
    let Some(folder) = &options.svg else {
        return Ok(());
    };
    let clients: Vec<Client> = play.parts.iter().map(|part| part.client.clone()).collect();
    let figure = plot::Figure {
        title: title.to_owned(),
        curves,
        clients: &clients,
        from: play.from,
    };
    let path = folder.join(format!("figure-{number}.svg"));
    crate::plot::save(plot::drawn(&figure), &path)
}
