//! One run of an arm: the load, the player, some seconds later the neighbour; the delays of
//! the frames and the time until the neighbour is ready.

use super::arm::{Arm, NEIGHBOUR_DISK, PLAYER_DISK, PLAYER_FRAMES, Terms};
use super::clip::{Clip, PER_SECOND};
use super::lateness::Quality;
use super::program::Neighbour;
use super::sampler::{Sampler, Seen};
use super::sink::Played;
use crate::ExperimentError;
use crate::cgroup::Cgroup;
use crate::keeper::Owed;
use crate::process::Process;
use crate::real::ground::Grounds;
use crate::real::launch::{gated, last_words, within};
use crate::swap::Swap;
use crate::system::{Disk, System};
use crate::worker::READY;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Room for pages, for each byte of a neighbour's contract: what the neighbours fill is twice theirs at
/// most, and what a garbage collector has not yet given back is in it.
pub const ROOM: u64 = 6;

/// A contract with the system domain.
struct Contract<'a> {
    frames: u64,
    disk: &'a str,
    swap: u64,
}

/// What all rounds share.
pub struct Stage<'a> {
    /// Programs and folders.
    pub grounds: Grounds<'a>,
    /// The system domain that holds the contracts of the player and the neighbour, in our arms.
    pub system: Option<System>,
    /// Its disk, which outlives it.
    pub _disk: Option<Disk>,
    /// What is played.
    pub clip: Clip,
    /// The options of `selfpage run`.
    pub terms: Terms,
    /// Frames that count.
    pub frames: u64,
    /// When the neighbour is started, after the first frame is due.
    pub after: Duration,
}

/// A round's own settings.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
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
pub struct Round {
    /// Of the clip.
    pub quality: Quality,
    /// Of each frame, in microseconds.
    pub lateness_us: Vec<i64>,
    /// Seconds until the neighbour was ready.
    pub launch: Option<f64>,
    /// The neighbour while the clip was played.
    pub seen: Vec<Seen>,
    /// Figures of `selfpage run`: the neighbour's, then the player's.
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
struct Place {
    command: Command,
    cgroup: Option<Cgroup>,
    _swap: Option<Swap>,
}

/// A file that `selfpage run` writes its figures to.
struct Figures {
    path: PathBuf,
    _owed: Owed,
}

impl Figures {
    fn new(grounds: &Grounds<'_>, name: &str) -> Result<Self, ExperimentError> {
        let (path, owed) = grounds.base.file(name)?;
        Ok(Self { path, _owed: owed })
    }

    /// What it wrote, if it ran.
    fn read(&self) -> Value {
        let text = std::fs::read(&self.path).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or(Value::Null)
    }
}

impl Stage<'_> {
    /// Runs a round.
    pub fn round(&self, setting: Setting<'_>) -> Result<Round, ExperimentError> {
        let figures = [
            Figures::new(&self.grounds, "neighbour.json")?,
            Figures::new(&self.grounds, "player.json")?,
        ];
        let place = self.place(setting, &figures[0].path)?;
        setting.neighbour.cool();
        let mut load = self.grounds.base.myself.command("spin");
        load.args(["--load", &setting.load.to_string()]);
        let mut load = Process::start(load)?;
        let mut player = Process::start(self.player(setting, &figures[1].path)?)?;
        let mut neighbour = match setting.arm.launches() {
            true => Some(Process::start(gated(&place.command))?),
            false => None,
        };
        if let (Some(neighbour), Some(cgroup)) = (&neighbour, &place.cgroup) {
            cgroup.add(neighbour.id())?;
        }
        load.tell("go")?;
        let (played, launch, seen) = self.play(&mut player, neighbour.as_mut())?;
        drop(load);
        if let Some(neighbour) = neighbour {
            neighbour.end()?;
        }
        player.end()?;
        let (seconds, result) = launch.map(|one| (one.seconds, one.result)).unzip();
        Ok(Round {
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
        player: &mut Process,
        neighbour: Option<&mut Process>,
    ) -> Result<(Played, Option<Launched>, Vec<Seen>), ExperimentError> {
        let (over, late) = (AtomicBool::new(false), AtomicBool::new(false));
        let (ended, end) = channel::<()>();
        let root = neighbour.as_ref().map_or(0, |neighbour| neighbour.id());
        let all = [player.id(), root].map(handle);
        let (played, launch, seen) = thread::scope(|scope| {
            let (late, limit) = (&late, self.grounds.limit);
            scope.spawn(move || guard(&end, limit, &all, late));
            player.tell("go")?;
            let begin = Instant::now();
            let sampler = Sampler::start(scope, root, begin, &over);
            thread::sleep(self.after);
            let launch = neighbour.map(|neighbour| {
                let begin = Instant::now();
                let told = neighbour.tell("go");
                scope.spawn(move || {
                    told?;
                    let said = neighbour.hear()?;
                    Ok(Launched {
                        seconds: begin.elapsed().as_secs_f64(),
                        result: result(&said)?,
                    })
                })
            });
            let played = player.hear_as::<Played>();
            let launch = launch.map(|thread| thread.join().unwrap_or_else(|_| Err(crashed())));
            drop(ended);
            Ok::<_, ExperimentError>((played, launch.transpose(), sampler.stop()))
        })?;
        if late.load(Ordering::Relaxed) {
            return Err(ExperimentError::Worker(format!(
                "not done after {} s (--limit)",
                self.grounds.limit.as_secs()
            )));
        }
        Ok((played?, launch?, seen))
    }

    fn player(&self, setting: Setting<'_>, figures: &Path) -> Result<Command, ExperimentError> {
        let mut decoder = self.clip.decoder();
        if setting.arm.ours() {
            let contract = Contract {
                frames: PLAYER_FRAMES << 20,
                disk: PLAYER_DISK,
                swap: PLAYER_FRAMES << 20,
            };
            let terms = setting.arm.of_player(&self.terms);
            decoder = self.paged(contract, &terms, figures, &decoder)?;
        }
        let mut sink = self.grounds.base.myself.command("sink");
        for (option, value) in [
            ("--frames", self.frames),
            ("--bytes", Clip::frame_bytes() as u64),
            ("--per-second", u64::from(PER_SECOND)),
            ("--ahead", setting.ahead),
        ] {
            sink.args([option, &value.to_string()]);
        }
        sink.arg("--");
        Ok(within(sink, &decoder))
    }

    fn place(&self, setting: Setting<'_>, figures: &Path) -> Result<Place, ExperimentError> {
        let neighbour = setting.neighbour;
        let mut place = Place {
            command: neighbour.command(),
            cgroup: None,
            _swap: None,
        };
        let room = neighbour.frames * ROOM;
        if setting.arm == Arm::Swap {
            let keeper = &self.grounds.base.keeper;
            place._swap = Some(Swap::on_file(keeper, &self.grounds.base.folder, room)?);
            place.cgroup = Some(Cgroup::new(keeper, "neighbour", neighbour.frames)?);
        }
        if setting.arm.ours() {
            let contract = Contract {
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
        contract: Contract<'_>,
        terms: &[String],
        figures: &Path,
        program: &Command,
    ) -> Result<Command, ExperimentError> {
        let mut command = Command::new(self.grounds.base.selfpage()?);
        let socket = self
            .system
            .as_ref()
            .map(System::socket)
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
    pub fn grants(&self, arm: Arm) -> Result<(), ExperimentError> {
        let told = [arm.of_neighbour(&self.terms), arm.of_player(&self.terms)];
        for terms in told.iter().filter(|terms| !terms.is_empty()) {
            let figures = Figures::new(&self.grounds, "asked.json")?;
            let nothing = Command::new("true");
            let contract = Contract {
                frames: ASKED,
                disk: PLAYER_DISK,
                swap: ASKED,
            };
            let mut command = self.paged(contract, terms, &figures.path, &nothing)?;
            let asked = command.output();
            let output = asked.map_err(crate::error::while_doing("start selfpage run"))?;
            if !output.status.success() {
                return Err(ExperimentError::Unavailable(format!(
                    "the arm lacks `run {}`: {}",
                    terms.join(" "),
                    last_words(&output.stderr)
                )));
            }
        }
        Ok(())
    }
}

/// A pidfd of a process, which a process that reuses the pid does not have; none without a
/// process.
fn handle(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid as i32)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Ends processes that take too long.
fn guard(end: &Receiver<()>, limit: Duration, all: &[Option<OwnedFd>], late: &AtomicBool) {
    if end.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    late.store(true, Ordering::Relaxed);
    for process in all.iter().flatten() {
        // ESRCH: the process has exited already.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

/// Bytes of the contract that probes whether the daemon grants an option.
const ASKED: u64 = 16 << 20;

/// The result of a neighbour that is ready.
fn result(said: &str) -> Result<String, ExperimentError> {
    match said.strip_prefix(READY).map(str::trim) {
        Some(result) if !result.is_empty() => Ok(result.to_owned()),
        _ => Err(ExperimentError::Worker(format!(
            "the neighbour said {said:?}"
        ))),
    }
}

fn crashed() -> ExperimentError {
    ExperimentError::Worker("a thread of the benchmark ended".into())
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

    #[test]
    fn a_guard_spares_a_process_that_ends_in_time() {
        let (ended, end) = channel::<()>();
        drop(ended);
        let late = AtomicBool::new(false);
        guard(&end, Duration::from_secs(60), &[None], &late);
        assert!(!late.load(Ordering::Relaxed));
    }
}
