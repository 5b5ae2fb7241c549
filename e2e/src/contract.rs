//! The environment of a run: none, or a contract with `selfpage run`.

use crate::verdict::{Verdict, failed};
use std::path::{Path, PathBuf};

/// A mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;

/// How large a case is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// An eighth of the full one, in an eighth of the frames: for every change.
    Quick,
    /// At least 512 MB touched in 64 MB of frames.
    Full,
}

impl Size {
    /// The value of `SELFPAGE_E2E_SIZE`: `full`, otherwise quick.
    pub fn from_environment() -> Self {
        match std::env::var("SELFPAGE_E2E_SIZE").as_deref() {
            Ok("full") => Self::Full,
            _ => Self::Quick,
        }
    }

    /// `full`, or the part of it that is quick.
    pub fn scale(self, full: u64, quick: u64) -> u64 {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }

    /// The contract a real program is run under at this size.
    pub fn contract(self) -> Contract {
        Contract::new(self.scale(64, 16) * MIB)
    }
}

/// The options of `selfpage run`.
#[derive(Clone, Debug)]
pub struct Contract {
    /// Bytes of frames.
    pub frames: u64,
    /// Bytes of optimistic frames.
    pub lent: u64,
    /// Bytes of compressed RAM and of disk; the default store where absent.
    pub store: Option<(u64, u64)>,
    /// The daemon's socket, where the contract is with one; its disk is the store then.
    pub daemon: Option<PathBuf>,
    /// Options besides.
    pub options: Vec<String>,
}

impl Contract {
    /// `frames` bytes over the default store.
    pub fn new(frames: u64) -> Self {
        Self {
            frames,
            lent: 0,
            store: None,
            daemon: None,
            options: Vec::new(),
        }
    }

    /// The same over `ram` bytes of compressed RAM in front of `disk` bytes of file; zero
    /// leaves that part out.
    pub fn over(mut self, ram: u64, disk: u64) -> Self {
        self.store = Some((ram, disk));
        self
    }

    /// The same with the daemon at `socket`, and `swap` bytes of its disk.
    pub fn at(mut self, socket: &Path, swap: u64) -> Self {
        self.daemon = Some(socket.into());
        self.with(&format!("--swap={}M", swap / MIB))
    }

    /// The same with up to `lent` bytes of optimistic frames.
    pub fn lending(mut self, lent: u64) -> Self {
        self.lent = lent;
        self
    }

    /// The same with one more option.
    pub fn with(mut self, option: &str) -> Self {
        self.options.push(option.into());
        self
    }
}

/// With the pager or without.
#[derive(Clone, Debug)]
pub enum Under {
    /// The program alone.
    Nothing,
    /// `selfpage run` with this contract.
    Contract(Contract),
}

/// The `selfpage` command under test: `SELFPAGE`, or the release build beside this
/// program's own.
pub fn selfpage() -> Verdict<PathBuf> {
    if let Some(named) = std::env::var_os("SELFPAGE") {
        return Ok(named.into());
    }
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors()
        .map(|folder| folder.join("release/selfpage"))
        .find(|candidate| candidate.is_file())
        .map_or_else(
            || {
                failed(
                    "no release build of `selfpage` beside this program: run `cargo build \
                     --release` (or `make build`) first, or name it in SELFPAGE",
                )
            },
            Ok,
        )
}

/// Returns true if only the runs without the pager are wanted (`SELFPAGE_E2E_BARE=1`), to
/// check the cases themselves.
pub fn bare_only() -> bool {
    std::env::var_os("SELFPAGE_E2E_BARE").is_some()
}
