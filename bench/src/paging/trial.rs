//! One run of one arm: set up, its work done by a worker process, taken down.

use super::PagingPlan;
use super::arm::{Arm, BackendNeeds, Medium, SwapMedium};
use super::pass::Pass;
use super::worker::Figures;
use crate::cgroup::Cgroup;
use crate::prelude::*;
use crate::swap::{Swap, preallocated, set_page_cluster, write_out};
use selfpage::EntryKind;
use std::os::unix::fs::FileExt;

/// What a worker may have in memory besides its share: its program, libraries, stacks and
/// a pager's tables.
const SLACK: u64 = 32 << 20;

/// What all runs share.
pub struct Trials<'a> {
    /// The command, the folder, the cleanup process.
    pub env: TestEnv<'a>,
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
struct ArmFixture {
    cgroup: Option<Cgroup>,
    _swap: Option<Swap>,
    _cluster: Option<UndoGuard>,
    _file: Option<UndoGuard>,
}

impl Trials<'_> {
    /// Runs an arm once.
    pub fn run(&self, trial: Trial<'_>) -> Result<Figures> {
        let mut fixture = ArmFixture::default();
        let needs = trial.arm.needs();
        let memory = self.set_up(needs, trial.arm, &mut fixture)?;
        let store = match &memory {
            MemoryKind::Upcall(store) => Some(store.clone()),
            _ => None,
        };
        let paged = match needs {
            BackendNeeds::Run(_) => store,
            _ => None,
        };
        let plan = WorkerPlan::Paging(PagingPlan {
            memory: paged.as_ref().map_or(memory, |_| MemoryKind::Paged),
            passes: trial.passes.to_vec(),
            bytes: self.bytes,
            frames: self.frames,
            accesses: self.accesses,
            threads: trial.threads,
            seed: trial.seed,
        });
        let mut command = self.env.exe.worker(&plan)?;
        if let Some(store) = &paged {
            command = self.env.paged(self.frames, store, &command)?;
        }
        let mut worker = Worker::start(command)?;
        if let Some(cgroup) = &fixture.cgroup {
            cgroup.add(worker.id())?;
        }
        let figures: Figures = worker.call(&"go")?;
        worker.end()?;
        // A figure of memory that was not limited at all would be the best of them.
        let most = self.frames + self.frames / 4 + SLACK;
        if trial.arm != Arm::Resident && figures.resident > most {
            bail!(
                "it had {} MiB in memory at its end: it was not kept to {} MiB",
                figures.resident >> 20,
                self.frames >> 20
            );
        }
        Ok(figures)
    }

    /// Makes what an arm needs. The memory of its worker.
    fn set_up(
        &self,
        needs: BackendNeeds,
        arm: Arm,
        fixture: &mut ArmFixture,
    ) -> Result<MemoryKind> {
        let env = &self.env;
        Ok(match needs {
            BackendNeeds::Linked(EntryKind::Thread, medium) => {
                MemoryKind::Thread(self.store(medium, fixture)?)
            }
            BackendNeeds::Linked(EntryKind::Upcall, medium) | BackendNeeds::Run(medium) => {
                MemoryKind::Upcall(self.store(medium, fixture)?)
            }
            BackendNeeds::Huge(medium) => MemoryKind::Huge(self.store(medium, fixture)?),
            BackendNeeds::Swap(area) => {
                let bytes = self.bytes * 3 / 2;
                fixture._swap = Some(match area {
                    SwapMedium::File => Swap::on_file(env, bytes)?,
                    SwapMedium::Zram(_) => Swap::on_zram(env, bytes)?,
                });
                if let SwapMedium::Zram(Some(pages)) = area {
                    fixture._cluster = Some(set_page_cluster(env, pages)?);
                }
                fixture.cgroup = Some(self.limited(arm)?);
                MemoryKind::Anonymous
            }
            BackendNeeds::Mapped { random } => {
                let path = self.data(fixture)?;
                fixture.cgroup = Some(self.limited(arm)?);
                match random {
                    true => MemoryKind::FileRandom(path),
                    false => MemoryKind::File(path),
                }
            }
            BackendNeeds::Device => MemoryKind::Device(self.data(fixture)?),
            BackendNeeds::Resident => MemoryKind::Anonymous,
        })
    }

    /// A store in which no room is ever short: half as much again as the data at 2:1.
    fn store(&self, medium: Medium, fixture: &mut ArmFixture) -> Result<String> {
        let all = format!("ram:{}K", (self.bytes * 3 / 4) >> 10);
        let half = format!("ram:{}K", (self.bytes / 4) >> 10);
        if medium == Medium::Ram {
            return Ok(all);
        }
        let (path, guard) = self.env.file("store")?;
        fixture._file = Some(guard);
        let size = (self.bytes * 3 / 2) >> 10;
        let disk = format!("disk:{},size={size}K", path.display());
        Ok(match medium {
            Medium::Both => format!("{half}+{disk}"),
            _ => disk,
        })
    }

    /// A file of the data's size whose blocks have been written: the first write to a
    /// block that was only promised costs the file system more than the device.
    fn data(&self, fixture: &mut ArmFixture) -> Result<PathBuf> {
        let (path, guard) = self.env.file("data")?;
        fixture._file = Some(guard);
        let file = preallocated(&path, self.bytes)?;
        let zeros = vec![0; 256 * PAGE];
        let mut at = 0;
        while at < self.bytes {
            let length = (self.bytes - at).min(zeros.len() as u64);
            file.write_all_at(&zeros[..length as usize], at)
                .at("write", &path)?;
            at += length;
        }
        // In the page cache it would be memory beyond the limit.
        write_out(&file, &path)?;
        Ok(path)
    }

    fn limited(&self, arm: Arm) -> Result<Cgroup> {
        Cgroup::new(&self.env.cleanup, &arm.name(), self.frames)
    }
}
