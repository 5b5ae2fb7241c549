//! What every experiment shares: the command under test, a folder on the disk under test, and
//! the keeper, which undoes changes.

use crate::contents::PAGE;
use crate::error::while_doing;
use crate::keeper::{Debt, Keeper, Owed};
use crate::{ExperimentError, Myself};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where an experiment works, and where its figures go: the same options for each.
#[derive(Clone, Debug, clap::Args)]
pub struct GroundOptions {
    /// Folder for input, swap files and stores, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp")]
    pub folder: PathBuf,
    /// The `selfpage` command, where it is not beside this program.
    #[arg(long)]
    pub selfpage: Option<PathBuf>,
    /// Writes all figures here, as JSON.
    #[arg(long, value_parser = crate::output::file)]
    pub json: Option<PathBuf>,
}

/// The ground.
pub struct Ground<'a> {
    /// How to start workers.
    pub myself: &'a Myself,
    /// Undoes changes.
    pub keeper: Keeper,
    /// The `selfpage` command, if there is one.
    selfpage: Option<PathBuf>,
    /// Where files go.
    pub folder: PathBuf,
}

impl<'a> Ground<'a> {
    /// As the options say. The folder's path is its true one: what works in another folder
    /// names files by it, too.
    pub fn new(myself: &'a Myself, options: &GroundOptions) -> Result<Self, ExperimentError> {
        let folder = &options.folder;
        Ok(Self {
            myself,
            keeper: Keeper::start(myself)?,
            selfpage: found(options.selfpage.as_deref()),
            folder: folder
                .canonicalize()
                .map_err(while_doing(format!("find {}", folder.display())))?,
        })
    }

    /// The `selfpage` command.
    pub fn selfpage(&self) -> Result<&Path, ExperimentError> {
        self.selfpage.as_deref().ok_or_else(|| {
            ExperimentError::Unavailable(
                "there is no `selfpage` command here: name it with --selfpage or SELFPAGE".into(),
            )
        })
    }

    /// `selfpage run` with bytes of frames and a store. More options, `--` and a program are
    /// to follow.
    pub fn paged(&self, frames: u64, store: &str) -> Result<Command, ExperimentError> {
        let mut command = Command::new(self.selfpage()?);
        let frames = format!("{}K", frames.next_multiple_of(PAGE as u64) >> 10);
        command.args(["run", "--frames", &frames, "--store", store]);
        Ok(command)
    }

    /// A file of the benchmark's; the name is free again when the debt is settled.
    pub fn file(&self, name: &str) -> Result<(PathBuf, Owed), ExperimentError> {
        let path = self
            .folder
            .join(format!("selfpage-bench-{}.{name}", std::process::id()));
        let owed = self.keeper.owe(Debt::File(path.clone()))?;
        Ok((path, owed))
    }
}

/// The `selfpage` command: named, or beside this program (a build), or in the installation.
fn found(named: Option<&Path>) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new("."));
    let mut candidates = ["selfpage", "../../bin/selfpage"]
        .map(|path| beside.join(path))
        .into_iter();
    named
        .map(Into::into)
        .or_else(|| std::env::var_os("SELFPAGE").map(Into::into))
        .or_else(|| candidates.find(|path| path.is_file()))
}
