//! Hosts whose broker is the one with a lease in etcd: a real etcd, with ports and data of the test's own.

use crate::hosts::{Client, Host, wait_until};
use crate::{agreed, wait_for_cluster};
use rustix::process::{Pid, Signal, kill_process};
use selfpage_remote_broker::SeatConfig;
use selfpage_remote_broker::client::PermitAnswer;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// An etcd of one member, which ends with this.
struct Etcd {
    client: u16,
    peer: u16,
    data: TempDir,
    child: Option<Child>,
}

impl Etcd {
    /// `None`, with the reason, where it is not installed.
    fn start() -> Option<Self> {
        let mut etcd = Self {
            client: free_port(),
            peer: free_port(),
            data: tempfile::tempdir().unwrap(),
            child: None,
        };
        match etcd.spawn() {
            Ok(()) => Some(etcd),
            Err(why) if why.kind() == ErrorKind::NotFound => {
                eprintln!("SKIPPED: no etcd here: apt-get install etcd-server");
                None
            }
            Err(why) => panic!("etcd: {why}"),
        }
    }

    fn spawn(&mut self) -> std::io::Result<()> {
        let url = |port| format!("http://127.0.0.1:{port}");
        let (client, peer) = (url(self.client), url(self.peer));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.data.path().join("data"));
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
        self.child = Some(command.spawn()?);
        let port = self.client;
        wait_until("etcd listens", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    fn seat(&self) -> SeatConfig {
        format!("etcd:127.0.0.1:{}", self.client).parse().unwrap()
    }

    /// Hosts that are told of etcd alone, and have one broker.
    fn hosts(&self, count: usize) -> Vec<Host> {
        let start = |_| Host::with(&[], None, self.seat());
        let hosts: Vec<_> = (0..count).map(start).collect();
        wait_for_cluster(&all(&hosts));
        hosts
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn all(hosts: &[Host]) -> Vec<&Host> {
    hosts.iter().collect()
}

fn broker_of(hosts: &[Host]) -> usize {
    let is_broker = |host: &Host| host.status().is_some_and(|status| status.is_broker);
    hosts.iter().position(is_broker).unwrap()
}

fn is_granted(client: &mut Client) -> bool {
    matches!(client.allocate(10), PermitAnswer::Granted(_))
}

#[test]
fn hosts_that_know_etcd_alone_find_each_other_and_have_one_broker() {
    let Some(etcd) = Etcd::start() else { return };
    let hosts = etcd.hosts(3);
    assert!(is_granted(&mut Client::new(&hosts[0])));
}

#[test]
fn another_host_is_elected_when_the_broker_ends() {
    let Some(etcd) = Etcd::start() else { return };
    let mut hosts = etcd.hosts(3);
    let mut client = Client::of(&all(&hosts));
    let before = agreed(&all(&hosts)).unwrap();
    drop(hosts.remove(broker_of(&hosts)));
    assert!(is_granted(&mut client));
    wait_for_cluster(&all(&hosts));
    assert!(agreed(&all(&hosts)).unwrap() > before);
}

#[test]
fn permits_are_issued_while_etcd_is_stopped_or_gone() {
    let Some(mut etcd) = Etcd::start() else {
        return;
    };
    let hosts = etcd.hosts(2);
    let mut client = Client::of(&all(&hosts));
    let before = agreed(&all(&hosts)).unwrap();
    etcd.signal(Signal::STOP);
    let granted = is_granted(&mut client);
    etcd.signal(Signal::CONT);
    assert!(granted);
    etcd.kill();
    assert!(is_granted(&mut client));
    etcd.spawn().unwrap();
    wait_for_cluster(&all(&hosts));
    assert!(agreed(&all(&hosts)).unwrap() >= before);
    assert!(is_granted(&mut client));
}

#[test]
fn a_broker_that_ends_while_etcd_is_gone_is_replaced_when_etcd_is_back() {
    let Some(mut etcd) = Etcd::start() else {
        return;
    };
    let mut hosts = etcd.hosts(2);
    let mut client = Client::of(&all(&hosts));
    let before = agreed(&all(&hosts)).unwrap();
    etcd.kill();
    drop(hosts.remove(broker_of(&hosts)));
    wait_until("the host that is left has no broker", || {
        hosts[0]
            .cluster()
            .is_some_and(|cluster| cluster.broker.is_none())
    });
    etcd.spawn().unwrap();
    wait_for_cluster(&all(&hosts));
    assert!(agreed(&all(&hosts)).unwrap() > before);
    assert!(is_granted(&mut client));
}

#[test]
fn epochs_rise_though_etcd_has_lost_its_data() {
    let Some(mut etcd) = Etcd::start() else {
        return;
    };
    let mut hosts = etcd.hosts(2);
    // The store's revision is high before it begins again.
    for _ in 0..3 {
        drop(hosts.remove(broker_of(&hosts)));
        hosts.push(Host::with(&[], None, etcd.seat()));
        wait_for_cluster(&all(&hosts));
    }
    let before = agreed(&all(&hosts)).unwrap();
    etcd.kill();
    drop(hosts.remove(broker_of(&hosts)));
    etcd.data = tempfile::tempdir().unwrap();
    etcd.spawn().unwrap();
    hosts.push(Host::with(&[], None, etcd.seat()));
    wait_for_cluster(&all(&hosts));
    assert!(agreed(&all(&hosts)).unwrap() > before);
    assert!(is_granted(&mut Client::of(&all(&hosts))));
}
