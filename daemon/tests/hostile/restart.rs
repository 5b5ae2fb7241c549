//! Tenants that reconnect to a restarted daemon, and conditions that keep it from serving them at once.

use crate::attacks::{connect, contract_request, join, receive_event, send_request, try_connect};
use crate::flood::wait_for;
use crate::machine::Machine;
use crate::role::{Role, count};
use frames::Ledger;
use host::seqpacket;
use protocol::{CapacitySummary, DaemonEvent, ResumeToken, TenantRequest};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::RecvFlags;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use tenant::{Session, SessionEvent};

/// Descriptors of a daemon that unidentified peers can exhaust.
const FEW: u64 = 128;
/// Users without a rule, and the connections that each of them keeps: more than such a daemon lets them have.
const STRANGERS: std::ops::Range<u32> = 65_530..65_534;
const KEPT: usize = 16;
/// Channels of a tenant: more than a user may have of [`FEW`].
pub const CHANNELS: u32 = 40;

/// Processor time of a tenant: a tenth of a processor.
const RESERVED: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// Limits the descriptors of this process to `most`; no change for 0.
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
        let is_open = |fd: &OwnedFd| {
            let received = seqpacket::receive(fd, RecvFlags::DONTWAIT);
            received.is_err_and(|why| why == rustix::io::Errno::AGAIN)
        };
        kept.retain(is_open);
        while kept.len() < KEPT
            && let Some(connection) = try_connect(path)
        {
            kept.push(connection);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// A tenant that counts when it is admitted and has `channels` channels, and when the next daemon has readmitted it.
pub fn returns(path: &Path, channels: u32) -> ! {
    let request = contract_request("returns", "1M", "10ms/250ms", 4);
    let mut session = Session::join(path, &request).unwrap();
    let (ledger, fd) = Ledger::create_limited(session.terms().frames.x, 0, 1).unwrap();
    session.start(fd).unwrap();
    (0..channels).for_each(|_| _ = session.open(1));
    let mut opened = Vec::new();
    while opened.len() < channels as usize {
        dispatch(&mut session, &ledger, &mut opened);
    }
    count(1);
    while !dispatch(&mut session, &ledger, &mut opened) {}
    count(1);
    loop {
        dispatch(&mut session, &ledger, &mut opened);
    }
}

/// Handles events, and keeps the descriptors of opened channels. Returns true if the tenant was readmitted.
fn dispatch(session: &mut Session, ledger: &Ledger, opened: &mut Vec<[OwnedFd; 2]>) -> bool {
    std::thread::sleep(Duration::from_millis(1));
    let mut is_readmitted = false;
    for event in session.dispatch(ledger) {
        match event {
            SessionEvent::Resumed => is_readmitted = true,
            SessionEvent::Opened { memory, bell, .. } => opened.push([memory, bell]),
            SessionEvent::NotOpened { why, .. } | SessionEvent::Lost(why) => panic!("{why}"),
            _ => {}
        }
    }
    is_readmitted
}

/// A tenant that reserves processor time, and claims a larger reservation when it reconnects. It counts when it has a
/// reply.
pub fn reserves(path: &Path) -> ! {
    let connection = connect(path);
    let resume_token = ResumeToken([9; 16]);
    let request = contract_request("reserves", "1M", "1ms/250ms", 4);
    let join = join(resume_token, request);
    send_request(&connection, &join, &[]);
    let (admitted, bells) = receive_event(&connection).unwrap();
    assert!(
        matches!(admitted, DaemonEvent::Admitted { .. }),
        "{admitted:?}"
    );
    let share = |connection: &OwnedFd, share_of: (Duration, Duration), known| {
        let reservation = Some(share_of);
        send_request(
            connection,
            &TenantRequest::Faults { reservation, known },
            &[],
        );
        let (event, _) = receive_event(connection).unwrap();
        assert!(matches!(event, DaemonEvent::Faults(_)), "{event:?}");
        count(1);
    };
    share(&connection, RESERVED, false);
    assert!(receive_event(&connection).is_none());
    let connection = loop {
        std::thread::sleep(Duration::from_millis(10));
        let Some(connection) = try_connect(path) else {
            continue;
        };
        let channels = 0;
        let rejoin = TenantRequest::Rejoin {
            resume_token,
            channels,
        };
        send_request(&connection, &rejoin, &[bells[0].as_fd(), bells[1].as_fd()]);
        if let Some((DaemonEvent::Admitted { .. }, _)) = receive_event(&connection) {
            break connection;
        }
    };
    share(&connection, (8 * RESERVED.0, RESERVED.1), true);
    loop {
        std::thread::park();
    }
}

/// A tenant with channels that hands them over to the next daemon, which lacks descriptors for some, and requests another one
/// once the file `go` exists.
pub fn reopens(path: &Path, go: &Path) -> ! {
    let connection = connect(path);
    let resume_token = ResumeToken([8; 16]);
    let request = contract_request("reopens", "1M", "10ms/250ms", 4);
    send_request(&connection, &join(resume_token, request), &[]);
    let (admitted, bells) = receive_event(&connection).unwrap();
    let is_admitted = matches!(admitted, DaemonEvent::Admitted { .. });
    assert!(is_admitted, "{admitted:?}");
    let open = |connection: &OwnedFd| {
        let (depth, cookie) = (1, 0);
        send_request(connection, &TenantRequest::Open { depth, cookie }, &[]);
        match receive_event(connection) {
            Some((DaemonEvent::Opened { channel, .. }, fds)) => (channel, fds),
            other => panic!("{:?}", other.map(|(event, _)| event)),
        }
    };
    let opened: Vec<_> = (0..CHANNELS).map(|_| open(&connection)).collect();
    count(1);
    assert!(receive_event(&connection).is_none());
    let connection = await_daemon(path);
    let channels = CHANNELS;
    let rejoin = TenantRequest::Rejoin {
        resume_token,
        channels,
    };
    send_request(&connection, &rejoin, &[bells[0].as_fd(), bells[1].as_fd()]);
    receive_event(&connection).unwrap();
    for (channel, fds) in &opened {
        let fds = [fds[0].as_fd(), fds[2].as_fd()];
        send_request(&connection, &TenantRequest::Channel(*channel), &fds);
    }
    send_request(&connection, &TenantRequest::Capacity, &[]);
    let mut lacking = 0;
    while let Some((DaemonEvent::NoRoomYet(_), _)) = receive_event(&connection) {
        lacking += 1;
    }
    assert!(lacking > 0);
    count(1);
    wait_for(go);
    let (channel, _) = open(&connection);
    let is_new = opened.iter().all(|(other, _)| *other != channel);
    assert!(is_new, "{channel}");
    count(1);
    loop {
        std::thread::park();
    }
}

/// A connection to the next daemon, once that listens.
fn await_daemon(path: &Path) -> OwnedFd {
    loop {
        std::thread::sleep(Duration::from_millis(10));
        if let Some(connection) = try_connect(path) {
            return connection;
        }
    }
}

/// The capacity that the daemon reports, if it replies.
pub fn capacity(path: &Path) -> Option<CapacitySummary> {
    match query(path)? {
        DaemonEvent::Capacity(summary) => Some(summary),
        _ => None,
    }
}

/// The daemon's reply to a query, if it replies.
pub fn query(path: &Path) -> Option<DaemonEvent> {
    let connection = try_connect(path)?;
    send_request(&connection, &TenantRequest::Capacity, &[]);
    receive_event(&connection).map(|(event, _)| event)
}

/// Processes that play roles until they are killed.
struct Players(Vec<Child>);

impl Drop for Players {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_tenant_is_readmitted_though_unidentified_peers_fill_the_quota() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: peers of other users need root");
    }
    let mut machine = Machine::start();
    machine.restart_with(FEW);
    machine.await_service();
    let tenant = Players(vec![machine.begin(Role::Returns, 0)]);
    machine.await_count(1);
    let spawn = |user| machine.spawn(Role::Stranger, 0, user, "strangers");
    let strangers = Players(STRANGERS.map(spawn).collect());
    // Until they have all connections that they may have.
    std::thread::sleep(Duration::from_millis(500));
    machine.restart_with(FEW);
    machine.await_count(2);
    drop((strangers, tenant));
}

#[test]
fn no_channel_of_a_tenant_is_lost_to_a_daemon_that_lacks_descriptors() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: the daemon's own user has no quota");
    }
    let mut machine = Machine::start();
    let tenant = Players(vec![machine.begin(Role::Channels, 0)]);
    machine.await_count(1);
    let pid = rustix::process::Pid::from_child(&tenant.0[0]);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // A user may have a quarter of these descriptors, and for a while the daemon lacks free ones.
    machine.restart_with(FEW);
    machine.await_service();
    machine.allow_descriptors(machine.descriptors() as u64 + u64::from(CHANNELS) / 2, FEW);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    machine.allow_descriptors(FEW, FEW);
    machine.await_count(2);
    let begin = Instant::now();
    while machine.channels() < CHANNELS {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{}",
            machine.log()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(tenant);
}

#[test]
fn no_channel_gets_the_number_of_one_that_the_daemon_lacks_descriptors_for() {
    let mut machine = Machine::start();
    let tenant = Players(vec![machine.spawn(Role::Reopens, 0, 0, "reopens")]);
    machine.await_count(1);
    let pid = rustix::process::Pid::from_child(&tenant.0[0]);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    machine.restart_with(FEW);
    machine.await_service();
    machine.allow_descriptors(machine.descriptors() as u64 + u64::from(CHANNELS) / 2, FEW);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    machine.await_count(2);
    machine.allow_descriptors(FEW, FEW);
    machine.make_go_file();
    machine.await_count(3);
    drop(tenant);
}

#[test]
fn a_tenant_has_the_processor_time_after_a_restart_that_it_reserved_before() {
    let mut machine = Machine::start();
    let tenant = Players(vec![machine.begin(Role::Reserves, 0)]);
    machine.await_count(1);
    let reserved = machine.reserved();
    assert!(reserved > 0.0);
    machine.restart();
    machine.await_count(2);
    assert_eq!(machine.reserved(), reserved);
    drop(tenant);
}

#[test]
fn connections_behind_a_descriptor_whose_close_blocks_take_no_more_than_a_persons_quota() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: the daemon's own user has no quota");
    }
    const LIMIT: u64 = 1024;
    let mut machine = Machine::start();
    machine.restart_with(LIMIT);
    machine.await_service();
    let before = machine.descriptors();
    let stranger = machine.spawn(Role::Leaks, 0, STRANGERS.start, "leaks");
    let stranger = Players(vec![stranger]);
    machine.await_count(1);
    machine.await_service();
    // Beside the quota, sockets of two batches are being closed.
    let (now, quota) = (machine.descriptors(), LIMIT as usize / 4 + 32);
    assert!(now <= before + quota, "{now} {before}");
    drop(stranger);
    machine.await_descriptors(before);
}

#[test]
fn requests_that_the_policy_refuses_count_as_changes() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: the daemon's own user may have any contract");
    }
    let machine = Machine::start();
    let mut stranger = machine.spawn(Role::Refused, 0, STRANGERS.start, "refused");
    assert!(
        stranger.wait().unwrap().success(),
        "{}",
        machine.outputs("refused")
    );
    machine.await_count(1);
}

#[test]
fn a_process_outside_the_daemons_pid_namespace_is_refused_with_the_reason() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: a PID namespace needs root");
    }
    let mut machine = Machine::start();
    machine.restart_apart();
    let why = machine.refusal();
    assert!(why.contains("PID namespace"), "{why}");
}
