//! Tenants that come back to a daemon that was started again, and what keeps it from serving them at once.

use crate::attacks::{ask, connect, hear, join, try_connect, wanted};
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

/// Descriptors of a daemon that strangers can fill.
const FEW: u64 = 128;
/// Users without a rule, and the connections that each of them keeps: more than such a daemon lets them have.
const STRANGERS: std::ops::Range<u32> = 65_530..65_534;
const KEPT: usize = 16;
/// Channels of a tenant: more than a user may have of [`FEW`].
pub const CHANNELS: u32 = 40;

/// Processor time of a tenant: a tenth of a processor.
const RESERVED: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

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

/// A tenant that counts when it is admitted and has so many channels, and when it is taken back.
pub fn returns(path: &Path, channels: u32) -> ! {
    let wanted = wanted("returns", "1M", "10ms/250ms", 4);
    let mut session = Session::join(path, &wanted).unwrap();
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

/// Handles events, and keeps what is opened. Returns true if the tenant was taken back.
fn dispatch(session: &mut Session, ledger: &Ledger, opened: &mut Vec<[OwnedFd; 2]>) -> bool {
    std::thread::sleep(Duration::from_millis(1));
    let mut is_back = false;
    for event in session.dispatch(ledger) {
        match event {
            SessionEvent::Resumed => is_back = true,
            SessionEvent::Opened { memory, bell, .. } => opened.push([memory, bell]),
            SessionEvent::NotOpened { why, .. } | SessionEvent::Lost(why) => panic!("{why}"),
            _ => {}
        }
    }
    is_back
}

/// A tenant that reserves processor time, and says that it was more when it comes back. It counts when it has a
/// reply.
pub fn reserves(path: &Path) -> ! {
    let connection = connect(path);
    let resume_token = ResumeToken([9; 16]);
    let wanted = wanted("reserves", "1M", "1ms/250ms", 4);
    let join = join(resume_token, wanted);
    ask(&connection, &join, &[]);
    let (admitted, bells) = hear(&connection).unwrap();
    assert!(
        matches!(admitted, DaemonEvent::Admitted { .. }),
        "{admitted:?}"
    );
    let share = |connection: &OwnedFd, share_of: (Duration, Duration), known| {
        let reservation = Some(share_of);
        ask(
            connection,
            &TenantRequest::Faults { reservation, known },
            &[],
        );
        let (event, _) = hear(connection).unwrap();
        assert!(matches!(event, DaemonEvent::Faults(_)), "{event:?}");
        count(1);
    };
    share(&connection, RESERVED, false);
    assert!(hear(&connection).is_none());
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
        ask(&connection, &rejoin, &[bells[0].as_fd(), bells[1].as_fd()]);
        if let Some((DaemonEvent::Admitted { .. }, _)) = hear(&connection) {
            break connection;
        }
    };
    share(&connection, (8 * RESERVED.0, RESERVED.1), true);
    loop {
        std::thread::park();
    }
}

/// What there is to promise, if the daemon replies.
pub fn capacity(path: &Path) -> Option<CapacitySummary> {
    match query(path)? {
        DaemonEvent::Capacity(summary) => Some(summary),
        _ => None,
    }
}

/// What the daemon replies to a query, if it does.
pub fn query(path: &Path) -> Option<DaemonEvent> {
    let connection = try_connect(path)?;
    ask(&connection, &TenantRequest::Capacity, &[]);
    hear(&connection).map(|(event, _)| event)
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
fn a_tenant_is_taken_back_though_strangers_have_all_connections_there_are() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: strangers of other users need root");
    }
    let mut machine = Machine::start();
    machine.restart_with(FEW);
    machine.serves();
    let tenant = Players(vec![machine.begin(Role::Returns, 0)]);
    machine.counted(1);
    let spawn = |user| machine.spawn(Role::Stranger, 0, user, "strangers");
    let strangers = Players(STRANGERS.map(spawn).collect());
    // Until they have what they may have.
    std::thread::sleep(Duration::from_millis(500));
    machine.restart_with(FEW);
    machine.counted(2);
    drop((strangers, tenant));
}

#[test]
fn no_channel_of_a_tenant_is_lost_to_a_daemon_that_lacks_descriptors() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: the daemon's own user has no quota");
    }
    let mut machine = Machine::start();
    let tenant = Players(vec![machine.begin(Role::Channels, 0)]);
    machine.counted(1);
    let pid = rustix::process::Pid::from_child(&tenant.0[0]);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // Of so few descriptors a user may have a quarter, and for a while there are fewer.
    machine.restart_with(FEW);
    machine.serves();
    machine.allow_descriptors(machine.descriptors() as u64 + u64::from(CHANNELS) / 2, FEW);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    machine.allow_descriptors(FEW, FEW);
    machine.counted(2);
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
fn a_tenant_has_the_processor_time_after_a_restart_that_it_reserved_and_no_other() {
    let mut machine = Machine::start();
    let tenant = Players(vec![machine.begin(Role::Reserves, 0)]);
    machine.counted(1);
    let reserved = machine.reserved();
    assert!(reserved > 0.0);
    machine.restart();
    machine.counted(2);
    assert_eq!(machine.reserved(), reserved);
    drop(tenant);
}

#[test]
fn a_process_that_the_daemon_cannot_see_is_refused_with_the_reason() {
    if !rustix::process::getuid().is_root() {
        return println!("SKIPPED: a PID namespace needs root");
    }
    let mut machine = Machine::start();
    machine.restart_apart();
    let why = machine.refusal();
    assert!(why.contains("PID namespace"), "{why}");
}
