//! Faults of hosts and of the network, one a case, while a program pages and checks that each page that it reads is the
//! last that it wrote.

use crate::lending_hosts::{Hosts, Load, objects_on, servers};
use e2e::Sandbox;
use e2e::contract::Size;
use e2e::network::Network;
use e2e::network::relay::Delay;
use e2e::verdict::{Verdict, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Pages accessed before and after a fault: more than the frames have.
const UNDER_WAY: u64 = 20_000;
/// The same where each access takes a round trip of some milliseconds.
const UNDER_WAY_FAR: u64 = 4_000;
/// How often a client is killed.
const KILLS: u32 = 8;
/// Longer than a server that is silent is waited for.
const SILENCE: Duration = Duration::from_secs(6);
/// A link to another building.
const FAR: Delay = Delay {
    least: Duration::from_millis(2),
    spread: Duration::ZERO,
};
/// A link on which packets pass each other.
const DISORDERLY: Delay = Delay {
    least: Duration::from_micros(200),
    spread: Duration::from_millis(2),
};

pub fn trials(_: Size) -> Vec<Trial> {
    trials![
        "remote_faults":
        a_server_that_is_cut_off_costs_no_page => cut_off,
        a_client_that_is_cut_off_costs_no_page => client_cut_off,
        a_client_that_is_killed_again_and_again_costs_no_page => client_killed,
        a_client_and_a_server_killed_at_once_cost_no_page => client_and_server_killed,
        a_stopped_server_that_goes_on_is_not_read_for_what_it_missed => stopped,
        a_server_killed_while_objects_move_to_it_costs_no_page => || killed_in_a_move(End::To),
        a_server_killed_while_objects_move_away_from_it_costs_no_page =>
            || killed_in_a_move(End::From),
        two_brokers_at_once_cost_no_page => two_brokers,
        a_broker_that_is_cut_off_from_servers_costs_a_client_that_reaches_them_no_copy =>
            broker_cut_off_from_servers,
        packets_that_are_late_and_pass_each_other_cost_no_page => disorder,
        a_client_that_walks_away_is_served_by_near_servers => walk_away,
    ]
}

/// A server that is killed: the one that objects move to, or one that they leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    To,
    From,
}

/// Waits until the program pages, and each of its objects is whole on two servers.
fn wait_for_copies(hosts: &Hosts<'_>, load: &mut Load, at: usize) -> Verdict<Value> {
    load.accesses(UNDER_WAY_FAR)?;
    hosts.wait_for(at, "each object is on two servers", |status| {
        let all = hosts.objects(status).len();
        all > 0 && objects_on(status, 2) == all
    })
}

fn cut_off() -> Verdict {
    let sandbox = Sandbox::new("faults_cut")?;
    let hosts = Hosts::start(&sandbox, "ga", 4, 3)?;
    let mut load = hosts.load(3)?;
    let status = wait_for_copies(&hosts, &mut load, 3)?;
    let cut = hosts.objects(&status)[0][0];
    hosts.network.cut(cut)?;
    // Without it, by the other copies, and with new ones.
    load.accesses(UNDER_WAY)?;
    std::thread::sleep(SILENCE);
    load.accesses(UNDER_WAY)?;
    hosts.network.mend(cut)?;
    load.accesses(UNDER_WAY)?;
    hosts.wait_for_servers(3, 3)?;
    load.stop()
}

fn client_cut_off() -> Verdict {
    let sandbox = Sandbox::new("faults_client")?;
    let hosts = Hosts::start(&sandbox, "gb", 4, 3)?;
    let mut load = hosts.load(3)?;
    wait_for_copies(&hosts, &mut load, 0)?;
    hosts.network.cut(3)?;
    std::thread::sleep(SILENCE);
    hosts.network.mend(3)?;
    load.accesses(UNDER_WAY)?;
    load.stop()
}

fn client_killed() -> Verdict {
    let sandbox = Sandbox::new("faults_client_killed")?;
    let hosts = Hosts::start(&sandbox, "gi", 3, 2)?;
    let mut load = hosts.load(2)?;
    load.accesses(UNDER_WAY_FAR)?;
    for _ in 0..KILLS {
        load.kill_client()?;
        let pause = load.accesses(UNDER_WAY_FAR)?;
        println!("{UNDER_WAY_FAR} accesses in {pause:.1?} after a kill");
    }
    wait_for_copies(&hosts, &mut load, 2)?;
    // What the next process knows of copies is true: one server alone has all pages.
    load.kill_client()?;
    wait_for_copies(&hosts, &mut load, 2)?;
    hosts.signal(0, Signal::STOP);
    let alone = load.accesses(UNDER_WAY);
    hosts.signal(0, Signal::CONT);
    alone?;
    load.stop()
}

fn client_and_server_killed() -> Verdict {
    let sandbox = Sandbox::new("faults_both_killed")?;
    let mut hosts = Hosts::start(&sandbox, "gj", 4, 3)?;
    let mut load = hosts.load(3)?;
    let status = wait_for_copies(&hosts, &mut load, 3)?;
    let objects = hosts.objects(&status).len();
    let killed = hosts.objects(&status)[0][0];
    hosts.kill(killed);
    load.kill_client()?;
    load.accesses(UNDER_WAY)?;
    let at = (0..3).find(|host| *host != killed).unwrap_or(0);
    hosts.wait_for(
        at,
        "each object is whole on the two that are left",
        |status| {
            let all = hosts.objects(status).len();
            all >= objects && objects_on(status, 2) == all
        },
    )?;
    load.accesses(UNDER_WAY)?;
    load.stop()
}

fn stopped() -> Verdict {
    let sandbox = Sandbox::new("faults_stopped")?;
    let mut hosts = Hosts::start(&sandbox, "gc", 3, 2)?;
    let mut load = hosts.load(2)?;
    wait_for_copies(&hosts, &mut load, 2)?;
    hosts.signal(1, Signal::STOP);
    // The client reports its copies once a second: what it shows next is later than the silence.
    let missed = load.accesses(UNDER_WAY).and_then(|_| {
        hosts.wait_for(2, "copies at the stopped server are given up", |status| {
            objects_on(status, 2) < hosts.objects(status).len()
        })
    });
    hosts.signal(1, Signal::CONT);
    missed?;
    // A broker that was stopped with the server shows what it knew before, until it hears of the other one.
    std::thread::sleep(SILENCE);
    wait_for_copies(&hosts, &mut load, 2)?;
    // What is left has every write, also those while it was stopped.
    hosts.kill(0);
    load.accesses(UNDER_WAY)?;
    load.stop()
}

fn killed_in_a_move(end: End) -> Verdict {
    let sandbox = Sandbox::new("faults_move")?;
    let name = if end == End::To { "gd" } else { "ge" };
    // Hosts 0 to 2 are far from 3 and 4, where the client is.
    let network = Network::distant(name, 5, FAR)?;
    let mut hosts = Hosts::on(&sandbox, network, 5, &[0, 1])?;
    let mut load = hosts.load(4)?;
    let status = wait_for_copies(&hosts, &mut load, 0)?;
    let objects = hosts.objects(&status).len();
    hosts.lend(3)?;
    hosts.wait_for(0, "an object moves to the near server", |status| {
        hosts.copied_to(status).contains(&3)
    })?;
    let killed = if end == End::To { 3 } else { 0 };
    hosts.kill(killed);
    load.accesses(UNDER_WAY_FAR)?;
    let left: &[usize] = if end == End::To { &[0, 1] } else { &[1, 3] };
    hosts.wait_for(1, "each object is whole on those that are left", |status| {
        let there = hosts.objects(status);
        let is_whole = |servers: &Vec<usize>| left.iter().all(|host| servers.contains(host));
        there.len() >= objects && there.iter().all(is_whole)
    })?;
    load.accesses(UNDER_WAY_FAR)?;
    load.stop()
}

fn two_brokers() -> Verdict {
    let sandbox = Sandbox::new("faults_brokers")?;
    let network = Network::new("gf", 5)?;
    let hosts = Hosts::on(&sandbox, network, 5, &[0, 1, 3, 4])?;
    let mut load = hosts.load(2)?;
    wait_for_copies(&hosts, &mut load, 2)?;
    hosts.network.divide()?;
    for host in [0, 3] {
        hosts.wait_for(host, "each side has a broker of its own", |status| {
            servers(status) == 2
        })?;
    }
    hosts.network.join()?;
    hosts.wait_for_servers(0, 4)?;
    load.accesses(UNDER_WAY)?;
    load.stop()
}

fn broker_cut_off_from_servers() -> Verdict {
    let sandbox = Sandbox::new("faults_apart")?;
    let mut hosts = Hosts::start(&sandbox, "gi", 4, 3)?;
    let mut load = hosts.load(3)?;
    let status = wait_for_copies(&hosts, &mut load, 0)?;
    let broker = hosts.broker(&status)?;
    let others = (0..3).filter(|host| *host != broker);
    let others: Vec<_> = others.collect();
    hosts.network.separate(broker, others.iter().copied())?;
    for (host, count) in [(broker, 1), (others[0], 2)] {
        hosts.wait_for(host, "each side has a broker of its own", |status| {
            servers(status) == count
        })?;
    }
    // What it had gets other copies, at servers of both brokers.
    hosts.kill(others[1]);
    load.accesses(UNDER_WAY_FAR)?;
    std::thread::sleep(SILENCE);
    hosts.wait_for(broker, "each object is on two servers again", |status| {
        let all = hosts.objects(status).len();
        all > 0 && objects_on(status, 2) == all
    })?;
    load.accesses(UNDER_WAY_FAR)?;
    load.stop()
}

fn disorder() -> Verdict {
    let sandbox = Sandbox::new("faults_disorder")?;
    // The client is alone at its side.
    let network = Network::distant("gg", 3, DISORDERLY)?;
    let hosts = Hosts::on(&sandbox, network, 3, &[0, 1])?;
    let mut load = hosts.load(2)?;
    wait_for_copies(&hosts, &mut load, 0)?;
    load.accesses(UNDER_WAY_FAR)?;
    let overtaken = hosts.network.overtaken();
    ensure(overtaken > 0, || "no packet has passed another".to_owned())?;
    println!("{overtaken} packets were overtaken");
    load.stop()
}

fn walk_away() -> Verdict {
    let sandbox = Sandbox::new("faults_walk")?;
    // 0 to 2 are at the one side, 3 and 4 at the other; the client is 2.
    let network = Network::distant("gh", 5, FAR)?;
    let mut hosts = Hosts::on(&sandbox, network, 5, &[0, 1, 3, 4])?;
    let mut load = hosts.load(2)?;
    load.accesses(UNDER_WAY_FAR)?;
    let are_at = |hosts: &Hosts<'_>, status: &Value, near: [usize; 2]| {
        let objects = hosts.objects(status);
        let is_near = |servers: &Vec<usize>| servers.iter().any(|host| near.contains(host));
        !objects.is_empty() && objects.iter().all(is_near)
    };
    hosts.wait_for(0, "each object is at a near server", |status| {
        are_at(&hosts, status, [0, 1])
    })?;
    load.accesses(UNDER_WAY_FAR)?;
    hosts.network.walk(2)?;
    let walked = Instant::now();
    load.accesses(UNDER_WAY_FAR)?;
    println!(
        "the program goes on {:.1?} after the walk",
        walked.elapsed()
    );
    hosts.wait_for(3, "each object is at a near server again", |status| {
        are_at(&hosts, status, [3, 4])
    })?;
    println!(
        "near servers have each object {:.1?} after the walk",
        walked.elapsed()
    );
    load.accesses(UNDER_WAY)?;
    load.stop()
}
