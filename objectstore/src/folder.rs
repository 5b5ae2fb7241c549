//! Writes of a folder's files, in threads that may wait for a disk.
//!
//! OpenDAL's own write syncs the file in a thread that drives all operations and their clocks: two files on a slow disk
//! hold up every read, and its bound of time. A write that is given up goes on there, and may yet truncate the file.
//!
//! Rule: of a write that is given up, or fails, nothing stays, whenever it ends.

use opendal::raw::new_std_io_error;
use opendal::{Buffer, Error, ErrorKind, Result};
use std::fs::{File, create_dir, remove_file};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Tells a write's thread that its result is not waited for any more.
struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The files of a folder. Its clones share their bound on threads.
#[derive(Clone, Debug)]
pub(crate) struct FolderWriter {
    root: PathBuf,
    threads: Arc<Semaphore>,
}

impl FolderWriter {
    /// Writes take at most so many threads, which leaves the others to reads where the disk holds writes up.
    pub fn new(root: &str, threads: usize) -> Self {
        Self {
            root: root.into(),
            threads: Arc::new(Semaphore::new(threads)),
        }
    }

    /// Writes a file. Where the future is dropped before its end, the file is deleted once the disk lets go of it:
    /// its owner may delete it meanwhile, and writes it again under another name only.
    pub async fn put(&self, name: &str, bytes: Buffer) -> Result<()> {
        let is_within = |part: Component<'_>| matches!(part, Component::Normal(_));
        if !Path::new(name).components().all(is_within) {
            return Err(Error::new(ErrorKind::NotFound, "it is not in the folder"));
        }
        let path = self.root.join(name);
        let (root, name) = (self.root.clone(), PathBuf::from(name));
        let ended = |why: &dyn ToString| Error::new(ErrorKind::Unexpected, why.to_string());
        let threads = Arc::clone(&self.threads);
        let thread = threads.acquire_owned().await.map_err(|why| ended(&why))?;
        let given_up = GivenUp(Arc::default());
        let is_given_up = Arc::clone(&given_up.0);
        let writing = spawn_blocking(move || {
            if is_given_up.load(Ordering::Acquire) {
                return Ok(());
            }
            let written = make_folders(&root, &name).and_then(|()| write(&path, bytes));
            // After the write: a flag that is set later is of an owner that finds the file, and deletes it.
            if written.is_err() || is_given_up.load(Ordering::Acquire) {
                let _ = remove_file(&path);
            }
            drop(thread);
            written
        });
        let written = writing.await.map_err(|why| ended(&why))?;
        written.map_err(new_std_io_error)
    }
}

/// Makes the folders of a file below the root, but not the root: it may be on a file system that is not mounted now.
fn make_folders(root: &Path, name: &Path) -> io::Result<()> {
    let mut folder = root.to_owned();
    for part in name.parent().into_iter().flatten() {
        folder.push(part);
        match create_dir(&folder) {
            Err(_) if folder.is_dir() => {}
            made => made?,
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: Buffer) -> io::Result<()> {
    let mut file = File::create(path)?;
    bytes
        .into_iter()
        .try_for_each(|part| file.write_all(&part))?;
    // Pages need not outlive the machine, but a disk's errors, and a server's lack of room, may show here only.
    file.sync_data()
}
