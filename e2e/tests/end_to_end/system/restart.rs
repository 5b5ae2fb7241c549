//! Daemons that end and start again, and the effects on their tenants.

use super::{Case, FRAMES, field, for_ever, wait_until};
use e2e::contract::{MIB, Size, Under};
use e2e::daemon::Settings;
use e2e::verdict::{Doing, Verdict, ensure};
use e2e::{Daemon, Disks, Launch, Running, Sandbox, hazard};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    a_daemon_asked_to_end_ends_and_its_successor_goes_on => successor,
    contracts_that_were_set_hold_after_a_restart => remembered,
    one_whose_contract_is_lowered_while_its_daemon_is_killed_has_its_notice_and_lives => lowered,
    tenants_that_end_while_there_is_no_daemon_leave_everything => gone_meanwhile,
    a_daemon_with_less_than_is_promised_does_not_start_and_harms_no_tenant => less,
    one_that_has_more_than_is_managed_now_gives_it_up_in_time_and_lives => less_than_owned,
    one_that_does_not_come_back_at_once_has_its_time_whatever_it_has_resident => awaited,
    a_daemon_that_has_lost_its_disks_figures_serves_tenants_that_have_all_of_its_swap => figures_lost,
    programs_that_are_let_in_when_their_daemon_is_killed_start_under_the_next => let_in_by_the_next,
];

/// Moments at which a daemon is killed while it admits a program.
const MOMENTS: u32 = 12;

/// From one moment to the next: a swap file of this size is wiped in some of them.
const APART: Duration = Duration::from_millis(8);

fn successor(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::start(disks, &Settings::new(32))?;
    let sandbox = Sandbox::new("successor")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let launch = Launch::new(&sandbox, &program)
        .variable("HAZARD_MB", "64")
        .limit(Duration::from_secs(100));
    let expected = launch.run(&Under::Nothing)?.succeeded()?.text();
    let contract = daemon.terms(8, 96).with("--disk=100ms/250ms,extra");
    let running = launch.spawn(&Under::Contract(contract))?;
    daemon.says("has frames", 1)?;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(200));
        let status = daemon.end()?;
        ensure(!daemon.socket().exists(), || {
            "the daemon's socket is left behind".into()
        })?;
        ensure(status.success(), || format!("it ended with {status}"))?;
        daemon.again()?;
    }
    let outcome = running.wait()?.succeeded()?;
    let said = outcome.text();
    ensure(said == expected, || {
        format!("it printed {said:?}, alone {expected:?}")
    })?;
    outcome.mentions("reconnected to the daemon")?;
    daemon.has_everything_back()
}

fn remembered(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::start(
        disks,
        &Settings::new(64).memory("reduction_notice = \"100ms\""),
    )?;
    let sandbox = Sandbox::new("remembered")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = daemon.terms(8, 96).lending(24 * MIB);
    let running = for_ever(&sandbox, &program, 48).spawn(&Under::Contract(contract))?;
    daemon.says("has frames", 1)?;
    let (frames, disk) = ("12M+4M", "75ms/250ms,extra");
    wait_until(
        "it has attached its ledger, and its contract is set",
        || {
            let set = daemon.contract(&["set", "1", "--frames", frames, "--disk", disk])?;
            Ok(set.is_ok())
        },
    )?;
    daemon.kill()?;
    daemon.again()?;
    daemon.says("tenant 1 is back", 1)?;
    let shown = daemon.contract(&["show"])?.unwrap_or_default();
    ensure(
        shown.contains("12MiB+4MiB") && shown.contains("75ms/250ms,extra"),
        || shown.clone(),
    )?;
    wait_until("it has its frames", || {
        Ok(field(&daemon, 1, "owned")?.is_some_and(|n| (11 * FRAMES..=16 * FRAMES).contains(&n)))
    })?;
    drop(running);
    daemon.has_everything_back()
}

/// A daemon that is killed during the notice leaves a tenant with more frames than its next
/// contract. The next daemon revokes them, after a notice, as the first would have.
fn lowered(disks: &Arc<Disks>, _: Size) -> Verdict {
    let settings = |notice| Settings::new(64).memory(notice);
    let mut daemon = Daemon::start(disks, &settings("reduction_notice = \"600s\""))?;
    let sandbox = Sandbox::new("lowered")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = daemon.terms(32, 96).with("--disk=100ms/250ms,extra");
    let mut running = for_ever(&sandbox, &program, 48).spawn(&Under::Contract(contract))?;
    daemon.says("has frames", 1)?;
    wait_until("it has its frames", || {
        Ok(field(&daemon, 1, "owned")? > Some(28 * FRAMES))
    })?;
    let set = daemon.contract(&["set", "1", "--frames", "16M", "--disk", "120ms/250ms"])?;
    ensure(
        set.as_ref().is_ok_and(|text| {
            text.contains("frames 32MiB, disk 120ms/250ms,extra")
                && text.contains("pending   frames 16MiB")
        }),
        || format!("{set:?}"),
    )?;
    for round in 1..=2 {
        daemon.kill()?;
        daemon.again()?;
        daemon.says("tenant 1 is back", round)?;
        let shown = daemon.contract(&["show"])?.unwrap_or_default();
        ensure(
            shown.contains("frames 32MiB") && shown.contains("pending   frames 16MiB"),
            || format!("after restart {round}: {shown}"),
        )?;
        ensure(field(&daemon, 1, "owned")? > Some(28 * FRAMES), || {
            format!("after restart {round} it has lost frames: {shown}")
        })?;
    }
    daemon.kill()?;
    daemon.configure(&settings("reduction_notice = \"100ms\""))?;
    daemon.again()?;
    wait_until("its frames are released", || {
        Ok(field(&daemon, 1, "owned")?.is_some_and(|n| (1..=16 * FRAMES).contains(&n)))
    })?;
    // The daemon is killed during or just after the revocation: the next one continues it.
    daemon.kill()?;
    daemon.again()?;
    daemon.says("tenant 1 is back", 4)?;
    let shown = daemon.contract(&["show"])?.unwrap_or_default();
    ensure(
        shown.contains("frames 16MiB") && !shown.contains("pending"),
        || shown.clone(),
    )?;
    gets_on(&daemon, &sandbox, &mut running)?;
    drop(running);
    daemon.has_everything_back()
}

fn gone_meanwhile(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandboxes = [Sandbox::new("gone")?, Sandbox::new("gone")?];
    let mut running = Vec::new();
    for sandbox in &sandboxes {
        let program = hazard::build(sandbox, "fork_storm", &[])?;
        let contract = daemon.terms(16, 64);
        running.push(for_ever(sandbox, &program, 32).spawn(&Under::Contract(contract))?);
    }
    daemon.says("has frames", 2)?;
    std::thread::sleep(Duration::from_millis(300));
    daemon.kill()?;
    running.pop();
    daemon.again()?;
    daemon.says("is back", 1)?;
    wait_until("one is left", || Ok(daemon.tenants()?.len() == 1))?;
    daemon.kill()?;
    running.pop();
    daemon.again()?;
    daemon.has_everything_back()
}

/// The guarantees of living tenants come before the configuration.
fn less(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::start(disks, &Settings::new(64).memory("restart_grace = \"30s\""))?;
    let sandbox = Sandbox::new("less")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = daemon.terms(8, 96);
    let mut running = for_ever(&sandbox, &program, 24).spawn(&Under::Contract(contract))?;
    daemon.says("has frames", 1)?;
    // A program that has not started yet when its daemon ends does not start.
    wait_until(
        "it has frames",
        || Ok(field(&daemon, 1, "owned")? > Some(0)),
    )?;
    daemon.kill()?;
    daemon.configure(&Settings::new(4))?;
    ensure(daemon.again().is_err(), || {
        "it started with less than is promised".into()
    })?;
    daemon.says("tenant 1 (/bin/sh) of an earlier daemon has frames 8MiB", 1)?;
    daemon.configure(&Settings::new(16))?;
    daemon.again()?;
    daemon.says("tenant 1 is back", 1)?;
    let alive = !running.ended();
    ensure(alive, || format!("it ended: {}", running.stderr()))?;
    drop(running);
    daemon.has_everything_back()
}

/// Optimistic frames beyond what the new configuration manages are revoked from their tenant,
/// which continues.
fn less_than_owned(disks: &Arc<Disks>, size: Size) -> Verdict {
    // No optimistic frames until the grace period is over.
    let settings = |managed| Settings::new(managed).memory("restart_grace = \"5s\"");
    let mut daemon = Daemon::start(disks, &settings(96))?;
    let sandbox = Sandbox::new("owned")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = daemon.terms(8, 192).lending(72 * MIB);
    let contract = contract.with("--disk=100ms/250ms,extra");
    let mut running = for_ever(&sandbox, &program, 96).spawn(&Under::Contract(contract))?;
    let rounds = sandbox.join("rounds");
    let done = || std::fs::metadata(&rounds).map_or(0, |file| file.len());
    for round in 1..=size.scale(10, 2) {
        wait_until("it has optimistic frames", || {
            Ok(field(&daemon, 1, "owned")? > Some(64 * FRAMES))
        })?;
        daemon.kill()?;
        daemon.configure(&settings(24))?;
        daemon.again()?;
        daemon.says("more than fit into the", round as usize)?;
        wait_until("it has given them back", || {
            Ok(field(&daemon, 1, "owned")? <= Some(24 * FRAMES))
        })?;
        let before = done();
        super::wait_at_most(Duration::from_secs(60), "it gets on", || {
            let alive = !running.ended();
            ensure(alive, || {
                format!("it ended: {}\n{}", running.stderr(), daemon.said())
            })?;
            Ok(done() > before + 1)
        })?;
        daemon.kill()?;
        daemon.configure(&settings(96))?;
        daemon.again()?;
    }
    drop(running);
    daemon.has_everything_back()
}

/// A tenant that stands still when the daemon is started again owns no frames there yet.
fn awaited(disks: &Arc<Disks>, _: Size) -> Verdict {
    let settings = Settings::new(96).memory("restart_grace = \"100s\"");
    let mut daemon = Daemon::start(disks, &settings)?;
    let sandbox = Sandbox::new("awaited")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = daemon.terms(8, 192).lending(64 * MIB);
    let contract = contract.with("--disk=100ms/250ms,extra");
    let mut running = for_ever(&sandbox, &program, 96).spawn(&Under::Contract(contract))?;
    wait_until("it has optimistic frames", || {
        Ok(field(&daemon, 1, "resident")? > Some(56 * FRAMES))
    })?;
    let processes = running.processes().into_iter();
    let tree: Vec<_> = processes.filter_map(|it| Pid::from_raw(it.pid)).collect();
    let signal = |signal| {
        let mut sent = tree.iter().map(|pid| kill_process(*pid, signal));
        sent.try_for_each(|sent| sent.doing(|| "stop or resume a process".into()))
    };
    signal(Signal::STOP)?;
    daemon.kill()?;
    daemon.again()?;
    // Long enough for several counts of what it has resident.
    std::thread::sleep(Duration::from_secs(5));
    signal(Signal::CONT)?;
    daemon.says("tenant 1 is back", 1)?;
    ensure(!daemon.log().contains("frames resident"), || daemon.said())?;
    ensure(!running.ended(), || {
        format!("it ended: {}", running.stderr())
    })?;
    drop(running);
    daemon.has_everything_back()
}

/// Waits until a program of `for_ever` has done two more rounds.
fn gets_on(daemon: &Daemon, sandbox: &Sandbox, running: &mut Running) -> Verdict {
    let rounds = sandbox.join("rounds");
    let done = || std::fs::metadata(&rounds).map_or(0, |file| file.len());
    let before = done();
    wait_until("it gets on", || {
        ensure(!running.ended(), || {
            format!("it ended: {}\n{}", running.stderr(), daemon.said())
        })?;
        Ok(done() > before + 1)
    })
}

/// No room is left to measure the disk on.
fn figures_lost(disks: &Arc<Disks>, _: Size) -> Verdict {
    let settings = Settings::new(32).memory("restart_grace = \"100s\"");
    let mut daemon = Daemon::start(disks, &settings)?;
    let sandbox = Sandbox::new("figures")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let all = daemon.books()?["swap_free"].as_u64().unwrap_or(0);
    let contract = daemon.terms(8, all / MIB);
    let mut running = for_ever(&sandbox, &program, 24).spawn(&Under::Contract(contract))?;
    wait_until(
        "it has frames",
        || Ok(field(&daemon, 1, "owned")? > Some(0)),
    )?;
    let left = daemon.books()?["swap_free"].as_u64();
    ensure(left == Some(0), || format!("{left:?} of swap is free"))?;
    daemon.kill()?;
    daemon.lose_figures();
    daemon.configure(&settings)?;
    daemon.again()?;
    daemon.says("tenant 1 is back", 1)?;
    gets_on(&daemon, &sandbox, &mut running)?;
    drop(running);
    daemon.has_everything_back()
}

fn let_in_by_the_next(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::start(disks, &Settings::new(32))?;
    let mut began = 0;
    for moment in 1..=MOMENTS {
        let sandbox = Sandbox::new("let_in")?;
        let contract = daemon.terms(16, 192).with("--fault-rate=auto");
        let running = Launch::new(&sandbox, "/bin/echo")
            .arg("started")
            .spawn(&Under::Contract(contract))?;
        std::thread::sleep(APART * moment);
        daemon.kill()?;
        daemon.again()?;
        let outcome = running.wait()?;
        // It had not sent its request yet, and no daemon listened.
        if outcome.stderr.contains("no daemon listens") {
            continue;
        }
        began += 1;
        let outcome = outcome.succeeded()?;
        ensure(outcome.text() == "started\n", || {
            format!("killed after {:?}: {:?}", APART * moment, outcome.text())
        })?;
    }
    ensure(began > 0, || {
        "no program asked before the daemon ended".into()
    })?;
    daemon.has_everything_back()
}
