//! A folder of its own for one case, in which everything it may leave is found.

use crate::verdict::{Doing, Verdict, failed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A case's folder: working directory, temporary files, and the pager's state. Removed
/// at the end.
pub struct Sandbox {
    folder: tempfile::TempDir,
}

/// The variables by which programs find a place for their files, and the folder each
/// gets in the sandbox.
const PLACES: [(&str, &str); 4] = [
    ("TMPDIR", "tmp"),
    ("XDG_RUNTIME_DIR", "state/run"),
    ("XDG_STATE_HOME", "state/home"),
    ("SELFPAGE_STATE_DIR", "state/own"),
];

impl Sandbox {
    /// A fresh one, on a real disk: under `SELFPAGE_E2E_DIR`, else /var/tmp.
    pub fn new(name: &str) -> Verdict<Self> {
        let base =
            std::env::var_os("SELFPAGE_E2E_DIR").map_or_else(|| "/var/tmp".into(), PathBuf::from);
        let name: String = name
            .chars()
            .filter(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let folder = tempfile::Builder::new()
            .prefix(&format!("selfpage-e2e-{name}-"))
            .tempdir_in(&base)
            .at("make a folder in", &base)?;
        let sandbox = Self { folder };
        // Programs that drop their privileges keep their access to it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(sandbox.path(), open).at("open up", sandbox.path())?;
        for (_, place) in PLACES {
            let place = sandbox.join(place);
            std::fs::create_dir_all(&place).at("make", &place)?;
        }
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(sandbox.join("state/run"), private).at("close", sandbox.path())?;
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(sandbox.join("tmp"), open).at("open up", sandbox.path())?;
        Ok(sandbox)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The variables that tell programs where to put files.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        PLACES.iter().map(|(name, place)| (*name, self.join(place)))
    }

    /// Fails if the pager left a file in the folders of its variables.
    pub fn check_clean(&self) -> Verdict {
        let mut left = Vec::new();
        files_below(&self.join("state"), &mut left);
        files_below(&self.join("store"), &mut left);
        let mut temporary = Vec::new();
        files_below(&self.join("tmp"), &mut temporary);
        left.extend(temporary.into_iter().filter(|p| {
            let name = p.strip_prefix(self.path()).unwrap_or(p);
            name.to_string_lossy().contains("selfpage")
        }));
        if left.is_empty() {
            return Ok(());
        }
        failed(format!("left behind: {left:?}"))
    }
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            let before = found.len();
            files_below(&path, found);
            // An empty folder is left behind too, but for those the harness made and for
            // the one in which state is kept from run to run.
            let kept =
                path.ends_with("selfpage") || PLACES.iter().any(|(_, place)| path.ends_with(place));
            if found.len() == before && !kept {
                found.push(path);
            }
        } else {
            found.push(path);
        }
    }
}

/// Folders whose files are all of the program under test.
const OWN_FOLDERS: [&str; 2] = ["/run/selfpage", "/var/lib/selfpage"];

/// Shared folders where the program under test makes files, with the prefixes of their names:
/// swap files, files of benchmarks, probes for a writable folder. Other programs of this
/// project, such as a fuzzer beside the tests, have other names.
const SHARED_FOLDERS: [&str; 4] = ["/dev/shm", "/run", "/tmp", "/var/tmp"];
const OWN_NAMES: [&str; 4] = [
    "selfpage-swap-",
    "selfpage-bench-",
    "selfpage-trace",
    ".selfpage-",
];

/// Files of ours outside any sandbox, in the places where such things are left. Cases
/// run side by side, so this is compared once, before and after all of them.
pub fn strangers() -> BTreeSet<PathBuf> {
    let below = |folder: &&str| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_own = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name == "selfpage" || OWN_NAMES.iter().any(|own| name.starts_with(own))
    };
    let own = OWN_FOLDERS.iter().flat_map(below);
    let shared = SHARED_FOLDERS.iter().flat_map(below).filter(is_own);
    own.chain(shared).map(|entry| entry.path()).collect()
}
