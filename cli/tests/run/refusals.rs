//! What `run` refuses before any process starts, and the exit status of that.

use crate::common::{executable, is_root, output, readable_joiner, run, selfpage, static_program};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

#[test]
fn what_is_not_there_is_127_and_what_cannot_be_executed_126() {
    let (not_found, errors) = output(run(&["no-such-program-anywhere"]));
    assert_eq!(not_found.status.code(), Some(127), "{errors}");
    assert!(errors.contains("not found"), "{errors}");
    assert_eq!(output(run(&["./no/such/path"])).0.status.code(), Some(127));
    let (not_found, errors) = output(run(&[""]));
    assert_eq!(not_found.status.code(), Some(127), "{errors}");
    assert!(errors.contains("\"\": not found"), "{errors}");
    let (not_found, errors) = output(selfpage(&["run", "--system", "/no/such/socket", "true"]));
    assert_eq!(not_found.status.code(), Some(127), "{errors}");
    assert!(
        errors.contains("write --system=/no/such/socket"),
        "{errors}"
    );
    assert_eq!(output(run(&["/etc/passwd"])).0.status.code(), Some(126));
    assert_eq!(output(run(&["/etc"])).0.status.code(), Some(126));
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    executable(&script);
    let (output, errors) = output(run(&[script.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(127), "{errors}");
    assert!(errors.contains("interpreter"), "{errors}");
}

#[test]
fn what_is_asked_wrongly_is_125_and_says_what_would_be_right() {
    let cases: &[(&[&str], &str)] = &[
        (&["--frames", "0"], "less than the"),
        (&["--frames", "64"], "64M?"),
        (&["--frames", "4K"], "16 frames"),
        (&["--frames", "-5M"], "whole number"),
        (&["--frames", "64X"], "whole number and a unit"),
        (&["--frames", "1.5G"], "whole number"),
        (&["--frames", "100001"], "whole number of frames"),
        (&["--frames", "3T"], "than the"),
        (&["--frames", "99999999999999999999G"], "too large"),
        (&[], "--frames"),
        (&["--frames", "64M", "--store", "tape:1G"], "no store"),
        (&["--frames", "64M", "--store", "ram:1"], "too small"),
        (&["--frames", "64M", "--store", "disk:/tmp"], "size"),
        (
            &["--frames", "64M", "--store", "remote:64"],
            "remote memory of 64 bytes",
        ),
        (
            &["--frames", "64M", "--store", "disk:/proc/x,size=1M"],
            "/proc/x",
        ),
        (
            &["--frames", "64M", "--store", "disk:/var/tmp/no,size=3T"],
            "room",
        ),
        (&["--frames", "64M", "--insecure"], "remote:SIZE"),
        (&["--frames", "64M", "--remote", "h"], "remote:SIZE"),
        (&["--frames", "64M", "--stripe-after", "5X"], "600s"),
        (&["--frames", "64M", "--stripe-after", "5s"], "remote:SIZE"),
        (&["--frames", "64M", "--stats-json", "-"], "./-"),
        (&["--system", "--store", "ram:1G"], "leave one out"),
        (&["--system", "--swap", "64"], "64M?"),
        (&["--frames", "64M", "--ram", "64"], "64M?"),
        (&["--frames", "64M", "--ram", "4K"], "256KiB"),
        (
            &[
                "--frames",
                "64M",
                "--store",
                "opendal:fs:///no/folder,size=1G",
            ],
            "/no/folder is not there",
        ),
    ];
    for (arguments, part) in cases {
        let mut command = selfpage(&["run"]);
        command.args(*arguments).args(["--", "true"]);
        let (output, errors) = output(command);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {errors}");
        assert!(errors.contains(part), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_missing_library_is_said_with_where_it_was_looked_for() {
    let mut command = run(&["true"]);
    command.env("SELFPAGE_PRELOAD", "/no/such/library.so");
    let (output, errors) = output(command);
    assert_eq!(output.status.code(), Some(125));
    assert!(errors.contains("/no/such/library.so"), "{errors}");
}

#[test]
fn a_library_that_the_loader_cannot_map_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("library.so");
    std::fs::write(&library, "no library at all").unwrap();
    let mut command = run(&["true"]);
    command.env("SELFPAGE_PRELOAD", &library);
    let (output, errors) = output(command);
    assert_eq!(output.status.code(), Some(125));
    assert!(errors.contains("cannot be preloaded"), "{errors}");
}

#[test]
fn a_static_program_is_refused_before_it_starts_or_warned_about() {
    let Some((_folder, program)) = static_program("int main(void) { return 9; }") else {
        return;
    };
    let program = program.to_str().unwrap();
    let (refused, errors) = output(run(&[program]));
    assert_eq!(refused.status.code(), Some(125), "{errors}");
    assert!(
        errors.contains("statically linked") && errors.contains("--allow-unpaged"),
        "{errors}"
    );
    let mut command = selfpage(&["run", "--frames", "64M", "--allow-unpaged", "--"]);
    command.arg(program);
    let (allowed, errors) = output(command);
    assert_eq!(allowed.status.code(), Some(9), "{errors}");
    assert!(
        errors.contains("warning") && errors.contains("nothing was paged"),
        "{errors}"
    );
}

#[test]
fn without_proc_it_is_said_that_proc_is_missing() {
    if !is_root() {
        return println!("SKIPPED: needs root, to unmount /proc in a namespace of its own");
    }
    let mut command = Command::new("unshare");
    let script = "umount -l /proc && exec \"$@\"";
    command.args([
        "-m",
        "sh",
        "-c",
        script,
        "sh",
        env!("CARGO_BIN_EXE_selfpage"),
    ]);
    command.args(["run", "--frames", "64M", "--", "true"]);
    let (output, errors) = output(command);
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("/proc is not mounted"), "{errors}");
}

#[test]
fn an_image_of_another_user_is_not_given_the_store_unless_that_is_asked_for() {
    if !is_root() {
        return println!("SKIPPED: needs root, to become another user");
    }
    let (_folder, library) = readable_joiner();
    let said = |option: &[&str]| {
        let mut command = selfpage(&["run", "--frames", "64M"]);
        command
            .args(option)
            .args(["--", "setpriv", "--reuid", "65534", "--clear-groups"]);
        command.arg("/bin/true").env("SELFPAGE_PRELOAD", &library);
        output(command).1
    };
    let refused = said(&[]);
    assert!(
        refused.contains("user 65534's") && refused.contains("--share-store"),
        "{refused}"
    );
    let shared = said(&["--share-store"]);
    assert!(!shared.contains("user 65534's"), "{shared}");
}

#[test]
fn a_socket_after_system_and_a_space_is_not_taken_for_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let socket = socket.to_str().unwrap();
    let (refused, errors) = output(selfpage(&["run", "--system", socket, "true"]));
    assert_eq!(refused.status.code(), Some(125), "{errors}");
    assert!(errors.contains(&format!("--system={socket}")), "{errors}");
}

#[test]
fn a_program_whose_name_is_no_text_is_checked_as_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(OsStr::from_bytes(b"a\xff"));
    std::fs::write(&program, "exit 0\n").unwrap();
    executable(&program);
    for (options, part) in [
        (&[][..], "--frames is missing"),
        (&["--system", "--store", "ram:1G"], "leave one out"),
    ] {
        let mut command = selfpage(&["run"]);
        command.args(options).arg("--").arg(&program);
        let (refused, errors) = output(command);
        assert_eq!(refused.status.code(), Some(125), "{errors}");
        assert!(errors.contains(part), "{errors}");
    }
}
