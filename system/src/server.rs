//! The system domain's side: admits processes, watches them, takes back what they held.
//!
//! One descriptor to poll ([`System::fd`]) and one call when it is readable
//! ([`System::dispatch`]), so that it fits into any loop. A process is watched twice,
//! by its connection (it ends at exec too) and by its pidfd (it ends even where a copy
//! of the connection survives in a child).

use crate::board::{Board, Figure, Fold};
use crate::seam::{Ledger, Store};
use crate::wire::{Answer, DESCRIPTORS, Hello, Options, Role, Say, Slot, Welcome};
use crate::{MAX_PROCESSES, MIN_FRAMES, client, socket};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// How long a reserved slot outlives a parent that died between its fork and its
/// child's first message.
const ORPHAN_GRACE: Duration = Duration::from_secs(10);

const PORT: u64 = 0;
const LISTENER: u64 = 1;
const CONNECTION: u64 = 1 << 32;
const PIDFD: u64 = 2 << 32;
const STRANGER: u64 = 3 << 32;

/// What the tree was promised.
pub struct Settings {
    /// Frames of the whole tree.
    pub frames: u32,
    /// What every process is told.
    pub options: Options,
    /// /dev/userfaultfd, where it could be opened.
    pub userfaultfd: Option<OwnedFd>,
}

/// Why the system domain could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A call failed that nothing can be done without.
    #[error("cannot {what}: {errno}")]
    Call {
        /// What it was for.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// Fewer frames than one process needs.
    #[error(
        "{frames} frames ({}) are fewer than the {MIN_FRAMES} ({}) one process needs: an instruction can touch \
         four pages at once, and the pager nails those the kernel and the C library need at any time; ask for more",
        kib(*frames), kib(MIN_FRAMES)
    )]
    TooFew {
        /// Frames asked for.
        frames: u32,
    },
}

fn kib(frames: u32) -> String {
    format!("{} KiB", u64::from(frames) * wired::PAGE as u64 / 1024)
}

/// What happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A process came in.
    Joined {
        /// Its slot.
        slot: Slot,
        /// Its process id.
        pid: Pid,
    },
    /// A process ended, or began another image; what it held is taken back.
    Left {
        /// Its slot.
        slot: Slot,
        /// Its process id.
        pid: Pid,
        /// Frames it still held.
        frames: u32,
    },
    /// A process says a line to the user.
    Notice {
        /// Who.
        pid: Pid,
        /// The line.
        text: String,
    },
    /// A process was, or will be, refused.
    Refused {
        /// Who.
        pid: Pid,
        /// Why.
        text: String,
    },
}

/// A process that pages.
struct Member {
    pid: Pid,
    pidfd: OwnedFd,
    connection: OwnedFd,
}

/// A slot promised to a child that has not spoken yet.
struct Reservation {
    parent: Slot,
    /// Since when its parent is gone.
    orphan: Option<Instant>,
}

/// A connection made through the listening socket that has not said who it is.
struct Stranger {
    connection: OwnedFd,
    pid: Pid,
}

/// The system domain of one tree.
pub struct System {
    settings: Settings,
    epoll: OwnedFd,
    port: OwnedFd,
    door: OwnedFd,
    listener: OwnedFd,
    name: String,
    ledger: Ledger,
    ledger_fd: OwnedFd,
    store: Store,
    board: Board,
    board_fd: OwnedFd,
    members: BTreeMap<Slot, Member>,
    reserved: BTreeMap<Slot, Reservation>,
    strangers: BTreeMap<u64, Stranger>,
    next_stranger: u64,
    past: BTreeMap<&'static str, u64>,
    processes: u64,
}

fn call(what: &'static str) -> impl Fn(Errno) -> StartError {
    move |errno| StartError::Call { what, errno }
}

impl System {
    /// Makes the shared memory and opens both doors.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        if settings.frames < MIN_FRAMES {
            return Err(StartError::TooFew {
                frames: settings.frames,
            });
        }
        let (ledger, ledger_fd) = Ledger::create(settings.frames, MAX_PROCESSES)
            .map_err(call("make the ledger's memory"))?;
        let (board, board_fd) =
            Board::create(MAX_PROCESSES).map_err(call("make the board's memory"))?;
        let (port, door) = socket::pair().map_err(call("make the port"))?;
        rustix::net::sockopt::set_socket_passcred(&port, true)
            .map_err(call("ask who speaks at the port"))?;
        let (listener, name) = listen().map_err(call("listen for processes"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(call("make an epoll"))?;
        for (fd, token) in [(&port, PORT), (&listener, LISTENER)] {
            epoll::add(
                &epoll,
                fd,
                epoll::EventData::new_u64(token),
                epoll::EventFlags::IN,
            )
            .map_err(call("watch the doors"))?;
        }
        Ok(Self {
            settings,
            epoll,
            port,
            door,
            listener,
            name,
            ledger,
            ledger_fd,
            store: Store,
            board,
            board_fd,
            members: BTreeMap::new(),
            reserved: BTreeMap::new(),
            strangers: BTreeMap::new(),
            next_stranger: 0,
            past: BTreeMap::new(),
            processes: 0,
        })
    }

    /// Readable when [`System::dispatch`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The tree's board.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// The end of the port that the tree inherits. Duplicate it, without close-on-exec,
    /// to the number given to [`System::environment`].
    pub fn door(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }

    /// The variables that lead a process here, with the port at descriptor `number`.
    pub fn environment(&self, number: i32) -> io::Result<[(&'static str, OsString); 2]> {
        let inode = rustix::fs::fstat(&self.door)?.st_ino;
        Ok([
            (client::PORT_VARIABLE, format!("{number}:{inode}").into()),
            (client::SOCKET_VARIABLE, self.name.clone().into()),
        ])
    }

    /// Processes that page now, with their slots.
    pub fn members(&self) -> impl Iterator<Item = (Slot, Pid)> + '_ {
        self.members
            .iter()
            .map(|(slot, member)| (*slot, member.pid))
    }

    /// How many processes came in, in all.
    pub fn processes(&self) -> u64 {
        self.processes
    }

    /// A figure of the whole tree, of processes that have ended too.
    pub fn figure(&self, figure: Figure) -> u64 {
        let past = self.past.get(figure.key()).copied().unwrap_or(0);
        self.members
            .keys()
            .map(|slot| self.board.block(*slot).get(figure))
            .fold(past, |so_far, now| fold(figure, so_far, now))
    }

    /// Does what is to be done, without waiting, and tells what happened.
    pub fn dispatch(&mut self) -> Vec<Event> {
        let mut happened = Vec::new();
        let mut ready = [const { std::mem::MaybeUninit::uninit() }; 64];
        let zero = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let tokens: Vec<u64> = match epoll::wait(&self.epoll, &mut ready, Some(&zero)) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        };
        for token in tokens {
            match (token, token & !0xffff_ffff) {
                (PORT, _) => self.at_port(&mut happened),
                (LISTENER, _) => self.at_listener(),
                (_, STRANGER) => self.at_stranger(token, &mut happened),
                (_, CONNECTION) => self.at_member(token as Slot, &mut happened),
                (_, PIDFD) => self.retire(token as Slot, &mut happened),
                _ => {}
            }
        }
        self.expire_reservations();
        happened
    }

    fn at_port(&mut self, happened: &mut Vec<Event>) {
        while let Ok(mut message) = socket::receive(&self.port, RecvFlags::DONTWAIT) {
            if message.len == 0 {
                return;
            }
            let Some(sender) = message.sender else {
                continue;
            };
            match (message.fds[0].take(), Hello::decode(message.as_slice())) {
                (Some(connection), Some(hello)) => {
                    self.hello(connection, sender.pid, hello, happened)
                }
                (Some(connection), None) => refuse(&connection, OTHER_BUILD),
                (None, _) => said(sender.pid, message.as_slice(), happened),
            }
        }
    }

    fn at_listener(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(connection) = rustix::net::accept_with(&self.listener, flags) {
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&connection) else {
                continue;
            };
            if !crate::tree::descends(peer.pid, rustix::process::getpid()) {
                continue;
            }
            let token = STRANGER | (self.next_stranger & 0xffff_ffff);
            self.next_stranger += 1;
            if self.watch(&connection, token).is_ok() {
                self.strangers.insert(
                    token,
                    Stranger {
                        connection,
                        pid: peer.pid,
                    },
                );
            }
        }
    }

    fn at_stranger(&mut self, token: u64, happened: &mut Vec<Event>) {
        let Some(Stranger { connection, pid }) = self.strangers.remove(&token) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, &connection);
        let Ok(message) = socket::receive(&connection, RecvFlags::DONTWAIT) else {
            return;
        };
        match Hello::decode(message.as_slice()) {
            Some(hello) => self.hello(connection, pid, hello, happened),
            None => said(pid, message.as_slice(), happened),
        }
    }

    fn at_member(&mut self, slot: Slot, happened: &mut Vec<Event>) {
        while let Some(member) = self.members.get(&slot) {
            match socket::receive(&member.connection, RecvFlags::DONTWAIT) {
                Ok(message) if message.len > 0 => said(member.pid, message.as_slice(), happened),
                Err(Errno::AGAIN) => return,
                _ => return self.retire(slot, happened),
            }
        }
    }

    fn hello(&mut self, connection: OwnedFd, pid: Pid, hello: Hello, happened: &mut Vec<Event>) {
        let slot = match hello {
            Hello::Exec => {
                // The image before this one ended with the exec, seen or not yet.
                let before = self.slot_of(pid);
                before
                    .into_iter()
                    .for_each(|slot| self.retire(slot, happened));
                self.admit(pid)
            }
            Hello::Fork { child, .. } => match self.reserved.remove(&child) {
                Some(_) => Ok(child),
                None => Err(
                    "the slot reserved for this child was given up: its parent has ended".into(),
                ),
            },
            Hello::Reserve { parent } => {
                match self.reserve(parent, pid) {
                    Ok(slot) => answer(&connection, Answer::Reserved(slot), &[]),
                    Err(text) => {
                        refuse(&connection, &text);
                        happened.push(Event::Refused { pid, text });
                    }
                }
                return;
            }
            Hello::Release { parent, child } => {
                if self
                    .reserved
                    .get(&child)
                    .is_some_and(|r| r.parent == parent)
                {
                    self.reserved.remove(&child);
                    self.take_back(child);
                }
                return answer(&connection, Answer::Released, &[]);
            }
        };
        match slot.and_then(|slot| self.enter(connection.try_clone(), pid, slot)) {
            Ok(slot) => happened.push(Event::Joined { slot, pid }),
            Err(text) => {
                refuse(&connection, &text);
                happened.push(Event::Refused { pid, text });
            }
        }
    }

    /// Lets in a process that this one speaks for.
    #[doc(hidden)]
    pub fn admit_for_test(&mut self, connection: OwnedFd, pid: Pid) {
        self.hello(connection, pid, Hello::Exec, &mut Vec::new());
    }

    /// A slot with its guarantee, or why not.
    fn admit(&mut self, pid: Pid) -> Result<Slot, String> {
        self.ledger.admit(MIN_FRAMES, pid.as_raw_nonzero().get() as u32).map_err(|refusal| {
            format!(
                "this process may not page: {refusal}; each process of the tree is guaranteed {MIN_FRAMES} frames: \
                 ask `selfpage run` for more with --frames, or start fewer processes"
            )
        })
    }

    fn reserve(&mut self, parent: Slot, pid: Pid) -> Result<Slot, String> {
        if self
            .members
            .get(&parent)
            .is_none_or(|member| member.pid != pid)
        {
            return Err(format!(
                "process {pid} asks in the name of slot {parent}, which is not its own"
            ));
        }
        let slot = self.admit(pid)?;
        self.reserved.insert(
            slot,
            Reservation {
                parent,
                orphan: None,
            },
        );
        Ok(slot)
    }

    /// Makes a process a member and lets it in.
    fn enter(
        &mut self,
        connection: std::io::Result<OwnedFd>,
        pid: Pid,
        slot: Slot,
    ) -> Result<Slot, String> {
        let entered = self.try_enter(connection, pid, slot);
        entered.map(|()| slot).map_err(|what| {
            self.members.remove(&slot);
            self.take_back(slot);
            format!(
                "`selfpage run` cannot watch one more process ({what}): raise `ulimit -n` before it"
            )
        })
    }

    fn try_enter(
        &mut self,
        connection: std::io::Result<OwnedFd>,
        pid: Pid,
        slot: Slot,
    ) -> Result<(), String> {
        let connection = connection.map_err(|e| e.to_string())?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| e.to_string())?;
        self.watch(&connection, CONNECTION | u64::from(slot))
            .map_err(|e| e.to_string())?;
        self.watch(&pidfd, PIDFD | u64::from(slot))
            .map_err(|e| e.to_string())?;
        let block = self.board.block(slot);
        block.clear();
        // A process that starts careful has nothing to acknowledge.
        let careful = self
            .board
            .careful()
            .load(std::sync::atomic::Ordering::Acquire);
        block
            .careful_seen()
            .store(careful, std::sync::atomic::Ordering::Release);
        self.welcome(&connection, slot);
        self.members.insert(
            slot,
            Member {
                pid,
                pidfd,
                connection,
            },
        );
        self.processes += 1;
        Ok(())
    }

    fn welcome(&self, connection: &OwnedFd, slot: Slot) {
        let mut fds = vec![
            (Role::Ledger, self.ledger_fd.as_fd()),
            (Role::Board, self.board_fd.as_fd()),
        ];
        fds.extend(
            self.settings
                .userfaultfd
                .as_ref()
                .map(|fd| (Role::Userfaultfd, fd.as_fd())),
        );
        fds.extend(
            self.store
                .descriptors()
                .iter()
                .map(|fd| (Role::Store, fd.as_fd())),
        );
        let mut roles = [Role::Nothing; DESCRIPTORS];
        roles
            .iter_mut()
            .zip(&fds)
            .for_each(|(place, (role, _))| *place = *role);
        let fds: Vec<_> = fds.into_iter().map(|(_, fd)| fd).collect();
        let welcome = Welcome {
            slot,
            frames: self.settings.frames,
            guaranteed: MIN_FRAMES,
            options: self.settings.options,
            roles,
            layout: self.store.layout(),
            layout_len: 0,
        };
        answer(connection, Answer::Welcome(welcome), &fds);
    }

    fn watch(&self, fd: &OwnedFd, token: u64) -> io::Result<()> {
        epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token),
            epoll::EventFlags::IN,
        )
    }

    fn slot_of(&self, pid: Pid) -> Option<Slot> {
        self.members
            .iter()
            .find(|(_, member)| member.pid == pid)
            .map(|(slot, _)| *slot)
    }

    /// A process has ended: keeps its figures, takes everything else back.
    fn retire(&mut self, slot: Slot, happened: &mut Vec<Event>) {
        let Some(member) = self.members.remove(&slot) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, &member.connection);
        let _ = epoll::delete(&self.epoll, &member.pidfd);
        let block = self.board.block(slot);
        for figure in Figure::ALL
            .iter()
            .filter(|figure| figure.fold() != Fold::Now)
        {
            let past = self.past.entry(figure.key()).or_default();
            *past = fold(*figure, *past, block.get(*figure));
        }
        let orphaned = self.reserved.values_mut().filter(|r| r.parent == slot);
        orphaned.for_each(|r| r.orphan = Some(Instant::now()));
        let frames = self.take_back(slot);
        happened.push(Event::Left {
            slot,
            pid: member.pid,
            frames,
        });
    }

    fn take_back(&mut self, slot: Slot) -> u32 {
        self.board.block(slot).clear();
        self.store.retire(slot);
        self.ledger.retire(slot)
    }

    fn expire_reservations(&mut self) {
        let given_up: Vec<Slot> = self
            .reserved
            .iter()
            .filter(|(_, r)| r.orphan.is_some_and(|since| since.elapsed() > ORPHAN_GRACE))
            .map(|(slot, _)| *slot)
            .collect();
        for slot in given_up {
            self.reserved.remove(&slot);
            self.take_back(slot);
        }
    }
}

const OTHER_BUILD: &str =
    "`selfpage` and libselfpage_preload.so are of different versions: install both from one build";

fn fold(figure: Figure, so_far: u64, now: u64) -> u64 {
    match figure.fold() {
        Fold::Sum | Fold::Now => so_far.saturating_add(now),
        Fold::Max => so_far.max(now),
    }
}

fn answer(connection: &OwnedFd, answer: Answer, fds: &[BorrowedFd<'_>]) {
    // A peer that died meanwhile is seen by its pidfd.
    let _ = socket::send(
        connection,
        answer.encode().as_slice(),
        fds,
        SendFlags::DONTWAIT,
    );
}

fn refuse(connection: &OwnedFd, text: &str) {
    answer(connection, Answer::Refused(text.as_bytes()), &[]);
}

fn said(pid: Pid, bytes: &[u8], happened: &mut Vec<Event>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match Say::decode(bytes) {
        Some(Say::Notice(line)) => happened.push(Event::Notice {
            pid,
            text: text(line),
        }),
        Some(Say::Refused(why)) => happened.push(Event::Refused {
            pid,
            text: text(why),
        }),
        Some(Say::Careful) | None => {}
    }
}

/// Listens under a name nobody can guess; who connects is checked all the same.
fn listen() -> io::Result<(OwnedFd, String)> {
    let mut random = [0u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let name = random.iter().fold("selfpage-".to_owned(), |name, byte| {
        format!("{name}{byte:02x}")
    });
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    rustix::net::listen(&socket, 1024)?;
    Ok((socket, name))
}
