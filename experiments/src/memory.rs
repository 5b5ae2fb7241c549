//! The memory a worker works on, by kind.

use crate::error::while_doing;
use crate::{ExperimentError, contents::PAGE};
use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::path::PathBuf;
use std::str::FromStr;

/// Which memory, as a worker is told on its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `anonymous`: private memory of the kernel's, or of whoever pages this process.
    Anonymous,
    /// `file:PATH`: a shared mapping of a file.
    File(PathBuf),
    /// `file-random:PATH`: the same, advised that accesses are random.
    FileRandom(PathBuf),
    /// `device:PATH`: no memory at all, direct reads and writes of a file.
    Device(PathBuf),
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "anonymous" => Ok(Self::Anonymous),
            Some(("file", path)) => Ok(Self::File(path.into())),
            Some(("file-random", path)) => Ok(Self::FileRandom(path.into())),
            Some(("device", path)) => Ok(Self::Device(path.into())),
            _ => Err(format!(
                "no memory is called {text:?}: there are anonymous, file:PATH, file-random:PATH, device:PATH"
            )),
        }
    }
}

/// Memory that is unmapped when dropped.
pub struct Memory {
    start: *mut c_void,
    bytes: usize,
}

impl Memory {
    /// Memory of a kind that has any, without huge pages: all arms work on 4 KiB.
    pub fn map(kind: &Kind, pages: u64) -> Result<Self, ExperimentError> {
        let bytes = pages as usize * PAGE;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        let start = match kind {
            // SAFETY: a fresh mapping at an address the kernel chooses.
            Kind::Anonymous => unsafe { mmap_anonymous(null, bytes, rights, MapFlags::PRIVATE) },
            Kind::File(path) | Kind::FileRandom(path) => {
                let file = std::fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(path)
                    .map_err(while_doing(format!("open {}", path.display())))?;
                // SAFETY: a fresh mapping; the file is this experiment's own.
                unsafe { mmap(null, bytes, rights, MapFlags::SHARED, file.as_fd(), 0) }
            }
            Kind::Device(_) => {
                return Err(ExperimentError::Options("a device is not mapped".into()));
            }
        }
        .map_err(while_doing(format!("map {bytes} bytes")))?;
        let memory = Self { start, bytes };
        let advice = match kind {
            Kind::FileRandom(_) => Advice::Random,
            _ => Advice::LinuxNoHugepage,
        };
        // SAFETY: the mapping just made. A file mapping need not know huge pages.
        let _ = unsafe { madvise(start, bytes, advice) };
        Ok(memory)
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.start.cast()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}
