//! What every experiment shares: the command under test, a folder on the disk under test, and
//! the cleanup process, which undoes changes.

use crate::cleanup::{CleanupProcess, UndoAction};
use crate::daemon_fixture::DaemonDisk;
use crate::prelude::*;
use crate::process::within;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// Where an experiment works, and where its figures go: the same options for each.
#[derive(Clone, Debug, clap::Args)]
pub struct EnvOptions {
    /// Folder for input, swap files and stores, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp")]
    pub folder: PathBuf,
    /// The `selfpage` command, where it is not beside this program.
    #[arg(long)]
    pub selfpage: Option<PathBuf>,
    /// Writes all figures here, as JSON.
    #[arg(long, value_parser = crate::cli_parse::output_file)]
    pub json: Option<PathBuf>,
}

/// The environment of an experiment.
pub struct TestEnv {
    /// Undoes changes.
    pub cleanup: CleanupProcess,
    /// The `selfpage` command, if there is one.
    selfpage: Option<PathBuf>,
    /// Where files go.
    pub folder: PathBuf,
    /// The disk of the experiment's daemons, where it has any.
    pub disk: Option<DaemonDisk>,
    /// The allocator's library for programs that run without us.
    pub allocator: Option<PathBuf>,
    /// The longest a program may take.
    pub limit: Duration,
}

impl TestEnv {
    /// As the options name it. The folder's path is its true one: what works in another folder
    /// names files by it, too.
    pub fn new(options: &EnvOptions) -> Result<Self> {
        let folder = &options.folder;
        Ok(Self {
            cleanup: CleanupProcess::start()?,
            selfpage: find_selfpage(options.selfpage.as_deref()),
            folder: folder.canonicalize().at("find", folder)?,
            disk: None,
            allocator: None,
            limit: Duration::MAX,
        })
    }

    /// The `selfpage` command.
    pub fn selfpage(&self) -> Result<&Path> {
        self.selfpage.as_deref().ok_or_else(|| {
            unavailable("there is no `selfpage` command here: name it with --selfpage or SELFPAGE")
        })
    }

    /// `selfpage run` with bytes of frames; its other options, `--` and a program are to follow.
    pub fn run(&self, frames: u64) -> Result<Command> {
        let mut command = Command::new(self.selfpage()?);
        command.args(["run", "--frames", &kib(frames)]);
        Ok(command)
    }

    /// `selfpage run` with bytes of frames and a store, in front of a program.
    pub fn paged(&self, frames: u64, store: &str, program: &Command) -> Result<Command> {
        let mut command = self.run(frames)?;
        command.args(["--store", store, "--"]);
        Ok(within(command, program))
    }

    /// The same over bytes of a paging server's memory.
    pub fn paged_remotely(
        &self,
        frames: u64,
        bytes: u64,
        server: SocketAddr,
        program: &Command,
    ) -> Result<Command> {
        let mut command = self.run(frames)?;
        command.args(["--store", &format!("remote:{}", kib(bytes))]);
        command.args(["--remote", &server.to_string(), "--insecure", "--"]);
        Ok(within(command, program))
    }

    /// A program without us, with the same allocator.
    pub fn alone(&self, mut program: Command) -> Result<Command> {
        let Some(allocator) = &self.allocator else {
            return Err(unavailable(
                "the allocator that `selfpage run` brings is not here to run beside it: \
                 apt-get install libmimalloc2.0, or name one with --allocator",
            ));
        };
        program.env("LD_PRELOAD", allocator);
        Ok(program)
    }

    /// A file of the benchmark's.
    pub fn file(&self, name: &str) -> Result<OwnedFile> {
        let path = self
            .folder
            .join(format!("selfpage-bench-{}.{name}", std::process::id()));
        let guard = self.cleanup.register(UndoAction::File(path.clone()))?;
        Ok(OwnedFile(path, guard))
    }
}

/// Bytes in whole pages, as the options of `selfpage` take them.
pub fn kib(bytes: u64) -> String {
    format!("{}K", bytes.next_multiple_of(PAGE as u64) >> 10)
}

/// The `selfpage` command: named, or beside this program (a build), or in the installation.
fn find_selfpage(named: Option<&Path>) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new("."));
    let mut places = ["selfpage", "../../bin/selfpage"]
        .map(|path| beside.join(path))
        .into_iter();
    let set = || std::env::var_os("SELFPAGE").map(PathBuf::from);
    let named = named.map(PathBuf::from).or_else(set);
    named.or_else(|| places.find(|path| path.is_file()))
}

/// mimalloc as Debian and its kin install it.
pub fn find_allocator(named: Option<&Path>) -> Option<PathBuf> {
    let places = [
        "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2",
        "/usr/lib64/libmimalloc.so.2",
        "/usr/lib/libmimalloc.so.2",
    ];
    let mut places = places.iter().map(PathBuf::from);
    named
        .map(PathBuf::from)
        .or_else(|| places.find(|path| path.exists()))
}

/// The path of a program, or what to install.
pub fn find_program(program: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths("/usr/bin").chain(std::env::split_paths(&path));
    let lacking = || {
        unavailable(format!(
            "there is no {program} here: apt-get install {package}"
        ))
    };
    let found = places.find_map(|folder| Some(folder.join(program)).filter(|path| path.is_file()));
    found.ok_or_else(lacking)
}

/// How often the line of a part that goes on is repeated where stderr is no terminal.
const REMINDER: Duration = Duration::from_secs(10);

/// Says on stderr what is done now: on one line of a terminal; elsewhere in a line for each part,
/// and for one that goes on every ten seconds. A part is the text but for its numbers.
pub fn progress(what: &str) {
    static LAST: Mutex<Option<(String, Instant)>> = Mutex::new(None);
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{what}");
        let _ = stderr.flush();
        return;
    }
    let part = what.replace(|c: char| c.is_ascii_digit(), "");
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let said = |(said, at): &(String, Instant)| *said == part && at.elapsed() < REMINDER;
    if !what.is_empty() && !last.as_ref().is_some_and(said) {
        let _ = writeln!(stderr, "{what}");
        *last = Some((part, Instant::now()));
    }
}
