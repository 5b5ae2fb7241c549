//! `selfpage run` towards the program, the shell and the terminal: what it starts, what
//! it passes on, what it refuses, and that nothing outlives it. The library preloaded is
//! `examples/joiner.rs`, which comes in and pages nothing.

#[path = "run/common.rs"]
mod common;
#[path = "run/direct_io.rs"]
mod direct_io;
#[path = "run/doctor.rs"]
mod doctor;
#[path = "run/figures.rs"]
mod figures;
#[path = "run/inherited.rs"]
mod inherited;
#[path = "run/lifetime.rs"]
mod lifetime;
#[path = "run/nested.rs"]
mod nested;
#[path = "run/refusals.rs"]
mod refusals;
#[path = "run/signals.rs"]
mod signals;

use crate::common::{Pids, Running, executable, output, run, selfpage};
use std::ffi::CString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_exit_status_and_the_streams_are_the_programs() {
    let mut child = run(&[
        "sh",
        "-c",
        "read line; echo \"got $line\"; echo wrong >&2; exit 7",
    ])
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"this\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"got this\n");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("wrong\n"), "{errors}");
    assert!(errors.contains("64 MiB of frames"), "{errors}");
}

#[test]
fn a_script_without_a_first_line_is_given_to_the_shell() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "echo $1; exit 3\n").unwrap();
    executable(&script);
    let (output, errors) = output(run(&[script.to_str().unwrap(), "argument"]));
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(3), &b"argument\n"[..]),
        "{errors}"
    );
}

#[test]
fn every_process_of_the_tree_comes_in_and_its_figures_outlive_it() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let mut command = selfpage(&["run", "--frames", "64M", "--stats-json"]);
    command
        .arg(&json)
        .args(["--", "sh", "-c", "/bin/true; /bin/true; kill -9 $$"]);
    let (output, errors) = output(command);
    assert_eq!(output.status.signal(), Some(9), "{errors}");
    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(figures["processes"], 3, "{errors}");
    assert_eq!(figures["counters"]["faults"], 3);
    assert_eq!(figures["status"], 137);
    assert_eq!(figures["frames"], 16384);
}

#[test]
fn a_program_finds_no_descriptor_that_leads_to_run_and_no_name_to_connect_to() {
    let (output, errors) = output(run(&["sh", "-c", "ls /proc/self/fd; env"]));
    let text = String::from_utf8(output.stdout).unwrap();
    if !text.contains("SELFPAGE_CONNECT=filter") {
        return println!("SKIPPED: no seccomp filter can be installed here: {errors}");
    }
    // The library that is loaded here keeps its own, at the lowest numbers that are free.
    let high = |line: &str| line.parse::<u32>().is_ok_and(|fd| fd >= 900);
    assert!(!text.lines().any(high), "{text}");
    assert!(
        !text.contains("SELFPAGE_PORT") && !text.contains("SELFPAGE_SOCKET"),
        "{text}"
    );
}

#[test]
fn strings_of_the_environment_that_are_no_variables_reach_the_program() {
    use std::os::unix::ffi::OsStrExt;
    let wanted = run(&["/bin/cat", "/proc/self/environ"]);
    let text = |bytes: &[u8]| CString::new(bytes).unwrap();
    let words = std::iter::once(wanted.get_program()).chain(wanted.get_args());
    let words: Vec<_> = words.map(|word| text(word.as_bytes())).collect();
    let variables = wanted.get_envs().filter_map(|(name, value)| {
        let parts = [name.as_bytes(), b"=", value?.as_bytes()];
        Some(text(&parts.concat()))
    });
    let variables: Vec<_> = variables.chain([c"no variable".to_owned()]).collect();
    let mut command = Command::new("true");
    // SAFETY: one system call between fork and exec, which takes the place of exec's; the strings live.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
            let ends = |all: &[CString]| {
                let each = all.iter().map(|one| one.as_ptr());
                each.chain([std::ptr::null()]).collect::<Vec<_>>()
            };
            let (argv, envp) = (ends(&words), ends(&variables));
            libc::execve(argv[0], argv.as_ptr(), envp.as_ptr());
            Err(std::io::Error::last_os_error())
        });
    }
    let (output, errors) = output(command);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.split('\0').any(|line| line == "no variable"),
        "{errors}"
    );
}

#[test]
fn processes_come_in_while_standard_error_is_not_read() {
    let pids = Pids::new();
    let (read, write) = std::io::pipe().unwrap();
    // SAFETY: makes our own pipe as small as it can be.
    unsafe {
        libc::fcntl(
            std::os::fd::AsRawFd::as_raw_fd(&write),
            libc::F_SETPIPE_SZ,
            4096,
        )
    };
    // Two lines for each process: more than the pipe holds.
    let script = format!(
        "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i + 1)); done; echo 1 > {}",
        pids.path("done")
    );
    let mut command = selfpage(&["run", "-vv", "--frames", "64M", "--", "sh", "-c", &script]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(write);
    let mut running = Running::start(&mut command);
    drop(command);
    assert_eq!(pids.get("done"), 1);
    let mut errors = String::new();
    std::io::BufReader::new(read)
        .read_to_string(&mut errors)
        .unwrap();
    assert!(running.wait().success(), "{errors}");
    assert!(errors.contains("has ended"), "{errors}");
}

#[test]
fn the_default_store_takes_little_of_the_disk_until_it_is_used() {
    let script = "for fd in /proc/$PPID/fd/*; do stat -L -c 'size %s blocks %b links %h' $fd; done";
    let (output, errors) = output(run(&["sh", "-c", script]));
    let text = String::from_utf8(output.stdout).unwrap();
    let number = |line: &str, name: &str| -> Option<u64> {
        line.split(name)
            .nth(1)?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    let swap: Vec<_> = text
        .lines()
        .filter(|line| line.ends_with("links 0"))
        .filter_map(|line| Some((number(line, "size ")?, number(line, "blocks ")? * 512)))
        .filter(|(size, _)| *size > 1 << 30)
        .collect();
    if swap.is_empty() {
        return println!("SKIPPED: no folder with room for a default store: {errors}{text}");
    }
    // The memory that processes share is sparse, too.
    assert!(swap.iter().all(|(_, there)| *there < 600 << 20), "{swap:?}");
}

#[test]
fn a_folder_is_a_place_for_a_store() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = format!("disk:{},size=16M", folder.path().display());
    let mut command = selfpage(&["run", "--frames", "64M", "--store", &store, "--", "true"]);
    command.stdin(Stdio::null());
    let (output, errors) = output(command);
    assert!(output.status.success(), "{errors}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_swap_file_in_memory_is_warned_about() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return println!("SKIPPED: no folder can be made in /dev/shm");
    };
    let store = format!("disk:{},size=1M", folder.path().display());
    let command = selfpage(&["run", "--frames", "64M", "--store", &store, "--", "true"]);
    let (output, errors) = output(command);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("file system in memory"), "{errors}");
}

#[test]
fn a_report_into_a_closed_pipe_ends_quietly() {
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let output = selfpage(&["doctor"])
        .stdout(write)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{errors}");
    assert!(output.stderr.is_empty(), "{errors}");
}

#[test]
fn figures_come_as_a_table_or_as_json() {
    let stats = |format: &str| {
        let mut command = selfpage(&["run", "--frames", "64M", format, "--", "true"]);
        let _ = &mut command;
        output(command).1
    };
    let table = stats("--stats");
    assert!(
        table.contains("frames_peak")
            && table.contains("store_peak_disk")
            && table.contains("zero_filled"),
        "{table}"
    );
    let json = stats("--stats=json");
    let figures: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(figures["frames_bytes"], 64 << 20);
}

#[test]
fn a_program_that_closed_the_port_is_let_in_by_the_other_door() {
    // The shell's child finds its descriptor closed.
    let close = "for fd in $(ls /proc/self/fd); do test $fd -gt 2 && eval \"exec $fd>&-\"; done; \
                 JOINER_REPORT=1 /bin/true";
    if !Path::new("/bin/bash").exists() {
        eprintln!("skipped: no bash, which can close a descriptor above 9");
        return;
    }
    let (output, errors) = output(run(&["/bin/bash", "-c", close]));
    assert!(output.status.success(), "{errors}");
    assert!(
        errors.contains("slot") && errors.contains("16384 frames"),
        "{errors}"
    );
}
