//! The folders of the files that the daemon makes.
//!
//! Rule: the daemon makes no folder but its own, `selfpage` in a folder that exists: `/var/lib/selfpage`, `/run/selfpage`.
//! Where another folder is missing, a file system that is not mounted or a typing error may be the reason.

use std::path::{Path, PathBuf};

/// The error for a folder that does not exist.
#[derive(Debug, thiserror::Error)]
#[error(
    "the folder {} is not there: mount its file system, make it (mkdir -p), or name another path", .0.display()
)]
pub struct MissingFolder(PathBuf);

/// The folder of a file if the daemon has yet to make it; an error if the folder is missing and not the daemon's own.
pub(crate) fn missing_own_folder(file: &Path) -> Result<Option<&Path>, MissingFolder> {
    let Some(folder) = file.parent().filter(|folder| !folder.exists()) else {
        return Ok(None);
    };
    let is_own = folder.ends_with("selfpage") && folder.parent().is_some_and(Path::exists);
    match is_own {
        true => Ok(Some(folder)),
        false => Err(MissingFolder(folder.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_own_folder_is_to_be_made_and_any_other_is_missing() {
        let there = tempfile::tempdir().unwrap();
        let own = there.path().join("selfpage");
        let missing = |file: &str| {
            let file = there.path().join(file);
            let found = missing_own_folder(&file).map(|folder| folder.map(Path::to_path_buf));
            found.map_err(|why| why.to_string())
        };
        assert_eq!(missing("swap"), Ok(None));
        assert_eq!(missing("selfpage/swap"), Ok(Some(own)));
        for file in ["other/swap", "other/selfpage/swap"] {
            assert!(missing(file).unwrap_err().contains("mkdir"), "{file}");
        }
    }
}
