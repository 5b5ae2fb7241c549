//! Several hosts on one machine: network namespaces on one link, which can be cut in two.
//!
//! The link is two bridges in a namespace of their own, its sides, joined by a pair of interfaces or by a relay that
//! delays packets ([`relay`]); to take one of the pair down divides the hosts of the one side from those of the other.

pub mod relay;

use crate::verdict::{Doing, Verdict, failed, skipped};
use relay::{Delay, Relay};
use std::path::PathBuf;
use std::process::Command;

/// The hosts, and the link between them. All of it goes with this.
pub struct Network {
    name: String,
    hosts: Vec<Host>,
    relay: Option<Relay>,
}

#[derive(Clone, Copy)]
struct Host {
    side: usize,
    /// The last part of its address.
    address: usize,
}

impl Network {
    /// A network of so many hosts, the first half of them at the one side of the link. `name` is short,
    /// and no other network's.
    pub fn new(name: &str, hosts: usize) -> Verdict<Self> {
        let network = Self::unjoined(name, hosts)?;
        let link = network.link();
        network.ip(&format!(
            "-n {link} link add join0 type veth peer name join1"
        ))?;
        network.join_sides("join")?;
        Ok(network)
    }

    /// The same, and packets between the two sides take some time.
    pub fn distant(name: &str, hosts: usize, delay: Delay) -> Verdict<Self> {
        let mut network = Self::unjoined(name, hosts)?;
        let devices = ["far0", "far1"].map(str::to_owned);
        network.relay = Some(Relay::start(&network.link(), devices, delay)?);
        network.join_sides("far")?;
        Ok(network)
    }

    fn join_sides(&self, devices: &str) -> Verdict {
        let link = self.link();
        for side in 0..2 {
            self.ip(&format!(
                "-n {link} link set {devices}{side} master side{side}"
            ))?;
            self.ip(&format!("-n {link} link set {devices}{side} up"))?;
        }
        Ok(())
    }

    fn unjoined(name: &str, hosts: usize) -> Verdict<Self> {
        let name = format!("sp{}{name}", std::process::id());
        if !rustix::process::geteuid().is_root() {
            return skipped("network namespaces need root");
        }
        let host = |number| Host {
            side: usize::from(number >= hosts.div_ceil(2)),
            address: number + 1,
        };
        let network = Self {
            name,
            hosts: (0..hosts).map(host).collect(),
            relay: None,
        };
        if let Err(why) = network.ip(&format!("netns add {}", network.link())) {
            return skipped(format!("no network namespaces here: {why}"));
        }
        let link = network.link();
        network.ip(&format!("-n {link} link add side0 type bridge"))?;
        network.ip(&format!("-n {link} link add side1 type bridge"))?;
        for side in 0..2 {
            network.ip(&format!("-n {link} link set side{side} up"))?;
        }
        for host in 0..hosts {
            network.add(host)?;
        }
        Ok(network)
    }

    fn add(&self, host: usize) -> Verdict {
        let (link, name) = (self.link(), self.namespace(host));
        let side = self.hosts[host].side;
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
        format!("10.77.0.{}", self.hosts[host].address)
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

    /// Packets between the sides that others have passed.
    pub fn overtaken(&self) -> u64 {
        self.relay.as_ref().map_or(0, Relay::overtaken)
    }

    /// Moves a host to the other side, where it has another address.
    pub fn walk(&mut self, host: usize) -> Verdict {
        let (link, name) = (self.link(), self.namespace(host));
        let before = self.address(host);
        let moved = &mut self.hosts[host];
        (moved.side, moved.address) = (1 - moved.side, moved.address + 100);
        let (side, address) = (moved.side, self.address(host));
        self.ip(&format!("-n {name} addr del {before}/24 dev net0"))?;
        self.ip(&format!("-n {link} link set to{host} master side{side}"))?;
        self.ip(&format!("-n {name} addr add {address}/24 dev net0"))
    }

    /// Cuts a host off: nothing arrives there, and nothing leaves.
    pub fn cut(&self, host: usize) -> Verdict {
        self.ip(&format!("-n {} link set to{host} nomaster", self.link()))
    }

    /// Connects it again.
    pub fn mend(&self, host: usize) -> Verdict {
        let side = self.hosts[host].side;
        self.ip(&format!(
            "-n {} link set to{host} master side{side}",
            self.link()
        ))
    }

    /// Has a host reach some others no more, while each of them reaches the rest.
    pub fn separate(&self, host: usize, others: impl IntoIterator<Item = usize>) -> Verdict {
        let name = self.namespace(host);
        for other in others {
            let address = self.address(other);
            self.ip(&format!("-n {name} route add blackhole {address}"))?;
        }
        Ok(())
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
        // Its devices are in the namespace.
        self.relay = None;
        for host in 0..self.hosts.len() {
            let _ = self.ip(&format!("netns del {}", self.namespace(host)));
        }
        let _ = self.ip(&format!("netns del {}", self.link()));
    }
}
