//! Running a program once: put in its cgroup before it has any memory, its output read as it comes
//! or its client run, its time taken, and ended where it takes too long or the benchmark ends.

use super::program::Workload;
use crate::machine::processor_time;
use crate::prelude::*;
use crate::process::{Watchdog, gated};
use crate::process_tree::children;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::hash::Hasher;
use twox_hash::XxHash3_64;

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Done {
    /// From the start of the program, its client's work included, to its end.
    pub elapsed: Duration,
    /// Processor time of everything that was started for it.
    pub processor: Duration,
    /// Of its output, or of what it replied to its client: the same for the same output.
    pub digest: u64,
}

/// Makes this process the parent of what its children leave behind. `selfpage run` ends a
/// moment before the process that waited for the program, which knows its processor time.
pub fn adopt() -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .doing("become the parent of what programs leave behind")
}

/// Runs `command`, which is the workload's program or starts it, to its end in a cgroup.
pub fn run(command: &Command, work: &Workload, cgroup: &Cgroup, limit: Duration) -> Result<Done> {
    let before = processor_time();
    let others = children(std::process::id());
    let mut worker = Worker::start(gated(command))?;
    cgroup.add(worker.id())?;
    let watchdog = Watchdog::start(limit, &[worker.id()]);
    let begin = Instant::now();
    let outcome = finish(&mut worker, work);
    let elapsed = begin.elapsed();
    if outcome.is_err() {
        // It may have failed in the middle of its work, and its children may hold its output.
        worker.stop();
    }
    drop(worker);
    for left in children(std::process::id()) {
        if !others.contains(&left) {
            // Adopted, and on its way out; gone already is as well.
            let _ = waitpid(Pid::from_raw(left as i32), WaitOptions::empty());
        }
    }
    watchdog.stop()?;
    Ok(Done {
        elapsed,
        processor: processor_time().saturating_sub(before),
        digest: outcome?,
    })
}

/// Has it do its work and end well. The digest of what came out.
fn finish(worker: &mut Worker, work: &Workload) -> Result<u64> {
    worker.go()?;
    worker.close();
    let digest = match &work.client {
        Some(client) => client.drive(worker)?,
        None => digest_output(worker)?,
    };
    match worker.wait()?.success() {
        true => Ok(digest),
        false => Err(worker.failure()),
    }
}

fn digest_output(worker: &mut Worker) -> Result<u64> {
    let mut digest = XxHash3_64::default();
    let mut chunk = vec![0; 1 << 16];
    loop {
        match worker.read(&mut chunk)? {
            0 => return Ok(digest.finish()),
            count => digest.write(&chunk[..count]),
        }
    }
}
