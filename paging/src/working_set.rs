//! A set of pages in the order of their use: recorded from one run's faults, brought in
//! ahead of another's.
//!
//! Faults in order are rare, but the same program touches the same pages again: the set
//! is what repeats. It names pages by their number in a stretch, so that it holds for
//! another run, wherever its stretch lies.

use std::collections::HashSet;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of a stretch, in the order of their first use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    runs: Vec<Range<u32>>,
}

/// Why a file could not be used as a page set.
#[derive(Debug, thiserror::Error)]
pub enum WorkingSetError {
    /// It could not be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file is no page set, or is incomplete.
    #[error("{path}, line {line}: {wanted} is expected, not {found:?}")]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What was expected.
        wanted: &'static str,
        /// What was found.
        found: String,
    },
}

const TITLE: &str = "selfpage page set 1";

impl WorkingSet {
    /// The pages in the order they come; each counts where it comes first.
    pub fn from_pages(pages: impl IntoIterator<Item = usize>) -> Self {
        let mut seen = HashSet::new();
        let mut runs: Vec<Range<u32>> = Vec::new();
        for page in pages
            .into_iter()
            .filter_map(|page| u32::try_from(page).ok())
        {
            if page == u32::MAX || !seen.insert(page) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        Self { runs }
    }

    /// Runs of neighbours, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        self.runs
            .iter()
            .map(|run| run.start as usize..run.end as usize)
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.runs().map(|run| run.len()).sum()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Writes the set to a file, whole or not at all.
    ///
    /// # Errors
    /// The file system's error.
    pub fn save(&self, path: &Path) -> Result<(), WorkingSetError> {
        let failed = |error| WorkingSetError::File {
            path: path.display().to_string(),
            error,
        };
        let beside = temporary_beside(path);
        let write = || -> std::io::Result<()> {
            let mut file = std::io::BufWriter::new(std::fs::File::create(&beside)?);
            writeln!(file, "{TITLE}")?;
            for run in &self.runs {
                writeln!(file, "{}+{}", run.start, run.len())?;
            }
            writeln!(file, "end {}", self.len())?;
            file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
            std::fs::rename(&beside, path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&beside);
            failed(error)
        })
    }

    /// Reads a set that was saved.
    ///
    /// # Errors
    /// The file system's error, or the line that does not belong in a page set.
    pub fn load(path: &Path) -> Result<Self, WorkingSetError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| WorkingSetError::File {
            path: name.clone(),
            error,
        })?;
        Self::parse(&text).map_err(|(line, wanted)| WorkingSetError::Line {
            path: name,
            line: line + 1,
            wanted,
            found: text
                .lines()
                .nth(line)
                .unwrap_or_default()
                .chars()
                .take(60)
                .collect(),
        })
    }

    fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(TITLE) {
            return Err((0, TITLE));
        }
        let mut set = Self::default();
        for (at, line) in lines {
            if let Some(total) = line.strip_prefix("end ") {
                return match total.parse() == Ok(set.len()) {
                    true => Ok(set),
                    false => Err((at, "the number of pages before")),
                };
            }
            let run = line.split_once('+').and_then(|(start, len)| {
                let (start, len) = (start.parse::<u32>().ok()?, len.parse::<u32>().ok()?);
                (len > 0).then_some(start..start.checked_add(len)?)
            });
            set.runs
                .push(run.ok_or((at, "a run of pages as start+length"))?);
        }
        Err((
            text.lines().count(),
            "a last line `end` with the number of pages",
        ))
    }
}

/// A name for the file while it is written, for one save alone: in the same folder, so that it can be renamed.
fn temporary_beside(path: &Path) -> PathBuf {
    static SAVES: AtomicU64 = AtomicU64::new(0);
    let save = SAVES.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".part.{}.{save}", std::process::id()));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_use_counts() {
        let set = WorkingSet::from_pages([5, 6, 7, 6, 2, 3, 8]);
        assert_eq!(set.runs().collect::<Vec<_>>(), [5..8, 2..4, 8..9]);
        assert_eq!(set.len(), 6);
    }

    #[test]
    fn a_file_that_is_none_says_where() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set");
        for (text, line) in [
            ("", 1),
            ("something\n", 1),
            ("selfpage page set 1\n4+2\n", 3),
            ("selfpage page set 1\n4+0\nend 0\n", 2),
            ("selfpage page set 1\n4294967295+2\nend 2\n", 2),
            ("selfpage page set 1\n4+2\nend 3\n", 3),
        ] {
            std::fs::write(&path, text).unwrap();
            match WorkingSet::load(&path) {
                Err(WorkingSetError::Line { line: at, .. }) => assert_eq!(at, line, "{text:?}"),
                other => panic!("{text:?}: {other:?}"),
            }
        }
        assert!(matches!(
            WorkingSet::load(&folder.path().join("none")),
            Err(WorkingSetError::File { .. })
        ));
    }

    #[test]
    fn sets_that_are_saved_at_once_under_names_alike_are_each_whole() {
        let folder = tempfile::tempdir().unwrap();
        let sets = [(0..2000, "index.hot"), (5000..5100, "index.cold")];
        std::thread::scope(|scope| {
            for (pages, name) in sets {
                let path = folder.path().join(name);
                scope.spawn(move || {
                    let set = WorkingSet::from_pages(pages.step_by(2));
                    for _ in 0..50 {
                        set.save(&path).unwrap();
                        assert_eq!(WorkingSet::load(&path).unwrap(), set);
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    proptest! {
        #[test]
        fn what_is_saved_is_loaded(pages in prop::collection::vec(0usize..500, 0..300)) {
            let folder = tempfile::tempdir().unwrap();
            let set = WorkingSet::from_pages(pages);
            let path = folder.path().join("set");
            set.save(&path).unwrap();
            prop_assert_eq!(WorkingSet::load(&path).unwrap(), set);
        }
    }
}
