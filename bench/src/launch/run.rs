//! One run of an arm: the load, the player, some seconds later the neighbour; the delays of
//! the frames and the time until the neighbour is ready.

use super::arm::{Arm, NEIGHBOUR_DISK, PLAYER_DISK, PLAYER_FRAMES, Terms};
use super::deadline_misses::Quality;
use super::display::{DisplayPlan, PlaybackResult};
use super::load::LoadPlan;
use super::program::Neighbour;
use super::sampler::{Sampler, UsageSample};
use super::video_clip::{PER_SECOND, VideoClip};
use crate::cgroup::Cgroup;
use crate::daemon_fixture::DaemonFixture;
use crate::prelude::*;
use crate::process::{Watchdog, gated, output, within};
use crate::swap::Swap;
use crate::worker::READY;
use serde_json::Value;
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::thread;

/// Room for pages, for each byte of a neighbour's contract: what the neighbours fill is twice theirs at
/// most, and what a garbage collector has not yet given back is in it.
pub const ROOM: u64 = 6;

/// A contract with the system domain.
struct RunContract<'a> {
    frames: u64,
    disk: &'a str,
    swap: u64,
}

/// What all runs share. Dropped from the top: the daemon ends before its disk, which `env` holds.
pub struct LaunchSetup<'a> {
    /// The daemon that holds the contracts of the player and the neighbour, in our arms.
    pub system: Option<DaemonFixture>,
    /// What is played.
    pub clip: VideoClip,
    /// The options of `selfpage run`.
    pub terms: Terms,
    /// Frames that count.
    pub frames: u64,
    /// When the neighbour is started, after the first frame is due.
    pub after: Duration,
    /// Programs and folders.
    pub env: TestEnv<'a>,
}

/// A round's own settings.
#[derive(Clone, Copy)]
pub struct RunSettings<'a> {
    /// The programs of a round and their contracts.
    pub arm: Arm,
    /// Beside the player.
    pub neighbour: &'a Neighbour,
    /// Frames held.
    pub ahead: u64,
    /// Processors' worth.
    pub load: f64,
}

/// The result of a round.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// Of the clip.
    pub quality: Quality,
    /// Of each frame, in microseconds.
    pub lateness_us: Vec<i64>,
    /// Seconds until the neighbour was ready.
    pub launch: Option<f64>,
    /// The neighbour while the clip was played.
    pub seen: Vec<UsageSample>,
    /// StatsFile of `selfpage run`: the neighbour's, then the player's.
    pub counters: [Value; 2],
    /// The result of the neighbour: the same in all rounds.
    #[serde(skip)]
    pub result: String,
    /// Whether the sink had real-time priority.
    pub realtime: bool,
}

/// A neighbour's start: its duration and its result.
struct Launched {
    seconds: f64,
    result: String,
}

/// What the neighbour has. Dropped from the top: it ends before what it uses.
struct NeighbourFixture {
    command: Command,
    cgroup: Option<Cgroup>,
    _swap: Option<Swap>,
}

/// A file that `selfpage run` writes its figures to.
struct StatsFile {
    path: PathBuf,
    _guard: UndoGuard,
}

impl StatsFile {
    fn new(env: &TestEnv<'_>, name: &str) -> Result<Self> {
        let (path, guard) = env.file(name)?;
        Ok(Self {
            path,
            _guard: guard,
        })
    }

    /// What it wrote, if it ran.
    fn read(&self) -> Value {
        let text = std::fs::read(&self.path).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or(Value::Null)
    }
}

impl LaunchSetup<'_> {
    /// Runs an arm once.
    pub fn run(&self, setting: RunSettings<'_>) -> Result<RunResult> {
        let figures = [
            StatsFile::new(&self.env, "neighbour.json")?,
            StatsFile::new(&self.env, "player.json")?,
        ];
        let place = self.place(setting, &figures[0].path)?;
        setting.neighbour.cool();
        let load = LoadPlan { load: setting.load };
        let load = self.env.exe.worker(&WorkerPlan::Load(load))?;
        let mut load = Worker::start(load)?;
        let mut player = Worker::start(self.player(setting, &figures[1].path)?)?;
        let mut neighbour = match setting.arm.launches() {
            true => Some(Worker::start(gated(&place.command))?),
            false => None,
        };
        if let (Some(neighbour), Some(cgroup)) = (&neighbour, &place.cgroup) {
            cgroup.add(neighbour.id())?;
        }
        load.go()?;
        let (played, launch, seen) = self.play(&mut player, neighbour.as_mut())?;
        drop(load);
        if let Some(neighbour) = neighbour {
            neighbour.end()?;
        }
        player.end()?;
        let (seconds, result) = launch.map(|one| (one.seconds, one.result)).unzip();
        Ok(RunResult {
            quality: Quality::of(&played.lateness_us),
            lateness_us: played.lateness_us,
            launch: seconds,
            seen,
            counters: figures.map(|figures| figures.read()),
            result: result.unwrap_or_default(),
            realtime: played.realtime,
        })
    }

    /// The clip, and the neighbour's start in it.
    fn play(
        &self,
        player: &mut Worker,
        neighbour: Option<&mut Worker>,
    ) -> Result<(PlaybackResult, Option<Launched>, Vec<UsageSample>)> {
        let over = AtomicBool::new(false);
        let root = neighbour.as_ref().map_or(0, |neighbour| neighbour.id());
        let watchdog = Watchdog::start(self.env.limit, &[player.id(), root]);
        let outcome = thread::scope(|scope| {
            player.go()?;
            let begin = Instant::now();
            let sampler = Sampler::start(scope, root, begin, &over);
            thread::sleep(self.after);
            let launch = neighbour.map(|neighbour| {
                let begin = Instant::now();
                let started = neighbour.go();
                scope.spawn(move || {
                    started?;
                    let line = neighbour.recv_line()?;
                    Ok(Launched {
                        seconds: begin.elapsed().as_secs_f64(),
                        result: result(&line)?,
                    })
                })
            });
            let played = player.recv::<PlaybackResult>();
            let crashed = |_| Err(anyhow!("a thread of the benchmark ended"));
            let launch = launch.map(|thread| thread.join().unwrap_or_else(crashed));
            anyhow::Ok((played, launch.transpose(), sampler.stop()))
        });
        watchdog.stop()?;
        let (played, launch, seen) = outcome?;
        Ok((played?, launch?, seen))
    }

    fn player(&self, setting: RunSettings<'_>, figures: &Path) -> Result<Command> {
        let mut decoder = self.clip.decoder();
        if setting.arm.ours() {
            let contract = RunContract {
                frames: PLAYER_FRAMES << 20,
                disk: PLAYER_DISK,
                swap: PLAYER_FRAMES << 20,
            };
            let terms = setting.arm.of_player(&self.terms);
            decoder = self.paged(contract, &terms, figures, &decoder)?;
        }
        let display = DisplayPlan {
            frames: self.frames,
            bytes: VideoClip::frame_bytes(),
            per_second: PER_SECOND,
            ahead: setting.ahead,
        };
        let mut display = self.env.exe.worker(&WorkerPlan::Display(display))?;
        display.arg("--");
        Ok(within(display, &decoder))
    }

    fn place(&self, setting: RunSettings<'_>, figures: &Path) -> Result<NeighbourFixture> {
        let neighbour = setting.neighbour;
        let mut place = NeighbourFixture {
            command: neighbour.command(),
            cgroup: None,
            _swap: None,
        };
        let room = neighbour.frames * ROOM;
        if setting.arm == Arm::Swap {
            place._swap = Some(Swap::on_file(&self.env, room)?);
            place.cgroup = Some(Cgroup::new(
                &self.env.cleanup,
                "neighbour",
                neighbour.frames,
            )?);
        }
        if setting.arm.ours() {
            let contract = RunContract {
                frames: neighbour.frames,
                disk: NEIGHBOUR_DISK,
                swap: room,
            };
            let terms = setting.arm.of_neighbour(&self.terms);
            place.command = self.paged(contract, &terms, figures, &place.command)?;
        }
        Ok(place)
    }

    /// `selfpage run` under a contract, in front of a program.
    fn paged(
        &self,
        contract: RunContract<'_>,
        terms: &[String],
        figures: &Path,
        program: &Command,
    ) -> Result<Command> {
        let mut command = Command::new(self.env.selfpage()?);
        let socket = self
            .system
            .as_ref()
            .map(DaemonFixture::socket)
            .unwrap_or(Path::new(""));
        command
            .arg("run")
            .arg(format!("--system={}", socket.display()));
        for (option, bytes) in [("--frames", contract.frames), ("--swap", contract.swap)] {
            command.args([option, &format!("{}K", bytes >> 10)]);
        }
        command.args(["--disk", contract.disk]).args(terms);
        command.arg("--stats-json").arg(figures).arg("--");
        Ok(within(command, program))
    }

    /// Checks that `selfpage run` supports and grants the options of an arm, with a program
    /// that does nothing.
    pub fn grants(&self, arm: Arm) -> Result<()> {
        let options = [arm.of_neighbour(&self.terms), arm.of_player(&self.terms)];
        for terms in options.iter().filter(|terms| !terms.is_empty()) {
            let figures = StatsFile::new(&self.env, "probe.json")?;
            let nothing = Command::new("true");
            let contract = RunContract {
                frames: PROBE_BYTES,
                disk: PLAYER_DISK,
                swap: PROBE_BYTES,
            };
            let command = self.paged(contract, terms, &figures.path, &nothing)?;
            let lacking = format!("the arm lacks `run {}`", terms.join(" "));
            output(command, Stdio::null()).or_unavailable(lacking)?;
        }
        Ok(())
    }
}

/// Bytes of the contract that probes whether the daemon grants an option.
const PROBE_BYTES: u64 = 16 << 20;

/// The result of a neighbour that is ready.
fn result(said: &str) -> Result<String> {
    match said.strip_prefix(READY).map(str::trim) {
        Some(result) if !result.is_empty() => Ok(result.to_owned()),
        _ => Err(anyhow!("the neighbour answered {said:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_is_ready_with_a_result_only() {
        assert_eq!(result("ready 12345").unwrap(), "12345");
        for said in ["ready", "ready ", "MemoryError", ""] {
            assert!(result(said).is_err(), "{said:?}");
        }
    }
}
