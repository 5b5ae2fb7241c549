//! Tenants that come back to a daemon that was started again, and what keeps it from serving them at once.

use crate::attacks::try_connect;
use crate::machine::Machine;
use crate::role::{Role, count};
use frames::Ledger;
use host::seqpacket;
use rustix::fd::OwnedFd;
use rustix::net::RecvFlags;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::Path;
use std::process::Child;
use std::time::Duration;
use tenant::{ContractRequest, Session, SessionEvent};

/// Descriptors of a daemon that strangers can fill.
const FEW: u64 = 128;
/// Users without a rule, and the connections that each of them keeps: more than such a daemon lets them have.
const STRANGERS: std::ops::Range<u32> = 65_530..65_534;
const KEPT: usize = 16;

/// Lets this process have so many descriptors; as many as before, for 0.
pub fn limit_descriptors(most: u64) {
    let most = Some(most).filter(|most| *most > 0);
    if most.is_some() {
        let (current, maximum) = (most, most);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    }
}

/// Keeps connections without a contract, and connects again as soon as they end.
pub fn stranger(path: &Path) {
    let mut kept: Vec<OwnedFd> = Vec::new();
    loop {
        let lives = |fd: &OwnedFd| {
            let received = seqpacket::receive(fd, RecvFlags::DONTWAIT);
            received.is_err_and(|why| why == rustix::io::Errno::AGAIN)
        };
        kept.retain(lives);
        while kept.len() < KEPT
            && let Some(connection) = try_connect(path)
        {
            kept.push(connection);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// A tenant that counts when it is admitted, and when it is taken back.
pub fn returns(path: &Path) {
    let wanted = ContractRequest {
        name: "returns".into(),
        frames: Some("1M".parse().unwrap()),
        disk: Some("10ms/250ms".parse().unwrap()),
        swap: Some(4 << 20),
        place: None,
    };
    let mut session = Session::join(path, &wanted).unwrap();
    let (ledger, fd) = Ledger::create_limited(session.terms().frames.x, 0, 1).unwrap();
    session.start(fd).unwrap();
    count(1);
    loop {
        for event in session.dispatch(&ledger) {
            match event {
                SessionEvent::Resumed => return count(1),
                SessionEvent::Lost(why) => panic!("{why}"),
                _ => {}
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Strangers(Vec<Child>);

impl Drop for Strangers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_tenant_is_taken_back_though_strangers_have_all_connections_there_are() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: strangers of other users need root");
    }
    let mut machine = Machine::start();
    machine.restart_with(FEW);
    let mut tenant = machine.begin(Role::Returns, 0);
    machine.counted(1);
    let spawn = |user| machine.spawn(Role::Stranger, 0, user, "strangers");
    let strangers = Strangers(STRANGERS.map(spawn).collect());
    // Until they have what they may have.
    std::thread::sleep(Duration::from_millis(500));
    machine.restart_with(FEW);
    machine.counted(2);
    drop(strangers);
    tenant.wait().unwrap();
}
