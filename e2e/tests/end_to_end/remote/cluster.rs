//! Two hosts, as network namespaces, from their invitation to pages over links with keys.

use super::{PATIENCE, signal};
use e2e::contract::selfpage;
use e2e::verdict::{Doing, Verdict, ensure, failed, skipped, wait_for};
use e2e::{Sandbox, hazard};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// Two network namespaces with a link between them, which end with the case.
struct Network {
    names: [String; 2],
    addresses: [String; 2],
}

impl Network {
    fn new() -> Verdict<Self> {
        if !rustix::process::geteuid().is_root() {
            return skipped("network namespaces need root");
        }
        let id = std::process::id();
        let names = ["a", "b"].map(|side| format!("selfpage-{id}-{side}"));
        // A part of 10.0.0.0/8 for each process.
        let net = format!("10.213.{}", id % 250);
        let addresses = [1, 2].map(|host| format!("{net}.{host}"));
        let this = Self { names, addresses };
        let [a, b] = &this.names;
        if ip(&["netns", "add", a]).is_err() {
            return skipped("`ip netns add` does not work here (install iproute2)");
        }
        ip(&["netns", "add", b])?;
        let veth = ["type", "veth", "peer", "name", "eth0", "netns", b];
        ip(&[&["link", "add", "eth0", "netns", a][..], &veth].concat())?;
        for (name, address) in this.names.iter().zip(&this.addresses) {
            let address = format!("{address}/24");
            ip(&["-n", name, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", name, "link", "set", "eth0", "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(this)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Verdict {
    let output = Command::new("ip").args(arguments).output();
    let output = output.doing(|| "run ip (install iproute2)".into())?;
    ensure(output.status.success(), || {
        let why = String::from_utf8_lossy(&output.stderr);
        format!("ip {}: {why}", arguments.join(" "))
    })
}

/// A host: its namespace, and the folder with its key.
struct Host<'a> {
    namespace: &'a str,
    state: PathBuf,
}

impl Host<'_> {
    fn command(&self, arguments: &[&str]) -> Verdict<Command> {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", self.namespace])
            .arg(selfpage()?)
            .args(arguments)
            .env("XDG_STATE_HOME", &self.state)
            .stdin(Stdio::null());
        Ok(command)
    }

    fn output(&self, arguments: &[&str]) -> Verdict<Output> {
        let output = self.command(arguments)?.output();
        output.doing(|| format!("run selfpage {}", arguments.join(" ")))
    }

    /// What it prints; it has to succeed.
    fn succeed(&self, arguments: &[&str]) -> Verdict<String> {
        let output = self.output(arguments)?;
        ensure(output.status.success(), || {
            let said = String::from_utf8_lossy(&output.stderr);
            format!("selfpage {} failed: {said}", arguments.join(" "))
        })?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Checks that it refuses, and why.
    fn refuse(&self, arguments: &[&str], why: &str) -> Verdict {
        let output = self.output(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure(
            output.status.code() == Some(125) && said.contains(why),
            || {
                format!(
                    "selfpage {} ended with {:?} and said {said:?}, not {why:?}",
                    arguments.join(" "),
                    output.status
                )
            },
        )
    }
}

/// A process that ends with the case, and its output, which stays open for what it writes later.
struct Running(Child, Option<BufReader<ChildStdout>>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The invitation that a host prints, and the process that waits for its use.
fn invite(host: &Host<'_>) -> Verdict<(Running, String)> {
    let mut command = host.command(&["cluster", "invite", "--for", "1min"])?;
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.doing(|| "run selfpage cluster invite".into())?;
    let output = child.stdout.take().map(BufReader::new);
    let mut waiting = Running(child, output);
    let lines = waiting.1.iter_mut().flat_map(|output| output.lines());
    let invitation_in = |line: String| {
        let (_, invitation) = line.split_once("selfpage cluster join ")?;
        Some(invitation.to_owned())
    };
    if let Some(invitation) = lines.map_while(Result::ok).find_map(invitation_in) {
        return Ok((waiting, invitation));
    }
    failed("selfpage cluster invite prints no invitation")
}

fn serve(host: &Host<'_>, log: &Path) -> Verdict<Running> {
    let file = std::fs::File::create(log).at("create", log)?;
    let mut command = host.command(&["serve", "--ram", "256M"])?;
    let child = command.stderr(file).spawn();
    let running = Running(child.doing(|| "run selfpage serve".into())?, None);
    let said = || std::fs::read_to_string(log).unwrap_or_default();
    let serves = || said().contains("to the members of its cluster");
    let text = || format!("no paging server: {:?}", said());
    wait_for(PATIENCE, text, || Ok(serves().then_some(())))?;
    Ok(running)
}

/// Checks that a program that pages prints what it prints by itself.
fn pages(host: &Host<'_>, arguments: &[&str], native: &[u8]) -> Verdict {
    let mut command = host.command(arguments)?;
    let paged = command.env("HAZARD_MB", "64").output();
    let paged = paged.doing(|| "run the program, paged".into())?;
    let said = String::from_utf8_lossy(&paged.stderr);
    ensure(paged.status.success() && paged.stdout == native, || {
        format!("it ended with {:?} and said {said:?}", paged.status)
    })
}

pub fn two_hosts() -> Verdict {
    let sandbox = Sandbox::new("remote_cluster")?;
    let network = Network::new()?;
    let host = |side: usize, name: &str| Host {
        namespace: &network.names[side],
        state: sandbox.join(name),
    };
    let (near, far, stranger) = (host(0, "near"), host(1, "far"), host(1, "stranger"));
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let program = program.to_string_lossy();
    let server = network.addresses[0].as_str();
    let program = program.as_ref();
    let run = |extra: &[&'static str], named: bool| {
        let base = ["run", "--frames", "8M", "--store", "remote:128M"];
        let mut all = base.to_vec();
        if named {
            all.extend(["--remote", server]);
        }
        all.extend(extra);
        all.extend(["--", program]);
        all
    };
    let (keyed, plain) = (run(&[], true), run(&["--insecure"], true));
    let found = run(&[], false);

    far.refuse(&keyed, "selfpage cluster invite")?;
    let (mut waiting, invitation) = invite(&near)?;
    let joined = far.succeed(&["cluster", "join", &invitation])?;
    ensure(joined.contains("2 members"), || joined.clone())?;
    let status = waiting
        .0
        .wait()
        .doing(|| "wait for the invitation".into())?;
    ensure(status.success(), || format!("invite ended with {status}"))?;
    stranger.refuse(&["cluster", "join", &invitation], "was used or has expired")?;

    let log = sandbox.join("log");
    let serving = serve(&near, &log)?;
    let native = Command::new(program).env("HAZARD_MB", "64").output();
    let native = native.doing(|| "run the program".into())?;
    pages(&far, &keyed, &native.stdout)?;
    far.refuse(&plain, "leave out --insecure")?;

    // Found on the link, without its name.
    pages(&far, &found, &native.stdout)?;
    let status = far.succeed(&["remote", "status"])?;
    ensure(
        status.contains("The broker is on") && status.contains("Memory is lent by 1 machine"),
        || status.clone(),
    )?;

    let own = far.succeed(&["cluster", "show"])?;
    let own = own.lines().find(|line| line.contains("this host"));
    let key = own.and_then(|line| line.split_whitespace().next());
    near.succeed(&["cluster", "remove", key.unwrap_or_default()])?;
    far.refuse(&keyed, "does not know this host's key")?;
    signal(&serving.0, Signal::TERM);
    Ok(())
}
