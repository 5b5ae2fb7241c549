//! A worker process: it receives orders and sends answers as lines, values as JSON. It is killed
//! when it is dropped before its end, and when the benchmark ends for any reason.

use crate::prelude::*;
use crate::process_tree::family;
use crate::worker::READY;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, ScopedJoinHandle};

/// Has a program killed when the benchmark dies, however it does.
pub fn ends_with_us(command: &mut Command) {
    let kill =
        || rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(Into::into);
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(kill) };
}

/// The last lines of what was said, in one.
pub fn last_lines(said: &str, count: usize) -> String {
    let mut last: Vec<&str> = said.trim().lines().rev().take(count).collect();
    last.reverse();
    last.join("; ")
}

/// The end of a program's standard error.
fn last_words(said: &[u8]) -> String {
    last_lines(&String::from_utf8_lossy(said), 3)
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

/// The standard output of a program that ends well.
pub fn output(mut command: Command, stdin: impl Into<Stdio>) -> Result<Vec<u8>> {
    ends_with_us(&mut command);
    let program = command.get_program().to_owned();
    let done = command.stdin(stdin).output().at("start", &program)?;
    match done.status.success() {
        true => Ok(done.stdout),
        false => {
            let (program, said) = (program.display(), last_words(&done.stderr));
            bail!("{program}: {}: {said}", done.status)
        }
    }
}

/// A worker, from its start to its end.
pub struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Whether it ends by itself.
    is_lasting: bool,
}

impl Worker {
    /// Starts a program.
    pub fn spawn(mut command: Command) -> Result<Self> {
        ends_with_us(&mut command);
        command.stderr(Stdio::piped());
        let mut worker = Self::spawn_lasting(command)?;
        worker.is_lasting = false;
        Ok(worker)
    }

    /// Starts a program that ends by itself, once its standard input is closed.
    pub fn spawn_lasting(mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.doing(format_args!("start {:?}", command.get_program()))?;
        let orders = child.stdin.take();
        let answers = child
            .stdout
            .take()
            .ok_or_else(|| anyhow!("it has no pipes"))?;
        let answers = BufReader::new(answers);
        Ok(Self {
            child,
            orders,
            answers,
            is_lasting: true,
        })
    }

    /// Starts a worker, and waits for its ready line.
    pub fn start(command: Command) -> Result<Self> {
        let mut worker = Self::spawn(command)?;
        match worker.recv_line()?.as_str() {
            READY => Ok(worker),
            other => Err(anyhow!("expected the ready line, got {other:?}")),
        }
    }

    /// Its pid.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it an order.
    pub fn send(&mut self, order: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(order)?;
        let sent = match &mut self.orders {
            Some(orders) => orders.write_all(format!("{line}\n").as_bytes()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        // EPIPE: the worker exited; its last message may explain.
        sent.map_err(|_| self.failure())
    }

    /// Has it begin its work.
    pub fn go(&mut self) -> Result<()> {
        self.send(&"go")
    }

    /// Returns true if it has ended by itself, or was killed.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its next line.
    pub fn recv_line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(1..) => Ok(line.trim_end_matches('\n').to_owned()),
            _ => Err(self.failure()),
        }
    }

    /// Its next line, as a value.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.recv_line()?;
        serde_json::from_str(&line).map_err(|why| anyhow!("invalid answer {line:?}: {why}"))
    }

    /// Its answer to an order.
    pub fn call<T: DeserializeOwned>(&mut self, order: &impl Serialize) -> Result<T> {
        self.send(order)?;
        self.recv()
    }

    /// Has it do its work; its answer, once it has ended well.
    pub fn finish<T: DeserializeOwned>(mut self) -> Result<T> {
        let answer = self.call(&"go")?;
        self.end()?;
        Ok(answer)
    }

    /// Closes its standard input.
    pub fn close(&mut self) {
        self.orders = None;
    }

    /// Its output next; nothing at its end.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.answers.read(into).doing("read the program's output")
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.child.wait().doing("wait for the program")
    }

    /// Its output until it ends, and its exit status. The status is part of the check, since a
    /// pager may fail at the very end.
    pub fn end(mut self) -> Result<Vec<String>> {
        self.close();
        let answers = self.answers.by_ref().lines();
        let rest = answers.map_while(Result::ok).collect();
        match self.wait()?.success() {
            true => Ok(rest),
            false => Err(self.failure()),
        }
    }

    /// Why it failed, in its own words, once it has ended.
    pub fn failure(&mut self) -> Error {
        self.close();
        let status = self.child.wait();
        let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
        let mut said = Vec::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            let _ = pipe.read_to_end(&mut said);
        }
        anyhow!("the worker failed: {status}: {}", last_words(&said))
    }

    /// Ends it, and why it failed.
    pub fn stop(&mut self) -> Error {
        let _ = self.child.kill();
        self.failure()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
        if !self.is_lasting {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Looks now and then whether something is so, for as long as `limit`. False if it never was.
pub fn poll(
    limit: Duration,
    every: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > limit {
            return Ok(false);
        }
        std::thread::sleep(every);
    }
    Ok(true)
}

/// What a thread of a scope came to.
pub fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    let panicked = |_| Err(anyhow!("a thread panicked"));
    thread.join().unwrap_or_else(panicked)
}

/// Kills processes that take too long, and their descendants, which may hold their output.
pub struct Watchdog {
    limit: Duration,
    cancel: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    /// Over the processes with these pids, from now on.
    pub fn start(limit: Duration, pids: &[u32]) -> Self {
        // A pidfd of a process, which a process that reuses the pid does not have.
        let open = |pid: &u32| pidfd_open(Pid::from_raw(*pid as i32)?, PidfdFlags::empty()).ok();
        let all: Vec<_> = pids.iter().filter_map(open).collect();
        let pids = pids.to_vec();
        let (cancel, cancelled) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let is_late = cancelled.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            let roots = pids.iter().filter(|_| is_late);
            let below: Vec<u32> = roots.flat_map(|root| family(*root).split_off(1)).collect();
            for process in all.iter().filter(|_| is_late) {
                // ESRCH: the process has exited already.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
            for pid in below.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
                // As above.
                let _ = kill_process(pid, Signal::KILL);
            }
            is_late
        });
        Self {
            limit,
            cancel,
            thread,
        }
    }

    /// Lets them live, unless they took too long already.
    pub fn stop(self) -> Result<()> {
        drop(self.cancel);
        match self.thread.join() {
            Ok(false) => Ok(()),
            _ => bail!(ExperimentError::Late(self.limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_spares_a_process_that_ends_in_time() {
        let watchdog = Watchdog::start(Duration::from_secs(60), &[std::process::id()]);
        assert!(watchdog.stop().is_ok());
    }

    #[test]
    fn a_watchdog_ends_a_process_that_takes_too_long() {
        let mut sleep = Command::new("sleep");
        sleep.arg("60");
        let mut worker = Worker::spawn(sleep).unwrap();
        let watchdog = Watchdog::start(Duration::ZERO, &[worker.id()]);
        assert!(!worker.wait().unwrap().success());
        let late = watchdog.stop().unwrap_err().to_string();
        assert!(late.contains("--limit"), "{late}");
    }
}
