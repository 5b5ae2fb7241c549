//! Several hosts on one machine: network namespaces on one link, which can be cut in two.
//!
//! The link is two bridges in a namespace of their own, joined by a pair of interfaces; to take one of the
//! pair down divides the hosts of the one bridge from those of the other.

use crate::verdict::{Doing, Verdict, failed, skipped};
use std::path::PathBuf;
use std::process::Command;

/// The hosts, and the link between them. All of it goes with this.
pub struct Network {
    name: String,
    hosts: usize,
}

impl Network {
    /// A network of so many hosts, the first half of them at the one side of the link. `name` is short,
    /// and no other network's.
    pub fn new(name: &str, hosts: usize) -> Verdict<Self> {
        let name = format!("sp{}{name}", std::process::id());
        if !rustix::process::geteuid().is_root() {
            return skipped("network namespaces need root");
        }
        let network = Self { name, hosts };
        if let Err(why) = network.ip(&format!("netns add {}", network.link())) {
            return skipped(format!("no network namespaces here: {why}"));
        }
        let link = network.link();
        network.ip(&format!("-n {link} link add side0 type bridge"))?;
        network.ip(&format!("-n {link} link add side1 type bridge"))?;
        network.ip(&format!(
            "-n {link} link add join0 type veth peer name join1"
        ))?;
        for side in 0..2 {
            network.ip(&format!("-n {link} link set join{side} master side{side}"))?;
            network.ip(&format!("-n {link} link set join{side} up"))?;
            network.ip(&format!("-n {link} link set side{side} up"))?;
        }
        for host in 0..hosts {
            network.add(host)?;
        }
        Ok(network)
    }

    fn add(&self, host: usize) -> Verdict {
        let (link, name) = (self.link(), self.namespace(host));
        let side = usize::from(host >= self.hosts.div_ceil(2));
        let address = self.address(host);
        self.ip(&format!("netns add {name}"))?;
        self.ip(&format!(
            "-n {link} link add to{host} type veth peer name net0 netns {name}"
        ))?;
        self.ip(&format!("-n {link} link set to{host} master side{side}"))?;
        self.ip(&format!("-n {link} link set to{host} up"))?;
        self.ip(&format!("-n {name} addr add {address}/24 dev net0"))?;
        self.ip(&format!("-n {name} link set net0 up"))?;
        self.ip(&format!("-n {name} link set lo up"))
    }

    fn link(&self) -> String {
        format!("{}n", self.name)
    }

    fn namespace(&self, host: usize) -> String {
        format!("{}h{host}", self.name)
    }

    fn ip(&self, arguments: &str) -> Verdict {
        let output = Command::new("ip")
            .args(arguments.split(' '))
            .output()
            .doing(|| "run ip (iproute2)".into())?;
        match output.status.success() {
            true => Ok(()),
            false => failed(format!(
                "ip {arguments}: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    /// A host's address.
    pub fn address(&self, host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }

    /// A command that runs a program on a host.
    pub fn command(&self, host: usize, program: &PathBuf) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.namespace(host)))
            .arg("--")
            .arg(program);
        command
    }

    /// Divides the sides of the link.
    pub fn divide(&self) -> Verdict {
        self.ip(&format!("-n {} link set join0 down", self.link()))
    }

    /// Joins them again.
    pub fn join(&self) -> Verdict {
        self.ip(&format!("-n {} link set join0 up", self.link()))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in 0..self.hosts {
            let _ = self.ip(&format!("netns del {}", self.namespace(host)));
        }
        let _ = self.ip(&format!("netns del {}", self.link()));
    }
}
