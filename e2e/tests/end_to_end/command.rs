//! The promises of the command beside paging: statuses, signals, streams, refusals.

use e2e::contract::{Contract, MIB, Size, Under, selfpage};
use e2e::verdict::{Doing, Verdict, ensure, skipped};
use e2e::{Launch, Outcome, Sandbox, hazard, refusal};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub fn trials(_: Size) -> Vec<Trial> {
    trials![
        "command":
        the_exit_status_passes_through => statuses,
        a_program_that_is_not_found_exits_127 => not_found,
        a_program_that_is_not_executable_exits_126 => not_executable,
        its_own_failures_exit_125_and_say_why => own_failures,
        standard_streams_pass_through => streams,
        signals_reach_the_program => signals,
        a_program_killed_by_a_signal_ends_us_the_same_way => killed,
        a_static_program_is_refused => static_program,
        a_static_program_runs_with_a_warning_when_allowed => static_allowed,
        a_static_descendant_is_refused_or_warned_of => static_descendant,
        a_setuid_descendant_is_refused_or_warned_of => setuid_descendant,
        a_script_is_paged_through_its_interpreter => script,
        a_contract_of_the_least_frames_still_works => least_frames,
        a_store_that_is_too_small_is_told_and_nothing_is_silently_wrong => small_store,
    ]
}

pub fn contract() -> Under {
    Under::Contract(Contract::new(8 * MIB))
}

fn allowing() -> Under {
    Under::Contract(Contract::new(8 * MIB).with("--allow-unpaged"))
}

pub fn shell(sandbox: &Sandbox, script: &str, under: &Under) -> Verdict<Outcome> {
    Launch::new(sandbox, "/bin/sh")
        .args(["-c", script])
        .limit(Duration::from_secs(60))
        .run(under)
}

fn statuses() -> Verdict {
    let sandbox = Sandbox::new("statuses")?;
    for code in [0, 1, 2, 42, 125, 255] {
        shell(&sandbox, &format!("exit {code}"), &contract())?.ended_with(code)?;
    }
    sandbox.check_clean()
}

fn not_found() -> Verdict {
    let sandbox = Sandbox::new("not_found")?;
    for program in ["no-such-program-anywhere", "/no/such/program", "./missing"] {
        let outcome = Launch::new(&sandbox, program)
            .run(&contract())?
            .ended_with(127)?;
        outcome.mentions(program)?;
    }
    sandbox.check_clean()
}

fn not_executable() -> Verdict {
    let sandbox = Sandbox::new("not_executable")?;
    let path = sandbox.join("text");
    std::fs::write(&path, "not a program\n").at("write", &path)?;
    Launch::new(&sandbox, &path)
        .run(&contract())?
        .ended_with(126)?;
    Launch::new(&sandbox, sandbox.path())
        .run(&contract())?
        .ended_with(126)?;
    sandbox.check_clean()
}

fn own_failures() -> Verdict {
    let sandbox = Sandbox::new("own_failures")?;
    let wrong: [&[&str]; 14] = [
        &["--frames", "0"],
        &["--frames", "0M"],
        &["--frames", "banana"],
        &["--frames", "64Q"],
        &["--frames", "-5M"],
        &["--frames", "1K"],
        &["--frames", "99999999999999999999G"],
        &["--frames", "64M", "--store", "tape:1G"],
        &["--frames", "64M", "--store", "ram:0"],
        &["--frames", "64M", "--store", "ram:"],
        &[
            "--frames",
            "64M",
            "--store",
            "disk:/proc/no/such/file,size=1G",
        ],
        &["--frames", "64M", "--store", "disk:/sys/swap,size=1G"],
        &["--frames", "64M", "--store", "disk:here"],
        &["--frames", "64M", "--store", "ram:64M+ram:64M+ram:64M"],
    ];
    for options in wrong {
        refusal::of_options(&sandbox, options)?;
    }
    // A store beyond what the file system has.
    let huge = format!("disk:{}/swap,size=900000G", sandbox.path().display());
    refusal::of_options(&sandbox, &["--frames", "64M", "--store", &huge])?;
    ensure(!sandbox.join("swap").exists(), || {
        "the file of a store that failed is left".into()
    })?;
    sandbox.check_clean()
}

fn streams() -> Verdict {
    let sandbox = Sandbox::new("streams")?;
    let mut child = Command::new(selfpage()?)
        .args([
            "run",
            "--frames",
            "8M",
            "--",
            "/bin/sh",
            "-c",
            "cat; echo problem >&2",
        ])
        .envs(sandbox.environment())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .doing(|| "run selfpage".into())?;
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    let sent = bytes.clone();
    let mut stdin = child.stdin.take();
    let writer =
        std::thread::spawn(move || stdin.take().is_some_and(|mut s| s.write_all(&sent).is_ok()));
    let done = child
        .wait_with_output()
        .doing(|| "wait for selfpage".into())?;
    ensure(writer.join().unwrap_or(false), || {
        "standard input was not read".into()
    })?;
    ensure(done.stdout == bytes, || {
        "standard output differs from standard input".into()
    })?;
    ensure(
        String::from_utf8_lossy(&done.stderr).contains("problem"),
        || "standard error is lost".into(),
    )?;
    sandbox.check_clean()
}

fn signals() -> Verdict {
    let sandbox = Sandbox::new("signals")?;
    let script = "for s in TERM INT HUP USR1 USR2; do trap \"echo $s >> got\" $s; done; \
                  echo ready > ready; while :; do sleep 0.05; [ -s got ] && exit 7; done";
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::USR1,
        Signal::USR2,
    ] {
        if ignored(signal) {
            println!("{signal:?} is ignored where the tests were started: no shell can trap it");
            continue;
        }
        for file in ["ready", "got"] {
            let _ = std::fs::remove_file(sandbox.join(file));
        }
        let running = Launch::new(&sandbox, "/bin/sh")
            .args(["-c", script])
            .limit(Duration::from_secs(30))
            .spawn(&contract())?;
        wait_for(|| sandbox.join("ready").exists());
        let Some(pid) = Pid::from_raw(running.pid()) else {
            continue;
        };
        kill_process(pid, signal).doing(|| "send a signal".into())?;
        running.wait()?.ended_with(7)?;
    }
    sandbox.check_clean()
}

/// Returns true if this process ignores a signal, as everything it starts then does (`nohup`).
fn ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal.as_raw() - 1) != 0)
}

fn killed() -> Verdict {
    let sandbox = Sandbox::new("killed")?;
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        let outcome = shell(
            &sandbox,
            &format!("ulimit -c 0; kill -{name} $$"),
            &contract(),
        )?;
        use std::os::unix::process::ExitStatusExt;
        let (code, signal) = (outcome.status.code(), outcome.status.signal());
        ensure(code == Some(128 + number) || signal == Some(number), || {
            format!(
                "SIG{name}: {code:?} {signal:?}; its output: {}",
                outcome.stderr
            )
        })?;
    }
    sandbox.check_clean()
}

/// A program linked statically; skips where the C library cannot be.
fn build_static(sandbox: &Sandbox) -> Verdict<String> {
    let (source, program) = (sandbox.join("s.c"), sandbox.join("static_one"));
    let text = "#include <stdio.h>\nint main(void) { puts(\"static ran\"); return 0; }\n";
    std::fs::write(&source, text).at("write", &source)?;
    let done = Command::new("cc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .output()
        .doing(|| "run cc".into())?;
    if !done.status.success() {
        return skipped("no static C library here");
    }
    Ok(program.display().to_string())
}

fn static_program() -> Verdict {
    let sandbox = Sandbox::new("static_program")?;
    let program = build_static(&sandbox)?;
    let outcome = Launch::new(&sandbox, &program)
        .run(&contract())?
        .ended_with(125)?;
    ensure(outcome.text().is_empty(), || {
        "it was started all the same".into()
    })?;
    outcome.mentions("static")?;
    sandbox.check_clean()
}

fn static_allowed() -> Verdict {
    let sandbox = Sandbox::new("static_allowed")?;
    let program = build_static(&sandbox)?;
    let outcome = Launch::new(&sandbox, &program)
        .run(&allowing())?
        .succeeded()?;
    ensure(outcome.text() == "static ran\n", || {
        "its output is lost".into()
    })?;
    outcome.mentions("static")?;
    sandbox.check_clean()
}

fn static_descendant() -> Verdict {
    let sandbox = Sandbox::new("static_descendant")?;
    let program = build_static(&sandbox)?;
    let script = format!("{program} || echo refused; env -i {program} || echo refused; exit 0");
    let outcome = shell(&sandbox, &script, &contract())?;
    ensure(!outcome.text().contains("static ran"), || {
        format!(
            "a static descendant ran unpaged without leave; its output: {}",
            outcome.stderr
        )
    })?;
    outcome.mentions("static_one")?;
    let outcome = shell(&sandbox, &script, &allowing())?.succeeded()?;
    ensure(outcome.text() == "static ran\nstatic ran\n", || {
        format!("it printed {:?}", outcome.text())
    })?;
    outcome.mentions("static_one")?;
    sandbox.check_clean()
}

fn setuid_descendant() -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return skipped("a setuid program of another user can only be made by root");
    }
    let sandbox = Sandbox::new("setuid")?;
    let program = sandbox.join("setuid_one");
    std::fs::copy("/bin/echo", &program).at("copy to", &program)?;
    chown(&program, Some(65534), Some(65534)).at("give away", &program)?;
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o6755)).at("mark", &program)?;
    let script = format!("{} setuid ran || echo refused; exit 0", program.display());
    let outcome = shell(&sandbox, &script, &contract())?;
    ensure(!outcome.text().contains("setuid ran"), || {
        format!(
            "a setuid descendant ran unpaged without leave; its output: {}",
            outcome.stderr
        )
    })?;
    outcome.mentions("setuid_one")?;
    let outcome = shell(&sandbox, &script, &allowing())?.succeeded()?;
    ensure(outcome.text() == "setuid ran\n", || {
        format!("it printed {:?}", outcome.text())
    })?;
    outcome.mentions("setuid_one")?;
    sandbox.check_clean()
}

fn script() -> Verdict {
    let sandbox = Sandbox::new("script")?;
    let script = sandbox.join("script");
    std::fs::write(
        &script,
        "#!/bin/sh\ngrep -c selfpage_preload /proc/self/maps\nexit 5\n",
    )
    .at("write", &script)?;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).at("mark", &script)?;
    let outcome = Launch::new(&sandbox, &script)
        .run(&contract())?
        .ended_with(5)?;
    let count: u32 = outcome.text().trim().parse().unwrap_or(0);
    ensure(count > 0, || "the interpreter's child is not paged".into())?;
    sandbox.check_clean()
}

fn least_frames() -> Verdict {
    let sandbox = Sandbox::new("least")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let launch = Launch::new(&sandbox, &program)
        .variable("HAZARD_MB", "8")
        .limit(Duration::from_secs(120));
    let expected = launch.run(&Under::Nothing)?.succeeded()?.text();
    let said = launch
        .run(&Under::Contract(Contract::new(MIB)))?
        .succeeded()?
        .text();
    ensure(said == expected, || format!("{said} instead of {expected}"))?;
    sandbox.check_clean()
}

/// The program may end by SIGBUS or fail to allocate memory, with a message that gives the
/// reason. It must not continue with wrong contents, which the hazard reports with status 1. Kernels
/// before 6.6 have no UFFDIO_POISON.
fn small_store() -> Verdict {
    let sandbox = Sandbox::new("small_store")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    for (ram, disk, without) in [(16, 0, ""), (16, 0, "poison"), (0, 16, ""), (8, 8, "")] {
        let launch = Launch::new(&sandbox, &program)
            .variable("HAZARD_MB", "128")
            .variable("SELFPAGE_WITHOUT", without)
            .limit(Duration::from_secs(120));
        let contract = Contract::new(8 * MIB).over(ram * MIB, disk * MIB);
        let outcome = launch.run(&Under::Contract(contract))?;
        let code = outcome.status.code();
        let said = format!("it ended with {code:?}; its output: {}", outcome.stderr);
        ensure(!matches!(code, Some(0 | 1)), || said)?;
        outcome.mentions("store")?;
        ensure(outcome.left.is_empty(), || {
            format!("these outlived it: {:?}", outcome.left)
        })?;
        sandbox.check_clean()?;
    }
    Ok(())
}

/// Waits up to ten seconds.
fn wait_for(holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() && begin.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
}
