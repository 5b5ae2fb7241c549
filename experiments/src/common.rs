//! What every benchmark that runs programs is told: where its files go, which command pages
//! them, and where its figures are to be written. Asked for in the same words by each.

use crate::ExperimentError;
use crate::error::while_doing;
use std::path::PathBuf;

/// Where a benchmark works, and where its figures go.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Folder for input, swap files and stores, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp")]
    pub folder: PathBuf,
    /// The `selfpage` command, where this is not it.
    #[arg(long)]
    pub selfpage: Option<PathBuf>,
    /// Writes all figures here, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Common {
    /// The `selfpage` command: the one that was named, what SELFPAGE names, or this very
    /// program. None where this is another.
    pub fn selfpage(&self) -> Option<PathBuf> {
        let own = std::env::current_exe()
            .ok()
            .filter(|p| p.file_name().is_some_and(|n| n == "selfpage"));
        let named = self.selfpage.clone();
        named
            .or_else(|| std::env::var_os("SELFPAGE").map(Into::into))
            .or(own)
    }

    /// The folder's true path: what works in another folder names files by it, too.
    ///
    /// # Errors
    /// Where there is none.
    pub fn true_folder(&self) -> Result<PathBuf, ExperimentError> {
        let asked = &self.folder;
        asked
            .canonicalize()
            .map_err(while_doing(format!("find {}", asked.display())))
    }
}
