//! Running a program once: started, put in its cgroup before it has any memory, its output
//! read as it comes, its time taken, and killed where it takes too long or we end first.

use crate::ExperimentError;
use crate::cgroup::Cgroup;
use crate::error::while_doing;
use crate::worker::READY;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

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

/// Why a run has no figures.
#[derive(Debug)]
pub enum Failed {
    /// A signal killed it that the benchmark did not send: the kernel's OOM killer does that.
    Killed,
    /// Anything else.
    Otherwise(ExperimentError),
}

impl From<ExperimentError> for Failed {
    fn from(error: ExperimentError) -> Self {
        Self::Otherwise(error)
    }
}

impl From<Failed> for ExperimentError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Killed => Self::Worker("it was killed (SIGKILL)".into()),
            Failed::Otherwise(error) => error,
        }
    }
}

/// When a program's work begins.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// At once.
    Now,
    /// After its ready line and, with a cgroup, after it was moved into it.
    WhenReady(Option<&'a Cgroup>),
}

/// Has a program killed when the benchmark dies, however it does.
pub fn ends_with_us(command: &mut Command) {
    let kill = || {
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal).map_err(Into::into)
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(kill) };
}

/// The end of a program's standard error, in one line.
pub fn last_words(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let mut last: Vec<&str> = said.trim().lines().rev().take(3).collect();
    last.reverse();
    last.join("; ")
}

/// A program that prints a ready line, waits for a line, and only then executes `command`.
pub fn gated(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    let script = format!("echo {READY}; read _ && exec \"$@\"");
    shell.args(["-c", &script, "sh"]);
    within(shell, command)
}

/// `outer` with a program, its arguments and its environment behind what it has.
pub fn within(mut outer: Command, program: &Command) -> Command {
    outer.arg(program.get_program()).args(program.get_args());
    let set = program.get_envs();
    outer.envs(set.filter_map(|(name, value)| Some((name, value?))));
    outer
}

/// Runs a program to its end and gives `sink` what it puts out. An end that is not a
/// success is none of its figures.
pub fn run(
    command: Command,
    start: Start<'_>,
    limit: Duration,
    sink: &mut dyn FnMut(&[u8]),
) -> Result<Done, Failed> {
    let before = processor_time();
    let mut running = Running::start(command, start, limit)?;
    let mut digest = Digest::default();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let count = running.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        digest.add(&chunk[..count]);
        sink(&chunk[..count]);
    }
    let elapsed = running.finish()?;
    Ok(Done {
        elapsed,
        processor: processor_time().saturating_sub(before),
        digest: digest.0,
        killed: 0,
    })
}

/// Makes this process the parent of what its children leave behind. `selfpage run` ends a
/// moment before the process that waited for the program, which knows its processor time.
pub fn adopt() -> Result<(), ExperimentError> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(while_doing(
        "become the parent of what programs leave behind",
    ))
}

/// This process's children. None where the kernel does not say (CONFIG_PROC_CHILDREN).
fn children() -> Vec<i32> {
    let path = format!("/proc/self/task/{}/children", std::process::id());
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Processor time of all children that have ended, and of their children.
pub fn processor_time() -> Duration {
    // SAFETY: all zeros is a value of this plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there to be written.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// A program under way; killed when dropped before its end.
pub struct Running {
    child: Child,
    /// The children there were before it.
    others: Vec<i32>,
    output: ChildStdout,
    begin: Instant,
    limit: Duration,
}

impl Running {
    /// Starts it.
    pub fn start(
        mut command: Command,
        start: Start<'_>,
        limit: Duration,
    ) -> Result<Self, ExperimentError> {
        ends_with_us(&mut command);
        let stdin = match start {
            Start::Now => Stdio::null(),
            Start::WhenReady(_) => Stdio::piped(),
        };
        let others = children();
        let begin = Instant::now();
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(while_doing(format!("start {:?}", command.get_program())))?;
        let Some(output) = child.stdout.take() else {
            return Err(ExperimentError::Worker("it has no output".into()));
        };
        let mut running = Self {
            child,
            others,
            output,
            begin,
            limit,
        };
        if let Start::WhenReady(cgroup) = start {
            running.let_go(cgroup)?;
        }
        Ok(running)
    }

    fn let_go(&mut self, cgroup: Option<&Cgroup>) -> Result<(), ExperimentError> {
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !said.ends_with(b"\n") {
            if self.read(&mut byte)? == 0 {
                return Err(self.failure());
            }
            said.push(byte[0]);
        }
        if said.trim_ascii() != READY.as_bytes() {
            return Err(self.failure());
        }
        if let Some(cgroup) = cgroup {
            cgroup.add(self.child.id())?;
        }
        self.begin = Instant::now();
        let orders = self.child.stdin.take();
        orders
            .map_or(Ok(()), |mut pipe| pipe.write_all(b"go\n"))
            .map_err(while_doing("send the start line to the program"))
    }

    /// What it put out next; nothing at its end.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, ExperimentError> {
        let left = self.limit.saturating_sub(self.begin.elapsed());
        let mut ready = [PollFd::new(&self.output, PollFlags::IN)];
        let wait = left.try_into().ok();
        match poll(&mut ready, wait.as_ref()).map_err(while_doing("wait for the program"))? {
            0 => Err(ExperimentError::Worker(format!(
                "not done after {} s (--limit)",
                self.limit.as_secs()
            ))),
            _ => self
                .output
                .read(into)
                .map_err(while_doing("read the program's output")),
        }
    }

    /// Returns true if it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end, once its output has ended. The time since its work began.
    pub fn finish(mut self) -> Result<Duration, Failed> {
        let status = self
            .child
            .wait()
            .map_err(while_doing("wait for the program"))?;
        let elapsed = self.begin.elapsed();
        let before = |child: &i32| self.others.contains(child);
        for left in children().into_iter().filter(|child| !before(child)) {
            // Adopted, and on its way out; gone already is as well.
            let _ = waitpid(Pid::from_raw(left), WaitOptions::empty());
        }
        match status.success() {
            true => Ok(elapsed),
            false if status.signal() == Some(libc::SIGKILL) => Err(Failed::Killed),
            false => Err(self.failure().into()),
        }
    }

    /// Why it failed, in its own words. Ends it.
    pub fn failure(&mut self) -> ExperimentError {
        let _ = self.child.kill();
        let status = self
            .child
            .wait()
            .map_or_else(|e| e.to_string(), |s| s.to_string());
        let mut said = Vec::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            let _ = pipe.read_to_end(&mut said);
        }
        ExperimentError::Worker(format!("{status}: {}", last_words(&said)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number that is the same for the same bytes (FNV-1a).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// With more bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn digest(bytes: &[u8]) -> u64 {
        let mut digest = Digest::default();
        digest.add(bytes);
        digest.0
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
        let said = failed
            .map_err(ExperimentError::from)
            .unwrap_err()
            .to_string();
        assert!(said.contains("exit status: 3: no"), "{said}");
    }

    #[test]
    fn a_killed_program_is_distinct_from_one_that_fails() {
        let killed = run(shell("kill -9 $$"), Start::Now, LONG, &mut |_| ());
        assert!(matches!(killed, Err(Failed::Killed)));
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let begin = Instant::now();
        let failed = run(
            shell("exec sleep 60"),
            Start::Now,
            Duration::ZERO,
            &mut |_| (),
        );
        let said = failed
            .map_err(ExperimentError::from)
            .unwrap_err()
            .to_string();
        assert!(said.contains("--limit"), "{said}");
        assert!(begin.elapsed() < LONG);
    }
}
