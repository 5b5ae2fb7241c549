//! The programs: those that people know, each at work that it holds in memory. A new one is a
//! variant of [`KnownProgram`] and its line in [`KnownProgram::prepare`].

use super::arm::Unpaged;
use super::options::ProgramsOptions;
use super::{gcc, postgres, python, redis, sort, sqlite};
use crate::prelude::*;

/// A program at its work; its description stands in the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnownProgram {
    /// sqlite3: a database in memory is filled, indexed and grouped
    Sqlite,
    /// CPython: objects in a dict are built and grouped
    Python,
    /// GNU sort of a file, with a buffer for all of it, one thread
    Sort,
    /// gcc -O2 of a large generated file
    Gcc,
    /// redis-server: values are set, then read out of order by one client
    Redis,
    /// NumPy: arrays are made, sorted and grouped
    Numpy,
    /// PostgreSQL: a database in shared memory is filled, updated and read by pgbench
    Postgres,
}

/// A program that is ready to be run, with its input.
pub struct Workload {
    /// It prints its result.
    pub command: Command,
    /// Read before each run, so that every arm finds it in the page cache.
    pub input: Option<OwnedFile>,
    pub unpaged: Unpaged,
    /// It changes its user, so that its processes are given the store expressly.
    pub changes_user: bool,
    /// The requests of a server; other programs do their work by themselves.
    pub client: Option<redis::RedisClient>,
    /// Removed with it.
    pub files: Vec<OwnedFile>,
}

impl Workload {
    /// One process that takes no input.
    pub fn of(command: Command) -> Self {
        Self {
            command,
            input: None,
            unpaged: Unpaged {
                processes: 1,
                bytes: 0,
            },
            changes_user: false,
            client: None,
            files: Vec::new(),
        }
    }
}

impl KnownProgram {
    /// The programs of a quick look.
    pub const QUICK: [Self; 2] = [Self::Sqlite, Self::Python];

    /// Makes its input. A program that is not here is unavailable, with what to install.
    pub fn prepare(self, options: &ProgramsOptions, env: &TestEnv) -> Result<Workload> {
        let mib = options.mib;
        let python = options.python.as_deref();
        match self {
            Self::Sqlite => sqlite::prepare(env, mib),
            Self::Python => python::prepare(python, mib),
            Self::Sort => sort::prepare(env, mib),
            Self::Gcc => gcc::prepare(env, mib),
            Self::Redis => redis::prepare(env, mib),
            Self::Numpy => python::prepare_numpy(python, mib),
            Self::Postgres => postgres::prepare(env, mib),
        }
    }
}
