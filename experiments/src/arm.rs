//! The arms: each is a way to have more data than memory, set up, run once, taken down.

use crate::cgroup::Cgroup;
use crate::error::while_doing;
use crate::keeper::{Debt, Keeper, Owed};
use crate::swap::{Swap, preallocated};
use crate::worker::{Figures, READY};
use crate::{ExperimentError, Myself};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A way to have more data than memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// A linked program, upcalls, compressed RAM.
    LinkedRam,
    /// A linked program, upcalls, disk.
    LinkedDisk,
    /// `selfpage run`, compressed RAM.
    RunRam,
    /// `selfpage run`, disk.
    RunDisk,
    /// Kernel swap on zram with lz4.
    SwapZram,
    /// Kernel swap on a file.
    SwapFile,
    /// A mapped file.
    MappedFile,
    /// A mapped file with MADV_RANDOM.
    MappedFileRandom,
    /// Direct reads and writes: the device's limit.
    Device,
    /// All of it in memory: the other limit.
    Resident,
}

impl Arm {
    /// All, in the order of a report.
    pub const ALL: [Self; 10] = [
        Self::LinkedRam,
        Self::LinkedDisk,
        Self::RunRam,
        Self::RunDisk,
        Self::SwapZram,
        Self::SwapFile,
        Self::MappedFile,
        Self::MappedFileRandom,
        Self::Device,
        Self::Resident,
    ];

    /// As a row's head, and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::LinkedRam => "linked-ram",
            Self::LinkedDisk => "linked-disk",
            Self::RunRam => "run-ram",
            Self::RunDisk => "run-disk",
            Self::SwapZram => "swap-zram",
            Self::SwapFile => "swap-file",
            Self::MappedFile => "mmap",
            Self::MappedFileRandom => "mmap-random",
            Self::Device => "device",
            Self::Resident => "resident",
        }
    }

    /// In words.
    pub fn about(self) -> &'static str {
        match self {
            Self::LinkedRam => "linked, upcall, compressed RAM",
            Self::LinkedDisk => "linked, upcall, disk",
            Self::RunRam => "selfpage run, compressed RAM",
            Self::RunDisk => "selfpage run, disk",
            Self::SwapZram => "kernel swap on zram lz4",
            Self::SwapFile => "kernel swap on a file",
            Self::MappedFile => "mmap of a file",
            Self::MappedFileRandom => "mmap of a file, MADV_RANDOM",
            Self::Device => "direct I/O (1 MiB in order)",
            Self::Resident => "all resident",
        }
    }

    /// Those it is compared with, on the same medium.
    pub fn rivals(self) -> &'static [Self] {
        match self {
            Self::LinkedRam | Self::RunRam => &[Self::SwapZram],
            Self::LinkedDisk | Self::RunDisk => &[Self::SwapFile, Self::MappedFile, Self::Device],
            _ => &[],
        }
    }
}

impl std::str::FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|arm| arm.name() == text)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|a| a.name()).collect();
                format!("no arm is called {text:?}: there are {}", names.join(", "))
            })
    }
}

/// What a worker may have in memory besides its share: its program, libraries, stacks and
/// a pager's tables.
const SLACK: u64 = 32 << 20;

/// What all arms share.
pub struct Bench<'a> {
    /// How to start workers.
    pub myself: &'a Myself,
    /// Who undoes things.
    pub keeper: Keeper,
    /// The `selfpage` command for the arms of `run`, if there is one.
    pub selfpage: Option<PathBuf>,
    /// Where files go.
    pub folder: PathBuf,
    /// Bytes of data.
    pub bytes: u64,
    /// Bytes of memory.
    pub frames: u64,
    /// Random accesses.
    pub accesses: u64,
    /// Threads.
    pub threads: u64,
}

/// What an arm holds while it runs. Dropped from the top: the worker is ended first.
#[derive(Default)]
struct Setting {
    cgroup: Option<Cgroup>,
    _swap: Option<Swap>,
    _file: Option<Owed>,
}

impl Bench<'_> {
    /// Runs an arm once.
    pub fn run(&self, arm: Arm, seed: u64) -> Result<Figures, ExperimentError> {
        let mut setting = Setting::default();
        let (command, memory) = match arm {
            Arm::LinkedRam => (
                self.myself.command("worker"),
                format!("linked:{}", self.ram()),
            ),
            Arm::RunRam => (self.paged(&self.ram())?, "anonymous".into()),
            Arm::LinkedDisk | Arm::RunDisk => {
                let path = self.file("store");
                let store = format!(
                    "disk:{},size={}K",
                    path.display(),
                    (self.bytes * 3 / 2) >> 10
                );
                setting._file = Some(self.keeper.owe(Debt::File(path))?);
                match arm {
                    Arm::RunDisk => (self.paged(&store)?, "anonymous".into()),
                    _ => (self.myself.command("worker"), format!("linked:{store}")),
                }
            }
            Arm::SwapZram | Arm::SwapFile => {
                setting._swap = Some(match arm {
                    Arm::SwapZram => Swap::on_zram(&self.keeper, self.bytes * 3 / 2)?,
                    _ => Swap::on_file(&self.keeper, &self.folder, self.bytes * 3 / 2)?,
                });
                setting.cgroup = Some(Cgroup::new(&self.keeper, arm.name(), self.frames)?);
                (self.myself.command("worker"), "anonymous".into())
            }
            Arm::MappedFile | Arm::MappedFileRandom | Arm::Device => {
                let path = self.file("data");
                setting._file = Some(self.keeper.owe(Debt::File(path.clone()))?);
                preallocated(&path, self.bytes)?;
                if arm != Arm::Device {
                    setting.cgroup = Some(Cgroup::new(&self.keeper, arm.name(), self.frames)?);
                }
                let kind = match arm {
                    Arm::MappedFile => "file",
                    Arm::MappedFileRandom => "file-random",
                    _ => "device",
                };
                (
                    self.myself.command("worker"),
                    format!("{kind}:{}", path.display()),
                )
            }
            Arm::Resident => (self.myself.command("worker"), "anonymous".into()),
        };
        if arm == Arm::Device && self.threads > 1 {
            return Err(ExperimentError::Unavailable(
                "the device is measured with one thread".into(),
            ));
        }
        let figures = self.work(command, &memory, seed, &setting)?;
        // A figure of memory that was not limited at all would be the best of them.
        let most = self.frames + self.frames / 4 + SLACK;
        if arm != Arm::Resident && figures.resident > most {
            return Err(ExperimentError::Worker(format!(
                "it had {} MiB in memory at its end: it was not kept to {} MiB",
                figures.resident >> 20,
                self.frames >> 20
            )));
        }
        Ok(figures)
    }

    /// A store with room for the data at 2:1 and half as much again.
    fn ram(&self) -> String {
        format!("ram:{}K", (self.bytes * 3 / 4) >> 10)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder
            .join(format!("selfpage-bench-{}.{name}", std::process::id()))
    }

    /// `selfpage run` in front of a worker.
    fn paged(&self, store: &str) -> Result<Command, ExperimentError> {
        let Some(selfpage) = &self.selfpage else {
            return Err(ExperimentError::Unavailable(
                "there is no `selfpage` command here: name it with --selfpage or SELFPAGE".into(),
            ));
        };
        let worker = self.myself.command("worker");
        let mut command = Command::new(selfpage);
        let frames = format!("{}K", self.frames >> 10);
        command.args(["run", "--frames", &frames, "--store", store, "--"]);
        command.arg(worker.get_program()).args(worker.get_args());
        Ok(command)
    }

    fn work(
        &self,
        mut command: Command,
        memory: &str,
        seed: u64,
        setting: &Setting,
    ) -> Result<Figures, ExperimentError> {
        let options = [
            ("--memory", memory.to_owned()),
            ("--bytes", self.bytes.to_string()),
        ];
        let amounts = [
            ("--frames", self.frames),
            ("--accesses", self.accesses),
            ("--threads", self.threads),
            ("--seed", seed),
        ];
        for (name, value) in options
            .into_iter()
            .chain(amounts.map(|(n, v)| (n, v.to_string())))
        {
            command.args([name, &value]);
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(while_doing(format!("start {:?}", command.get_program())))?;
        let mut worker = Worker(child);
        let (Some(orders), Some(answers)) = (worker.0.stdin.take(), worker.0.stdout.take()) else {
            return Err(ExperimentError::Worker("it has no pipes".into()));
        };
        let mut lines = BufReader::new(answers).lines().map_while(Result::ok);
        if lines.next().as_deref() != Some(READY) {
            return Err(worker.failure());
        }
        if let Some(cgroup) = &setting.cgroup {
            cgroup.add(worker.0.id())?;
        }
        { orders }
            .write_all(b"go\n")
            .map_err(while_doing("tell the worker to go"))?;
        let Some(line) = lines.next() else {
            return Err(worker.failure());
        };
        let figures = serde_json::from_str(&line).map_err(|_| worker.failure())?;
        // Its end is part of the work being right: a pager may fail at the very end.
        let status = worker
            .0
            .wait()
            .map_err(while_doing("wait for the worker"))?;
        if status.success() {
            Ok(figures)
        } else {
            Err(worker.failure())
        }
    }
}

/// A worker process; killed when dropped before its end.
struct Worker(Child);

impl Worker {
    fn failure(&mut self) -> ExperimentError {
        let status = self
            .0
            .wait()
            .map_or_else(|e| e.to_string(), |s| s.to_string());
        let mut said = String::new();
        if let Some(mut pipe) = self.0.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut pipe, &mut said);
        }
        let said: Vec<&str> = said.trim().lines().rev().take(3).collect();
        ExperimentError::Worker(format!(
            "{status}: {}",
            said.into_iter().rev().collect::<Vec<_>>().join("; ")
        ))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The `selfpage` command: this very program, or what SELFPAGE names.
pub fn selfpage(named: Option<&Path>) -> Option<PathBuf> {
    let own = std::env::current_exe()
        .ok()
        .filter(|p| p.file_name().is_some_and(|n| n == "selfpage"));
    named
        .map(Into::into)
        .or_else(|| std::env::var_os("SELFPAGE").map(Into::into))
        .or(own)
}
