//! Admission of processes: each becomes a domain with its guarantee, receives the memory and
//! descriptors it works with, and is watched by a pidfd from then on.
//!
//! A child of a fork has its domain before it exists: its parent reserves it, so that a fork
//! that cannot be paged fails as a fork does.

use super::new_images::NewImage;
use super::{A_TURN, CONNECTION, LISTENER, PIDFD, STRANGER, Supervisor};
use crate::TreeEvent;
use crate::descriptor_reserve;
use crate::processes::{PagedProcess, program_of};
use crate::shared_memory::TreeParts;
use crate::sockets::{self, Peer, answer, refuse};
use frames::{DomainId, DomainPhase};
use host::fd_reaper::PeerFd;
use host::procfs::is_shortage;
use host::seqpacket::DESCRIPTORS;
use link::MIN_FRAMES;
use link::handshake::{
    FdRole, Hello, Message, ProgramPlace, RawDomainId, Reply, SlotIndex, Welcome, slot_of,
};
use link::shared_request::SharedRequest;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use rustix::process::Pid;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::time::Instant;
use wired::Counter;

/// Connections that have not sent their first message. With more than that the oldest is
/// closed: a process sends it at once.
const MOST_STRANGERS: usize = 256;

/// A connection whose process has not sent its first message.
pub(super) struct UnidentifiedPeer {
    connection: PeerFd,
    /// Where the connection was made by name; else each message has its sender.
    peer: Option<Peer>,
}

impl Supervisor {
    pub(super) fn hello(
        &mut self,
        connection: PeerFd,
        peer: Peer,
        hello: Hello,
        happened: &mut Vec<TreeEvent>,
    ) {
        let Some(pid) = peer.pid else {
            return;
        };
        let program = match hello {
            Hello::Exec { program } | Hello::Fork { program, .. } => program_of(pid, program),
            _ => Some(pid),
        };
        let Some(program) = program else {
            return refuse(&connection, "the program has ended");
        };
        let domain = match hello {
            Hello::Exec { .. } => {
                let Some(user) = peer.user() else {
                    return refuse(&connection, "the program has ended");
                };
                // The image before this one ended with the exec, seen or not yet.
                self.end_image_of(program, happened);
                match self.check_user(user) {
                    Ok(()) => {
                        let since = Instant::now();
                        self.new_images.push(NewImage {
                            connection,
                            pid,
                            program,
                            since,
                        });
                        return self.admit_images(happened);
                    }
                    Err(text) => Err(text),
                }
            }
            Hello::Fork { child, .. } => self.claim(child),
            Hello::Release { parent, child } => {
                if self.is(parent, pid) && self.claim(child).is_ok() {
                    self.take_back(DomainId::from_raw(child));
                }
                answer(&connection, Reply::Released, &[]);
                return;
            }
        };
        // The child of a fork that is refused tells its parent so, which then gives the domain back: a parent whose child's
        // domain has gone takes that for a child that has run.
        let slot = domain.and_then(|domain| match descriptor_reserve::has_room_for_more() {
            true => self.enter(&connection, pid, program, domain),
            false => Err(cannot_take_in(&io::Errno::MFILE.into())),
        });
        if let Ok(slot) = &slot {
            self.stats_page.block(*slot).add(Counter::Forks, 1);
        }
        happened.push(joined_or_refused(&connection, program, slot));
    }

    /// Lets new images in that find a domain, and refuses those that have waited too long for one.
    pub(super) fn admit_images(&mut self, happened: &mut Vec<TreeEvent>) {
        while let Some((image, domain)) = self.new_images.admit(&self.ledger, self.settings.frames)
        {
            let (pid, program) = (image.pid, image.program);
            let slot = domain.and_then(|domain| {
                let entered = self.enter(&image.connection, pid, program, domain);
                entered.inspect_err(|_| _ = self.take_back(domain))
            });
            happened.push(joined_or_refused(&image.connection, program, slot));
        }
    }

    /// As [`Supervisor::hello`], of a process whose call carries the message.
    pub(super) fn hello_of_call(&mut self, connection: PeerFd, pid: Option<Pid>, hello: Hello) {
        let mut happened = std::mem::take(&mut self.joined_by_call);
        self.hello(connection, Peer { pid, uid: None }, hello, &mut happened);
        self.joined_by_call = happened;
    }

    /// Whether a new image of this user may have the tree's store. A process that maps it can read
    /// and change the pages of all others, which natively another user's process cannot.
    ///
    /// One that changes its user without exec has the store mapped already, with the memory that
    /// it had before. That cannot be taken away, nor from the children it forks.
    fn check_user(&self, uid: u32) -> Result<(), String> {
        let own = sockets::own_uid();
        match uid == own || self.settings.share_store {
            true => Ok(()),
            false => Err(format!(
                "this process is user {uid}'s and the tree is user {own}'s: the processes of a tree share one \
                 store and can read each other's pages in it, so another user's process is not given it. Start \
                 this program in a `selfpage run` of its own, as that user, or allow it with --share-store"
            )),
        }
    }

    /// A process requests something of the tree's shared memory.
    pub(super) fn at_shared_memory(
        &mut self,
        slot: SlotIndex,
        request: SharedRequest,
        mut fds: impl Iterator<Item = PeerFd>,
    ) {
        let (Some(member), Some(answer)) = (self.members.get_mut(slot), fds.next()) else {
            return;
        };
        let tree = TreeParts {
            ledger: &self.ledger,
            ledger_fd: &self.ledger_fd,
            stats_fd: &self.stats_fd,
            store: self.store.as_ref(),
            frames: self.settings.frames,
            links: &mut self.links,
        };
        self.shared_memory
            .serve(answer, member, request, fds.next(), tree);
    }

    /// Returns true if a process is the one it claims to be.
    fn is(&self, domain: RawDomainId, pid: Pid) -> bool {
        self.members
            .get(slot_of(domain))
            .is_some_and(|member| member.is(domain, pid))
    }

    /// The domain admitted for a child, if it is there and no process has it.
    fn claim(&self, child: RawDomainId) -> Result<DomainId, String> {
        let domain = DomainId::from_raw(child);
        let free = self.members.get(slot_of(child)).is_none();
        let there = self
            .ledger
            .stats(domain)
            .is_some_and(|v| matches!(v.phase, DomainPhase::Nascent | DomainPhase::Live));
        // Taken back a second time, it would take the pages of the next domain in its slot.
        let is_ending = self.unfinished.contains(&domain);
        match free && there && !is_ending {
            true => Ok(domain),
            false => Err("the domain admitted for this child is gone or another's".into()),
        }
    }

    /// Makes a process a member and lets it in.
    fn enter(
        &mut self,
        connection: &PeerFd,
        pid: Pid,
        program: Pid,
        domain: DomainId,
    ) -> Result<SlotIndex, String> {
        let slot = slot_of(domain.raw());
        let entered = self.try_enter(connection, pid, program, domain);
        entered.map(|()| slot).map_err(|what| {
            self.program_ends.on_ended(slot, program);
            self.members.remove(slot);
            cannot_take_in(&what)
        })
    }

    fn try_enter(
        &mut self,
        connection: &PeerFd,
        pid: Pid,
        program: Pid,
        domain: DomainId,
    ) -> std::io::Result<()> {
        let member = PagedProcess::new(connection.try_clone()?, pid, program, domain)?;
        let slot = member.slot();
        self.watched
            .add(&member.connection, CONNECTION | u64::from(slot))?;
        self.watched.add(&member.pidfd, PIDFD | u64::from(slot))?;
        let block = self.stats_page.block(slot);
        block.clear();
        // A process that starts careful has nothing to acknowledge.
        let careful = self.stats_page.careful().load(Ordering::SeqCst);
        block.careful_seen().store(careful, Ordering::SeqCst);
        // Before the program runs: it may end, and its parent go on, before this thread does.
        self.program_ends.on_joined(slot, program);
        match self.welcome(connection, domain) {
            // It has died: its pidfd reports that.
            Err(why) if why.kind() == ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
        self.members.insert(member);
        self.past.processes += 1;
        Ok(())
    }

    fn welcome(&self, connection: &PeerFd, domain: DomainId) -> std::io::Result<()> {
        let mut fds = vec![
            (FdRole::Ledger, self.ledger_fd.as_fd()),
            (FdRole::StatsPage, self.stats_fd.as_fd()),
        ];
        fds.extend(
            self.settings
                .userfaultfd
                .as_ref()
                .map(|fd| (FdRole::Userfaultfd, fd.as_fd())),
        );
        let bell = self.links.pressure_bell();
        fds.extend(bell.map(|bell| (FdRole::PressureBell, bell)));
        let store = self.store.as_ref();
        let own = store.map(|store| store.description(slot_of(domain.raw())));
        let own = own.transpose()?.flatten();
        let stored = store.map(|store| store.descriptors(own.as_ref()));
        fds.extend(stored.into_iter().flatten().map(|fd| (FdRole::Store, fd)));
        let mut roles = [FdRole::Nothing; DESCRIPTORS];
        roles
            .iter_mut()
            .zip(&fds)
            .for_each(|(place, (role, _))| *place = *role);
        let fds: Vec<_> = fds.into_iter().map(|(_, fd)| fd).collect();
        let (frames, options) = (self.settings.frames, self.settings.options);
        let welcome = Welcome {
            domain: domain.raw(),
            frames,
            guaranteed: MIN_FRAMES,
            options,
            roles,
        };
        Ok(sockets::try_answer(
            connection,
            Reply::Welcome(welcome),
            &fds,
        )?)
    }

    pub(super) fn at_port(&mut self, happened: &mut Vec<TreeEvent>) {
        for _ in 0..A_TURN {
            let received = sockets::receive(&self.doors.port, sockets::own_uid());
            let Ok((message, mut fds)) = received else {
                return;
            };
            if message.len == 0 {
                return;
            }
            let Some(sender) = message.sender else {
                continue;
            };
            match (fds.next(), Hello::decode(message.as_slice())) {
                (Some(connection), Some(hello)) => {
                    self.hello(connection, sender.into(), hello, happened)
                }
                (Some(connection), None) => refuse(&connection, sockets::OTHER_BUILD),
                (None, _) => happened.extend(TreeEvent::of_message(sender.pid, message.as_slice())),
            }
        }
    }

    /// Accepts connections by the name, where there is one, unless too many descriptors wait to be
    /// closed: any user may connect, and leave there what takes for ever to be closed.
    pub(super) fn watch_listener(&mut self) -> io::Result<()> {
        if let (Some(listener), false) = (self.doors.listener(), PeerFd::is_reaper_full()) {
            self.watched.add(listener, LISTENER)?;
            self.accepts_by_name = true;
        }
        Ok(())
    }

    pub(super) fn at_listener(&mut self) {
        for _ in 0..A_TURN {
            if PeerFd::is_reaper_full() {
                self.accepts_by_name = false;
                self.doors.listener().inspect(|it| self.watched.remove(it));
                return;
            }
            let Some((connection, peer)) = self.doors.accept() else {
                return;
            };
            // The name is no secret; only our own tree may join.
            if peer.is_of_tree() {
                self.add_stranger(connection, Some(peer));
            }
        }
    }

    pub(super) fn add_stranger(&mut self, connection: PeerFd, peer: Option<Peer>) {
        let token = STRANGER | (self.next_stranger & 0xffff_ffff);
        self.next_stranger += 1;
        if self.watched.add(&connection, token).is_ok() {
            self.strangers
                .insert(token, UnidentifiedPeer { connection, peer });
        }
        if self.strangers.len() > MOST_STRANGERS {
            self.strangers.pop_first();
        }
    }

    pub(super) fn at_stranger(&mut self, token: u64, happened: &mut Vec<TreeEvent>) {
        let Some(UnidentifiedPeer { connection, peer }) = self.strangers.remove(&token) else {
            return;
        };
        self.watched.remove(&connection);
        let Ok((message, _)) = sockets::receive(&connection, connection.uid()) else {
            return;
        };
        let Some(peer) = peer.or(message.sender.map(Peer::from)) else {
            return;
        };
        match (Hello::decode(message.as_slice()), peer.pid) {
            (Some(hello), _) => self.hello(connection, peer, hello, happened),
            (None, Some(pid)) => happened.extend(TreeEvent::of_message(pid, message.as_slice())),
            (None, None) => {}
        }
    }

    /// Admits a process on behalf of this one.
    #[doc(hidden)]
    pub fn admit_for_test(&mut self, connection: OwnedFd, pid: Pid) {
        let peer = Peer {
            pid: Some(pid),
            uid: Some(sockets::own_uid()),
        };
        self.hello(
            PeerFd::new(connection, sockets::own_uid()),
            peer,
            Hello::Exec {
                program: ProgramPlace::default(),
            },
            &mut Vec::new(),
        );
    }
}

fn cannot_take_in(why: &std::io::Error) -> String {
    let remedy = match is_shortage(why) {
        true => ": raise `ulimit -n` before it",
        false => "",
    };
    format!("`selfpage run` cannot take in one more process ({why}){remedy}")
}

/// What became of a process's first message, for the process and for the tree.
fn joined_or_refused(
    connection: &PeerFd,
    program: Pid,
    slot: Result<SlotIndex, String>,
) -> TreeEvent {
    match slot {
        Ok(slot) => TreeEvent::Joined { slot, pid: program },
        Err(text) => {
            refuse(connection, &text);
            TreeEvent::Notice { pid: program, text }
        }
    }
}
