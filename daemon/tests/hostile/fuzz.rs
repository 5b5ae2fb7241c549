//! All hostile roles at once, beside two honest programs that page, for a given time.
//!
//! Rule: honest programs are never ended and never read what they did not write, and whatever
//! is done to the daemon, the next one serves them. The roles and their data are drawn from a seed,
//! round after round; how the processes interleave is not.

use crate::attacks::{Rng, contract_request};
use crate::machine::Machine;
use crate::role::Role;
use host::seqpacket;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use selfpage::{DirectIo, Domain, Paged};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use tenant::{LinkedTenant, RevocationPolicy};

const PAGE: usize = 4096;
/// Pages of an honest program; a sixth of them are guaranteed frames.
const PAGES: usize = 6144;
/// How long an honest program may make no progress: no event of a round lasts so long.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// The most of it that counts between two checks. On a machine that runs this process late, the
/// programs and the daemon run late, too.
const MAX_CHECK_GAP: Duration = Duration::from_millis(20);
/// Users of the hostile processes; a rule lets the first have contracts.
const USERS: [u32; 3] = [65_534, 65_531, 65_532];

/// The value in a page's first and last word in a round.
fn word(round: u64, page: usize) -> u64 {
    (round << 32 | page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes and reads pages in random order, each read compared with the value written
/// last, and writes its progress to a file.
fn check(base: *mut u8, progress: &Path) -> ! {
    let mut written = vec![0u64; PAGES];
    let mut rng = Rng(0x5eed);
    for round in 1.. {
        for step in 0..PAGES {
            let page = rng.below(PAGES);
            // SAFETY: the first and last word of a page of this program's own.
            let ends = [0, PAGE - 8].map(|at| unsafe { base.add(page * PAGE + at).cast::<u64>() });
            for end in ends {
                let expected = match written[page] {
                    0 => 0,
                    round => word(round, page),
                };
                // SAFETY: as above.
                let found = unsafe { end.read_volatile() };
                assert_eq!(found, expected, "page {page} of round {}", written[page]);
                // SAFETY: as above.
                unsafe { end.write_volatile(word(round, page)) };
            }
            written[page] = round;
            if step % 256 == 0 {
                let done = round * PAGES as u64 + step as u64;
                std::fs::write(progress, done.to_string()).unwrap();
            }
        }
    }
    unreachable!()
}

/// A linked program under a contract, most of whose frames are lent.
pub fn pages(socket: &Path, folder: &Path) {
    let request = contract_request("honest", "4M+12M", "50ms/250ms,extra", 32);
    let policy = RevocationPolicy {
        eager: true,
        ..RevocationPolicy::default()
    };
    let (_tenant, resources) = LinkedTenant::join_with(socket, &request, policy).unwrap();
    let builder = Domain::builder()
        .frames(resources.contract)
        .ledger(resources.ledger)
        .shared_store(resources.store)
        .direct_io(DirectIo::PinnedOnly);
    let domain = builder.build().unwrap();
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    check(stretch.as_ptr(), &folder.join("linked"));
}

/// A program that is not linked with the pager.
pub fn plain(folder: &Path) {
    let mut memory = vec![0u8; (PAGES + 1) * PAGE];
    let start = memory.as_mut_ptr();
    check(
        start.wrapping_add(start.align_offset(PAGE)),
        &folder.join("plain"),
    );
}

/// Sends random bytes and descriptors to the sockets of the plain program's supervisor.
pub fn supervisor(folder: &Path, seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let sockets = std::fs::read_to_string(folder.join("sockets")).unwrap_or_default();
    let names: Vec<_> = sockets.lines().collect();
    let begin = Instant::now();
    while !names.is_empty() && begin.elapsed() < Duration::from_secs(1) {
        let any = |rng: &mut Rng| connect_abstract(names[rng.below(names.len())]);
        let connections: Vec<_> = (0..64).filter_map(|_| any(&mut rng)).collect();
        for _ in 0..1000 {
            let Some(connection) = connections.get(rng.below(64)) else {
                continue;
            };
            let bytes: Vec<u8> = (0..1 + rng.below(900)).map(|_| rng.next() as u8).collect();
            let fds: Vec<OwnedFd> = (0..rng.below(3))
                .map(|_| any_descriptor(&mut rng))
                .collect();
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            let _ = seqpacket::send(connection, &bytes, &fds, SendFlags::DONTWAIT);
        }
    }
}

fn connect_abstract(name: &str) -> Option<OwnedFd> {
    let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(unix, packets, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    Some(socket)
}

fn any_descriptor(rng: &mut Rng) -> OwnedFd {
    match rng.below(3) {
        0 => eventfd(rng.next() as u32, EventfdFlags::empty()).unwrap(),
        1 => {
            let memory = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&memory, rng.next() % (1 << 24)).unwrap();
            memory
        }
        _ => std::fs::File::open("/dev/zero").unwrap().into(),
    }
}

/// An honest program, and its progress at the last check.
struct Program {
    name: &'static str,
    child: Child,
    progress: String,
    /// For how long it has made no progress.
    idle: Duration,
    /// True if it has made progress since the daemon was started.
    is_served: bool,
}

/// The honest programs, which are killed when this is dropped.
struct Programs {
    all: Vec<Program>,
    checked: Instant,
}

impl Programs {
    /// Checks that each program runs and makes progress.
    fn check_progress(&mut self, machine: &Machine, when: &str) {
        let passed = self.checked.elapsed().min(MAX_CHECK_GAP);
        self.checked = Instant::now();
        for program in &mut self.all {
            let name = program.name;
            let ended = program.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "{when}: {name} {ended:?}\n{}",
                machine.outputs(name)
            );
            let now = machine.progress(name);
            program.idle += passed;
            if now != program.progress {
                (program.progress, program.idle, program.is_served) = (now, Duration::ZERO, true);
            }
            assert!(
                program.idle < HANG_TIMEOUT,
                "{when}: {name} hangs\n{}",
                machine.outputs(name)
            );
        }
    }

    /// Kills the daemon and starts another, if both programs have made progress under this one: else, where
    /// a daemon takes longer to start than a round lasts, no daemon would ever serve.
    fn restart(&mut self, machine: &mut Machine) {
        if self.all.iter().all(|program| program.is_served) {
            machine.restart();
            for program in &mut self.all {
                program.is_served = false;
            }
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for program in &mut self.all {
            let _ = program.child.kill();
            let _ = program.child.wait();
        }
    }
}

/// A length of time, as in 90s, 30m or 8h.
pub fn seconds(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let unit = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => panic!("invalid time {text}: expected 90s, 30m or 8h"),
    };
    Duration::from_secs(number.parse::<u64>().unwrap() * unit)
}

/// Starts the honest programs, and waits until each has its contract.
fn start_programs(machine: &mut Machine) -> Programs {
    let mut programs = Programs {
        all: Vec::new(),
        checked: Instant::now(),
    };
    let mut start = |name, child: Option<Child>| {
        programs.all.extend(child.map(|child| Program {
            name,
            child,
            progress: String::new(),
            idle: Duration::ZERO,
            is_served: false,
        }));
    };
    start("linked", Some(machine.spawn(Role::Pages, 0, 0, "linked")));
    start("plain", machine.under_contract(Role::Plain, "plain"));
    let has_begun = |machine: &Machine, name| !machine.progress(name).is_empty();
    while !programs
        .all
        .iter()
        .all(|program| has_begun(machine, program.name))
    {
        programs.check_progress(machine, "at the start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let plain = programs.all.iter().find(|program| program.name == "plain");
    if let Some(plain) = plain {
        machine.note_sockets(plain.child.id());
    }
    programs
}

/// Runs rounds until the time is over. Returns how many there were.
pub fn run(time: Duration, seed: u64) -> u64 {
    let mut machine = Machine::start();
    let mut programs = start_programs(&mut machine);
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut rounds, begin) = (0, Instant::now());
    while rounds == 0 || begin.elapsed() < time {
        rounds += 1;
        let mut hostile = Vec::new();
        let mut roles_of_round = Vec::new();
        for _ in 0..1 + rng.below(4) {
            let roles = [
                Role::Fuzz,
                Role::Scribble,
                Role::Crowd,
                Role::NeverReads,
                Role::Leaver,
                Role::Needs,
                Role::Supervisor,
                Role::Storm,
            ];
            let (role, user) = (roles[rng.below(roles.len())], USERS[rng.below(USERS.len())]);
            roles_of_round.push((role, user));
            hostile.push(machine.spawn(role, rng.next(), user, "hostile"));
        }
        // Meanwhile the daemon or a hostile process is killed, or the daemon is stopped for a while, or nothing happens.
        let pause = Duration::from_millis(rng.next() % 400);
        std::thread::sleep(pause);
        let event = rng.below(6);
        match event {
            0 => programs.restart(&mut machine),
            1 => {
                machine.stop();
                std::thread::sleep(Duration::from_millis(rng.next() % 300));
                machine.resume();
            }
            2 => drop(hostile[0].kill()),
            _ => std::thread::sleep(Duration::from_millis(rng.next() % 600)),
        }
        let when = format!("seed {seed}, round {rounds}, {roles_of_round:?}, event {event}");
        for mut child in hostile {
            let since = Instant::now();
            // Hostile processes end by themselves, or are killed with their contracts.
            while child.try_wait().unwrap().is_none() && since.elapsed() < Duration::from_secs(1) {
                programs.check_progress(&machine, &when);
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        programs.check_progress(&machine, &when);
        machine.descriptors();
        let log = machine.log();
        assert!(!log.contains("panicked"), "{when}\n{log}");
    }
    rounds
}
