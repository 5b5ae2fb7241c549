//! Several hosts on one link, each in a network namespace: they find each other, have one broker, and a
//! program pages to them while brokers end, stop and are divided.

use crate::trial;
use e2e::contract::{Size, selfpage};
use e2e::network::Network;
use e2e::verdict::{Doing, Verdict, ensure, failed};
use e2e::{Sandbox, hazard};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// After this long the threads of a program page.
const UNDER_WAY: Duration = Duration::from_millis(1500);

pub fn trials(_: Size) -> Vec<Trial> {
    vec![
        trial("remote_hosts", "two_commands_and_nothing_configured", plain),
        trial(
            "remote_hosts",
            "a_machine_that_is_named_has_the_others",
            named,
        ),
        trial(
            "remote_hosts",
            "a_broker_killed_while_a_program_pages_loses_no_page",
            || broker_ends(Signal::KILL),
        ),
        trial(
            "remote_hosts",
            "a_broker_stopped_while_a_program_pages_loses_no_page",
            || broker_ends(Signal::STOP),
        ),
        trial(
            "remote_hosts",
            "two_brokers_of_a_divided_link_are_one_when_it_is_joined",
            divided,
        ),
        trial(
            "remote_hosts",
            "a_machine_that_lends_later_is_found_and_used",
            later,
        ),
    ]
}

/// Hosts that lend memory, by their place in the network.
struct Hosts<'a> {
    sandbox: &'a Sandbox,
    network: Network,
    servers: Vec<Option<Child>>,
}

impl<'a> Hosts<'a> {
    /// A network of `count` hosts, of which the first `lending` lend memory.
    fn start(sandbox: &'a Sandbox, name: &str, count: usize, lending: usize) -> Verdict<Self> {
        let network = Network::new(name, count)?;
        let mut hosts = Self {
            sandbox,
            network,
            servers: std::iter::repeat_with(|| None).take(count).collect(),
        };
        for host in 0..lending {
            hosts.lend(host)?;
        }
        hosts.wait_for_servers(count - 1, lending)?;
        Ok(hosts)
    }

    /// `selfpage serve` on a host, as the README has it.
    fn lend(&mut self, host: usize) -> Verdict {
        let log = self.sandbox.join(&format!("serve{host}"));
        let file = File::create(&log).doing(|| format!("create {}", log.display()))?;
        let child = self
            .network
            .command(host, &selfpage()?)
            .args(["serve", "--ram", "256M", "--insecure"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .doing(|| "start a paging server".into())?;
        self.servers[host] = Some(child);
        Ok(())
    }

    /// What `selfpage remote status` has, asked on a host.
    fn status(&self, host: usize) -> Verdict<Option<Value>> {
        let output = self
            .network
            .command(host, &selfpage()?)
            .args(["remote", "status", "--insecure", "--json"])
            .output()
            .doing(|| "ask for the status".into())?;
        Ok(serde_json::from_slice(&output.stdout).ok())
    }

    fn wait_for(&self, host: usize, what: &str, holds: impl Fn(&Value) -> bool) -> Verdict<Value> {
        let begun = Instant::now();
        loop {
            let status = self.status(host)?;
            if let Some(status) = status.as_ref().filter(|status| holds(status)) {
                return Ok(status.clone());
            }
            if begun.elapsed() > PATIENCE {
                let logs: Vec<_> = (0..self.servers.len())
                    .map(|host| self.sandbox.join(&format!("serve{host}")))
                    .map(|log| std::fs::read_to_string(log).unwrap_or_default())
                    .collect();
                return failed(format!(
                    "not within {PATIENCE:?}: {what}; the status is {status:?}, the servers said {logs:?}"
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the broker that a host finds has so many servers, and as many hosts are known.
    fn wait_for_servers(&self, host: usize, count: usize) -> Verdict<Value> {
        let what = format!("one broker has {count} servers");
        self.wait_for(host, &what, |status| {
            servers(status) == count && members(status) == count
        })
    }

    /// The place of the broker in the network.
    fn broker(&self, status: &Value) -> Verdict<usize> {
        let broker = &status["cluster"]["broker"][0];
        let members = status["cluster"]["members"].as_array();
        let member = members.into_iter().flatten();
        let mut member = member.filter(|member| &member["server"]["host"] == broker);
        let address = member.next().and_then(|member| member["paging"].as_str());
        let address = address.unwrap_or_default();
        let is_at =
            |host: &usize| address.starts_with(&format!("{}:", self.network.address(*host)));
        match (0..self.servers.len()).find(is_at) {
            Some(host) => Ok(host),
            None => failed(format!("no broker among the hosts: {status}")),
        }
    }

    /// Eight threads that write and check eight times their frames, over the memory of the hosts.
    fn program(&self, host: usize, options: &[&str]) -> Verdict<Program> {
        let program = hazard::build(self.sandbox, "eight_threads_write_and_check", &[])?;
        let log = self.sandbox.join("run");
        let file = File::create(&log).doing(|| format!("create {}", log.display()))?;
        let child = self
            .network
            .command(host, &selfpage()?)
            .args(["run", "--frames", "8M", "--store", "ram:1M+remote:128M"])
            .arg("--insecure")
            .args(options)
            .arg("--")
            .arg(program)
            .env("HAZARD_MB", "64")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .doing(|| "start a program".into())?;
        Ok(Program { child, log })
    }
}

impl Drop for Hosts<'_> {
    fn drop(&mut self) {
        for server in self.servers.iter_mut().flatten() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// A program that pages.
struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has ended, without an error.
    fn succeeds(mut self) -> Verdict {
        let begun = Instant::now();
        while self.is_running() {
            if begun.elapsed() > 4 * PATIENCE {
                return failed(format!("the program does not end: {:?}", self.said()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let status = self.child.wait().doing(|| "wait for the program".into())?;
        ensure(status.success(), || {
            format!("the program ended with {status}: {}", self.said())
        })
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn length(value: &Value) -> usize {
    value.as_array().map_or(0, Vec::len)
}

fn servers(status: &Value) -> usize {
    length(&status["servers"])
}

fn members(status: &Value) -> usize {
    length(&status["cluster"]["members"])
}

/// Objects of the only client that are whole on at least so many servers.
fn objects_on(status: &Value, count: usize) -> usize {
    let clients = status["clients"].as_array().into_iter().flatten();
    let objects =
        clients.flat_map(|client| client["usage"]["objects"].as_array().into_iter().flatten());
    objects
        .filter(|object| length(&object["servers"]) >= count)
        .count()
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
    let program = hosts.program(2, &["--remote", &near])?;
    hosts.wait_for(2, "objects are on both servers", |status| {
        objects_on(status, 2) > 0
    })?;
    program.succeeds()
}

fn broker_ends(signal: Signal) -> Verdict {
    let sandbox = Sandbox::new("hosts_broker")?;
    let name = if signal == Signal::KILL { "c" } else { "d" };
    let mut hosts = Hosts::start(&sandbox, name, 4, 3)?;
    let mut program = hosts.program(3, &[])?;
    std::thread::sleep(UNDER_WAY);
    let status = hosts.wait_for_servers(3, 3)?;
    let broker = hosts.broker(&status)?;
    ensure(program.is_running(), || {
        format!("the program has ended: {}", program.said())
    })?;
    if let Some(child) = &hosts.servers[broker] {
        let _ = kill_process(Pid::from_child(child), signal);
    }
    // The two that are left have one broker, and the program ends well.
    let begun = Instant::now();
    let others = hosts.wait_for(3, "two servers have another broker", |status| {
        servers(status) == 2 && hosts.broker(status).is_ok_and(|now| now != broker)
    });
    println!(
        "{signal:?}: another broker has the servers after {:.2?}",
        begun.elapsed()
    );
    let outcome = others.and_then(|_| program.succeeds());
    if let Some(child) = &mut hosts.servers[broker] {
        let _ = kill_process(Pid::from_child(child), Signal::CONT);
    }
    outcome?;
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

fn later() -> Verdict {
    let sandbox = Sandbox::new("hosts_later")?;
    let mut hosts = Hosts::start(&sandbox, "f", 3, 1)?;
    let program = hosts.program(2, &[])?;
    hosts.wait_for(2, "objects are on the first server", |status| {
        objects_on(status, 1) > 0
    })?;
    hosts.lend(1)?;
    hosts.wait_for(2, "objects are on both servers", |status| {
        objects_on(status, 2) > 0
    })?;
    program.succeeds()
}
