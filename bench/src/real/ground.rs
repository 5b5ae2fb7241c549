//! Where a program runs: paged by us over a medium, or by the kernel over the same medium
//! within a cgroup.

use super::launch::{self, Done, Failed, Start};
use crate::ExperimentError;
use crate::cgroup::Cgroup;
use crate::ground::Ground;
use crate::keeper::Owed;
use crate::swap::Swap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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
}

/// What all programs share.
pub struct Grounds<'a> {
    /// The command, the folder, the keeper.
    pub base: Ground<'a>,
    /// The allocator's library for programs that run without us.
    pub allocator: Option<PathBuf>,
    /// The longest a program may take.
    pub limit: Duration,
}

/// Runs that the kernel may kill before the benchmark gives up.
const TRIES: u32 = 5;

/// A store for our pager, and the file under it, removed when dropped.
pub struct Ours {
    /// As `selfpage run --store` takes it.
    pub store: String,
    _file: Option<Owed>,
}

/// Kernel swap and a cgroup. Dropped from the top: the processes are ended first.
struct Kernels {
    cgroup: Cgroup,
    _swap: Swap,
}

impl Grounds<'_> {
    /// A store that holds `bytes`, incompressible even.
    pub fn ours(&self, medium: Medium, bytes: u64) -> Result<Ours, ExperimentError> {
        let size = (bytes * 3 / 2) >> 10;
        Ok(match medium {
            Medium::Ram => Ours {
                store: format!("ram:{size}K"),
                _file: None,
            },
            Medium::Disk => {
                let (path, owed) = self.base.file("store")?;
                Ours {
                    store: format!("disk:{},size={size}K", path.display()),
                    _file: Some(owed),
                }
            }
        })
    }

    /// Runs a program that waits for its start line, in a cgroup of `memory` bytes with swap for
    /// `bytes`. It is tried again when the kernel kills it: with little memory the kernel
    /// sometimes does so while swap is free [seen on zram, Linux 6.18].
    pub fn in_cgroup(
        &self,
        medium: Medium,
        bytes: u64,
        memory: u64,
        program: &mut dyn FnMut() -> Command,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<Done, ExperimentError> {
        for killed in 0..TRIES {
            let kernels = self.kernels(medium, bytes, memory)?;
            let start = Start::WhenReady(Some(&kernels.cgroup));
            match launch::run(program(), start, self.limit, sink) {
                Ok(done) => return Ok(Done { killed, ..done }),
                Err(Failed::Killed) => {}
                Err(Failed::Otherwise(error)) => return Err(error),
            }
        }
        Err(ExperimentError::Unavailable(format!(
            "the kernel killed it, though swap was free, each of {TRIES} times: more memory may do"
        )))
    }

    fn kernels(&self, medium: Medium, bytes: u64, memory: u64) -> Result<Kernels, ExperimentError> {
        let swap = match medium {
            Medium::Ram => Swap::on_zram(&self.base.keeper, bytes * 3 / 2)?,
            Medium::Disk => Swap::on_file(&self.base.keeper, &self.base.folder, bytes * 3 / 2)?,
        };
        Ok(Kernels {
            cgroup: Cgroup::new(&self.base.keeper, "program", memory)?,
            _swap: swap,
        })
    }

    /// `selfpage run` in front of a program.
    pub fn paged(
        &self,
        frames: u64,
        store: &str,
        program: &Command,
    ) -> Result<Command, ExperimentError> {
        let mut command = self.base.paged(frames, store)?;
        command.arg("--");
        Ok(launch::within(command, program))
    }

    /// A program without us, with the same allocator.
    pub fn alone(&self, mut program: Command) -> Result<Command, ExperimentError> {
        let Some(allocator) = &self.allocator else {
            return Err(ExperimentError::Unavailable(
                "the allocator that `selfpage run` brings is not here to run beside it: \
                 apt-get install libmimalloc2.0, or name one with --allocator"
                    .into(),
            ));
        };
        program.env("LD_PRELOAD", allocator);
        Ok(program)
    }
}

/// mimalloc as Debian and its kin install it.
pub fn allocator(named: Option<&Path>) -> Option<PathBuf> {
    let places = [
        "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2",
        "/usr/lib64/libmimalloc.so.2",
        "/usr/lib/libmimalloc.so.2",
    ];
    named
        .map(Into::into)
        .or_else(|| places.iter().map(PathBuf::from).find(|path| path.exists()))
}

/// The path of a program, or what to install.
pub fn found(program: &str, package: &str) -> Result<PathBuf, ExperimentError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths("/usr/bin")
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            ExperimentError::Unavailable(format!(
                "there is no {program} here: apt-get install {package}"
            ))
        })
}
