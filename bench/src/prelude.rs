//! What every benchmark is written in: errors, times, paths and processes, the pages and their
//! contents, the rows of a report.

pub use crate::cgroup::Cgroup;
pub use crate::cleanup::UndoGuard;
pub use crate::cli_parse::Choice;
pub use crate::daemon_fixture::{DaemonConfig, DaemonFixture};
pub use crate::env::{EnvOptions, TestEnv, progress};
pub use crate::error::{ExperimentError, WhileDoing, unavailable};
pub use crate::machine::Machine;
pub use crate::memory::{MemoryKind, WorkerMemory};
pub use crate::owned_file::OwnedFile;
pub use crate::page_pattern::{PAGE, PageAt, mix};
pub use crate::process::Worker;
pub use crate::report::{Bound, Report, Row, Sample};
pub use crate::statistics::median;
pub use crate::swap::Swap;
pub use crate::table::Table;
pub use crate::worker::{WorkerPlan, ready, reply};
pub use anyhow::{Error, Result, anyhow, bail};
pub use clap::ValueEnum;
pub use serde::{Deserialize, Serialize};
pub use std::path::{Path, PathBuf};
pub use std::process::Command;
pub use std::time::{Duration, Instant};
