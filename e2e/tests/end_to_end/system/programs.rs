//! Unmodified programs under contracts with a daemon: the same results, side by side.

use super::{Case, wait_until};
use e2e::contract::{MIB, Size, Under};
use e2e::daemon::Settings;
use e2e::noise::Noise;
use e2e::verdict::{Doing, Verdict, ensure, failed};
use e2e::{Daemon, Disks, Launch, Sandbox, hazard, workload};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    sort_gives_what_it_gives_without => sort,
    a_dict_of_cpython_is_what_it_is_without => |disks,size| { same(disks, size, "dict") },
    gcc_writes_what_it_writes_without => gcc,
    eight_threads_read_what_was_written => |disks,size| { same(disks, size, "threads") },
    programs_under_different_contracts_do_not_mix => side_by_side,
    forks_and_their_parents_keep_their_pages => forks,
    a_fork_that_the_daemon_has_no_descriptor_for_is_refused => few_descriptors,
    a_daemon_without_a_free_descriptor_ends_no_tenant_that_lives => no_descriptors,
    memory_within_a_contract_is_counted_once => counted_once,
];

/// MiB of swap that a workload is given.
const SWAP: u64 = 256;

fn same(disks: &Arc<Disks>, size: Size, name: &str) -> Verdict {
    let Some(work) = workload::ALL.iter().find(|work| work.name == name) else {
        return failed(format!("there is no workload {name}"));
    };
    let frames = size.contract().frames / MIB;
    let daemon = Daemon::start(disks, &Settings::new(2 * frames))?;
    let contract = daemon.terms(frames, SWAP).with("--disk=100ms/250ms,extra");
    // The disks are small: the full size is for the store of a tree.
    workload::compare(work, Size::Quick, contract, &|_| ())?;
    daemon.has_everything_back()
}

/// The workload of that name takes minutes over a disk alone; this is a part of it.
fn sort(disks: &Arc<Disks>, _: Size) -> Verdict {
    let sandbox = Sandbox::new("sort")?;
    let (input, mut text, mut noise) = (sandbox.join("input"), Vec::new(), Noise::new(3));
    while text.len() < 12 << 20 {
        noise.text(400, &mut text);
        text.push(b'\n');
    }
    std::fs::write(&input, &text).at("write", &input)?;
    let launch = Launch::new(&sandbox, "/usr/bin/sort")
        .args(["-S", "100M", "--parallel=2", "input"])
        .variable("LC_ALL", "C");
    same_output(disks, &launch)
}

fn gcc(disks: &Arc<Disks>, _: Size) -> Verdict {
    let sandbox = Sandbox::new("gcc")?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/hazards/fork_storm.c");
    same_output(
        disks,
        &Launch::new(&sandbox, "/usr/bin/gcc").args(["-O2", "-S", "-o", "-", source]),
    )
}

fn same_output(disks: &Arc<Disks>, launch: &Launch<'_>) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(32))?;
    let bare = launch.run(&Under::Nothing)?.succeeded()?;
    let expected = workload::digest(&bare.stdout)?;
    let contract = daemon.terms(8, 128).with("--disk=100ms/250ms,extra");
    let paged = launch.run(&Under::Contract(contract))?.succeeded()?;
    let found = workload::digest(&paged.stdout)?;
    ensure(found == expected, || format!("{found}, without {expected}"))?;
    daemon.has_everything_back()
}

/// Three programs at a time, in different frames and disk time; each result is the one it
/// has alone.
fn side_by_side(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let contracts = [
        daemon.terms(8, 64).with("--disk=25ms/250ms,extra"),
        daemon
            .terms(16, 96)
            .with("--disk=50ms/250ms,extra,laxity=5ms"),
        daemon.terms(24, 128).with("--disk=100ms/250ms,extra"),
    ];
    let sandboxes: Vec<Sandbox> = (0..3)
        .map(|_| Sandbox::new("beside"))
        .collect::<Verdict<_>>()?;
    let program = hazard::build(&sandboxes[0], "eight_threads_write_and_check", &[])?;
    let launch = |at: usize| {
        Launch::new(&sandboxes[at], &program)
            .variable("HAZARD_MB", (32 * (at + 1)).to_string())
            .limit(Duration::from_secs(200))
    };
    let alone: Vec<String> = (0..3)
        .map(|at| Ok(launch(at).run(&Under::Nothing)?.succeeded()?.text()))
        .collect::<Verdict<_>>()?;
    let running: Vec<_> = contracts
        .into_iter()
        .enumerate()
        .map(|(at, contract)| launch(at).spawn(&Under::Contract(contract)))
        .collect::<Verdict<_>>()?;
    for (running, alone) in running.into_iter().zip(&alone) {
        let said = running.wait()?.succeeded()?.within_contract()?.text();
        ensure(said == *alone, || {
            format!("it printed {said:?}, alone {alone:?}")
        })?;
    }
    daemon.has_everything_back()
}

fn forks(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(32))?;
    for (name, frames) in [
        ("fork_where_both_sides_write", 8),
        ("fork_storm", 8),
        ("privileges_dropped_then_paging", 8),
        ("forks_leave_descriptors_alone", 16),
    ] {
        let sandbox = Sandbox::new("forks")?;
        let program = hazard::build(&sandbox, name, &[])?;
        let launch = hazard::launch(&sandbox, &program, Size::Quick);
        let expected = launch.run(&Under::Nothing)?.succeeded()?.text();
        let contract = daemon.terms(frames, 128).with("--disk=100ms/250ms,extra");
        let contract = hazard::with_options(name, contract)?;
        let said = launch.run(&Under::Contract(contract))?.succeeded()?.text();
        ensure(said == expected, || {
            format!("{name}: {said:?}, alone {expected:?}")
        })?;
    }
    daemon.has_everything_back()
}

/// A child takes nine descriptors of the daemon's on two processors, one after another: for each of them some limit is
/// where there is one too few.
fn few_descriptors(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::prepare(disks, &Settings::new(32))?;
    let sandbox = Sandbox::new("few")?;
    let program = hazard::build(&sandbox, "forks_until_one_is_refused", &[])?;
    let launch = hazard::launch(&sandbox, &program, Size::Quick);
    // Above those that the daemon keeps for itself.
    for limit in 103..113 {
        let option = format!("--nofile={limit}:{limit}");
        daemon.through(&[OsStr::new("prlimit"), OsStr::new(&option)]);
        daemon.again()?;
        let contract = daemon.terms(24, 64).with("--disk=100ms/250ms,extra");
        let outcome = launch.run(&Under::Contract(contract))?.succeeded()?;
        ensure(outcome.stderr.contains("fork refused"), || {
            format!("{limit} descriptors were enough")
        })?;
        daemon.end()?;
    }
    Ok(())
}

/// A peer that connects until it is turned away: the daemon still finds that its tenant lives, and ends it when that is due.
fn no_descriptors(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::prepare(disks, &Settings::new(32))?;
    daemon.through(&[OsStr::new("prlimit"), OsStr::new("--nofile=64:64")]);
    daemon.again()?;
    let sandbox = Sandbox::new("none")?;
    let script = "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(100)";
    let launch = Launch::new(&sandbox, "/usr/bin/python3").args(["-c", script]);
    let mut running = launch.spawn(&Under::Contract(daemon.terms(8, 32)))?;
    // A tenant that is admitted, but still to show its ledger, may be refused for want of a descriptor.
    wait_until("the program is up", || {
        Ok(running.stderr().contains("up\n"))
    })?;
    let connect = || -> Result<_, Errno> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket(family, kind, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(daemon.socket())?)?;
        Ok(socket)
    };
    let idle: Result<Vec<_>, _> = (0..60).map(|_| connect()).collect();
    let idle = idle.doing(|| "connect to the daemon".into())?;
    // Several rounds of what the daemon does once a second.
    std::thread::sleep(Duration::from_secs(4));
    ensure(!running.ended(), || {
        format!("it was ended: {}\n{}", running.stderr(), daemon.said())
    })?;
    drop(running);
    wait_until("its contract is over", || {
        Ok(daemon.log().contains("its contract is over"))
    })?;
    drop(idle);
    // It refuses connections until it has closed those.
    wait_until("the daemon answers", || Ok(daemon.books().is_ok()))?;
    daemon.has_everything_back()
}

/// The daemon counts the memory of a program once, though its pager process has it too. A count
/// above the contract three times running is one that the daemon reports.
fn counted_once(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(112))?;
    let sandbox = Sandbox::new("counted")?;
    let script =
        "import time; held = bytearray(b'x' * (80 << 20)); time.sleep(8); print(held.count(b'x'))";
    let outcome = Launch::new(&sandbox, "/usr/bin/python3")
        .args(["-c", script])
        .run(&Under::Contract(daemon.terms(100, 64)))?
        .succeeded()?;
    ensure(outcome.text().trim() == (80u64 << 20).to_string(), || {
        outcome.text()
    })?;
    ensure(!daemon.log().contains("by the kernel's count"), || {
        daemon.said()
    })?;
    daemon.has_everything_back()
}
