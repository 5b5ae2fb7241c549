//! One run of an arm: the load, the player, some seconds later the neighbour; the delays of
//! the frames and the time until the neighbour is ready.

use super::arm::{Arm, NEIGHBOUR_DISK, PLAYER_DISK, PLAYER_FRAMES, Terms};
use super::deadline_misses::Quality;
use super::display::{DisplayPlan, PlaybackResult};
use super::load::LoadPlan;
use super::program::Neighbour;
use super::sampler::{Sampler, UsageSample};
use super::video_clip::{PER_SECOND, VideoClip};
use crate::env::kib;
use crate::prelude::*;
use crate::process::{Watchdog, gated, joined, output, within};
use crate::worker::READY;
use serde_json::Value;
use std::process::Stdio;
use std::thread;

/// Room for pages, for each byte of a neighbour's contract: what the neighbours fill is twice theirs at
/// most, and what a garbage collector has not yet given back is in it.
pub const ROOM: u64 = 6;

/// What all runs share. Dropped from the top: the daemon ends before its disk, which `env` holds.
pub struct LaunchSetup {
    /// The daemon that holds the contracts of the player and the neighbour, in our arms.
    pub system: Option<DaemonFixture>,
    /// What is played.
    pub clip: VideoClip,
    /// Threads of the load.
    pub load_threads: usize,
    /// The options of `selfpage run`.
    pub terms: Terms,
    /// Frames that count.
    pub frames: u64,
    /// When the neighbour is started, after the first frame is due.
    pub after: Duration,
    /// Programs and folders.
    pub env: TestEnv,
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
    /// What `selfpage run` wrote of its figures: the neighbour's, then the player's.
    pub counters: [Value; 2],
    /// The result of the neighbour: the same in all rounds.
    #[serde(skip)]
    pub result: String,
    /// Whether the sink had real-time priority.
    pub realtime: bool,
}

/// A neighbour's start: the seconds that it took, and its result.
type Launch = (f64, String);

/// What the neighbour has. Dropped from the top: it ends before what it uses.
struct NeighbourFixture {
    command: Command,
    cgroup: Option<Cgroup>,
    _swap: Option<Swap>,
}

/// What `selfpage run` wrote of its figures, if it ran.
fn counters(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap_or_default()).unwrap_or(Value::Null)
}

impl LaunchSetup {
    /// Runs an arm once.
    pub fn run(&self, setting: RunSettings<'_>) -> Result<RunResult> {
        let of_neighbour = self.env.file("neighbour.json")?;
        let of_player = self.env.file("player.json")?;
        let place = self.place(setting, &of_neighbour)?;
        setting.neighbour.cool();
        let plan = LoadPlan {
            load: setting.load,
            threads: self.load_threads,
        };
        let mut load = WorkerPlan::Load(plan).start()?;
        let mut player = Worker::start(self.player(setting, &of_player)?)?;
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
        neighbour.map(Worker::end).transpose()?;
        player.end()?;
        let (launch, result) = launch.unzip();
        Ok(RunResult {
            quality: Quality::of(&played.lateness_us),
            lateness_us: played.lateness_us,
            launch,
            seen,
            counters: [&of_neighbour, &of_player].map(|path| counters(path)),
            result: result.unwrap_or_default(),
            realtime: played.realtime,
        })
    }

    /// The clip, and the neighbour's start in it.
    fn play(
        &self,
        player: &mut Worker,
        neighbour: Option<&mut Worker>,
    ) -> Result<(PlaybackResult, Option<Launch>, Vec<UsageSample>)> {
        let root = neighbour.as_ref().map_or(0, |neighbour| neighbour.id());
        let watchdog = Watchdog::start(self.env.limit, &[player.id(), root]);
        let outcome = thread::scope(|scope| {
            player.go()?;
            let sampler = Sampler::start(root, Instant::now());
            thread::sleep(self.after);
            let launch = neighbour.map(|neighbour| {
                let begin = Instant::now();
                let started = neighbour.go();
                scope.spawn(move || {
                    started?;
                    let line = neighbour.recv_line()?;
                    Ok((begin.elapsed().as_secs_f64(), result(&line)?))
                })
            });
            let played = player.recv::<PlaybackResult>();
            let launch = launch.map(joined);
            anyhow::Ok((played, launch.transpose(), sampler.stop()))
        });
        watchdog.stop()?;
        let (played, launch, seen) = outcome?;
        Ok((played?, launch?, seen))
    }

    fn player(&self, setting: RunSettings<'_>, figures: &Path) -> Result<Command> {
        let mut decoder = self.clip.decoder();
        if setting.arm.ours() {
            let room = [PLAYER_FRAMES << 20; 2];
            let terms = setting.arm.of_player(&self.terms);
            decoder = self.paged(room, PLAYER_DISK, &terms, figures, &decoder)?;
        }
        let display = DisplayPlan {
            frames: self.frames,
            bytes: VideoClip::frame_bytes(),
            per_second: PER_SECOND,
            ahead: setting.ahead,
        };
        let mut display = WorkerPlan::Display(display).command()?;
        display.arg("--");
        Ok(within(display, &decoder))
    }

    fn place(&self, setting: RunSettings<'_>, figures: &Path) -> Result<NeighbourFixture> {
        let RunSettings { arm, neighbour, .. } = setting;
        let (mut command, mut cgroup, mut _swap) = (neighbour.command(), None, None);
        let (frames, room) = (neighbour.frames, neighbour.frames * ROOM);
        if arm == Arm::Swap {
            _swap = Some(Swap::on_file(&self.env, room)?);
            cgroup = Some(Cgroup::new(&self.env.cleanup, "neighbour", frames)?);
        }
        if arm.ours() {
            let terms = arm.of_neighbour(&self.terms);
            command = self.paged([frames, room], NEIGHBOUR_DISK, &terms, figures, &command)?;
        }
        Ok(NeighbourFixture {
            command,
            cgroup,
            _swap,
        })
    }

    /// `selfpage run` in front of a program, under a contract with the daemon for bytes of
    /// frames and of swap, and for disk time.
    fn paged(
        &self,
        [frames, swap]: [u64; 2],
        disk: &str,
        terms: &[String],
        figures: &Path,
        program: &Command,
    ) -> Result<Command> {
        let mut command = self.env.run(frames)?;
        let socket = self.system.as_ref().map(DaemonFixture::socket);
        let system = format!("--system={}", socket.unwrap_or(Path::new("")).display());
        command.args([&system, "--swap", &kib(swap), "--disk", disk]);
        command.args(terms).arg("--stats-json");
        command.arg(figures).arg("--");
        Ok(within(command, program))
    }

    /// Checks that `selfpage run` supports and grants the options of an arm, with a program
    /// that does nothing.
    pub fn grants(&self, arm: Arm) -> Result<()> {
        let options = [arm.of_neighbour(&self.terms), arm.of_player(&self.terms)];
        for terms in options.iter().filter(|terms| !terms.is_empty()) {
            let figures = self.env.file("probe.json")?;
            let nothing = Command::new("true");
            let command = self.paged([PROBE_BYTES; 2], PLAYER_DISK, terms, &figures, &nothing)?;
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
