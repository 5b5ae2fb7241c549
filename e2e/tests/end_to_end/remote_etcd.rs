//! Hosts whose broker is the one with a lease in etcd, under faults of etcd and of the broker, while a program pages.

use crate::lending_hosts::{Hosts, Load};
use e2e::Sandbox;
use e2e::contract::Size;
use e2e::etcd::Etcd;
use e2e::network::Network;
use e2e::verdict::{Verdict, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Pages accessed before and after a fault: more than the frames have.
const UNDER_WAY: u64 = 20_000;
/// Shorter than a program that needs more memory waits for it.
const OUTAGE: Duration = Duration::from_secs(5);
/// Longer than a lease lives.
const LEASE: Duration = Duration::from_secs(8);

pub fn trials(_: Size) -> Vec<Trial> {
    trials![
        "remote_etcd":
        memory_is_lent_while_etcd_is_stopped_or_gone_and_after => etcd_ends,
        a_broker_killed_while_a_program_pages_is_replaced => broker_ends,
        a_broker_killed_while_etcd_is_gone_is_replaced_when_it_is_back => both_end,
        a_broker_stopped_longer_than_its_lease_does_no_harm => broker_loses_its_lease,
    ]
}

/// Hosts 0 to 3 lend, of which three have room for two programs.
const LENDING: [usize; 4] = [0, 1, 2, 3];
/// The host that runs programs, and the one that has etcd.
const CLIENT: usize = 4;
const ETCD: usize = 5;

/// A program pages.
fn start<'a>(sandbox: &'a Sandbox, name: &str) -> Verdict<(Hosts<'a>, Etcd, Load)> {
    let network = Network::new(name, 6)?;
    let etcd = Etcd::start(sandbox, &network, ETCD)?;
    let hosts = Hosts::seated(sandbox, network, 6, &LENDING, Some(etcd.seat()))?;
    let mut load = hosts.load(CLIENT)?;
    load.accesses(UNDER_WAY)?;
    Ok((hosts, etcd, load))
}

/// The place of the broker.
fn broker(hosts: &Hosts<'_>, count: usize) -> Verdict<usize> {
    hosts.broker(&hosts.wait_for_servers(CLIENT, count)?)
}

fn etcd_ends() -> Verdict {
    let sandbox = Sandbox::new("etcd_ends")?;
    let (hosts, mut etcd, mut load) = start(&sandbox, "ea")?;
    etcd.signal(Signal::STOP);
    std::thread::sleep(LEASE);
    // Another program's permits, and the pages of this one.
    let lent = hosts
        .program(CLIENT, &[])
        .and_then(|program| program.succeeds());
    etcd.signal(Signal::CONT);
    lent?;
    load.accesses(UNDER_WAY)?;
    etcd.kill();
    std::thread::sleep(LEASE);
    hosts.program(CLIENT, &[])?.succeeds()?;
    load.accesses(UNDER_WAY)?;
    etcd.start_again(&hosts.network, ETCD)?;
    std::thread::sleep(LEASE);
    broker(&hosts, LENDING.len())?;
    hosts.program(CLIENT, &[])?.succeeds()?;
    load.stop()
}

fn broker_ends() -> Verdict {
    let sandbox = Sandbox::new("etcd_broker")?;
    let (mut hosts, _etcd, mut load) = start(&sandbox, "ed")?;
    let first = broker(&hosts, LENDING.len())?;
    hosts.kill(first);
    let begun = Instant::now();
    let status = hosts.wait_for(CLIENT, "another host is broker", |status| {
        hosts.broker(status).is_ok_and(|it| it != first)
    })?;
    println!("another broker {:.1?} after a kill", begun.elapsed());
    let second = hosts.broker(&status)?;
    load.accesses(UNDER_WAY)?;
    hosts.program(CLIENT, &[])?.succeeds()?;
    ensure(broker(&hosts, LENDING.len() - 1)? == second, || {
        "the broker has changed once more".into()
    })?;
    load.stop()
}

fn both_end() -> Verdict {
    let sandbox = Sandbox::new("etcd_both")?;
    let (mut hosts, mut etcd, mut load) = start(&sandbox, "eb")?;
    let first = broker(&hosts, LENDING.len())?;
    etcd.kill();
    hosts.kill(first);
    std::thread::sleep(OUTAGE);
    etcd.start_again(&hosts.network, ETCD)?;
    let begun = Instant::now();
    let second = broker(&hosts, LENDING.len() - 1)?;
    println!(
        "another broker {:.1?} after etcd was started",
        begun.elapsed()
    );
    ensure(first != second, || {
        "the broker that was killed is back".into()
    })?;
    load.accesses(UNDER_WAY)?;
    hosts.program(CLIENT, &[])?.succeeds()?;
    load.stop()
}

fn broker_loses_its_lease() -> Verdict {
    let sandbox = Sandbox::new("etcd_lease")?;
    let (hosts, _etcd, mut load) = start(&sandbox, "ec")?;
    let first = broker(&hosts, LENDING.len())?;
    hosts.signal(first, Signal::STOP);
    let others = hosts.wait_for(CLIENT, "another host is broker", |status| {
        hosts.broker(status).is_ok_and(|it| it != first)
    });
    let went_on = others.and_then(|_| load.accesses(UNDER_WAY));
    hosts.signal(first, Signal::CONT);
    went_on?;
    // The first is one of the second's servers then, and not the other way round.
    let second = broker(&hosts, LENDING.len())?;
    ensure(first != second, || {
        "the broker without a lease has the servers".into()
    })?;
    hosts.program(CLIENT, &[])?.succeeds()?;
    load.accesses(UNDER_WAY)?;
    load.stop()
}
