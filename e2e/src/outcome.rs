//! The outcome of a run, and what a test insists on.

use crate::contract::{MIB, Under};
use crate::footprint::Footprint;
use crate::verdict::{Verdict, ensure, failed};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// The outcome of a run.
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// From start to end.
    pub wall: Duration,
    /// The memory its tree had.
    pub footprint: Footprint,
    /// Processes that outlived it.
    pub left: Vec<String>,
    /// Where its standard output went.
    pub stdout: PathBuf,
    /// Its standard error.
    pub stderr: String,
    /// The statistics `selfpage run` wrote.
    pub stats: Option<serde_json::Value>,
    /// The environment of the run.
    pub under: Under,
}

impl Outcome {
    /// Standard output as text.
    pub fn text(&self) -> String {
        read(&self.stdout)
    }

    /// Insists on words in its standard error.
    pub fn mentions(&self, words: &str) -> Verdict {
        ensure(self.stderr.contains(words), || {
            format!("its output lacks {words:?}:\n{}", tail(&self.stderr))
        })
    }

    /// Insists on exit status 0 and on nothing left running.
    pub fn succeeded(self) -> Verdict<Self> {
        self.ended_with(0)
    }

    /// Insists on an exit status and on nothing left running.
    pub fn ended_with(self, code: i32) -> Verdict<Self> {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (_, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        let whose = match self.under {
            Under::Nothing => "without the pager",
            Under::Contract(_) => "under the contract",
        };
        ensure(self.status.code() == Some(code), || {
            format!(
                "{whose} it ended with {how}, not {code}; its output:\n{}",
                tail(&self.stderr)
            )
        })?;
        ensure(self.left.is_empty(), || {
            format!("{whose} these outlived it: {:?}", self.left)
        })?;
        Ok(self)
    }

    /// Insists that the tree's memory stayed within its contract.
    pub fn within_contract(self) -> Verdict<Self> {
        let Under::Contract(contract) = &self.under else {
            return Ok(self);
        };
        let Some(stats) = &self.stats else {
            return failed(format!(
                "no statistics were written; its output:\n{}",
                tail(&self.stderr)
            ));
        };
        let ram = match contract.store {
            Some((ram, _)) => ram,
            // Pages go to the daemon's disk.
            None if contract.daemon.is_some() => 0,
            None => number(stats, "/store_usage/ram_limit")?,
        };
        let stretches = number(stats, "/counters/stretch_bytes")?;
        let bound = contract.frames + contract.lent + ram + stretches * 3 / 200;
        ensure(self.footprint.net <= bound, || {
            format!(
                "peak anonymous memory {} MiB in {} processes: {} MiB after 32 MiB for each, more \
                 than frames {} + RAM store {} + 1.5 % of {} MiB of stretches = {} MiB",
                self.footprint.peak / MIB,
                self.footprint.processes,
                self.footprint.net / MIB,
                contract.frames / MIB,
                ram / MIB,
                stretches / MIB,
                bound / MIB,
            )
        })?;
        Ok(self)
    }
}

/// A number of the statistics, by JSON pointer.
pub fn number(statistics: &serde_json::Value, pointer: &str) -> Verdict<u64> {
    let found = statistics
        .pointer(pointer)
        .and_then(serde_json::Value::as_u64);
    found.map_or_else(
        || failed(format!("the statistics have no number at {pointer}")),
        Ok,
    )
}

/// The first mebibyte of a file, as text.
pub(crate) fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|f| f.take(1 << 20).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last lines of a text.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
