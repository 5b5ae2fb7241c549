//! What a caller gives the program, through `run`'s own processes.

use crate::common::{output, run};
use std::process::Command;

/// `run` with `program`, executed by a shell after `before`.
fn run_after(before: &str, program: &str) -> Command {
    let started = run(&["sh", "-c", program]);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]);
    command.arg(started.get_program()).args(started.get_args());
    let variables = started.get_envs();
    command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    command
}

fn printed(command: Command) -> String {
    let (output, errors) = output(command);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// systemd's services have it by default.
#[test]
fn a_signal_of_closed_pipes_that_the_caller_ignores_is_ignored() {
    const PIPE: u64 = 1 << (libc::SIGPIPE - 1);
    let ignored = |before| {
        let text = printed(run_after(before, "grep SigIgn: /proc/self/status"));
        let mask = text.trim_start_matches("SigIgn:").trim();
        u64::from_str_radix(mask, 16).unwrap() & PIPE != 0
    };
    assert!(ignored("trap '' PIPE"));
    assert!(!ignored("true"));
}

#[test]
fn variables_that_name_the_process_that_systemd_started_name_the_program() {
    const SHOW: &str =
        r#"echo "$LISTEN_PID $WATCHDOG_PID $SYSTEMD_EXEC_PID ${LISTEN_PIDFDID-none} $$""#;
    let named = "export LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$$ LISTEN_PIDFDID=7";
    let text = printed(run_after(named, SHOW));
    let words: Vec<_> = text.split_whitespace().collect();
    let [listen, watchdog, executed, pidfd, program] = words[..] else {
        panic!("{text}")
    };
    assert_eq!([listen, watchdog, executed], [program; 3]);
    assert_eq!(pidfd, "none");
    // What names another process stays.
    let other = printed(run_after(
        "export LISTEN_PID=1 WATCHDOG_PID=12345678901",
        SHOW,
    ));
    assert!(other.starts_with("1 12345678901 "), "{other}");
}
