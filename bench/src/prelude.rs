//! What every benchmark is written in: errors, times, paths and processes, the pages and their
//! contents, the rows of a report.

pub use crate::SelfExe;
pub use crate::cleanup::UndoGuard;
pub use crate::cli_parse::Choice;
pub use crate::env::{TestEnv, progress};
pub use crate::error::{ExperimentError, WhileDoing, unavailable};
pub use crate::memory::{MemoryKind, WorkerMemory};
pub use crate::owned_file::OwnedFile;
pub use crate::page_pattern::{PAGE, PageAt, mix};
pub use crate::process::Worker;
pub use crate::report::{Bound, Row, Sample};
pub use crate::worker::WorkerPlan;
pub use anyhow::{Error, Result, anyhow, bail};
pub use clap::ValueEnum;
pub use serde::{Deserialize, Serialize};
pub use std::path::{Path, PathBuf};
pub use std::process::Command;
pub use std::time::{Duration, Instant};
