//! Locates libselfpage_preload.so.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io::Read;
use std::path::{Path, PathBuf};
use wired::PAGE;

/// The library's file name.
const NAME: &str = "libselfpage_preload.so";

/// How a 64-bit library begins.
const ELF: &[u8; 5] = b"\x7fELF\x02";

/// Names the library where it is not beside the program.
pub const VARIABLE: &str = "SELFPAGE_PRELOAD";

/// Why there is no library to preload.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// The library was not found.
    #[error(
        "{NAME} is not there: looked for {}; build it (cargo build), install it beside `selfpage` or in ../lib, \
         or name it in {VARIABLE}",
        .0.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Nowhere(Vec<PathBuf>),
    /// The dynamic loader cannot take its path.
    #[error(
        "{} cannot be preloaded: the dynamic loader splits LD_PRELOAD at spaces and colons; move it to a path without",
        .0.display()
    )]
    Separator(PathBuf),
    /// The dynamic loader cannot map it.
    #[error(
        "{} cannot be preloaded: {why}; it has to be a 64-bit library that this user may read, on a file system that is not \
         mounted with noexec",
        .path.display()
    )]
    Unloadable {
        /// The library.
        path: PathBuf,
        /// Why.
        why: std::io::Error,
    },
}

/// The library's absolute path.
pub fn find() -> Result<PathBuf, Missing> {
    let places = places();
    let found = places
        .iter()
        .find(|place| place.is_file())
        .and_then(|place| place.canonicalize().ok());
    let Some(path) = found else {
        return Err(Missing::Nowhere(places));
    };
    let splits = |b: &u8| matches!(b, b' ' | b':' | b'\t' | b'\n');
    if path.as_os_str().as_encoded_bytes().iter().any(splits) {
        return Err(Missing::Separator(path));
    }
    match try_to_load(&path) {
        Ok(()) => Ok(path),
        Err(why) => Err(Missing::Unloadable { path, why }),
    }
}

/// Maps the library's first page as the dynamic loader does, which runs a program without a library that it cannot load.
fn try_to_load(path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::open(path)?;
    let mut head = [0; ELF.len()];
    file.read_exact(&mut head)?;
    if head != *ELF {
        return Err(std::io::Error::other("it is no such library"));
    }
    let (rights, flags) = (ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE);
    // SAFETY: a new mapping, where the kernel chooses, which ends here.
    unsafe {
        let page = mmap(std::ptr::null_mut(), PAGE, rights, flags, &file, 0)?;
        Ok(munmap(page, PAGE)?)
    }
}

/// Candidate paths: named, or beside the program (a build), or in the installation.
fn places() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return vec![named.into()];
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    ["", "../lib", "../lib/selfpage"]
        .iter()
        .map(|folder| beside.join(folder).join(NAME))
        .collect()
}
