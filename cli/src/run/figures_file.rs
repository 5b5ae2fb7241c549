//! The file of `--stats-json`: opened before a process starts, and left as it is until there are figures.

use rustix::fd::{AsRawFd, RawFd};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// The file, and its name.
pub struct FiguresFile {
    path: PathBuf,
    file: File,
}

/// Why it has no figures.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the figures to {}: {why}; give --stats-json another path", path.display())]
pub struct FiguresError {
    path: PathBuf,
    why: io::Error,
}

impl FiguresFile {
    /// Opens it, and makes it where it is not there.
    pub fn open(path: PathBuf) -> Result<Self, FiguresError> {
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(false).open(&path);
        match opened {
            Ok(file) => Ok(Self { path, file }),
            Err(why) => Err(FiguresError { path, why }),
        }
    }

    /// Replaces what it has.
    pub fn write(&self, figures: &str) -> Result<(), FiguresError> {
        let write = || {
            // A pipe or a terminal has no length.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            (&self.file).write_all(figures.as_bytes())
        };
        let path = self.path.clone();
        write().map_err(|why| FiguresError { path, why })
    }

    /// The number of its descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
