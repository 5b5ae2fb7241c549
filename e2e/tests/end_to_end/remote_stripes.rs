//! Stripes: objects that a program does not use are kept once, beside their parity, and a server that ends costs no page.

use crate::lending_hosts::{Hosts, Load};
use crate::trial;
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
    let case = |name: &str, case: fn() -> Verdict| trial("remote_stripes", name, case);
    vec![
        case(
            "one_of_five_servers_with_a_stripe_killed_under_load_costs_no_page",
            || server_killed("sa", 5, &[]),
        ),
        case(
            "one_of_six_servers_with_an_encrypted_stripe_killed_under_load_costs_no_page",
            || server_killed("sb", 6, &["--encrypt"]),
        ),
        case("a_stripe_that_is_written_loses_no_page", written),
        case("a_client_killed_with_a_stripe_loses_no_page", client_killed),
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
    let status = hosts.wait_for(
        0,
        "four objects and their parity are on a server each",
        |it| {
            let objects = hosts.objects(it);
            let single = objects.iter().filter(|servers| servers.len() == 1);
            single.count() > MEMBERS && hosts.copied_to(it).is_empty()
        },
    )?;
    let objects = hosts.objects(&status);
    let copies: usize = objects.iter().map(Vec::len).sum();
    println!(
        "{copies} copies, of {} objects with their parity",
        objects.len()
    );
    let of_stripe: Vec<_> = objects.iter().filter(|it| it.len() == 1).collect();
    let mut servers: Vec<_> = of_stripe.iter().map(|it| it[0]).collect();
    servers.sort_unstable();
    servers.dedup();
    ensure(servers.len() > MEMBERS, || {
        format!("two parts of a stripe are at one server: {objects:?}")
    })?;
    Ok((hosts, load, status))
}

fn server_killed(name: &str, lending: usize, options: &[&str]) -> Verdict {
    let sandbox = Sandbox::new(&format!("stripe_{name}"))?;
    let (mut hosts, mut load, status) = striped(&sandbox, name, lending, options)?;
    let objects = hosts.objects(&status);
    let killed = objects.iter().find(|servers| servers.len() == 1);
    let killed = killed.map_or(0, |servers| servers[0]);
    load.signal(Signal::CONT)?;
    hosts.kill(killed);
    let pause = load.accesses(UNDER_WAY)?;
    println!("{UNDER_WAY} accesses in {pause:.1?} after a server's end");
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
    let (_hosts, mut load, _) = striped(&sandbox, "sd", 5, &[])?;
    load.kill_client()?;
    load.signal(Signal::CONT)?;
    load.accesses(UNDER_WAY)?;
    load.stop()
}
