//! Operations of an administrator: show, set, reload, and broken configurations.

use super::{Case, FRAMES, field, for_ever, wait_until};
use e2e::contract::{MIB, Size, Under};
use e2e::daemon::Settings;
use e2e::verdict::{Doing, Verdict, ensure};
use e2e::{Daemon, Disks, Launch, Sandbox, hazard};
use rustix::process::{Resource, Rlimit, Signal, prlimit};
use std::path::Path;
use std::sync::Arc;

pub const CASES: &[(&str, Case)] = cases![
    contracts_are_shown_and_set_while_programs_run => set,
    a_guarantee_is_not_lowered_below_what_a_program_has_locked => set_below_locked,
    a_reload_keeps_all_tenants => reload,
    a_broken_configuration_is_refused_by_file_and_line => broken,
    a_check_of_a_configuration_refuses_what_a_daemon_could_not_have_and_makes_nothing => checked,
    a_second_daemon_at_the_same_socket_does_not_start => twice,
    a_swap_file_that_holds_something_else_is_left_alone => occupied,
    a_swap_file_larger_than_the_disk_is_refused_and_removed => too_large,
    what_the_file_table_cannot_record_is_in_force_and_is_recorded_later => unrecorded,
];

fn set(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(
        disks,
        &Settings::new(64).memory("reduction_notice = \"1s\""),
    )?;
    let sandbox = Sandbox::new("set")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    // Admitted for 24 MiB at most, 16 of them optimistic.
    let contract = daemon.terms(8, 96).lending(16 * MIB);
    let mut running = for_ever(&sandbox, &program, 48).spawn(&Under::Contract(contract))?;
    daemon.says("has frames", 1)?;
    wait_until("it has its optimistic frames", || {
        Ok(field(&daemon, 1, "owned")? > Some(12 * FRAMES))
    })?;
    let shown = daemon.contract(&["show"])?.unwrap_or_default();
    ensure(
        shown.contains("8MiB+16MiB") && shown.contains("resident beyond 8 MiB"),
        || format!("shown is {shown}"),
    )?;
    // Less: optimistic frames at once, guaranteed frames after the notice.
    let changed = daemon.contract(&["set", "1", "--frames", "6M", "--disk", "50ms/250ms"])?;
    ensure(
        changed
            .as_ref()
            .is_ok_and(|text| text.contains("50ms/250ms")),
        || format!("{changed:?}"),
    )?;
    wait_until("its frames are released", || {
        Ok(field(&daemon, 1, "owned")? <= Some(6 * FRAMES))
    })?;
    // More again, up to the admitted maximum.
    let changed = daemon.contract(&["set", "1", "--frames", "20M"])?;
    ensure(changed.is_ok(), || format!("{changed:?}"))?;
    wait_until("it has more", || {
        Ok(field(&daemon, 1, "owned")? > Some(16 * FRAMES))
    })?;
    for (asked, word) in [
        (["set", "1", "--frames", "40M"], "24MiB"),
        (
            ["set", "1", "--frames", "32K"],
            "of tenant 1 are guaranteed",
        ),
        (["set", "1", "--disk", "240ms/250ms"], "9"),
        (["set", "1", "--disk", "600ms/250ms"], "a slice of 600ms"),
        (["set", "1", "--disk", "1ms/0s"], "a slice of 1ms"),
        (["set", "7", "--frames", "8M"], "no tenant 7"),
    ] {
        let refused = daemon.contract(&asked)?;
        ensure(
            refused.as_ref().is_err_and(|text| text.contains(word)),
            || format!("{asked:?}: {refused:?} does not contain {word:?}"),
        )?;
    }
    ensure(!running.ended(), || {
        format!("it ended: {}", running.stderr())
    })?;
    drop(running);
    daemon.has_everything_back()
}

fn set_below_locked(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(
        disks,
        &Settings::new(64).memory("reduction_notice = \"1s\""),
    )?;
    let sandbox = Sandbox::new("locked")?;
    let program = hazard::build(&sandbox, "locked_memory_beside_memory_that_is_paged", &[])?;
    let running = Launch::new(&sandbox, &program)
        .variable("HAZARD_MB", "24")
        .variable("HAZARD_LOCKED_MB", "10")
        .variable("HAZARD_SECONDS", "6")
        .spawn(&Under::Contract(daemon.terms(16, 96)))?;
    wait_until("its frames are full", || {
        Ok(field(&daemon, 1, "used")? > Some(14 * FRAMES))
    })?;
    let refused = daemon.contract(&["set", "1", "--frames", "8M"])?;
    ensure(
        refused
            .as_ref()
            .is_err_and(|text| text.contains("10") && text.contains("locked")),
        || format!("{refused:?}"),
    )?;
    let changed = daemon.contract(&["set", "1", "--frames", "13M"])?;
    ensure(changed.is_ok(), || format!("{changed:?}"))?;
    running.wait()?.succeeded()?;
    daemon.has_everything_back()
}

fn reload(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("reload")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = daemon.terms(16, 96).lending(32 * MIB);
    let mut running = for_ever(&sandbox, &program, 64).spawn(&Under::Contract(contract))?;
    daemon.says("has frames", 1)?;
    wait_until("it has its optimistic frames", || {
        Ok(field(&daemon, 1, "owned")? > Some(32 * FRAMES))
    })?;
    let managed = |daemon: &Daemon| Ok(daemon.books()?["managed"].as_u64());
    let reread = |settings: &Settings, said: &str| {
        let before = daemon.log().matches(said).count();
        daemon.configure(settings)?;
        daemon.signal(Signal::HUP)?;
        daemon.says(said, before + 1)
    };
    // This does not revoke optimistic frames.
    let stays = "memory.frames stays as it was";
    reread(&Settings::new(24), stays)?;
    let set = daemon.contract(&["set", "1", "--frames", "16M"])?;
    ensure(set.is_ok(), || format!("{set:?}"))?;
    wait_until("its frames are released", || {
        Ok(field(&daemon, 1, "owned")? <= Some(16 * FRAMES))
    })?;
    reread(&Settings::new(24), "was read again")?;
    wait_until("less is managed", || {
        Ok(managed(&daemon)? == Some(24 * FRAMES))
    })?;
    // A value below the sum of the guarantees is refused.
    reread(&Settings::new(8), stays)?;
    ensure(managed(&daemon)? == Some(24 * FRAMES), || {
        format!("{:?}", managed(&daemon))
    })?;
    daemon.configure_text("socket = \"/x\"\n[memory]\nframes = 7\n")?;
    daemon.signal(Signal::HUP)?;
    daemon.says("the configuration stays as it was", 1)?;
    daemon.says("config.toml:3:", 1)?;
    ensure(managed(&daemon)? == Some(24 * FRAMES), || {
        "a broken file changed something".into()
    })?;
    reread(&Settings::new(128), "was read again")?;
    wait_until("more is managed", || {
        Ok(managed(&daemon)? == Some(128 * FRAMES))
    })?;
    let set = daemon.contract(&["set", "1", "--frames", "48M"])?;
    ensure(set.is_ok(), || format!("{set:?}"))?;
    wait_until("it has more", || {
        Ok(field(&daemon, 1, "owned")? > Some(32 * FRAMES))
    })?;
    ensure(!running.ended(), || {
        format!("it ended: {}", running.stderr())
    })?;
    drop(running);
    daemon.has_everything_back()
}

fn broken(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::prepare(disks, &Settings::new(64))?;
    let cases = [
        ("socket = 7\n", "config.toml:1:"),
        ("[disk]\nswap = \"/x\"\nsise = \"4G\"\n", "config.toml:3:"),
        (
            "[memory]\nframes = \"many\"\n[disk]\nswap = \"/x\"\n",
            "config.toml:2:",
        ),
        (
            "[memory]\nreduction_notice = \"30\"\n[disk]\nswap = \"/x\"\n",
            "config.toml:2:",
        ),
        ("[disk]\nswap = \"/x\"\ncapacity = 7.5\n", "between"),
        (
            "[disk]\nswap = \"/x\"\n[[allow]]\nframes = \"1G\"\n",
            "names no peer",
        ),
        ("[disk", "config.toml:1:"),
        ("", "disk"),
    ];
    for (text, word) in cases {
        daemon.configure_text(text)?;
        let before = daemon.log().len();
        daemon.launch()?;
        let mut status = None;
        wait_until("it ends", || {
            status = daemon.ended();
            Ok(status.is_some())
        })?;
        let log = daemon.log();
        let said = log.get(before..).unwrap_or_default();
        ensure(
            status.is_some_and(|s| s.code().is_some_and(|code| code != 0)),
            || format!("{text:?}: {status:?}"),
        )?;
        ensure(said.contains(word) && !said.contains("panicked"), || {
            format!("{text:?}: {word:?} is not in {said:?}")
        })?;
    }
    std::fs::remove_file(daemon.config()).at("remove", &daemon.config())?;
    daemon.launch()?;
    wait_until("it ends", || Ok(daemon.ended().is_some()))?;
    daemon.says("cannot read", 1)
}

fn checked(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::prepare(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("checked")?;
    let precious = sandbox.join("precious");
    std::fs::write(&precious, vec![b'p'; 8 << 20]).at("write", &precious)?;
    let new = sandbox.join("new").display().to_string();
    let precious = precious.display().to_string();
    let memory = "[memory]\nframes = \"900000G\"\n";
    for (before, swap, size, word) in [
        (memory, new.as_str(), "64M", "900000GiB"),
        ("", "/dev/nosuch", "64M", "no such device"),
        ("", &new, "900000G", "free"),
        ("", &precious, "8M", "holds data"),
        ("", &precious, "900G", "900GiB"),
        ("", "/proc/swap", "64M", "/proc"),
        ("", "/nosuch/folder/swap", "64M", "/nosuch"),
        ("", "/tmp", "64M", "directory"),
    ] {
        daemon.configure_text(&format!(
            "{before}[disk]\nswap = \"{swap}\"\nsize = \"{size}\"\n"
        ))?;
        let refused = daemon.check()?;
        ensure(
            refused.as_ref().is_err_and(|why| why.contains(word)),
            || format!("{swap} of {size}: {refused:?} does not contain {word:?}"),
        )?;
    }
    // The daemon makes the file, and a folder of its own.
    let own = sandbox.join("selfpage");
    for swap in [&new, &own.join("swap").display().to_string()] {
        daemon.configure_text(&format!("[disk]\nswap = \"{swap}\"\nsize = \"64M\"\n"))?;
        let fits = daemon.check()?;
        ensure(
            fits.is_ok() && !Path::new(&new).exists() && !own.exists(),
            || format!("{fits:?}"),
        )?;
    }
    let mut daemon = daemon;
    // Of another size neither the check nor the daemon uses it.
    let disk = daemon.disk().to_owned();
    does_not_start_on(&daemon, &disk, "2G")?;
    let refused = daemon.check()?;
    let word = "leave the size out";
    ensure(refused.is_err_and(|why| why.contains(word)), || {
        "another size is not refused".into()
    })?;
    daemon.says(word, 1)?;
    // One that is in use is not disturbed.
    daemon.configure(&Settings::new(64))?;
    daemon.again()?;
    let used = daemon.check()?;
    ensure(used.is_ok(), || format!("{used:?}"))?;
    daemon.has_everything_back()
}

fn twice(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let done = daemon
        .command()?
        .status()
        .doing(|| "start a second daemon".into())?;
    ensure(done.code().is_some_and(|code| code != 0), || {
        format!("{done}")
    })?;
    daemon.says("another daemon does already", 1)?;
    daemon.has_everything_back()
}

/// Insists that a daemon with its swap file there, of that size, ends with a failure.
fn does_not_start_on(daemon: &Daemon, path: &Path, size: &str) -> Verdict {
    daemon.configure_text(&format!(
        "socket = \"{}\"\n[disk]\nswap = \"{}\"\nsize = \"{size}\"\n",
        daemon.socket().display(),
        path.display()
    ))?;
    let done = daemon
        .command()?
        .status()
        .doing(|| "start a daemon".into())?;
    ensure(done.code().is_some_and(|code| code != 0), || {
        format!("{done}")
    })
}

fn occupied(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::prepare(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("occupied")?;
    let path = sandbox.join("precious");
    let precious = vec![b'p'; 8 << 20];
    std::fs::write(&path, &precious).at("write", &path)?;
    does_not_start_on(&daemon, &path, "64M")?;
    let now = std::fs::read(&path).at("read", &path)?;
    ensure(now == precious, || {
        "what was in the file is overwritten".into()
    })?;
    daemon.says("precious", 1)
}

fn too_large(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::prepare(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("too_large")?;
    let path = sandbox.join("swap");
    does_not_start_on(&daemon, &path, "900000G")?;
    ensure(!path.exists(), || {
        "the file of a disk that failed is left".into()
    })?;
    ensure(
        daemon.log().len() > 40 && !daemon.log().contains("panicked"),
        || daemon.log(),
    )
}

/// The kernel refuses each write of the daemon to a file: the table's, its log's, and new channels' memory. So the
/// programs have their channels before, and page nothing.
fn unrecorded(disks: &Arc<Disks>, _: Size) -> Verdict {
    const PROGRAM: &str = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(100)";
    let mut daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("unrecorded")?;
    let start = |name: &str| -> Verdict<_> {
        let running = sandbox.join(name);
        let launch = Launch::new(&sandbox, "/usr/bin/python3")
            .args(["-c", PROGRAM])
            .arg(&running);
        let contract = daemon.terms(8, 96).lending(16 * MIB);
        let started = launch.spawn(&Under::Contract(contract))?;
        wait_until("it runs", || Ok(running.exists()))?;
        Ok(started)
    };
    let (stays, ends) = (start("stays")?, start("ends")?);
    let limit_files = |current| {
        let limit = Rlimit {
            current,
            maximum: None,
        };
        let set = prlimit(Some(daemon.pid()?), Resource::Fsize, limit);
        set.doing(|| "limit the daemon's files".into()).map(drop)
    };
    limit_files(Some(0))?;
    let changed = daemon.contract(&["set", "1", "--frames", "6M"])?;
    ensure(
        changed.as_ref().is_err_and(|why| {
            why.contains("has the contract that was asked for, but it is not recorded")
        }),
        || format!("{changed:?}"),
    )?;
    drop(ends);
    wait_until("the other has ended", || Ok(daemon.tenants()?.len() == 1))?;
    limit_files(None)?;
    daemon.says("the contract of tenant 1 is recorded", 1)?;
    daemon.says("is free", 1)?;
    daemon.kill()?;
    daemon.again()?;
    daemon.says("tenant 1 is back", 1)?;
    let shown = daemon.contract(&["show"])?.unwrap_or_default();
    ensure(shown.contains("pending   frames 6MiB"), || {
        format!("shown is {shown}")
    })?;
    drop(stays);
    daemon.has_everything_back()
}
