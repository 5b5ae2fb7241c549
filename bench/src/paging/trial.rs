//! One run of one arm: set up, its work done by a worker process, taken down.

use super::PagingPlan;
use super::arm::{Arm, BackendNeeds, Medium, SwapMedium};
use super::pass::Pass;
use super::schedule::Amount;
use super::worker::Figures;
use crate::prelude::*;
use crate::swap::{preallocated, set_page_cluster, write_out};
use selfpage::EntryKind;
use std::os::unix::fs::FileExt;

/// What a worker may have in memory besides its share: its program, libraries, stacks and
/// a pager's tables.
const SLACK: u64 = 32 << 20;

/// What an arm holds while it runs. Dropped from the top, after its worker.
#[derive(Default)]
struct ArmFixture {
    cgroup: Option<Cgroup>,
    /// The store of `selfpage run`, where that is in front of the worker.
    run_store: Option<String>,
    _swap: Option<Swap>,
    _cluster: Option<UndoGuard>,
    _file: Option<OwnedFile>,
}

/// Runs an arm once, doing these passes.
pub fn run(env: &TestEnv, arm: Arm, passes: Vec<Pass>, amount: Amount) -> Result<Figures> {
    let mut fixture = ArmFixture::default();
    let memory = fixture.set_up(env, arm, amount)?;
    let plan = WorkerPlan::Paging(PagingPlan {
        memory,
        passes,
        amount,
    });
    let mut command = plan.command()?;
    let frames = amount.frames * PAGE as u64;
    if let Some(store) = &fixture.run_store {
        command = env.paged(frames, store, &command)?;
    }
    let worker = Worker::start(command)?;
    if let Some(cgroup) = &fixture.cgroup {
        cgroup.add(worker.id())?;
    }
    let figures: Figures = worker.finish()?;
    // A figure of memory that was not limited at all would be the best of them.
    if arm != Arm::Resident && figures.resident > frames + frames / 4 + SLACK {
        let [had, limit] = [figures.resident, frames].map(|bytes| bytes >> 20);
        bail!("it had {had} MiB in memory at its end: it was not kept to {limit} MiB");
    }
    Ok(figures)
}

impl ArmFixture {
    /// Makes what an arm needs. The memory of its worker.
    fn set_up(&mut self, env: &TestEnv, arm: Arm, amount: Amount) -> Result<MemoryKind> {
        let [bytes, frames] = [amount.pages, amount.frames].map(|pages| pages * PAGE as u64);
        let limited = || Cgroup::new(&env.cleanup, &arm.name(), frames);
        Ok(match arm.needs() {
            BackendNeeds::Linked(EntryKind::Thread, medium) => {
                MemoryKind::Thread(self.store(env, medium, bytes)?)
            }
            BackendNeeds::Linked(EntryKind::Upcall, medium) => {
                MemoryKind::Upcall(self.store(env, medium, bytes)?)
            }
            BackendNeeds::Run(medium) => {
                self.run_store = Some(self.store(env, medium, bytes)?);
                MemoryKind::Paged
            }
            BackendNeeds::RunShared(medium) => {
                self.run_store = Some(self.store(env, medium, bytes)?);
                MemoryKind::Shared
            }
            BackendNeeds::Huge(medium) => MemoryKind::Huge(self.store(env, medium, bytes)?),
            BackendNeeds::Swap(area) => {
                self._swap = Some(match area {
                    SwapMedium::File => Swap::on_file(env, bytes * 3 / 2)?,
                    SwapMedium::Zram(_) => Swap::on_zram(env, bytes * 3 / 2)?,
                });
                if let SwapMedium::Zram(Some(pages)) = area {
                    self._cluster = Some(set_page_cluster(env, pages)?);
                }
                self.cgroup = Some(limited()?);
                MemoryKind::Anonymous
            }
            BackendNeeds::Mapped { random } => {
                let path = self.data(env, bytes)?;
                self.cgroup = Some(limited()?);
                match random {
                    true => MemoryKind::FileRandom(path),
                    false => MemoryKind::File(path),
                }
            }
            BackendNeeds::Device => MemoryKind::Device(self.data(env, bytes)?),
            BackendNeeds::Resident => MemoryKind::Anonymous,
        })
    }

    /// A store in which no room is ever short: half as much again as the data at 2:1.
    fn store(&mut self, env: &TestEnv, medium: Medium, bytes: u64) -> Result<String> {
        if medium == Medium::Ram {
            return Ok(format!("ram:{}K", (bytes * 3 / 4) >> 10));
        }
        let file = self._file.insert(env.file("store")?);
        let disk = format!("disk:{},size={}K", file.display(), (bytes * 3 / 2) >> 10);
        Ok(match medium {
            Medium::Both => format!("ram:{}K+{disk}", (bytes / 4) >> 10),
            _ => disk,
        })
    }

    /// A file of the data's size whose blocks have been written: the first write to a
    /// block that was only promised costs the file system more than the device.
    fn data(&mut self, env: &TestEnv, bytes: u64) -> Result<PathBuf> {
        let path = self._file.insert(env.file("data")?);
        let file = preallocated(path, bytes)?;
        let zeros = vec![0; 256 * PAGE];
        for at in (0..bytes).step_by(zeros.len()) {
            let length = (bytes - at).min(zeros.len() as u64);
            file.write_all_at(&zeros[..length as usize], at)
                .at("write", &*path)?;
        }
        // In the page cache it would be memory beyond the limit.
        write_out(&file, path)?;
        Ok(path.to_path_buf())
    }
}
