//! A system daemon of a case's own, and the disks that such daemons use.
//!
//! A daemon calibrates a disk for seconds before it can promise disk time. So the tests make
//! and calibrate one disk, and every daemon gets a copy of it, which is reused after the
//! daemon's end: the next daemon clears up what a killed daemon left there.

mod disks;

use crate::contract::{Contract, MIB, selfpage};
use crate::outcome::tail;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Halt, Verdict, ensure, failed, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use disks::{DISK, Disks};

/// How long a daemon may take to listen, or to end, on a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long the release of resources of ended processes may take.
const SETTLED: Duration = Duration::from_secs(120);

/// Where control groups may be mounted.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup/selfpage", "/sys/fs/cgroup/unified/selfpage"];

/// The settings of a daemon's configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// MiB of frames to promise.
    pub managed: u64,
    /// Lines of the memory section besides.
    pub memory: String,
    /// Lines of the disk section besides.
    pub disk: String,
    /// Sections besides.
    pub rest: String,
}

impl Settings {
    /// `managed` MiB of frames, and the defaults.
    pub fn new(managed: u64) -> Self {
        Self {
            managed,
            memory: String::new(),
            disk: String::new(),
            rest: String::new(),
        }
    }

    /// The same with lines in the memory section.
    pub fn memory(mut self, lines: &str) -> Self {
        self.memory = lines.into();
        self
    }

    /// The same with more sections.
    pub fn rest(mut self, lines: &str) -> Self {
        self.rest = lines.into();
        self
    }
}

/// A daemon. Drop ends it and removes its files.
pub struct Daemon {
    sandbox: Sandbox,
    disks: Arc<Disks>,
    disk: PathBuf,
    figures: PathBuf,
    child: Option<Child>,
    through: Vec<OsString>,
    variables: Vec<(String, String)>,
}

impl Daemon {
    /// A daemon that listens.
    pub fn start(disks: &Arc<Disks>, settings: &Settings) -> Verdict<Self> {
        let mut daemon = Self::prepare(disks, settings)?;
        daemon.again()?;
        Ok(daemon)
    }

    /// Everything a daemon needs, before it is started.
    pub fn prepare(disks: &Arc<Disks>, settings: &Settings) -> Verdict<Self> {
        let (disk, figures) = disks.take()?;
        let daemon = Self {
            sandbox: Sandbox::new("d")?,
            disks: disks.clone(),
            disk,
            figures,
            child: None,
            through: Vec::new(),
            variables: Vec::new(),
        };
        daemon.configure(settings)?;
        Ok(daemon)
    }

    /// Writes its configuration.
    pub fn configure(&self, settings: &Settings) -> Verdict {
        let text = format!(
            "socket = \"{}\"\n[memory]\nframes = \"{}M\"\n{}\n[disk]\nswap = \"{}\"\ncalibration = \"{}\"\n{}\n{}\n",
            self.socket().display(),
            settings.managed,
            settings.memory,
            self.disk.display(),
            self.figures.display(),
            settings.disk,
            settings.rest
        );
        self.configure_text(&text)
    }

    /// Writes any text as its configuration.
    pub fn configure_text(&self, text: &str) -> Verdict {
        fs::write(self.config(), text).at("write", &self.config())
    }

    /// The file of its configuration.
    pub fn config(&self) -> PathBuf {
        self.sandbox.join("config.toml")
    }

    /// Loses the measured figures of its disk, which it gets a file of its own for. The next configuration names it.
    pub fn lose_figures(&mut self) {
        self.figures = self.sandbox.join("figures.toml");
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.sandbox.join("s")
    }

    /// Its swap file.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// A variable of its environment from the next start on.
    pub fn variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.into(), value.into()));
    }

    /// Sets the wrapper program that starts it from the next start on.
    pub fn through(&mut self, command: &[&OsStr]) {
        self.through = command.iter().copied().map(OsStr::to_owned).collect();
    }

    /// The command that starts it.
    pub fn command(&self) -> Verdict<Command> {
        let log = self.sandbox.join("log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .at("open", &log)?;
        let mut words = self.through.clone();
        words.push(selfpage()?.into());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(["system", "--config"])
            .arg(self.config())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(command)
    }

    /// Starts it, without waiting until it listens.
    pub fn launch(&mut self) -> Verdict {
        let child = self.command()?.spawn();
        self.child = Some(child.doing(|| "start selfpage system".into())?);
        Ok(())
    }

    /// Starts it, and waits until it listens.
    pub fn again(&mut self) -> Verdict {
        let before = self.log().matches("listening at").count();
        self.launch()?;
        let begin = Instant::now();
        while self.log().matches("listening at").count() == before {
            if let Some(status) = self.ended() {
                self.child = None;
                return failed(format!(
                    "the daemon ended with {status}; its output:\n{}",
                    self.said()
                ));
            }
            ensure(begin.elapsed() < PATIENCE, || {
                format!("the daemon does not listen; its output:\n{}", self.said())
            })?;
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Its process.
    pub fn pid(&self) -> Verdict<Pid> {
        let pid = self
            .child
            .as_ref()
            .and_then(|child| Pid::from_raw(child.id() as i32));
        pid.map_or_else(|| failed("the daemon does not run"), Ok)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Verdict {
        kill_process(self.pid()?, signal).doing(|| "send a signal to the daemon".into())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) -> Verdict {
        self.signal(Signal::KILL)?;
        let child = self.child.take();
        let status = child.map(|mut child| child.wait()).transpose();
        status.doing(|| "wait for the daemon".into()).map(drop)
    }

    /// Sends SIGTERM, and waits for its end.
    pub fn end(&mut self) -> Verdict<ExitStatus> {
        self.signal(Signal::TERM)?;
        let begin = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                self.child = None;
                return Ok(status);
            }
            ensure(begin.elapsed() < PATIENCE, || {
                format!("the daemon does not end; its output:\n{}", self.said())
            })?;
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its log, over all its starts.
    pub fn log(&self) -> String {
        fs::read_to_string(self.sandbox.join("log")).unwrap_or_default()
    }

    /// The last lines of its log.
    pub fn said(&self) -> String {
        tail(&self.log())
    }

    /// Waits until its log contains `text` `times` times.
    pub fn says(&self, text: &str, times: usize) -> Verdict {
        let lacks = || {
            let said = self.said();
            format!("the daemon never said {text:?} {times} times, but:\n{said}")
        };
        let has_said = || self.log().matches(text).count() >= times;
        wait_for(PATIENCE, lacks, || Ok(has_said().then_some(())))
    }

    /// Runs `selfpage contract` with it: standard output, or the error message.
    pub fn contract(&self, args: &[&str]) -> Verdict<Result<String, String>> {
        let mut command = Command::new(selfpage()?);
        command.args(["contract", "--system"]).arg(self.socket());
        command.args(args);
        output_or_error(command)
    }

    /// Runs `selfpage system check` on its configuration: standard output, or the error message.
    pub fn check(&self) -> Verdict<Result<String, String>> {
        let mut command = Command::new(selfpage()?);
        command.args(["system", "check", "--config"]);
        command.arg(self.config());
        output_or_error(command)
    }

    fn json(&self, what: &str) -> Verdict<Value> {
        let text = self.contract(&[what, "--json"])?.map_err(Halt::Failed)?;
        serde_json::from_str(&text).doing(|| format!("read what `contract {what}` printed"))
    }

    /// The contracts it keeps.
    pub fn tenants(&self) -> Verdict<Vec<Value>> {
        match self.json("show")? {
            Value::Array(all) => Ok(all),
            other => failed(format!("`contract show` is no list: {other}")),
        }
    }

    /// The totals and the free parts of its resources.
    pub fn books(&self) -> Verdict<Value> {
        self.json("free")
    }

    /// A contract with it, for `frames` MiB and `swap` MiB of its disk.
    pub fn terms(&self, frames: u64, swap: u64) -> Contract {
        Contract::new(frames * MIB).at(&self.socket(), swap * MIB)
    }

    /// Insists that all frames, bloks, disk time and groups are released.
    pub fn has_everything_back(&self) -> Verdict {
        let log = self.log();
        // A wrapper that starts the daemon may log, too.
        let own = |line: &&str| self.through.is_empty() && !line.starts_with("selfpage");
        let strange = log.lines().find(own);
        ensure(strange.is_none(), || format!("in its log: {strange:?}"))?;
        let begin = Instant::now();
        loop {
            let books = self.books()?;
            let same = |one: &str, other: &str| books.get(one) == books.get(other);
            let is_zero = |name: &str| books.get(name).and_then(Value::as_f64) == Some(0.0);
            let groups = self.groups();
            let all = same("managed", "free")
                && same("swap", "swap_free")
                && ["tenants", "guaranteed", "promised", "channels"]
                    .into_iter()
                    .all(is_zero)
                && groups.len() <= 1;
            if all {
                return Ok(());
            }
            ensure(begin.elapsed() < SETTLED, || {
                format!(
                    "not everything came back: {books}, groups {groups:?}; the daemon said:\n{}",
                    self.said()
                )
            })?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its control groups, the inner ones last.
    pub fn groups(&self) -> Vec<PathBuf> {
        let name = self
            .sandbox
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let folders = |path: &Path| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let paths = entries.map(|entry| entry.path());
            paths.filter(|path| path.is_dir()).collect::<Vec<_>>()
        };
        let all = MOUNTS.iter().flat_map(|mount| folders(Path::new(mount)));
        let ours = all.filter(|path| path.to_string_lossy().contains(&*name));
        ours.flat_map(|path| [vec![path.clone()], folders(&path)].concat())
            .collect()
    }
}

fn output_or_error(mut command: Command) -> Verdict<Result<String, String>> {
    let done = command.stdin(Stdio::null()).output();
    let done = done.doing(|| format!("run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(match done.status.success() {
        true => Ok(text(&done.stdout)),
        false => Err(text(&done.stderr)),
    })
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.is_some() && self.end().is_err() {
            let _ = self.kill();
        }
        self.groups()
            .iter()
            .rev()
            .for_each(|group| drop(fs::remove_dir(group)));
        self.disks.give_back(self.disk.clone());
    }
}
