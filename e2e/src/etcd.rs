//! An etcd of one member on a host of a network, with data of its own.

use crate::network::Network;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict, skipped};
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// The port of clients.
const PORT: u16 = 2379;

/// An etcd, which ends with this.
pub struct Etcd {
    address: String,
    data: PathBuf,
    child: Option<Child>,
}

impl Etcd {
    /// Starts one on a host.
    pub fn start(sandbox: &Sandbox, network: &Network, host: usize) -> Verdict<Self> {
        let mut etcd = Self {
            address: network.address(host),
            data: sandbox.join("etcd"),
            child: None,
        };
        etcd.start_again(network, host)?;
        Ok(etcd)
    }

    /// Starts it again, with the data that it had. Hosts try until it answers.
    pub fn start_again(&mut self, network: &Network, host: usize) -> Verdict {
        let Some(program) = program() else {
            return skipped("no etcd here: apt-get install etcd-server");
        };
        let url = |address: &str, port: u16| format!("http://{address}:{port}");
        let client = url(&self.address, PORT);
        let peer = url("127.0.0.1", PORT + 1);
        let mut command = network.command(host, &program);
        command.arg("--data-dir").arg(&self.data);
        command.args(["--name", "test", "--initial-cluster"]);
        command.arg(format!("test={peer}"));
        command.args(["--listen-client-urls", &client]);
        command.args(["--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer]);
        command.args(["--initial-advertise-peer-urls", &peer]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().doing(|| "start etcd".into())?);
        Ok(())
    }

    /// The value of `--seat`.
    pub fn seat(&self) -> String {
        format!("etcd:{}:{PORT}", self.address)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join("etcd"));
    found.into_iter().find(|program| program.is_file())
}
