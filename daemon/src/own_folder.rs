//! The folders of the files that the daemon makes.
//!
//! Rule: the daemon makes no folder but its own, `selfpage` in one that is there: `/var/lib/selfpage`, `/run/selfpage`.
//! Where another is missing, a file system that is not mounted or a typing error may be the reason.

use std::path::{Path, PathBuf};

/// A folder that is not there.
#[derive(Debug, thiserror::Error)]
#[error(
    "the folder {} is not there: mount its file system, make it (mkdir -p), or name another path", .0.display()
)]
pub struct MissingFolder(PathBuf);

/// The folder of a file, where the daemon has yet to make it.
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
    fn a_folder_of_the_daemons_own_is_yet_to_be_made_and_another_is_missing() {
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
