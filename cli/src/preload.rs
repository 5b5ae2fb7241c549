//! Locates libselfpage_preload.so.

use std::path::{Path, PathBuf};

/// The library's file name.
const NAME: &str = "libselfpage_preload.so";

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
    match path.as_os_str().as_encoded_bytes().iter().any(splits) {
        true => Err(Missing::Separator(path)),
        false => Ok(path),
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
