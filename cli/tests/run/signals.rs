//! Signals between the shell, `run` and the program.

use crate::common::{Pids, Running, kill, output, run, supervisor, until};
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_program_ended_by_a_signal_looks_so_from_outside() {
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV] {
        let (output, _) = output(run(&["sh", "-c", &format!("kill -{signal} $$")]));
        assert_eq!(output.status.signal(), Some(signal));
    }
}

/// A shell that writes how many SIGUSR1 it has received, and ends with 42 by SIGTERM.
fn counts_signals(pids: &Pids) -> String {
    format!(
        "n=0; trap 'n=$((n+1)); echo $n > {0}' USR1; trap 'exit 42' TERM; echo $$ > {1}; while :; do sleep 0.02; done",
        pids.path("count"),
        pids.path("program")
    )
}

#[test]
fn a_signal_sent_to_run_reaches_the_program_once() {
    let pids = Pids::new();
    let script = counts_signals(&pids);
    let mut child = Running::start(run(&["sh", "-c", &script]).stderr(Stdio::null()));
    pids.get("program");
    kill(child.pid(), libc::SIGUSR1);
    assert_eq!(pids.get("count"), 1);
    kill(child.pid(), libc::SIGTERM);
    assert_eq!(child.wait().code(), Some(42));
    assert_eq!(pids.get("count"), 1);
}

/// A run of that shell in a group of its own.
fn counting_job(pids: &Pids) -> Running {
    Running::start(
        run(&["sh", "-c", &counts_signals(pids)])
            .process_group(0)
            .stderr(Stdio::null()),
    )
}

#[test]
fn a_signal_sent_to_the_whole_group_is_not_sent_again() {
    let pids = Pids::new();
    let mut child = counting_job(&pids);
    pids.get("program");
    kill(-(child.pid()), libc::SIGUSR1);
    pids.get("count");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pids.get("count"), 1);
    kill(-(child.pid()), libc::SIGTERM);
    assert_eq!(child.wait().code(), Some(42));
}

#[test]
fn a_signal_sent_to_the_group_of_a_stopped_job_is_not_sent_again() {
    let pids = Pids::new();
    let mut child = counting_job(&pids);
    let program = pids.get("program");
    kill(program, libc::SIGSTOP);
    until("both stop", || {
        state(program) == Some('T') && state(child.pid()) == Some('T')
    });
    kill(-(child.pid()), libc::SIGUSR1);
    // Longer than the group's witness remembers a signal of a job that runs.
    std::thread::sleep(Duration::from_millis(500));
    kill(-(child.pid()), libc::SIGCONT);
    pids.get("count");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pids.get("count"), 1);
    kill(-(child.pid()), libc::SIGTERM);
    assert_eq!(child.wait().code(), Some(42));
}

/// The letter of a process's state.
fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    state.chars().next()
}

#[test]
fn a_signal_sent_to_each_process_of_run_is_sent_to_the_program_once() {
    let pids = Pids::new();
    let script = counts_signals(&pids);
    let mut child = Running::start(run(&["sh", "-c", &script]).stderr(Stdio::null()));
    pids.get("program");
    // As `pkill` does, which matches both.
    for pid in [child.pid(), supervisor(&child.0)] {
        kill(pid, libc::SIGUSR1);
    }
    pids.get("count");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pids.get("count"), 1);
    kill(child.pid(), libc::SIGTERM);
    assert_eq!(child.wait().code(), Some(42));
}

#[test]
fn a_request_to_end_reaches_processes_that_are_stopped() {
    let pids = Pids::new();
    let script = format!(
        "setsid sh -c 'echo $$ > {0}; kill -STOP $$; sleep 1000' > /dev/null & echo $$ > {1}; exit 0",
        pids.path("stopped"),
        pids.path("program")
    );
    let mut child = Running::start(run(&["sh", "-c", &script]).stderr(Stdio::null()));
    pids.get("stopped");
    std::thread::sleep(Duration::from_millis(100));
    kill(child.pid(), libc::SIGTERM);
    assert_eq!(child.wait().code(), Some(0));
}

#[test]
fn run_stops_when_the_program_stops_and_goes_on_with_it() {
    let pids = Pids::new();
    let script = format!("echo $$ > {0}; kill -STOP $$; exit 5", pids.path("program"));
    let mut child = Running::start(run(&["sh", "-c", &script]).stderr(Stdio::null()));
    let program = pids.get("program");
    until("both stop", || {
        state(program) == Some('T') && state(child.pid()) == Some('T')
    });
    kill(child.pid(), libc::SIGCONT);
    assert_eq!(
        child.wait().code(),
        Some(5),
        "continuing `run` continued the program"
    );
}

#[test]
fn the_program_finds_the_signal_mask_and_dispositions_run_was_started_with() {
    let status = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    let bare = output({
        let mut bare = Command::new("sh");
        bare.args(["-c", status]);
        bare
    });
    let (ours, errors) = output(run(&["sh", "-c", status]));
    assert_eq!(
        String::from_utf8_lossy(&ours.stdout),
        String::from_utf8_lossy(&bare.0.stdout),
        "{errors}"
    );
}
