//! Managers that are killed: a keeper in a process of its own starts another one, and guests notice a pause alone.

use crate::Test;
use crate::common::{Guest, await_that, make_snapshot, mib};
use crate::guest::PAGE;
use host::fd_reaper::lingering_socket;
use host::restart_policy::RestartPolicy;
use host::seqpacket;
use manager::client_memory::SharedCache;
use manager::control::{ClientReport, ControlReply, ControlRequest, request};
use manager::keeper::keep;
use manager::save::SaveEvent;
use manager::server::{Manager, ManagerConfig};
use manager::snapshot::Snapshot;
use manager::sockets::Sockets;
use rustix::fd::{AsFd, AsRawFd};
use rustix::net::SendFlags;
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    (
        "killed_managers_of_evicted_memory_lose_nothing",
        killed_managers_of_evicted_memory_lose_nothing,
    ),
    (
        "killed_managers_of_private_memory_lose_nothing",
        killed_managers_of_private_memory_lose_nothing,
    ),
    (
        "a_killed_manager_ends_its_saves_and_leaves_no_file",
        a_killed_manager_ends_its_saves_and_leaves_no_file,
    ),
    (
        "a_hand_off_that_a_killed_manager_was_receiving_is_received_again",
        a_hand_off_that_a_killed_manager_was_receiving_is_received_again,
    ),
    (
        "a_manager_outlives_its_keeper",
        a_manager_outlives_its_keeper,
    ),
    (
        "managers_that_end_at_each_start_are_given_up",
        managers_that_end_at_each_start_are_given_up,
    ),
    (
        "a_guest_without_manager_and_keeper_loses_its_connection",
        a_guest_without_manager_and_keeper_loses_its_connection,
    ),
    (
        "a_refused_peer_whose_close_takes_long_delays_no_guest",
        a_refused_peer_whose_close_takes_long_delays_no_guest,
    ),
];

/// Kills of each test that kills again and again; the environment has another number.
const KILLS: usize = 40;

fn kills() -> usize {
    let wanted = std::env::var("SELFPAGE_TEST_KILLS").ok();
    wanted.map_or(KILLS, |it| it.parse().expect("SELFPAGE_TEST_KILLS"))
}

/// The keeper's main function: arguments are SOCKET SNAPSHOT CONTRACT CACHE MODE.
pub fn main(args: &[String]) {
    let snapshot = Snapshot::open(Path::new(&args[1]), &[]).expect("a snapshot");
    let cache = (args[3] != "-").then(|| {
        let cache = SharedCache::create(Path::new(&args[3]), &snapshot);
        Arc::new(cache.expect("a cache"))
    });
    let config = ManagerConfig {
        socket: PathBuf::from(&args[0]),
        snapshot: Some(snapshot),
        size: 0,
        contract: (args[2] != "-").then(|| (mib(2), args[2].parse().expect("a store"))),
        disk: ManagerConfig::equal_share(),
        uses_working_set: true,
        cache,
        most_clients: 64,
        patience: Duration::from_secs(5),
    };
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is made before it is used.
    let signals = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        set.assume_init()
    };
    let is_mortal = args[4] == "mortal";
    let mut policy = RestartPolicy::default();
    if !is_mortal {
        // However soon and often it is killed.
        (policy.early, policy.most_unserved) = (Duration::ZERO, u32::MAX);
    }
    let sockets = Sockets::listen(&config.socket).expect("sockets");
    let end = keep(sockets, &signals, policy, |from| {
        if is_mortal && from.former_end.is_some() {
            std::process::abort();
        }
        let server = Manager::resume(config, from)?;
        let mut signal = 0;
        // SAFETY: the set was made above.
        unsafe { libc::sigwait(&signals, &raw mut signal) };
        server.stop();
        Ok(())
    });
    println!("{:?}", end.expect("a keeper"));
}

/// A keeper, its manager, and their folder.
struct KeptService {
    keeper: Child,
    folder: tempfile::TempDir,
}

impl KeptService {
    fn start(pages: usize, contract: &str, cache: &str, mode: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let snapshot = make_snapshot(folder.path(), pages);
        let keeper = Command::new(std::env::current_exe().expect("this program"))
            .arg("keeper")
            .arg(folder.path().join("socket"))
            .arg(snapshot)
            .args([contract, cache, mode])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a keeper");
        let service = Self { keeper, folder };
        await_that("the manager serves", || service.clients().is_some());
        service
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn guest(&self, kind: &str, bytes: usize) -> Guest {
        Guest::start(kind, &self.socket(), bytes)
    }

    /// The manager's process, if there is one.
    fn manager(&self) -> Option<i32> {
        let keeper = self.keeper.id();
        let path = format!("/proc/{keeper}/task/{keeper}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        children.split_whitespace().next()?.parse().ok()
    }

    /// Kills the manager, whatever it is doing, unless it is `but`. Returns its process.
    fn kill_manager(&self, but: i32) -> i32 {
        let mut killed = None;
        await_that("there is another manager", || {
            killed = self.manager().filter(|pid| *pid != but);
            killed.is_some()
        });
        let pid = killed.expect("found above");
        // SAFETY: a child of the keeper, which waits for it.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        pid
    }

    /// The guests, if a manager answers.
    fn clients(&self) -> Option<Vec<ClientReport>> {
        match request(&self.socket(), &ControlRequest::Show)
            .ok()?
            .next()?
        {
            Ok(ControlReply::Clients(clients)) => Some(clients),
            _ => None,
        }
    }

    /// The counter of client 1, as soon as a manager serves that client: the one before may have
    /// been killed just now.
    fn counter(&self, name: &str) -> u64 {
        let mut value = None;
        await_that("client 1 is served", || {
            let clients = self.clients().unwrap_or_default();
            let first = clients.iter().find(|it| it.number == 1);
            value = first.map(|it| it.counters[name]);
            value.is_some()
        });
        value.expect("found above")
    }

    fn end_keeper(&mut self) {
        self.keeper.kill().expect("the keeper's end");
        self.keeper.wait().expect("the keeper's end");
    }
}

impl Drop for KeptService {
    fn drop(&mut self) {
        // SAFETY: the keeper, which has not been waited for, or does not exist.
        unsafe { libc::kill(self.keeper.id() as i32, libc::SIGTERM) };
        let _ = self.keeper.wait();
    }
}

/// Kills managers while a guest writes, checks and discards pages, and others come and go.
fn endure(kind: &str, contract: &str, cache: &str, kills: usize) {
    let pages = mib(16);
    let service = KeptService::start(pages, contract, cache, "lenient");
    let mut guest = service.guest(kind, pages * PAGE);
    await_that("the guest is admitted", || {
        service.clients().is_some_and(|clients| !clients.is_empty())
    });
    guest.run("endure 3");
    let mut random = fastrand::Rng::with_seed(kills as u64);
    let mut visitor: Option<Guest> = None;
    let mut last = 0;
    for kill in 0..kills {
        if kill % 4 == 0 {
            let mut next = service.guest(kind, pages * PAGE);
            next.begin("verify 0 400 0");
            if let Some(mut before) = visitor.replace(next) {
                assert_eq!(before.finish(), "0", "a guest that came meanwhile");
            }
        }
        std::thread::sleep(Duration::from_micros(random.u64(..60_000)));
        last = service.kill_manager(last);
    }
    if let Some(mut visitor) = visitor {
        assert_eq!(visitor.finish(), "0", "a guest that came meanwhile");
    }
    let reply = guest.run("endured");
    let [wrong, steps, longest] = [0, 1, 2].map(|at| {
        let number = reply.split(' ').nth(at).and_then(|it| it.parse().ok());
        number.unwrap_or_else(|| panic!("the guest has ended: {reply:?}"))
    });
    let restarts = service.counter("restarts");
    let lost = service.counter("lost_pages");
    println!(
        "{kind}, {contract}: {kills} kills, {restarts} seen by the guest's record, {steps} steps, longest {} ms",
        longest / 1000_u64
    );
    assert_eq!((wrong, lost), (0, 0));
    assert!(restarts > 0 && steps > 0);
    if kind == "memfd" {
        // Every page has contents, and the last manager knows which are in frames.
        guest.run(&format!("write 0 {pages} 1"));
        let frames = guest.wrong("frames");
        assert!(frames <= mib(2), "{frames} frames");
        await_that("the counter is current", || {
            service.counter("resident_pages") == frames as u64
        });
    }
}

fn killed_managers_of_evicted_memory_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().display();
    for store in [
        "ram:32M".to_owned(),
        format!("disk:{disk},size=32M"),
        format!("ram:1M+disk:{disk},size=512M,grow"),
    ] {
        endure("memfd", &store, "-", kills().div_ceil(3));
    }
}

fn killed_managers_of_private_memory_lose_nothing() {
    endure("private", "-", "-", kills().div_ceil(2));
    let name = format!("/dev/shm/selfpage-test-restart-{}", std::process::id());
    endure(&format!("cache:{name}"), "-", &name, kills().div_ceil(2));
    std::fs::remove_file(name).unwrap();
}

fn a_killed_manager_ends_its_saves_and_leaves_no_file() {
    let pages = mib(64);
    let service = KeptService::start(pages, "-", "-", "lenient");
    let mut guest = service.guest("private", pages * PAGE);
    guest.run(&format!("write 0 {pages} 1"));
    let to = service.folder.path().join("differential");
    let save = ControlRequest::Save {
        client: 1,
        to: to.clone(),
    };
    let mut last = 0;
    let mut was_interrupted = false;
    for _ in 0..20 {
        await_that("the guest is served", || {
            service.clients().is_some_and(|clients| !clients.is_empty())
        });
        let mut events = Vec::new();
        for reply in request(&service.socket(), &save).unwrap() {
            match reply {
                Ok(ControlReply::Save(SaveEvent::Protected { .. })) => {
                    last = service.kill_manager(last)
                }
                Ok(other) => events.push(format!("{other:?}")),
                // The connection ended with the manager.
                Err(_) => break,
            }
        }
        was_interrupted |= events.is_empty();
        await_that("the guest is served again", || {
            service.clients().is_some_and(|clients| !clients.is_empty())
        });
        let parts = std::fs::read_dir(service.folder.path()).unwrap().flatten();
        let parts = parts.filter(|it| it.file_name().to_string_lossy().contains(".part."));
        assert_eq!(parts.count(), 0, "a part of a save is left");
        let _ = std::fs::remove_file(&to);
    }
    assert!(
        was_interrupted,
        "every save was faster than its manager's end"
    );
    guest.run(&format!("write 0 {pages} 2"));
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 2")), 0);
    // And it is saved again.
    let last = request(&service.socket(), &save).unwrap().last().unwrap();
    assert!(
        matches!(last, Ok(ControlReply::Save(SaveEvent::Saved { .. }))),
        "{last:?}"
    );
}

fn a_hand_off_that_a_killed_manager_was_receiving_is_received_again() {
    use crate::guest::{open_userfaultfd, register, send, word};
    use rustix::fd::AsFd;
    let service = KeptService::start(mib(1), "-", "-", "lenient");
    let uffd = open_userfaultfd();
    // SAFETY: a new mapping, where the kernel chooses.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0)
    };
    register(&uffd, memory as usize, PAGE);
    let text = format!(
        r#"[{{"base_host_virt_addr":{},"size":{PAGE},"offset":0,"page_size":{PAGE}}}]"#,
        memory as usize
    );
    let (head, tail) = text.as_bytes().split_at(20);
    let peer = std::os::unix::net::UnixStream::connect(service.socket()).unwrap();
    // Its descriptor comes with the first part, and a manager is killed after each.
    send(&peer, head, &[uffd.as_fd()]);
    std::thread::sleep(Duration::from_millis(20));
    let first = service.kill_manager(0);
    send(&peer, tail, &[]);
    // SAFETY: the mapping above, whose faults a manager answers.
    let seen = unsafe { memory.cast::<u64>().read_volatile() };
    assert_eq!(seen, word(0, 0, 0));
    service.kill_manager(first);
    await_that("the client is served again", || {
        service.counter("restarts") > 0
    });
    // SAFETY: as above; no fault of it is left to serve.
    unsafe { libc::munmap(memory, PAGE) };
}

fn a_manager_outlives_its_keeper() {
    let pages = mib(8);
    let mut service = KeptService::start(pages, "ram:32M", "-", "lenient");
    let mut guest = service.guest("memfd", pages * PAGE);
    guest.run(&format!("write 0 {pages} 1"));
    let manager = service.manager().expect("a manager");
    service.end_keeper();
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 1")), 0);
    // It accepts others, too.
    let mut other = service.guest("memfd", pages * PAGE);
    assert_eq!(other.wrong(&format!("verify 0 {pages} 0")), 0);
    // SAFETY: the manager, which no process waits for.
    unsafe { libc::kill(manager, libc::SIGTERM) };
    guest.await_refusal();
}

fn managers_that_end_at_each_start_are_given_up() {
    let pages = mib(1);
    let mut service = KeptService::start(pages, "-", "-", "mortal");
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
    service.kill_manager(0);
    let mut end = String::new();
    let output = service.keeper.stdout.as_mut().expect("its output");
    output.read_to_string(&mut end).unwrap();
    assert_eq!(
        end.trim(),
        format!(
            "GaveUp {{ last: \"signal {}\", clients: 1 }}",
            libc::SIGABRT
        )
    );
    guest.await_refusal();
}

fn a_guest_without_manager_and_keeper_loses_its_connection() {
    let pages = mib(1);
    let mut service = KeptService::start(pages, "-", "-", "lenient");
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong("verify 0 20 0"), 0);
    let manager = service.manager().expect("a manager");
    service.end_keeper();
    // SAFETY: the manager, which no process waits for.
    unsafe { libc::kill(manager, libc::SIGKILL) };
    guest.await_refusal();
    // What is there is there.
    assert_eq!(guest.wrong("verify 0 20 0"), 0);
}

/// The peer sends its descriptor when the manager has read all that it sent, and before the keeper closes the connection.
fn a_refused_peer_whose_close_takes_long_delays_no_guest() {
    let pages = mib(4);
    let service = KeptService::start(pages, "-", "-", "lenient");
    let manager = service.manager().expect("a manager");
    let has_client_thread = || {
        let threads = std::fs::read_dir(format!("/proc/{manager}/task"));
        let names = threads.expect("a manager").flatten();
        let mut names = names.filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
        names.any(|name| name.starts_with("selfpage-client"))
    };
    let signal_keeper = |signal| {
        // SAFETY: the keeper, which has not been waited for.
        unsafe { libc::kill(service.keeper.id() as i32, signal) };
    };
    let mut peer = UnixStream::connect(service.socket()).expect("a connection");
    await_that("the manager has the connection", has_client_thread);
    signal_keeper(libc::SIGSTOP);
    peer.write_all(b"garbage").expect("room for a message");
    await_that("the manager has read it", || {
        let mut unread: libc::c_int = 0;
        // SAFETY: the kernel writes an int.
        unsafe { libc::ioctl(peer.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        unread == 0
    });
    let (slow, other) = lingering_socket(Duration::from_secs(60)).expect("a socket");
    if seqpacket::send(&peer, b"x", &[slow.as_fd()], SendFlags::DONTWAIT).is_err() {
        // The manager has ended the connection: the last close would be this one.
        set_socket_linger(&slow, None).expect("an option");
    }
    drop(slow);
    std::thread::sleep(Duration::from_millis(50));
    signal_keeper(libc::SIGCONT);
    let begin = Instant::now();
    let mut guest = service.guest("private", pages * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
    assert!(begin.elapsed() < Duration::from_secs(30), "it has waited");
    drop(other);
}
