//! Where a program's pages go: to our store, or to the kernel's swap over the same medium within
//! a cgroup.

use super::child::{self, Done, Start};
use crate::prelude::*;

/// Where pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Compressed RAM: ours, or zram with lz4.
    Ram,
    /// A file on the same disk.
    Disk,
}

impl Medium {
    /// Its name in the rows of a report, of ours and of the kernel's.
    pub fn names(self) -> [&'static str; 2] {
        match self {
            Self::Ram => ["compressed RAM", "kernel swap on zram lz4"],
            Self::Disk => ["disk", "kernel swap on a file"],
        }
    }

    /// A store that holds `bytes`, incompressible even, as `selfpage run --store` takes it, and
    /// the file under it.
    pub fn store(self, env: &TestEnv, bytes: u64) -> Result<(String, Option<OwnedFile>)> {
        let size = (bytes * 3 / 2) >> 10;
        Ok(match self {
            Self::Ram => (format!("ram:{size}K"), None),
            Self::Disk => {
                let file = env.file("store")?;
                (format!("disk:{},size={size}K", file.display()), Some(file))
            }
        })
    }

    /// Runs a program that waits for its start line, in a cgroup of `memory` bytes with swap for
    /// `bytes`. It is tried again when the kernel kills it: with little memory the kernel
    /// sometimes does so while swap is free [seen on zram, Linux 6.18].
    pub fn run_in_cgroup(
        self,
        env: &TestEnv,
        bytes: u64,
        memory: u64,
        program: impl Fn() -> Result<Command>,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<Done> {
        for killed in 0..TRIES {
            // Dropped after the cgroup: its processes are ended first.
            let _swap = match self {
                Self::Ram => Swap::on_zram(env, bytes * 3 / 2)?,
                Self::Disk => Swap::on_file(env, bytes * 3 / 2)?,
            };
            let cgroup = Cgroup::new(&env.cleanup, "program", memory)?;
            let start = Start::WhenReady(Some(&cgroup));
            match child::run(program()?, start, env.limit, sink) {
                Ok(done) => return Ok(Done { killed, ..done }),
                Err(why) if matches!(why.downcast_ref(), Some(ExperimentError::Killed)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(unavailable(format!(
            "the kernel killed it, though swap was free, each of {TRIES} times: more memory may do"
        )))
    }
}

/// Runs that the kernel may kill before the benchmark gives up.
const TRIES: u32 = 5;
