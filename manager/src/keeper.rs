//! The keeper of a manager: has what must outlive it, and starts another one where it is killed.
//!
//! The keeper is the manager's parent. It accepts the connections of clients, and holds each with what its manager
//! sends of it: the userfaultfd, the record, the memfd, the store. A manager that follows another one inherits all of
//! that by the fork. The hand-off is read with MSG_PEEK, and taken from the connection when the keeper has the client,
//! so that one which was not served yet is received again.
//!
//! A client can make a call of its manager's wait for ever, too. A manager that was killed and waits in such calls alone has ended
//! for the keeper (`manager_process`); its successor serves the clients of these calls when they have returned.
//!
//! A client can make the last close of what it made wait for ever. So a manager closes its own descriptors of a client
//! when the keeper has closed those it has, in the client's thread.
//!
//! Rule: the keeper does nothing else. It has one thread, waits for nothing but its descriptors (and for systemd's socket,
//! for some seconds), and prints nothing while it keeps: standard error may be a stopped terminal. Where it is killed
//! alone, its manager goes on. Without systemd's descriptor store ([`crate::kept_service`]) that one accepts connections
//! itself, and is not followed by another one; with it, the next keeper begins with what systemd has.

use crate::arrivals::ACCEPT_PAUSE;
use crate::keeper_link::{ClientSlot, KeeperLink, KeeperRequest, confirm, send_arrival};
use crate::kept_service::{KeptClient, KeptService};
use crate::manager_process::{ManagerEnd, ManagerProcess, POLL_PERIOD};
use crate::manager_record::ManagerRecord;
use crate::pending_handoffs::MAX_PENDING;
use crate::sockets::Sockets;
use host::restart_policy::RestartPolicy;
use host::seqpacket;
use host::signals::SignalFd;
use host::systemd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SocketFlags, accept_with};
use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Hand-offs that are not complete, at once: more than the manager receives at once, which ends some for others.
/// Beyond that they wait in the socket's backlog.
const MOST_PENDING: usize = 2 * MAX_PENDING;
/// Descriptors of one client that the keeper has at most: its connection, userfaultfd, memfd, process, record, and three
/// of a store, with room for some children.
const OF_A_CLIENT: u64 = 12;
/// Its others, and those of connections to `selfpage vm`.
const OTHERS: u64 = 64;

/// Clients that a process can keep which may have that many descriptors.
pub fn most_clients(descriptors: u64) -> usize {
    let for_clients = descriptors.saturating_sub(OTHERS + MOST_PENDING as u64);
    (for_clients / OF_A_CLIENT) as usize
}

/// The exit status of a manager that could not serve.
const FAILED: i32 = 125;

/// What a manager begins with.
pub struct Inheritance {
    /// Where clients and `selfpage vm` connect.
    pub sockets: Sockets,
    /// The way to the keeper.
    pub link: KeeperLink,
    /// The clients of the manager before.
    pub clients: Vec<KeptClient>,
    /// What all managers of the keeper share.
    pub record: Arc<ManagerRecord>,
    /// The lock on the clients, the keeper's and its managers' together.
    pub lock: OwnedFd,
    /// How the manager before ended, if there was one.
    pub former_end: Option<String>,
}

/// How a keeper ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeeperEnd {
    /// The manager ended as it was asked to.
    Stopped,
    /// No manager served. One that found why has printed it.
    NeverServed {
        /// How the last one ended.
        last: String,
    },
    /// Managers ended too soon, too often: the clients that are left wait for ever.
    GaveUp {
        /// How the last one ended.
        last: String,
        /// Clients that were kept.
        clients: usize,
    },
}

/// Serves by a manager in a process of its own, and by another one where that ends otherwise than it was asked to.
/// `serve` is called in each manager's process; what keeps memory in RAM is not inherited. `signals`, which are blocked,
/// end the service.
///
/// # Errors
/// Of this process, which has one thread: descriptors, memory, and processes.
pub fn keep(
    service: KeptService,
    signals: &libc::sigset_t,
    mut policy: RestartPolicy,
    serve: impl FnOnce(Inheritance) -> Result<(), Box<dyn Error>>,
) -> io::Result<KeeperEnd> {
    let mut keeper = Keeper {
        signals: SignalFd::open(signals)?,
        lock: service.record.open_lock()?,
        service,
        stuck: Vec::new(),
        is_stopping: false,
    };
    let record = Arc::clone(&keeper.service.record);
    let served_before = record.served();
    let mut serve = Some(serve);
    let mut former_end = None;
    loop {
        let (started, served) = (Instant::now(), record.served());
        let end = match fork_linked() {
            Ok(Forked::Manager(link)) => {
                let outcome = match serve.take() {
                    Some(serve) => serve(keeper.bequeath(link, former_end)),
                    None => Ok(()),
                };
                if let Err(why) = &outcome {
                    tracing::error!("the manager cannot serve: {why}");
                }
                std::process::exit(if outcome.is_ok() { 0 } else { FAILED });
            }
            Ok(Forked::Keeper(manager, link)) => {
                let end = keeper.accompany(manager, &link)?;
                if keeper.is_stopping || end.is_success() {
                    return Ok(KeeperEnd::Stopped);
                }
                end.to_string()
            }
            // Out of memory or processes: perhaps not for long.
            Err(errno) => format!("no process: {errno}"),
        };
        let now_served = record.served();
        if now_served == served_before {
            return Ok(KeeperEnd::NeverServed { last: end });
        }
        let Some(pause) = policy.on_end(started.elapsed(), now_served != served) else {
            return Ok(KeeperEnd::GaveUp {
                last: end,
                clients: keeper.service.served_clients(),
            });
        };
        if keeper.pause(pause) {
            return Ok(KeeperEnd::Stopped);
        }
        former_end = Some(end);
    }
}

/// Which process it is after a fork, with its end of the link.
enum Forked {
    Keeper(Pid, OwnedFd),
    Manager(OwnedFd),
}

fn fork_linked() -> io::Result<Forked> {
    let (own, theirs) = seqpacket::pair()?;
    // SAFETY: this process has one thread, so the child may go on as it likes.
    match unsafe { libc::fork() } {
        -1 => Err(host::last_errno()),
        0 => Ok(Forked::Manager(theirs)),
        child => Ok(Forked::Keeper(
            Pid::from_raw(child).ok_or(Errno::SRCH)?,
            own,
        )),
    }
}

struct Keeper {
    service: KeptService,
    lock: OwnedFd,
    signals: SignalFd,
    /// Managers that have ended but for calls that wait.
    stuck: Vec<ManagerProcess>,
    is_stopping: bool,
}

impl Keeper {
    /// What a manager's process, which has copies of all descriptors, begins with.
    fn bequeath(self, link: OwnedFd, former_end: Option<String>) -> Inheritance {
        let link = KeeperLink::new(link, self.service.is_stored());
        Inheritance {
            sockets: self.service.sockets,
            link,
            clients: self.service.clients.into_values().collect(),
            record: self.service.record,
            lock: self.lock,
            former_end,
        }
    }

    /// Keeps what the manager sends until its process has ended.
    fn accompany(&mut self, child: Pid, link: &OwnedFd) -> io::Result<ManagerEnd> {
        let mut process = ManagerProcess::open(child)?;
        let period = Timespec::try_from(POLL_PERIOD).unwrap_or_default();
        // A connection that the manager's socket had no room for.
        let mut unsent = None;
        let mut is_linked = true;
        loop {
            let pending = self.service.clients.len() - self.service.served_clients();
            let accepts = unsent.is_none() && is_linked && pending < MOST_PENDING;
            let when = |is_wanted: bool, flags| if is_wanted { flags } else { PollFlags::empty() };
            let room = when(unsent.is_some(), PollFlags::OUT);
            let mut ready = [
                // A closed link would be ready all the time.
                match is_linked {
                    true => PollFd::new(link, PollFlags::IN | room),
                    false => PollFd::new(&process, PollFlags::IN),
                },
                PollFd::new(&self.service.sockets.handoffs, when(accepts, PollFlags::IN)),
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&process, PollFlags::IN),
            ];
            io::retry_on_intr(|| poll(&mut ready, Some(&period)))?;
            let [has_news, has_connection, has_signal, has_ended] =
                ready.map(|it| it.revents().intersects(PollFlags::IN | PollFlags::OUT));
            if has_news {
                is_linked = self.take_requests(link);
                unsent = unsent.and_then(|slot| self.send(link, slot));
            }
            if has_signal {
                self.take_signal();
                let _ = kill_process(child, Signal::TERM);
            }
            if let Some(end) = process.end(has_ended) {
                // What it sent last. Its I/O has ended, too: each thread waits for its own before it ends.
                self.take_requests(link);
                if matches!(end, ManagerEnd::Stuck) {
                    self.stuck.push(process);
                }
                return Ok(end);
            }
            self.stuck.retain(ManagerProcess::has_threads);
            if accepts && has_connection {
                unsent = self.accept().and_then(|slot| self.send(link, slot));
            }
        }
    }

    /// Takes what the manager has sent. Returns false where its end of the link is closed.
    fn take_requests(&mut self, link: &OwnedFd) -> bool {
        loop {
            let message = match seqpacket::receive(link, RecvFlags::DONTWAIT) {
                Ok(message) if message.len > 0 => message,
                Err(Errno::AGAIN) => return true,
                _ => return false,
            };
            match KeeperRequest::decode(message) {
                Some(KeeperRequest::Keep(slot, parts, to)) => {
                    let kept = self.service.keep(slot, parts);
                    to.inspect(|to| confirm(to, kept));
                }
                Some(KeeperRequest::KeepChildren(slot, ended, new)) => {
                    self.service.keep_children(slot, &ended, new);
                }
                Some(KeeperRequest::Truncated(to)) => {
                    let why = "it has no descriptors left (`ulimit -n`)";
                    to.inspect(|to| confirm(to, Err::<(), _>(why)));
                }
                Some(KeeperRequest::Release(slot, bell)) => self.service.release(slot, bell),
                Some(KeeperRequest::Ready) => systemd::notify("READY=1"),
                None => {}
            }
        }
    }

    fn accept(&mut self) -> Option<ClientSlot> {
        match accept_with(&self.service.sockets.handoffs, SocketFlags::CLOEXEC) {
            Ok(connection) => Some(self.service.add(connection)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            Err(_) => {
                // Out of descriptors or memory: a client that ends gives some back.
                std::thread::sleep(ACCEPT_PAUSE);
                None
            }
        }
    }

    /// Passes a connection on. Returns its slot where there is no room.
    fn send(&self, link: &OwnedFd, slot: ClientSlot) -> Option<ClientSlot> {
        let client = self.service.clients.get(&slot)?;
        match send_arrival(link, slot, client.connection.as_fd()) {
            Err(Errno::AGAIN) => Some(slot),
            Err(Errno::TOOMANYREFS) => {
                // Other processes of the user have too many descriptors under way.
                std::thread::sleep(ACCEPT_PAUSE);
                Some(slot)
            }
            // A manager that has ended leaves it to the next.
            _ => None,
        }
    }

    fn take_signal(&mut self) {
        self.is_stopping = true;
        let _ = self.signals.next();
    }

    /// Waits. Returns true if the service is to end.
    fn pause(&mut self, pause: Duration) -> bool {
        let time = Timespec::try_from(pause).unwrap_or_default();
        let mut ready = [PollFd::new(&self.signals, PollFlags::IN)];
        let is_signalled = poll(&mut ready, Some(&time)).is_ok_and(|count| count > 0);
        if is_signalled {
            self.take_signal();
        }
        is_signalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::fd_reaper::lingering_socket;
    use rustix::net::SendFlags;
    use std::collections::BTreeMap;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn the_keeper_closes_a_client_before_its_manager_does() {
        let folder = tempfile::tempdir().unwrap();
        let listen = |name| UnixListener::bind(folder.path().join(name)).unwrap();
        let (link, theirs) = seqpacket::pair().unwrap();
        let (peer, connection) = UnixStream::pair().unwrap();
        let managers_own = connection.try_clone().unwrap();
        let client = KeptClient {
            slot: 7,
            connection: connection.into(),
            parts: Vec::new(),
            children: BTreeMap::new(),
        };
        let sockets = Sockets {
            handoffs: listen("handoffs"),
            control: listen("control"),
        };
        let mut keeper = Keeper {
            service: KeptService {
                sockets,
                record: Arc::new(ManagerRecord::new("").unwrap()),
                clients: BTreeMap::from([(7, client)]),
                next: 8,
                store: None,
            },
            signals: SignalFd::open(&host::signals::set_of(&[])).unwrap(),
            lock: managers_own.try_clone().unwrap().into(),
            stuck: Vec::new(),
            is_stopping: false,
        };
        let (slow, other) = lingering_socket(Duration::from_secs(60)).unwrap();
        seqpacket::send(&peer, b"x", &[slow.as_fd()], SendFlags::empty()).unwrap();
        drop(slow);
        let managers_end = KeeperLink::new(theirs, false);
        let slot = managers_end.slot(7);
        let manager = std::thread::spawn(move || {
            slot.release();
            drop(managers_own);
        });
        std::thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        while !keeper.service.clients.is_empty() {
            assert!(keeper.take_requests(&link), "the link is open");
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "it has waited");
        drop(other);
        manager.join().unwrap();
    }
}
