//! Running a program once: started, put in its cgroup before it has any memory, its output
//! read as it comes, its time taken, and killed where it takes too long or we end first.

use crate::prelude::*;
use crate::process::Watchdog;
use crate::process_tree::children;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::hash::Hasher;
use std::os::unix::process::ExitStatusExt;
use twox_hash::XxHash3_64;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Of the work.
    pub elapsed: Duration,
    /// Processor time of everything that was started for it.
    pub processor: Duration,
    /// Of what it put out: the same for the same output.
    pub digest: u64,
    /// How often it was killed before it came to its end.
    pub killed: u32,
}

/// When a program's work begins.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// At once.
    Now,
    /// After its ready line and, with a cgroup, after it was moved into it.
    WhenReady(Option<&'a Cgroup>),
}

/// Runs a program to its end and gives `sink` what it puts out. An end that is not a
/// success is none of its figures.
pub fn run(
    command: Command,
    start: Start<'_>,
    limit: Duration,
    sink: &mut dyn FnMut(&[u8]),
) -> Result<Done> {
    let before = processor_time();
    let mut child = Child::start(command, start, limit)?;
    let mut digest = XxHash3_64::default();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let count = child.worker.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        digest.write(&chunk[..count]);
        sink(&chunk[..count]);
    }
    let elapsed = child.finish()?;
    Ok(Done {
        elapsed,
        processor: processor_time().saturating_sub(before),
        digest: digest.finish(),
        killed: 0,
    })
}

/// Makes this process the parent of what its children leave behind. `selfpage run` ends a
/// moment before the process that waited for the program, which knows its processor time.
pub fn adopt() -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .doing("become the parent of what programs leave behind")
}

/// Processor time of all children that have ended, and of their children.
pub fn processor_time() -> Duration {
    let usage = crate::machine::usage(libc::RUSAGE_CHILDREN);
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// A program under way; killed when dropped before its end.
pub struct Child {
    /// The program.
    pub worker: Worker,
    watchdog: Watchdog,
    /// The children there were before it.
    others: Vec<u32>,
    begin: Instant,
}

impl Child {
    /// Starts it.
    pub fn start(command: Command, start: Start<'_>, limit: Duration) -> Result<Self> {
        let others = children(std::process::id());
        let mut begin = Instant::now();
        let worker = match start {
            Start::Now => {
                let mut worker = Worker::spawn(command)?;
                worker.close();
                worker
            }
            Start::WhenReady(cgroup) => {
                let mut worker = Worker::start(command)?;
                if let Some(cgroup) = cgroup {
                    cgroup.add(worker.id())?;
                }
                begin = Instant::now();
                worker.go()?;
                worker.close();
                worker
            }
        };
        Ok(Self {
            watchdog: Watchdog::start(limit, &[worker.id()]),
            worker,
            others,
            begin,
        })
    }

    /// Waits for its end, once its output has ended. The time since its work began.
    pub fn finish(mut self) -> Result<Duration> {
        let status = self.worker.wait()?;
        let elapsed = self.begin.elapsed();
        let before = |child: &u32| self.others.contains(child);
        for left in children(std::process::id())
            .into_iter()
            .filter(|child| !before(child))
        {
            // Adopted, and on its way out; gone already is as well.
            let _ = waitpid(Pid::from_raw(left as i32), WaitOptions::empty());
        }
        self.watchdog.stop()?;
        match status.success() {
            true => Ok(elapsed),
            false if status.signal() == Some(libc::SIGKILL) => bail!(ExperimentError::Killed),
            false => Err(self.worker.failure()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::gated;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn digest(bytes: &[u8]) -> u64 {
        XxHash3_64::oneshot(bytes)
    }

    #[test]
    fn output_is_the_same_whether_a_program_waited_at_the_gate() {
        let echo = || {
            let mut command = Command::new("printf");
            command.args(["%s", "one two"]);
            command
        };
        let plain = run(echo(), Start::Now, LONG, &mut |_| ()).unwrap();
        let start = Start::WhenReady(None);
        let waited = run(gated(&echo()), start, LONG, &mut |_| ()).unwrap();
        assert_eq!([plain.digest, waited.digest], [digest(b"one two"); 2]);
    }

    #[test]
    fn a_failure_shows_the_programs_own_message() {
        let failed = run(shell("echo no >&2; exit 3"), Start::Now, LONG, &mut |_| ());
        let said = failed.unwrap_err().to_string();
        assert!(said.contains("exit status: 3: no"), "{said}");
    }

    #[test]
    fn a_killed_program_is_distinct_from_one_that_fails() {
        let killed = run(shell("kill -9 $$"), Start::Now, LONG, &mut |_| ());
        let why = killed.unwrap_err();
        assert!(matches!(why.downcast_ref(), Some(ExperimentError::Killed)));
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let begin = Instant::now();
        let sleep = shell("exec sleep 60");
        let failed = run(sleep, Start::Now, Duration::ZERO, &mut |_| ());
        let said = failed.unwrap_err().to_string();
        assert!(said.contains("--limit"), "{said}");
        assert!(begin.elapsed() < LONG);
    }
}
