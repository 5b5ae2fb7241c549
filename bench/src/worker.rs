//! The worker's side of a benchmark's processes: what each is to do, its ready line, its answers.
//!
//! A worker makes its memory, prints a ready line and waits for the start line: meanwhile the
//! benchmark moves it into its cgroup. A benchmark that is killed leaves no worker: the worker
//! is killed with its parent.

use crate::prelude::*;
use crate::{faults, launch, paging, qos, remote};
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::sync::LazyLock;

/// What a worker prints when its memory is there.
pub const READY: &str = "ready";

/// What a process of its own is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerPlan {
    /// One measurement of `faults`.
    Fault(faults::FaultPlan),
    /// One arm's work.
    Paging(paging::PagingPlan),
    /// The application of Nemesis's section 7.2.
    Pager(qos::PagerPlan),
    /// The client of section 7.3, which reads a file.
    Reader(qos::ReaderPlan),
    /// A program that `qos` has beside another.
    Subject(qos::SubjectPlan),
    /// A program that `qos` has harm another.
    Adversary(qos::AdversaryPlan),
    /// The player's screen, in front of a decoder.
    Display(launch::DisplayPlan),
    /// A constant load.
    Load(launch::LoadPlan),
    /// A program that pages to a paging server, or a remote client's user.
    Remote(remote::RemotePlan),
    /// A remote client's user while a server is killed.
    Rebuild(remote::RebuildPlan),
}

impl WorkerPlan {
    /// A worker; what follows `--` is for it to start.
    pub fn command(&self) -> Result<Command> {
        let mut command = own_program("worker")?;
        command.arg(serde_json::to_string(self)?);
        Ok(command)
    }

    /// Starts a worker, and waits until it is ready.
    pub fn start(&self) -> Result<Worker> {
        Worker::start(self.command()?)
    }
}

/// This program, started again for something else. Its path is of the first time: a build may
/// replace the file meanwhile.
pub fn own_program(what: &str) -> Result<Command> {
    static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::current_exe().ok());
    let program = PROGRAM
        .as_ref()
        .ok_or_else(|| anyhow!("could not find the own program"))?;
    let mut command = Command::new(program);
    command.arg(what);
    Ok(command)
}

/// The main function of a worker. `program` is what it starts itself.
pub fn serve(plan: &WorkerPlan, program: &[OsString]) -> Result<()> {
    match plan {
        WorkerPlan::Fault(plan) => faults::serve(plan),
        WorkerPlan::Paging(plan) => paging::worker::serve(plan),
        WorkerPlan::Pager(plan) => qos::pager::serve(plan),
        WorkerPlan::Reader(plan) => qos::reader::serve(plan),
        WorkerPlan::Subject(plan) => qos::subject::serve(plan),
        WorkerPlan::Adversary(plan) => qos::serve_adversary(plan),
        WorkerPlan::Display(plan) => launch::display::serve(plan, program),
        WorkerPlan::Load(plan) => launch::load::serve(plan),
        WorkerPlan::Remote(plan) => remote::serve(plan),
        WorkerPlan::Rebuild(plan) => remote::serve_rebuild(plan),
    }
}

/// Prints the ready line, and waits for the start line.
pub fn ready() -> Result<()> {
    println!("{READY}");
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(1..) => Ok(()),
        _ => Err(anyhow!("no start line")),
    }
}

/// Sends the benchmark a value.
pub fn reply(value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .doing("answer")
}

/// The orders of the benchmark, until it closes the standard input of this process.
pub fn orders<T: DeserializeOwned>() -> impl Iterator<Item = Result<T>> {
    let lines = std::io::stdin().lock().lines().map_while(Result::ok);
    lines.map(|line| {
        serde_json::from_str(&line).map_err(|why| anyhow!("invalid order {line:?}: {why}"))
    })
}

/// Waits until the parent closes the standard input of this process.
pub fn linger() {
    std::io::stdin().lock().lines().for_each(drop);
}
