//! Several hosts on one link, each in a network namespace: they find each other, have one broker, and a
//! program pages to them while brokers end, stop and are divided.

use crate::lending_hosts::{Hosts, objects_on, servers};
use e2e::Sandbox;
use e2e::contract::Size;
use e2e::verdict::{Verdict, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use std::time::Instant;

/// After so many accesses the threads of a load page.
const UNDER_WAY: u64 = 20_000;

pub fn trials(_: Size) -> Vec<Trial> {
    trials![
        "remote_hosts":
        two_commands_and_nothing_configured => plain,
        a_machine_that_is_named_has_the_others => named,
        a_broker_killed_while_a_program_pages_loses_no_page => || broker_ends(Signal::KILL),
        a_broker_stopped_while_a_program_pages_loses_no_page => || broker_ends(Signal::STOP),
        two_brokers_of_a_divided_link_are_one_when_it_is_joined => divided,
        a_machine_that_lends_later_is_found_and_used => later,
        a_machine_that_lends_has_the_pages_of_its_own_programs_elsewhere => elsewhere,
    ]
}

fn plain() -> Verdict {
    let sandbox = Sandbox::new("hosts")?;
    let hosts = Hosts::start(&sandbox, "a", 3, 2)?;
    let program = hosts.program(2, &[])?;
    hosts.wait_for(2, "objects are on both servers", |status| {
        objects_on(status, 2) > 0
    })?;
    program.succeeds()?;
    sandbox.check_clean()
}

fn named() -> Verdict {
    let sandbox = Sandbox::new("hosts_named")?;
    let hosts = Hosts::start(&sandbox, "b", 3, 2)?;
    let near = hosts.network.address(0);
    let load = hosts.load_with(2, &["--remote", &near])?;
    hosts.wait_for(2, "objects are on both servers", |status| {
        objects_on(status, 2) > 0
    })?;
    load.stop()
}

fn broker_ends(signal: Signal) -> Verdict {
    let sandbox = Sandbox::new("hosts_broker")?;
    let name = if signal == Signal::KILL { "c" } else { "d" };
    let hosts = Hosts::start(&sandbox, name, 4, 3)?;
    let mut load = hosts.load(3)?;
    load.accesses(UNDER_WAY)?;
    let status = hosts.wait_for_servers(3, 3)?;
    let broker = hosts.broker(&status)?;
    hosts.signal(broker, signal);
    // The two that are left have one broker, and the program ends well.
    let begun = Instant::now();
    let others = hosts.wait_for(3, "two servers have another broker", |status| {
        servers(status) == 2 && hosts.broker(status).is_ok_and(|now| now != broker)
    });
    println!(
        "{signal:?}: another broker has the servers after {:.2?}",
        begun.elapsed()
    );
    let outcome = others.and_then(|_| load.accesses(UNDER_WAY));
    hosts.signal(broker, Signal::CONT);
    outcome?;
    load.stop()?;
    if signal == Signal::STOP {
        // It is one of the servers again.
        hosts.wait_for_servers(3, 3)?;
    }
    Ok(())
}

fn divided() -> Verdict {
    let sandbox = Sandbox::new("hosts_divided")?;
    let hosts = Hosts::start(&sandbox, "e", 4, 4)?;
    hosts.network.divide()?;
    for host in [0, 3] {
        hosts.wait_for(host, "each side has a broker of its own", |status| {
            servers(status) == 2
        })?;
    }
    // A program at one side pages to the servers there.
    hosts.program(0, &[])?.succeeds()?;
    hosts.network.join()?;
    let first = hosts.wait_for_servers(0, 4)?;
    let last = hosts.wait_for_servers(3, 4)?;
    ensure(
        first["cluster"]["broker"][0] == last["cluster"]["broker"][0],
        || format!("two brokers: {first} and {last}"),
    )
}

fn elsewhere() -> Verdict {
    let sandbox = Sandbox::new("hosts_elsewhere")?;
    let hosts = Hosts::start(&sandbox, "g", 3, 3)?;
    let mut load = hosts.load(0)?;
    load.accesses(UNDER_WAY)?;
    let status = hosts.wait_for(0, "objects have two copies", |status| {
        objects_on(status, 2) > 0
    })?;
    load.stop()?;
    let objects = hosts.objects(&status);
    ensure(!objects.iter().flatten().any(|host| *host == 0), || {
        format!("objects are on the program's own machine: {objects:?}")
    })
}

fn later() -> Verdict {
    let sandbox = Sandbox::new("hosts_later")?;
    let mut hosts = Hosts::start(&sandbox, "f", 3, 1)?;
    // It runs until it is stopped: a program that ends meanwhile has no objects.
    let load = hosts.load(2)?;
    hosts.wait_for(2, "objects are on the first server", |status| {
        objects_on(status, 1) > 0
    })?;
    hosts.lend(1)?;
    hosts.wait_for(2, "objects are on both servers", |status| {
        objects_on(status, 2) > 0
    })?;
    load.stop()
}
