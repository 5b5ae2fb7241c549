//! One run of one arm: set up, its work done by a worker process, taken down.

use crate::ExperimentError;
use crate::arm::{Area, Arm, Medium, Way};
use crate::cgroup::Cgroup;
use crate::contents::PAGE;
use crate::error::while_doing;
use crate::ground::Ground;
use crate::keeper::Owed;
use crate::memory::entry_name;
use crate::pass::Pass;
use crate::process::Process;
use crate::real::launch::within;
use crate::swap::{PageCluster, Swap, preallocated};
use crate::worker::Figures;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

/// What a worker may have in memory besides its share: its program, libraries, stacks and
/// a pager's tables.
const SLACK: u64 = 32 << 20;

/// What all runs share.
pub struct Trials<'a> {
    /// The command, the folder, the keeper.
    pub base: Ground<'a>,
    /// Bytes of data.
    pub bytes: u64,
    /// Bytes of memory.
    pub frames: u64,
    /// Accesses of a pass that is not in order.
    pub accesses: u64,
}

/// Which run.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// Of which arm.
    pub arm: Arm,
    /// With how many threads.
    pub threads: u64,
    /// What its worker does.
    pub passes: &'a [Pass],
    /// Makes the random order: the same in every arm.
    pub seed: u64,
}

/// What an arm holds while it runs. Dropped from the top, after its worker.
#[derive(Default)]
struct Setting {
    cgroup: Option<Cgroup>,
    _swap: Option<Swap>,
    _cluster: Option<PageCluster>,
    _file: Option<Owed>,
}

impl Trials<'_> {
    /// Runs an arm once.
    pub fn run(&self, trial: Trial) -> Result<Figures, ExperimentError> {
        let mut setting = Setting::default();
        let mut command = self.base.myself.command("worker");
        let memory = match trial.arm.way() {
            Way::Linked(entry, medium) => {
                let store = self.store(medium, &mut setting)?;
                format!("{}:{store}", entry_name(entry))
            }
            Way::Huge(medium) => format!("huge:{}", self.store(medium, &mut setting)?),
            Way::Run(medium) => {
                let store = self.store(medium, &mut setting)?;
                command = self.paged(&store)?;
                "paged".into()
            }
            Way::Swap(area) => {
                let bytes = self.bytes * 3 / 2;
                setting._swap = Some(match area {
                    Area::File => Swap::on_file(&self.base.keeper, &self.base.folder, bytes)?,
                    Area::Zram(_) => Swap::on_zram(&self.base.keeper, bytes)?,
                });
                if let Area::Zram(Some(pages)) = area {
                    setting._cluster = Some(PageCluster::set(&self.base.keeper, pages)?);
                }
                setting.cgroup = Some(self.limited(trial.arm)?);
                "anonymous".into()
            }
            Way::Mapped { random } => {
                let path = self.data(&mut setting)?;
                setting.cgroup = Some(self.limited(trial.arm)?);
                let kind = if random { "file-random" } else { "file" };
                format!("{kind}:{}", path.display())
            }
            Way::Device => format!("device:{}", self.data(&mut setting)?.display()),
            Way::Resident => "anonymous".into(),
        };
        self.instruct(&mut command, &memory, trial);
        let figures = work(command, &setting)?;
        // A figure of memory that was not limited at all would be the best of them.
        let most = self.frames + self.frames / 4 + SLACK;
        if trial.arm != Arm::Resident && figures.resident > most {
            return Err(ExperimentError::Worker(format!(
                "it had {} MiB in memory at its end: it was not kept to {} MiB",
                figures.resident >> 20,
                self.frames >> 20
            )));
        }
        Ok(figures)
    }

    /// A store in which no room is ever short: half as much again as the data at 2:1.
    fn store(&self, medium: Medium, setting: &mut Setting) -> Result<String, ExperimentError> {
        let all = format!("ram:{}K", (self.bytes * 3 / 4) >> 10);
        let half = format!("ram:{}K", (self.bytes / 4) >> 10);
        if medium == Medium::Ram {
            return Ok(all);
        }
        let (path, owed) = self.base.file("store")?;
        setting._file = Some(owed);
        let size = (self.bytes * 3 / 2) >> 10;
        let disk = format!("disk:{},size={size}K", path.display());
        Ok(match medium {
            Medium::Both => format!("{half}+{disk}"),
            _ => disk,
        })
    }

    /// A file of the data's size whose blocks have been written: the first write to a
    /// block that was only promised costs the file system more than the device.
    fn data(&self, setting: &mut Setting) -> Result<PathBuf, ExperimentError> {
        let (path, owed) = self.base.file("data")?;
        setting._file = Some(owed);
        let file = preallocated(&path, self.bytes)?;
        let zeros = vec![0; 256 * PAGE];
        let mut at = 0;
        while at < self.bytes {
            let length = (self.bytes - at).min(zeros.len() as u64);
            file.write_all_at(&zeros[..length as usize], at)
                .map_err(while_doing(format!("write {}", path.display())))?;
            at += length;
        }
        // Not in the page cache either: it would be memory beyond the limit.
        file.sync_all()
            .and_then(|()| {
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                    .map_err(Into::into)
            })
            .map_err(while_doing(format!("write out {}", path.display())))?;
        Ok(path)
    }

    fn limited(&self, arm: Arm) -> Result<Cgroup, ExperimentError> {
        Cgroup::new(&self.base.keeper, &arm.name(), self.frames)
    }

    /// `selfpage run` in front of a worker.
    fn paged(&self, store: &str) -> Result<Command, ExperimentError> {
        let worker = self.base.myself.command("worker");
        let mut command = self.base.paged(self.frames, store)?;
        command.arg("--");
        Ok(within(command, &worker))
    }

    fn instruct(&self, command: &mut Command, memory: &str, trial: Trial) {
        let passes: Vec<_> = trial.passes.iter().map(|pass| pass.name()).collect();
        command.args(["--memory", memory, "--passes", &passes.join(",")]);
        for (name, value) in [
            ("--bytes", self.bytes),
            ("--frames", self.frames),
            ("--accesses", self.accesses),
            ("--threads", trial.threads),
            ("--seed", trial.seed),
        ] {
            command.args([name, &value.to_string()]);
        }
    }
}

/// Starts a worker, moves it into its cgroup, starts its work, and reads its figures.
fn work(command: Command, setting: &Setting) -> Result<Figures, ExperimentError> {
    let mut worker = Process::start(command)?;
    if let Some(cgroup) = &setting.cgroup {
        cgroup.add(worker.id())?;
    }
    worker.tell("go")?;
    let figures = worker.hear_as()?;
    worker.end()?;
    Ok(figures)
}
