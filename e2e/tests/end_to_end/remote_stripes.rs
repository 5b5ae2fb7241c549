//! Stripes: objects that a program does not use are kept once, beside their parities, and as many servers that end as
//! there are parities cost no page.

use crate::lending_hosts::{Hosts, Load};
use e2e::Sandbox;
use e2e::contract::Size;
use e2e::verdict::{Verdict, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;

/// Pages accessed before and after: more than the frames have.
const UNDER_WAY: u64 = 20_000;
/// Objects of a stripe.
const MEMBERS: usize = 4;

pub fn trials(_: Size) -> Vec<Trial> {
    trials![
        "remote_stripes":
        one_of_five_servers_with_a_stripe_killed_under_load_costs_no_page =>
            || servers_killed("sa", 5, 1, &[]),
        one_of_six_servers_with_an_encrypted_stripe_killed_under_load_costs_no_page =>
            || servers_killed("sb", 6, 1, &["--encrypt"]),
        two_of_six_servers_with_a_stripe_killed_at_once_under_load_cost_no_page =>
            || servers_killed("se", 6, 2, &[]),
        a_stripe_that_is_written_loses_no_page => written,
        a_client_and_then_a_server_killed_with_a_stripe_cost_no_page => client_killed,
    ]
}

/// A program that pages to so many hosts, and is stopped until there is a stripe of its objects. The program is at the
/// host after them.
fn striped<'a>(
    sandbox: &'a Sandbox,
    name: &str,
    lending: usize,
    options: &[&str],
) -> Verdict<(Hosts<'a>, Load, Value)> {
    let hosts = Hosts::start(sandbox, name, lending + 1, lending)?;
    let options = [&["--stripe-after", "2"], options].concat();
    let mut load = hosts.load_with(lending, &options)?;
    load.accesses(3 * UNDER_WAY)?;
    load.signal(Signal::STOP)?;
    let parts = if lending < 6 {
        MEMBERS + 1
    } else {
        MEMBERS + 2
    };
    let status = hosts.wait_for(
        0,
        "four objects and their parities are on a server each",
        |it| {
            let objects = hosts.objects(it);
            let single = objects.iter().filter(|servers| servers.len() == 1);
            single.count() >= parts && hosts.copied_to(it).is_empty()
        },
    )?;
    let objects = hosts.objects(&status);
    let shown = status.to_string();
    let parities = shown.matches("\"redundancy\":\"Parity\"").count();
    ensure(parities >= parts - MEMBERS, || {
        format!("{parities} parities are shown: {shown}")
    })?;
    let copies: usize = objects.iter().map(Vec::len).sum();
    println!(
        "{copies} copies, of {} objects with their parity",
        objects.len()
    );
    let of_stripe: Vec<_> = objects.iter().filter(|it| it.len() == 1).collect();
    let mut servers: Vec<_> = of_stripe.iter().map(|it| it[0]).collect();
    servers.sort_unstable();
    servers.dedup();
    ensure(servers.len() >= parts, || {
        format!("two parts of a stripe are at one server: {objects:?}")
    })?;
    Ok((hosts, load, status))
}

/// So many servers with parts of the stripe, of which no object that is in none has both of its copies.
fn servers_of_stripe(objects: &[Vec<usize>], count: usize) -> Vec<usize> {
    let single = objects.iter().filter(|servers| servers.len() == 1);
    let mut chosen = Vec::new();
    for server in single.map(|servers| servers[0]) {
        let with: Vec<_> = chosen.iter().copied().chain([server]).collect();
        let of_others = objects.iter().filter(|servers| servers.len() > 1);
        let mut of_others = of_others.map(|servers| servers.iter().all(|at| with.contains(at)));
        if chosen.len() < count && !of_others.any(|is_lost| is_lost) {
            chosen = with;
        }
    }
    chosen
}

fn servers_killed(name: &str, lending: usize, count: usize, options: &[&str]) -> Verdict {
    let sandbox = Sandbox::new(&format!("stripe_{name}"))?;
    let (mut hosts, mut load, status) = striped(&sandbox, name, lending, options)?;
    let objects = hosts.objects(&status);
    let killed = servers_of_stripe(&objects, count);
    ensure(killed.len() == count, || {
        format!("no {count} servers may be killed: {objects:?}")
    })?;
    load.signal(Signal::CONT)?;
    killed.iter().for_each(|host| hosts.kill(*host));
    let pause = load.accesses(UNDER_WAY)?;
    println!("{UNDER_WAY} accesses in {pause:.1?} after the servers' end");
    let said = load.said();
    ensure(said.contains("is made again from the others"), || {
        format!("no object was made again: {said}")
    })?;
    load.stop()
}

fn written() -> Verdict {
    let sandbox = Sandbox::new("stripe_written")?;
    let (_hosts, mut load, _) = striped(&sandbox, "sc", 5, &[])?;
    load.signal(Signal::CONT)?;
    let pause = load.accesses(UNDER_WAY)?;
    println!("{UNDER_WAY} accesses of a stripe in {pause:.1?}");
    load.stop()
}

fn client_killed() -> Verdict {
    let sandbox = Sandbox::new("stripe_client")?;
    let (mut hosts, mut load, status) = striped(&sandbox, "sd", 5, &[])?;
    let objects = hosts.objects(&status);
    load.kill_client()?;
    let goes_on = hosts.wait_for(0, "another process of the client goes on", |it| {
        hosts.objects(it).len() == objects.len()
    })?;
    let killed = servers_of_stripe(&hosts.objects(&goes_on), 1);
    killed.iter().for_each(|host| hosts.kill(*host));
    load.signal(Signal::CONT)?;
    load.accesses(UNDER_WAY)?;
    load.stop()
}
