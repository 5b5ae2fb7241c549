//! Hosts in network namespaces that lend memory, and programs that page to them.

use e2e::contract::selfpage;
use e2e::network::Network;
use e2e::processes::{self, Tree};
use e2e::verdict::{Doing, Verdict, ensure, failed};
use e2e::{Sandbox, hazard};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Hosts that lend memory, by their place in the network.
pub struct Hosts<'a> {
    sandbox: &'a Sandbox,
    pub network: Network,
    pub servers: Vec<Option<Child>>,
    /// The value of `--seat`, where it is given.
    seat: Option<String>,
}

impl<'a> Hosts<'a> {
    /// A network of `count` hosts, of which the first `lending` lend memory.
    pub fn start(sandbox: &'a Sandbox, name: &str, count: usize, lending: usize) -> Verdict<Self> {
        let lending: Vec<_> = (0..lending).collect();
        Self::on(sandbox, Network::new(name, count)?, count, &lending)
    }

    /// Hosts of a network, of which some lend memory.
    pub fn on(
        sandbox: &'a Sandbox,
        network: Network,
        count: usize,
        lending: &[usize],
    ) -> Verdict<Self> {
        Self::seated(sandbox, network, count, lending, None)
    }

    /// The same, with a seat of their broker.
    pub fn seated(
        sandbox: &'a Sandbox,
        network: Network,
        count: usize,
        lending: &[usize],
        seat: Option<String>,
    ) -> Verdict<Self> {
        let mut hosts = Self {
            sandbox,
            network,
            servers: std::iter::repeat_with(|| None).take(count).collect(),
            seat,
        };
        for host in lending {
            hosts.lend(*host)?;
        }
        hosts.wait_for_servers(lending[0], lending.len())?;
        Ok(hosts)
    }

    /// `selfpage serve` on a host, as the README has it.
    pub fn lend(&mut self, host: usize) -> Verdict {
        let log = self.sandbox.join(&format!("serve{host}"));
        let file = File::create(&log).doing(|| format!("create {}", log.display()))?;
        let child = self
            .network
            .command(host, &selfpage()?)
            .args(["serve", "--ram", "256M", "--insecure"])
            .args(self.seat.iter().flat_map(|seat| ["--seat", seat]))
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

    pub fn wait_for(
        &self,
        host: usize,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Verdict<Value> {
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
    pub fn wait_for_servers(&self, host: usize, count: usize) -> Verdict<Value> {
        let what = format!("one broker has {count} servers");
        self.wait_for(host, &what, |status| {
            servers(status) == count && members(status) == count
        })
    }

    /// The place of the broker in the network.
    pub fn broker(&self, status: &Value) -> Verdict<usize> {
        let broker = &status["cluster"]["broker"][0];
        match self.place(status, broker) {
            Some(host) => Ok(host),
            None => failed(format!("no broker among the hosts: {status}")),
        }
    }

    /// Eight threads that write and check eight times their frames, over the memory of the hosts.
    pub fn program(&self, host: usize, options: &[&str]) -> Verdict<Program> {
        let program = hazard::build(self.sandbox, "eight_threads_write_and_check", &[])?;
        let mut command = self.run(host, "ram:1M+remote:128M", options)?;
        command.arg("--").arg(program);
        self.spawn(command)
    }

    /// Threads that write pages, read them again in no order, and check that each is the last written, until they
    /// are stopped.
    pub fn load(&self, host: usize) -> Verdict<Load> {
        self.load_with(host, &[])
    }

    /// The same, with options of `run`.
    pub fn load_with(&self, host: usize, options: &[&str]) -> Verdict<Load> {
        let program = hazard::build(self.sandbox, "each_page_is_the_last_written", &[])?;
        let path = self.sandbox.join("control");
        let control = File::options();
        let control = control
            .clone()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .at("make", &path)?;
        control.set_len(16).at("enlarge", &path)?;
        let mut command = self.run(host, "remote:128M", options)?;
        command.arg("--").arg(program).env("HAZARD_CONTROL", &path);
        let program = self.spawn(command)?;
        Ok(Load { program, control })
    }

    fn run(&self, host: usize, store: &str, options: &[&str]) -> Verdict<Command> {
        let mut command = self.network.command(host, &selfpage()?);
        command
            .args(["run", "--frames", "8M", "--store", store, "--insecure"])
            .args(options)
            .env("HAZARD_MB", "64");
        Ok(command)
    }

    fn spawn(&self, mut command: Command) -> Verdict<Program> {
        let log = self.sandbox.join("run");
        let file = File::create(&log).at("make", &log)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        let child = command.spawn().doing(|| "start a program".into())?;
        Ok(Program { child, log })
    }

    /// Sends a host's server a signal.
    pub fn signal(&self, host: usize, signal: Signal) {
        if let Some(child) = &self.servers[host] {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Kills a host's server.
    pub fn kill(&mut self, host: usize) {
        if let Some(mut child) = self.servers[host].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The places in the network of the servers that have each object of the only client whole.
    pub fn objects(&self, status: &Value) -> Vec<Vec<usize>> {
        let whole = |object: &Value| self.places(status, &object["servers"]);
        objects(status).map(whole).collect()
    }

    /// The places of the servers that objects of the only client are being copied to.
    pub fn copied_to(&self, status: &Value) -> Vec<usize> {
        objects(status)
            .flat_map(|object| self.places(status, &object["copying_to"]))
            .collect()
    }

    fn places(&self, status: &Value, servers: &Value) -> Vec<usize> {
        let servers = servers.as_array().into_iter().flatten();
        servers
            .filter_map(|server| self.place(status, server))
            .collect()
    }

    /// The place in the network of a server.
    fn place(&self, status: &Value, server: &Value) -> Option<usize> {
        let members = status["cluster"]["members"].as_array();
        let mut member = members.into_iter().flatten();
        let member = member.find(|member| &member["server"]["host"] == server)?;
        let address = member["paging"].as_str()?;
        let is_at =
            |host: &usize| address.starts_with(&format!("{}:", self.network.address(*host)));
        (0..self.servers.len()).find(is_at)
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
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has ended, without an error.
    pub fn succeeds(mut self) -> Verdict {
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

    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that pages until it is stopped.
pub struct Load {
    program: Program,
    /// The pages that it has accessed, and whether it is to stop.
    control: File,
}

impl Load {
    /// Pages accessed so far.
    pub fn accessed(&self) -> Verdict<u64> {
        let mut bytes = [0; 8];
        let read = self.control.read_exact_at(&mut bytes, 0);
        read.doing(|| "read what a program has done".into())?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Waits until so many more pages are accessed, and returns how long that took.
    pub fn accesses(&mut self, more: u64) -> Verdict<Duration> {
        let (begun, before) = (Instant::now(), self.accessed()?);
        while self.accessed()? < before + more {
            ensure(self.program.is_running(), || {
                format!("the program has ended: {}", self.program.said())
            })?;
            ensure(begun.elapsed() < PATIENCE, || {
                format!("the program stands still: {}", self.program.said())
            })?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(begun.elapsed())
    }

    /// What its run has said.
    pub fn said(&self) -> String {
        self.program.said()
    }

    /// Sends a signal to the program itself, and not to what pages for it.
    pub fn signal(&self, signal: Signal) -> Verdict {
        let root = processes::find(self.program.child.id() as i32);
        let mut signalled = 0;
        for process in root.map(Tree::new).iter_mut().flat_map(Tree::look) {
            let command = process.command();
            let is_program = command.contains("each_page_is_the_last_written")
                && !command.contains(" run ")
                && !process.is_pager();
            if is_program && let Some(pid) = Pid::from_raw(process.pid) {
                let _ = kill_process(pid, signal);
                signalled += 1;
            }
        }
        ensure(signalled > 0, || "the program does not run".to_owned())
    }

    /// Kills the process of its remote client, not the keeper, which starts another.
    pub fn kill_client(&self) -> Verdict {
        let root = processes::find(self.program.child.id() as i32);
        let Some(mut tree) = root.map(Tree::new) else {
            return failed("the program has ended");
        };
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let mut clients = tree.look();
            clients.retain(|process| process.command().contains("remote-client"));
            clients.sort_by_key(|process| (process.started, process.pid));
            if let [_, client] = clients[..] {
                client.kill();
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        failed("no remote client runs beside its keeper")
    }

    /// Has it read every page once more. It succeeds if each was the last written.
    pub fn stop(self) -> Verdict {
        let written = self.control.write_all_at(&1u64.to_le_bytes(), 8);
        written.doing(|| "stop a program".into())?;
        self.program.succeeds()
    }
}

fn length(value: &Value) -> usize {
    value.as_array().map_or(0, Vec::len)
}

pub fn servers(status: &Value) -> usize {
    length(&status["servers"])
}

pub fn members(status: &Value) -> usize {
    length(&status["cluster"]["members"])
}

/// Objects of the only client that are whole on at least so many servers.
pub fn objects_on(status: &Value, count: usize) -> usize {
    objects(status)
        .filter(|object| length(&object["servers"]) >= count)
        .count()
}

fn objects(status: &Value) -> impl Iterator<Item = &Value> {
    let clients = status["clients"].as_array().into_iter().flatten();
    clients.flat_map(|client| client["usage"]["objects"].as_array().into_iter().flatten())
}
