//! `selfpage doctor` agrees with `run`.

use crate::common::{executable, is_root, output, readable_joiner, selfpage};
use std::process::Command;

#[test]
fn what_doctor_finds_is_true_of_programs_where_only_the_command_is_privileged() {
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if !is_root() || allowed.is_ok_and(|text| text.trim() != "0") {
        return println!("SKIPPED: needs root, and vm.unprivileged_userfaultfd=0");
    }
    let (folder, library) = readable_joiner();
    let command = folder.path().join("selfpage");
    std::fs::copy(env!("CARGO_BIN_EXE_selfpage"), &command).unwrap();
    executable(&command);
    let set = Command::new("setcap")
        .arg("cap_sys_ptrace+ep")
        .arg(&command)
        .status();
    if !set.is_ok_and(|set| set.success()) {
        return println!(
            "SKIPPED: setcap does not work on {}",
            folder.path().display()
        );
    }
    let as_user = |arguments: &[&str]| {
        let mut it = Command::new("setpriv");
        it.args(["--reuid", "65534", "--clear-groups"])
            .arg(&command)
            .args(arguments);
        it.env("SELFPAGE_PRELOAD", &library)
            .env("XDG_STATE_HOME", "/var/tmp/selfpage-unprivileged");
        output(it)
    };
    let (doctor, _) = as_user(&["doctor"]);
    let (run, errors) = as_user(&["run", "--frames", "64M", "--", "true"]);
    let _ = std::fs::remove_dir_all("/var/tmp/selfpage-unprivileged");
    assert_eq!(run.status.code(), Some(125), "{errors}");
    assert!(errors.contains("unprivileged_userfaultfd"), "{errors}");
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert_eq!(doctor.status.code(), Some(1), "{text}");
    assert!(
        !text.contains("setcap cap_sys_ptrace+ep on the program,"),
        "{text}"
    );
}

#[test]
fn doctor_says_what_run_needs_and_exits_by_it() {
    let (output, _) = output(selfpage(&["doctor"]));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "kernel",
        "preload library",
        "state folder",
        "direct I/O noticed",
        "huge pages",
        "kernel swap",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(
        output.status.success(),
        text.contains("`selfpage run` works here"),
        "{text}"
    );
}

#[test]
fn output_that_cannot_be_written_is_a_failure_of_selfpage() {
    for arguments in [&["doctor"][..], &["--version"], &["run", "--help"]] {
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let ended = selfpage(arguments).stdout(full).output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{arguments:?}: {errors}");
        assert!(errors.contains("No space left"), "{arguments:?}: {errors}");
    }
}
