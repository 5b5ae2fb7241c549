//! `selfpage bench launch`: a launch beside a player.
//!
//! Ko and Yoo (*RAPHA: Rate-Based Page Fault Handling Mechanism in Virtual Memory System*,
//! section 5) play a clip on a machine with a constant load, launch a browser beside it, and
//! count the deadlines that the player misses. Here it is done with today's parts: ffmpeg
//! decodes a clip of 30 frames a second into a display ([`display`] has the rule that no player
//! bends), and an eighth into it a real program is launched, which pages from the disk under
//! its contract. The load is calibrated until stock Linux misses
//! some of the deadlines (`calibrate`), then frozen for all arms. Ours is one daemon,
//! with which the player and the neighbour have their contracts: so the limit of the one is what
//! the other's reservation leaves.
//!
//! | file | what it is |
//! |---|---|
//! | `video_clip`, `display`, `deadline_misses` | the player: what it decodes, its screen, how well it went |
//! | `program`, `image`, `sampler` | the neighbours: what they are, and what is seen of them |
//! | `load`, `calibrate` | the load |
//! | `arm`, `run` | the programs and their contracts, and one run of them |
//! | `analysis`, `plot` | rows, tables 1 and 11; figures 2 to 5 and 8 to 10 |

mod analysis;
mod arm;
mod calibrate;
mod deadline_misses;
pub mod display;
mod image;
pub mod load;
mod options;
mod plot;
mod program;
mod run;
mod sampler;
mod video_clip;

pub use display::DisplayPlan;
pub use load::LoadPlan;
pub use options::LaunchOptions;

use crate::daemon_fixture::DaemonDisk;
use crate::machine::read;
use crate::prelude::*;
use crate::repeats::run_each;
use analysis::Comparison;
use arm::{Arm, Terms};
use calibrate::Search;
use program::Neighbour;
use run::{LaunchSetup, RunResult, RunSettings};
use serde_json::{Value, json};
use std::process::ExitCode;
use video_clip::{PER_SECOND, VideoClip};

/// The part of the clip after which the neighbour is launched.
const AFTER: f64 = 1.0 / 8.0;

/// MiB beyond the contracts: the reserve of the daemon, and its grants to requests.
const MARGIN: u64 = 64;

/// Measures and prints.
pub fn run(options: &LaunchOptions) -> Result<ExitCode> {
    let options = &options.clone().settled()?;
    let machine = Machine::now(&options.env.folder);
    let setup = set_up(options)?;
    let mut report = Report::new("launch", machine, settings(options, &setup));
    let (mut neighbours, mut all) = (Vec::new(), Vec::new());
    for kind in &options.only {
        let shown = kind.name();
        match Neighbour::new(*kind, &setup.env, options.mib) {
            Ok(neighbour) => {
                let load = match options.load {
                    Some(load) => load,
                    None => calibrated(
                        &setup,
                        &neighbour,
                        options.read_ahead[0],
                        &mut report.settings,
                    )?,
                };
                report.settings.push(format!(
                    "{shown}: contract {} MiB, load {load:.3} processors by {} threads in periods of {} ms",
                    neighbour.frames >> 20,
                    setup.load_threads,
                    load::PERIOD.as_millis()
                ));
                all.extend(measured(options, &setup, &neighbour, load));
                neighbours.push(neighbour);
            }
            Err(why) => report.rows.push(Row::lacking(shown, why)),
        }
    }
    progress("");
    report
        .settings
        .extend(all.iter().filter_map(Comparison::unjudged));
    let details = json!({
        "fault_rate": options.fault_rate,
        "cpu": setup.terms.cpu,
        "frames": setup.frames,
        "scenes": all.iter().map(Comparison::json).collect::<Vec<Value>>(),
    });
    report.data.insert("details".into(), details);
    report.tables = vec![
        analysis::programs(&neighbours, &all),
        analysis::misses(&all),
    ];
    if let Some(folder) = &options.svg {
        for one in &all {
            let name = format!("launch-{}-{}.svg", one.neighbour, one.ahead);
            crate::plot::save(plot::drawn(one, setup.after), &folder.join(name))?;
        }
    }
    let rows = all.iter_mut().flat_map(Comparison::rows);
    report.rows.extend(rows);
    report.publish(options.env.json.as_deref())
}

fn set_up(options: &LaunchOptions) -> Result<LaunchSetup> {
    let mut env = TestEnv::new(&options.env)?;
    env.limit = Duration::from_secs(options.limit);
    progress("the clip");
    let clip = VideoClip::new(&env)?;
    let system = match options.arms.iter().any(|arm| arm.ours()) {
        true => Some(start_daemon(&mut env, options)?),
        false => None,
    };
    let period = deadline_misses::due(1, PER_SECOND);
    let cpu = options.cpu.clone();
    let cpu = cpu.unwrap_or_else(|| arm::reservation(clip.cost, period));
    let fault_rate = options.fault_rate.clone();
    Ok(LaunchSetup {
        system,
        terms: Terms { fault_rate, cpu },
        load_threads: load::threads_beside(clip.demand(), calibrate::most_load()),
        clip,
        frames: (options.seconds * f64::from(PER_SECOND)) as u64,
        after: Duration::from_secs_f64(options.seconds * AFTER),
        env,
    })
}

/// With memory and swap for the player and any one of the neighbours.
fn start_daemon(env: &mut TestEnv, options: &LaunchOptions) -> Result<DaemonFixture> {
    let frames = options
        .only
        .iter()
        .map(|kind| kind.frames(options.mib) >> 20);
    let most = frames.max().unwrap_or(0) + 1;
    let swap = most * run::ROOM + arm::PLAYER_FRAMES + MARGIN;
    env.disk = Some(DaemonDisk::new(env, swap)?);
    progress("the daemon: it measures the disk");
    DaemonFixture::start(env, DaemonConfig::of(most + arm::PLAYER_FRAMES + MARGIN))
}

fn settings(options: &LaunchOptions, setup: &LaunchSetup) -> Vec<String> {
    vec![
        setup.clip.about(),
        format!(
            "{} frames count; the neighbour is launched after {:.1} s, its files not in the page cache; {} rounds of each arm, rotated",
            setup.frames,
            setup.after.as_secs_f64(),
            options.repeats
        ),
        format!(
            "ours: both by `selfpage run --system`, disk for the player (in {} MiB) {}, for the neighbour {}; ours-limited: neighbour --fault-rate {}, player --cpu {}",
            arm::PLAYER_FRAMES,
            arm::PLAYER_DISK,
            arm::NEIGHBOUR_DISK,
            setup.terms.fault_rate,
            setup.terms.cpu
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
    setup: &LaunchSetup,
    neighbour: &Neighbour,
    ahead: u64,
    settings: &mut Vec<String>,
) -> Result<f64> {
    let shown = neighbour.name.name();
    let mut search = Search::up_to(calibrate::most_load());
    while let Some(load) = search.next() {
        progress(&format!("{shown}: calibrating, load {load:.3}"));
        let arm = Arm::Stock;
        let round = setup.run(RunSettings {
            arm,
            neighbour,
            ahead,
            load,
        })?;
        search.record(load, round.quality.missed_percent());
    }
    let Some(best) = search.best() else {
        bail!("no load was tried");
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
fn measured(
    options: &LaunchOptions,
    setup: &LaunchSetup,
    neighbour: &Neighbour,
    load: f64,
) -> Vec<Comparison> {
    let scene = |ahead: &u64| Comparison::new(neighbour, *ahead, load, &options.arms);
    let mut scenes: Vec<Comparison> = options.read_ahead.iter().map(scene).collect();
    let mut expected = None;
    for repeat in 0..options.repeats {
        for scene in &mut scenes {
            let (title, of, ahead) = (&scene.title, options.repeats, scene.ahead);
            run_each(&mut scene.series, repeat, |arm, is_first| {
                progress(&format!("{} of {of}: {title}: {}", repeat + 1, arm.name()));
                if is_first {
                    setup.grants(arm)?;
                }
                let round = setup.run(RunSettings {
                    arm,
                    neighbour,
                    ahead,
                    load,
                })?;
                same(round, &mut expected)
            });
        }
    }
    scenes
}

/// A neighbour whose memory was not kept has no figure.
fn same(round: RunResult, expected: &mut Option<String>) -> Result<RunResult> {
    if round.launch.is_none() {
        return Ok(round);
    }
    let wanted = expected.get_or_insert_with(|| round.result.clone());
    match round.result == *wanted {
        true => Ok(round),
        false => Err(anyhow!(
            "the neighbour came to {:?}, and to {wanted:?} before",
            round.result
        )),
    }
}
