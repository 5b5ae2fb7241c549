//! The file of a server's pages.
//!
//! Its first page says what it is; then comes one place for each page. What it holds is of use to one
//! incarnation of the server alone, whose permits and versions are in RAM: a later one uses the room anew.

use crate::config::DiskConfig;
use crate::server::StartError;
use rustix::fs::{
    FallocateFlags, FlockOperation, OFlags, fallocate, fcntl_getfl, fcntl_setfl, flock,
};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};
use wired::{Bytes, PAGE};

/// What the first page says.
const TITLE: &[u8] =
    b"selfpage serve: pages of other machines' programs. Of no use once the server has ended.\n";

/// How long the file of a server that was killed is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The file.
pub(crate) struct DiskFile {
    file: File,
    pages: u32,
    is_direct: bool,
}

impl DiskFile {
    /// Opens the file or makes it, with all its room.
    ///
    /// # Errors
    /// Where it is another program's file, another server has it, or there is no room.
    pub fn open(config: &DiskConfig) -> Result<Self, StartError> {
        let path = config.path.display();
        let failed = |what: &str| {
            let what = what.to_owned();
            move |why: std::io::Error| StartError::Disk(format!("{what}: {why}"))
        };
        let places = config.size / PAGE as u64;
        let pages = u32::try_from(places.saturating_sub(1)).unwrap_or(u32::MAX / 2);
        let pages = pages.min(u32::MAX / 2);
        if pages == 0 {
            let text = format!(
                "--disk {path}: {} has no room for a page: expected 8K or more",
                Bytes(config.size)
            );
            return Err(StartError::Disk(text));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(&config.path)
            .map_err(failed(&format!("cannot open {path}")))?;
        if !lock(&file) {
            let text = format!("{path} is another server's: give each a file of its own");
            return Err(StartError::Disk(text));
        }
        claim(&file, config)?;
        let size = (u64::from(pages) + 1) * PAGE as u64;
        fallocate(&file, FallocateFlags::empty(), 0, size).map_err(|why| {
            // It has nothing of use, and a full file system is of no use to others.
            let _ = std::fs::remove_file(&config.path);
            let text = format!(
                "cannot allocate {} for {path}: {why}; {}",
                Bytes(size),
                advice(why)
            );
            StartError::Disk(text)
        })?;
        Ok(Self {
            is_direct: set_direct(&file).is_ok(),
            file,
            pages,
        })
    }

    /// Pages that it has room for.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Whether reads and writes go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where a page is in the file.
    pub fn offset(page: u32) -> u64 {
        (u64::from(page) + 1) * PAGE as u64
    }
}

/// What to do where the room of a file cannot be allocated.
fn advice(why: Errno) -> &'static str {
    match why {
        Errno::OPNOTSUPP => {
            "its file system has no fallocate (ramfs, ZFS and NFS before 4.2 have none): choose a file on another"
        }
        _ => "give it a smaller size",
    }
}

/// Locks the file. Returns false if another server has it. The ring of a server that was killed holds its file for a
/// while after the process is gone: milliseconds, or seconds where the machine is busy.
fn lock(file: &File) -> bool {
    let begun = Instant::now();
    while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > LOCK_WAIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Marks a new file as a server's. One that holds something else stays as it is.
fn claim(file: &File, config: &DiskConfig) -> Result<(), StartError> {
    let path = config.path.display();
    let failed = |why| StartError::Disk(format!("cannot read and write {path}: {why}"));
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let text = format!("{path} is not a file: expected one, or the name of a new one");
        return Err(StartError::Disk(text));
    }
    let mut title = [0; TITLE.len()];
    if metadata.len() > 0 {
        let found = file.read_exact_at(&mut title, 0);
        if found.is_err() || title != TITLE {
            let text =
                format!("{path} is not a server's file: it stays as it is; choose another name");
            return Err(StartError::Disk(text));
        }
    }
    let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
    if mode & 0o077 != 0 || owner != rustix::process::geteuid().as_raw() {
        // Another user may have it open, whatever its mode becomes.
        let text = format!(
            "{path} has the mode {mode:o} and the owner {owner}: other users could read the pages there; delete it, or choose another name"
        );
        return Err(StartError::Disk(text));
    }
    let mut first = [0; PAGE];
    first[..TITLE.len()].copy_from_slice(TITLE);
    file.write_all_at(&first, 0).map_err(failed)
}

fn set_direct(file: &File) -> Result<(), Errno> {
    fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_size_is_advised_where_it_helps() {
        assert!(advice(Errno::NOSPC).contains("smaller"));
        let advice = advice(Errno::OPNOTSUPP);
        assert!(advice.contains("fallocate") && !advice.contains("smaller"));
    }
}
