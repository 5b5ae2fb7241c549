//! A tenant's thread that waits for pages, and the priority that it is lent.

use super::budget::RunTime;
use disk::usd::WaitingThread;
use host::lent_priority;
use host::process_tree::{self, is_running};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// Generations below the tenant's leader that a thread's process may be.
const MAX_GENERATIONS: usize = 64;

/// A thread that its tenant named.
pub(super) struct TenantThread {
    pub thread: u32,
    /// True if it submits requests itself.
    pub submits: bool,
    /// The file of /proc with the time that it ran so far, which stays this thread's when its id is reused. `None` for
    /// a thread that is not the tenant's, or that cannot be lent priority.
    run_time: Option<OwnedFd>,
    /// The run time when it was last measured, while that is charged.
    measured: Duration,
    measured_at: Instant,
    /// Its own scheduling class, while it is lent priority.
    lent: Option<i32>,
    /// Its process and when the process started, if it is the tenant's.
    process: Option<(Pid, u64)>,
}

impl TenantThread {
    /// A thread that the tenant with this leader named.
    pub fn new(named: WaitingThread, leader: Pid) -> Self {
        let process = process_below(named.thread, leader);
        let run_time = process.and_then(|_| run_time_of(named.thread));
        Self {
            thread: named.thread,
            submits: named.submits,
            measured: run_time.as_ref().and_then(read).unwrap_or_default(),
            run_time,
            measured_at: Instant::now(),
            lent: None,
            process: process.map(|pid| (pid, process_tree::process(pid).start)),
        }
    }

    /// The time to charge since the last call: the time that it ran with priority, and, where it submits requests, the
    /// time without. Nothing is charged once the thread has ended.
    pub fn ran(&mut self) -> RunTime {
        let mut ran = RunTime::default();
        let is_lent = self.lent.is_some();
        if !is_lent && !self.submits {
            return ran;
        }
        if let Some(now) = self.run_time.as_ref().and_then(read) {
            self.measured_at = Instant::now();
            let before = std::mem::replace(&mut self.measured, now);
            let charged = match is_lent {
                true => &mut ran.first,
                false => &mut ran.ordinary,
            };
            *charged = now.saturating_sub(before);
            return ran;
        }
        // The thread has ended: its id may be another thread's. How long it ran is not known
        // any more, and may be all the time since the last measurement.
        self.set_first(false);
        self.run_time = None;
        if is_lent {
            ran.first = self.measured_at.elapsed();
        }
        ran
    }

    /// Lends it priority, or ends that.
    pub fn set_first(&mut self, first: bool) {
        match (first, self.lent) {
            (true, None) => {
                let Some(now) = self.run_time.as_ref().and_then(read) else {
                    return;
                };
                (self.measured, self.measured_at) = (now, Instant::now());
                match lent_priority::lend(self.thread) {
                    Ok(own) => self.lent = Some(own),
                    // It has chosen a class itself, or the kernel does not permit the change.
                    Err(_) => self.run_time = None,
                }
            }
            (false, Some(own)) => {
                self.lent = None;
                // A thread that has the id by now keeps its class.
                match self.run_time.as_ref().and_then(read) {
                    Some(_) => lent_priority::end(self.thread, own),
                    None => self.end_after_exec(own),
                }
            }
            _ => {}
        }
    }

    /// Ends the priority of a thread that has executed a program: its id is that of its process then, and its class
    /// is the same. The process may be no longer below the tenant's leader.
    fn end_after_exec(&self, own: i32) {
        if let Some((pid, _)) = self.process.filter(|(pid, start)| is_running(*pid, *start)) {
            lent_priority::end(pid.as_raw_pid() as u32, own);
        }
    }
}

impl Drop for TenantThread {
    fn drop(&mut self) {
        self.set_first(false);
    }
}

/// The process of a thread, if that is the leader of a tenant or below it.
fn process_below(thread: u32, leader: Pid) -> Option<Pid> {
    let process = process_tree::process_of(Pid::from_raw(thread as i32)?).ok()?;
    process.filter(|pid| process_tree::descends_within(*pid, leader, MAX_GENERATIONS))
}

fn run_time_of(thread: u32) -> Option<OwnedFd> {
    let path = format!("/proc/{thread}/schedstat");
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The first figure of a thread's schedstat: nanoseconds on a processor.
fn read(file: &OwnedFd) -> Option<Duration> {
    let mut text = [0; 80];
    let len = rustix::io::pread(file, &mut text, 0).ok()?;
    let first = text[..len].split(|byte| *byte == b' ').next()?;
    let nanos = std::str::from_utf8(first).ok()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;
    use std::io::{BufRead, Write};
    use wired::sched_class::{self, class_of};

    fn named() -> WaitingThread {
        WaitingThread {
            thread: gettid().as_raw_nonzero().get() as u32,
            submits: true,
        }
    }

    #[test]
    fn a_thread_of_the_tenant_has_priority_and_its_time_is_measured() {
        let mut thread = TenantThread::new(named(), rustix::process::getpid());
        thread.set_first(true);
        if thread.lent.is_none() {
            return eprintln!("skipped: no real-time priority here");
        }
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(thread.ran().first > Duration::ZERO);
        thread.set_first(false);
        assert_eq!(class_of(0), Some(libc::SCHED_OTHER));
        assert_eq!(thread.ran().first, Duration::ZERO);
    }

    #[test]
    fn a_thread_that_ends_is_charged_the_time_since_it_was_measured() {
        let (send, named_thread) = std::sync::mpsc::channel();
        let (go, end) = std::sync::mpsc::channel::<()>();
        let runner = std::thread::spawn(move || {
            send.send(named()).unwrap();
            let _ = end.recv();
        });
        let named = named_thread.recv().unwrap();
        let mut thread = TenantThread::new(named, rustix::process::getpid());
        thread.set_first(true);
        drop(go);
        runner.join().unwrap();
        if thread.lent.is_none() {
            return eprintln!("skipped: no real-time priority here");
        }
        // The thread has ended once its id has left /proc.
        while std::path::Path::new(&format!("/proc/self/task/{}", named.thread)).exists() {
            std::thread::yield_now();
        }
        assert!(thread.ran().first > Duration::ZERO);
        assert_eq!(thread.ran(), RunTime::default(), "once");
    }

    /// A shell whose child's thread executes a program, once a line is sent to it. Checks that the thread's priority ends,
    /// where `before` is called with the shell first.
    fn check_exec(before: impl FnOnce(&mut std::process::Child)) {
        const SCRIPT: &str = "exec 3<&0; python3 -c \"$0\" <&3 & echo $!; wait";
        const PROGRAM: &str = "import os, threading, time\n\
            threading.Thread(target=lambda: (input(), os.execlp('sleep', 'sleep', '100'))).start()\n\
            time.sleep(100)";
        if std::process::Command::new("python3")
            .arg("-V")
            .output()
            .is_err()
        {
            return eprintln!("skipped: python3 is missing");
        }
        let mut shell = std::process::Command::new("sh")
            .args(["-c", SCRIPT, PROGRAM])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let (leader, pid) = (Pid::from_child(&shell), line.trim().parse().unwrap());
        let pid = Pid::from_raw(pid).unwrap();
        let other = || {
            let mut threads = host::procfs::threads(pid);
            threads.find(|thread| *thread != pid)
        };
        let thread = loop {
            match other() {
                Some(thread) => break thread.as_raw_pid() as u32,
                None => std::thread::yield_now(),
            }
        };
        let submits = true;
        let mut thread = TenantThread::new(WaitingThread { thread, submits }, leader);
        thread.set_first(true);
        let is_lent = thread.lent.is_some();
        before(&mut shell);
        input.write_all(b"\n").unwrap();
        while is_lent && read(thread.run_time.as_ref().unwrap()).is_some() {
            std::thread::yield_now();
        }
        thread.ran();
        let class = class_of(pid.as_raw_pid() as u32);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        shell.kill().unwrap();
        shell.wait().unwrap();
        if !is_lent {
            return eprintln!("skipped: no real-time priority here");
        }
        assert_eq!(class.map(sched_class::is_ordinary), Some(true));
    }

    #[test]
    fn a_thread_that_executes_a_program_loses_the_priority() {
        check_exec(|_| {});
    }

    #[test]
    fn a_thread_that_executes_a_program_after_its_leader_has_ended_loses_the_priority() {
        check_exec(|leader| {
            leader.kill().unwrap();
            leader.wait().unwrap();
        });
    }

    #[test]
    fn a_thread_of_another_process_is_lent_no_priority() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let leader = Pid::from_raw(child.id() as i32).unwrap();
        let mut thread = TenantThread::new(named(), leader);
        thread.set_first(true);
        assert_eq!(thread.lent, None);
        assert_eq!(class_of(0), Some(libc::SCHED_OTHER));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_priority_ends_with_the_record_of_the_thread() {
        let mut thread = TenantThread::new(named(), rustix::process::getpid());
        thread.set_first(true);
        drop(thread);
        assert_eq!(class_of(0), Some(libc::SCHED_OTHER));
    }
}
