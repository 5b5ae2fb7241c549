//! The disks that daemons use: one is measured, and each daemon gets a copy of it.

use crate::contract::{MIB, selfpage};
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict, ensure, failed};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Bytes of a disk.
pub const DISK: u64 = 384 * MIB;

/// Disks for daemons.
#[derive(Default)]
pub struct Disks(Mutex<DiskPool>);

#[derive(Default)]
struct DiskPool {
    /// The folder, with the disk in it that was measured and is never used.
    sandbox: Option<Sandbox>,
    free: Vec<PathBuf>,
    made: usize,
}

impl Disks {
    /// Where the figures of the disks are.
    pub(super) fn take(&self) -> Verdict<(PathBuf, PathBuf)> {
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if shelf.sandbox.is_none() {
            shelf.sandbox = Some(measured()?);
        }
        let free = shelf.free.pop();
        shelf.made += usize::from(free.is_none());
        let Some(sandbox) = &shelf.sandbox else {
            return failed("a folder that was just made is not there");
        };
        let figures = sandbox.join("figures.toml");
        if let Some(disk) = free {
            return Ok((disk, figures));
        }
        let disk = sandbox.join(&format!("disk{}", shelf.made));
        fs::copy(sandbox.join("disk"), &disk).at("copy a disk to", &disk)?;
        Ok((disk, figures))
    }

    pub(super) fn give_back(&self, disk: PathBuf) {
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.free.push(disk);
    }
}

fn measured() -> Verdict<Sandbox> {
    let sandbox = Sandbox::new("disks")?;
    let config = sandbox.join("config.toml");
    let text = format!(
        "socket = \"{0}/s\"\n[disk]\nswap = \"{0}/disk\"\nsize = \"{1}M\"\ncalibration = \"{0}/figures.toml\"\n",
        sandbox.path().display(),
        DISK / MIB
    );
    fs::write(&config, text).at("write", &config)?;
    let done = Command::new(selfpage()?)
        .args(["system", "calibrate", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .output()
        .doing(|| "run selfpage system calibrate".into())?;
    ensure(done.status.success(), || {
        format!(
            "a disk cannot be measured: {}",
            String::from_utf8_lossy(&done.stderr)
        )
    })?;
    Ok(sandbox)
}
