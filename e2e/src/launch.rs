//! Runs a program, bare or under a contract, and watches its memory and its end.

use crate::contract::{Contract, MIB, Under, selfpage};
use crate::footprint::Watch;
use crate::outcome::{Outcome, read, tail};
use crate::processes::{self, Process};
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict, failed, wait_for};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a tree may take to end after its first process has ended. A tree that ends sooner is not
/// waited for; on a loaded machine one took 5.07 s.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program to run.
pub struct Launch<'a> {
    sandbox: &'a Sandbox,
    program: OsString,
    args: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    stdin: Option<PathBuf>,
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
    limit: Duration,
}

impl<'a> Launch<'a> {
    /// `program` in `sandbox`.
    pub fn new(sandbox: &'a Sandbox, program: impl AsRef<OsStr>) -> Self {
        Self {
            sandbox,
            program: program.as_ref().into(),
            args: Vec::new(),
            variables: Vec::new(),
            stdin: None,
            stdout: None,
            stderr: None,
            limit: Duration::from_secs(120),
        }
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().into());
        self
    }

    /// More arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|a| a.as_ref().into()));
        self
    }

    /// An environment variable.
    pub fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.into(), value.as_ref().into()));
        self
    }

    /// Standard input from a file.
    pub fn stdin(mut self, path: impl AsRef<Path>) -> Self {
        self.stdin = Some(path.as_ref().into());
        self
    }

    /// Standard output into a file.
    pub fn stdout(mut self, path: impl AsRef<Path>) -> Self {
        self.stdout = Some(path.as_ref().into());
        self
    }

    /// Standard error into a file.
    pub fn stderr(mut self, path: impl AsRef<Path>) -> Self {
        self.stderr = Some(path.as_ref().into());
        self
    }

    /// How long it may take before it counts as hung and is killed.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts it.
    pub fn spawn(&self, under: &Under) -> Verdict<Running> {
        let stats = self.sandbox.join("stats.json");
        let _ = std::fs::remove_file(&stats);
        let mut command = match under {
            Under::Nothing => Command::new(&self.program),
            Under::Contract(contract) => {
                let mut command = Command::new(selfpage()?);
                self.ask(contract, &stats, &mut command)?;
                command.arg("--").arg(&self.program);
                command
            }
        };
        let out = self
            .stdout
            .clone()
            .unwrap_or_else(|| self.sandbox.join("stdout"));
        let err = self
            .stderr
            .clone()
            .unwrap_or_else(|| self.sandbox.join("stderr"));
        command
            .args(&self.args)
            .current_dir(self.sandbox.path())
            .envs(self.sandbox.environment())
            .envs(self.variables.iter().map(|(k, v)| (k, v)))
            .stdout(File::create(&out).at("make", &out)?)
            .stderr(File::create(&err).at("make", &err)?);
        match &self.stdin {
            Some(path) => command.stdin(File::open(path).at("open", path)?),
            None => command.stdin(Stdio::null()),
        };
        let begin = Instant::now();
        let child = command
            .spawn()
            .doing(|| format!("start {:?} (is it installed?)", command.get_program()))?;
        let Some(root) = processes::find(child.id() as i32) else {
            return failed("a child vanished before it was waited for");
        };
        Ok(Running {
            child,
            watch: Some(Watch::start(root)),
            begin,
            limit: self.limit,
            out,
            err,
            stats,
            under: under.clone(),
        })
    }

    fn ask(&self, contract: &Contract, stats: &Path, command: &mut Command) -> Verdict {
        command.args(["run", "--frames"]).arg(match contract.lent {
            0 => format!("{}M", contract.frames / MIB),
            lent => format!("{}M+{}M", contract.frames / MIB, lent / MIB),
        });
        if let Some(socket) = &contract.daemon {
            command.arg(format!("--system={}", socket.display()));
        }
        if let Some((ram, disk)) = contract.store {
            let folder = self.sandbox.join("store");
            std::fs::create_dir_all(&folder).at("make", &folder)?;
            let disk_part = format!("disk:{}/swap,size={}M", folder.display(), disk / MIB);
            command.arg("--store").arg(match (ram, disk) {
                (0, _) => disk_part,
                (_, 0) => format!("ram:{}M", ram / MIB),
                _ => format!("ram:{}M+{disk_part}", ram / MIB),
            });
        }
        command
            .arg("--stats-json")
            .arg(stats)
            .args(&contract.options);
        Ok(())
    }

    /// Runs it to its end.
    pub fn run(&self, under: &Under) -> Verdict<Outcome> {
        self.spawn(under)?.wait()
    }
}

/// A running program. Drop kills it and its whole tree.
pub struct Running {
    child: Child,
    watch: Option<Watch>,
    begin: Instant,
    limit: Duration,
    out: PathBuf,
    err: PathBuf,
    stats: PathBuf,
    under: Under,
}

impl Running {
    /// The process started: the program, or `selfpage run`.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The whole tree, as it is now.
    pub fn processes(&self) -> Vec<processes::Process> {
        self.watch
            .as_ref()
            .map(Watch::processes)
            .unwrap_or_default()
    }

    /// Returns true if it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.err)
    }

    /// The keeper of a page client of the run, and the client, its child.
    pub fn keeper_and_client(&self, name: &str) -> Verdict<[Process; 2]> {
        let text = || format!("no {name} runs with its keeper");
        wait_for(PATIENCE, text, || {
            let mut found = self.processes();
            found.retain(|process| process.command().contains(name));
            found.sort_by_key(|process| (process.started, process.pid));
            Ok(found.try_into().ok())
        })
    }

    /// Waits for its end, kills it at its limit, and collects the outcome.
    pub fn wait(mut self) -> Verdict<Outcome> {
        let status = loop {
            match self
                .child
                .try_wait()
                .doing(|| "wait for the program".into())?
            {
                Some(status) => break status,
                None if self.begin.elapsed() > self.limit => {
                    let (limit, said) = (self.limit, self.stderr());
                    let state = self.describe();
                    return failed(format!(
                        "still running after {limit:?}: it hangs. {state}\nIt said:\n{}",
                        tail(&said)
                    ));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let wall = self.begin.elapsed();
        let Some(watch) = self.watch.take() else {
            return failed("a program was waited for twice");
        };
        let (footprint, left) = watch.finish(PATIENCE);
        let named: Vec<String> = left.iter().map(processes::Process::command).collect();
        left.iter().for_each(processes::Process::kill);
        Ok(Outcome {
            status,
            wall,
            footprint,
            left: named,
            stdout: self.out.clone(),
            stderr: read(&self.err),
            stats: std::fs::read_to_string(&self.stats)
                .ok()
                .and_then(|text| serde_json::from_str(&text).ok()),
            under: self.under.clone(),
        })
    }

    /// Where each of its threads waits, for a report of a hang.
    fn describe(&self) -> String {
        let mut text = String::new();
        for process in self.processes() {
            text += &format!("\n  {}", process.command());
            let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid));
            for task in tasks.into_iter().flatten().flatten().take(12) {
                let of = |name: &str| read(&task.path().join(name)).trim().to_owned();
                let state = of("stat");
                let letter = state.rsplit(')').next().unwrap_or("").trim().chars().next();
                text += &format!(
                    "\n    {} {letter:?} {} {}",
                    of("comm"),
                    of("wchan"),
                    of("syscall")
                );
            }
        }
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.kill();
        }
        let _ = self.child.wait();
    }
}
