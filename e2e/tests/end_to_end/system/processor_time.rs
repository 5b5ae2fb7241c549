//! Processor time that comes with disk time: lent to the threads that page, and taken back.

use super::{Case, for_ever, wait_until};
use e2e::contract::{Size, Under};
use e2e::daemon::Settings;
use e2e::verdict::{Doing, Verdict, ensure, skipped};
use e2e::{Daemon, Disks, Launch, Sandbox, hazard};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    threads_that_page_come_first_beside_programs_that_compute => first,
    a_daemon_that_is_killed_leaves_no_thread_that_comes_first => killed,
];

/// Programs that only compute, four to each processor.
struct Computing(Vec<Child>);

impl Computing {
    fn start() -> Verdict<Self> {
        let count = std::thread::available_parallelism().map_or(8, |count| count.get() * 4);
        let start = |_| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]);
            shell.stdin(Stdio::null());
            shell.spawn().doing(|| "start a shell that computes".into())
        };
        (0..count).map(start).collect::<Verdict<_>>().map(Self)
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The names of a process's threads with real-time priority.
fn real_time_threads(pid: i32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let stats = tasks.into_iter().flatten().flatten();
    let stats = stats.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let real_time = |stat: String| {
        let (name, after) = stat.rsplit_once(')')?;
        // Field 41 of the line is the class; SCHED_RR is 2.
        let class = after.split_whitespace().nth(38)?;
        (class == "2").then(|| name.to_owned())
    };
    stats.filter_map(real_time).collect()
}

/// The same of all processes of a run.
fn of_tree(running: &e2e::launch::Running) -> Vec<String> {
    let all = running.processes();
    let threads = all.iter().map(|process| real_time_threads(process.pid));
    threads.flatten().collect()
}

/// Skips the case where a daemon could lend nothing.
fn needs_real_time() -> Verdict {
    let tried = Command::new("chrt").args(["-r", "1", "true"]).output();
    match tried {
        Ok(done) if done.status.success() => Ok(()),
        _ => skipped("real-time priority is not permitted here, or chrt is missing"),
    }
}

fn settings() -> Settings {
    Settings {
        disk: "processor_time = true".into(),
        ..Settings::new(32)
    }
}

fn first(disks: &Arc<Disks>, _: Size) -> Verdict {
    needs_real_time()?;
    let daemon = Daemon::start(disks, &settings())?;
    let sandbox = Sandbox::new("first")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = daemon.terms(8, 128).with("--disk=100ms/250ms");
    let mut running = for_ever(&sandbox, &program, 48).spawn(&Under::Contract(contract))?;
    daemon.says("has frames", 1)?;
    let computing = Computing::start()?;
    wait_until("the disk's thread comes first", || {
        let threads = real_time_threads(daemon.pid()?.as_raw_nonzero().get());
        Ok(threads.iter().any(|name| name.ends_with("(selfpage-disk")))
    })?;
    wait_until("a handler thread comes first", || {
        let threads = of_tree(&running);
        Ok(threads
            .iter()
            .any(|name| name.ends_with("(selfpage-handle")))
    })?;
    wait_until("a thread that faulted comes first", || {
        let threads = of_tree(&running);
        Ok(threads.iter().any(|name| !name.contains("(selfpage-")))
    })?;
    for process in running.processes() {
        let pid = Pid::from_raw(process.pid);
        let _ = pid.map(|pid| kill_process(pid, Signal::STOP));
    }
    wait_until(
        "no thread of a tenant that does not page comes first",
        || Ok(of_tree(&running).is_empty()),
    )?;
    drop(computing);
    ensure(!running.ended(), || running.stderr())?;
    drop(running);
    daemon.has_everything_back()
}

fn killed(disks: &Arc<Disks>, _: Size) -> Verdict {
    needs_real_time()?;
    let mut daemon = Daemon::start(disks, &settings())?;
    let sandbox = Sandbox::new("first_killed")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let launch = Launch::new(&sandbox, &program)
        .variable("HAZARD_MB", "64")
        .limit(Duration::from_secs(300));
    let expected = launch.run(&Under::Nothing)?.succeeded()?.text();
    let contract = daemon.terms(8, 128).with("--disk=25ms/250ms,extra");
    // Before the program, whose whole life the wait is to cover.
    let computing = Computing::start()?;
    let running = launch.spawn(&Under::Contract(contract))?;
    wait_until("a thread comes first", || Ok(!of_tree(&running).is_empty()))?;
    daemon.kill()?;
    wait_until("no thread comes first without a daemon", || {
        Ok(of_tree(&running).is_empty())
    })?;
    daemon.again()?;
    drop(computing);
    let said = running.wait()?.succeeded()?.text();
    ensure(said == expected, || {
        format!("it printed {said:?}, alone {expected:?}")
    })?;
    daemon.has_everything_back()
}
