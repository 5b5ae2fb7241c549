//! `selfpage run` towards the program, the shell and the terminal: what it starts, what
//! it passes on, what it refuses, and that nothing outlives it. The library preloaded is
//! `examples/joiner.rs`, which comes in and pages nothing.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a machine under load; reached only where something is broken.
const LIMIT: Duration = Duration::from_secs(30);

fn joiner() -> PathBuf {
    // Cargo builds examples beside the tests that it builds.
    let tests = std::env::current_exe().unwrap();
    tests
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/libjoiner.so")
}

fn selfpage(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selfpage"));
    command.args(arguments).env("SELFPAGE_PRELOAD", joiner());
    command
        .env("XDG_STATE_HOME", "/var/tmp/selfpage-tests")
        .env_remove("SELFPAGE_WITHOUT");
    command
}

fn run(program: &[&str]) -> Command {
    let mut command = selfpage(&["run", "--frames", "64M", "--"]);
    command.args(program);
    command
}

/// Runs to the end, with what it wrote: to files, so that nothing waits for processes
/// that hold a pipe.
fn output(mut command: Command) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    let file = |path: &Path| std::fs::File::create(path).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&err));
    let status = Running::start(&mut command).wait();
    let (stdout, stderr) = (std::fs::read(out).unwrap(), std::fs::read(err).unwrap());
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    (
        Output {
            status,
            stdout,
            stderr,
        },
        errors,
    )
}

/// Waits until `done`, or fails.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: signals a process these tests started.
    unsafe { libc::kill(pid, signal) };
}

/// A `run` that is killed, and all below it, if its test fails.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("run ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder whose files tell the pids of what a test started.
struct Pids(tempfile::TempDir);

impl Pids {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn get(&self, name: &str) -> i32 {
        let mut pid = None;
        until(name, || {
            let text = std::fs::read_to_string(self.0.path().join(name)).unwrap_or_default();
            pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
            pid.is_some()
        });
        pid.unwrap()
    }
}

/// The supervisor below a front process.
fn supervisor(front: &Child) -> i32 {
    let mut found = None;
    until("supervisor", || {
        let children = format!("/proc/{0}/task/{0}/children", front.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        found = children
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

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
fn a_program_ended_by_a_signal_looks_so_from_outside() {
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV] {
        let (output, _) = output(run(&["sh", "-c", &format!("kill -{signal} $$")]));
        assert_eq!(output.status.signal(), Some(signal));
    }
}

#[test]
fn what_is_not_there_is_127_and_what_cannot_be_executed_126() {
    let (not_found, errors) = output(run(&["no-such-program-anywhere"]));
    assert_eq!(not_found.status.code(), Some(127), "{errors}");
    assert!(errors.contains("not found"), "{errors}");
    assert_eq!(output(run(&["./no/such/path"])).0.status.code(), Some(127));
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

fn executable(path: &Path) {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
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
            &["--frames", "64M", "--store", "disk:/proc/x,size=1M"],
            "/proc/x",
        ),
        (
            &["--frames", "64M", "--store", "disk:/var/tmp/no,size=3T"],
            "room",
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

/// Compiles a static program; says why not where there is no compiler for it.
fn static_program(source: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let (code, program) = (folder.path().join("p.c"), folder.path().join("p"));
    std::fs::write(&code, source).unwrap();
    let made = Command::new("cc")
        .args(["-static", "-o"])
        .arg(&program)
        .arg(&code)
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("skipped: cc -static does not work here");
        return None;
    }
    Some((folder, program))
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
    assert_eq!(figures["figures"]["faults"], 3);
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

/// The library where every user may read it; the folder of the tests may be root's alone.
fn readable_joiner() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    executable(folder.path());
    let library = folder.path().join("libjoiner.so");
    std::fs::copy(joiner(), &library).unwrap();
    executable(&library);
    (folder, library)
}

fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
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
            .env("XDG_STATE_HOME", "/var/tmp/selfpage-nobody");
        output(it)
    };
    let (doctor, _) = as_user(&["doctor"]);
    let (run, errors) = as_user(&["run", "--frames", "64M", "--", "true"]);
    let _ = std::fs::remove_dir_all("/var/tmp/selfpage-nobody");
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
fn figures_that_could_not_be_written_are_refused_before_anything_is_measured() {
    let (output, errors) = output(selfpage(&["bench", "micro", "--json", "/no/such/folder/x"]));
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(
        output.stdout.is_empty() && errors.contains("cannot be written"),
        "{errors}"
    );
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

#[test]
fn a_signal_sent_to_run_reaches_the_program_once() {
    let pids = Pids::new();
    let script = format!(
        "n=0; trap 'n=$((n+1)); echo $n > {0}' USR1; trap 'exit 42' TERM; echo $$ > {1}; while :; do sleep 0.02; done",
        pids.path("count"),
        pids.path("program")
    );
    let mut child = Running::start(run(&["sh", "-c", &script]).stderr(Stdio::null()));
    pids.get("program");
    kill(child.pid(), libc::SIGUSR1);
    assert_eq!(pids.get("count"), 1);
    kill(child.pid(), libc::SIGTERM);
    assert_eq!(child.wait().code(), Some(42));
    assert_eq!(pids.get("count"), 1);
}

#[test]
fn a_signal_sent_to_the_whole_group_is_not_sent_again() {
    let pids = Pids::new();
    let script = format!(
        "n=0; trap 'n=$((n+1)); echo $n > {0}' USR1; trap 'exit 42' TERM; echo $$ > {1}; while :; do sleep 0.02; done",
        pids.path("count"),
        pids.path("program")
    );
    let mut child = Running::start(
        run(&["sh", "-c", &script])
            .process_group(0)
            .stderr(Stdio::null()),
    );
    pids.get("program");
    kill(-(child.pid()), libc::SIGUSR1);
    pids.get("count");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pids.get("count"), 1);
    kill(-(child.pid()), libc::SIGTERM);
    assert_eq!(child.wait().code(), Some(42));
}

#[test]
fn run_stops_when_the_program_stops_and_goes_on_with_it() {
    let pids = Pids::new();
    let script = format!("echo $$ > {0}; kill -STOP $$; exit 5", pids.path("program"));
    let mut child = Running::start(run(&["sh", "-c", &script]).stderr(Stdio::null()));
    let program = pids.get("program");
    let state = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .chars()
            .next()
    };
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
        "--remaining",
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

/// Opens a file for direct I/O; the tree must be careful from then on.
const DIRECT: &str = "import os,sys; fd=os.open(sys.argv[1], os.O_RDWR|os.O_CREAT|os.O_DIRECT); \
                      os.environ['JOINER_REPORT']='1'; os.execv('/bin/true', ['true'])";

#[test]
fn direct_io_makes_the_tree_careful_before_the_call_returns() {
    if !Path::new("/usr/bin/python3").exists() {
        eprintln!("skipped: no python3");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("file");
    let mut command = run(&["/usr/bin/python3", "-c", DIRECT, file.to_str().unwrap()]);
    command.env("JOINER_ACK", "1");
    let (done, errors) = output(command);
    assert!(done.status.success(), "{errors}");
    assert!(errors.contains("careful 1"), "{errors}");
    let (before, errors) = output({
        let mut command = run(&["/bin/true"]);
        command.env("JOINER_REPORT", "1");
        command
    });
    assert!(
        before.status.success() && errors.contains("careful 0"),
        "{errors}"
    );
}

#[test]
fn direct_io_is_refused_where_a_pager_never_answers() {
    if !Path::new("/usr/bin/python3").exists() {
        eprintln!("skipped: no python3");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("file");
    let (output, errors) = output(run(&[
        "/usr/bin/python3",
        "-c",
        DIRECT,
        file.to_str().unwrap(),
    ]));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("Invalid argument") && errors.contains("direct I/O was refused"),
        "{errors}"
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
fn a_program_stopped_forever_does_not_hold_up_direct_io() {
    if !Path::new("/usr/bin/python3").exists() {
        eprintln!("skipped: no python3");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("file");
    // The stopped one never acknowledges; only the python that opens does.
    let script = format!(
        "sh -c 'kill -STOP $$' & JOINER_ACK=1 /usr/bin/python3 -c \"$0\" {}; e=$?; kill -9 $!; exit $e",
        file.display()
    );
    let mut command = run(&["bash", "-c", &script, DIRECT]);
    command.env("JOINER_ACK", "1");
    let (output, errors) = output(command);
    assert!(
        output.status.success() && !errors.contains("refused"),
        "{errors}"
    );
}
