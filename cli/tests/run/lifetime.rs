//! The end of a tree: nothing outlives `run`, and `run` outlives nothing it waits for.

use crate::common::{
    Pids, Running, alive, kill, output, run, selfpage, static_program, supervisor, until,
};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

/// A tree that tries to get away: a daemon in a session of its own, and a static one.
fn fugitives(pids: &Pids, also: &str) -> String {
    let stay = |name| {
        format!(
            "sh -c 'trap \"\" HUP TERM INT; echo $$ > {}; exec sleep 1000'",
            pids.path(name)
        )
    };
    // One leads a session of its own; the other's parent has ended besides.
    format!(
        "setsid {} & (setsid {} &); {also} echo $$ > {}; sleep 1000",
        stay("session"),
        stay("daemon"),
        pids.path("program"),
    )
}

#[test]
fn nothing_outlives_run_or_its_supervisor_killed_at_once() {
    let made = static_program("#include <unistd.h>\nint main(void) { for (;;) pause(); }");
    for kill_supervisor in [false, true] {
        let pids = Pids::new();
        let also = made.as_ref().map_or(String::new(), |(_, program)| {
            format!(
                "(setsid {} & echo $! > {}) ;",
                program.display(),
                pids.path("static")
            )
        });
        let mut command = selfpage(&[
            "run",
            "--frames",
            "64M",
            "--allow-unpaged",
            "--",
            "sh",
            "-c",
        ]);
        command.arg(fugitives(&pids, &also)).stderr(Stdio::null());
        let mut child = Running::start(&mut command);
        let mut started = vec![pids.get("session"), pids.get("daemon"), pids.get("program")];
        if made.is_some() {
            started.push(pids.get("static"));
        }
        let supervisor = supervisor(&child.0);
        started.push(supervisor);
        assert!(started.iter().all(|pid| alive(*pid)), "{started:?}");
        let victim = if kill_supervisor {
            supervisor
        } else {
            child.pid()
        };
        kill(victim, libc::SIGKILL);
        let status = child.wait();
        if kill_supervisor {
            assert_eq!(status.code(), Some(125));
        }
        until("all ended", || started.iter().all(|pid| !alive(*pid)));
        let left = std::fs::read_dir("/var/tmp/selfpage-tests/selfpage").map_or(0, Iterator::count);
        assert_eq!(left, 0, "files stay behind");
    }
}

#[test]
fn a_killed_supervisor_is_told_as_that() {
    let pids = Pids::new();
    let script = format!("echo $$ > {}; sleep 1000", pids.path("program"));
    let mut command = run(&["sh", "-c", &script]);
    command.stderr(Stdio::piped());
    let mut child = Running::start(&mut command);
    let program = pids.get("program");
    let supervisor = supervisor(&child.0);
    kill(supervisor, libc::SIGKILL);
    assert_eq!(child.wait().code(), Some(125));
    let mut said = String::new();
    let mut errors = child.0.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert!(
        said.contains(&format!("(process {supervisor}) was killed by signal 9"))
            && said.contains("were ended"),
        "{said}"
    );
    assert!(!alive(program));
}

#[test]
fn run_waits_for_what_the_program_left_running_and_keeps_its_status() {
    let pids = Pids::new();
    let script = format!(
        "setsid sh -c 'sleep 1.5; echo 1 > {}' > /dev/null & exit 6",
        pids.path("late")
    );
    let (output, errors) = output(run(&["sh", "-c", &script]));
    assert_eq!(output.status.code(), Some(6));
    assert_eq!(pids.get("late"), 1);
    assert!(errors.contains("run on"), "{errors}");
}

#[test]
fn what_is_left_running_is_ended_where_that_was_asked_for() {
    let pids = Pids::new();
    let script = format!(
        "setsid sh -c 'echo $$ > {0}; sleep 1000' > /dev/null & sleep 0.3; exit 6",
        pids.path("left")
    );
    let mut command = selfpage(&[
        "run",
        "--frames",
        "64M",
        "--on-exit",
        "kill",
        "--",
        "sh",
        "-c",
    ]);
    command.arg(script);
    let (output, errors) = output(command);
    assert_eq!(output.status.code(), Some(6), "{errors}");
    assert!(!alive(pids.get("left")));
}

#[test]
fn a_reader_sees_the_end_of_output_when_the_program_closes_it() {
    let mut command = run(&["sh", "-c", "echo done; exec >&-; sleep 1000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Running::start(&mut command);
    let mut text = String::new();
    child
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "done\n");
    kill(child.pid(), libc::SIGTERM);
    assert_eq!(child.wait().signal(), Some(libc::SIGTERM));
}

#[test]
fn the_supervisor_and_its_swap_file_are_gone_when_run_returns() {
    let pids = Pids::new();
    let script = format!("echo $PPID > {}", pids.path("supervisor"));
    // Memory takes a while to be freed.
    let store = "disk:/dev/shm,size=256M";
    let mut command = selfpage(&["run", "--frames", "64M", "--store", store, "--", "sh", "-c"]);
    command.arg(script);
    let (output, errors) = output(command);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    // Its first thread has ended before those that have the file open still.
    let threads = std::fs::read_dir(format!("/proc/{}/task", pids.get("supervisor")));
    assert!(threads.map_or(0, Iterator::count) <= 1);
}
