//! `selfpage bench launch`: a launch beside a player.
//!
//! Ko and Yoo (*RAPHA: Rate-Based Page Fault Handling Mechanism in Virtual Memory System*,
//! section 5) play a clip on a machine with a constant load, launch a browser beside it, and
//! count the deadlines that the player misses. Here it is done with today's parts: ffmpeg
//! decodes a clip of 30 frames a second into a sink ([`sink`] has the rule that no player
//! bends), and an eighth into it a real program is launched, which pages from the disk under
//! its contract. The load is calibrated until stock Linux misses
//! some of the deadlines (`calibrate`), then frozen for all arms. Ours is one system domain,
//! with which the player and the neighbour have their contracts: so the limit of the one is what
//! the other's reservation leaves.
//!
//! | file | what it is |
//! |---|---|
//! | `clip`, `sink`, `lateness` | the player: what it decodes, its screen, how well it went |
//! | `program`, `image`, `tree`, `sampler` | the neighbours: what they are, and what is seen of them |
//! | `spin`, `calibrate` | the load |
//! | `arm`, `round` | the programs and their contracts, and one run of them |
//! | `judge`, `picture` | rows, tables 1 and 11; figures 2 to 5 and 8 to 10 |

mod arm;
mod calibrate;
mod clip;
mod image;
mod judge;
mod lateness;
mod picture;
mod program;
mod round;
mod sampler;
pub mod sink;
pub mod spin;
mod tree;

pub use arm::Arm;
pub use program::Name;

use crate::error::while_doing;
use crate::ground::{Ground, GroundOptions};
use crate::machine::{Machine, read};
use crate::real::goal::{Bound, Report, Row};
use crate::real::ground::Grounds;
use crate::real::progress;
use crate::system::{Disk, Setup, System};
use crate::{ExperimentError, Myself};
use arm::Terms;
use calibrate::Search;
use clip::{Clip, PER_SECOND};
use judge::Scene;
use program::Neighbour;
use round::{Round, Setting, Stage};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Times each arm is run; the median counts.
    #[arg(long, default_value_t = 5)]
    pub repeats: u64,
    /// Seconds of the clip that count: 16, or 8 with --quick. The neighbour is launched an
    /// eighth into them.
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Only these neighbours.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Name>,
    /// Only these arms; two more can be asked for than are usual.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub arms: Vec<Arm>,
    /// Frames that the player holds.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    pub read_ahead: Vec<u64>,
    /// Processors' worth of constant load, instead of calibrating it.
    #[arg(long)]
    pub load: Option<f64>,
    /// MiB that a neighbour fills, about: 192, or 96 with --quick. Its contract is less.
    #[arg(long)]
    pub mib: Option<u64>,
    /// The neighbour's limit in ours-limited, as `run --fault-rate` takes it.
    #[arg(long, default_value = "auto")]
    pub fault_rate: String,
    /// The player's reservation in ours-limited, as `run --cpu` takes it; by default from
    /// what a frame was measured to take.
    #[arg(long)]
    pub cpu: Option<String>,
    /// One neighbour, one read-ahead, one repeat, a short clip: two minutes or so.
    #[arg(long)]
    pub quick: bool,
    /// Seconds that a round may take at most.
    #[arg(long, default_value_t = 180)]
    pub limit: u64,
    /// Where it works, and where its figures go.
    #[command(flatten)]
    pub ground: GroundOptions,
    /// Draws the paper's figures in this folder, as SVG.
    #[arg(long, value_parser = crate::output::folder)]
    pub svg: Option<PathBuf>,
}

/// Seconds of the clip, and MiB that a neighbour fills, where nothing else is asked for; and
/// with `--quick`.
const USUAL: (f64, u64) = (16.0, 192);
const QUICK: (f64, u64) = (8.0, 96);

/// The part of the clip after which the neighbour is launched.
const AFTER: f64 = 1.0 / 8.0;

/// MiB beyond the contracts: the reserve of the system domain, and its grants to requests.
const MARGIN: u64 = 64;

/// The settings that follow from the options.
struct Plan {
    repeats: u64,
    seconds: f64,
    mib: u64,
    names: Vec<Name>,
    arms: Vec<Arm>,
    aheads: Vec<u64>,
}

impl Plan {
    fn of(options: &Options) -> Self {
        let usual = if options.quick { QUICK } else { USUAL };
        let mut plan = Self {
            repeats: options.repeats,
            seconds: options.seconds.unwrap_or(usual.0),
            mib: options.mib.unwrap_or(usual.1),
            names: match options.only.as_slice() {
                [] => Name::usual(),
                some => some.to_vec(),
            },
            arms: match options.arms.as_slice() {
                [] => Arm::USUAL.to_vec(),
                some => some.to_vec(),
            },
            aheads: options.read_ahead.clone(),
        };
        if options.quick {
            plan.repeats = 1;
            plan.names.truncate(1);
            plan.aheads.truncate(1);
        }
        plan
    }

    fn check(&self, options: &Options) -> Result<(), ExperimentError> {
        let absurd = |what: String| Err(ExperimentError::Options(what));
        if self.repeats == 0 || self.limit_is_short(options) {
            return absurd("--repeats must be at least 1, --limit longer than --seconds".into());
        }
        if !(self.seconds >= 1.0 && self.seconds <= 3600.0) {
            return absurd("--seconds must be between 1 and 3600".into());
        }
        if !(16..=4096).contains(&self.mib) {
            return absurd("--mib must be between 16 and 4096".into());
        }
        if self.aheads.iter().any(|ahead| !(1..=64).contains(ahead)) || self.aheads.is_empty() {
            return absurd("--read-ahead must be between 1 and 64 frames".into());
        }
        let most = spin::most();
        match options.load {
            Some(load) if !(0.0..=most).contains(&load) => absurd(format!(
                "--load must be between 0 and {most}: {} threads want one processor each at most",
                spin::threads()
            )),
            _ => Ok(()),
        }
    }

    fn limit_is_short(&self, options: &Options) -> bool {
        options.limit as f64 <= self.seconds
    }
}

/// Measures and prints.
pub fn run(options: &Options, myself: &Myself) -> Result<ExitCode, ExperimentError> {
    let plan = Plan::of(options);
    plan.check(options)?;
    if let Some(folder) = &options.svg {
        std::fs::create_dir_all(folder)
            .map_err(while_doing(format!("make {}", folder.display())))?;
    }
    let machine = Machine::now(&options.ground.folder);
    let stage = stage(options, &plan, myself)?;
    let mut rows = Vec::new();
    let (mut neighbours, mut scenes) = (Vec::new(), Vec::new());
    let mut settings = settings(&plan, &stage);
    for name in &plan.names {
        let shown = crate::choice::name(name);
        match Neighbour::new(*name, &stage.grounds, plan.mib) {
            Ok(neighbour) => {
                let load = match options.load {
                    Some(load) => load,
                    None => calibrated(&stage, &neighbour, plan.aheads[0], &mut settings)?,
                };
                settings.push(format!(
                    "{shown}: contract {} MiB, load {load:.3} processors by {} threads in periods of {} ms",
                    neighbour.frames >> 20,
                    spin::threads(),
                    spin::PERIOD.as_millis()
                ));
                scenes.extend(measured(&plan, &stage, &neighbour, load));
                neighbours.push(neighbour);
            }
            Err(why) => rows.push(lacking(shown, why)),
        }
    }
    progress("");
    settings.extend(scenes.iter().filter_map(Scene::unjudged));
    let details = json!({
        "fault_rate": options.fault_rate,
        "cpu": stage.terms.cpu,
        "frames": stage.frames,
        "scenes": scenes.iter().map(Scene::json).collect::<Vec<Value>>(),
    });
    let tables = [
        judge::programs(&neighbours, &scenes),
        judge::misses(&scenes),
    ]
    .concat();
    if let Some(folder) = &options.svg {
        draw(&scenes, folder, stage.after)?;
    }
    rows.extend(scenes.iter_mut().flat_map(Scene::rows));
    let status = Report {
        experiment: "launch",
        machine,
        settings,
        rows,
    }
    .publish_with(options.ground.json.as_deref(), details)?;
    print!("{tables}");
    Ok(status)
}

fn stage<'a>(
    options: &Options,
    plan: &Plan,
    myself: &'a Myself,
) -> Result<Stage<'a>, ExperimentError> {
    let grounds = Grounds {
        base: Ground::new(myself, &options.ground)?,
        allocator: None,
        limit: Duration::from_secs(options.limit),
    };
    progress("the clip");
    let clip = Clip::new(&grounds)?;
    let system = match plan.arms.iter().any(|arm| arm.ours()) {
        true => Some(system(&grounds, plan)?),
        false => None,
    };
    let (system, disk) = system.unzip();
    let period = lateness::due(1, PER_SECOND);
    let cpu = options.cpu.clone();
    let terms = Terms {
        fault_rate: options.fault_rate.clone(),
        cpu: cpu.unwrap_or_else(|| arm::reservation(clip.cost, period)),
    };
    Ok(Stage {
        grounds,
        system,
        _disk: disk,
        clip,
        terms,
        frames: (plan.seconds * f64::from(PER_SECOND)) as u64,
        after: Duration::from_secs_f64(plan.seconds * AFTER),
    })
}

/// With memory and swap for the player and any one of the neighbours.
fn system(grounds: &Grounds<'_>, plan: &Plan) -> Result<(System, Disk), ExperimentError> {
    let most = plan
        .names
        .iter()
        .map(|name| name.frames(plan.mib) >> 20)
        .max();
    let most = most.unwrap_or(0) + 1;
    let disk = Disk::new(
        &grounds.base,
        most * round::ROOM + arm::PLAYER_FRAMES + MARGIN,
    )?;
    progress("the system domain: it measures the disk");
    let setup = Setup::of(most + arm::PLAYER_FRAMES + MARGIN);
    Ok((System::start(&grounds.base, &disk, setup)?, disk))
}

fn settings(plan: &Plan, stage: &Stage<'_>) -> Vec<String> {
    vec![
        stage.clip.about(),
        format!(
            "{} frames count; the neighbour is launched after {:.1} s, its files not in the page cache; {} rounds of each arm, rotated",
            stage.frames,
            stage.after.as_secs_f64(),
            plan.repeats
        ),
        format!(
            "ours: both by `selfpage run --system`, disk for the player (in {} MiB) {}, for the neighbour {}; ours-limited: neighbour --fault-rate {}, player --cpu {}",
            arm::PLAYER_FRAMES,
            arm::PLAYER_DISK,
            arm::NEIGHBOUR_DISK,
            stage.terms.fault_rate,
            stage.terms.cpu
        ),
        format!(
            "real-time processes may have {} us of {} us; tasks grouped by session: {}",
            read("/proc/sys/kernel/sched_rt_runtime_us"),
            read("/proc/sys/kernel/sched_rt_period_us"),
            match read("/proc/sys/kernel/sched_autogroup_enabled").as_str() {
                "1" => "yes",
                _ => "no",
            }
        ),
    ]
}

/// The load at which stock Linux misses some deadlines beside a neighbour.
fn calibrated(
    stage: &Stage<'_>,
    neighbour: &Neighbour,
    ahead: u64,
    settings: &mut Vec<String>,
) -> Result<f64, ExperimentError> {
    let shown = crate::choice::name(&neighbour.name);
    let mut search = Search::up_to(spin::processors() as f64 * calibrate::MOST);
    while let Some(load) = search.next() {
        progress(&format!("{shown}: calibrating, load {load:.3}"));
        let round = stage.round(Setting {
            arm: Arm::Stock,
            neighbour,
            ahead,
            load,
        })?;
        search.tell(load, round.quality.missed_percent());
    }
    let Some(best) = search.best() else {
        return Err(ExperimentError::Worker("no load was tried".into()));
    };
    let outside = match calibrate::WANTED.contains(&best.missed()) {
        true => "",
        false => ": no load that was tried gave what is wanted",
    };
    settings.push(format!(
        "{shown}: calibrated until stock Linux missed {:.1} % of the deadlines (median of {}), {:.0} to {:.0} wanted{outside}",
        best.missed(),
        best.times(),
        calibrate::WANTED.start(),
        calibrate::WANTED.end()
    ));
    Ok(best.load)
}

/// All rounds beside one neighbour: arms in turn, each repeat beginning with another.
fn measured(plan: &Plan, stage: &Stage<'_>, neighbour: &Neighbour, load: f64) -> Vec<Scene> {
    let scene = |ahead: &u64| Scene::new(neighbour, *ahead, load, &plan.arms);
    let mut scenes: Vec<Scene> = plan.aheads.iter().map(scene).collect();
    let mut expected = None;
    for repeat in 0..plan.repeats {
        for scene in &mut scenes {
            let mut order: Vec<usize> = (0..scene.series.len()).collect();
            order.rotate_left(repeat as usize % scene.series.len().max(1));
            for n in order {
                let arm = scene.series[n].arm;
                let (title, of) = (&scene.title, plan.repeats);
                progress(&format!("{} of {of}: {title}: {}", repeat + 1, arm.name()));
                if scene.series[n].failure.is_some() {
                    continue;
                }
                let setting = Setting {
                    arm,
                    neighbour,
                    ahead: scene.ahead,
                    load,
                };
                let first = scene.series[n].rounds.is_empty();
                let granted = if first { stage.grants(arm) } else { Ok(()) };
                let round = granted.and_then(|()| stage.round(setting));
                match round.and_then(|round| same(round, &mut expected)) {
                    Ok(round) => scene.series[n].rounds.push(round),
                    Err(why) => scene.series[n].failure = Some(why),
                }
            }
        }
    }
    scenes
}

/// A neighbour whose memory was not kept has no figure.
fn same(round: Round, expected: &mut Option<String>) -> Result<Round, ExperimentError> {
    if round.launch.is_none() {
        return Ok(round);
    }
    let wanted = expected.get_or_insert_with(|| round.result.clone());
    match round.result == *wanted {
        true => Ok(round),
        false => Err(ExperimentError::Worker(format!(
            "the neighbour came to {:?}, and to {wanted:?} before",
            round.result
        ))),
    }
}

fn draw(scenes: &[Scene], folder: &Path, after: Duration) -> Result<(), ExperimentError> {
    for scene in scenes {
        let name = format!("launch-{}-{}.svg", scene.neighbour, scene.ahead);
        picture::save(scene, after, &folder.join(name))?;
    }
    Ok(())
}

fn lacking(what: String, failure: ExperimentError) -> Row {
    Row {
        what,
        beside: None,
        unit: "",
        bound: Bound::Open,
        samples: Vec::new(),
        failure: Some(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bench;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        bench: Bench,
    }

    fn options(words: &[&str]) -> Options {
        let words = [&["bench", "launch"], words].concat();
        match Line::try_parse_from(words).map(|line| line.bench) {
            Ok(Bench::Launch(options)) => options,
            _ => panic!("it is no launch"),
        }
    }

    fn refusal(words: &[&str]) -> String {
        let options = options(words);
        Plan::of(&options).check(&options).unwrap_err().to_string()
    }

    #[test]
    fn what_is_usual_is_what_the_paper_compares_and_both_read_aheads() {
        let options = options(&[]);
        let plan = Plan::of(&options);
        assert!(plan.check(&options).is_ok());
        assert_eq!((plan.repeats, plan.aheads), (5, vec![1, 4]));
        assert_eq!(plan.arms, Arm::USUAL);
        assert_eq!(plan.names.len(), 3);
    }

    #[test]
    fn a_quick_run_is_of_the_first_of_each() {
        let options = options(&["--quick", "--only", "build,python", "--read-ahead", "4,1"]);
        let plan = Plan::of(&options);
        assert_eq!((plan.names, plan.aheads), (vec![Name::Build], vec![4]));
        assert_eq!(
            (plan.repeats, plan.seconds, plan.mib),
            (1, QUICK.0, QUICK.1)
        );
    }

    #[test]
    fn options_that_make_no_experiment_are_refused_by_name() {
        for (words, name) in [
            (["--repeats", "0"], "--repeats"),
            (["--seconds", "0.5"], "--seconds"),
            (["--seconds", "NaN"], "--seconds"),
            (["--mib", "1"], "--mib"),
            (["--read-ahead", "0"], "--read-ahead"),
            (["--load", "-1"], "--load"),
            (["--load", "9999"], "--load"),
            (["--limit", "3"], "--limit"),
        ] {
            let words = [&format!("{}={}", words[0], words[1])[..]];
            assert!(refusal(&words).contains(name), "{words:?}");
        }
    }
}
