//! A file of the benchmark's on the disk under test: its path, free again when it is dropped or the
//! benchmark ends for any reason.

use crate::prelude::*;
use std::ops::Deref;

/// A path and its removal. Whether there is a file is the user's matter.
pub struct OwnedFile(pub PathBuf, pub UndoGuard);

impl Deref for OwnedFile {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for OwnedFile {
    fn as_ref(&self) -> &Path {
        self
    }
}
